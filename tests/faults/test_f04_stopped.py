"""A node that hangs is given up after the timeout, by all who have to do with it."""

import random
import signal
import time

from table import FULL
from trainings import NODES, SLACK, unfaulted

TIMEOUT = 5.0 if FULL else 10.0  # seconds; other nodes may be slow on a busy machine


def test_f04_a_node_hangs(training, row, trials):
    many, rng, took = trials(1, 10), random.Random(5), []
    steps = 60 * (many + 1)
    one = training("--restarts", str(many), steps=steps, timeout=TIMEOUT, graph="ring").start()
    for _ in range(many):
        one.further(rng.randrange(1, 35))
        victim, pids = rng.randrange(NODES), set(one.pids())
        began = time.monotonic()
        one.workers()[victim].send_signal(signal.SIGSTOP)
        one.until(lambda pids=pids: not pids & set(one.pids()), "not started again")
        lost = one.lost()
        listener = (victim + 1) % NODES
        assert {node for node, *_ in lost} == set(range(NODES)) - {victim}
        took += [when - began for _, when, *_ in lost]
        said = next(error for node, _, _, error in lost if node == listener)
        assert f"Node {listener} lost node {victim} in step" in said
        assert f"edge node {victim} -> node {listener}" in said
        assert f"silent for {TIMEOUT:g} s. Start again" in said
        one.further(1)
    code, said = one.ended()
    assert code == 0, said
    assert one.result() == unfaulted(steps=steps, graph="ring")
    assert one.left_over() == []
    assert max(took) <= TIMEOUT + SLACK, took
    row.measured(
        f"{many} nodes stopped: every other one gave up after {max(took):.2f} s at most and named the edge; resumed bit for bit",
        trials=many,
    )

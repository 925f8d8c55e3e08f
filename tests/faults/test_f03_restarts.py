"""Nodes die again and again, and `perron launch --restarts` starts all of them again each time."""

import random
import statistics
import time

from table import FULL
from trainings import NODES, SLACK, unfaulted


def test_f03_nodes_die_again_and_again(training, row, trials):
    kills, rng, took = trials(2, 10), random.Random(4), []
    steps = 60 * (kills + 1)
    one = training("--restarts", str(kills), steps=steps)
    one.start()
    for _ in range(kills):
        one.further(rng.randrange(20, 60) if FULL else 12)
        victim, dead, pids = rng.randrange(NODES), one.workers(), set(one.pids())
        killed = time.monotonic()
        dead[victim].kill()
        one.until(lambda pids=pids: not pids & set(one.pids()), "not started again")
        before = [len(one.steps(node)) for node in range(NODES)]
        one.until(lambda before=before: all(len(one.steps(node)) > before[node] for node in range(NODES)), "no step")
        took.append(max(one.steps(node)[before[node]][1] for node in range(NODES)) - killed)
    code, said = one.ended()
    assert code == 0, said
    assert said.count("All nodes are started again") == kills
    assert one.result() == unfaulted(steps=steps)
    assert one.left_over() == []
    assert statistics.median(took) <= 6 * SLACK, took
    assert max(took) <= 15 * SLACK, took
    row.measured(
        f"{kills} kills in one run, finished bit for bit; next step after {statistics.median(took):.1f} s in the median, "
        f"{max(took):.1f} s at most", trials=kills,
    )  # fmt: skip

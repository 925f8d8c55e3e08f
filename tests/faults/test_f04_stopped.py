"""A node that hangs is given up after the timeout; one that only pauses is not."""

import random
import signal
import time

from trainings import NODES, unfaulted

TIMEOUT = 5.0


def test_f04_a_node_hangs(training, row, trials):
    many, rng, took = trials(1, 10), random.Random(5), []
    one = training("--restarts", str(many), steps=60 * (many + 1), timeout=TIMEOUT, graph="ring")
    one.start()
    for _ in range(many):
        one.further(rng.randrange(1, 35))
        victim, pids = rng.randrange(NODES), set(one.pids())
        stopped = time.monotonic()
        one.workers()[victim].send_signal(signal.SIGSTOP)
        one.until(lambda pids=pids: not pids & set(one.pids()), "not started again")
        ended = min((one.folder / f"{node}.pid").stat().st_mtime for node in range(NODES))
        took.append(time.monotonic() - stopped - max(0.0, time.time() - ended))
        one.further(1)
    code, said = one.ended()
    assert code == 0, said
    assert one.result() == unfaulted(steps=60 * (many + 1), graph="ring")
    assert one.left_over() == []
    row.measured(f"{said} {took}", trials=many)

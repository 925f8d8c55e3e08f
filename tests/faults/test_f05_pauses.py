"""A node that pauses for less than the timeout is waited for."""

import random
import signal
import time

from trainings import NODES, unfaulted

TIMEOUT = 5.0


def test_f05_a_node_pauses(training, row, trials):
    many, rng = trials(1, 10), random.Random(6)
    steps = 60 * (many + 1)
    one = training(steps=steps, timeout=TIMEOUT).start()
    for _ in range(many):
        one.further(rng.randrange(1, 35))
        victim = rng.choice(one.workers())
        victim.send_signal(signal.SIGSTOP)
        time.sleep(TIMEOUT / 2)
        victim.send_signal(signal.SIGCONT)
    code, said = one.ended()
    assert code == 0, said
    assert "lost" not in said
    assert one.result() == unfaulted(steps=steps)
    row.measured(f"{many} pauses of {TIMEOUT / 2:g} s in one run of {NODES} nodes: no failure, same bits", trials=many)

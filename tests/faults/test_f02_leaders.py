"""Node 0, which others may take for special, or the launcher, which hosts the store, is killed."""

import random
import time

import psutil
from test_f01_killed import killed_again_and_again
from trainings import SLACK, unfaulted


def test_f02_node_0_is_killed(training, row, trials):
    many = trials(1, 10)
    row.measured(f"node 0 killed {killed_again_and_again(training, [lambda _: [0]] * many, seed=2)}", trials=many)


def test_f02_the_launcher_is_killed(training, row, trials):
    many, rng, took = trials(1, 10), random.Random(3), []
    one = training(steps=60 + 40 * many)
    for _ in range(many):
        one.start()
        one.further(rng.randrange(1, 35))
        workers = one.workers()
        began = time.monotonic()
        one.process.kill()
        _, alive = psutil.wait_procs(workers, timeout=30)
        took.append(time.monotonic() - began)
        one.process.communicate()
        assert alive == []
        assert one.left_over() == []
    code, said = one.start(wait=False).ended()
    assert code == 0, said
    assert one.result() == unfaulted(steps=60 + 40 * many)
    assert max(took) <= 5 * SLACK, took
    row.measured(
        f"launcher killed {many} times: nodes ended in {max(took):.2f} s at most, resumed bit for bit", trials=many
    )

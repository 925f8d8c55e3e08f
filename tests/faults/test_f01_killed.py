"""Nodes that are killed: the others end, say who died and how, and the same command goes on bit for bit."""

import random
import time

import psutil
from table import FULL
from trainings import NODES, SLACK, unfaulted

from perron.distributed.process_group import TIMEOUT


def killed_again_and_again(training, kills, seed):
    """A training of which some nodes are killed in every attempt but the last; the seconds until nobody was left."""
    rng, steps, took = random.Random(seed), 60 + 40 * len(kills), []
    one = training(steps=steps, timeout=TIMEOUT)
    for chosen in kills:
        one.start()
        one.further(rng.randrange(1, 35))
        workers = one.workers()
        victims = chosen(rng)
        began = time.monotonic()
        for victim in victims:
            workers[victim].kill()
        _, alive = psutil.wait_procs(workers, timeout=20 * SLACK)
        took.append(time.monotonic() - began)
        code, said = one.ended()
        assert alive == []
        assert one.left_over() == []
        assert code == 3, said
        assert all(f"Node {victim} was killed by SIGKILL." in said for victim in victims), said
        assert "Traceback" not in said, said
    code, said = one.start(wait=False).ended()
    assert code == 0, said
    assert one.result() == unfaulted(steps=steps)
    assert one.left_over() == []
    assert max(took) <= 2 * SLACK, took
    return f"{len(took)} times: all ended in {max(took):.2f} s at most, resumed bit for bit, none left over"


def test_f01_nodes_are_killed(training, row, trials):
    each = trials(1, 20)
    kills = [lambda rng, k=k: rng.sample(range(NODES), k) for k in range(1, NODES + 1) for _ in range(each)]
    kills = kills if FULL else kills[::2]
    said = killed_again_and_again(training, kills, seed=1)
    row.measured(f"1 to {NODES} of {NODES} killed {said}", trials=len(kills))

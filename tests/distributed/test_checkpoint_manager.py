"""Which checkpoints are kept: whenever all nodes die, they have one in common, and it is no older than what they went on from."""

import random
from types import SimpleNamespace

import pytest

from perron.distributed import checkpoint_record
from perron.distributed.checkpoint_files import Moment
from perron.distributed.checkpoint_record import Origin


class Optimizer:
    """All that is asked of one: how many nodes there are."""

    def __init__(self, nodes):
        self.node = SimpleNamespace(nodes=nodes)


class Nodes:
    """Nodes on a directed ring, each of which steps when its neighbour has done as many steps, saves, and removes old ones."""

    def __init__(self, nodes, every, keep, needed):
        self.every, self.keep, self.needed = every, keep, needed
        self.run, self.steps, self.behind = 0, [0] * nodes, [False] * nodes  # behind: about to save
        self.saved = [set() for _ in range(nodes)]
        self.die()

    def advance(self, node):
        """Save, if it is time to, or else step, if that is possible."""
        if self.behind[node]:
            now = Moment(f"{self.run:03d}", self.steps[node])
            others = sorted(self.saved[node] - {now}, reverse=True)
            kept = self.needed(others, now, self.optimizers[node])
            self.saved[node] -= {old for old in others[self.keep - 1 :] if old not in kept}
            self.saved[node].add(now)
            self.behind[node] = False
        elif self.steps[node - 1] >= self.steps[node]:
            self.steps[node] += 1
            self.behind[node] = self.steps[node] % self.every == 0

    def die(self):
        """All at once; they go on from the newest that all have."""
        common = max(set.intersection(*self.saved), default=None)
        self.run += 1
        self.steps, self.behind = [common.step if common else 0] * len(self.steps), [False] * len(self.steps)
        self.optimizers = [Optimizer(len(self.steps)) for _ in self.steps]
        for one in self.optimizers:
            checkpoint_record.origins[one] = Origin(f"{self.run:03d}", common)
        return common


def lost(nodes, every, keep, seed, needed):
    """How often nodes that died went back behind what they had all saved before."""
    dice, one, found, before = random.Random(seed), Nodes(nodes, every, keep, needed), 0, 0
    for _ in range(60):
        slow, pace = dice.randrange(nodes), dice.choice([0.01, 0.1, 1.0])
        for _ in range(dice.randrange(1, 8 * nodes * every)):
            one.advance(dice.choice([node for node in range(nodes) if node != slow or dice.random() < pace]))
        common = one.die()
        step = common.step if common else 0
        found += step < before
        before = step
        assert max(map(len, one.saved)) <= keep + nodes + 2 or needed is not checkpoint_record.find_needed
    return found


@pytest.mark.parametrize("nodes", [2, 4, 8])
@pytest.mark.parametrize("every", [1, 2, 3, 10])
@pytest.mark.parametrize("keep", [2, 3])
def test_nothing_that_all_had_is_lost(nodes, every, keep):
    assert sum(lost(nodes, every, keep, seed, checkpoint_record.find_needed) for seed in range(5)) == 0


def test_keeping_the_newest_is_not_enough():
    """So that the test above can fail."""
    assert sum(lost(8, 2, 2, seed, lambda *_: []) for seed in range(5)) > 0


def test_what_is_kept_by_default():
    moments = [Moment("1", step) for step in (300, 200, 100)]
    optimizer = Optimizer(4)
    assert checkpoint_record.find_needed(moments, Moment("1", 400), optimizer) == moments[:1]
    assert (
        checkpoint_record.find_needed(moments, Moment("2", 400), optimizer) == moments
    )  # members have changed: nobody knows

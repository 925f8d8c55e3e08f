"""Which checkpoints are kept: whenever all nodes die, they have one in common, and it is no older than what they went on from."""

import random
import shutil
from types import SimpleNamespace

import kinds
import pytest
import torch
import torch.distributed as dist
from torch import nn

import perron
from perron.distributed import CheckpointManager, checkpoint, checkpoint_record
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


# ---- which runs belong to a training, in one process


def steps(folder, run):
    return sorted(int(path.parent.name[5:]) for path in (folder / run).glob("step-*/node-0.safetensors"))


def test_a_training_removes_its_own_checkpoints_and_those_it_resumed_from(tmp_path):
    with kinds.group():
        runs = []
        for _ in range(3):  # each start resumes
            one = kinds.Training(tmp_path)
            one.load()
            runs.append(one.optimizer.run_id)
            for _ in range(4):
                one.save()
        assert [steps(tmp_path, run) for run in runs] == [[], [], [11, 12]]
        fresh = kinds.Training(tmp_path)
        assert checkpoint.load(tmp_path, fresh.optimizer, fresh=True) is None
        for _ in range(4):
            fresh.save()
        assert steps(tmp_path, runs[2]) == [11, 12]
        assert steps(tmp_path, fresh.optimizer.run_id) == [3, 4]
        again = kinds.Training(tmp_path)
        assert again.load() == (4, "")
        for _ in range(4):
            again.save()
        assert steps(tmp_path, runs[2]) == [11, 12]
        assert steps(tmp_path, fresh.optimizer.run_id) == []


def test_a_fresh_training_without_checkpoints_does_not_load_older_ones(tmp_path):
    with kinds.group():
        one = kinds.Training(tmp_path)
        one.save()
        two = kinds.Training(tmp_path)
        assert checkpoint.load(tmp_path, two.optimizer, fresh=True) is None  # and it is killed
        assert kinds.Training(tmp_path).load() == (0, "")
        assert steps(tmp_path, one.optimizer.run_id) == [1]


def test_files_of_other_trainings_stay(tmp_path):
    """Those of a training that never loaded, and a checkpoint that was put there."""
    with kinds.group():
        other, one = kinds.Training(tmp_path / "other"), kinds.Training(tmp_path / "one")
        other.save()
        one.load()
        one.save()
        shutil.copytree(tmp_path / "other" / other.optimizer.run_id, tmp_path / "one" / "0-copied")
        before = kinds.Training(tmp_path / "one")  # saves without having loaded
        for _ in range(4):
            before.save()
        assert steps(tmp_path / "one", one.optimizer.run_id) == [1]
        assert steps(tmp_path / "one", "0-copied") == [1]
        assert steps(tmp_path / "one", before.optimizer.run_id) == [3, 4]


@pytest.mark.parametrize("restarted", [False, True])
def test_a_restart_by_the_launcher_is_not_fresh(tmp_path, monkeypatch, restarted):
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", str(int(restarted)))
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        one = kinds.Training(tmp_path / "saved")
        one.save()
        with CheckpointManager(tmp_path / "saved", kinds.Training(tmp_path).optimizer, fresh=True) as manager:
            assert (manager.found is not None) == restarted
    finally:
        dist.destroy_process_group()


class Masked(nn.Linear):
    """A layer with a mask, and a count that training changes."""

    def __init__(self):
        super().__init__(4, 4)
        self.register_buffer("mask", torch.full((4, 4), -torch.inf).triu(1))
        self.register_buffer("running", torch.zeros(4))


def test_masks_may_be_infinite_and_other_buffers_not(tmp_path):
    with kinds.group():
        model = Masked()
        optimizer = perron.Decentralized(model, graph="ring", lr=0.01)
        checkpoint.save(tmp_path, optimizer)
        for name, value in (("running", torch.inf), ("running", torch.nan), ("mask", torch.nan)):
            buffer = getattr(model, name)
            old = buffer.clone()
            buffer.view(-1)[1] = value
            kind = "NaN" if value != value else "infinity"  # noqa: PLR0124
            with pytest.raises(perron.errors.DivergenceError, match=rf"after step 0, .* in buffer\.{name} \({kind}\)"):
                checkpoint.save(tmp_path, optimizer)
            buffer.copy_(old)
        again = Masked()
        found = checkpoint.load(tmp_path, perron.Decentralized(again, graph="ring", lr=0.01))
        assert found.step == 0
        assert torch.equal(again.mask, model.mask)

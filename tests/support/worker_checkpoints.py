"""One process of the tests of checkpoints. Started by test_optimizer.py."""

import re
import shutil
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from processes import run_group
from torch import nn

import perron
from perron.distributed import checkpoint
from perron.distributed.checkpoint_files import find_moments, read_part
from perron.distributed.optimizer import Decentralized

RANK, SIZE, FOLDER = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
SAVED = FOLDER / "saved"


def made():
    torch.manual_seed(RANK)
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
    return model, Decentralized(model, perron.PushPull(), "exponential", lr=0.05, weights="random_integer")


def trained(model, optimizer, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        (model(torch.randn(16, 4)) ** 2).mean().backward()  # data from torch's own random state
        optimizer.step()
    return torch.cat([value.flatten().double() for value in model.state_dict().values()])


def loaded(optimizer, folder=SAVED, **options):
    """Load; what is remarked must have been warned of, too."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = checkpoint.load(folder, optimizer, **options)
    said = [str(warning.message) for warning in caught]
    assert found is None or not found.remark or found.remark in said
    return found


def steps_saved():
    return sorted(int(path.name.removeprefix("step-")) for path in SAVED.glob("*/step-*"))


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def check_resuming():
    model, optimizer = made()
    assert checkpoint.load(SAVED, optimizer) is None
    for epoch in range(4):
        trained(model, optimizer, 2)
        checkpoint.save(SAVED, optimizer, notes={"epoch": epoch}, keep=3)
    whole = trained(model, optimizer, 5)
    optimizer.close()
    dist.barrier()
    assert steps_saved() == [4, 6, 8]
    model, optimizer = made()
    found = checkpoint.load(SAVED, optimizer)
    assert (found.step, found.notes, found.remark) == (8, {"epoch": 3}, "")
    assert torch.equal(trained(model, optimizer, 5), whole)
    optimizer.close()
    try:
        checkpoint.save(SAVED, optimizer, keep=1)
    except perron.FileError as error:
        assert "2 or more" in str(error)
    else:
        raise AssertionError


def check_damage():
    """Of a copy of what was saved."""
    saved = FOLDER / "damaged"
    if RANK == 0:
        shutil.copytree(SAVED, saved, ignore=shutil.ignore_patterns("*.lock"))
    dist.barrier()
    (run,) = [entry for entry in saved.iterdir() if entry.is_dir()]
    newest = run / "step-0000000008"
    dist.barrier()
    if RANK == 1:
        flip(newest / "node-1.safetensors")
    dist.barrier()
    model, optimizer = made()
    found = loaded(optimizer, saved)
    assert found.step == 6  # on all nodes, although only one file is damaged
    damage = (
        rf"Node 1: {re.escape(str(newest))}/node-1.safetensors is damaged: it has [\d,]+ bytes, with the SHA-256 \w+"
    )
    said = "Checkpoints of step 8 are damaged or not there on every node. "
    assert re.match(said + damage, found.remark), found.remark  # and which file it is, they all know
    dist.barrier()
    if RANK == 0:
        path = run / "step-0000000006" / "node-0.safetensors"
        path.write_bytes(path.read_bytes()[:-20])
    dist.barrier()
    model, optimizer = made()
    assert loaded(optimizer, saved).step == 4
    before = trained(model, optimizer, 0)
    dist.barrier()
    if RANK == 2:
        (run / "step-0000000004" / "node-2.safetensors").unlink()
    dist.barrier()
    there = sorted(saved.rglob("*.safetensors"))
    try:
        loaded(optimizer, saved)
    except perron.FileError as error:
        assert "none that all 3 nodes can use. Step 8 can be used by node 0, 2. Node 1: " in str(error), error
        assert "Step 4 can be used by node 0, 1. Node 2 has none of 4. Make them available to all nodes" in str(error)
    else:
        raise AssertionError
    assert torch.equal(trained(model, optimizer, 0), before)
    dist.barrier()
    assert loaded(optimizer, saved, fresh=True) is None
    trained(model, optimizer, 9)
    for _ in range(4):
        trained(model, optimizer, 3)
        checkpoint.save(saved, optimizer)
    dist.barrier()
    assert [path for path in there if not path.exists()] == []
    assert loaded(made()[1], saved).step == optimizer.steps
    try:
        checkpoint.save(saved, optimizer, notes={"object": object()})
    except perron.FileError as error:
        assert "plain JSON" in str(error)
    else:
        raise AssertionError


def check_another_number_of_nodes():
    model, optimizer = made()
    found = loaded(optimizer)
    assert "saved by 3 nodes, now there are 2" in found.remark
    moment = max(find_moments(SAVED))
    parts = [read_part(SAVED, moment, number)[1] for number in range(3)]
    assert torch.allclose(optimizer.algorithm_state.x, torch.stack([part["state.x"] for part in parts]).mean(0))
    means = torch.stack([part["buffer.1.running_mean"] for part in parts])
    variances = torch.stack([part["buffer.1.running_var"] for part in parts])
    assert torch.allclose(model[1].running_var, variances.mean(0) + means.var(0, correction=0))
    assert optimizer.steps == found.step == 8
    assert torch.isfinite(trained(model, optimizer, 3)).all()
    checkpoint.save(SAVED, optimizer)
    dist.barrier()
    again = made()[1]
    assert loaded(again).step == 11  # the new training's, not the old one's


class Sampler:
    """A sampler of the user: its state has numbers of this node."""

    def __init__(self):
        self.seen = {}

    def state_dict(self):
        return {"seen": self.seen}

    def load_state_dict(self, state):
        self.seen = state["seen"]


class Stateful:
    """A training with a schedule, a scaler, a sampler, and batches from a generator of this node."""

    def __init__(self, folder, **more):
        self.model, self.optimizer = made()
        self.generator, self.sampler = torch.Generator().manual_seed(50 + RANK), Sampler()
        self.schedule = torch.optim.lr_scheduler.MultiStepLR(self.optimizer, [3, 7, 7, 9], gamma=0.5)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
        states = {
            "schedule": self.schedule,
            "scaler": self.scaler,
            "generator": self.generator,
            "sampler": self.sampler,
        }
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self.manager = perron.CheckpointManager(folder, self.optimizer, every=4, **states | more)
        self.said = " ".join(str(one.message) for one in caught)

    def run(self, until):
        while self.optimizer.steps < until:
            self.optimizer.zero_grad()
            batch = torch.randn(16, 4, generator=self.generator)
            self.scaler.scale((self.model(batch) ** 2).mean()).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.schedule.step()
            self.sampler.seen[RANK, self.optimizer.steps] = float(batch.sum())
            self.manager(rank=RANK)
        self.optimizer.close()
        self.manager.close()
        dist.barrier()
        return torch.cat([value.flatten() for value in self.model.state_dict().values()]), self.sampler.seen


def check_states_of_other_objects():
    """Schedules, scalers, samplers and generators resume with the training, bit for bit."""
    whole = Stateful(FOLDER / "whole").run(12)
    Stateful(FOLDER / "states").run(6)
    again = Stateful(FOLDER / "states")
    assert again.manager.found.step == 4
    assert again.manager.found.notes == {"rank": RANK}
    assert (again.said, again.schedule.last_epoch, again.scaler.get_scale()) == ("", 4, 32.0)
    found = again.run(12)
    assert torch.equal(found[0], whole[0])
    assert found[1] == whole[1]
    other = Stateful(FOLDER / "states", more=Sampler())
    assert "no state of more, which start from the beginning" in other.said
    other.manager.close()
    try:
        Stateful(FOLDER / "states", evry=10)
    except perron.PerronError as error:
        assert "evry=10 is not an option" in str(error)
    else:
        raise AssertionError
    try:
        Stateful(FOLDER / "states", generator=Sampler())
    except perron.PerronError as error:
        assert "state of generator does not fit the Sampler" in str(error)
    else:
        raise AssertionError
    dist.barrier()


def check_states_of_another_number_of_nodes():
    """Each node gets its own back; a new one gets the schedule, and its own generator."""
    one = Stateful(FOLDER / "states")
    assert one.manager.found.step == 12
    assert (one.schedule.last_epoch, one.optimizer.param_groups[0]["lr"]) == (12, 0.05 / 16)
    assert one.scaler.get_scale() == 8.0 * 2**6
    fresh = torch.Generator().manual_seed(50 + RANK)
    new = "This node is new, and generator, sampler of the others are their own"
    assert (new in one.said) == (RANK == 3), one.said
    assert torch.equal(one.generator.get_state(), fresh.get_state()) == (RANK == 3)
    assert set(one.sampler.seen) == (set() if RANK == 3 else {(RANK, step) for step in range(1, 13)})
    assert one.manager.found.notes == {"rank": 0 if RANK == 3 else RANK}
    one.manager.close()


def check_tensor_learning_rates():
    """A learning rate that is a tensor is saved, and is one again."""

    def one():
        model = nn.Linear(2, 1)
        rate = torch.tensor(0.1)
        return perron.Decentralized(model, inner=lambda groups: torch.optim.AdamW(groups, lr=rate), graph="ring")

    optimizer = one()
    optimizer.param_groups[0]["lr"].fill_(0.25)
    checkpoint.save(FOLDER / "tensor", optimizer)
    dist.barrier()
    again = one()
    checkpoint.load(FOLDER / "tensor", again)
    assert isinstance(again.param_groups[0]["lr"], torch.Tensor)
    assert float(again.param_groups[0]["lr"]) == 0.25


def check_asynchronous_nodes_have_no_checkpoints():
    model = nn.Linear(4, 1)
    optimizer = Decentralized(model, perron.RobustPushPull(), "exponential", lr=0.05, asynchronous=True)
    for action in (
        lambda: checkpoint.save(SAVED, optimizer),
        lambda: checkpoint.load(SAVED, optimizer),
        lambda: perron.Keeper(SAVED, optimizer),
    ):
        try:
            action()
        except perron.PerronError as error:
            assert "asynchronous nodes do not step together" in str(error)
        else:
            raise AssertionError
    optimizer.close()


def check_unfinished_saves_of_different_trainings_do_not_mix():
    folder = FOLDER / "mixed"
    model, optimizer = made()
    trained(model, optimizer, 2)
    checkpoint.save(folder, optimizer)
    trained(model, optimizer, 2)
    if RANK != 1:  # node 1 dies before it saves step 4
        checkpoint.save(folder, optimizer)
    dist.barrier()
    model, optimizer = made()
    assert loaded(optimizer, folder).step == 2
    trained(model, optimizer, 2)
    if RANK == 1:  # now the others die before they save step 4
        checkpoint.save(folder, optimizer)
    dist.barrier()
    assert loaded(made()[1], folder).step == 2


if __name__ == "__main__":
    run_group(globals())

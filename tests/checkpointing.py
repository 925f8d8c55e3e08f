"""One process of the tests of checkpoints. Started by test_optim.py."""

import os
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import perron
from perron import checkpoint
from perron.optim import Decentralized

RANK, SIZE, FOLDER, PART = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]
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
    assert sorted(path.name for path in SAVED.iterdir()) == [f"step-{step:010d}" for step in (4, 6, 8)]
    model, optimizer = made()
    found = checkpoint.load(SAVED, optimizer)
    assert (found.step, found.notes, found.remark) == (8, {"epoch": 3}, "")
    assert torch.equal(trained(model, optimizer, 5), whole)
    optimizer.close()


def check_damage():
    newest = SAVED / "step-0000000008"
    dist.barrier()
    if RANK == 1:
        flip(newest / "node-1.safetensors")
    dist.barrier()
    model, optimizer = made()
    assert checkpoint.load(SAVED, optimizer).step == 6  # on all nodes, although only one file is damaged
    dist.barrier()
    if RANK == 0:
        path = SAVED / "step-0000000006" / "node-0.json"
        path.write_bytes(path.read_bytes()[:-20])
    dist.barrier()
    model, optimizer = made()
    assert checkpoint.load(SAVED, optimizer).step == 4
    before = trained(model, optimizer, 0)
    dist.barrier()
    if RANK == 2:
        (SAVED / "step-0000000004" / "node-2.json").unlink()
    dist.barrier()
    assert checkpoint.load(SAVED, optimizer) is None
    assert torch.equal(trained(model, optimizer, 0), before)
    try:
        checkpoint.save(SAVED, optimizer, notes={"object": object()})
    except perron.FileError as error:
        assert "plain JSON" in str(error)
    else:
        raise AssertionError


def check_another_number_of_nodes():
    model, optimizer = made()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = checkpoint.load(SAVED, optimizer)
    assert "saved by 3 nodes, now there are 2" in found.remark
    assert found.remark in [str(warning.message) for warning in caught]
    models = [checkpoint._read(SAVED, found.step, number)[1]["state.x"] for number in range(3)]
    assert torch.allclose(optimizer.algorithm_state.x, torch.stack(models).mean(0))
    assert torch.isfinite(trained(model, optimizer, 3)).all()
    optimizer.close()


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{FOLDER}/store-{PART}", rank=RANK, world_size=SIZE)
    for name, check in [(name, check) for name, check in globals().items() if name.startswith("check_")]:
        if ("another" in name) == (PART == "another") and ("damage" in name) <= (PART == "damage"):
            check()
    os._exit(0)

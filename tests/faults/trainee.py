"""One node of the tests of faults: a small noisy training that keeps checkpoints, and tells how far it is.

NODE.pid      of the process that is this node
NODE.steps    a line for each step: how many are done, the time, seconds waited for each neighbour
NODE.sha256   of the state at the end
"""

import json
import os
import sys
import time
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import torch
from table import FULL
from torch import nn

import perron

for function in vars(torch.optim.Optimizer).values():
    if hasattr(function, "__wrapped__"):  # else torch imports its compiler here, which takes longer than the training
        function.__wrapped__.__dynamo_disable = function.__wrapped__

DEFAULTS = {
    "steps": 60, "every": 10, "timeout": 5.0 if FULL else 30.0, "pause": 0.002, "slow": None, "bad": None,
    "graph": "one_peer_exponential", "nonfinite": "raise", "seed": 0, "lr": 0.05, "weights": "uniform", "wire": None,
    "width": 20, "dtype": "float32", "algorithm": "push_pull", "broadcast": True, "weight_decay": 0.0,
    "perron": None, "torch": None, "size": None, "corrupt": None, "spoil": None, "fresh": False,
    "disk": "checkpoints",
}  # fmt: skip


@contextmanager
def noted(optimizer, path):
    """Take down when and how somebody was lost."""
    try:
        yield
    except perron.NetworkError as error:
        finite = all(bool(torch.isfinite(tensor).all()) for tensor in optimizer.algorithm_state)
        path.write_text(json.dumps([time.monotonic(), finite, str(error)]))
        raise


def corrupt(node, step, value):
    """From now on, the messages that a node posts in a step have a wrong number in them."""
    exchange = node._exchange

    def corrupted(kind, side, x):
        started = exchange(kind, side, x)
        if node.step == step:
            started.message = started.message.clone()
            started.message[len(started.message) // 2] = float(value)
        return started

    node._exchange = corrupted


def main(folder, options):
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    options = DEFAULTS | options
    options |= options.pop("odd", {}).get(str(rank), {})  # what only one node was given
    if options["perron"]:
        perron.__version__ = options["perron"]
    if options["torch"]:
        torch.__version__ = options["torch"]
    if options["size"]:
        os.environ["WORLD_SIZE"] = str(options["size"])
    (folder / f"{rank}.pid").write_text(str(os.getpid()))
    perron.init()
    torch.manual_seed(rank)
    model = nn.Sequential(nn.Linear(options["width"], 5), nn.BatchNorm1d(5)).to(getattr(torch, options["dtype"]))
    (folder / f"{rank}.ready").write_text(str(time.monotonic()))
    optimizer = perron.Decentralized(
        model, perron.ALGORITHMS[options["algorithm"]],
        **{name: options[name] for name in (
            "graph", "lr", "timeout", "nonfinite", "seed", "weights", "wire", "broadcast", "weight_decay"
        )},
    )  # fmt: skip
    disk = folder / options["disk"].format(rank)
    keeper = perron.CheckpointManager(disk, optimizer, every=options["every"], fresh=options["fresh"])
    log = perron.Log(folder / "log", steps=options["steps"], optimizer=optimizer)
    if options["corrupt"]:
        corrupt(optimizer.node, *options["corrupt"])
    with noted(optimizer, folder / f"{rank}.lost"), (folder / f"{rank}.steps").open("a", buffering=1) as told:
        while optimizer.steps < options["steps"]:
            data = torch.randn(8, options["width"], dtype=model[0].weight.dtype)
            optimizer.zero_grad()
            (model(data) - 1).square().mean().backward()
            if options["bad"] and options["bad"][0] == optimizer.steps:
                model[0].bias.grad[2] = float(options["bad"][1])
            optimizer.step()
            time.sleep(options["pause"] * (10 if options["slow"] == rank else 1))
            log(optimizer.steps)
            told.write(json.dumps([optimizer.steps, time.monotonic(), dict(optimizer.node.waited)]) + "\n")
            if options["spoil"] and options["spoil"][0] == optimizer.steps:
                name, value = options["spoil"][1:]
                spoiled = getattr(optimizer.algorithm_state, name).clone()
                spoiled[3] = float(value)
                optimizer.algorithm_state = optimizer.algorithm_state._replace(**{name: spoiled})
            keeper()
    optimizer.close()
    log.close()
    digest = sha256()
    for tensor in (*optimizer.algorithm_state, *model.buffers()):
        digest.update(tensor.contiguous().numpy().tobytes())
    (folder / f"{rank}.sha256").write_text(digest.hexdigest())
    (folder / f"{rank}.skipped").write_text(str(optimizer.skipped))
    keeper.close()
    perron.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))

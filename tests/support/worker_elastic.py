"""One node of the tests of elastic training: f_i(x) = |x - c_i|^2 / 2 with BatchNorm beside it. Started by test_elastic.py.

The first process of a node that ``faults`` names kills or stops itself at the step given there; with ``together``, once all
of them have reached it; with ``inside``, in the middle of a round of local steps.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn

import perron
from perron.distributed.optimizer import Decentralized
from perron.errors import PerronError
from perron.networks import topologies

NODES = 5
CENTERS = torch.arange(NODES * 3, dtype=torch.float64).view(NODES, 3) ** 1.5
GRAPHS = {
    "default": "one_peer_exponential",
    "fixed": topologies.ring(NODES),
    "function": topologies.exponential,
}


class Model(nn.Module):
    """The point x, and a buffer that is averaged."""

    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.zeros(3, dtype=torch.float64))
        self.register_buffer("seen", torch.zeros(1, dtype=torch.float64))


def main(folder, options):
    torch.set_num_threads(1)
    rank, _ = perron.init()
    name = os.environ["PERRON_NAME"]
    (folder / f"{name}.pid").write_text(str(os.getpid()))
    model = Model()
    seed = 9 if options.get("odd") and name.endswith(".2") else 0
    settings = {"graph": GRAPHS[options.get("graph", "default")], "lr": options.get("lr", 0.2), "seed": seed}
    settings |= options.get("settings", {})
    adamw = {"betas": (0.9, 0.9), "eps": 1.0, "weight_decay": 0.0}  # near the optimum it is momentum, and converges
    if options.get("move") == "built in":
        settings["algorithm"] = perron.PushPull(move=perron.AdamW(**adamw))
    elif options.get("move") == "inner":
        rate = settings.pop("lr")
        settings["inner"] = lambda groups: torch.optim.AdamW(groups, lr=rate, **adamw)
    try:
        optimizer = Decentralized(model, timeout=options.get("timeout", 6), **settings)
    except PerronError:
        (folder / f"{name}.refused").touch()
        raise
    model.seen.fill_(rank)
    began = optimizer.steps
    loaded = perron.distributed.checkpoint.load(folder / "checkpoints", optimizer) if options.get("save") else None
    kind, at = options["faults"].get(str(rank), ("", -1)) if name.endswith(".1") else ("", -1)
    schedule = (
        torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step / 1000))
        if options.get("fall")
        else None
    )
    averages = []
    while optimizer.steps < options["steps"]:
        if kind and optimizer.steps >= at and optimizer.gradients_received == options.get("inside", 0):
            (folder / f"{rank}.faulty").touch()
            while options.get("together") and not all((folder / f"{one}.faulty").exists() for one in options["faults"]):
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL if kind == "kill" else signal.SIGSTOP)
            kind = ""
        optimizer.zero_grad()
        ((model.x - CENTERS[rank]) ** 2).sum().div(2).backward()
        optimizer.step()
        if schedule is not None:
            schedule.step()
        if options.get("leave") == str(rank) and optimizer.steps > 30:
            sys.exit(3)  # without close()
        awaited = [name for name in options.get("await", ()) if not (folder / name).exists()]
        time.sleep(0.1 if awaited and optimizer.steps > 40 else 0.002)  # slowly until these files are there
        (folder / f"{name}.step").write_text(str(optimizer.steps))
        if optimizer.steps % 40 == 0:
            with optimizer.averaged_model():
                averages.append([optimizer.steps, model.x.tolist(), model.seen.item()])
        if options.get("save") and optimizer.steps % 25 == 0:
            perron.distributed.checkpoint.save(folder / "checkpoints", optimizer)
    state = optimizer.algorithm_state
    total = torch.stack([state.y, state.grad])
    peers = optimizer.node.peers
    peers.finish([(peers.all_reduce(total), "the sums")])
    optimizer.close()
    found = {
        "x": state.x.tolist(), "began": began, "joined": optimizer.joined, "averages": averages,
        "loaded": None if loaded is None else loaded.step, "sums": total.tolist(), "nodes": optimizer.node.nodes,
        "lr": optimizer.param_groups[0]["lr"], "updates": updates(optimizer),
        "changes": [change._asdict() | {"text": str(change)} for change in optimizer.changes],
    }  # fmt: skip
    (folder / f"{rank}.json").write_text(json.dumps(found))


def updates(optimizer):
    """How many directions AdamW's moments contain."""
    if "updates" in optimizer.algorithm_state._fields:
        return int(optimizer.algorithm_state.updates)
    return int(optimizer.state[optimizer.param_groups[0]["params"][0]]["step"]) if optimizer.inner else None


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))

"""Seconds to a training loss over slow links: real processes, fewer and smaller messages.

    .venv/bin/python benchmarks/seconds_to_loss.py               # 8 nodes, uplinks of 10 Mbit/s; half an hour, root
    .venv/bin/python benchmarks/seconds_to_loss.py --rate 100
    .venv/bin/python benchmarks/seconds_to_loss.py --only "DDP AdamW" --only "T5, H = 16, int4"
    ... --out FOLDER                                             # FOLDER/seconds_to_loss.json

Each node is a process in a network namespace whose uplink the kernel limits; TCP is Reno. The problem is that of the study
`fewer-bytes`: an MLP with 203,530 parameters on MNIST, unequal shares q^k ~ Dirichlet(0.1), 16 images in a gradient, AdamW
without weight decay at the learning rates that the study found, with warm-up and cosine. Methods with rounds get more
gradients, since theirs are cheaper. The digraph is the directed exponential graph with random integer weights. DDP is torch's
DistributedDataParallel with torch's AdamW. Nodes write their models to files now and then; the loss of the mean model on all
training images is computed afterwards, and counts at the time of the last node. Bytes are those that the kernel sent.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from links import Namespaces, run_workers, shaped, unavailable, use_reno
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import perron
from perron._storage.atomic import write_bytes
from perron.algorithms.base import Algorithm
from perron.algorithms.codecs import Wire
from perron.data import load, partition
from perron.schedules import cosine, warmup

NODES, WIDTH, BATCH, WARMUP, SAVE = 8, 256, 16, 32, 8
LOSSES = (0.4, 0.3, 0.2)
ADAMW = perron.AdamW(weight_decay=0.0)
TRACKED = perron.PushPull(order="atc", move=ADAMW)


class Method(NamedTuple):
    """A contender: its algorithm (None: DDP), graph, wire, the learning rate of the study, and the gradients of each node."""

    algorithm: Algorithm | None
    graph: str = "exponential"
    wire: Wire | None = None
    lr: float = 0.008
    gradients: int = 192


METHODS = {
    "DDP AdamW": Method(None),
    "Push-Pull AdamW": Method(TRACKED),
    "Push-Pull AdamW, one-peer": Method(TRACKED, "one_peer_exponential"),
    "T4, H = 4, int8": Method(perron.LocalPushPull(local_steps=4, move=ADAMW), wire="int8", gradients=384),
    "DiLoCo, all-reduce, H = 16": Method(perron.DiLoCo(local_steps=16, move=ADAMW), "ring", lr=0.004, gradients=768),
    "T5, H = 16, int4": Method(perron.PushPullDiLoCo(local_steps=16, move=ADAMW), wire="int4", lr=0.004, gradients=768),
}


# ---- a node


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(784, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10))


def samples() -> tuple[torch.Tensor, torch.Tensor]:
    """All training images, with mean 0 and standard deviation 1, and their labels."""
    data = load("mnist")
    images = data.images.float().div(255)
    return images.sub_(images.mean()).div_(images.std()), data.labels.long()


def sent() -> int:
    """Return the bytes that have left this namespace."""
    return int(Path(f"/sys/class/net/{Namespaces.device}/statistics/tx_bytes").read_text())


def stepper(model: nn.Module, name: str) -> tuple[Any, nn.Module]:
    """Return what trains the model, and the module that is called."""
    one = METHODS[name]
    if one.algorithm is None:
        return torch.optim.AdamW(model.parameters(), lr=one.lr, weight_decay=0.0), DistributedDataParallel(model)
    options: Any = {"weights": "random_integer", "seed": 42, "wire": one.wire, "timeout": 600.0}
    return perron.Decentralized(model, one.algorithm, one.graph, lr=one.lr, **options), model


def work(folder: Path, rate: float, name: str, rank: int, nodes: int) -> None:
    """One node: it trains, and writes its model and the time now and then."""
    gradients = METHODS[name].gradients
    torch.set_num_threads(1)
    shaped(rank, None, (rate, rate), burst="16kb")  # type: ignore[arg-type]
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=nodes, timeout=timedelta(seconds=600)
    )
    images, labels = samples()
    mine = partition.dirichlet(labels, nodes, concentration=0.1, seed=0)[rank]
    images, labels = images[mine], labels[mine]
    model = network()
    optimizer, called = stepper(model, name)
    draws = np.random.default_rng([1, rank])
    rates: Callable[[int], float] = warmup(cosine(METHODS[name].lr, steps=gradients), WARMUP)
    dist.barrier()
    times, start, before = [], time.monotonic(), sent()
    told = start
    for k in range(gradients):
        if k % SAVE == 0:
            times.append(time.monotonic() - start)
            np.save(folder / f"{rank}-{k}.npy", nn.utils.parameters_to_vector(model.parameters()).detach().numpy())
        optimizer.param_groups[0]["lr"] = rates(k)
        batch = draws.integers(len(labels), size=BATCH)
        optimizer.zero_grad()
        cross_entropy(called(images[batch]), labels[batch]).backward()
        optimizer.step()
        if rank == 0 and time.monotonic() > told + 10:
            told = time.monotonic()
            print(f"{name}: {k + 1} of {gradients} gradients", file=sys.stderr, flush=True)
    if hasattr(optimizer, "node"):
        optimizer.node.drain()
    times.append(time.monotonic() - start)
    np.save(folder / f"{rank}-{gradients}.npy", nn.utils.parameters_to_vector(model.parameters()).detach().numpy())
    (folder / f"{rank}.json").write_text(json.dumps({"times": times, "bytes": sent() - before}))
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)


# ---- the parent


def measured(name: str, rate: float) -> dict[str, Any]:
    """Train with one method; return seconds, losses and bytes."""
    gradients = METHODS[name].gradients
    images, labels = samples()
    model = network()
    with tempfile.TemporaryDirectory() as place, Namespaces(NODES) as spaces:
        use_reno(spaces)
        run_workers(__file__, [place, str(rate), name], NODES, spaces)
        folder = Path(place)
        nodes = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(NODES)]
        losses = []
        for k in [*range(0, gradients, SAVE), gradients]:
            mean = np.mean([np.load(folder / f"{rank}-{k}.npy") for rank in range(NODES)], axis=0)
            nn.utils.vector_to_parameters(torch.from_numpy(mean), model.parameters())
            with torch.no_grad():
                losses.append(float(cross_entropy(model(images), labels)))
    seconds = np.max([one["times"] for one in nodes], axis=0).tolist()
    return {"seconds": seconds, "losses": losses, "megabytes": float(np.mean([one["bytes"] for one in nodes]) / 1e6)}


def reached(found: dict[str, Any], loss: float) -> float | None:
    """Return the seconds from which on the loss stays as low; None if it does not."""
    above = [place for place, value in enumerate(found["losses"]) if value > loss]
    after = above[-1] + 1 if above else 0
    return found["seconds"][after] if after < len(found["seconds"]) else None


def table(found: dict[str, dict[str, Any]], rate: float) -> Table:
    """Return the figures as a table."""
    text = Table(
        "", "gradients", "MB sent by a node", "ms / gradient", *(f"s to loss {loss:g}" for loss in LOSSES), "loss at the end",
        title=f"{NODES} nodes, uplinks of {rate:g} Mbit/s",
    )  # fmt: skip
    for name, one in found.items():
        times = [reached(one, loss) for loss in LOSSES]
        gradients = METHODS[name].gradients
        text.add_row(
            name, str(gradients), f"{one['megabytes']:.1f}", f"{1e3 * one['seconds'][-1] / gradients:.0f}",
            *("-" if value is None else f"{value:.1f}" for value in times), f"{one['losses'][-1]:.3f}",
        )  # fmt: skip
    return text


def main() -> None:
    if sys.argv[1:2] == ["worker"]:
        place, rate, name, rank, nodes = sys.argv[2:]
        work(Path(place), float(rate), name, int(rank), int(nodes))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=10, help="of each uplink, Mbit/s (default: 10)")
    parser.add_argument("--only", action="append", choices=list(METHODS), help="a method; repeatable")
    parser.add_argument("--out", type=Path, help="a folder for the figures, as JSON")
    options = parser.parse_args()
    if why := unavailable():
        sys.exit(f"This needs network namespaces: {why}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # as an exception, so that namespaces are removed
    load, console, found = os.getloadavg()[0], Console(width=130), {}
    for name in options.only or METHODS:
        found[name] = measured(name, options.rate)
        console.print(table({name: found[name]}, options.rate))
    console.print(table(found, options.rate), f"load before {load:.1f}")
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        facts = {"rate": options.rate, "load": load, "methods": found}
        write_bytes(options.out / "seconds_to_loss.json", (json.dumps(facts, indent=1) + "\n").encode())


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()

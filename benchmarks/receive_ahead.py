"""What it saves to post receives ahead: seconds per step over links with latency, and what it costs on fast ones.

    .venv/bin/python benchmarks/receive_ahead.py latency     # five nodes, 34 to 150 ms one way; six minutes, root
    .venv/bin/python benchmarks/receive_ahead.py loopback    # two and four nodes, three sizes; three minutes
    ... --rounds N --out FOLDER                              # FOLDER/receive_ahead_latency.json, ..._loopback.json

Contenders take turns in the same processes and on the same process group. A turn is timed after some steps have filled the
receives, on the node that takes longest; milliseconds and ratios are medians over turns. After the last turn the models of
each order have to be the same, bit for bit, for every number of steps ahead.
"""

import argparse
import hashlib
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from links import run_workers
from rich.console import Console
from rich.table import Table
from shaped import Latencies, unavailable
from torch import nn

from perron import PushPull
from perron._storage.atomic import write_bytes
from perron.distributed.optimizer import Decentralized

# Milliseconds one way, between five places; the ring 0 -> 1 -> ... -> 0 has 138 on one link, 73 in the mean.
LATENCY = [
    [0, 34, 90, 150, 38],
    [34, 0, 60, 120, 66],
    [90, 60, 0, 138, 130],
    [150, 120, 138, 0, 95],
    [38, 66, 130, 95, 0],
]
COMPUTE, BAR = 0.1, 130  # seconds; milliseconds per step of ring cta with two steps ahead
TIMEOUT = 120.0
AHEAD, ORDERS = (0, 1, 2), ("cta", "pu", "atc")
WARM, STEPS = 4, 16  # of a turn: steps that are not timed, and those that are
SIZES = {1_000: 60, 100_000: 40, 1_860_000: 10}  # steps of a turn by parameters

Step = Callable[[], None]


def node_of(size: int, order: str, ahead: int, compute: float) -> tuple[nn.Parameter, Step]:
    """Return a model and its step: the gradient of half the squared distance to a point of the node's own."""
    torch.manual_seed(0)
    param = nn.Parameter(torch.randn(size))
    optimizer = Decentralized([param], PushPull(order=order), "ring", lr=0.01, timeout=TIMEOUT, receive_ahead=ahead)  # type: ignore[arg-type]
    target = torch.full((size,), float(dist.get_rank()))
    param.grad = torch.zeros(size)

    def step() -> None:
        time.sleep(compute)
        torch.sub(param.detach(), target, out=param.grad)
        optimizer.step()

    return param, step


def reducing(size: int, compute: float) -> Step:
    """Return a step of all-reduce."""
    grad = torch.ones(size)

    def step() -> None:
        time.sleep(compute)
        dist.all_reduce(grad)
        grad.div_(dist.get_world_size())

    return step


def work(folder: Path, rank: int, nodes: int) -> None:
    """One node: all cells, all turns; its times and the hashes of its models go to a file."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=nodes, timeout=timedelta(seconds=TIMEOUT)
    )
    found = []
    for cell in json.loads((folder / "cells.json").read_text()):
        models = {
            f"{order}, {ahead} ahead": node_of(cell["size"], order, ahead, cell["compute"])
            for order in cell["orders"]
            for ahead in AHEAD
        }
        steps: dict[str, Step] = {name: step for name, (_, step) in models.items()}
        steps["all-reduce"] = reducing(cell["size"], cell["compute"])
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in steps}
        for turn in range(cell["rounds"]):
            for name in list(steps)[:: 1 if turn % 2 else -1]:
                dist.barrier()
                for _ in range(WARM):
                    steps[name]()
                start = time.monotonic()
                for _ in range(cell["steps"]):
                    steps[name]()
                times[name].append((start, time.monotonic()))
        hashes = {name: hashlib.sha256(param.detach().numpy()).hexdigest()[:16] for name, (param, _) in models.items()}
        found.append({"times": times, "hashes": hashes})
        if rank == 0:
            print(f"{nodes} nodes, {cell['size']} parameters: done", file=sys.stderr, flush=True)
    (folder / f"{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)


# ---- the parent


def measured(nodes: int, cells: list[dict[str, Any]], spaces: Latencies | None = None) -> list[dict[str, Any]]:
    """Run cells in as many processes as nodes; return milliseconds per step of each contender, by turn."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "cells.json").write_text(json.dumps(cells))
        run_workers(__file__, [name], nodes, spaces)
        files = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(nodes)]
    return [_joined([one[place] for one in files], cell["steps"]) for place, cell in enumerate(cells)]


def _joined(ranks: list[dict[str, Any]], steps: int) -> dict[str, Any]:
    times = {
        name: [
            1e3 * max(stop - start for start, stop in turn) / steps
            for turn in zip(*(one["times"][name] for one in ranks), strict=True)
        ]
        for name in ranks[0]["times"]
    }
    hashes = [one["hashes"] for one in ranks]
    same = all(one[name] == one[f"{name.partition(',')[0]}, {AHEAD[0]} ahead"] for one in hashes for name in one)
    return {"ms": times, "same iterates": same, "hashes": hashes}


def latency(rounds: int) -> dict[str, Any]:
    """Return ms per step over links with latency."""
    if why := unavailable():
        sys.exit(f"latency is left out: {why}")
    cell = {"size": 1000, "compute": COMPUTE, "orders": ORDERS, "rounds": rounds, "steps": STEPS}
    with Latencies(len(LATENCY), latency_ms=LATENCY) as spaces:
        return {"latency ms": LATENCY, "compute": COMPUTE} | measured(len(LATENCY), [cell], spaces)[0]


def loopback(rounds: int) -> dict[str, Any]:
    """Return ms per step without latency and compute."""
    cells = [
        {"size": size, "compute": 0.0, "orders": ["cta"], "rounds": 5 * rounds, "steps": steps}
        for size, steps in SIZES.items()
    ]
    return {
        f"{nodes} nodes, {cell['size']} parameters": found
        for nodes in (2, 4)
        for cell, found in zip(cells, measured(nodes, cells), strict=True)
    }


def tables(part: str, figures: dict[str, Any]) -> Table:
    """Return the figures as a table."""
    if part == "latency":
        ms = {name: statistics.median(turns) for name, turns in figures["ms"].items()}
        table = Table(
            "", *(f"{ahead} ahead" for ahead in AHEAD), "bar", title="ms per step, ring of 5, 34 to 150 ms, compute 100"
        )
        for order in ORDERS:
            held = "held" if ms[f"{order}, 2 ahead"] <= BAR else "MISSED"
            bar = f"{BAR}: {held}" if order == "cta" else ""
            table.add_row(f"ring {order}", *(f"{ms[f'{order}, {ahead} ahead']:.0f}" for ahead in AHEAD), bar)
        table.add_row("all-reduce", f"{ms['all-reduce']:.0f}", "", "", "")
        table.add_row("same iterates", str(figures["same iterates"]), "", "", "")
        return table
    table = Table("", "0 ahead, ms", "1 / 0", "2 / 0", "all-reduce / 0", "same iterates", title="Loopback, ring cta")
    for name, one in figures.items():
        base = one["ms"]["cta, 0 ahead"]
        ratios = [
            statistics.median(a / b for a, b in zip(one["ms"][other], base, strict=True))
            for other in ("cta, 1 ahead", "cta, 2 ahead", "all-reduce")
        ]
        table.add_row(
            name, f"{statistics.median(base):.2f}", *(f"{ratio:.3f}" for ratio in ratios), str(one["same iterates"])
        )
    return table


def main() -> None:
    if sys.argv[1:2] == ["worker"]:
        work(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("latency", "loopback"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="a folder for the figures, as JSON")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # as an exception, so that namespaces are removed
    load = os.getloadavg()[0]
    figures = {"latency": latency, "loopback": loopback}[options.part](options.rounds)
    console = Console(width=120)
    console.print(tables(options.part, figures), f"load before {load:.1f}, now {os.getloadavg()[0]:.1f}")
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"load": load, "figures": figures}, indent=1) + "\n"
        write_bytes(options.out / f"receive_ahead_{options.part}.json", text.encode())


if __name__ == "__main__":
    main()

"""What it costs to check that received numbers are finite: step times with and without the check, in real processes.

    .venv/bin/python benchmarks/finite_check.py [--nodes 3] [--rounds 30] [--out docs/engine]

Nodes on a complete graph make steps of Push-Pull with a gradient that costs nothing, so that a step is messages and arithmetic
only: the worst case for the check. Contenders take turns in short rounds in the same processes, and a ratio is the median of the
rounds' ratios, so that a busy machine slows all alike.

none       no check
result     a sum of each weighted sum of messages, `perron.distributed.finite.is_finite`; this is what perron does
messages   a sum of each message
isfinite   `torch.isfinite(result).all()`
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.multiprocessing.spawn import spawn

from perron._storage.atomic import write_bytes
from perron.distributed import exchange
from perron.distributed.finite import is_finite
from perron.distributed.optimizer import Decentralized

SIZES = {"1e4": 10**4, "1.9e6": 1_900_000, "1e7": 10**7}
STEPS = {"1e4": 50, "1.9e6": 5, "1e7": 1}  # in a round
CONTENDERS = ("none", "result", "messages", "isfinite")


def checking(contender: str) -> None:
    """Switch to a contender."""

    def always(_: Any) -> bool:
        return True

    exchange.is_finite = {  # type: ignore[attr-defined]
        "none": always, "result": is_finite, "messages": always, "isfinite": lambda x: bool(torch.isfinite(x).all()),
    }[contender]  # fmt: skip
    exchange.Exchange.finish = _finish_messages if contender == "messages" else _finish  # type: ignore[method-assign]


_finish = exchange.Exchange.finish


def _finish_messages(self: exchange.Exchange, received: list[exchange.Message]) -> None:
    if not all(is_finite(message.tensor) for message in received):
        raise RuntimeError("not finite")
    _finish(self, received)


def worker(rank: int, nodes: int, rounds: int, folder: str) -> None:
    """Time all contenders at all sizes."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=nodes)
    found: dict[str, dict[str, list[float]]] = {}
    for name, size in SIZES.items():
        parameter = nn.Parameter(torch.randn(size))
        optimizer = Decentralized([parameter], graph="complete", lr=1e-6, timeout=120)
        gradient = torch.randn(size)
        times = found[name] = {contender: [] for contender in CONTENDERS}
        for number in range(rounds + 1):
            for contender in CONTENDERS:
                checking(contender)
                dist.barrier()
                began = time.perf_counter()
                for _ in range(STEPS[name]):
                    parameter.grad = gradient
                    optimizer.step()
                dist.barrier()
                if number:  # the first round warms up
                    times[contender].append((time.perf_counter() - began) / STEPS[name])
        optimizer.close()
    if rank == 0:
        Path(folder, "times.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def main() -> None:
    """Time, print a table, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--out", type=Path, help="where to write finite_check.json")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    with TemporaryDirectory() as folder:
        spawn(worker, (options.nodes, options.rounds, folder), options.nodes)
        times = json.loads(Path(folder, "times.json").read_text())
    table = Table("parameters", "step without check, ms", *(f"{name} / none" for name in CONTENDERS[1:]))
    ratios: dict[str, dict[str, float]] = {}
    for size, by in times.items():
        ratios[size] = {
            name: statistics.median(own / none for own, none in zip(by[name], by["none"], strict=True))
            for name in CONTENDERS[1:]
        }
        milliseconds = f"{1000 * statistics.median(by['none']):.2f}"
        table.add_row(size, milliseconds, *(f"{ratio:.3f}" for ratio in ratios[size].values()))
    Console().print(table)
    if options.out:
        figures = {"nodes": options.nodes, "rounds": options.rounds, "load": load, "ratios": ratios}
        figures["seconds"] = {size: {name: statistics.median(by[name]) for name in by} for size, by in times.items()}
        write_bytes(options.out / "finite_check.json", (json.dumps(figures, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()

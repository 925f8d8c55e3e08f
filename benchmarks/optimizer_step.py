"""What a step of `Decentralized` costs beside a bare step of its inner optimizer, on one node: copies, checks and arithmetic.

    .venv/bin/python benchmarks/optimizer_step.py [--rounds 30] [--out docs/engine]

There are no neighbors and gradients cost nothing. Contenders take turns in short rounds, and a ratio is the median of the rounds'
ratios, so that a busy machine slows all alike.

bare        torch's optimizer alone
sgp         `Decentralized` with it inside, and an algorithm without a tracker
push-pull   the same with a tracker and its weight, the default algorithm
unchecked   push-pull without comparing the parameters with those that the optimizer set
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from torch import nn

from perron import ALGORITHMS
from perron._storage.atomic import write_bytes
from perron.distributed import flat_parameters
from perron.distributed.optimizer import Decentralized

SIZES = {"1e4": 10**4, "1e6": 10**6}
STEPS = {"1e4": 50, "1e6": 5}  # in a round
LAYERS = 10
INNER = {"SGD": partial(torch.optim.SGD, lr=1e-6, momentum=0.9), "AdamW": partial(torch.optim.AdamW, lr=1e-6)}
CONTENDERS = {"bare": None, "sgp": "sgp", "push-pull": "push_pull", "unchecked": "push_pull"}


def contender(algorithm: str | None, inner: Any, size: int) -> torch.optim.Optimizer:
    params = [nn.Parameter(torch.randn(size // LAYERS)) for _ in range(LAYERS)]
    for param in params:
        param.grad = torch.randn_like(param)
    return inner(params) if algorithm is None else Decentralized(params, ALGORITHMS[algorithm], "ring", inner=inner)


def measured(inner: Any, name: str, rounds: int) -> dict[str, float]:
    """The ratios to the bare step, and the microseconds of that."""
    optimizers = {kind: contender(algorithm, inner, SIZES[name]) for kind, algorithm in CONTENDERS.items()}
    times: dict[str, list[float]] = {kind: [] for kind in CONTENDERS}
    same_values = flat_parameters.same_values
    for number in range(rounds + 1):
        for kind, optimizer in optimizers.items():
            flat_parameters.same_values = (lambda *_: True) if kind == "unchecked" else same_values  # type: ignore[assignment]
            began = time.perf_counter()
            for _ in range(STEPS[name]):
                optimizer.step()
            if number:  # the first round is to warm up
                times[kind].append((time.perf_counter() - began) / STEPS[name])
    flat_parameters.same_values = same_values
    ratios = {
        kind: statistics.median(a / b for a, b in zip(found, times["bare"], strict=True))
        for kind, found in times.items()
        if kind != "bare"
    }
    return {"bare us": 1e6 * statistics.median(times["bare"])} | ratios


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--out", type=Path, help="where to write optimizer_step.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    figures = {
        f"{kind}, {name} parameters": measured(inner, name, options.rounds)
        for kind, inner in INNER.items()
        for name in SIZES
    }
    table = Table("", "bare, microseconds", *(f"{kind} / bare" for kind in CONTENDERS if kind != "bare"))
    for case, found in figures.items():
        bare, *ratios = found.values()
        table.add_row(case, f"{bare:.0f}", *(f"{ratio:.2f}" for ratio in ratios))
    Console().print(table)
    if options.out:
        write_bytes(options.out / "optimizer_step.json", (json.dumps(figures, indent=1) + "\n").encode())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

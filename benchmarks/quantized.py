"""Quantized messages: error, bytes and mass on quadratics and a9a; what the codecs cost and save.

python benchmarks/quantized.py            everything, about a minute
python benchmarks/quantized.py problems   error against steps and bytes, and the mass of the tracker
python benchmarks/quantized.py codecs     seconds to write and read a message of 1.86 million numbers, and what it saves
"""

from __future__ import annotations

import argparse
import time
from statistics import median
from typing import Any

import numpy as np
import torch

from perron import LocalPushPull, Mixing, PushPull, Simulation, simulate, topologies
from perron.algorithms.base import Algorithm
from perron.algorithms.codecs import CODECS, codec_of
from perron.data import load_table
from perron.networks.facts import Network
from perron.problems import LinearModel, Quadratic

MIXING = Mixing.random_integer(topologies.exponential(8), seed=0)
WIRES = (None, *CODECS)
NUMBERS = 1_860_000
GIGABIT = 1e9 / 8  # bytes in a second


def mass(problem: Any, algorithm: Algorithm, lr: float, wire: Any) -> float:
    """Return the largest |1'y - 1'g| of 200 steps, relative to the largest tracker."""
    network, worst, scale = Network(MIXING), 0.0, 0.0
    for now in Simulation(problem=problem, algorithm=algorithm, mixing=MIXING, lr=lr, wire=wire).iterates(200):
        scale = max(scale, float(now.state.y.abs().max()))
        values = algorithm.conserved(now.state, network).values()
        worst = max(worst, *(float(value.abs().max()) for value in values))
    return worst / scale


def problems() -> None:
    """Print one row for each problem, algorithm and codec."""
    a9a, _ = load_table("a9a")
    cases: list[tuple[str, Any, Algorithm, float, int, str, float]] = [
        ("quadratic, d = 300", Quadratic.random(8, 300, seed=1), PushPull(), 0.1, 1000, "distance_max", 1e-10),
        ("quadratic, d = 300", Quadratic.random(8, 300, seed=1), PushPull(order="atc"), 0.1, 1000, "distance_max", 1e-10),
        ("quadratic, d = 300", Quadratic.random(8, 300, seed=1), LocalPushPull(local_steps=4), 0.03, 1000, "distance_max", 1e-10),
    ]  # fmt: skip
    parts = np.array_split(np.argsort(np.asarray(a9a.targets), kind="stable"), 8)
    logistic = LinearModel(a9a.features, a9a.targets, parts, l2=0.01)
    lr = 1 / (Network(MIXING).alignment * logistic.smoothness)
    cases.append(("a9a, sorted by label", logistic, PushPull(order="atc"), lr, 6000, "grad_norm_sq", 1e-20))
    print("| problem | algorithm | wire | bytes per number | steps to the target | bytes to it | at the end | mass |")
    print("|---|---|---|---|---|---|---|---|")
    for title, problem, algorithm, lr, steps, metric, target in cases:
        for wire in WIRES:
            history = simulate(
                problem, algorithm, MIXING, lr=lr, steps=steps, every=5, metrics=[metric], wire=wire, progress=False
            )
            values = history.mean(metric)
            place = int((values < target).argmax()) if (values < target).any() else -1
            reached = (
                f"{history.steps[place]} | {history.costs['bytes'][place] / 1e6:.2f} MB" if place >= 0 else "- | -"
            )
            number = 8.0 if wire is None else codec_of(wire).nbytes(problem.dim) / problem.dim
            lost = mass(problem, algorithm, lr, wire)
            print(
                f"| {title}, {metric} < {target:g} | {algorithm.about.title} | {wire or 'float64'} | {number:.3f} | {reached} | "
                f"{values[-1]:.1e} | {lost:.0e} |",
                flush=True,
            )


def codecs(times: int = 15) -> None:
    """Print the seconds of writing and reading a message, and those that it saves on a link of 1 Gbit/s."""
    torch.set_num_threads(1)
    x = torch.randn(NUMBERS, generator=torch.Generator().manual_seed(0))
    print(
        f"\n{NUMBERS:,} numbers of 32 bits, one thread; a link of 1 Gbit/s takes {4e3 * NUMBERS / GIGABIT:.1f} ms for them"
    )
    print("\n| wire | bytes | write, ms | read, ms | saved on the link, ms | saved / cost |")
    print("|---|---|---|---|---|---|")
    for wire, codec in CODECS.items():
        write, read = [], []
        for _ in range(times):
            began = time.perf_counter()
            message = codec.encode(x).message
            written = time.perf_counter()
            codec.read(message, NUMBERS, torch.float32)
            write.append(1e3 * (written - began))
            read.append(1e3 * (time.perf_counter() - written))
        saved = 1e3 * (4 * NUMBERS - message.numel()) / GIGABIT
        cost = median(write) + median(read)
        print(
            f"| {wire} | {message.numel():,} | {median(write):.1f} | {median(read):.1f} | {saved:.1f} | {saved / cost:.1f} |"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("problems", "codecs"))
    chosen = parser.parse_args().what
    for one in (problems, codecs):
        if chosen in (None, one.__name__):
            one()

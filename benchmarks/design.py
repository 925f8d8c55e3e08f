"""By how much do designed weights beat the paper's random ones?

    python benchmarks/design.py            # some minutes on one core
    python benchmarks/design.py --quick    # less than a minute
    python benchmarks/design.py --write    # and write docs/design.md

On each of the paper's six topologies Push-Pull minimises heterogeneous quadratics with exact gradients, with the paper's random
integer weights, with equal weights and with designed ones, each at ITS OWN best step (`perron.theory.best_lr`). What counts is
MEASURED with `simulate`: the steps until all nodes are within 1e-6 of the minimiser. The design knows the graph and the range of
the curvatures, not the losses. Then noise: the measured stationary level of the nodes' models at equal effective steps.
"""

from __future__ import annotations

import argparse
import sys
import time
from math import ceil, log
from pathlib import Path

import numpy as np
import torch
from scipy.stats import t as student

import perron
from perron.design import design

ACCURACY = 1e-6
CURVATURES = (0.1, 0.3, 1.0)
STEP = 0.05  # effective, for the noise
FACTORS = ["random / rate", "random / informed"]
PAPER = list(perron.topologies.NAMES)[:6]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="8 nodes, one topology, three seeds")
    parser.add_argument("--write", action="store_true", help="write docs/design.md")
    args = parser.parse_args()
    torch.set_num_threads(1)
    began = time.process_time()
    n, seeds, names, starts = (8, 3, ["exponential"], 1) if args.quick else (16, 10, PAPER, 4)
    speed = speed_table(n, seeds, names, starts)
    noise = noise_table(n, min(seeds, 5), names if args.quick else ["exponential", "grid"], starts)
    taken = time.process_time() - began
    print(f"{taken:.0f} s of CPU time in all")
    if args.write:
        command = "python benchmarks/design.py" + (" --quick" if args.quick else "") + " --write"
        page = Path(__file__).parent.parent / "docs" / "design.md"
        text = page.read_text().split(MARK)[0] if page.exists() else ""
        page.write_text(f"{text}{MARK}\n\n" + measured(speed, noise, n, seeds, command, taken))
        print(f"written to {page.relative_to(page.parent.parent)}")


# ---- without noise


def speed_table(n: int, seeds: int, names: list[str], starts: int) -> list[list[str]]:
    problem = mixed_quadratic(n)
    table = [["topology", "random", "equal", "equal, ATC", "trees", "balanced", "sum", "rate", "informed", *FACTORS]]
    for name in names:
        graph = perron.topologies.NAMES[name](n)
        random = [steps_needed(problem, perron.Mixing.random_integer(graph, seed=seed)) for seed in range(seeds)]
        equal = steps_needed(problem, perron.Mixing.uniform(graph))
        other = steps_needed(problem, perron.Mixing.uniform(graph), order="atc")
        trees = steps_needed(problem, perron.Mixing.spanning_trees(graph))
        found = {
            goal: design(graph, goal=goal, curvature=CURVATURES, starts=starts) for goal in ("balanced", "sum", "rate")
        }
        informed = design(graph, goal="rate", curvature=hessians(problem), start=found["rate"].mixing, starts=1)
        steps = [steps_needed(problem, one.mixing) for one in (*found.values(), informed)]
        factors = [interval([taken / ours for taken in random]) for ours in steps[-2:]]
        table.append([
            name, f"{np.mean(random):.0f}", f"{equal}", f"{other}", f"{trees}", *(f"{ours}" for ours in steps),
            *(f"{mean:.1f} +- {half:.1f}" for mean, half in factors),
        ])  # fmt: skip
        show(table[0] if len(table) == 2 else None, table[-1])
    return table


def mixed_quadratic(n: int) -> perron.problems.Quadratic:
    """Curvatures 0.1 and 1 times a factor exp(N(0, 1/4)) of each node and coordinate, and centers N(0, 1) of its own."""
    rng = np.random.default_rng(1)
    curvature = np.array([0.1, 1.0]) * np.exp(0.5 * rng.standard_normal((n, 2)))
    return perron.problems.Quadratic(torch.as_tensor(curvature), torch.as_tensor(rng.standard_normal((n, 2))))


def hessians(problem: perron.problems.Quadratic) -> torch.Tensor:
    return torch.diag_embed(problem.hessians)


def steps_needed(problem: perron.problems.Quadratic, mixing: perron.Mixing, *, order: str = "cta") -> int:
    """Steps until the farthest node is within ACCURACY of the minimiser, measured, at the best step."""
    algorithm = perron.PushPull(order=order)  # type: ignore[arg-type]
    best = perron.theory.best_lr(algorithm, mixing, hessians(problem))
    if best is None:
        raise RuntimeError(f"{mixing.name}: no stable step")
    steps = ceil(1.3 * log(ACCURACY / 100) / log(best.rate)) + 100
    while True:
        history = perron.simulate(
            problem,
            algorithm,
            mixing,
            lr=best.lr,
            steps=steps,
            every=1,
            metrics=["distance_max"],
            progress=False,
        )
        above = np.flatnonzero(history.mean("distance_max") > ACCURACY)
        if above[-1] + 1 < len(history.steps):
            return int(history.steps[above[-1] + 1])
        steps *= 2


# ---- with noise


def noise_table(n: int, seeds: int, names: list[str], starts: int) -> list[list[str]]:
    table = [["topology", "random", "equal", "level", "random / level", "predicted", "centralized"]]
    problem = shared_quadratic(n)
    for name in names:
        graph = perron.topologies.NAMES[name](n)
        random = [noise_level(problem, perron.Mixing.random_integer(graph, seed=seed))[0] for seed in range(seeds)]
        equal = noise_level(problem, perron.Mixing.uniform(graph))[0]
        found = design(graph, goal="level", step=STEP, curvature=CURVATURES, starts=max(1, starts // 2))
        ours, error = noise_level(problem, found.mixing)
        mean, half = interval([level / ours for level in random])
        alone = STEP / n * sum(1 / (h * (2 - STEP * h)) for h in CURVATURES)
        table.append([
            name, f"{np.mean(random):.4f}", f"{equal:.4f}", f"{ours:.4f} +- {error:.4f}", f"{mean:.2f} +- {half:.2f}",
            f"{found.after.value:.4f}", f"{alone:.4f}",
        ])  # fmt: skip
        show(table[0] if len(table) == 2 else None, table[-1])
    return table


def shared_quadratic(n: int) -> perron.problems.Quadratic:
    """All nodes have the curvatures, differing centers, and unit noise in every coordinate."""
    rng = np.random.default_rng(2)
    curvature = torch.tensor(CURVATURES, dtype=torch.float64).expand(n, -1).contiguous()
    centers = torch.as_tensor(rng.standard_normal((n, len(CURVATURES))))
    return perron.problems.Quadratic(curvature, centers, noise_std=len(CURVATURES) ** 0.5)


def noise_level(problem: perron.problems.Quadratic, mixing: perron.Mixing) -> tuple[float, float]:
    """mean_i E |x_i - x*|^2 in the stationary state at the effective step STEP: over 200 runs, with the half width of 95 %."""
    lr = STEP / perron.Network(mixing).alignment
    history = perron.simulate(
        problem, perron.PushPull(), mixing, lr=lr, steps=4000, every=25, metrics=["distance_sq_local"], trials=200,
        progress=False,
    )  # fmt: skip
    late = history.values["distance_sq_local"][np.asarray(history.steps) >= 1500].mean(0)
    return interval(late)


# ---- tables


def interval(values: object) -> tuple[float, float]:
    """Mean and half width of its 95 % interval."""
    x = np.asarray(values, dtype=np.float64)
    return float(x.mean()), float(student.ppf(0.975, len(x) - 1) * x.std(ddof=1) / len(x) ** 0.5)


def show(header: list[str] | None, row: list[str]) -> None:
    for line in filter(None, [header, row]):
        print("  ".join(f"{cell:>17}" for cell in line))
    sys.stdout.flush()


def markdown(table: list[list[str]]) -> str:
    lines = [table[0], ["---"] * len(table[0]), *table[1:]]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


MARK = "## What it gains, measured"


def measured(speed: list[list[str]], noise: list[list[str]], n: int, seeds: int, command: str, taken: float) -> str:
    return f"""`{command}` printed this, in {taken / 60:.0f} minutes of one core's time.

Steps of Push-Pull until all nodes are within {ACCURACY:g} of the minimiser of heterogeneous quadratics (two coordinates with
curvatures about 0.1 and 1, which differ between nodes by a random factor), {n} nodes, exact gradients; each network at its
own best step. `random`: the paper's integer weights, mean over {seeds} seeds; `equal`: `Mixing.uniform`, also with the order
`atc`, in which exchanges cannot hide behind the gradient; `trees`: `Mixing.spanning_trees`; then the goals `balanced`, `sum`
and `rate`. The design for `rate` knows the curvatures 0.1, 0.3 and 1, not the losses; `informed` is given the nodes' Hessians.
Factors have their 95 % interval over the seeds of the random weights.

{markdown(speed)}

With noise: mean_i E|x_i - x*|^2 in the stationary state at the effective step {STEP}, unit noise in each of three coordinates
with curvatures {", ".join(map(str, CURVATURES))}; `predicted` is what the design promised, `centralized` the level of
centralized SGD. All runs share their random numbers, so that measured levels are off in the same direction.

{markdown(noise)}
"""


if __name__ == "__main__":
    main()

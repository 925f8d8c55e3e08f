"""Measures every algorithm and writes docs/algorithms: a table, and a page with a curve for each.

    .venv/bin/python benchmarks/algorithms.py [--quick] [NAME ...]          # of some algorithms only: the others stay
    .venv/bin/python benchmarks/algorithm_pages.py          # only write the pages again, from what was measured

Iterations until max_i |x_i - x*| <= 1e-10 at the best step of a grid, on two networks whose metrics are close to those behind
the numbers that the algorithms were specified with ("card"; other draws of the same kind, so that equality is not expected);
the bias at an effective step of 0.05 for biased methods; and the stationary E|x-hat - x*|^2 over the closed form of
centralized SGD at the same effective step (0.05), for n = 4, 8, 16, 32, with standard errors.
"""

import json
import sys
import time
import warnings

import numpy as np
import torch
from algorithm_pages import DOCS, GRAPHS, network_for, write
from rich.console import Console
from rich.progress import track

from perron import ALGORITHMS, LocalPushPull, Mixing, Network, PushPullDiLoCo, Simulation, plots, simulate
from perron._storage.atomic import write_bytes
from perron.algorithms.local_steps import OuterSteps
from perron.networks import topologies
from perron.problems import LocalLoss, Quadratic

GRID = 1.2 ** np.arange(-26, 5)  # effective steps times L, 0.0087 .. 2.07
ETA = 0.05
NODES = (4, 8, 16, 32)
CARD = {  # iterations on exp16 and rdg12, noise ratio at n = 32, from the cards
    "centralized": (17, 22, 1.01), "push_pull": (182, 271, 1.02), "push_pull_pu": (122, 209, 1.01),
    "push_pull_atc": (120, 175, 1.01), "add_opt": (222, 590, 1.01), "push_diging": (104, 135, 1.01),
    "extra_push": (193, 593, None), "dextra": (135, 258, 1.01), "sgp": (None, None, 1.01),
    "gradient_pull": (None, None, 1.02), "frost": (221, 861, 1.01), "pull_diag_gt": (143, 211, 1.01),
    "row_extra": (129, 443, None), "diging": (223, 219, 1.01), "next": (72, 156, None), "aug_dgm": (61, 142, 1.01),
    "exact_diffusion": (75, 130, 1.01), "d2": (39, 74, None), "extra": (75, 131, None), "btpp": (154, 164, 1.21),
    "stpp": (129, 117, 1.16), "focus": (17, 22, 1.01), "focus_sampled": (143, 135, None),
}  # fmt: skip


def convergence(name: str, which: str, steps: int) -> tuple[int | None, float, np.ndarray]:
    """The fewest steps to 1e-10, the effective step that takes them, and the error curve of that run."""
    algorithm, (graph, mixing) = ALGORITHMS[name], GRAPHS[which]
    mixing = network_for(algorithm, graph, mixing, name)
    problem = least_squares(graph.nodes) if algorithm.about.samples else Quadratic.random(graph.nodes, 5, seed=1)
    factor = algorithm.effective_step(Network(mixing))
    rates = torch.as_tensor(GRID / factor)[:, None, None]  # all steps of the grid side by side
    simulation = Simulation(problem=problem, algorithm=algorithm, mixing=mixing, lr=rates, trials=[0] * len(GRID))
    target = problem.optimum if algorithm.about.family != "gossip" else torch.zeros(5)
    errors = []
    for now in simulation.iterates(steps):
        errors.append((now.state.x - target).norm(dim=-1).amax(-1).numpy())
        if (errors[-1] < 1e-10).any():
            break
    curve = np.array(errors)
    best = int(np.nanargmin(np.where(np.isfinite(curve[-1]), curve[-1], np.inf)))
    reached = curve[-1, best] < 1e-10
    return (len(curve) - 1 if reached else None), float(GRID[best]), curve[:, best]


def least_squares(nodes: int) -> LocalLoss:
    """Twenty samples (h, t) at each node with |h| = 1, so that L = 1 for each of them: f_i,l(x) = (h^T x - t)^2 / 2."""
    features = torch.as_tensor(np.random.default_rng(1).standard_normal((nodes, 20, 5)))
    features /= features.norm(dim=-1, keepdim=True)
    targets = torch.as_tensor(np.random.default_rng(2).standard_normal((nodes, 20)))
    problem = LocalLoss(lambda x, h, t: ((h @ x - t) ** 2).mean() / 2, [features, targets], dim=5, batch=1)
    problem.optimum = torch.linalg.lstsq(features.view(-1, 5), targets.view(-1, 1)).solution[:, 0]
    return problem


def bias(name: str, which: str) -> tuple[float, np.ndarray]:
    """The error that is left at the effective step ETA, and its curve."""
    algorithm, (graph, mixing) = ALGORITHMS[name], GRAPHS[which]
    mixing = network_for(algorithm, graph, mixing)
    problem = Quadratic.random(graph.nodes, 5, seed=1)
    lr = ETA / algorithm.effective_step(Network(mixing))
    history = simulate(problem, algorithm, mixing, lr=lr, steps=6000, every=1, metrics=["distance_max"], progress=False)
    curve = history["distance_max"][:, 0]
    return float(curve[-1]), curve[:1500]


def noise_ratios(name: str, trials: int, steps: int) -> list[tuple[float, float]]:
    """Stationary error over that of centralized SGD, with its standard error, for each number of nodes."""
    algorithm, d, found = ALGORITHMS[name], 4, []
    h = torch.linspace(0.1, 1, d, dtype=torch.float64)
    for n in NODES:
        graph = topologies.exponential(n)
        seed = int(not isinstance(algorithm, PushPullDiLoCo))  # with seed 1 its outer step is refused at n = 4 and 16
        mixing = network_for(algorithm, graph, Mixing.random_integer(graph, seed=seed), name)
        problem = Quadratic.random(n, d, noise_std=1.0, same_hessian=True, heterogeneity=0, seed=1)
        lr = ETA / algorithm.effective_step(Network(mixing))
        history = simulate(
            problem, algorithm, mixing, lr=lr, steps=steps, every=20, trials=trials, metrics=["distance_sq"],
            start=problem.optimum.expand(n, d), progress=False,
        )  # fmt: skip
        exact = float((ETA / n) * (1 / d) * (1 / (h * (2 - ETA * h))).sum())
        if isinstance(algorithm, LocalPushPull | OuterSteps):
            exact /= algorithm.local_steps  # a step of centralized SGD then has the mean of as many gradients
        level, error = history.tail("distance_sq", 0.75)
        found.append((level / exact, error / exact))
    return found


def gossip(name: str) -> np.ndarray:
    """The error of a consensus method on exp16."""
    start = torch.as_tensor(np.random.default_rng(0).standard_normal((16, 3)))
    problem = Quadratic.random(16, 3)
    simulation = Simulation(problem=problem, algorithm=ALGORITHMS[name], mixing=GRAPHS["exp16"][1], lr=0.0, start=start)
    return np.array([float((now.state.x - start.mean(0)).abs().max()) for now in simulation.iterates(80)])


def draw(name: str, curves: dict[str, np.ndarray]) -> None:
    lines = {}
    for key, curve in curves.items():
        shown = np.unique(np.linspace(0, len(curve) - 1, 250).astype(int))  # as many points as can be seen
        lines[key] = (shown, curve[shown], np.zeros(len(shown)))
    plots.save(plots.curves(lines, "max_i |x_i - x*|"), DOCS / f"{name}.svg")


def measure(name: str, quick: bool) -> dict[str, list[str]]:
    """The cells of an algorithm in the table and the facts on its page; draws its curves."""
    about, card = ALGORITHMS[name].about, CARD.get(name, (None, None, None))
    cells, facts, curves = [], [], {}
    if about.family == "gossip":
        curve = gossip(name)
        errors = ", ".join(f"{curve[t]:.1e}" for t in (5, 10, 20, 40, 80))
        facts = [f"Consensus error on exp16 after 5, 10, 20, 40, 80 steps: {errors}."]
        draw(name, {"exp16": curve})
        return {"cells": [f"{curve[40]:.0e} at t=40", "", "", "", "", ""], "facts": facts}
    for which, card_steps in zip(GRAPHS, card, strict=False):
        if about.exact:
            most = 6000 if about.samples else 1500
            steps, eta, curve = convergence(name, which, most)
            cells.append(f"{steps if steps is not None else f'> {most}'} ({eta:.2f})")
            single = ", with single samples" if about.samples else ""
            facts.append(
                f"{which}: {cells[-1]} iterations to 1e-10 at the best effective step (in brackets, times L){single}."
            )
        else:
            left, curve = bias(name, which)
            cells.append(f"bias {left:.3f}")
            facts.append(f"{which}: error {left:.3f} is left at the effective step {ETA}.")
        cells.append(str(card_steps or ""))
        curves[which] = curve
    if about.speedup and not about.samples and not name.startswith("focus_"):
        ratios = noise_ratios(name, 60 if quick else 300, 2000 if quick else 6000)
        cells.append(", ".join(f"{ratio:.2f}" for ratio, _ in ratios) + f" (+-{ratios[-1][1]:.2f})")
        facts.append(f"Noise floor over that of centralized SGD at n = 4, 8, 16, 32: {cells[-1]}.")
    else:
        cells.append("")
    cells.append(str(card[2] or ""))
    draw(name, curves)
    return {"cells": cells, "facts": facts}


def main(names: list[str], *, quick: bool) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # EXTRA-Push warns of small steps, which this grid contains on purpose
    DOCS.mkdir(parents=True, exist_ok=True)
    start = time.time()
    path = DOCS / "measured.json"
    before = json.loads(path.read_text()) if names else {}
    new = {name: measure(name, quick) for name in track(names or list(ALGORITHMS), console=Console(stderr=True))}
    measured = {name: new.get(name) or before[name] for name in ALGORITHMS}
    write_bytes(path, (json.dumps(measured, indent=1) + "\n").encode())
    Console().print(f"{write()} pages in {DOCS}, {time.time() - start:.0f} s", soft_wrap=True)


if __name__ == "__main__":
    main([name for name in sys.argv[1:] if name != "--quick"], quick="--quick" in sys.argv)

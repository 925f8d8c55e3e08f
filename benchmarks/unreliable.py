"""Robust Push-Pull over links that lose, delay and repeat messages: is it exact, and what does it cost?

    .venv/bin/python benchmarks/unreliable.py [exact] [floor] [--out docs/engine]

exact: heterogeneous quadratics, exact gradients, 16 nodes on a random digraph with the paper's weights, the default step of
Push-Pull. The error max_i |x_i - x*|, and the invariant: mass of the trackers plus mass under way minus the sum of gradients.
floor: with noisy gradients at the same effective step (0.05), the stationary level over the predicted c lr tr(H Sigma) / (2n), by
loss and number of nodes. Prints tables; writes unreliable.json and unreliable.png.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from perron import Mixing, Network, PushPull, RobustPushPull, Simulation, plots, simulate, theory
from perron._storage.atomic import write_bytes
from perron.algorithms.base import Algorithm
from perron.algorithms.unreliable import Links
from perron.networks import topologies
from perron.problems import Quadratic

SEEDS = 5
EXACT = {  # steps that it takes at the default step
    Links(): 4000, Links(loss=0.1): 4000, Links(loss=0.3): 4000, Links(loss=0.5): 4000,
    Links(delay=1): 4000, Links(delay=5): 4000, Links(delay=20): 10_000,
    Links(loss=0.3, delay=5, repeats=0.2): 6000, Links(loss=0.3, delay=20, repeats=0.2): 14_000,
}  # fmt: skip
ETA = 0.05
LOSSES = (0.0, 0.1, 0.2, 0.3, 0.5)


def network() -> tuple[Quadratic, Mixing]:
    """Of the exact runs."""
    return Quadratic.random(16, 5, seed=1), Mixing.random_integer(topologies.random_digraph(16, seed=1), seed=0)


def exact(links: Links, steps: int, algorithm: Algorithm, seeds: int = SEEDS) -> dict[str, Any]:
    """Error and invariant: after the last step, and the largest of the invariant."""
    problem, mixing = network()
    simulation = Simulation(
        problem=problem, algorithm=algorithm, mixing=mixing, trials=seeds, **vars(links),
    )  # fmt: skip
    curve, invariant = [], 0.0
    for now in simulation.iterates(steps):
        if now.step % 20 == 0:
            curve.append([now.step, float((now.state.x - problem.optimum).abs().max())])
            (value,) = algorithm.conserved(now.state, simulation.network).values()
            invariant = max(invariant, float(value.abs().max()))
    reached = next((step for step, error in curve if error <= 1e-10), None)
    found = {"links": str(links), "steps": steps, "reached": reached, "error": curve[-1][1], "invariant": invariant}
    return found | {"curve": curve}


def floor(name: str, n: int, loss: float, weights: str, trials: int = 20, steps: int = 3000) -> tuple[float, float]:
    """The level of the noise over the predicted one, and its standard error."""
    graph = topologies.NAMES[name](n)
    mixing = Mixing.uniform(graph) if weights == "uniform" else Mixing.random_integer(graph, seed=42)
    problem = Quadratic.random(n, 4, noise_std=1.0, seed=1, heterogeneity=0.0, same_hessian=True)
    lr = ETA / RobustPushPull().effective_step(Network(mixing))
    history = simulate(
        problem, RobustPushPull(), mixing, lr=lr, steps=steps, every=5, trials=trials, loss=loss, metrics=["grad_norm_sq"],
        progress=False,
    )  # fmt: skip
    level, error = history.tail("grad_norm_sq", 0.6)
    predicted = theory.noise_floor(problem, ETA)
    return level / predicted, error / predicted


def show_exact(console: Console) -> list[dict[str, Any]]:
    """Both algorithms on all links."""
    table = Table("links", "steps", "robust: 1e-10 at", "error", "invariant", "plain: error", "invariant")
    found = []
    for links, steps in EXACT.items():
        robust = exact(links, steps, RobustPushPull())
        plain = exact(links, steps, PushPull())
        found.append({"robust": robust, "plain": plain})
        cells = [f"{one[key]:.0e}" for one in (robust, plain) for key in ("error", "invariant")]
        table.add_row(_short(str(links)), f"{steps:,}", f"{robust['reached']:,}", *cells)
    console.print(table)
    return found


def show_floor(console: Console) -> list[dict[str, Any]]:
    """Levels over predicted ones."""
    found = []
    for weights in ("uniform", "random_integer"):
        for name, counts in (
            ("exponential", (4, 8, 16, 32)),
            ("ring", (4, 8)),
        ):  # longer rings bear no step as large as ETA
            table = Table("loss", *(f"n = {n}" for n in counts), title=f"{name}, {weights} weights: level / predicted")
            for loss in LOSSES:
                row = [floor(name, n, loss, weights) for n in counts]
                table.add_row(f"{loss:.0%}", *(f"{ratio:.2f} ± {error:.2f}" for ratio, error in row))
                found += [
                    {"weights": weights, "topology": name, "nodes": n, "loss": loss, "ratio": ratio, "error": error}
                    for n, (ratio, error) in zip(counts, row, strict=True)
                ]
            console.print(table)
    return found


def draw(found: list[dict[str, Any]], path: Path) -> None:
    """Errors over steps: losses on the left, delays on the right; plain Push-Pull dashed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 5.4), layout="constrained")
    both = figure.subplots(1, 2, sharey=True)
    titles = ("messages are lost", "messages are late, and some are lost and repeated")
    for late, (axes, title) in enumerate(zip(both, titles, strict=True)):
        shown = [one for one in found if ("delay" in one["robust"]["links"]) == bool(late)]
        for colour, one in zip(plots.COLORS, shown, strict=False):
            for kind, style in (("robust", "-"), ("plain", "--")):
                step, error = np.array(one[kind]["curve"]).T
                label = _short(one["robust"]["links"]) if kind == "robust" else None
                axes.plot(step, np.maximum(error, 1e-16), style, color=colour, linewidth=1.3, label=label)
        axes.plot([], [], "--", color="grey", linewidth=1.3, label="dashed: plain Push-Pull")
        axes.set(title=title, xlabel="step", yscale="log", ylim=(1e-17, 1e2))
        axes.grid(alpha=0.25)
        axes.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=2)
    both[0].set_ylabel(r"$\max_i |x_i - x^*|$ (Robust Push-Pull: solid)")
    plots.save(figure, path)


def _short(links: str) -> str:
    """For a legend."""
    return (
        links.replace("are reliable", "reliable")
        .replace("delay messages by up to", "up to")
        .replace(" of their messages", "")
        .replace(" and delay them by up to", ", up to")
        .replace(" and repeat", ", repeat")
        .replace(" of them", "")
        .replace("steps", "steps late")
        .replace(" 1 steps", " 1 step")
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", choices=["exact", "floor"], default=["exact", "floor"])
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "docs" / "engine")
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # plain Push-Pull warns, as it should
    console, path = Console(), given.out / "unreliable.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    if "exact" in given.what:
        found["exact"] = show_exact(console)
        draw(found["exact"], given.out / "unreliable.png")
    if "floor" in given.what:
        found["floor"] = show_floor(console)
    write_bytes(path, (json.dumps(found) + "\n").encode())


if __name__ == "__main__":
    main()

"""Draws the pictures of the pages that no study, benchmark or gallery script draws: python docs/images/draw.py"""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Circle

import perron
from perron.plots import BLUE, COLORS, GREY, INK, PALE, save

HERE = Path(__file__).parent
GRAPH = perron.Graph(4, [(0, 1), (1, 2), (2, 3), (3, 0), (0, 2), (0, 3)], name="four sites")
MIXING = perron.Mixing.uniform(GRAPH)
MEASURED = np.array([70.0, 20.0, 30.0, 40.0])
ARROW = {"arrowstyle": "-|>", "color": GREY, "linewidth": 1.4, "mutation_scale": 16, "shrinkA": 0, "shrinkB": 0}
PLACES = np.array([[-1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, -1.0]])


def tracked(pull, push, steps, lr=0.2):
    """Gradient tracking with any two matrices, on f_i(x) = (x - b_i)^2 / 2; all models."""
    x = MEASURED.copy()
    y, path = x - MEASURED, [x]
    for _ in range(steps):
        new = pull @ x - lr * y
        y = push @ y + new - x
        x = new
        path.append(x)
    return np.array(path)


def wrong_point():
    """What one matrix does, and what two do."""
    A, B = MIXING.pull, MIXING.push
    panels = {
        "A twice: agreement, wrong point": tracked(A, A, 60),
        "B twice: right sum, no agreement": tracked(B, B, 60),
        "A and B: Push-Pull": tracked(A, B, 60),
    }
    figure = Figure(figsize=(10, 3.4), layout="constrained")
    for axes, (title, path) in zip(figure.subplots(1, 3, sharey=True), panels.items(), strict=True):
        for node in range(4):
            axes.plot(path[:, node], color=COLORS[node], label=f"site {node}")
        axes.axhline(MEASURED.mean(), color=GREY, linestyle="--", linewidth=1, label="the mean, 40")
        axes.set(title=title, xlabel="step")
        axes.grid(alpha=0.25)
    figure.axes[0].set_ylabel("what each site believes")
    figure.axes[2].legend(frameon=False, fontsize=9, ncols=2)
    save(figure, HERE / "wrong-point.svg")


def perron_vectors():
    """The digraph twice: each node as large as it counts in A, and in B."""
    figure = Figure(figsize=(9, 4.4), layout="constrained")
    network = perron.Network(MIXING)
    for axes, (title, weights) in zip(
        figure.subplots(1, 2),
        {
            "pull: share of a site's model in the end": network.pull_perron,
            "push: share of all gradients that a site holds": network.push_perron,
        }.items(),
        strict=True,
    ):
        radius = 0.55 * np.sqrt(weights)
        for source, target in GRAPH.edges:
            start, end = PLACES[source], PLACES[target]
            along = (end - start) / np.linalg.norm(end - start)
            axes.annotate(
                "",
                end - along * (radius[target] + 0.03),
                start + along * (radius[source] + 0.03),
                arrowprops=ARROW,
            )
        for node, place in enumerate(PLACES):
            axes.add_patch(Circle(place, radius[node], facecolor=PALE, edgecolor=BLUE, linewidth=1.6))
            axes.text(*place, f"{node}\n{weights[node]:.1%}", ha="center", va="center", fontsize=10, color=INK)
        axes.set(title=title, xlim=(-1.6, 1.6), ylim=(-1.45, 1.35), aspect="equal")
        axes.set_axis_off()
    save(figure, HERE / "perron-vectors.svg")


if __name__ == "__main__":
    wrong_point()
    perron_vectors()

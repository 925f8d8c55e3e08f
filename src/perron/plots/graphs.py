"""Drawings of graphs: positions of nodes, and links that do not hide nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from perron._typing import FloatArray
from perron.errors import GraphError
from perron.networks.graph import Graph
from perron.networks.layout import layout, link_bend, node_radius, split_links
from perron.plots.base import BLUE, INK, PALE, Picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_NODES = 400
MAX_EDGES = 20_000


def draw(graph: Graph | Sequence[Graph], path: str | Path) -> Path:
    """Draw a graph with an arrow for each edge, or with lines if it is undirected; a sequence of graphs in one panel each."""
    graphs = [graph] if isinstance(graph, Graph) else list(graph)
    if not graphs:
        raise GraphError("There is no graph to draw.")
    names = [panel.name for panel in graphs]
    titles = [name if names.count(name) == 1 else f"{name} ({i})" for i, name in enumerate(names)]
    return Drawing(dict(zip(titles, graphs, strict=True))).save(path)


@dataclass(frozen=True)
class Drawing(Picture):
    """Graphs side by side, each under its title, as in the paper's topology figure."""

    graphs: Mapping[str, Graph]
    columns: int = 3

    def figure(self) -> Figure:
        for graph in self.graphs.values():
            if len(graph.edges) > MAX_EDGES:
                raise GraphError(f"{graph.name} has {len(graph.edges):,} edges; at most {MAX_EDGES:,} can be drawn.")
            if graph.nodes > MAX_NODES:
                raise GraphError(f"{graph.name} has {graph.nodes:,} nodes; at most {MAX_NODES} can be drawn readably.")
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        width = min(self.columns, len(self.graphs))
        height = -(-len(self.graphs) // width)
        largest = max(graph.nodes for graph in self.graphs.values())
        several = len(self.graphs) > 1
        side = float(np.clip(4 + 0.06 * largest, 4.5, 12) if several else np.clip(4 + 0.14 * largest, 5, 14))
        figure = Figure(figsize=(side * width, (side + 0.3) * height), layout="constrained")
        FigureCanvasAgg(figure)
        panels = figure.subplots(height, width, squeeze=False).ravel()
        for axes, (title, graph) in zip(panels, self.graphs.items(), strict=False):
            _draw(axes, graph, side)
            axes.set_title(title, fontsize=11, color=INK, parse_math=False)
        for axes in panels[len(self.graphs) :]:
            axes.set_axis_off()
        return figure


def _draw(axes: Axes, graph: Graph, inches: float) -> None:
    where = layout(graph)
    points = inches * 72 * 0.85 / max(np.ptp(where[:, 0]), np.ptp(where[:, 1]), 1e-9)  # points per unit of the layout
    radius = float(np.clip(node_radius(graph, where) * points, 1.5, 11))
    one_way, both_ways = split_links(graph)
    arrow = "-" if graph.is_symmetric else "<|-|>"
    for pairs, style in ((one_way, "-|>"), (both_ways, arrow)):
        for source, target in pairs:
            _connect(axes, where, source, target, style, radius, reach=radius / points)
    axes.scatter(where[:, 0], where[:, 1], s=(2 * radius) ** 2, facecolor=PALE, edgecolor=BLUE, linewidth=1.1, zorder=3)
    if radius >= 4:
        for node, (x, y) in enumerate(where):
            size = radius * (1.05 if len(graph.label(node)) <= 2 else 0.7)
            axes.text(
                x,
                y,
                graph.label(node)[:12],
                ha="center",
                va="center",
                fontsize=size,
                color=INK,
                zorder=4,
                parse_math=False,
            )
    axes.set_aspect("equal")
    axes.margins(0.08)
    axes.set_axis_off()


def _connect(
    axes: Axes, where: FloatArray, source: int, target: int, style: str, radius: float, *, reach: float
) -> None:
    """Draw a link, bent if it would cross another node."""
    from matplotlib.patches import FancyArrowPatch

    start, end, rad = where[source], where[target], link_bend(where, source, target, reach=reach)
    axes.add_patch(
        FancyArrowPatch(
            (float(start[0]), float(start[1])), (float(end[0]), float(end[1])), arrowstyle=style, shrinkA=radius + 1,
            shrinkB=radius + 1, connectionstyle=f"arc3,rad={rad}", mutation_scale=float(np.clip(radius * 0.9, 4, 9)),
            linewidth=0.8, color=INK, zorder=2,
        )
    )  # fmt: skip

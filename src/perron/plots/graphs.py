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
from perron.plots.base import BLUE, INK, PALE, Picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_NODES = 400
MAX_EDGES = 20_000
BEND_UP_TO = 64  # nodes; in larger drawings links are straight
BENDS = (0.0, 0.12, -0.12, 0.2, -0.2, 0.3, -0.3)  # of links, the straightest first


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


def layout(graph: Graph) -> FloatArray:
    """Return the positions of the nodes in a drawing, ``(nodes, 2)``: their own, or on a circle."""
    if graph.positions is not None:
        return _spread(graph.positions)
    # Clockwise from the top of a circle: no three nodes are on a line, so that no edge is hidden behind a node.
    angle = np.pi / 2 - 2 * np.pi * np.arange(graph.nodes) / graph.nodes
    return np.stack([np.cos(angle), np.sin(angle)], axis=1)


def _spread(where: FloatArray) -> FloatArray:
    """Move nodes that nearly coincide apart, as little as possible."""
    from scipy.spatial import KDTree

    where = where.copy()
    apart = 0.75 * max(np.ptp(where[:, 0]), np.ptp(where[:, 1])) / np.sqrt(len(where)) * 0.6
    for _ in range(200):
        pairs = KDTree(where).query_pairs(0.99 * apart, output_type="ndarray")
        if not len(pairs):
            break
        between = where[pairs[:, 0]] - where[pairs[:, 1]]
        length = np.hypot(*between.T)[:, None] + 1e-12
        push = between / length * (apart - length) / 2
        np.add.at(where, pairs[:, 0], push)
        np.add.at(where, pairs[:, 1], -push)
    return where


def node_radius(graph: Graph, where: FloatArray) -> float:
    """Return the largest radius at which nodes touch neither each other nor, on a circle, the links that skip a node."""
    from scipy.spatial import KDTree

    if graph.nodes == 1:
        return 1.0
    distance, _ = KDTree(where).query(where, k=2)
    radius = float(distance[:, 1].min()) / 3.2
    skipping = 1 - np.cos(2 * np.pi / graph.nodes)
    return min(radius, 0.6 * skipping) if graph.positions is None and 8 <= graph.nodes <= 40 else radius


def split_links(graph: Graph) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return the links that go one way, and those that go both ways (each once)."""
    edges = {(source, target) for source, target in graph.edges.tolist()}
    one_way = sorted(edge for edge in edges if edge[::-1] not in edges)
    return one_way, sorted(edge for edge in edges if edge[0] < edge[1] and edge[::-1] in edges)


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


def link_bend(where: FloatArray, source: int, target: int, *, reach: float) -> float:
    """Return how far to bend a link away from the other nodes, which have the radius ``reach``; 0 is straight.

    The link is a quadratic curve whose control point is displaced from the middle of the straight line, to the right in the
    direction of the target, by this share of its length.
    """
    if len(where) > BEND_UP_TO:
        return 0.0
    start, end = where[source], where[target]
    others = np.delete(where, [source, target], axis=0)
    return max(BENDS, key=lambda rad: min(_clearance(start, end, rad, others), 1.25 * reach))


def _clearance(start: FloatArray, end: FloatArray, bend: float, others: FloatArray) -> float:
    """Return the distance of the nearest other node from a link with the given bend (a quadratic curve, as matplotlib's arc3)."""
    if not len(others):
        return float("inf")
    along = end - start
    control = (start + end) / 2 + bend * np.array([along[1], -along[0]])
    t = np.linspace(0, 1, 33)[:, None]
    curve = (1 - t) ** 2 * start + 2 * t * (1 - t) * control + t**2 * end
    return float(np.hypot(*(curve[:, None] - others).transpose(2, 0, 1)).min())

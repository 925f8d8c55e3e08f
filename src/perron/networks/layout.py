"""Where the nodes and links of a drawing are, and a drawing as SVG for notebooks."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

import numpy as np

from perron._typing import FloatArray

if TYPE_CHECKING:
    from perron.networks.graph import Graph
    from perron.networks.mixing import Mixing

BEND_UP_TO = 64  # nodes; in larger drawings links are straight
BENDS = (0.0, 0.12, -0.12, 0.2, -0.2, 0.3, -0.3)  # of links, the straightest first
SHOWN_NODES, SHOWN_EDGES = 100, 1500  # of a graph that a notebook draws
STYLE = 'fill="none" stroke="#222222" stroke-width="0.9"'


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


def to_svg(graph: Graph, size: float = 280.0) -> str | None:
    """Return a drawing of a graph as an SVG element; None if it has too many nodes or edges to be read."""
    if graph.nodes > SHOWN_NODES or len(graph.edges) > SHOWN_EDGES:
        return None
    where = layout(graph) * (1, -1)  # y grows downwards
    reach, margin = node_radius(graph, where), 24.0
    low, extent = where.min(axis=0), max(np.ptp(where[:, 0]), np.ptp(where[:, 1]), 1e-9)
    scale = (size - 2 * margin) / extent
    where, radius = (where - low) * scale + margin, float(np.clip(reach * scale, 2, 13))
    parts = [f"<title>{escape(graph.name)}</title>"]
    one_way, both_ways = split_links(graph)
    for source, target in [*one_way, *both_ways]:
        start, end = where[source], where[target]
        along = end - start
        bend = link_bend(where, source, target, reach=radius)
        middle = (start + end) / 2 + bend * np.array([along[1], -along[0]])
        first, last = (point + (middle - point) / np.hypot(*(middle - point)) * radius for point in (start, end))
        from_, over, to = (f"{x:.1f} {y:.1f}" for x, y in (first, middle, last))
        parts.append(f'<path d="M{from_} Q{over} {to}" {STYLE}/>')
        if not graph.is_symmetric:
            heads = [(last, middle)] if (source, target) in one_way else [(last, middle), (first, middle)]
            parts += [_arrow(tip, origin) for tip, origin in heads]
    for node, (x, y) in enumerate(where):
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" fill="#E6F1F8" stroke="#0072B2"/>')
        if radius >= 5:
            name, style = (
                escape(graph.label(node)[:8]),
                f'font-size="{0.95 * radius:.1f}" text-anchor="middle" dy="0.35em"',
            )
            parts.append(f'<text x="{x:.1f}" y="{y:.1f}" {style}>{name}</text>')
    width, height = np.ptp(where, axis=0) + 2 * margin
    attributes = f'xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}"'
    return f'<svg {attributes} viewBox="0 0 {width:.0f} {height:.0f}">{"".join(parts)}</svg>'


def to_html(mixing: Mixing) -> str:
    """Return the drawings of the graphs of a network, unless they are too large."""
    graphs = {"pull": mixing.pull_graph} if mixing.has_pull else {}
    if mixing.has_push and graphs.get("pull") != mixing.push_graph:
        graphs["push"] = mixing.push_graph
    elif mixing.has_push:
        graphs = {"pull and push": mixing.push_graph}
    drawn = {side: to_svg(graph) for side, graph in graphs.items()}
    parts = [f"<figure>{svg}<figcaption>{side}</figcaption></figure>" for side, svg in drawn.items() if svg]
    return f"<p>{escape(repr(mixing))}</p>{''.join(parts)}"


def _arrow(tip: FloatArray, origin: FloatArray, size: float = 6.0) -> str:
    """The head of an arrow that comes from some point."""
    along = (tip - origin) / np.hypot(*(tip - origin))
    across = np.array([-along[1], along[0]])
    corners = (tip, tip - size * along + 0.4 * size * across, tip - size * along - 0.4 * size * across)
    return f'<polygon points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in corners)}" fill="#222222"/>'

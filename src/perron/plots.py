"""Figures: graphs, curves and tables, written as PNG, PDF or SVG by the suffix of the path."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from perron._storage.atomic import write_bytes
from perron._typing import FloatArray, IntArray
from perron.errors import FileError, GraphError
from perron.networks.graph import Graph

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".png", ".pdf", ".svg")
MAX_NODES = 400
MAX_EDGES = 20_000
BEND_UP_TO = 64  # nodes; in larger drawings links are straight
BENDS = (0.0, 0.12, -0.12, 0.2, -0.2, 0.3, -0.3)  # of links, the straightest first
# Okabe & Ito's palette for color-blind readers, and brown, which differs in brightness from its neighbors.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C564B")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
BLUE, INK, PALE, GREY = COLORS[0], "#222222", "#E6F1F8", "#888888"


def draw(graph: Graph | Sequence[Graph], path: str | Path) -> Path:
    """Draw a graph with an arrow for each edge, or with lines if it is undirected; a sequence of graphs in one panel each."""
    graphs = [graph] if isinstance(graph, Graph) else list(graph)
    if not graphs:
        raise GraphError("There is no graph to draw.")
    names = [panel.name for panel in graphs]
    titles = [name if names.count(name) == 1 else f"{name} ({i})" for i, name in enumerate(names)]
    return draw_all(dict(zip(titles, graphs, strict=True)), path)


def draw_all(graphs: dict[str, Graph], path: str | Path, *, columns: int = 3) -> Path:
    """Draw several graphs side by side, each under its title, as in the paper's topology figure."""
    path = _check_format(Path(path))
    for graph in graphs.values():
        if len(graph.edges) > MAX_EDGES:
            raise GraphError(f"{graph.name} has {len(graph.edges):,} edges; at most {MAX_EDGES:,} can be drawn.")
        if graph.nodes > MAX_NODES:
            raise GraphError(
                f"{graph.name} has too many nodes for a readable drawing; at most {MAX_NODES} can be drawn."
            )
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    width = min(columns, len(graphs))
    height = -(-len(graphs) // width)
    largest = max(graph.nodes for graph in graphs.values())
    side = float(np.clip(4 + 0.06 * largest, 4.5, 12)) if len(graphs) > 1 else float(np.clip(4 + 0.14 * largest, 5, 14))
    figure = Figure(figsize=(side * width, (side + 0.3) * height), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(height, width, squeeze=False).ravel()
    for axes, (title, graph) in zip(panels, graphs.items(), strict=False):
        _draw(axes, graph, side)
        axes.set_title(title, fontsize=11, color=INK, parse_math=False)
    for axes in panels[len(graphs) :]:
        axes.set_axis_off()
    return save(figure, path)


@dataclass(frozen=True)
class Line:
    """A curve of a panel: ``y`` at ``x`` with a band of two standard errors.

    ``floor`` is a level, drawn dashed in the same color. A ``guide`` is a thin grey reference curve. A greater ``width`` keeps a
    curve visible under others that coincide with it.
    """

    label: str
    x: FloatArray
    y: FloatArray
    error: FloatArray | None = None
    floor: float | None = None
    guide: bool = False
    width: float = 1.1


def panels(
    content: Mapping[str, Sequence[Line]],
    *,
    x: str,
    y: str,
    columns: int = 3,
    log_x: bool = False,
    points: bool = False,
    legend: str | None = None,
    shares: bool = False,
) -> Figure:
    """A grid of panels with logarithmic y axes and one legend; equal labels have equal colors in all panels.

    Args:
        content: the lines of each panel, by its title.
        x, y: labels of the axes.
        columns: the largest number of panels in a row.
        log_x: whether x is logarithmic too; the values of x are then the ticks.
        points: whether to mark the points and draw error bars instead of bands.
        legend: the title of the legend.
        shares: whether y is a share between 0 and 1, shown in percent on a linear axis.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    width = min(columns, len(content))
    height = -(-len(content) // width)
    inches = {1: 5.5, 2: 8.0}.get(width, 3.1 * width)
    figure = Figure(figsize=(inches, 2.5 * height + 0.75), layout="constrained")
    axes = figure.subplots(height, width, squeeze=False, sharey=True).ravel()
    labels = sorted({line.label: line for lines in content.values() for line in lines if not line.guide}, key=_natural)
    style = {label: (COLORS[i % len(COLORS)], MARKERS[i % len(MARKERS)]) for i, label in enumerate(labels)}
    handles: dict[str, Any] = {}
    for i, (panel, (title, lines)) in enumerate(zip(axes, content.items(), strict=False)):
        for line in lines:
            color, marker = (GREY, "") if line.guide else style[line.label]
            handles.setdefault(line.label, _line(panel, line, color, marker, points))
        panel.set_title(title, fontsize=10, color=INK)
        if shares:
            panel.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        else:
            panel.set_yscale("log")
        panel.grid(alpha=0.25, linewidth=0.6)
        panel.tick_params(labelsize=8, which="both")
        panel.spines[["top", "right"]].set_visible(False)
        if log_x:
            _ticks(panel, sorted({float(value) for line in lines for value in line.x}))
        if i + width >= len(content):
            panel.set_xlabel(x, fontsize=9)
        if i % width == 0:
            panel.set_ylabel(y, fontsize=9)
    for panel in axes[len(content) :]:
        panel.set_axis_off()
    shown = sorted(handles, key=lambda label: (label not in style, _natural(label)))
    fitting = int(inches * 12 / (max(map(len, shown)) + 8))  # about twelve letters to an inch, and the line before them
    figure.legend(
        [handles[label] for label in shown], shown, title=legend, loc="outside lower center", frameon=False,
        ncols=max(1, min(len(shown), fitting)), fontsize=9, title_fontsize=9,
    )  # fmt: skip
    return figure


def curves(lines: Mapping[str, tuple[Any, FloatArray, FloatArray]], metric: str) -> Figure:
    """One panel of named curves ``(steps, mean, standard error)``."""
    return panels({"": [Line(name, *line) for name, line in lines.items()]}, x="step", y=metric)


def heat_maps(content: Mapping[str, IntArray]) -> Figure:
    """Tables of counts ``(nodes, classes)`` side by side with one color scale, such as the samples of each node."""
    from matplotlib.figure import Figure

    rows = max(len(counts) for counts in content.values())
    figure = Figure(figsize=(4.4 * len(content), 0.24 * rows + 1.6), layout="constrained")
    axes = figure.subplots(1, len(content), squeeze=False, sharey=True).ravel()
    most = max(int(counts.max()) for counts in content.values())
    for panel, (title, counts) in zip(axes, content.items(), strict=True):
        image = panel.imshow(counts, aspect="auto", cmap="Blues", vmin=0, vmax=most)
        for node, row in enumerate(counts.tolist()):
            for label, count in enumerate(row):
                color = "white" if count > 0.6 * most else INK
                panel.text(label, node, str(count), ha="center", va="center", fontsize=6, color=color)
        panel.set_title(title, fontsize=10, color=INK)
        panel.set_xlabel("class", fontsize=9)
        panel.set_xticks(range(counts.shape[1]))
        panel.set_yticks(range(len(counts)))
        panel.tick_params(labelsize=8, length=0)
        panel.spines[:].set_visible(False)
    axes[0].set_ylabel("node", fontsize=9)
    figure.colorbar(image, ax=axes.tolist(), label="samples", shrink=0.8)
    return figure


def _line(axes: Axes, line: Line, color: str, marker: str, points: bool) -> Any:
    if line.guide:
        return axes.plot(line.x, line.y, color=color, linewidth=1.0, linestyle=(0, (4, 3)), zorder=1)[0]
    if points:
        error = None if line.error is None else 2 * line.error
        handle: Any = axes.errorbar(
            line.x, line.y, yerr=error, color=color, marker=marker, markersize=4.5, linewidth=1.2, capsize=2
        )
    else:
        handle = axes.plot(line.x, line.y, color=color, linewidth=line.width)[0]
        if line.error is not None:
            low = np.maximum(line.y - 2 * line.error, line.y * 1e-2)
            axes.fill_between(line.x, low, line.y + 2 * line.error, color=color, alpha=0.2, linewidth=0)
    if line.floor is not None:
        axes.axhline(line.floor, color=color, linewidth=1.0, linestyle=(0, (4, 2)))
    return handle


def _natural(label: str) -> int:
    """Sort key: the number at the end of a label, so that n = 16 comes after n = 4; other labels keep their order."""
    last = label.rpartition(" ")[2]
    return int(last) if last.isdecimal() else 0


def _ticks(axes: Axes, values: list[float]) -> None:
    from matplotlib.ticker import NullLocator

    axes.set_xscale("log")
    axes.set_xticks(values, [f"{value:g}" for value in values])
    axes.xaxis.set_minor_locator(NullLocator())


def save(figure: Figure, path: str | Path) -> Path:
    """Write a figure atomically and without a date, so that equal figures are equal files."""
    from matplotlib import rc_context

    path = _check_format(Path(path))
    buffer = io.BytesIO()
    kind = path.suffix[1:].lower()
    undated = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}[kind]
    with rc_context({"svg.hashsalt": "perron"}):  # otherwise the ids in an SVG are random
        figure.savefig(buffer, format=kind, dpi=150, metadata=undated)
    return write_bytes(path, buffer.getvalue())


def _check_format(path: Path) -> Path:
    if path.suffix.lower() not in FORMATS:
        raise FileError(f"A picture is written to one of {', '.join(FORMATS)}; got {path}.")
    return path


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

"""Figures: graphs, curves and tables, written as PNG, PDF or SVG by the suffix of the path."""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, Literal

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
MAX_PIXELS = 60_000  # of the longer side of a picture; matplotlib refuses 65,536
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
    return Drawing(dict(zip(titles, graphs, strict=True))).save(path)


class Picture(ABC):
    """A figure as data, which ``figure`` draws with matplotlib."""

    @abstractmethod
    def figure(self) -> Figure: ...

    def save(self, path: str | Path) -> Path:
        """Write the picture to a file; its suffix decides the format."""
        path = _check_format(Path(path))  # before drawing, which can take a while
        return save(self.figure(), path)


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


@dataclass(frozen=True)
class Line:
    """A curve of a panel: ``y`` at ``x``.

    Attributes:
        low, high: the ends of its error bars, or the edges of the band around it.
        floor: a level, drawn dashed in the same color.
        fit: a fitted curve with its band, drawn in the same color.
        guide: whether the curve is a reference, drawn thin, grey and dashed.
    """

    label: str
    x: FloatArray
    y: FloatArray
    low: FloatArray | None = None
    high: FloatArray | None = None
    floor: float | None = None
    fit: Line | None = None
    guide: bool = False


@dataclass(frozen=True)
class Panel:
    """Lines on one pair of axes, with a title and a second line below it."""

    title: str
    lines: Sequence[Line]
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Chart(Picture):
    """A grid of panels with shared axes and one legend; the same label has the same color in each panel.

    A chart is drawn by matplotlib, and by plotly in the report if it has a title there.

    Attributes:
        x, y: the titles of the axes.
        title, about: its heading and caption in the report.
        log_x, log_y: whether an axis is logarithmic; with ``log_x`` the values of x are the ticks.
        marks: ``"lines"`` with bands, ``"points"`` with error bars joined by lines, or ``"dots"``: points that are not joined.
        nested: whether lines go from thick to thin, so that of those that coincide none hides another.
        names: for x = 0, 1, ..., the names of categories.
        share: whether y is a share between 0 and 1, shown in percent.
        legend: the title of the legend.
    """

    panels: Sequence[Panel]
    x: str
    y: str
    title: str = ""
    about: str = ""
    log_x: bool = False
    log_y: bool = True
    marks: Literal["lines", "points", "dots"] = "lines"
    nested: bool = False
    names: Sequence[str] | None = None
    share: bool = False
    legend: str | None = None
    columns: int = 3

    def figure(self) -> Figure:
        from matplotlib.figure import Figure

        columns = min(self.columns, len(self.panels))
        rows = -(-len(self.panels) // columns)
        inches = {1: 5.5, 2: 8.0}.get(columns, 3.1 * columns)
        lines = [line for panel in self.panels for line in panel.lines]
        labels = sorted({line.label: None for line in lines if not line.guide}, key=_natural)
        style = {label: (COLORS[i % len(COLORS)], MARKERS[i % len(MARKERS)]) for i, label in enumerate(labels)}
        shown = [*labels, *dict.fromkeys(line.label for line in lines if line.guide)]
        # About twelve letters to an inch, and the line in front of them.
        entries = max(1, min(len(shown), int(inches * 12 / (max(map(len, shown), default=0) + 8))))
        height = 2.5 * rows + 0.55 + 0.2 * -(-len(shown) // entries) + 0.2 * any(panel.note for panel in self.panels)
        figure = Figure(figsize=(inches, height), layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False, sharey=True)
        handles: dict[str, Any] = {}
        for axes, panel in zip(grid.flat, self.panels, strict=False):
            nested = self.nested and self.marks == "lines" and len(panel.lines) > 1
            widths = np.linspace(6.0, 1.0, len(panel.lines)) if nested else [1.2] * len(panel.lines)
            for line, width in zip(panel.lines, widths, strict=True):
                color, marker = style.get(line.label, (GREY, ""))
                handles.setdefault(line.label, self._line(axes, line, color, marker, width))
            self._decorate(axes, panel)
        for axes in grid.flat[len(self.panels) - columns : len(self.panels)]:
            axes.set_xlabel(self.x, fontsize=9)
        for axes in grid[:, 0]:
            axes.set_ylabel(self.y, fontsize=9)
        for axes in grid.flat[len(self.panels) :]:
            axes.set_axis_off()
        figure.legend(
            [handles[label] for label in shown], shown, title=self.legend, loc="outside lower center", ncols=entries,
            frameon=False, fontsize=9, title_fontsize=9,
        )  # fmt: skip
        return figure

    def _line(self, axes: Axes, line: Line, color: str, marker: str, width: float) -> Any:
        if line.guide:
            return axes.plot(line.x, line.y, color=GREY, linewidth=1.0, linestyle=(0, (4, 3)), zorder=1)[0]
        if line.floor is not None:
            axes.axhline(line.floor, color=color, linewidth=1.0, linestyle=(0, (4, 2)))
        if line.fit is not None:
            self._line(axes, replace(line.fit, label=""), color, "", 1.2)
        if not marker or self.marks == "lines":
            if line.low is not None and line.high is not None:
                low = np.maximum(line.low, line.y * 1e-2) if self.log_y else line.low
                axes.fill_between(line.x, low, line.high, color=color, alpha=0.2, linewidth=0)
            return axes.plot(line.x, line.y, color=color, linewidth=width)[0]
        bars = None
        if line.low is not None and line.high is not None:
            bars = np.maximum([line.y - line.low, line.high - line.y], 0)
            bars = np.where(np.isfinite(bars).all(axis=0), bars, 0)  # no bar where an end of the interval is unknown
        return axes.errorbar(
            line.x, line.y, yerr=bars, color=color, marker=marker, markersize=4.5, capsize=2, elinewidth=1.2,
            linewidth=width, linestyle="none" if self.marks == "dots" else "-",
        )  # fmt: skip

    def _decorate(self, axes: Axes, panel: Panel) -> None:
        from matplotlib.ticker import NullLocator, PercentFormatter

        axes.set_title("\n".join(filter(None, (fill(panel.title, 38), panel.note))), fontsize=10, color=INK)
        if self.log_y:
            axes.set_yscale("log")
        if self.share:
            axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        if self.names is not None:
            axes.set_xticks(range(len(self.names)), self.names)
        elif self.log_x:
            values = sorted({float(value) for line in panel.lines for value in line.x})
            axes.set_xscale("log")
            axes.set_xticks(values, [f"{value:g}" for value in values])
            axes.xaxis.set_minor_locator(NullLocator())
        axes.grid(alpha=0.25, linewidth=0.6)
        axes.tick_params(labelsize=8, which="both")
        axes.spines[["top", "right"]].set_visible(False)


@dataclass(frozen=True)
class HeatMaps(Picture):
    """Tables of counts side by side, ``(nodes, classes)`` each, as the samples that nodes have; one scale for all."""

    counts: Mapping[str, IntArray]

    def figure(self) -> Figure:
        from matplotlib.figure import Figure

        rows = max(len(table) for table in self.counts.values())
        figure = Figure(figsize=(4.4 * len(self.counts), 0.24 * rows + 1.6), layout="constrained")
        grid = figure.subplots(1, len(self.counts), squeeze=False, sharey=True).ravel()
        most = max(int(table.max()) for table in self.counts.values())
        for axes, (title, table) in zip(grid, self.counts.items(), strict=True):
            image = axes.imshow(table, aspect="auto", cmap="Blues", vmin=0, vmax=most)
            for (node, label), count in np.ndenumerate(table):
                color = "white" if count > 0.6 * most else INK
                axes.text(label, node, str(count), ha="center", va="center", fontsize=6, color=color)
            axes.set_title(title, fontsize=10, color=INK)
            axes.set_xlabel("class", fontsize=9)
            axes.set_xticks(range(table.shape[1]))
            axes.set_yticks(range(len(table)))
            axes.tick_params(labelsize=8, length=0)
            axes.spines[:].set_visible(False)
        grid[0].set_ylabel("node", fontsize=9)
        figure.colorbar(image, ax=grid.tolist(), label="samples", shrink=0.8)
        return figure


def curves(lines: Mapping[str, tuple[Any, FloatArray, FloatArray]], metric: str, *, log: bool = True) -> Figure:
    """Draw named curves ``(steps, mean, standard error)``, each with a band of two standard errors."""
    drawn = [Line(name, x, mean, mean - 2 * error, mean + 2 * error) for name, (x, mean, error) in lines.items()]
    return Chart(panels=[Panel("", drawn)], x="step", y=metric, log_y=log).figure()


def _natural(label: str) -> int:
    """Sort key: the number at the end of a label, so that n = 16 comes after n = 4; other labels keep their order."""
    last = label.rpartition(" ")[2]
    return int(last) if last.isdecimal() else 0


def save(figure: Figure, path: str | Path) -> Path:
    """Write a figure atomically and without a date, so that equal figures are equal files."""
    from matplotlib import rc_context

    path = _check_format(Path(path))
    buffer = io.BytesIO()
    kind = path.suffix[1:].lower()
    undated = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}[kind]
    with rc_context({"svg.hashsalt": "perron"}):  # otherwise the ids in an SVG are random
        dpi = min(150, MAX_PIXELS / max(figure.get_size_inches()))
        figure.savefig(buffer, format=kind, dpi=dpi, metadata=undated)
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

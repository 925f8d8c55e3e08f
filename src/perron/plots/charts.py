"""Curves, points and heat maps in panels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from textwrap import fill
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from perron._typing import FloatArray, IntArray
from perron.plots.base import COLORS, GREY, INK, MARKERS, Picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


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

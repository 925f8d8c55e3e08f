"""Curves, points and heat maps in panels."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from shutil import which
from textwrap import fill
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from perron._typing import FloatArray, IntArray
from perron.errors import PerronError
from perron.plots.base import COLORS, GREY, INK, MARKERS, Picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PAGE_COLUMNS = {"one": 3.5, "two": 7.16}  # inches, of the usual journals and conferences
DASHES = ("-", (0, (5, 1.5)), (0, (1, 1.2)), (0, (5, 1.5, 1, 1.5)))


@dataclass(frozen=True)
class Line:
    """A curve of a panel: ``y`` at ``x``.

    Attributes:
        low, high: the ends of its error bars, or the edges of the band around it.
        floor: a level, drawn dashed in the same color.
        fit: a fitted curve with its band, drawn in the same color.
        guide: whether the curve is a reference, drawn thin, grey and dashed.
        mark: the x of a point that is marked by a star, as the best.
    """

    label: str
    x: FloatArray
    y: FloatArray
    low: FloatArray | None = None
    high: FloatArray | None = None
    floor: float | None = None
    fit: Line | None = None
    guide: bool = False
    mark: float | None = None


@dataclass(frozen=True)
class Panel:
    """Lines on one pair of axes, with a title and a second line below it."""

    title: str
    lines: Sequence[Line]
    note: str = ""


@dataclass(frozen=True)
class _Style:
    """How a line is told from others: by its color and marker, and in print by its dashes, which are read in grey."""

    color: str = GREY
    marker: str = ""
    dashes: Any = None
    place: int = 0

    @classmethod
    def of(cls, place: int, *, dashed: bool) -> _Style:
        """The style of a line by its place in the legend."""
        dashes = DASHES[place % len(DASHES)] if dashed else None
        return cls(COLORS[place % len(COLORS)], MARKERS[place % len(MARKERS)], dashes, place)

    def every(self, points: int) -> tuple[int, int]:
        """Which points have markers: about six, at other places than those of the next line."""
        apart = max(1, points // 6)
        return (self.place * apart // 4) % apart, apart


@dataclass(frozen=True, kw_only=True)
class Chart(Picture):
    """A grid of panels with shared axes and one legend; the same label has the same color in each panel.

    A chart is drawn by matplotlib, and by plotly in the report if it has a title there.

    Attributes:
        x, y: the titles of the axes.
        title, about: its heading and caption in the report.
        log_x, log_y: whether an axis is logarithmic; with ``log_x`` the values of x are the ticks, except on lines.
        marks: ``"lines"`` with bands, ``"points"`` with error bars joined by lines, or ``"dots"``: points that are not joined.
        nested: whether lines go from thick to thin, so that of those that coincide none hides another.
        names: for x = 0, 1, ..., the names of categories.
        share: whether y is a share between 0 and 1, shown in percent.
        legend: the title of the legend.
        width: in inches, of a chart for print: text has 8 points, and lines differ in dashes and markers as well as in color.
        latex: whether LaTeX sets the text.
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
    width: float | None = None
    latex: bool = False

    @property
    def settings(self) -> Any:
        if not self.latex:
            return {}
        if lacking := [program for program in ("latex", "dvipng") if which(program) is None]:
            raise PerronError(
                f"latex = true needs the program {' and '.join(lacking)}; install TeX, or leave latex out."
            )
        return {"text.usetex": True, "font.family": "serif"}

    def figure(self) -> Figure:
        from matplotlib.figure import Figure

        columns = min(self.columns, len(self.panels))
        if self.width is not None:  # a panel takes 1.7 inches at least
            columns = min(len(self.panels), 1 if self.width < 5 and len(self.panels) < 4 else int(self.width // 1.7))
            columns = 2 if len(self.panels) == 4 else min(columns, 3)
        rows = -(-len(self.panels) // columns)
        inches = self.width or {1: 5.5, 2: 8.0}.get(columns, 3.1 * columns)
        text, small, large = (8.0, 8.0, 8.0) if self.width else (9.0, 8.0, 10.0)
        lines = [line for panel in self.panels for line in panel.lines]
        labels = sorted({line.label: None for line in lines if not line.guide}, key=_natural)
        style = {label: _Style.of(place, dashed=self.width is not None) for place, label in enumerate(labels)}
        shown = [*labels, *dict.fromkeys(line.label for line in lines if line.guide)]
        # About twelve letters to an inch, fifteen of small ones, and the line in front of them.
        letters = 15 if self.width else 12
        entries = max(1, min(len(shown), int(inches * letters / (max(map(len, shown), default=0) + 8))))
        height = 2.5 * rows + 0.55 + 0.2 * -(-len(shown) // entries) + 0.2 * any(panel.note for panel in self.panels)
        if self.width is not None:
            height = np.clip(0.7 * inches / columns, 1.5, 2.3) * rows + 0.3 + 0.15 * -(-len(shown) // entries)
        inches_high = (height - 0.3) / rows - 0.15 * -(-len(shown) // entries)
        figure = Figure(figsize=(inches, height), layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False, sharey=True)
        handles: dict[str, Any] = {}
        for axes, panel in zip(grid.flat, self.panels, strict=False):
            nested = self.nested and self.marks == "lines" and len(panel.lines) > 1
            widths = np.linspace(6.0, 1.0, len(panel.lines)) if nested else [1.2] * len(panel.lines)
            for line, width in zip(panel.lines, widths, strict=True):
                handles.setdefault(line.label, self._line(axes, line, style.get(line.label, _Style()), width))
            self._decorate(axes, panel, small, large)
        for axes in grid.flat[len(self.panels) - columns : len(self.panels)]:
            axes.set_xlabel(self._text(self.x), fontsize=text)
        for axes in grid[:, 0]:
            axes.set_ylabel(self._text(fill(self.y, max(20, int(13 * inches_high)))), fontsize=text)
        for axes in grid.flat[len(self.panels) :]:
            axes.set_axis_off()
        figure.legend(
            [handles[label] for label in shown], list(map(self._text, shown)), title=self.legend, ncols=entries,
            loc="outside lower center", frameon=False, fontsize=text, title_fontsize=text,
        )  # fmt: skip
        return figure

    def _text(self, text: str) -> str:
        """Text as LaTeX reads it: outside of formulas, its special characters are escaped."""
        if not self.latex:
            return text
        parts = text.split("$")
        return "$".join(
            re.sub(r"([#%&_])", r"\\\1", part) if place % 2 == 0 else part for place, part in enumerate(parts)
        )

    def _line(self, axes: Axes, line: Line, style: _Style, width: float) -> Any:
        color, marker = style.color, style.marker
        if line.mark is not None and line.mark in line.x:
            at = line.x.tolist().index(line.mark)
            axes.plot(line.x[at], line.y[at], color=color, marker="*", markersize=11, markeredgecolor=INK, zorder=4)
        if line.guide:
            return axes.plot(line.x, line.y, color=GREY, linewidth=1.0, linestyle=(0, (4, 3)), zorder=1)[0]
        if line.floor is not None:
            axes.axhline(line.floor, color=color, linewidth=1.0, linestyle=(0, (4, 2)))
        if line.fit is not None:
            self._line(axes, replace(line.fit, label=""), replace(style, marker=""), 1.2)
        if not marker or self.marks == "lines":
            if line.low is not None and line.high is not None:
                low = np.maximum(line.low, line.y * 1e-2) if self.log_y else line.low
                axes.fill_between(line.x, low, line.high, color=color, alpha=0.2, linewidth=0)
            marks: Any = (
                {"marker": marker, "markersize": 3.5, "markevery": style.every(len(line.x))} if style.dashes else {}
            )
            return axes.plot(line.x, line.y, color=color, linewidth=width, linestyle=style.dashes or "-", **marks)[0]
        bars = None
        if line.low is not None and line.high is not None:
            bars = np.maximum([line.y - line.low, line.high - line.y], 0)
            bars = np.where(np.isfinite(bars).all(axis=0), bars, 0)  # no bar where an end of the interval is unknown
        return axes.errorbar(
            line.x, line.y, yerr=bars, color=color, marker=marker, markersize=4.5, capsize=2, elinewidth=1.2,
            linewidth=width, linestyle="none" if self.marks == "dots" else style.dashes or "-",
        )  # fmt: skip

    def _decorate(self, axes: Axes, panel: Panel, small: float, large: float) -> None:
        from matplotlib.ticker import NullLocator, PercentFormatter

        title = "\n".join(filter(None, (fill(panel.title, 38), panel.note)))
        axes.set_title(self._text(title), fontsize=large, color=INK)
        if self.log_y:
            axes.set_yscale("log")
        if self.share:
            axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        if self.names is not None:
            axes.set_xticks(range(len(self.names)), self.names)
        elif self.log_x:
            values = sorted({float(value) for line in panel.lines for value in line.x})
            axes.set_xscale("log")
            if self.marks != "lines":
                axes.set_xticks(values, [f"{value:.3g}" for value in values])
                axes.xaxis.set_minor_locator(NullLocator())
        axes.grid(alpha=0.25, linewidth=0.6)
        axes.tick_params(labelsize=small, which="both")
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


def curves(
    lines: Mapping[str, tuple[Any, FloatArray, FloatArray]], metric: str, *, log: bool = True, x: str = "step"
) -> Figure:
    """Draw named curves ``(steps, mean, standard error)``, each with a band of two standard errors; ``x`` names the axis."""
    drawn = [Line(name, at, mean, mean - 2 * error, mean + 2 * error) for name, (at, mean, error) in lines.items()]
    return Chart(panels=[Panel("", drawn)], x=x, y=metric, log_y=log).figure()


def _natural(label: str) -> int:
    """Sort key: the number at the end of a label, so that n = 16 comes after n = 4; other labels keep their order."""
    last = label.rpartition(" ")[2]
    return int(last) if last.isdecimal() else 0

"""Curves in a terminal: dots of Braille characters, two by four to a cell, with axes; logarithmic where it helps."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from math import ceil, floor, log10
from statistics import fmean
from typing import NamedTuple

from rich.text import Text

DOTS = (
    (0x01, 0x08),
    (0x02, 0x10),
    (0x04, 0x20),
    (0x40, 0x80),
)  # of Unicode's Braille patterns: rows of two, from the top
MARGIN = 8  # columns for the numbers of the vertical axis
DECADE = 5.0  # largest over smallest value from which the axis is logarithmic


class Curve(NamedTuple):
    """Points from left to right, and a style of rich."""

    points: Sequence[tuple[float, float]]
    style: str


def drawn(curves: Sequence[Curve], width: int, height: int) -> list[Text]:
    """Lines of text with all curves, later ones on top; the last two are the horizontal axis. Needs 24 columns and 4 lines."""
    columns, rows = max(1, width - MARGIN - 1), max(1, height - 2)
    across = [x for curve in curves for x, _ in curve.points]
    curves = [Curve(_thinned(points, columns), style) for points, style in curves]
    every = [point for curve in curves for point in curve.points]
    if not every:
        return [Text("nothing measured yet", style="dim")]
    low, high = min(y for _, y in every), max(y for _, y in every)
    logarithmic = low > 0 and high / low >= DECADE
    bottom, top = (log10(low), log10(high)) if logarithmic else (low, high)
    if top - bottom <= 1e-9 * max(abs(top), 1e-300):
        bottom, top = bottom - 0.5 - 0.1 * abs(bottom), top + 0.5 + 0.1 * abs(top)
    left, right = min(across), max(across)
    per_step, per_unit = (2 * columns - 1) / (right - left or 1.0), (4 * rows - 1) / (top - bottom)
    cells: dict[tuple[int, int], tuple[int, str]] = {}
    for points, style in curves:
        before = None
        for x, y in points:
            here = round((x - left) * per_step), round((top - (log10(y) if logarithmic else y)) * per_unit)
            for column, row in _line(before or here, here):
                cell = column // 2, row // 4
                cells[cell] = cells.get(cell, (0, ""))[0] | DOTS[row % 4][column % 2], style  # a cell has one colour
            before = here
    ticks = _ticks(bottom, top, rows, logarithmic=logarithmic)
    lines = []
    for row in range(rows):
        line = Text(f"{ticks.get(row, ''):>{MARGIN}}" + ("┤" if row in ticks else "│"), style="dim")
        for column in range(columns):
            dots, style = cells.get((column, row), (0, ""))
            line.append(chr(0x2800 + dots) if dots else " ", style="not dim " + style if dots else "")
        lines.append(line)
    return [*lines, Text(" " * MARGIN + "└" + "─" * columns, style="dim"), _below(left, right, columns)]


def _thinned(points: Sequence[tuple[float, float]], columns: int) -> Sequence[tuple[float, float]]:
    """Of more points than columns, the mean of those that share a column: a noisy curve would fill the picture."""
    if len(points) <= 2 * columns:
        return points
    width = (points[-1][0] - points[0][0]) / columns or 1.0
    groups = [list(group) for _, group in groupby(points, key=lambda point: int((point[0] - points[0][0]) / width))]
    return [(fmean(x for x, _ in group), fmean(y for _, y in group)) for group in groups]


def _line(one: tuple[int, int], other: tuple[int, int]) -> list[tuple[int, int]]:
    """The dots from one to another."""
    (x, y), (across, down) = one, (other[0] - one[0], other[1] - one[1])
    steps = max(abs(across), abs(down), 1)
    return [(x + round(across * i / steps), y + round(down * i / steps)) for i in range(steps + 1)]


def _ticks(bottom: float, top: float, rows: int, *, logarithmic: bool) -> dict[int, str]:
    """Which rows have which numbers: powers of ten if there are two or more, else the values of some rows."""
    per_row = (top - bottom) / max(rows - 0.25, 0.25)
    decades = range(ceil(bottom), floor(top) + 1) if logarithmic else range(0)
    if len(decades) > 1:
        apart = ceil(len(decades) / max(rows // 2, 1))
        return {min(rows - 1, int((top - power) / per_row)): f"1e{power}" for power in decades[::apart]}
    few = max(2, min(4, rows // 2))
    found = {}
    for row in {round(i * (rows - 1) / (few - 1)) for i in range(few)}:
        value = top - (row + 0.5 - 0.5 * (rows == 1)) * per_row
        shown = [f"{10**value if logarithmic else value:.{digits}g}" for digits in (3, 2)]
        found[row] = shown[len(shown[0]) > MARGIN]
    return found


def _below(left: float, right: float, columns: int) -> Text:
    """The numbers of the horizontal axis, as many as there is room for."""
    first, last = f"{left:,.0f}", f"{right:,.0f}"
    middle = f"{(left + right) / 2:,.0f}" if columns > 40 and right - left > 1 else ""
    gap = columns - len(first) - len(middle) - len(last)
    if gap < 2:
        first, middle, gap = "", "", max(0, columns - len(last))
    line = first + " " * (gap // 2) + middle + " " * (gap - gap // 2) + last
    return Text(" " * (MARGIN + 1) + line[:columns], style="dim")

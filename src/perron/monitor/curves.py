"""Curves in a terminal: dots of Braille characters, two by four to a cell, with axes; logarithmic where it helps.

Ours rather than plotext: that one has a single global figure, takes 0.2 s to import, and ticks and thinning would be ours anyway.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from math import ceil, floor, log10
from statistics import fmean
from typing import NamedTuple

from rich.text import Text

BRAILLE = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # bits of the dots: rows of two, from the top
MARGIN = 8  # columns for the numbers of the vertical axis
LOGARITHMIC = 5.0  # ratio of the largest to the smallest value from which the axis is logarithmic


class Curve(NamedTuple):
    """Points from left to right, and a style of rich."""

    points: Sequence[tuple[float, float]]
    style: str


def draw_curves(curves: Sequence[Curve], width: int, height: int) -> list[Text]:
    """Return lines of text with all curves, later ones on top, and axes. Needs 24 columns and 4 lines."""
    columns, rows = max(1, width - MARGIN - 1), max(1, height - 2)
    steps = [x for curve in curves for x, _ in curve.points]
    curves = [Curve(_thinned(points, columns), style) for points, style in curves]
    values = [y for curve in curves for _, y in curve.points]
    if not values:
        return [Text("nothing measured yet", style="dim")]
    logarithmic = min(values) > 0 and max(values) / min(values) >= LOGARITHMIC
    bottom, top = (log10(min(values)), log10(max(values))) if logarithmic else (min(values), max(values))
    if top - bottom <= 1e-9 * max(abs(top), 1e-300):
        bottom, top = bottom - 0.5 - 0.1 * abs(bottom), top + 0.5 + 0.1 * abs(top)
    left, right = min(steps), max(steps)
    per_step, per_unit = (2 * columns - 1) / (right - left or 1.0), (4 * rows - 1) / (top - bottom)
    cells: dict[tuple[int, int], tuple[int, str]] = {}
    for points, style in curves:
        dots = [
            (round((x - left) * per_step), round((top - (log10(y) if logarithmic else y)) * per_unit))
            for x, y in points
        ]
        for start, end in zip(dots[:1] + dots, dots, strict=False):
            for column, row in _line(start, end):
                cell = column // 2, row // 4
                cells[cell] = cells.get(cell, (0, ""))[0] | BRAILLE[row % 4][column % 2], style  # a cell has one color
    ticks = _ticks(bottom, top, rows, logarithmic=logarithmic)
    lines = []
    for row in range(rows):
        line = Text(f"{ticks.get(row, ''):>{MARGIN}}" + ("┤" if row in ticks else "│"), style="dim")
        for column in range(columns):
            bits, style = cells.get((column, row), (0, ""))
            line.append(chr(0x2800 + bits) if bits else " ", style="not dim " + style if bits else "")
        lines.append(line)
    return [*lines, Text(" " * MARGIN + "└" + "─" * columns, style="dim"), _step_labels(left, right, columns)]


def _thinned(points: Sequence[tuple[float, float]], columns: int) -> Sequence[tuple[float, float]]:
    """Return the mean of the points in each column, if there are many: a noisy curve would fill the picture."""
    if len(points) <= 2 * columns:
        return points
    width = (points[-1][0] - points[0][0]) / columns or 1.0
    groups = [list(group) for _, group in groupby(points, key=lambda point: int((point[0] - points[0][0]) / width))]
    return [(fmean(x for x, _ in group), fmean(y for _, y in group)) for group in groups]


def _line(start: tuple[int, int], end: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """Yield the dots of a straight line."""
    (x, y), (across, down) = start, (end[0] - start[0], end[1] - start[1])
    count = max(abs(across), abs(down), 1)
    return ((x + round(across * i / count), y + round(down * i / count)) for i in range(count + 1))


def _ticks(bottom: float, top: float, rows: int, *, logarithmic: bool) -> dict[int, str]:
    """Return the numbers of the vertical axis by row: powers of ten if there are at least two, else values of some rows."""
    per_row = (top - bottom) / max(rows - 0.25, 0.25)
    decades = range(ceil(bottom), floor(top) + 1) if logarithmic else range(0)
    if len(decades) > 1:
        spacing = ceil(len(decades) / max(rows // 2, 1))
        return {min(rows - 1, int((top - power) / per_row)): f"1e{power}" for power in decades[::spacing]}
    count = max(2, min(4, rows // 2))
    ticks = {}
    for row in {round(i * (rows - 1) / (count - 1)) for i in range(count)}:
        value = top - (row + 0.5 - 0.5 * (rows == 1)) * per_row
        value = 10**value if logarithmic else value
        ticks[row] = text if len(text := f"{value:.3g}") <= MARGIN else f"{value:.2g}"
    return ticks


def _step_labels(left: float, right: float, columns: int) -> Text:
    """Return the numbers of the horizontal axis that there is room for."""
    first, last = f"{left:,.0f}", f"{right:,.0f}"
    middle = f"{(left + right) / 2:,.0f}" if columns > 40 and right - left > 1 else ""
    gap = columns - len(first) - len(middle) - len(last)
    if gap < 2:
        first, middle, gap = "", "", max(0, columns - len(last))
    line = first + " " * (gap // 2) + middle + " " * (gap - gap // 2) + last
    return Text(" " * (MARGIN + 1) + line[:columns], style="dim")

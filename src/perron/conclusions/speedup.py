"""Is the noise floor proportional to 1/n?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from perron import plots
from perron.conclusions.conclusion import (
    METRIC,
    SQUARED_NORM,
    VARYING,
    Conclusion,
    Table,
    curve,
    file_name,
    spoken,
    strings,
    told,
    variants,
)
from perron.experiment import Outcome
from perron.plots import Line
from perron.speedup import Level, level, power_law, series

CLOSE = 0.1  # a slope this near -1 is called linear


def speedup(outcome: Outcome) -> Conclusion:
    """Stationary levels against the number of nodes, beside those that theory predicts."""
    found, levels, slopes, floors = Conclusion(), [], [], {}
    for variant, part in variants(outcome.table):
        curves: dict[str, list[Line]] = {}
        dots = []
        for topology, same in part.groupby("topology", sort=False):
            measured = _levels(same)
            curves[spoken(topology)] = [curve(run, f"n = {n}", floor=one.predicted) for n, run, one in measured]
            levels += [_level_row(variant, topology, n, one) for n, _, one in measured]
            slopes.append(_slope_row(variant, topology, [(n, one) for n, _, one in measured]))
            dots.append(_dots(spoken(topology), [(n, one) for n, _, one in measured]))
        found.figures[file_name("curves", variant)] = plots.panels(
            curves, x="step", y=SQUARED_NORM, legend="nodes (dashed: predicted floor)"
        )
        floors[told(variant)] = [*dots, _predicted_line(part)]
    found.figures["levels"] = plots.panels(floors, x="nodes", y=r"level / $c$", log_x=True, points=True, columns=2)
    found.tables = {"Slopes": _frame(slopes), "Levels": _frame(levels)}
    found.summary = {"slopes": slopes, "levels": levels}
    found.sentences = _speedup_sentences(slopes, levels)
    return found


@dataclass(frozen=True)
class _Measured:
    """A level with what theory says of it."""

    level: Level
    c: float
    predicted: float


def _levels(table: Table) -> list[tuple[int, Table, _Measured]]:
    found = []
    for n, run in table.groupby("nodes", sort=True):
        first = run.iloc[0]
        found.append((int(n), run, _Measured(level(*series(run, METRIC)), float(first.c), float(first.predicted))))
    return found


def _level_row(variant: dict[str, Any], topology: str, n: int, one: _Measured) -> dict[str, Any]:
    found = one.level
    return variant | {
        "topology": topology,
        "nodes": n,
        "c": one.c,
        "level": found.mean,
        "error": found.error,
        "predicted": one.predicted,
        "ratio": found.mean / one.predicted,
        "ratio_error": found.error / one.predicted,
        "since": found.since,
        "fall": found.fall,
        "fall_error": found.fall_error,
        "stationary": found.stationary,
        "why": found.why,
    }


def _slope_row(variant: dict[str, Any], topology: str, measured: list[tuple[int, _Measured]]) -> dict[str, Any]:
    finite = [(n, one) for n, one in measured if np.isfinite(one.level.error) and one.level.mean > 0]
    n, c = [n for n, _ in finite], np.array([one.c for _, one in finite])
    mean, error = (np.array([getattr(one.level, name) for _, one in finite]) for name in ("mean", "error"))
    plain, scaled = power_law(n, mean, error), power_law(n, mean / c, error / c)
    moving: dict[str, list[str]] = {}
    for count, one in measured:
        if not one.level.stationary:
            moving.setdefault(one.level.why, []).append(str(count))
    if moving:
        verdict = f"cannot say: {'; '.join(f'{why} at n={chr(44).join(counts)}' for why, counts in moving.items())}"
    elif not np.isfinite(scaled.slope):
        verdict = "needs two node counts"
    elif abs(scaled.slope + 1) <= CLOSE:
        verdict = "linear speedup"
    elif scaled.low <= -1 <= scaled.high:
        verdict = "linear speedup not excluded, but measured too coarsely"
    else:
        verdict = "no linear speedup"
    row = variant | {"topology": topology, "nodes": ", ".join(str(n) for n, _ in measured)}
    for what, fit in (("level", plain), ("level/c", scaled)):
        row |= {f"slope of {what}": fit.slope, f"{what} low": fit.low, f"{what} high": fit.high}
    return row | {"stationary": not moving, "verdict": verdict}


def _speedup_sentences(slopes: list[dict[str, Any]], levels: list[dict[str, Any]]) -> list[str]:
    said = []
    if linear := [row["slope of level/c"] for row in slopes if row["verdict"] == "linear speedup"]:
        said.append(
            f"On {len(linear)} of {len(slopes)} networks the noise floor falls as 1/n: with the same step, n nodes settle n "
            f"times lower (slopes of log(level/c) against log(n): {min(linear):.3f} to {max(linear):.3f}; -1 is linear speedup)."
        )
    if settled := [row for row in levels if row["stationary"] and np.isfinite(row["ratio"])]:
        worst = max(settled, key=lambda row: abs(row["ratio"] - 1))
        typical = float(np.median([abs(row["ratio"] - 1) for row in settled]))
        where = f"{spoken(worst['topology'])} at n={worst['nodes']}{_in(worst)}"
        said.append(
            f"Levels lie within {typical:.1%} (median) of the predicted c lr tr(H Sigma) / (2n); farthest from it is {where} "
            f"with {worst['ratio']:.3f} ± {worst['ratio_error']:.3f} times it."
        )
    if moving := [row for row in slopes if not row["stationary"]]:
        apparent = [row["slope of level"] for row in moving if np.isfinite(row["slope of level"])]
        fake = (
            f"; their apparent slopes, {min(apparent):.2f} to {max(apparent):.2f}, say nothing about noise"
            if apparent
            else ""
        )
        said.append(
            f"On {len(moving)} of {len(slopes)} networks no speedup is claimed, because curves are not on their floor at the end "
            f"of the run{fake}."
        )
    return said


def _dots(label: str, measured: list[tuple[int, _Measured]]) -> Line:
    n = np.array([float(n) for n, _ in measured])
    c = np.array([one.c for _, one in measured])
    mean, error = (np.array([getattr(one.level, name) for _, one in measured]) for name in ("mean", "error"))
    return Line(label, n, mean / c, error / c)


def _predicted_line(table: Table) -> Line:
    first = table.drop_duplicates("nodes").sort_values("nodes")
    return Line("predicted", first.nodes.to_numpy(float), (first.predicted / first.c).to_numpy(), guide=True)


def _frame(rows: list[dict[str, Any]]) -> Table:
    """Rows of numbers as cells to print: a value and its error or interval in one."""
    shown = []
    for row in rows:
        cells: dict[str, str] = {}
        for key, value in row.items():
            if key in ("error", "ratio_error", "fall_error", "since", "why") or key.endswith((" low", " high")):
                continue
            if key == "level":
                cells[key] = f"{value:.3e} ± {row['error']:.0e}"
            elif key == "ratio":
                near = f"{value:.3f} ± {row['ratio_error']:.3f}"
                cells["level / predicted"] = near if value < 100 else f"{value:,.0f}"
            elif key == "fall":
                cells["fall"] = f"{value:+.0%} ± {row['fall_error']:.0%}"
            elif key == "stationary" and "why" in row:
                cells[key] = f"since step {row['since']:,}" if value else f"no: {row['why']}"
            elif key == "stationary":
                continue
            elif key.startswith("slope of "):
                width = row[f"{key.removeprefix('slope of ')} high"] - value
                cells[key] = f"{value:.3f} ± {width:.3f}" if np.isfinite(value) else ""
            else:
                cells[spoken(key)] = spoken(value) if isinstance(value, str) else f"{value:.4g}"
        shown.append(cells)
    return strings(shown)


def _in(row: dict[str, Any]) -> str:
    own = {key: row[key] for key in row if key in VARYING or key.startswith("problem_")}
    return f" ({told(own)})" if own else ""

"""Is the noise floor proportional to 1/n?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from perron import plots
from perron.plots import Line
from perron.studies.conclusions.base import (
    METRIC,
    OPTIONS,
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
    with_error,
)  # fmt: skip
from perron.studies.runner import Outcome
from perron.studies.statistics import Level, level, power_law, series

CLOSE = 0.1  # a slope this near -1 is called linear ...
COARSE = 0.2  # ... unless its interval is wider than this on either side


def speedup(outcome: Outcome) -> Conclusion:
    """Stationary levels against the number of nodes, beside those that theory predicts."""
    found, levels, slopes, floors = Conclusion(), [], [], {}
    for variant, part in variants(outcome.table):
        curves: dict[str, list[Line]] = {}
        dots = []
        for topology, same in part.groupby("topology", sort=False):
            measured = [_measured(run) for _, run in same.groupby("nodes", sort=True)]
            curves[spoken(topology)] = [curve(one.run, f"n = {one.nodes}", floor=one.predicted) for one in measured]
            levels += [_level_row(variant, topology, one) for one in measured]
            slopes.append(_slope_row(variant, topology, measured))
            dots.append(_dots(spoken(topology), measured))
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
    """The level of a run with what theory says of it.

    c is the effective step over the lr that the study names: n pi_A^T pi_B for Push-Pull, 1 for push-only methods and centralized
    SGD, n for pull-only ones; and 1 for all if that lr is the effective step itself.
    """

    run: Table
    nodes: int
    level: Level
    c: float
    predicted: float


def _measured(run: Table) -> _Measured:
    first = run.iloc[0]
    return _Measured(run, int(first.nodes), level(*series(run, METRIC)), _scale(first), float(first.predicted))


def _scale(row: Any) -> float:
    return float(row.effective_step) / (1.0 if row.lr_setting == "default" else float(row.lr_setting))


def _level_row(variant: dict[str, Any], topology: str, one: _Measured) -> dict[str, Any]:
    found, predicted = one.level, one.predicted or np.nan
    return variant | {
        "topology": topology, "nodes": one.nodes, "c": one.c, "level": found.mean, "error": found.error,
        "predicted": one.predicted, "ratio": found.mean / predicted, "ratio_error": found.error / predicted,
        "since": found.since, "fall": found.fall, "fall_error": found.fall_error, "stationary": found.stationary,
        "why": found.why,
    }  # fmt: skip


def _slope_row(variant: dict[str, Any], topology: str, measured: list[_Measured]) -> dict[str, Any]:
    usable = [one for one in measured if np.isfinite(one.level.error) and one.level.mean > 0]
    n, c = [one.nodes for one in usable], np.array([one.c for one in usable])
    mean, error = (np.array([getattr(one.level, name) for one in usable]) for name in ("mean", "error"))
    trials = min((len(one.level.each) for one in usable), default=None)
    plain, scaled = power_law(n, mean, error, trials=trials), power_law(n, mean / c, error / c, trials=trials)
    reasons: dict[str, list[str]] = {}
    for one in measured:
        if not one.level.stationary:
            reasons.setdefault(one.level.why, []).append(str(one.nodes))
    width = scaled.high - scaled.slope
    if reasons:
        verdict = "cannot say: " + "; ".join(f"{why} at n={','.join(counts)}" for why, counts in reasons.items())
    elif not np.isfinite(scaled.slope):
        verdict = "needs two node counts"
    elif abs(scaled.slope + 1) <= CLOSE and width <= COARSE:
        verdict = "linear speedup"
    elif scaled.low <= -1 <= scaled.high:
        verdict = "linear speedup not excluded, but measured too coarsely"
    else:
        verdict = "no linear speedup"
    row = variant | {"topology": topology, "nodes": ", ".join(str(one.nodes) for one in measured)}
    for what, fit in (("level", plain), ("level/c", scaled)):
        row |= {f"slope of {what}": fit.slope, f"{what} low": fit.low, f"{what} high": fit.high}
    return row | {"stationary": not reasons, "reasons": list(reasons), "verdict": verdict}


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
            f"with {with_error(worst['ratio'], worst['ratio_error'], '.3f')} times it."
        )
    if moving := [row for row in slopes if not row["stationary"]]:
        reasons = ", ".join(dict.fromkeys(why for row in moving for why in row["reasons"]))
        apparent = [row["slope of level"] for row in moving if np.isfinite(row["slope of level"])]
        fake = (
            f" Apparent slopes of {min(apparent):.2f} to {max(apparent):.2f} there say nothing about noise."
            if apparent
            else ""
        )
        said.append(f"On {len(moving)} of {len(slopes)} networks no speedup is claimed ({reasons}).{fake}")
    return said


def _dots(label: str, measured: list[_Measured]) -> Line:
    n = np.array([float(one.nodes) for one in measured])
    c = np.array([one.c for one in measured])
    mean, error = (np.array([getattr(one.level, name) for one in measured]) for name in ("mean", "error"))
    return Line(label, n, mean / c, np.nan_to_num(error / c))


def _predicted_line(table: Table) -> Line:
    first = table.drop_duplicates("nodes").sort_values("nodes")
    values = [row.predicted / _scale(row) or np.nan for row in first.itertuples()]
    return Line("predicted", first.nodes.to_numpy(float), np.array(values), guide=True)


def _frame(rows: list[dict[str, Any]]) -> Table:
    """Rows of numbers as cells to print: a value and its error or interval in one."""
    shown = []
    for row in rows:
        cells: dict[str, str] = {}
        for key, value in row.items():
            if key in ("error", "ratio_error", "fall_error", "since", "why", "reasons") or key.endswith(
                (" low", " high")
            ):
                continue
            if key == "level":
                cells[key] = with_error(value, row["error"])
            elif key == "ratio":
                near = with_error(value, row["ratio_error"], ".3f")
                cells["level / predicted"] = near if not value >= 100 else f"{value:,.0f}"
            elif key == "fall":
                error = f" ± {row['fall_error']:.0%}" if np.isfinite(row["fall_error"]) else ""
                cells["fall"] = f"{value:+.0%}{error}" if np.isfinite(value) else ""
            elif key == "stationary" and "why" in row:
                cells[key] = f"since step {row['since']:,}" if value else f"no: {row['why']}"
            elif key == "stationary":
                continue
            elif key.startswith("slope of "):
                cells[key] = with_error(value, row[f"{key.removeprefix('slope of ')} high"] - value, ".3f")
            else:
                cells[spoken(key)] = spoken(value) if isinstance(value, str) else f"{value:.4g}"
        shown.append(cells)
    return strings(shown)


def _in(row: dict[str, Any]) -> str:
    own = {key: row[key] for key in row if key in VARYING or key.startswith(OPTIONS)}
    return f" ({told(own)})" if own else ""

"""Is the noise floor proportional to 1/n?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from perron._typing import FloatArray
from perron.plots import Chart, Line, Panel
from perron.studies.conclusions import text
from perron.studies.conclusions.base import METRIC, SQUARED_NORM, Conclusion, Row, Table, curve, variants
from perron.studies.statistics import BAND, COARSE, Fit, level, power_law, series, slope_verdict

if TYPE_CHECKING:
    from perron.studies.results import Outcome

ABOUT = (
    "Dots: measured level divided by c, with two standard errors (none for a single trial). Line, where there is a fit: the "
    "fitted power law level/c ~ n^slope, shaded between the ends of the slope's 95 % interval. Slope -1 is linear speedup: n "
    "nodes settle n times lower. Dashed: the floor that theory predicts from the network and the noise; it is not fitted."
)


def speedup(outcome: Outcome) -> Conclusion:
    """Stationary levels against the number of nodes, beside those that theory predicts."""
    found, levels, slopes, panels = Conclusion(), [], [], []
    for variant, part in variants(outcome.table):
        curves = []
        for topology, same in part.groupby("topology", sort=False):
            runs = [run for _, run in same.groupby("nodes", sort=True)]
            rows = [variant | {"topology": topology} | _level_row(run) for run in runs]
            trials = int(same.trials.iloc[0])
            fits = {"level": _fit(rows, trials), "level/c": _fit(rows, trials, scaled=True)}
            lines = [curve(run, f"n = {row['nodes']}", row["predicted"]) for run, row in zip(runs, rows, strict=True)]
            curves.append(Panel(text.readable(topology), lines))
            panels.append(_panel(text.panel_title(variant, text.readable(topology)), rows, fits["level/c"]))
            slopes.append(variant | {"topology": topology} | _slope_row(rows, fits))
            levels += rows
        found.figures[text.file_name("curves", variant)] = Chart(
            panels=curves, x="step", y=SQUARED_NORM, legend="nodes (dashed: predicted floor)"
        )
    found.figures["levels"] = Chart(
        panels=panels, title="Speedup: the level at which the curves settle, over the number of nodes", about=ABOUT,
        x="nodes n", y="level / c", log_x=True, marks="dots",
    )  # fmt: skip
    found.tables = {
        "Slopes": text.table([_slope_cells(row) for row in slopes]),
        "Levels": text.table([_level_cells(row) for row in levels]),
    }
    found.summary = {"slopes": slopes, "levels": levels}
    found.sentences = _sentences(slopes, levels)
    return found


def _level_row(run: Table) -> Row:
    """Return the level of a run with the one that theory predicts.

    c is the effective step over the lr that the study names: n pi_A^T pi_B for Push-Pull, 1 for push-only methods and centralized
    SGD, n for pull-only ones; and 1 for all if that lr is the effective step itself.
    """
    first, found = run.iloc[0], level(*series(run, METRIC))
    c = float(first.effective_step) / (1.0 if first.lr_setting == "default" else float(first.lr_setting))
    predicted = float(first.predicted)
    return {
        "nodes": int(first.nodes), "c": c, "level": found.mean, "error": found.error, "predicted": predicted,
        "ratio": found.mean / (predicted or np.nan), "ratio_error": found.error / (predicted or np.nan), "since": found.since,
        "fall": found.fall, "fall_error": found.fall_error, "stationary": found.stationary, "why": found.why,
    }  # fmt: skip


def _array(rows: list[Row], name: str) -> FloatArray:
    return np.array([row[name] for row in rows], float)


def _fit(rows: list[Row], trials: int, *, scaled: bool = False) -> Fit:
    usable = [row for row in rows if np.isfinite(row["error"]) and row["level"] > 0]
    c = _array(usable, "c") if scaled else 1.0
    return power_law(_array(usable, "nodes"), _array(usable, "level") / c, _array(usable, "error") / c, trials=trials)


def _slope_row(rows: list[Row], fits: dict[str, Fit]) -> Row:
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if not row["stationary"]:
            reasons.setdefault(row["why"], []).append(str(row["nodes"]))
    slopes: Row = {"nodes": ", ".join(str(row["nodes"]) for row in rows)}
    for name, fit in fits.items():
        slopes |= {f"slope of {name}": fit.slope, f"{name} low": fit.low, f"{name} high": fit.high}
    return slopes | {"stationary": not reasons, "reasons": list(reasons), "verdict": _verdict(fits["level/c"], reasons)}


def _verdict(fit: Fit, reasons: dict[str, list[str]]) -> str:
    if reasons:
        return "cannot say: " + "; ".join(f"{why} at n={','.join(counts)}" for why, counts in reasons.items())
    return slope_verdict(fit)


def _panel(title: str, rows: list[Row], fit: Fit) -> Panel:
    """Return the levels with their fit and, where noise is known, the predicted floor."""
    n, c = _array(rows, "nodes"), _array(rows, "c")
    y, spread, floor = _array(rows, "level") / c, 2 * _array(rows, "error") / c, _array(rows, "predicted") / c
    fitted, note = None, "no slope"
    if np.isfinite(fit.slope):
        ends = n[np.isfinite(spread) & (y > 0)][[0, -1]]
        fitted = Line("", ends, fit.at(ends), fit.at(ends, fit.low), fit.at(ends, fit.high))
        note = f"slope {fit.slope:.2f} [{fit.low:.2f}, {fit.high:.2f}]"
    measured = Line(text.readable(rows[0]["topology"]), n, y, y - spread, y + spread, fit=fitted)
    return Panel(title, [measured, Line("predicted floor", n[floor > 0], floor[floor > 0], guide=True)], note)


def _sentences(slopes: list[Row], levels: list[Row]) -> list[str]:
    sentences = []
    if linear := [row["slope of level/c"] for row in slopes if row["verdict"] == "linear speedup"]:
        sentences.append(
            f"On {len(linear)} of {len(slopes)} networks the noise floor falls as 1/n: with the same step, n nodes settle n "
            f"times lower (slopes of log(level/c) against log(n): {min(linear):.3f} to {max(linear):.3f}, each with its interval "
            f"within {BAND:g} of -1)."
        )
    if coarse := sum(row["verdict"] == COARSE for row in slopes):
        sentences.append(
            f"On {coarse} of {len(slopes)} networks the interval of the slope reaches out of {-1 - BAND:g} to {-1 + BAND:g}: "
            "measured too coarsely to say."
        )
    if settled := [row for row in levels if row["stationary"] and np.isfinite(row["ratio"])]:
        worst = max(settled, key=lambda row: abs(row["ratio"] - 1))
        typical = float(np.median([abs(row["ratio"] - 1) for row in settled]))
        variant = text.describe(text.variant_of(worst))
        where = f"{text.readable(worst['topology'])} at n={worst['nodes']}" + (f" ({variant})" if variant else "")
        sentences.append(
            f"Levels lie within {typical:.1%} (median) of the predicted c lr tr(H Sigma) / (2n); farthest from it is {where} "
            f"with {text.with_error(worst['ratio'], worst['ratio_error'], '.3f')} times it."
        )
    if moving := [row for row in slopes if not row["stationary"]]:
        reasons = ", ".join(dict.fromkeys(why for row in moving for why in row["reasons"]))
        apparent = [row["slope of level"] for row in moving if np.isfinite(row["slope of level"])]
        sentence = f"On {len(moving)} of {len(slopes)} networks no speedup is claimed ({reasons})."
        if apparent:
            sentence += f" Apparent slopes of {min(apparent):.2f} to {max(apparent):.2f} there say nothing about noise."
        sentences.append(sentence)
    return sentences


def _slope_cells(row: Row) -> dict[str, str]:
    cells = {
        f"slope of {name}": text.with_error(
            row[f"slope of {name}"], row[f"{name} high"] - row[f"slope of {name}"], ".3f"
        )
        for name in ("level", "level/c")
    }
    return text.identity(row) | cells | {"verdict": row["verdict"]}


def _level_cells(row: Row) -> dict[str, str]:
    ratio, fall, error = row["ratio"], row["fall"], row["fall_error"]
    return text.identity(row) | {
        "c": f"{row['c']:.4g}",
        "level": text.with_error(row["level"], row["error"]),
        "predicted": text.with_error(row["predicted"], np.nan, ".4g"),
        "level / predicted": f"{ratio:,.0f}" if ratio >= 100 else text.with_error(ratio, row["ratio_error"], ".3f"),
        "fall": (f"{fall:+.0%}" if np.isfinite(fall) else "") + (f" ± {error:.0%}" if np.isfinite(error) else ""),
        "stationary": f"since step {row['since']:,}" if row["stationary"] else f"no: {row['why']}",
    }

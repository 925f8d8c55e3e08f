"""Charts of what was concluded, from a conclusion's summary: panels of lines with error bars, and heat maps.

A chart is ``{title, about, x, y, log_x, log_y, panels: [{title, note, lines: [line]}]}``; a line has a label, ``x``, ``y``; maybe
``low`` and ``high``, the ends of its error bars; a ``guide`` is a reference without points. The page draws them all alike.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from perron.studies.conclusions.base import OPTIONS, VARYING, Conclusion, panel_title, spoken, told
from perron.studies.conclusions.comparison import FAR
from perron.studies.runner import Outcome

Rows = list[dict[str, Any]]


def charts(outcome: Outcome, conclusion: Conclusion) -> list[dict[str, Any]]:
    """The charts of a study's conclusion."""
    make = {
        "speedup": _levels,
        "time_to_accuracy": _times,
        "residual": _blocks,
        "comparison": _ratios,
        "training": _ends,
    }.get(outcome.study.conclusion)
    return [chart for chart in make(conclusion.summary) if chart["panels"]] if make else []


def heat_maps(conclusion: Conclusion) -> list[dict[str, Any]]:
    """How many samples of each class the nodes have."""
    return [{"title": title, "counts": counts} for title, counts in conclusion.summary.get("partition", {}).items()]


def _levels(summary: dict[str, Any]) -> Iterable[dict[str, Any]]:
    """Stationary levels over n with the fitted power law, its interval and what theory predicts."""
    panels = []
    slopes = {(told(_variant(row)), row["topology"]): row for row in summary["slopes"]}
    for variant, rows in _grouped(summary["levels"], lambda row: told(_variant(row))).items():
        for topology, own in _grouped(rows, lambda row: row["topology"]).items():
            n, level, error = (np.array([row[key] for row in own], float) for key in ("nodes", "level", "error"))
            c = np.array([row["c"] for row in own], float)
            y, spread = level / c, 2 * error / c
            fit = slopes[variant, topology]
            slope = f"slope {fit['slope of level/c']:.2f} [{fit['level/c low']:.2f}, {fit['level/c high']:.2f}]"
            line = {"label": spoken(topology), "x": n.tolist(), "y": y.tolist()}
            line |= {"low": (y - spread).tolist(), "high": (y + spread).tolist()} | _wedge(n, y, spread / 2, fit)
            known = [row for row in own if row["predicted"] > 0]
            floor = {"x": [row["nodes"] for row in known], "y": [row["predicted"] / row["c"] for row in known]}
            panels.append(
                {
                    "title": ", ".join(part for part in (spoken(topology), variant) if part),
                    "note": slope if np.isfinite(fit["slope of level/c"]) else "no slope",
                    "lines": [line, {"label": "predicted floor", "guide": True} | floor],
                }
            )
    yield {
        "title": "Speedup: the level at which the curves settle, over the number of nodes",
        "about": "Dots: measured level divided by c, with two standard errors (none for a single trial). Line, where there is a "
        "fit: the fitted power law level/c ~ n^slope, shaded between the ends of the slope's 95 % interval. Slope -1 is linear "
        "speedup: n nodes settle n times lower. Dashed: the floor that theory predicts from the network and the noise; it is not "
        "fitted.",
        "x": "nodes n", "y": "level / c", "log_x": True, "log_y": True, "dots": True, "panels": panels,
    }  # fmt: skip


def _wedge(n: Any, y: Any, error: Any, fit: dict[str, Any]) -> dict[str, Any]:
    """The fitted line through its centre, and the two with the ends of the slope's interval."""
    usable = np.isfinite(error) & (y > 0)
    if not np.isfinite(fit["slope of level/c"]) or usable.sum() < 2:
        return {}
    u, v = np.log(n[usable]), np.log(y[usable])
    relative = error[usable] / y[usable]
    weight = np.maximum(relative, relative[relative > 0].min(initial=1.0)) ** -2.0  # as the fit's own
    center, height = np.average(u, weights=weight), np.average(v, weights=weight)
    ends = np.array([u.min(), u.max()])
    return {
        "fit": {
            "x": np.exp(ends).tolist(),
            "y": np.exp(height + fit["slope of level/c"] * (ends - center)).tolist(),
            "low": np.exp(height + fit["level/c low"] * (ends - center)).tolist(),
            "high": np.exp(height + fit["level/c high"] * (ends - center)).tolist(),
        }
    }


def _times(summary: dict[str, Any]) -> Iterable[dict[str, Any]]:
    """How many times fewer steps n nodes need."""
    panels = []
    by_panel = _grouped(
        summary["times"],
        lambda row: panel_title(
            _variant(row, but="algorithm"), spoken(row["topology"]), f"accuracy {row['accuracy']:g}"
        ),
    )
    for title, rows in by_panel.items():
        lines = []
        for algorithm, own in _grouped(rows, lambda row: row["algorithm"]).items():
            known = [row for row in own if np.isfinite(row["speedup"])]
            lines.append({"label": algorithm, "x": [row["nodes"] for row in known]})
            lines[-1] |= {
                end: [row[key] for row in known] for end, key in (("y", "speedup"), ("low", "low"), ("high", "high"))
            }
        n = sorted({row["nodes"] for row in rows})
        panels.append({"title": title, "lines": [*lines, {"label": "ideal: n", "x": n, "y": n, "guide": True}]})
    yield {
        "title": "Speedup: how many times fewer steps n nodes need to an accuracy",
        "about": "T(1) / T(n), each with the best learning rate of the grid; bars are 95 % intervals. Dashed: linear speedup. "
        "A point is missing where the accuracy was not reached.",
        "x": "nodes n", "y": "speedup T(1) / T(n)", "log_x": True, "log_y": True, "nested": True, "panels": panels,
    }  # fmt: skip


def _blocks(summary: dict[str, Any]) -> Iterable[dict[str, Any]]:
    """The residual summed over blocks."""
    panels = []
    for title, rows in _grouped(
        summary["residuals"], lambda row: ", ".join(part for part in (spoken(row["topology"]), row["variant"]) if part)
    ).items():
        lines = []
        for row in rows:
            m, values = [int(one) for one in row["blocks"]], list(row["blocks"].values())
            lines.append({"label": f"n = {row['nodes']}", "x": m, "y": [value / values[0] for value in values]})
        m = [int(one) for one in rows[0]["blocks"]]
        guide = {"label": "1 / m", "x": m, "y": [m[0] / one for one in m], "guide": True}
        panels.append({"title": title, "lines": [*lines, guide]})
    yield {
        "title": "Push-Pull's residuals cancel: their sum over m steps, squared and divided by m",
        "about": "Relative to the shortest blocks. Independent residuals would stay at 1; dashed: falling as 1/m.",
        "x": "steps in a block, m", "y": "relative to the first", "log_x": True, "log_y": True, "panels": panels,
    }  # fmt: skip


def _ratios(summary: dict[str, Any]) -> Iterable[dict[str, Any]]:
    """Levels beside the predicted ones; what is far off has not converged and is named, not drawn."""
    panels, apart, unknown = [], [], False
    names = list(dict.fromkeys(spoken(row["topology"]) for row in summary["levels"]))
    algorithms = list(dict.fromkeys(row["algorithm"] for row in summary["levels"]))
    for title, rows in _grouped(
        summary["levels"], lambda row: ", ".join(part for part in (f"n = {row['nodes']}", row["variant"]) if part)
    ).items():
        lines: list[dict[str, Any]] = [{"label": name, "x": [], "y": [], "low": [], "high": []} for name in algorithms]
        for row in rows:
            ratio, error = row["of_predicted"], 2 * row["error"] / row["predicted"] if row["predicted"] else np.nan
            if not row["predicted"] > 0:  # without noise there is no floor to compare with
                unknown = True
                continue
            if not 0 < ratio < FAR:
                apart.append(f"{row['algorithm']} on {spoken(row['topology'])} ({ratio:.2g} times)")
                continue
            place = algorithms.index(row["algorithm"])
            beside = 0.5 * (place / max(len(algorithms) - 1, 1) - 0.5)  # so that equal levels stand side by side
            error = error if np.isfinite(error) else 0.0
            values = {
                "x": names.index(spoken(row["topology"])) + beside,
                "y": ratio,
                "low": ratio - error,
                "high": ratio + error,
            }
            for key, value in values.items():
                lines[place][key].append(value)
        if any(line["x"] for line in lines):
            panels.append({"title": title, "lines": lines})
    far = f" Not drawn, as they did not get there: {'; '.join(apart)}." if apart else ""
    far += " Runs for which no floor is predicted, as they have no noise, are left out." if unknown else ""
    yield {
        "title": "Levels at the end, relative to the predicted floor of centralized SGD",
        "about": f"1 is what theory predicts for centralized SGD with the same effective step. Bars: two standard errors.{far}",
        "x": "topology", "y": "level / predicted", "log_x": False, "log_y": False, "dots": True, "names": names, "panels": panels,
    }  # fmt: skip


def _ends(summary: dict[str, Any]) -> Iterable[dict[str, Any]]:
    """What training ends with, over the number of nodes."""
    rows = summary["ends"]
    if len({row["nodes"] for row in rows}) < 2:
        return
    several = len({row["algorithm"] for row in rows}) > 1
    for metric, title, log in (("loss_mean", "Training loss", True), ("test_accuracy", "Test accuracy", False)):
        lines = []
        for label, own in _grouped(
            rows,
            lambda row: ", ".join(
                part for part in (spoken(row["topology"]), row["algorithm"] if several else "", row["variant"]) if part
            ),
        ).items():
            known = [row for row in own if np.isfinite(row.get(metric, np.nan))]
            y = np.array([row[metric] for row in known], float)
            error = np.array([row[f"{metric}_error"] for row in known], float)
            line = {"label": label, "x": [row["nodes"] for row in known], "y": y.tolist()}
            if np.isfinite(error).all():
                line |= {"low": (y - 2 * error).tolist(), "high": (y + 2 * error).tolist()}
            lines.append(line)
        if any(line["y"] for line in lines):
            yield {
                "title": f"{title} of the averaged model at the end, over the number of nodes",
                "about": "Bars are two standard errors over trials, where there are several.",
                "x": "nodes n", "y": title.lower(), "log_x": True, "log_y": log, "share": not log,
                "panels": [{"title": "", "lines": lines}],
            }  # fmt: skip


def _variant(row: dict[str, Any], but: str = "") -> dict[str, Any]:
    """What sets a row's variant apart."""
    return {key: row[key] for key in row if key != but and (key in VARYING or key.startswith(OPTIONS))}


def _grouped(rows: Rows, key: Any) -> dict[str, Rows]:
    found: dict[str, Rows] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return found

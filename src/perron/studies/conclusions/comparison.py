"""Algorithms side by side."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from perron import plots
from perron.plots import Line
from perron.studies.conclusions.base import (
    METRIC,
    SQUARED_NORM,
    Conclusion,
    Table,
    contenders,
    curve,
    nested,
    panel_title,
    spoken,
    strings,
    told,
    variants,
    with_error,
)  # fmt: skip
from perron.studies.runner import Outcome
from perron.studies.statistics import Level, level, series

FAR = 10.0  # times the level of centralized SGD: what settles there has not converged


def comparison(outcome: Outcome) -> Conclusion:
    """Algorithms on the same panels, and their levels beside centralized SGD's."""
    found, rows = Conclusion(), []
    content: dict[str, list[Line]] = {}
    for variant, part in variants(outcome.table, but=("algorithm", "weights")):
        for (topology, n), same in part.groupby(["topology", "nodes"], sort=False):
            lines = content.setdefault(panel_title(variant, spoken(topology), f"n = {n}"), [])
            baseline = _baseline(same)
            for label, algorithm, run in contenders(same):
                floor = float(run.predicted.iloc[0]) if algorithm == "centralized" else None
                lines.append(replace(curve(run, label, floor=floor), error=None))
                rows.append(
                    {"variant": told(variant), "topology": topology, "nodes": int(n), "algorithm": label}
                    | _measured(run, baseline)
                    | {"baseline": algorithm == "centralized"}
                )
    drawn = {title: nested(lines) for title, lines in content.items()}
    dashed = "dashed: predicted floor of centralized SGD"
    found.figures["families"] = plots.panels(drawn, x="step", y=SQUARED_NORM, legend=dashed)
    equal = " at equal effective step" if outcome.study.equal_effective_step else ""
    found.summary["levels"] = rows
    found.tables[f"Levels{equal}"] = strings([_cells(row) for row in rows])
    found.sentences = _sentences(rows, equal)
    return found


def _baseline(table: Table) -> Level | None:
    """The level of centralized SGD, which does not depend on weights."""
    runs = table[table.algorithm == "centralized"]
    if runs.empty:
        return None
    found = level(*series(runs[runs.run == runs.run.iloc[0]], METRIC))
    return found if np.isfinite(found.mean) and found.mean > 0 else None


def _measured(run: Table, baseline: Level | None) -> dict[str, Any]:
    one, predicted = level(*series(run, METRIC)), float(run.predicted.iloc[0])
    ratio = one.mean / baseline.mean if baseline else np.nan
    error = np.nan
    if baseline and len(one.each) == len(baseline.each) > 2:
        # All algorithms see the same minibatches, so that their levels go up and down together.
        apart = one.each / one.mean - baseline.each / baseline.mean
        error = ratio * float(apart.std(ddof=1)) / np.sqrt(len(apart))
    return {
        "lr": float(run.lr.iloc[0]), "level": one.mean, "error": one.error, "stationary": one.stationary, "why": one.why,
        "predicted": predicted, "of_predicted": one.mean / predicted if predicted else np.nan, "ratio": ratio,
        "ratio_error": error,
    }  # fmt: skip


def _cells(row: dict[str, Any]) -> dict[str, str]:
    def times(value: float, error: float = np.nan) -> str:
        return f"{value:,.0f}" if value >= FAR else with_error(value, error, ".4f")

    return ({"variant": row["variant"]} if row["variant"] else {}) | {
        "topology": spoken(row["topology"]),
        "nodes": str(row["nodes"]),
        "algorithm": row["algorithm"],
        "lr": f"{row['lr']:.3g}",
        "level": with_error(row["level"], row["error"]),
        "/ predicted": times(row["of_predicted"]),
        "/ centralized": "" if row["baseline"] else times(row["ratio"], row["ratio_error"]),
        "stationary": "yes" if row["stationary"] else f"no: {row['why']}",
    }


def _sentences(rows: list[dict[str, Any]], equal: str) -> list[str]:
    if not any(np.isfinite(row["ratio"]) for row in rows):
        return ["There is no run of centralized SGD to compare with; add centralized to the algorithms."]
    said = []
    for label in dict.fromkeys(row["algorithm"] for row in rows if not row["baseline"]):
        own = [row for row in rows if row["algorithm"] == label]
        settled = [row["ratio"] for row in own if row["stationary"] and row["ratio"] < FAR]
        failed = [_where(row) for row in own if row["why"] == "diverged" or row["ratio"] >= FAR]
        open_ = [
            f"{_where(row)} ({row['why']})"
            for row in own
            if row["why"] not in ("", "diverged") and not row["ratio"] >= FAR
        ]
        parts = [f"{min(settled):.3f} to {max(settled):.3f}"] if settled else []
        parts += [f"fails with this step on {', '.join(failed)}"] if failed else []
        parts += [f"cannot be said on {', '.join(open_)}"] if open_ else []
        said.append(f"{label} {'; '.join(parts)}")
    return [f"Levels relative to centralized SGD's{equal}: {'. '.join(said)}."]


def _where(row: dict[str, Any]) -> str:
    return f"{spoken(row['topology'])}({row['nodes']})"

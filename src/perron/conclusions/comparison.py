"""Algorithms side by side."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from perron import plots
from perron.conclusions.conclusion import (
    METRIC,
    SQUARED_NORM,
    Conclusion,
    curve,
    spoken,
    strings,
    titled,
)
from perron.experiment import Outcome
from perron.plots import Line
from perron.speedup import level, series

FAR = 10.0  # times the level of centralized SGD: what settles there has not converged


def comparison(outcome: Outcome) -> Conclusion:
    """Algorithms on the same panels, and their levels beside centralized SGD's."""
    found, rows = Conclusion(), []
    content: dict[str, list[Line]] = {}
    for (topology, n), part in outcome.table.groupby(["topology", "nodes"], sort=False):
        baseline = (
            level(*series(part[part.algorithm == "centralized"], METRIC))
            if (part.algorithm == "centralized").any()
            else None
        )
        panel = f"{spoken(topology)}, n = {n}"
        for algorithm, run in part.groupby("algorithm", sort=False):
            one = level(*series(run, METRIC))
            floor = float(run.predicted.iloc[0]) if algorithm == "centralized" else None
            lines = content.setdefault(panel, [])
            width = max(1.0, 6.0 - 0.8 * len(lines))  # curves that coincide lie within one another
            lines.append(replace(curve(run, titled(algorithm), floor=floor), error=None, width=width))
            row = {"topology": topology, "nodes": int(n), "algorithm": algorithm, "lr": float(run.lr.iloc[0])}
            row |= {"level": one.mean, "error": one.error, "stationary": one.stationary, "why": one.why}
            row["predicted"] = float(run.predicted.iloc[0])
            row["ratio"] = one.mean / baseline.mean if baseline else np.nan
            row["ratio_error"] = (
                row["ratio"] * np.hypot(one.error / one.mean, baseline.error / baseline.mean) if baseline else np.nan
            )
            rows.append(row)
    found.figures["families"] = plots.panels(
        content, x="step", y=SQUARED_NORM, legend="dashed: predicted floor of centralized SGD"
    )
    found.summary["levels"] = rows
    found.tables["Levels at equal effective step"] = strings(
        [
            {
                "topology": spoken(row["topology"]),
                "nodes": str(row["nodes"]),
                "algorithm": titled(row["algorithm"]),
                "lr": f"{row['lr']:.3g}",
                "level": f"{row['level']:.3e} ± {row['error']:.0e}",
                "/ predicted": _ratio(row["level"] / row["predicted"]),
                "/ centralized": _ratio(row["ratio"], row["ratio_error"]),
                "stationary": "yes" if row["stationary"] else f"no: {row['why']}",
            }
            for row in rows
        ]
    )
    found.sentences = _comparison_sentences(rows)
    return found


def _comparison_sentences(rows: list[dict[str, Any]]) -> list[str]:
    said = []
    for algorithm in dict.fromkeys(row["algorithm"] for row in rows if row["algorithm"] != "centralized"):
        own = [row for row in rows if row["algorithm"] == algorithm]
        near = [row["ratio"] for row in own if row["stationary"] and row["ratio"] < FAR]
        off = [spoken(row["topology"]) for row in own if not row["stationary"] or not row["ratio"] < FAR]
        text = f"{min(near):.2f} to {max(near):.2f} times" if near else "nowhere near"
        said.append(
            f"{titled(algorithm)} {text}" + (f" (but it fails with this step on: {', '.join(off)})" if off else "")
        )
    return [f"At equal effective step, levels relative to centralized SGD's: {'; '.join(said)}."]


def _ratio(value: float, error: float | None = None) -> str:
    if not np.isfinite(value):
        return ""
    if value >= FAR:
        return f"{value:,.0f}"
    return f"{value:.3f}" + (f" ± {error:.3f}" if error is not None else "")

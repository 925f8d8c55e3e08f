"""How many steps to an accuracy?"""

from __future__ import annotations

from typing import Any

import numpy as np

from perron import plots
from perron.conclusions.conclusion import (
    METRIC,
    Conclusion,
    Table,
    spoken,
    strings,
    titled,
)
from perron.experiment import Outcome
from perron.plots import Line
from perron.speedup import best_time, series


def time_to_accuracy(outcome: Outcome) -> Conclusion:
    """Steps until the mean over trials stays below an accuracy, with the best step of the grid: T(1) / T(n)."""
    found, rows = Conclusion(), []
    content: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for (topology, algorithm), part in outcome.table.groupby(["topology", "algorithm"], sort=False):
        grids = {
            int(n): {float(step): series(run, METRIC) for step, run in same.groupby("effective_step")}
            for n, same in part.groupby("nodes")
        }
        for accuracy in sorted(outcome.study.accuracies, reverse=True):
            times = {n: best_time(grid, accuracy) for n, grid in grids.items()}
            for n, time in times.items():
                ratio, low, high = times[1].speedup(time) if 1 in times else (np.nan,) * 3
                row = {
                    "topology": topology, "algorithm": algorithm, "accuracy": accuracy, "nodes": n, "steps": time.steps,
                    "step": time.lr, "at_edge": time.at_edge, "speedup": ratio, "low": low, "high": high,
                }  # fmt: skip
                rows.append(row)
                panel = f"{spoken(topology)}, accuracy {accuracy:g}"
                content.setdefault(panel, {}).setdefault(titled(algorithm), []).append(row)
    found.tables["Time to accuracy"] = _times_table(rows)
    found.tables["Speedup at the largest n"] = _speedups_table(rows)
    found.summary["times"] = rows
    found.figures["speedup"] = _speedup_figure(content, len(outcome.study.accuracies))
    found.sentences = _times_sentences(rows)
    return found


def _speedup_figure(content: dict[str, dict[str, list[dict[str, Any]]]], columns: int) -> Any:
    shown: dict[str, list[Line]] = {}
    for panel, algorithms in content.items():
        lines = []
        for label, rows in algorithms.items():
            n, ratio, low, high = (
                np.array([row[key] for row in rows], float) for key in ("nodes", "speedup", "low", "high")
            )
            lines.append(Line(label, n, ratio, (high - low) / 4))
        ideal = np.unique(np.concatenate([line.x for line in lines]))
        shown[panel] = [*lines, Line("ideal: n", ideal, ideal, guide=True)]
    return plots.panels(shown, x="nodes", y="speedup T(1) / T(n)", log_x=True, points=True, columns=columns)


def _times_table(rows: list[dict[str, Any]]) -> Table:
    shown = []
    for row in rows:
        reached = np.isfinite(row["steps"])
        shown.append(
            {
                "topology": spoken(row["topology"]),
                "algorithm": titled(row["algorithm"]),
                "accuracy": f"{row['accuracy']:g}",
                "nodes": str(row["nodes"]),
                "steps": f"{row['steps']:,.0f}" if reached else "not reached",
                "effective step": (f"{row['step']:.3g}" + (" (edge of the grid)" if row["at_edge"] else ""))
                if reached
                else "",
                "speedup": f"{row['speedup']:.2f} [{row['low']:.2f}, {row['high']:.2f}]"
                if np.isfinite(row["speedup"])
                else "",
                "ideal": str(row["nodes"]),
            }
        )
    return strings(shown)


def _speedups_table(rows: list[dict[str, Any]]) -> Table:
    most = max(row["nodes"] for row in rows)
    shown: dict[tuple[str, str], dict[str, str]] = {}
    for row in rows:
        if row["nodes"] == most:
            key = (spoken(row["topology"]), titled(row["algorithm"]))
            cell = (
                f"{row['speedup']:.1f} [{row['low']:.1f}, {row['high']:.1f}]"
                if np.isfinite(row["speedup"])
                else "not reached"
            )
            shown.setdefault(key, {"topology": key[0], f"T(1) / T({most})": key[1]})[
                f"accuracy {row['accuracy']:g}"
            ] = cell
    return strings(list(shown.values()))


def _times_sentences(rows: list[dict[str, Any]]) -> list[str]:
    most = max(row["nodes"] for row in rows)
    finest = min(
        (row["accuracy"] for row in rows if row["nodes"] == most and np.isfinite(row["speedup"])), default=None
    )
    if finest is None:
        return [
            "No accuracy was reached with one node and with the most; choose larger accuracies or a longer horizon."
        ]
    said = [
        f"{titled(row['algorithm'])} {row['speedup']:.1f}"
        for row in rows
        if row["nodes"] == most and row["accuracy"] == finest and np.isfinite(row["speedup"])
    ]
    return [
        f"To the accuracy {finest:g}, {most} nodes need so many times fewer steps than one: {', '.join(said)} (ideal: {most}). "
        "The step is the best of the grid for each algorithm and node count; intervals come from drawing the trials anew."
    ]

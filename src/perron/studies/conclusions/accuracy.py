"""How many steps to an accuracy?"""

from __future__ import annotations

from typing import Any

import numpy as np

from perron import plots
from perron.plots import Line
from perron.studies.conclusions.base import (
    METRIC,
    OPTIONS,
    Conclusion,
    Table,
    contenders,
    panel_title,
    spoken,
    strings,
    variants,
)
from perron.studies.runner import Outcome
from perron.studies.statistics import best_time, series


def time_to_accuracy(outcome: Outcome) -> Conclusion:
    """Steps until the mean over trials stays below an accuracy, with the best step of the grid: T(1) / T(n)."""
    found, rows = Conclusion(), []
    content: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for variant, part in variants(outcome.table, but=("algorithm", "weights", "lr_setting")):
        for topology, same in part.groupby("topology", sort=False):
            for label, _, own in contenders(same):
                for row in _rows(own, outcome.study.accuracies):
                    row = variant | {"topology": topology, "algorithm": label} | row  # noqa: PLW2901
                    rows.append(row)
                    panel = panel_title(variant, spoken(topology), f"accuracy {row['accuracy']:g}")
                    content.setdefault(panel, {}).setdefault(label, []).append(row)
    found.tables["Time to accuracy"] = _times_table(rows)
    found.tables["Speedup at the largest n"] = _speedups_table(rows)
    found.summary["times"] = rows
    found.figures["speedup"] = _speedup_figure(content, len(outcome.study.accuracies))
    found.sentences = _times_sentences(rows)
    return found


def _rows(table: Table, accuracies: list[float]) -> list[dict[str, Any]]:
    """The times of one algorithm on one topology."""
    grids = {
        int(n): {float(run.effective_step.iloc[0]): series(run, METRIC) for _, run in same.groupby("run", sort=False)}
        for n, same in table.groupby("nodes")
    }
    rows = []
    for accuracy in sorted(accuracies, reverse=True):
        times = {n: best_time(grid, accuracy) for n, grid in grids.items()}
        for n, time in times.items():
            ratio, low, high = times[1].speedup(time) if 1 in times else (np.nan,) * 3
            rows.append(
                {
                    "accuracy": accuracy, "nodes": n, "largest": n == max(times), "steps": time.steps, "step": time.lr,
                    "at_edge": time.at_edge, "speedup": ratio, "low": low, "high": high,
                }
            )  # fmt: skip
    return rows


def _speedup_figure(content: dict[str, dict[str, list[dict[str, Any]]]], columns: int) -> Any:
    shown: dict[str, list[Line]] = {}
    for panel, algorithms in content.items():
        lines = []
        for label, rows in algorithms.items():
            n, ratio, low, high = (
                np.array([row[key] for row in rows], float) for key in ("nodes", "speedup", "low", "high")
            )
            known = np.isfinite(high - low)
            lines.append(Line(label, n, ratio, np.where(known, np.where(known, high - low, 0) / 4, 0)))
        ideal = np.unique(np.concatenate([line.x for line in lines]))
        shown[panel] = [*lines, Line("ideal: n", ideal, ideal, guide=True)]
    return plots.panels(shown, x="nodes", y="speedup T(1) / T(n)", log_x=True, points=True, columns=columns)


def _ratio(row: dict[str, Any], digits: str) -> str:
    """A speedup with its interval."""
    if not np.isfinite(row["speedup"]):
        return ""
    high = f"{row['high']:{digits}}" if np.isfinite(row["high"]) else "unknown"
    return f"{row['speedup']:{digits}} [{row['low']:{digits}}, {high}]"


def _own(row: dict[str, Any]) -> dict[str, str]:
    """What sets a row's variant apart, as cells."""
    return {
        spoken(key): spoken(str(row[key])) for key in row if key in ("seed", "network_seed") or key.startswith(OPTIONS)
    }


def _times_table(rows: list[dict[str, Any]]) -> Table:
    shown = []
    for row in rows:
        reached = np.isfinite(row["steps"])
        edge = " (edge of the grid)" if row["at_edge"] else ""
        shown.append(
            _own(row)
            | {
                "topology": spoken(row["topology"]),
                "algorithm": row["algorithm"],
                "accuracy": f"{row['accuracy']:g}",
                "nodes": str(row["nodes"]),
                "steps": f"{row['steps']:,.0f}" if reached else "not reached",
                "effective step": f"{row['step']:.3g}{edge}" if reached else "",
                "speedup": _ratio(row, ".2f"),
                "ideal": str(row["nodes"]),
            }
        )
    return strings(shown)


def _speedups_table(rows: list[dict[str, Any]]) -> Table:
    shown: dict[str, dict[str, str]] = {}
    for row in rows:
        if row["largest"]:
            first = _own(row) | {
                "topology": spoken(row["topology"]),
                "nodes": str(row["nodes"]),
                "T(1) / T(n)": row["algorithm"],
            }
            cell = _ratio(row, ".1f") or ("not reached" if not np.isfinite(row["steps"]) else "not reached by one node")
            shown.setdefault(str(first), first)[f"accuracy {row['accuracy']:g}"] = cell
    return strings(list(shown.values()))


def _times_sentences(rows: list[dict[str, Any]]) -> list[str]:
    said = []
    for topology in dict.fromkeys(row["topology"] for row in rows):
        measured = [
            row for row in rows if row["topology"] == topology and row["largest"] and np.isfinite(row["speedup"])
        ]
        if not measured:
            said.append(
                f"On {spoken(topology)} no accuracy was reached with one node and with the most: choose larger ones."
            )
            continue
        finest = min(row["accuracy"] for row in measured)
        each = ", ".join(f"{row['algorithm']} {row['speedup']:.1f}" for row in measured if row["accuracy"] == finest)
        said.append(
            f"On {spoken(topology)}, {measured[0]['nodes']} nodes need so many times fewer steps than one to the accuracy "
            f"{finest:g}: {each} (ideal: {measured[0]['nodes']})."
        )
    return [
        *said,
        "The step is the best of the grid for each algorithm and node count; intervals come from drawing the trials anew.",
    ]

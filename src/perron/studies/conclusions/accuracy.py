"""How many steps to an accuracy?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from perron.plots import Chart, Line, Panel
from perron.studies.conclusions import text
from perron.studies.conclusions.base import METRIC, Conclusion, Row, Table, by_algorithm, variants
from perron.studies.statistics import best_time, series

if TYPE_CHECKING:
    from perron.studies.results import Outcome
    from perron.studies.spec import Study


def comparable(study: Study) -> str | None:
    """Require runs of one node, on the function that all nodes together have."""
    if any(1 not in counts for counts in study.nodes.values()):
        return "a run with one node on each topology, to compare with: add 1 to nodes"
    same = (study.problem.get("same_hessian"), study.problem.get("heterogeneity")) == (True, 0)
    if study.problem["kind"] == "quadratic" and not same:
        return "the same function for every number of nodes: set same_hessian = true and heterogeneity = 0"
    return None


def time_to_accuracy(outcome: Outcome) -> Conclusion:
    """Steps until the mean over trials stays below an accuracy, with the best step of the grid: T(1) / T(n)."""
    rows: list[Row] = []
    panels: dict[str, dict[str, list[Row]]] = {}
    for variant, part in variants(outcome.table, but=("algorithm", "weights", "lr_setting")):
        for topology, same in part.groupby("topology", sort=False):
            for label, _, own in by_algorithm(same):
                for times in _times(own, outcome.study.accuracies):
                    row = variant | {"topology": topology, "algorithm": label} | times
                    title = text.panel_title(variant, text.readable(topology), f"accuracy {row['accuracy']:g}")
                    panels.setdefault(title, {}).setdefault(label, []).append(row)
                    rows.append(row)
    chart = Chart(
        panels=[_panel(title, algorithms) for title, algorithms in panels.items()],
        title="Speedup: how many times fewer steps n nodes need to an accuracy",
        about="T(1) / T(n), each with the best learning rate of the grid; bars are 95 % intervals. Dashed: linear speedup. "
        "A point is missing where the accuracy was not reached.",
        x="nodes n", y="speedup T(1) / T(n)", log_x=True, marks="points", nested=True, columns=len(outcome.study.accuracies),
    )  # fmt: skip
    return Conclusion(
        tables={"Time to accuracy": _times_table(rows), "Speedup T(1) / T(n) at the largest n": _speedups_table(rows)},
        sentences=_sentences(rows),
        figures={"speedup": chart},
        summary={"times": rows},
    )


def _times(table: Table, accuracies: list[float]) -> list[Row]:
    """Return the times of one algorithm on one topology."""
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


def _panel(title: str, algorithms: dict[str, list[Row]]) -> Panel:
    lines = []
    for label, rows in algorithms.items():
        n, *ratio = np.array([[row[key] for row in rows] for key in ("nodes", "speedup", "low", "high")], float)
        lines.append(Line(label, n, *ratio))
    n = np.unique(np.concatenate([line.x for line in lines]))
    return Panel(title, [*lines, Line("ideal: n", n, n, guide=True)])


def _ratio(row: Row, digits: str) -> str:
    """Return a speedup with its interval."""
    if not np.isfinite(row["speedup"]):
        return ""
    high = f"{row['high']:{digits}}" if np.isfinite(row["high"]) else "unknown"
    return f"{row['speedup']:{digits}} [{row['low']:{digits}}, {high}]"


def _times_table(rows: list[Row]) -> Table:
    cells = []
    for row in rows:
        reached = np.isfinite(row["steps"])
        edge = " (edge of the grid)" if row["at_edge"] else ""
        cells.append(
            text.identity(row)
            | {
                "accuracy": f"{row['accuracy']:g}",
                "steps": f"{row['steps']:,.0f}" if reached else "not reached",
                "effective step": f"{row['step']:.3g}{edge}" if reached else "",
                "speedup": _ratio(row, ".2f"),
                "ideal": str(row["nodes"]),
            }
        )
    return text.table(cells)


def _speedups_table(rows: list[Row]) -> Table:
    cells: dict[str, dict[str, str]] = {}
    for row in rows:
        if row["largest"]:
            first = text.identity(row)
            missing = "not reached by one node" if np.isfinite(row["steps"]) else "not reached"
            cells.setdefault(str(first), first)[f"accuracy {row['accuracy']:g}"] = _ratio(row, ".1f") or missing
    return text.table(list(cells.values()))


def _sentences(rows: list[Row]) -> list[str]:
    sentences = []
    for topology in dict.fromkeys(row["topology"] for row in rows):
        where = f"On {text.readable(topology)}"
        measured = [
            row for row in rows if row["topology"] == topology and row["largest"] and np.isfinite(row["speedup"])
        ]
        if not measured:
            sentences.append(f"{where} no accuracy was reached with one node and with the most: choose larger ones.")
            continue
        finest, n = min(row["accuracy"] for row in measured), measured[0]["nodes"]
        each = ", ".join(f"{row['algorithm']} {row['speedup']:.1f}" for row in measured if row["accuracy"] == finest)
        sentences.append(
            f"{where}, the speedup T(1) / T(n) of {n} nodes to the accuracy {finest:g}: {each} (ideal: {n})."
        )
    return [
        *sentences,
        "The step is the best of the grid for each algorithm and node count; intervals come from resampling the trials.",
    ]

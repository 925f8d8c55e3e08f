"""Networks that are trained: losses and accuracies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from perron import plots
from perron.data import datasets as data
from perron.data import partition
from perron.errors import PerronError
from perron.plots import Line
from perron.studies.conclusions.base import (
    Conclusion,
    Table,
    contenders,
    curve,
    file_name,
    nested,
    panel_title,
    spoken,
    strings,
    told,
    variants,
    with_error,
)  # fmt: skip
from perron.studies.run import Run
from perron.studies.runner import Outcome
from perron.studies.statistics import series, time_to

LOSS, RIGHT = "loss_mean", "test_accuracy"
AXES = {  # what is drawn of the averaged model, if it was measured
    LOSS: ("loss", "training loss"),
    RIGHT: ("accuracy", "test accuracy"),
    "grad_norm_batch": ("batch-gradient", r"$\|\bar g\|/\sqrt{P}$ (mostly noise)"),
}
COLUMNS = {  # of the table, if they were measured
    LOSS: "training loss",
    "test_loss": "test loss",
    RIGHT: "accuracy",
    "test_accuracy_weighted": "of x-hat",
    "test_accuracy_local": "of nodes, mean",
    "test_accuracy_worst": "of nodes, worst",
    "consensus_error_sq": "consensus error",
}


def training(outcome: Outcome) -> Conclusion:
    """Curves of networks that are trained, what they end with, and the steps they take to a training loss."""
    found, rows, times = Conclusion(), [], []
    for metric, (name, title) in AXES.items():
        if metric in outcome.table:
            content = {
                panel: _drawn([curve(run, label, metric=metric) for label, run in lines])
                for panel, lines in _panels(outcome.table).items()
            }
            shares = metric == RIGHT
            found.figures[name] = plots.panels(content, x="step", y=title, shares=shares)
    for variant, part in variants(outcome.table, but=("algorithm", "weights")):
        for topology, same in part.groupby("topology", sort=False):
            baseline: dict[str, dict[float, float]] = {}
            for n, those in same.groupby("nodes", sort=True):
                for label, _, run in contenders(those):
                    own = {"variant": told(variant), "topology": topology, "nodes": int(n), "algorithm": label}
                    rows.append(own | _ends(run))
                    if LOSS in run:
                        steps = _times(run, outcome.study.losses)
                        first = label not in baseline
                        fewest = baseline.setdefault(label, steps)
                        times += [
                            own | {"loss": loss, "steps": when, "first": first, "faster": _ratio(fewest[loss], when)}
                            for loss, when in steps.items()
                        ]
    found.summary = {"ends": rows, "times": times}
    found.tables[f"After {_steps(outcome.table)} steps"] = strings([_cells(row) for row in rows])
    if any(np.isfinite(row["steps"]) for row in times):
        found.tables["Steps to a training loss"] = _time_table(times)
    found.sentences = _sentences(rows, trials=int(outcome.table.trials.max()))
    _draw_partition(outcome, found)
    return found


def _panels(table: Table) -> dict[str, list[tuple[str, Table]]]:
    """For each panel, the runs it shows, by label: number of nodes or algorithm, whichever varies."""
    found: dict[str, list[tuple[str, Table]]] = {}
    for variant, part in variants(table, but=("algorithm", "weights")):
        several = part.groupby(["algorithm", "weights"]).ngroups > 1
        for (topology, n), same in part.groupby(["topology", "nodes"], sort=False):
            title = [spoken(topology)] + ([f"n = {n}"] if several else [])
            lines = found.setdefault(panel_title(variant, *title), [])
            lines += [(label if several else f"n = {n}", run) for label, _, run in contenders(same)]
    return found


def _drawn(lines: list[Line]) -> list[Line]:
    """Without what has no value, as at the start; algorithms, which often coincide, from thick to thin."""
    found = []
    for line in lines:
        known = np.isfinite(line.y)
        error = None if line.error is None else line.error[known]
        found.append(replace(line, x=line.x[known], y=line.y[known], error=error, width=1.4))
    return found if all(line.label.startswith("n = ") for line in found) else nested(found)


def _ends(run: Table) -> dict[str, Any]:
    """The last record of a run: means over trials, with their errors."""
    row: dict[str, Any] = {"lr": float(run.lr.iloc[0])}
    for metric in COLUMNS:
        if metric in run:
            last = series(run, metric)[1][-1]
            error = float(last.std(ddof=1)) / np.sqrt(len(last)) if len(last) > 1 else np.nan
            row |= {metric: float(last.mean()), f"{metric}_error": error}
    return row


def _times(run: Table, losses: list[float]) -> dict[float, float]:
    """Steps until the loss, averaged over trials, stays below each of the given ones."""
    steps, values = series(run, LOSS)
    mean = values.mean(axis=1)
    return {loss: float(time_to(steps, mean, loss)) for loss in losses}


def _ratio(few: float, many: float) -> float:
    """How many times fewer steps; nan where one of them never gets there, or is there from the start."""
    return few / many if np.isfinite(few) and np.isfinite(many) and many else np.nan


def _steps(table: Table) -> str:
    many = sorted(set(table.groupby("run").step.max()))
    return f"{many[0]:,}" if len(many) == 1 else f"{many[0]:,} to {many[-1]:,}"


def _cells(row: dict[str, Any]) -> dict[str, str]:
    cells = ({"variant": row["variant"]} if row["variant"] else {}) | {
        "topology": spoken(row["topology"]),
        "nodes": str(row["nodes"]),
        "algorithm": row["algorithm"],
        "lr": f"{row['lr']:.3g}",
    }
    for metric, title in COLUMNS.items():
        if metric in row:
            value, error = row[metric], row[f"{metric}_error"]
            share = "accuracy" in metric
            text = with_error(100 * value, 100 * error, ".2f") if share else with_error(value, error, ".3g")
            cells[title] = f"{text} %" if share and text else text
    return cells


def _time_table(times: list[dict[str, Any]]) -> Table:
    """A row for each run, a column for each loss that somebody reached; how many times faster than the fewest nodes."""
    reached = {row["loss"] for row in times if np.isfinite(row["steps"])}
    found: dict[tuple[str, str, str, int], dict[str, str]] = {}
    for row in times:
        own = {"variant": row["variant"]} if row["variant"] else {}
        own |= {"topology": spoken(row["topology"]), "algorithm": row["algorithm"], "nodes": str(row["nodes"])}
        cells = found.setdefault((row["variant"], row["topology"], row["algorithm"], row["nodes"]), own)
        if row["loss"] in reached:
            faster = f" ({row['faster']:.2f}x)" if np.isfinite(row["faster"]) and not row["first"] else ""
            steps = f"{row['steps']:,.0f}" if np.isfinite(row["steps"]) else "not reached"
            cells[f"{row['loss']:g}"] = f"{steps}{faster}"
    return strings(list(found.values()))


def _sentences(rows: list[dict[str, Any]], *, trials: int) -> list[str]:
    said = []
    finite = [row for row in rows if np.isfinite(row.get(RIGHT, np.nan))]
    if finite:
        best = max(finite, key=lambda row: float(row[RIGHT]))
        said.append(
            f"Best: {best['algorithm']} with n = {best['nodes']} on {spoken(best['topology'])}, whose averaged model gets "
            f"{best[RIGHT]:.2%} of the test set right."
        )
    lower = []
    for key in dict.fromkeys((row["variant"], row["topology"], row["algorithm"]) for row in rows):
        own = [row for row in rows if (row["variant"], row["topology"], row["algorithm"]) == key]
        few, many = own[0], own[-1]
        if few["nodes"] < many["nodes"] and np.isfinite(few.get(LOSS, np.nan) * many.get(LOSS, np.nan)):
            where = ", ".join(spoken(part) for part in key[:2] if part)
            lower.append(f"{where} {many[LOSS] / few[LOSS]:.2f} (n = {many['nodes']} to {few['nodes']})")
    if lower:
        said.append(
            f"The training loss of the most nodes at the end, relative to that of the fewest: {'; '.join(lower)}."
        )
    if failed := [row for row in rows if not np.isfinite(row.get(LOSS, 0.0))]:
        where = ", ".join(f"{row['algorithm']} on {spoken(row['topology'])}({row['nodes']})" for row in failed)
        said.append(f"Diverged with this step: {where}.")
    one = "a single run each, without error bars" if trials == 1 else f"means over {trials} runs each"
    return [*said, f"Curves are of the averaged model; curves and numbers are {one}."]


def _draw_partition(outcome: Outcome, found: Conclusion) -> None:
    """How many samples of each class nodes have, dealt out evenly and as in the study; with 16 nodes, or as many as there are."""
    runs = [run for run in outcome.study.runs if run.problem["kind"] == "images" and run.nodes > 1]
    if not runs:
        return
    run = min(runs, key=lambda run: abs(run.nodes - 16))
    try:
        labels = data.load(run.problem["data"], run.problem["folder"]).labels[: run.problem["samples"]]
    except PerronError:
        found.sentences.append(f"The partition was not drawn: {run.problem['data']} is not on this machine.")
        return
    counts = {
        f"{spoken(rule)}, n = {run.nodes}": partition.table(labels, _parts(labels, run, rule))
        for rule in dict.fromkeys(["iid", run.problem["partition"]])
    }
    found.figures[file_name("partition", {})] = plots.heat_maps(counts)
    found.summary["partition"] = {title: table.tolist() for title, table in counts.items()}


def _parts(labels: Any, run: Run, rule: str) -> list[Any]:
    own = {key: run.problem[key] for key in ("concentration", "shards", "seed")}
    return partition.deal(labels, run.nodes, partition=rule, **own)

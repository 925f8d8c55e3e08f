"""Networks that are trained: losses and accuracies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from perron.data import datasets, partition
from perron.errors import PerronError
from perron.plots import Chart, HeatMaps, Line, Panel
from perron.studies.conclusions import text
from perron.studies.conclusions.base import Conclusion, Row, Table, by_algorithm, curve, standard_error, variants
from perron.studies.statistics import series, time_to

if TYPE_CHECKING:
    from perron.studies.results import Outcome
    from perron.studies.run import Run

LOSS, ACCURACY = "loss_mean", "test_accuracy"
AXES = {  # metrics of the averaged model that are drawn, if they were measured
    LOSS: ("loss", "training loss"),
    ACCURACY: ("accuracy", "test accuracy"),
    "grad_norm_batch": ("batch-gradient", r"$\|\bar g\|/\sqrt{P}$ (mostly noise)"),
}
COLUMNS = {  # of the table, if they were measured
    LOSS: "training loss",
    "test_loss": "test loss",
    ACCURACY: "accuracy",
    "test_accuracy_weighted": "of x-hat",
    "test_accuracy_local": "of nodes, mean",
    "test_accuracy_worst": "of nodes, worst",
    "consensus_error_sq": "consensus error",
}


def training(outcome: Outcome) -> Conclusion:
    """Curves of networks that are trained, their last values, and the steps they take to a training loss."""
    found, rows, times = Conclusion(), [], []
    for variant, part in variants(outcome.table, but=("algorithm", "weights")):
        for topology, same in part.groupby("topology", sort=False):
            baseline: dict[str, dict[float, float]] = {}
            for n, those in same.groupby("nodes", sort=True):
                for label, _, run in by_algorithm(those):
                    row = {"variant": text.describe(variant), "topology": topology, "nodes": int(n), "algorithm": label}
                    rows.append(row | _last_values(run))
                    if LOSS in run:
                        steps = _times(run, outcome.study.losses)
                        first = label not in baseline
                        fewest = baseline.setdefault(label, steps)
                        times += [
                            row | {"loss": loss, "steps": when, "first": first, "faster": _ratio(fewest[loss], when)}
                            for loss, when in steps.items()
                        ]
    found.summary = {"ends": rows, "times": times}
    lengths = sorted(set(outcome.table.groupby("run").step.max()))
    count = f"{lengths[0]:,}" if len(lengths) == 1 else f"{lengths[0]:,} to {lengths[-1]:,}"
    found.tables[f"After {count} steps"] = text.table([_cells(row) for row in rows])
    if any(np.isfinite(row["steps"]) for row in times):
        found.tables["Steps to a training loss"] = _time_table(times)
    found.sentences = _sentences(rows, trials=int(outcome.table.trials.max()))
    found.figures |= _curves(outcome.table) | _last_charts(rows)
    _add_partition(outcome, found)
    return found


def _curves(table: Table) -> dict[str, Chart]:
    """Return a chart of each metric, whose lines are node counts, or algorithms if there are several."""
    panels: dict[str, list[tuple[str, Table]]] = {}
    several = table.groupby(["algorithm", "weights"]).ngroups > 1
    for variant, part in variants(table, but=("algorithm", "weights")):
        for (topology, n), same in part.groupby(["topology", "nodes"], sort=False):
            title = text.panel_title(variant, text.readable(topology), f"n = {n}" if several else "")
            runs = [(label if several else f"n = {n}", run) for label, _, run in by_algorithm(same)]
            panels.setdefault(title, []).extend(runs)
    charts = {}
    for metric, (name, y) in AXES.items():
        if metric in table:
            drawn = [
                Panel(title, [curve(run, label, metric=metric) for label, run in runs])
                for title, runs in panels.items()
            ]
            share = metric == ACCURACY
            charts[name] = Chart(panels=drawn, x="step", y=y, nested=several, log_y=not share, share=share)
    return charts


def _last_charts(rows: list[Row]) -> dict[str, Chart]:
    """Return the last values over the number of nodes, if there are several."""
    if len({row["nodes"] for row in rows}) < 2:
        return {}
    several, charts = len({row["algorithm"] for row in rows}) > 1, {}

    def label(row: Row) -> str:
        algorithm = row["algorithm"] if several else ""
        return ", ".join(filter(None, (text.readable(row["topology"]), algorithm, row["variant"])))

    for metric in (LOSS, ACCURACY):
        known = [row for row in rows if np.isfinite(row.get(metric, np.nan))]
        lines = []
        for name in dict.fromkeys(map(label, known)):
            own = [row for row in known if label(row) == name]
            n, y, error = np.array([(row["nodes"], row[metric], row[f"{metric}_error"]) for row in own], float).T
            lines.append(Line(name, n, y, y - 2 * error, y + 2 * error))
        if lines:
            name, title = AXES[metric]
            share = metric == ACCURACY
            charts[f"{name}-by-nodes"] = Chart(
                panels=[Panel("", lines)],
                title=f"{title.capitalize()} of the averaged model at the end, over the number of nodes",
                about="Bars are two standard errors over trials, where there are several.",
                x="nodes n", y=title, log_x=True, log_y=not share, marks="points", share=share,
            )  # fmt: skip
    return charts


def _last_values(run: Table) -> Row:
    """Return the last record of a run: means over trials, with their errors."""
    row: Row = {"lr": float(run.lr.iloc[0])}
    for metric in COLUMNS:
        if metric in run:
            last = series(run, metric)[1][-1]
            row |= {metric: float(last.mean()), f"{metric}_error": standard_error(last)}
    return row


def _times(run: Table, losses: list[float]) -> dict[float, float]:
    """Return the steps until the loss, averaged over trials, stays below each of the given ones."""
    steps, values = series(run, LOSS)
    mean = values.mean(axis=1)
    return {loss: float(time_to(steps, mean, loss)) for loss in losses}


def _ratio(few: float, many: float) -> float:
    """Return how many times fewer steps; nan where a loss is never reached, or from the start."""
    return few / many if np.isfinite(few) and np.isfinite(many) and many else np.nan


def _cells(row: Row) -> dict[str, str]:
    cells = text.identity(row) | {"lr": f"{row['lr']:.3g}"}
    for metric, title in COLUMNS.items():
        if metric in row:
            value, error = row[metric], row[f"{metric}_error"]
            share = "accuracy" in metric
            cell = text.with_error(100 * value, 100 * error, ".2f") if share else text.with_error(value, error, ".3g")
            cells[title] = f"{cell} %" if share and cell else cell
    return cells


def _time_table(times: list[Row]) -> Table:
    """Return a row for each run, with a column for each loss that some run reached."""
    reached = {row["loss"] for row in times if np.isfinite(row["steps"])}
    cells: dict[str, dict[str, str]] = {}
    for row in times:
        own = cells.setdefault(str(text.identity(row)), text.identity(row))
        if row["loss"] in reached:
            faster = f" ({row['faster']:.2f}x)" if np.isfinite(row["faster"]) and not row["first"] else ""
            own[f"{row['loss']:g}"] = f"{row['steps']:,.0f}{faster}" if np.isfinite(row["steps"]) else "not reached"
    return text.table(list(cells.values()))


def _best(rows: list[Row], trials: int) -> str:
    """Name the highest accuracy, and those that the runs cannot tell from it: up to two standard errors of the difference."""

    def name(row: Row) -> str:
        return f"{row['algorithm']} with n = {row['nodes']} on {text.readable(row['topology'])}"

    best = max(rows, key=lambda row: float(row[ACCURACY]))
    what = f"{name(best)}, whose averaged model gets {best[ACCURACY]:.2%} of the test set right"
    if trials == 1:
        least = min(float(row[ACCURACY]) for row in rows)
        return (
            f"Highest in this run: {what}; the lowest is {least:.2%}. A single run of each cannot tell the best: "
            "`--set trials=3` shows how much accuracies vary."
        )
    error = f"{ACCURACY}_error"
    tied = [
        row
        for row in rows
        if row is not best and best[ACCURACY] - row[ACCURACY] <= 2 * float(np.hypot(best[error], row[error]))
    ]
    told = f"; within two standard errors of it: {', '.join(map(name, tied))}" if tied else ""
    return f"{'Highest' if tied else 'Best'}: {what}{told}."


def _sentences(rows: list[Row], *, trials: int) -> list[str]:
    sentences = []
    if finite := [row for row in rows if np.isfinite(row.get(ACCURACY, np.nan))]:
        sentences.append(_best(finite, trials))
    lower = []
    for key in dict.fromkeys((row["variant"], row["topology"], row["algorithm"]) for row in rows):
        own = [row for row in rows if (row["variant"], row["topology"], row["algorithm"]) == key]
        few, many = own[0], own[-1]
        if few["nodes"] < many["nodes"] and np.isfinite(few.get(LOSS, np.nan) * many.get(LOSS, np.nan)):
            where = ", ".join(text.readable(part) for part in key[:2] if part)
            lower.append(f"{where} {many[LOSS] / few[LOSS]:.2f} (n = {many['nodes']} to {few['nodes']})")
    if lower:
        relative = "The training loss of the most nodes at the end, relative to that of the fewest"
        sentences.append(f"{relative}: {'; '.join(lower)}.")
    if failed := [row for row in rows if not np.isfinite(row.get(LOSS, 0.0))]:
        where = ", ".join(f"{row['algorithm']} on {text.readable(row['topology'])}({row['nodes']})" for row in failed)
        sentences.append(f"Diverged with this step: {where}.")
    count = "a single run each, without error bars" if trials == 1 else f"means over {trials} runs each"
    return [*sentences, f"Curves are of the averaged model; curves and numbers are {count}."]


def _add_partition(outcome: Outcome, found: Conclusion) -> None:
    """Count the samples of each class that nodes have, dealt evenly and as in the study, with 16 nodes or the nearest number."""
    runs = [run for run in outcome.study.runs if run.problem["kind"] == "images" and run.nodes > 1]
    if not runs:
        return
    run = min(runs, key=lambda run: abs(run.nodes - 16))
    try:
        labels = datasets.load(run.problem["data"], run.problem["folder"]).labels[: run.problem["samples"]]
    except PerronError:
        found.sentences.append(f"The partition was not drawn: {run.problem['data']} is not on this machine.")
        return
    counts = {
        f"{text.readable(rule)}, n = {run.nodes}": partition.table(labels, _parts(labels, run, rule))
        for rule in dict.fromkeys(["iid", run.problem["partition"]])
    }
    found.figures["partition"] = HeatMaps(counts)
    found.summary["partition"] = {title: table.tolist() for title, table in counts.items()}


def _parts(labels: Any, run: Run, rule: str) -> list[Any]:
    options = {key: run.problem[key] for key in ("concentration", "shards", "seed")}
    return partition.deal(labels, run.nodes, partition=rule, **options)

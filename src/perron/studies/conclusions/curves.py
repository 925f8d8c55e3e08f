"""Curves of algorithms, each at the best step of its sweep, for a page; from studies and from single runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from perron._registry import lookup, validate
from perron.errors import PerronError, brief
from perron.plots import PAGE_COLUMNS, Chart, Line, Panel
from perron.simulation.history import COSTS, SECONDS, History
from perron.simulation.metrics import larger_is_better
from perron.studies.conclusions import text
from perron.studies.conclusions.base import Conclusion, Row, Table
from perron.studies.conclusions.sweep import GROWTH, Candidate, Curve, curves_of, split
from perron.studies.figure import Figure

if TYPE_CHECKING:
    from perron.studies.results import Outcome
    from perron.studies.spec import Study

X = {"steps": "step"} | {name: name for name in COSTS}
X_TITLES = {"step": "steps", "gradients": "gradients of each node"}
PREFIXES = ("", "k", "M", "G", "T", "P")


def compare(results: Any, **options: Any) -> Conclusion:
    """Draw runs or studies on the same axes, each algorithm at its best step.

    Args:
        results: histories, results of studies (`perron.read_study`) or their directories; one of them, or a sequence. Histories
            that differ in lr only are a sweep, of which the best is drawn; those that differ in their seed only are averaged.
        options: x, y, log_x, panels, where, target, columns and latex, see `perron.studies.Figure`.

    Returns:
        Its figures, a table, and sentences; ``save(folder)`` writes them, and a notebook shows them.

    Example:
        >>> import perron
        >>> mixing = perron.Mixing.random_integer(perron.topologies.exponential(8), seed=0)
        >>> problem = perron.problems.Quadratic.random(8)
        >>> runs = [perron.simulate(problem, "push_pull", mixing, lr=lr, steps=200) for lr in (0.05, 0.2, 10.0)]
        >>> found = perron.compare(runs, x="bytes", y="grad_norm_sq")
        >>> found.tables["At the best step"]["best lr"].item()
        '0.2'
    """
    import pandas as pd

    from perron.studies.results import Outcome, read_study

    single = isinstance(results, History | Outcome | str | Path)
    tables: list[Table] = []
    goals: dict[str, float] = {}
    seen, again = set[tuple[str, str]](), 0
    for place, given in enumerate([results] if single else results):
        one = read_study(given) if isinstance(given, str | Path) else given
        if isinstance(one, History):
            tables.append(_history_table(one, place))
            goals |= one.about.get("until") or {}
        elif isinstance(one, Outcome):
            keys = {(one.study.name, str(key)) for key in one.table["run"].unique()}
            again, new = again + len(keys & seen), {key for _, key in keys - seen}  # the same run is no second sample
            seen |= keys
            own = one.table[one.table["run"].isin(new)]
            tables.append(own.assign(study=one.study.name, run=f"{place} " + own["run"]))
            goals |= one.study.until
        else:
            raise PerronError(f"compare takes histories, results of studies and their directories; got {brief(one)}.")
    if not any(len(table) for table in tables):
        raise PerronError("There are no results to compare.")
    table: Table = pd.concat(tables, ignore_index=True)
    found = _conclude(table, validate(Figure, options), goals, list(_metrics(tables)))
    if again:
        found.sentences.append(f"Runs that are in several of the results count once: {again} were left out.")
    return found


def curves(outcome: Outcome) -> Conclusion:
    """The curves of a study, as its table ``[figure]`` asks for."""
    return _conclude(outcome.table, outcome.study.figure, outcome.study.until, outcome.study.metrics)


def drawable(study: Study) -> str | None:
    """Require that the figure can be drawn, before hours of runs: its axes, and room for its panels."""
    import pandas as pd

    runs = pd.DataFrame([run.columns for run in study.runs])
    try:
        _axes(study.figure, [*X.values(), *study.metrics, *([SECONDS] if study.clock else [])], study.metrics)
        split(runs, study.figure)
    except PerronError as error:
        return f"another figure. {error}"
    return None


def _history_table(history: History, place: int) -> Table:
    table = history.frame()
    names = {"network": "topology"}
    defaults = {
        "algorithm": f"run {place + 1}",
        "lr": np.nan,
        "weights": "",
        "steps": history.steps[-1:].max(initial=0),
    }
    absent = {name: value for name, value in defaults.items() if name not in table}
    table = table.rename(columns=names).assign(**absent, run=f"history {place}", interrupted=history.interrupted)
    rate = table["lr"].iloc[0]
    return table.assign(lr_setting=f"{rate:.10g}" if isinstance(rate, int | float) else str(rate), lr=_number(rate))


def _number(rate: Any) -> float:
    return float(rate) if isinstance(rate, int | float) else np.nan


def _metrics(tables: Sequence[Table]) -> Iterable[str]:
    """The columns that were measured in all tables."""
    kept = {"step", "trial", "run", "lr_setting", "interrupted", SECONDS, *COSTS}
    for name in tables[0].columns:
        measured = tables[0][name].dtype == float and tables[0].groupby("run")[name].nunique().max() > 1
        if name not in kept and measured and all(name in table for table in tables):
            yield name


def _axes(figure: Figure, columns: Sequence[str], metrics: Sequence[str]) -> tuple[str, str]:
    """Return the columns of x and y."""
    known = X | {name: name for name in metrics} | {name: name for name in (SECONDS,) if name in columns}
    x = lookup(
        figure.x, {name: column for name, column in known.items() if column in columns}, "x axis of these results"
    )
    if not metrics:
        raise PerronError("These results have no metric to draw.")
    return x, lookup(figure.y or metrics[0], {name: name for name in metrics}, "metric of these results")


def _conclude(table: Table, figure: Figure, goals: Mapping[str, float], metrics: Sequence[str]) -> Conclusion:
    x, y = _axes(figure, list(table.columns), metrics)
    if table[x].isna().all() or not table[x].max() > 0:
        raise PerronError(f"No run has {figure.x}: x = {figure.x!r} would be empty. Choose another x, as x = 'steps'.")
    goal = goals.get(y) if figure.target is None else figure.target
    parts, rest = split(table, figure)
    found = [(panel, curves_of(part, panel, rest, x=x, y=y, target=goal)) for panel, part in parts]
    every = [curve for _, own in found for curve in own]
    unit, prefix = _unit(every) if x == "bytes" else (1.0, "")
    x_title = f"{prefix}B sent" if x == "bytes" else X_TITLES.get(x, text.metric_title(x))
    ceiling, log = _range(every, y)
    sentences = _sentences(every, y=y, x=x_title, target=goal, ceiling=ceiling)
    about = " ".join(sentences)
    paper: dict[str, Any] = {
        "width": PAGE_COLUMNS[figure.columns],
        "latex": figure.latex,
        "share": larger_is_better(y),
        "about": about,
    }
    same = _same_rates(every)
    panels = [
        Panel(_title(panel), [_line(curve, ceiling, unit, log=log, rate=same, positive=figure.log_x) for curve in own])
        for panel, own in found
    ]
    chart = Chart(
        panels=panels, title=f"{text.metric_title(y)} at the best step".capitalize(), x=x_title, y=text.metric_symbol(y),
        log_x=figure.log_x, log_y=log, **paper,
    )  # fmt: skip
    figures = {"curves": chart}
    grids = [Panel(_title(panel), [_grid_line(curve, ceiling, log=log) for curve in own]) for panel, own in found]
    if any(len(line.x) > 1 for panel in grids for line in panel.lines):
        figures["by-lr"] = replace(
            chart, panels=grids, title="The sweep: the end of each run, over the learning rate", x="learning rate",
            log_x=True, marks="points",
        )  # fmt: skip
    rows = [_row(curve, y, x, goal) for curve in every]
    cells = [_cells(row, y, x_title, unit) for row in rows]
    return Conclusion(
        {"At the best step": text.table(cells)}, sentences, dict(figures), {"curves": rows, "x": x, "y": y}
    )


# ---- lines


def _unit(every: Sequence[Curve]) -> tuple[float, str]:
    """The unit of bytes in which the largest has at most three digits, as ``(1e6, "M")``."""
    largest = max(float(one.x[-1]) for curve in every for one in curve.candidates)
    power = int(np.clip(np.log10(max(largest, 1.0)) // 3, 0, len(PREFIXES) - 1))
    return 1000.0**power, PREFIXES[power]


def _range(every: Sequence[Curve], y: str) -> tuple[float, bool]:
    """The largest y worth showing, and whether its axis is logarithmic. Runs that diverged do not count."""
    sound = [curve.best for curve in every if not curve.best.diverged]
    firsts = [float(one.mean[0]) for one in sound or [curve.best for curve in every] if isfinite(one.mean[0])]
    means = np.concatenate([one.mean for one in sound]) if sound else np.array(firsts)
    peaks = sorted(float(np.nanmax(np.abs(one.mean))) for one in sound)
    usual = max(
        [abs(first) for first in firsts] + peaks[: (len(peaks) + 1) // 2], default=0.0
    )  # starts, and half of the peaks
    limit = GROWTH * usual or np.inf
    shown = means[np.isfinite(means) & (means <= limit)]
    if not len(shown):
        return np.inf, False
    positive = shown[shown > 0]
    log = not larger_is_better(y) and not (shown < 0).any() and len(positive) and positive.max() >= 10 * positive.min()
    return float(shown.max()) * (1.0 if sound else GROWTH), bool(log) or (not sound and not larger_is_better(y))


def _cut(one: Candidate, ceiling: float, *, log: bool) -> Any:
    """The records to draw: up to where a run that diverged leaves the range."""
    with np.errstate(all="ignore"):
        inside = np.isfinite(one.mean) & (one.mean <= ceiling * (1 + 1e-12))
    if one.diverged and not inside.all():
        inside[inside.argmin() :] = False
    return inside & (one.mean > 0) if log else inside


def _line(curve: Curve, ceiling: float, unit: float, *, log: bool, rate: bool, positive: bool) -> Line:
    one = curve.best
    label = f"{curve.label} (diverged)" if one.diverged else curve.label
    if rate and isfinite(one.lr):
        label = f"{label}, lr {one.lr:.3g}"
    kept = _cut(one, ceiling, log=log) & ((one.x > 0) | (not positive))
    x, mean, error = one.x[kept] / unit, one.mean[kept], 2 * one.error[kept]
    if one.samples < 2 or one.diverged:
        return Line(label, x, mean)
    return Line(label, x, mean, *_band(mean, error, ceiling, log=log))


def _band(mean: Any, spread: Any, ceiling: float, *, log: bool) -> tuple[Any, Any]:
    """The edges of a band; on a logarithmic axis those of the logarithm, which stay positive."""
    factor = np.exp(np.minimum(spread / np.abs(mean), 20)) if log else None
    low, high = (mean - spread, mean + spread) if factor is None else (mean / factor, mean * factor)
    return low, np.minimum(high, ceiling)


def _same_rates(every: Sequence[Curve]) -> bool:
    """Whether each label has one best learning rate, so that the legend can tell it."""
    rates: dict[str, set[float]] = {}
    for curve in every:
        rates.setdefault(curve.label, set()).add(curve.best.lr)
    return all(len(own) == 1 for own in rates.values())


def _grid(curve: Curve) -> list[Candidate]:
    return sorted((one for one in curve.candidates if isfinite(one.lr)), key=lambda one: one.lr)


def _grid_line(curve: Curve, ceiling: float, *, log: bool) -> Line:
    kept = [one for one in _grid(curve) if not one.diverged and one.end <= ceiling and (not log or one.end > 0)]
    x, y = np.array([one.lr for one in kept]), np.array([one.end for one in kept])
    spread = 2 * np.nan_to_num([float(one.error[-1]) for one in kept])
    low, high = _band(y, spread, ceiling, log=log)
    return Line(curve.label, x, y, low, high, mark=None if curve.best.diverged else curve.best.lr)


def _title(panel: Mapping[str, Any]) -> str:
    return ", ".join(
        text.readable(str(value))
        if name in ("topology", "study")
        else f"{text.readable(name)} {text.readable(str(value))}"
        for name, value in panel.items()
    ).replace("nodes ", "n = ")


# ---- table and sentences


def _row(curve: Curve, y: str, x: str, goal: float | None) -> Row:
    one = curve.best
    diverged = [each.setting for each in curve.candidates if each.diverged]
    return {
        **curve.panel, "algorithm": curve.label, "lr": one.lr, "setting": one.setting, "candidates": len(curve.candidates),
        "edge": curve.edge, y: one.end, "error": float(one.error[-1]), x: float(one.x[-1]), "runs": one.runs,
        "to_target": one.reached if goal is not None else None, "diverged": diverged, "failed": one.diverged > 0,
        "interrupted": one.interrupted,
    }  # fmt: skip


def _cells(row: Row, y: str, x_title: str, unit: float) -> dict[str, str]:
    """A row of the table; numbers are plain, so that a CSV file of it can be computed with."""
    cells = {text.readable(name): text.readable(str(row[name])) for name in list(row)[: list(row).index("algorithm")]}
    remarks = [f"{row['interrupted']} of {row['runs']} runs interrupted"] if row["interrupted"] else []
    if row["failed"]:
        remarks.append("diverged: try smaller steps")
    elif row["edge"]:
        remarks.append("edge of the grid: extend it")
    x = row[list(row)[list(row).index("error") + 1]]
    cells |= {"algorithm": row["algorithm"], "best lr": _best(row)}
    cells |= {"of": str(row["candidates"]), text.metric_title(y): "" if row["failed"] else _plain(row[y])}
    cells |= {"standard error": "" if row["failed"] else _plain(row["error"]), x_title: f"{x / unit:.6g}"}
    if row["to_target"] is not None:
        cells["to the target"] = f"{row['to_target'] / unit:.6g}" if isfinite(row["to_target"]) else "not reached"
    return cells | {"diverged at lr": ", ".join(row["diverged"]), "remark": "; ".join(remarks)}


def _best(row: Row) -> str:
    if row["failed"]:
        return "none"
    return f"{row['lr']:.4g}" if isfinite(row["lr"]) else row["setting"]


def _plain(value: float) -> str:
    return f"{value:.4g}" if isfinite(value) else ""


def _sentences(every: Sequence[Curve], *, y: str, x: str, target: float | None, ceiling: float) -> list[str]:
    name, best = text.metric_title(y), "largest" if larger_is_better(y) else "smallest"
    end = f"the {best} mean {name} over the last tenth of the records"
    sentences = []
    if any(len(curve.candidates) > 1 for curve in every):
        rule = end if target is None else f"the fewest {x} to {name} {target:g} (or, if no step gets there, {end})"
        sentences.append(
            f"The best step of an algorithm is the one with {rule}; a step with a run that diverged is none."
        )
    counts = sorted({curve.best.samples for curve in every})
    if counts[-1] > 1:
        over = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        sentences.append(f"Curves are means over {over} runs and trials; bands are two standard errors.")
    if target is not None:
        sentences.append(f"To the target: the {x} from which on the mean stays as good as {target:g}.")
    if edges := [f"{curve.label} (lr {curve.best.lr:.3g})" for curve in every if curve.edge]:
        sentences.append(f"At an edge of the grid, which should be extended: {'; '.join(dict.fromkeys(edges))}.")
    if failed := list(dict.fromkeys(curve.label for curve in every if curve.best.diverged)):
        sentences.append(f"Every step of the grid diverged for {'; '.join(failed)}: smaller steps are needed.")
    cut: dict[str, list[str]] = {}
    for curve in every:
        if rates := ", ".join(one.setting for one in curve.candidates if one.diverged):
            cut.setdefault(_title(curve.panel), []).append(f"{curve.label} at lr {rates}")
    if cut:
        places = [f"{title}: {'; '.join(own)}" if title else "; ".join(own) for title, own in cut.items()]
        sentences.append(f"Runs that diverged are cut off or not drawn. {'. '.join(places)}.")
    if clipped := [curve.label for curve in every if not curve.best.diverged and np.nanmax(curve.best.mean) > ceiling]:
        sentences.append(f"Values above {ceiling:.2g} are not shown: {'; '.join(dict.fromkeys(clipped))}.")
    if stopped := sum(one.interrupted for curve in every for one in curve.candidates):
        sentences.append(f"{stopped} runs were interrupted; their curves end there.")
    return sentences

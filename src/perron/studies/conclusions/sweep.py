"""A sweep as data: which runs are one curve, which learning rate is its best, and which runs diverged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, isfinite, sqrt
from typing import Any

import numpy as np

from perron._registry import lookup
from perron._typing import FloatArray
from perron.errors import PerronError, listed
from perron.simulation.metrics import larger_is_better
from perron.studies.conclusions import text
from perron.studies.conclusions.base import Table, by_algorithm
from perron.studies.figure import Figure

MAX_PANELS = MAX_LINES = 12  # of a page, and of a panel
GROWTH = 1e3  # a run whose y ends this many times above its first tenth has diverged
IDENTITY = ("study", "topology", "nodes", "weights")  # columns that may tell curves apart, besides options
Panels = list[tuple[dict[str, Any], Table]]


@dataclass(frozen=True)
class Candidate:
    """All runs of an algorithm with one learning rate: the mean over seeds and trials, with its standard error.

    Attributes:
        setting: the learning rate as the study names it.
        x, mean, error: ``(records,)``.
        runs: how many there are; ``diverged`` and ``interrupted``: how many of them did not end as they should.
        end: the mean over the last tenth of the records; nan if it is not finite.
        reached: the first x from which on the mean stays as good as the target; inf if it does not.
    """

    setting: str
    lr: float
    x: FloatArray
    mean: FloatArray
    error: FloatArray
    runs: int
    samples: int
    diverged: int
    interrupted: int
    end: float
    reached: float


@dataclass(frozen=True)
class Curve:
    """An algorithm in a panel: its candidates, and the best of them."""

    label: str
    panel: Mapping[str, Any]
    candidates: list[Candidate]
    best: Candidate

    @property
    def edge(self) -> bool:
        """Whether the best of several learning rates is the smallest or the largest."""
        rates = [one.lr for one in self.candidates]
        return len(rates) > 1 and self.best.lr in (min(rates), max(rates)) and not self.best.diverged


def split(table: Table, figure: Figure) -> tuple[Panels, list[str]]:
    """Return the part of a table for each panel, and the columns that tell its curves apart besides the algorithm."""
    table = _chosen(table, figure.where)
    known = [name for name in table.columns if name in IDENTITY or name.startswith(text.OPTIONS)]
    for name in figure.panels or ():
        lookup(name, dict.fromkeys([*known, "network_seed", "seed"]), "column for panels")
    differ = [name for name in known if name != "weights" and table[name].nunique(dropna=False) > 1]
    columns = differ if figure.panels is None else figure.panels
    if not columns:
        return [({}, table)], differ
    parts: Panels = [
        (dict(zip(columns, values, strict=True)), part)
        for values, part in table.groupby(columns, sort=False, dropna=False)
    ]
    if len(parts) > MAX_PANELS:
        counts = {name: table[name].nunique(dropna=False) for name in columns}
        named = " and ".join(f"{name} ({count} values)" for name, count in counts.items())
        fewest = min(counts, key=lambda name: counts[name])
        value = _example(table[fewest].iloc[0])
        raise PerronError(
            f"There would be {len(parts)} panels, one for each {named}; a page has room for {MAX_PANELS}. Set figure.panels to "
            f'fewer columns, as panels = ["{fewest}"], or show some of the runs: figure.where = {{ {fewest} = {value} }}.'
        )
    return parts, [name for name in differ if name not in columns]


def _example(value: Any) -> str:
    return str(value) if isinstance(value, int | float | np.number) else f'"{value}"'


def _chosen(table: Table, where: Mapping[str, list[Any]]) -> Table:
    for name, values in where.items():
        lookup(name, dict.fromkeys(table.columns), "column")
        kept = table[name].astype(str).isin([str(value) for value in values])
        if not kept.any():
            there = listed(dict.fromkeys(table[name].astype(str)))
            raise PerronError(f"figure.where: no run has {name} = {listed(values)}; there are {there}.")
        table = table[kept]
    return table


def curves_of(
    part: Table, panel: Mapping[str, Any], rest: list[str], *, x: str, y: str, target: float | None
) -> list[Curve]:
    """Return the curves of a panel: an algorithm each, and each value of the columns ``rest``."""
    found = []
    for values, same in part.groupby(rest, sort=False, dropna=False) if rest else [((), part)]:
        others = text.describe(dict(zip(rest, values, strict=True)))
        for label, _, own in by_algorithm(same):
            candidates = [candidate_of(runs, x, y, target) for _, runs in own.groupby("lr_setting", sort=False)]
            best = min(candidates, key=lambda one: badness(one, y, target))
            found.append(Curve(", ".join(filter(None, (label, others))), panel, candidates, best))
    if len(found) > MAX_LINES:
        key = f'panels = ["{rest[0]}"]' if rest else "where = { algorithm = [...] }"
        raise PerronError(
            f"A panel would have {len(found)} curves; at most {MAX_LINES} can be told apart. Set figure.{key}, or show some of "
            "the runs with figure.where."
        )
    return found


def badness(one: Candidate, y: str, target: float | None) -> tuple[bool, float, float]:
    """Return the order of candidates: first those without a run that diverged, then by the target, then by the end."""
    end = -one.end if larger_is_better(y) else one.end
    return one.diverged > 0, one.reached if target is not None else 0.0, end if isfinite(end) else inf


def candidate_of(part: Table, x: str, y: str, target: float | None) -> Candidate:
    """Return the candidate of a part of a results table that has one learning rate."""
    runs = [_run(run, x, y) for _, run in part.groupby("run", sort=False)]
    steps = max((run[0] for run in runs), key=len)
    first = part.drop_duplicates("run")
    stopped = first["interrupted"].to_numpy(bool) if "interrupted" in first else np.zeros(len(first), bool)
    if stopped.any():  # known only up to where it was interrupted
        known = steps <= min(run[0][-1] for run, cut in zip(runs, stopped, strict=True) if cut)
        steps = steps[known]
    # A run that ended at its target, or that was recorded less often, keeps its last value.
    records = [np.searchsorted(run[0], steps, side="right") - 1 for run in runs]
    samples = [run[2][at] for run, at in zip(runs, records, strict=True)]
    spent = [np.where(steps <= run[0][-1], run[1][at], np.nan) for run, at in zip(runs, records, strict=True)]
    xs = np.nanmean(spent, axis=0)
    networks = first["network_seed"].tolist() if "network_seed" in first else [0] * len(runs)
    with np.errstate(all="ignore"):  # of runs that diverged
        if len(set(networks)) > 1:  # the networks are the independent draws
            draws = {
                name: [own for own, its in zip(samples, networks, strict=True) if its == name] for name in networks
            }
            samples = [np.concatenate(own, axis=1).mean(axis=1, keepdims=True) for own in draws.values()]
        values = np.concatenate(samples, axis=1)
        count = values.shape[1]
        mean = values.mean(axis=1)
        error = values.std(axis=1, ddof=1) / sqrt(count) if count > 1 else np.full(len(mean), np.nan)
        good = (
            np.zeros(len(mean), bool) if target is None else mean >= target if larger_is_better(y) else mean <= target
        )
        end = float(mean[-max(1, len(mean) // 10) :].mean())
    steady = int(np.logical_and.accumulate(good[::-1]).sum())  # records at the end that are all as good as the target
    return Candidate(
        str(first["lr_setting"].iloc[0]), float(first["lr"].iloc[0]), xs, mean, error, len(runs), count,
        sum(_diverged(own) for _, _, own in runs), int(stopped.sum()), end if isfinite(end) else np.nan,
        float(xs[len(good) - steady]) if steady else inf,
    )  # fmt: skip


def _run(run: Table, x: str, y: str) -> tuple[Any, FloatArray, FloatArray]:
    """The steps of a run, its x (the mean over trials) and its y ``(records, trials)``."""
    values = run.pivot(index="step", columns="trial", values=y)
    steps = values.index.to_numpy()
    xs = steps.astype(float) if x == "step" else run.groupby("step")[x].mean().to_numpy(float)
    return steps, xs, values.to_numpy(float)


def _diverged(values: FloatArray) -> bool:
    """Whether some trial ends with a value that is not finite, or far above all of its first tenth."""
    with np.errstate(all="ignore"):
        early = np.nanmax(np.abs(values[: max(1, len(values) // 10)]), axis=0, initial=0)
        return bool((~np.isfinite(values[-1]) | ((early > 0) & (np.abs(values[-1]) > GROWTH * early))).any())

"""What all conclusions share: their shape, how a table is taken apart, and how things are called in print."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from perron.algorithms import ALGORITHMS
from perron.plots import Line
from perron.studies.statistics import series

Table = Any  # a pandas table; its own types are of no help to a reader
METRIC = "grad_norm_sq"
SQUARED_NORM = r"$\|\nabla f(\hat x)\|^2$"
VARYING = ("weights", "algorithm", "lr_setting", "seed", "network_seed")  # besides options of problem and links
OPTIONS = ("link_", "problem_")


@dataclass
class Conclusion:
    """What is shown of a study.

    Attributes:
        tables: by title; all cells are ready to print.
        sentences: what it means.
        figures: by file name without suffix.
        summary: the numbers, for programs.
    """

    tables: dict[str, Table] = field(default_factory=dict)
    sentences: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)


def variants(table: Table, *, but: Sequence[str] = ()) -> Iterator[tuple[dict[str, Any], Table]]:
    """The parts of a table that differ in something other than topology and nodes (and ``but``), with what they differ in."""
    names = [*VARYING, *(name for name in table.columns if name.startswith(OPTIONS))]
    differ = [name for name in names if name not in but and table[name].nunique(dropna=False) > 1]
    if not differ:
        yield {}, table
        return
    for values, part in table.groupby(differ, sort=False, dropna=False):
        yield dict(zip(differ, values, strict=True)), part


def contenders(table: Table) -> Iterator[tuple[str, str, Table]]:
    """Label, algorithm and part of each algorithm; with its weights in the label, if it was run with several."""
    several = table.groupby("algorithm").weights.nunique()
    for (algorithm, weights), part in table.groupby(["algorithm", "weights"], sort=False):
        label = titled(algorithm) + (f", weights {spoken(weights)}" if several[algorithm] > 1 else "")
        yield label, algorithm, part


def curve(run: Table, label: str, floor: float | None = None, metric: str = METRIC) -> Line:
    """The mean of a run over its trials, with its standard error."""
    steps, values = series(run, metric)
    trials = values.shape[1]
    with np.errstate(invalid="ignore", over="ignore"):  # of runs that diverged
        mean, error = values.mean(axis=1), values.std(axis=1, ddof=1) / np.sqrt(trials) if trials > 1 else None
    return Line(label, steps.astype(float), mean, error, floor if floor else None)


def nested(lines: list[Line]) -> list[Line]:
    """From thick to thin, so that of curves that coincide none hides another."""
    widths = np.linspace(6.0, 1.0, len(lines)) if len(lines) > 1 else [1.5]
    return [replace(line, width=float(width)) for line, width in zip(lines, widths, strict=True)]


def strings(rows: list[dict[str, str]]) -> Table:
    """A table of cells that are ready to print."""
    import pandas as pd

    return pd.DataFrame(rows).fillna("")


def with_error(value: float, error: float, digits: str = ".3e") -> str:
    """``1.2e-06 ± 3e-08``; without the error if there is none; empty for what is not finite."""
    if not np.isfinite(value):
        return ""
    return f"{value:{digits}}" + (f" ± {error:{digits if 'f' in digits else '.0e'}}" if np.isfinite(error) else "")


def spoken(text: str) -> str:
    """A name as people write it."""
    return text.replace("problem_", "").replace("link_", "link ").replace("lr_setting", "lr").replace("_", " ")


def titled(algorithm: str) -> str:
    """The title of an algorithm, with its options."""
    known = ALGORITHMS.get(algorithm.partition("(")[0])
    return algorithm if known is None else known.about.title + algorithm.removeprefix(algorithm.partition("(")[0])


def told(variant: dict[str, Any]) -> str:
    """What sets a variant apart, in words."""
    return ", ".join(f"{spoken(key)} {spoken(str(value))}" for key, value in variant.items())


def panel_title(variant: dict[str, Any], *parts: str) -> str:
    """The title of a panel, with what sets its variant apart."""
    return ", ".join([*parts, *([told(variant)] if variant else [])])


def file_name(base: str, variant: dict[str, Any]) -> str:
    """The name of a file that is about a variant."""
    return "-".join([base, *(str(value).replace("_", "-").replace("/", "-") for value in variant.values())])

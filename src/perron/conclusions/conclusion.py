"""What all conclusions share: their shape, and how things are called in print."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from perron.algorithms import ALGORITHMS
from perron.plots import Line
from perron.speedup import series

Table = Any  # a pandas table; its own types are of no help to a reader
METRIC = "grad_norm_sq"
SQUARED_NORM = r"$\|\nabla f(\hat x)\|^2$"
VARYING = ("weights", "algorithm", "lr", "seed", "network_seed")  # besides the problem's own options


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


def variants(table: Table) -> Iterator[tuple[dict[str, Any], Table]]:
    """The parts of a table that differ in something other than topology and nodes, with what they differ in."""
    names = [*VARYING, *(name for name in table.columns if name.startswith("problem_"))]
    differ = [name for name in names if table[name].nunique(dropna=False) > 1]
    if not differ:
        yield {}, table
        return
    for values, part in table.groupby(differ, sort=False):
        yield dict(zip(differ, values, strict=True)), part


def curve(run: Table, label: str, floor: float | None = None) -> Line:
    """The mean of a run over its trials, with its standard error."""
    steps, values = series(run, METRIC)
    return Line(
        label, steps.astype(float), values.mean(axis=1), values.std(axis=1, ddof=1) / np.sqrt(values.shape[1]), floor
    )


def strings(rows: list[dict[str, str]]) -> Table:
    """A table of cells that are ready to print."""
    import pandas as pd

    return pd.DataFrame(rows).fillna("")


def spoken(text: str) -> str:
    """A name as people write it."""
    return text.replace("problem_", "").replace("_", " ")


def titled(algorithm: str) -> str:
    """The title of an algorithm, with its options."""
    known = ALGORITHMS.get(algorithm.partition("(")[0])
    return algorithm if known is None else known.about.title + algorithm.removeprefix(algorithm.partition("(")[0])


def told(variant: dict[str, Any]) -> str:
    """What sets a variant apart, in words."""
    return ", ".join(f"{spoken(key)} {spoken(str(value))}" for key, value in variant.items())


def file_name(base: str, variant: dict[str, Any]) -> str:
    """The name of a file that is about a variant."""
    return "-".join([base, *(str(value).replace("_", "-") for value in variant.values())])

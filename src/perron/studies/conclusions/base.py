"""The parts that conclusions share: their record, requirements, and ways to split a table of results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from perron._storage.atomic import make_directory, write_bytes
from perron.plots import Line, Picture, html_table
from perron.simulation.history import recorded
from perron.studies.conclusions import text
from perron.studies.statistics import RECORDS, series

if TYPE_CHECKING:
    from perron.studies.results import Outcome
    from perron.studies.spec import Study

Table = Any  # a pandas table; its own types are of no help to a reader
Row = dict[str, Any]
Requirement = Callable[["Study"], str | None]  # returns what a study lacks, if anything
METRIC = "grad_norm_sq"
SQUARED_NORM = text.SYMBOLS[METRIC]


@dataclass(repr=False)
class Conclusion:
    """The tables, sentences and figures that follow from the results of a study.

    Attributes:
        tables: by title; all cells are text.
        sentences: the results in words.
        figures: by file name without suffix.
        summary: the numbers, for programs.
    """

    tables: dict[str, Table] = field(default_factory=dict)
    sentences: list[str] = field(default_factory=list)
    figures: dict[str, Picture] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)

    def save(self, folder: str | Path) -> list[Path]:
        """Write the figures (PNG and PDF) and the tables (Markdown, CSV and LaTeX) into a directory; return the paths."""
        folder = Path(folder)
        make_directory(folder)
        paths = [
            figure.save(folder / f"{name}{kind}") for name, figure in self.figures.items() for kind in (".png", ".pdf")
        ]
        for title, cells in self.tables.items():
            written = {".md": text.to_markdown(cells), ".csv": cells.to_csv(index=False), ".tex": text.to_latex(cells)}
            base = text.file_name("table", {"title": title.lower()})
            paths += [
                write_bytes(folder / f"{base}{kind}", f"{content.rstrip()}\n".encode())
                for kind, content in written.items()
            ]
        return paths

    def _repr_html_(self) -> str:
        """Figures, tables and sentences, for notebooks."""
        pictures = [figure._repr_svg_() for figure in self.figures.values()]
        tables = [html_table(list(cells.columns), cells.to_numpy().tolist()) for cells in self.tables.values()]
        return "".join([*pictures, *tables, *(f"<p>{escape(sentence)}</p>" for sentence in self.sentences)])

    def __repr__(self) -> str:
        return f"<Conclusion: figures {', '.join(self.figures) or 'none'}; tables {', '.join(self.tables) or 'none'}>"


@dataclass(frozen=True)
class Analysis:
    """A conclusion that a study file can name: the function that draws it, and what it requires of the study."""

    draw: Callable[[Outcome], Conclusion]
    requirements: tuple[Requirement, ...] = ()


def metric(*names: str) -> Requirement:
    """Require one of these metrics."""
    return lambda study: None if {*names} & {*study.metrics} else f"the metric {' or '.join(names)}"


def full_length(study: Study) -> str | None:
    """Require runs that end with their last step."""
    return "runs of full length: leave out until" if study.until else None


def equidistant_records(study: Study) -> str | None:
    """Require enough records at equal distances to tell a level from a slow fall."""
    if study.every == "log":
        return "records at equal distances: every must be a number"
    count = len(recorded(study.steps, study.every))
    given = f"steps = {study.steps} and every = {study.every} give {count}"
    return None if count >= RECORDS else f"{RECORDS} records of a run, but {given}"


def variants(table: Table, *, but: Sequence[str] = ()) -> Iterator[tuple[Row, Table]]:
    """Split a table by everything that varies besides topology and nodes (and ``but``); yield the values with each part."""
    names = [*text.VARYING, *(name for name in table.columns if name.startswith(text.OPTIONS))]
    differ = [name for name in names if name not in but and table[name].nunique(dropna=False) > 1]
    if not differ:
        yield {}, table
        return
    for values, part in table.groupby(differ, sort=False, dropna=False):
        yield dict(zip(differ, values, strict=True)), part


def by_algorithm(table: Table) -> Iterator[tuple[str, str, Table]]:
    """Yield label, algorithm and part of each algorithm; the label has the weights if the algorithm was run with several."""
    several = table.groupby("algorithm").weights.nunique()
    for (algorithm, weights), part in table.groupby(["algorithm", "weights"], sort=False):
        label = text.algorithm_title(algorithm) + (
            f", weights {text.readable(weights)}" if several[algorithm] > 1 else ""
        )
        yield label, algorithm, part


def curve(run: Table, label: str, floor: float | None = None, metric: str = METRIC) -> Line:
    """Return the mean of a run over its trials, where it is finite, with a band of two standard errors."""
    steps, values = series(run, metric)
    trials = values.shape[1]
    with np.errstate(invalid="ignore", over="ignore"):  # of runs that diverged
        mean = values.mean(axis=1)
        known = np.isfinite(mean)
        x, y = steps[known].astype(float), mean[known]
        if trials < 2:
            return Line(label, x, y, floor=floor or None)
        spread = 2 * values[known].std(axis=1, ddof=1) / np.sqrt(trials)
    return Line(label, x, y, y - spread, y + spread, floor=floor or None)


def standard_error(values: Any) -> float:
    """Return the standard error of a mean over trials; nan for a single trial."""
    return float(np.std(values, ddof=1)) / np.sqrt(len(values)) if len(values) > 1 else np.nan

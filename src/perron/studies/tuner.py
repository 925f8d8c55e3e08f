"""Finding learning rates: the study itself with a grid of them and a seed of its own, run like every study."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import ceil, isfinite
from pathlib import Path
from typing import Any

from perron.errors import PerronError
from perron.simulation.metrics import larger_is_better
from perron.studies._values import own_settings
from perron.studies.conclusions import text
from perron.studies.conclusions.base import Conclusion, Row
from perron.studies.conclusions.sweep import badness, candidate_of
from perron.studies.figure import Figure
from perron.studies.results import Outcome
from perron.studies.run import Choice, Run
from perron.studies.spec import Study
from perron.studies.tuning import place_of

FACTOR = 3  # of halving: each round has a third of the candidates, and three times the steps
LONG = 10_000  # steps from which on halving is the default
TITLE = "Learning rates"


@dataclass(frozen=True)
class Tuning:
    """The learning rates that were found.

    Attributes:
        study: the study with them, in its key ``tuned``.
        conclusion: a table of them, and how they were found.
        failed: a message for each run that failed.
    """

    study: Study
    conclusion: Conclusion
    failed: dict[str, str]


def tune(study: Study, folder: str | Path, run: Callable[[Study, Path], Outcome] | None = None) -> Tuning:
    """Find the learning rates of a study with ``lr = "tune"``.

    All algorithms get the same candidates, the same steps and the same seed, which the study does not use. The best candidate is
    the one with the best mean of ``figure.y`` (or the first metric) over the last tenth of the records; with ``until``, the one
    that reaches it with the fewest gradients. If the best of any algorithm is at an edge, the grid is extended there for all.

    Args:
        study: with ``lr = "tune"``; its table ``[tune]`` says how, see `perron.studies.Tune`.
        folder: where the runs are kept; those that are finished are not repeated.
        run: runs a study in a directory; by default `perron.studies.run_study`.
    """
    if not study.is_tuned:
        raise PerronError('There is nothing to tune: the study has learning rates. Set lr = "tune".')
    if run is None:
        from perron.studies.runner import run_study

        run = run_study
    rates, failed = sorted(set(study.tune.grid)), dict[str, str]()
    rows, spent = list[Row](), dict[str, float]()
    for extended in range(study.tune.extend + 1):
        only: dict[str, list[float]] | None = None
        for steps in _rounds(study):
            outcome = run(tuning_study(study, rates, steps, only), Path(folder))
            failed |= outcome.failed
            rows = list(_best(study, outcome, rates))
            only = _survivors(rows)
            for key, own in outcome.table.groupby("run") if outcome.done else ():
                spent[str(key)] = float(own["gradients"].max()) * own["trial"].nunique()
        edges = {row["edge"] for row in rows}
        if len(rates) < 2 or edges <= {""} or extended == study.tune.extend:
            break
        ratio = (rates[-1] / rates[0]) ** (1 / (len(rates) - 1))
        below = [rates[0] / ratio**2, rates[0] / ratio] if "low" in edges else []
        above = [rates[-1] * ratio, rates[-1] * ratio**2] if "high" in edges else []
        rates = [float(f"{rate:.3g}") for rate in (*below, *rates, *above)]
    found = {row["place"]: row["lr"] for row in rows if isfinite(row["lr"])}
    conclusion = _conclude(study, rows, rates, sum(spent.values()))
    tuned = Study.model_validate(study.model_dump() | {"tuned": study.tuned | found})
    return Tuning(tuned, conclusion, failed)


def first_round(study: Study) -> Study:
    """Return the study that is run first: the whole grid."""
    return tuning_study(study, sorted(set(study.tune.grid)), _rounds(study)[0])


def tuning_study(study: Study, rates: list[float], steps: int, only: dict[str, list[float]] | None = None) -> Study:
    """Return the study that tries learning rates: all, or of each algorithm (by its label) some of them."""
    algorithms = []
    for choice in study.algorithms:
        options, instead = own_settings(choice)
        label = Choice(name=choice.name, **options).label
        if not instead.lr and (only is None or only.get(label)):
            algorithms.append(choice.model_dump() | ({"lr": only[label]} if only is not None else {}))
    y = _metric(study)
    changes: dict[str, Any] = {
        "name": f"{study.name}-tuning", "title": f"Learning rates of {study.title or study.name}", "conclusion": "curves",
        "figure": Figure(x="gradients", y=y, panels=[]), "algorithms": algorithms, "lr": rates, "steps": steps, "metrics": [y],
        "clock": study.clock if "seconds" in study.until else {},  # no values depend on it
        "final_metrics": [], "trials": _trials(study), "seeds": [max(study.seeds) + 1], "tuned": {},
    }  # fmt: skip
    return Study.model_validate(study.model_dump() | changes)


def _metric(study: Study) -> str:
    return study.figure.y or study.metrics[0]


def _trials(study: Study) -> int:
    return min(study.trials, study.tune.trials)


def _rounds(study: Study) -> list[int]:
    """The numbers of steps of the rounds; each but the first has a third of the candidates of the one before."""
    halving = study.tune.method == "halving" or (study.tune.method is None and study.steps >= LONG)
    parts, count = ([FACTOR**2, FACTOR, 1] if halving else [1]), len(study.tune.grid)
    steps = study.steps
    if study.tune.budget is not None:
        share = sum(ceil(count / FACTOR**place) / part for place, part in enumerate(parts)) * _trials(study)
        steps = min(steps, int(study.tune.budget / share))
    if steps < parts[0]:
        raise PerronError(
            f"The budget is not enough for {count} learning rates and {_trials(study)} trials: runs would have {steps} steps. "
            "Give more, or a smaller grid."
        )
    return [steps // part for part in parts]


def _survivors(rows: list[Row]) -> dict[str, list[float]]:
    """The best third of the candidates of each algorithm: of each group of its runs."""
    kept: dict[str, list[float]] = {}
    for row in rows:
        kept.setdefault(row["algorithm"], []).extend(row["ranked"][: ceil(row["candidates"] / FACTOR)])
    return {algorithm: sorted(set(rates)) for algorithm, rates in kept.items()}


def _best(study: Study, outcome: Outcome, rates: list[float]) -> Iterator[Row]:
    """Yield the best learning rate of each group of runs."""
    groups: dict[str, list[Run]] = {}
    for run in outcome.study.runs:
        groups.setdefault(place_of(run, study.varying), []).append(run)
    y, table = _metric(study), outcome.table
    target = study.until.get(y)
    for place, runs in groups.items():
        own = table[table["run"].isin([run.key for run in runs])] if outcome.done else table
        parts = [part for _, part in own.groupby("lr_setting")] if len(own) else []
        ranked = sorted(
            (candidate_of(part, "gradients", y, target) for part in parts), key=lambda one: badness(one, y, target)
        )
        row: Row = {"place": place, "algorithm": Choice(name=runs[0].algorithm, **runs[0].algorithm_options).label}
        row |= {"candidates": len(ranked), "ranked": [float(one.setting) for one in ranked], "edge": ""}
        row |= {"diverged": [one.setting for one in ranked if one.diverged], "lr": float("nan"), y: float("nan")}
        if ranked and ranked[0].diverged:  # smaller ones are needed
            row["edge"] = "low"
        elif ranked:
            lr = row["ranked"][0]
            row |= {"lr": lr, y: ranked[0].end, "edge": {rates[0]: "low", rates[-1]: "high"}.get(lr, "")}
        yield row


def _conclude(study: Study, rows: list[Row], rates: list[float], gradients: float) -> Conclusion:
    y = _metric(study)
    cells = [
        {
            "runs": row["place"],
            "lr": f"{row['lr']:g}" if isfinite(row["lr"]) else "none",
            "of": str(row["candidates"]),
            text.metric_title(y): f"{row[y]:.4g}" if isfinite(row["lr"]) else "",
            "diverged at lr": ", ".join(row["diverged"]),
            "remark": "edge of the grid" if row["edge"] else "",
        }
        for row in rows
    ]
    best = "largest" if larger_is_better(y) else "smallest"
    rule = f"the fewest gradients to {y} {study.until[y]:g}" if y in study.until else f"the {best} mean {y} at the end"
    share = gradients / max(len(rows), 1)
    tried = ", ".join(f"{rate:g}" for rate in rates)
    sentences = [
        f"Every algorithm was run with lr {tried} and seed {max(study.seeds) + 1}; the best has {rule}.",
        f"Each of {len(rows)} took {share:.3g} gradients of a node on average, over all candidates and trials.",
    ]
    if len(rates) > len(study.tune.grid):
        sentences.append("The grid was extended for all, since a best value was at its edge.")
    return Conclusion(
        {TITLE: text.table(cells)}, sentences, {}, {"tuned": rows, "rates": rates, "gradients": gradients}
    )

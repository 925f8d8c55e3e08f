"""The conclusions that a study file can name: tables, sentences, figures and a summary, drawn from a table of results."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from perron._storage.atomic import write_bytes
from perron._storage.jsonable import to_json
from perron.errors import PerronError
from perron.studies.conclusions import text
from perron.studies.conclusions.accuracy import comparable, time_to_accuracy
from perron.studies.conclusions.base import METRIC, Analysis, Conclusion, equidistant_records, full_length, metric
from perron.studies.conclusions.comparison import comparison
from perron.studies.conclusions.curves import compare, curves, drawable
from perron.studies.conclusions.networks import networks
from perron.studies.conclusions.residual import blocks, residual
from perron.studies.conclusions.speedup import speedup
from perron.studies.conclusions.training import ACCURACY, LOSS, training
from perron.studies.conclusions.tuned import LOSS as TEST_LOSS
from perron.studies.conclusions.tuned import tuned

if TYPE_CHECKING:
    from perron.studies.results import Outcome
    from perron.studies.spec import Study

__all__ = ["CONCLUSIONS", "compare", "conclude", "failures", "markdown", "write"]

CONCLUSIONS = {
    "speedup": Analysis(speedup, (metric(METRIC), equidistant_records, full_length)),
    "time_to_accuracy": Analysis(time_to_accuracy, (metric(METRIC), comparable, full_length)),
    "residual": Analysis(residual, (metric("residual_sq"), blocks, equidistant_records, full_length)),
    "comparison": Analysis(comparison, (metric(METRIC), equidistant_records, full_length)),
    "curves": Analysis(curves, (drawable,)),
    "topologies": Analysis(networks),
    "training": Analysis(training, (metric(LOSS, ACCURACY),)),
    "tuned": Analysis(tuned, (metric(TEST_LOSS), full_length)),
}


def conclude(outcome: Outcome) -> Conclusion:
    """Draw the conclusion that the study names."""
    if outcome.table.empty:
        failed = f"every run failed. {failures(outcome)}"
        why = failed if outcome.failed else "no run is done; perron study run continues it."
        raise PerronError(f"The study {outcome.study.name} has no results: {why}")
    found = CONCLUSIONS[outcome.study.conclusion].draw(outcome)
    found.sentences += _remarks(outcome.study)
    return found


def _remarks(study: Study) -> list[str]:
    """Return what a reader of any conclusion should know about its numbers."""
    remarks = []
    if study.conclusion == "speedup" and len(study.topologies) > 1 and len(study.seeds) == 1:
        remarks.append(
            "All networks see the same noise (common random numbers, one seed), so that their slopes are not independent of each "
            "other: together they are one experiment. `--set seeds=[1,2,3]` repeats it."
        )
    if study.problem.get("kind") == "logistic" and study.problem.get("compiled") is True:
        remarks.append(
            "Gradients are summed in float32 (compiled sums), and differ from those in float64 by about 1e-7 of their size; "
            "`--set problem.compiled=false` sums in float64."
        )
    return remarks


def failures(outcome: Outcome, most: int = 5) -> str:
    """Return which runs failed, and why; the first few of them."""
    reasons = list(outcome.failed.values())
    more = f"; and {len(reasons) - most} more (manifest.json)." if len(reasons) > most else ""
    return "; ".join(reasons[:most]) + more


def write(outcome: Outcome, conclusion: Conclusion) -> list[Path]:
    """Write figures, tables, ``summary.json`` and ``report.md`` into the study's directory; return the paths."""
    folder = outcome.folder
    paths = conclusion.save(folder)
    summary = {
        "format": 1,
        "study": outcome.study.name,
        "conclusion": outcome.study.conclusion,
        "sentences": conclusion.sentences,
    }
    text = to_json(summary | conclusion.summary, indent=2)
    paths.append(write_bytes(folder / "summary.json", text.encode()))
    paths.append(write_bytes(folder / "report.md", markdown(outcome, conclusion).encode()))
    return paths


def markdown(outcome: Outcome, conclusion: Conclusion) -> str:
    """Return a page about the study: description, sentences, figures, tables, failures."""
    study = outcome.study
    parts = [f"# {study.title or study.name}", study.about.strip(), *conclusion.sentences]
    parts += [f"![{name}]({name}.png)" for name in conclusion.figures]
    for title, table in conclusion.tables.items():
        parts += [f"## {title}", text.to_markdown(table)]
    if outcome.failed:
        parts += ["## Runs that failed", "\n".join(f"- {reason}" for reason in outcome.failed.values())]
    return "\n\n".join(part for part in parts if part) + "\n"

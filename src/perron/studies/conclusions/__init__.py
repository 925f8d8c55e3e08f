"""What follows from a study's table: tables, sentences, figures and a summary. Nothing here runs anything.

Each conclusion is a function of an `Outcome`; a study file names the one it wants.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from perron import plots
from perron._storage.atomic import write_bytes
from perron._storage.jsonable import to_json
from perron.errors import PerronError
from perron.studies.conclusions.accuracy import time_to_accuracy
from perron.studies.conclusions.base import Conclusion
from perron.studies.conclusions.comparison import comparison
from perron.studies.conclusions.networks import networks
from perron.studies.conclusions.residual import residual
from perron.studies.conclusions.speedup import speedup
from perron.studies.conclusions.training import training
from perron.studies.runner import Outcome

CONCLUSIONS: dict[str, Callable[[Outcome], Conclusion]] = {
    "speedup": speedup,
    "time_to_accuracy": time_to_accuracy,
    "residual": residual,
    "comparison": comparison,
    "topologies": networks,
    "training": training,
}


def conclude(outcome: Outcome) -> Conclusion:
    """Draw the conclusion that the study asks for."""
    if outcome.table.empty:
        why = (
            f"every run failed. {failures(outcome)}" if outcome.failed else "no run is done; perron study run goes on."
        )
        raise PerronError(f"The study {outcome.study.name} has no results: {why}")
    return CONCLUSIONS[outcome.study.conclusion](outcome)


def failures(outcome: Outcome, most: int = 5) -> str:
    """Which runs failed, and why; the first few of them."""
    said = list(outcome.failed.values())
    return "; ".join(said[:most]) + (f"; and {len(said) - most} more (manifest.json)." if len(said) > most else "")


def write(outcome: Outcome, conclusion: Conclusion) -> list[Path]:
    """Write figures (PNG and PDF), ``summary.json`` and ``report.md`` into the study's directory; the paths."""
    folder, paths = outcome.folder, []
    for name, figure in conclusion.figures.items():
        for suffix in (".png", ".pdf"):
            path = folder / f"{name}{suffix}"
            paths.append(figure(path) if callable(figure) else plots.save(figure, path))
    summary = {"study": outcome.study.name, "conclusion": outcome.study.conclusion, "sentences": conclusion.sentences}
    text = to_json(summary | conclusion.summary, indent=2)
    paths.append(write_bytes(folder / "summary.json", text.encode()))
    paths.append(write_bytes(folder / "report.md", markdown(outcome, conclusion).encode()))
    return paths


def markdown(outcome: Outcome, conclusion: Conclusion) -> str:
    """A page about the study: what, pictures, tables, meaning."""
    study = outcome.study
    parts = [f"# {study.title or study.name}", study.about.strip(), *conclusion.sentences]
    parts += [f"![{name}]({name}.png)" for name in conclusion.figures]
    for title, table in conclusion.tables.items():
        rows = [list(table.columns), ["---"] * len(table.columns), *table.to_numpy().tolist()]
        parts += [
            f"## {title}",
            "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in rows),
        ]
    if outcome.failed:
        parts += ["## Runs that failed", "\n".join(f"- {said}" for said in outcome.failed.values())]
    return "\n\n".join(part for part in parts if part) + "\n"

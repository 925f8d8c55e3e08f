"""``perron demo``: a short study that shows linear speedup."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from perron.cli import study
from perron.cli.options import Json, Workers, out_option


def demo(
    workers: Workers = None,
    out: Annotated[Path, out_option("Where results go.", "DIR")] = Path("results/demo"),
    as_json: Json = False,
) -> None:
    """Measure Push-Pull's linear speedup, in two minutes.

    On the paper's six topologies; a smaller version of perron study run synthetic-speedup.

    perron demo
    perron demo --out results/first --workers 1
    """
    from perron.studies.spec import load

    outcome = study.run_with_progress(load("demo"), out, workers)
    study.finish(outcome, only=["Slopes"], as_json=as_json)

"""``perron demo``: a short study that shows linear speedup."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from perron.cli import study
from perron.cli.app import print_status
from perron.cli.options import Json, Workers, out_option

FIRST = {"topologies": ["exponential"], "nodes": [4, 8, 12, 16]}  # its runs are a part of the whole study


def demo(
    workers: Workers = None,
    out: Annotated[Path, out_option("Where results go.", "DIR")] = Path("results/demo"),
    as_json: Json = False,
) -> None:
    """Measure Push-Pull's linear speedup, in two minutes.

    On the paper's six topologies; a smaller version of perron study run synthetic-speedup. A first picture, of one topology, is
    there much earlier.

    perron demo
    perron demo --out results/first --workers 1
    """
    from perron.studies.conclusions import conclude, write
    from perron.studies.results import TABLE
    from perron.studies.spec import load

    if not (out / TABLE).exists():
        first = study.run_with_progress(load("demo", FIRST), out, workers)
        if not first.failed:
            write(first, conclude(first))
            print_status(f"A first picture, of one network: {out / 'curves.png'}")
    outcome = study.run_with_progress(load("demo"), out, workers)
    study.finish(outcome, only=["Slopes"], as_json=as_json)

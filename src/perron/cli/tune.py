"""``perron tune``: find the learning rates of a study."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from perron.cli.app import print_lines, print_table, write_json
from perron.cli.options import Changes, Json, StudyName, Workers, out_option
from perron.cli.study import run_with_progress
from perron.errors import FailedError


def tune(
    study: StudyName,
    changes: Changes = None,
    workers: Workers = None,
    out: Annotated[Path | None, out_option("Where runs are kept (default: results/NAME/tuning).", "DIR")] = None,
    as_json: Json = False,
) -> None:
    """Find learning rates: the same grid and budget for all.

    The study is run with a grid of learning rates and a seed that it does not use; the grid is extended for all algorithms where
    a best value is at its edge. Prints the values as keys of the study file, with which perron study run continues. With
    lr = "tune" in its file, perron study run does this first. Keys of the table tune: grid, method, budget, trials, extend.

    perron tune mine.toml
    perron tune mine.toml --set tune.budget=20000 --set tune.method=halving
    """
    from perron.studies._values import parse
    from perron.studies.spec import load
    from perron.studies.toml import to_lines
    from perron.studies.tuner import tune as find

    loaded = load(study, parse(changes or []) | {"lr": "tune", "tuned": {}})
    folder = out or Path("results") / loaded.name / "tuning"
    found = find(loaded, folder, lambda one, where: run_with_progress(one, where, workers))
    conclusion, tuned = found.conclusion, found.study.tuned
    if as_json:
        write_json({"tuned": tuned, "sentences": conclusion.sentences, "summary": conclusion.summary, "folder": folder})
    else:
        for title, cells in conclusion.tables.items():
            print_table(list(map(str, cells.columns)), cells.to_numpy().tolist(), title=title)
        print_lines(*conclusion.sentences, "", 'lr = "tune"', *to_lines("tuned", tuned))
    if found.failed:
        raise FailedError(f"{len(found.failed)} runs failed: {next(iter(found.failed.values()))}")

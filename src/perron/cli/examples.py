"""``perron examples``: list the examples that come with perron, and copy them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perron._registry import lookup
from perron._storage.atomic import write_bytes
from perron.cli.app import App, print_lines, print_table, write_json
from perron.cli.options import Json, flag
from perron.errors import FileError

PACKAGE = Path(__file__).parents[1]

app = App(
    help="""List the examples that come with perron, or copy one.

    perron examples
    perron examples copy train_gpt
    """
)


def find_examples() -> dict[str, Path]:
    """Return the files of the examples by name: those in the installed package, or those at the top of the checkout."""
    folder = next((place for place in (PACKAGE / "examples", PACKAGE.parents[1] / "examples") if place.is_dir()), None)
    if folder is None:
        raise FileError(f"This installation of perron has no examples in {PACKAGE / 'examples'}. Install it again.")
    return {path.stem: path for path in sorted(folder.iterdir()) if path.suffix in {".py", ".toml", ".edges"}}


def summarize(path: Path) -> str:
    """Return the summary of an example: the first line of its docstring, its title, or its first comment."""
    if path.suffix == ".toml":
        import tomllib

        return str(tomllib.loads(path.read_text(encoding="utf-8"))["title"])
    return path.read_text(encoding="utf-8").partition("\n")[0].strip('"# ')


@app.callback(invoke_without_command=True)
def list_examples(ctx: typer.Context, as_json: Json = False) -> None:
    """List the examples, unless there is a command."""
    if ctx.invoked_subcommand is not None:
        return
    found = find_examples()
    if as_json:
        write_json([{"name": name, "file": str(path), "about": summarize(path)} for name, path in found.items()])
        return
    print_table(("name", "example"), ((name, summarize(path)) for name, path in found.items()))
    print_lines("To copy one into the current directory: perron examples copy NAME")


@app.command()
def copy(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="As listed.", autocompletion=lambda: list(find_examples()))
    ],
    force: Annotated[bool, flag("--force", "Overwrite a file of that name.")] = False,
) -> None:
    """Copy an example into the current directory.

    perron examples copy train_gpt
    """
    source = lookup(name.partition(".")[0], find_examples(), "example")
    target = Path(source.name)
    if target.exists() and not force:
        raise FileError(f"{target} exists already and was not overwritten. Use --force to overwrite it.")
    write_bytes(target, source.read_bytes())
    print_lines(f"{target} is written: {summarize(source)}")

"""Arguments and options that several commands take: the same name, meaning and help everywhere; with shell completion.

Completion answers while somebody types, so that it must not import what is slow: names are read from the text of the modules
that define them.
"""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from perron.cli.app import NETWORK, OUTPUT
from perron.errors import PerronError

PACKAGE = Path(__file__).parents[1]
SHIPPED = PACKAGE / "studies" / "shipped"
RULES = "random_integer, uniform, lazy, metropolis, balanced, spanning_trees, authors, or file for the file's own"
READABLE = (".graphml", ".edges", ".csv", ".npz")


# ---- completion


def names_in(file: str, variable: str) -> list[str]:
    """The keys of a dictionary in one of perron's files, which are texts, or names of functions; without importing it."""
    import ast

    for node in ast.parse((PACKAGE / file).read_text(encoding="utf-8")).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if not any(isinstance(target, ast.Name) and target.id == variable for target in targets):
            continue
        value: Any = getattr(node, "value", None)
        if isinstance(value, ast.Dict):
            return [key.value for key in value.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)]
        if isinstance(value, ast.DictComp) and isinstance(listed := value.generators[0].iter, ast.Tuple):
            return [entry.id for entry in listed.elts if isinstance(entry, ast.Name)]
    return []


def topologies(incomplete: str) -> list[str]:
    """Topologies, and files that hold a network."""
    return [*names_in("networks/topologies.py", "NAMES"), *files(incomplete, READABLE)]


def weight_rules() -> list[str]:
    """Weight rules."""
    return [*names_in("networks/mixing.py", "RULES"), "authors", "file"]


def algorithms() -> list[str]:
    """Algorithms."""
    return names_in("algorithms/__init__.py", "ALGORITHMS")


def goals() -> list[str]:
    """Goals of a design."""
    return names_in("design/designer.py", "GOALS")


def problems() -> list[str]:
    """Kinds of problems."""
    return names_in("studies/run.py", "PROBLEMS")


def datasets() -> list[str]:
    """Datasets that can be fetched."""
    return names_in("data/download.py", "MD5")


def shipped_studies() -> list[str]:
    """Studies that come with perron."""
    return [path.stem for path in sorted(SHIPPED.glob("*.toml"))]


def studies(incomplete: str) -> list[str]:
    """Studies that come with perron, and study files."""
    return [*shipped_studies(), *files(incomplete, (".toml",))]


def files(incomplete: str, suffixes: tuple[str, ...]) -> list[str]:
    """Files with these suffixes, and directories, that begin with what was typed."""
    folder = incomplete.rpartition("/")[0] + "/" if "/" in incomplete else ""
    try:
        found = sorted(Path(folder or ".").iterdir())
    except OSError:
        return []
    shown = [path for path in found if path.suffix in suffixes or (path.is_dir() and not path.name.startswith("."))]
    return [f"{folder}{path.name}" + ("/" if path.is_dir() else "") for path in shown]


# ---- arguments and options


def weights_option(default: str) -> Any:
    """--weights, with the default that a command has for networks without weights of their own."""
    told = f"Weight rule: {RULES} (default: the file's own, otherwise {default})."
    return typer.Option("--weights", metavar="RULE", help=told, rich_help_panel=NETWORK, autocompletion=weight_rules)


def out_option(told: str, metavar: str = "FILE") -> Any:
    """--out, where results are written."""
    return typer.Option("--out", metavar=metavar, help=told, rich_help_panel=OUTPUT)


def number_option(name: str, metavar: str, told: str, **limits: Any) -> Any:
    """A number."""
    return typer.Option(f"--{name}", metavar=metavar, help=told, **limits)


NETWORK_HELP = f"A topology (see perron graph --list), or a file: {', '.join(READABLE[:-1])} or {READABLE[-1]}."
_network = partial(typer.Argument, metavar="NAME|FILE", help=NETWORK_HELP, autocompletion=topologies)
Network = Annotated[str, _network()]
MaybeNetwork = Annotated[str | None, _network()]
Nodes = Annotated[
    int | None,
    typer.Option(
        "--nodes", "-n", metavar="N", help="Nodes of a named topology (default: 16).", rich_help_panel=NETWORK
    ),
]
Weights = Annotated[str | None, weights_option("random_integer")]
Seed = Annotated[
    int | None,
    typer.Option(
        "--seed", metavar="SEED", help="Seed of random topologies and weights (default: 0).", rich_help_panel=NETWORK
    ),
]
Options = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="An option of the topology, as probability=0.5; repeatable.",
        rich_help_panel=NETWORK,
    ),
]
Push = Annotated[
    Path | None,
    typer.Option(
        "--push",
        metavar="FILE",
        help="The push matrix, if NAME|FILE is the pull matrix alone.",
        rich_help_panel=NETWORK,
    ),
]
SearchSeed = Annotated[int, number_option("seed", "SEED", "Seed of the search.", min=0)]
StudyName = Annotated[
    str,
    typer.Argument(
        metavar="NAME|FILE",
        help="A study that comes with perron (see perron study list), or a .toml file.",
        autocompletion=studies,
    ),
]
Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a key of the study, as lr=0.01, nodes=[4,8] or problem.batch=50; repeatable.",
    ),
]
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The directory of a study that was run.")]
Workers = Annotated[
    int | None,
    number_option("workers", "N", "At most N runs at a time (default: one for each core; on a cluster, all).", min=1),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document, for programs.", rich_help_panel=OUTPUT)]


def writable(out: Path | None, *suffixes: str) -> None:
    """Refuse, before hours of work, a place where nothing can be written."""
    if out is None:
        return
    if suffixes and out.suffix.lower() not in suffixes:
        raise PerronError(f"Results go to a file that ends in {' or '.join(suffixes)}; got {out}.")
    if not out.parent.is_dir():
        raise PerronError(f"{out}: there is no directory {out.parent}; make it first.")
    if out.is_dir() or not os.access(out.parent, os.W_OK):
        raise PerronError(f"Cannot write to {out}; choose another file.")


def parsed(pairs: list[str]) -> dict[str, Any]:
    """The options given as KEY=NUMBER."""
    options = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        try:
            options[key] = json.loads(value)
        except json.JSONDecodeError:
            equals = ""
        if not equals or isinstance(options[key], bool) or not isinstance(options[key], int | float):
            raise PerronError(f"--set takes KEY=NUMBER, as probability=0.5; got {pair!r}.")
    return options

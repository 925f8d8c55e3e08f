"""Arguments and options that several commands share, so that they have the same name, meaning and help; shell completion."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perron.cli import _names
from perron.cli.app import NETWORK, OUTPUT
from perron.errors import PerronError

if TYPE_CHECKING:
    from perron.clock import Clock

LINKS = "Links"  # a group of options
SHIPPED = Path(__file__).parents[1] / "studies" / "shipped"
READABLE = (
    ".graphml",
    ".gexf",
    ".gml",
    ".net",
    ".json",
    ".mtx",
    ".edges",
    ".txt",
    ".csv",
    ".npz",
    ".gz",
)  # may hold a network


# ---- completion


def complete_networks(incomplete: str) -> list[str]:
    """Return topologies, and files that may hold a network."""
    return [*_names.TOPOLOGIES, *complete_files(incomplete, READABLE)]


def complete_studies(incomplete: str) -> list[str]:
    """Return the studies that come with perron, and study files."""
    return [*shipped_studies(), *complete_files(incomplete, (".toml",))]


def complete_files(incomplete: str, suffixes: tuple[str, ...]) -> list[str]:
    """Return the files with these suffixes, and the directories, in the directory typed so far."""
    folder = incomplete.rpartition("/")[0] + "/" if "/" in incomplete else ""
    try:
        paths = sorted(Path(folder or ".").iterdir())
    except OSError:
        return []
    shown = [path for path in paths if path.suffix in suffixes or (path.is_dir() and not path.name.startswith("."))]
    return [f"{folder}{path.name}" + ("/" if path.is_dir() else "") for path in shown]


def shipped_studies() -> list[str]:
    """Return the names of the studies that come with perron."""
    return [path.stem for path in sorted(SHIPPED.glob("*.toml"))]


# ---- arguments and options


def option(
    names: str, metavar: str, text: str, panel: str | None = None, choices: tuple[str, ...] = (), **settings: Any
) -> Any:
    """Return an option with a value.

    Args:
        names: its names, as ``--nodes -n``.
        metavar, text: the name of its value in the help, and its description.
        panel: the group of options that it belongs to.
        choices: names that shell completion offers.
        settings: of `typer.Option`, as ``min``.
    """
    if choices:
        settings["autocompletion"] = lambda: list(choices)
    return typer.Option(*names.split(), metavar=metavar, help=text, rich_help_panel=panel, **settings)


def flag(name: str, text: str, panel: str | None = None) -> Any:
    """Return an option without a value."""
    return typer.Option(name, help=text, rich_help_panel=panel)


def weights_option(default: str) -> Any:
    """Return --weights, with the command's default for networks without weights of their own."""
    rules = (*_names.WEIGHT_RULES, "authors")
    text = (
        f"Weight rule: {', '.join(rules)}, or file for the file's own (default: the file's own, otherwise {default})."
    )
    return option("--weights", "RULE", text, NETWORK, choices=(*rules, "file"))


def out_option(text: str, metavar: str = "FILE") -> Any:
    """Return --out."""
    return option("--out", metavar, text, OUTPUT)


def network_argument() -> Any:
    """Return the argument that names a network."""
    text = (
        "A topology (see perron graph --list), or a file: GraphML, GEXF, GML, Pajek, JSON, .mtx, edges, .csv or .npz."
    )
    return typer.Argument(metavar="NAME|FILE", help=text, autocompletion=complete_networks)


def study_argument() -> Any:
    """Return the argument that names a study."""
    text = "A study that comes with perron (see perron study list), or a .toml file."
    return typer.Argument(metavar="NAME|FILE", help=text, autocompletion=complete_studies)


Network = Annotated[str, network_argument()]
Nodes = Annotated[int | None, option("--nodes -n", "N", "Nodes of a named topology (default: 16).", NETWORK)]
Weights = Annotated[str | None, weights_option("random_integer")]
Seed = Annotated[int | None, option("--seed", "SEED", "Seed of random topologies and weights (default: 0).", NETWORK)]
Options = Annotated[
    list[str] | None,
    option("--set", "KEY=VALUE", "An option of the topology, as probability=0.5; repeatable.", NETWORK),
]
Push = Annotated[
    Path | None, option("--push", "FILE", "The push matrix, if NAME|FILE is the pull matrix alone.", NETWORK)
]
Undirected = Annotated[bool, flag("--undirected", "The edges of the file go both ways.", NETWORK)]
Component = Annotated[
    bool, flag("--largest-component", "Keep the largest strongly connected component of the file only.", NETWORK)
]
SearchSeed = Annotated[int, option("--seed", "SEED", "Seed of the search.", min=0)]
StudyName = Annotated[str, study_argument()]
Changes = Annotated[
    list[str] | None,
    option("--set", "KEY=VALUE", "Change a key of the study, as lr=0.01, nodes=[4,8] or problem.batch=50; repeatable."),
]
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The directory of a study that was run.")]
Workers = Annotated[
    int | None, option("--workers", "N", "At most N runs at a time (default: one per core; on a cluster, all).", min=1)
]
LinksFile = Annotated[
    str | None,
    option(
        "--links",
        "FILE|PRESET",
        f"Latencies and rates, for answers in seconds: a .csv, .npz, GML or GraphML file, or {', '.join(_names.PRESETS)}.",
        LINKS,
        choices=_names.PRESETS,
    ),
]
Size = Annotated[
    float | None,
    option(
        "--size",
        "BYTES",
        "Bytes of one model vector, as 4 times the parameters (not of all messages of a step: methods that send two vectors are "
        "counted with two).",
        LINKS,
    ),
]
ComputeTime = Annotated[
    str | None,
    option(
        "--compute",
        "SECONDS",
        "Seconds of one gradient; one for each node, as 0.1,0.2,0.1; or a distribution, as 'exponential(0.1)', "
        "'lognormal(MEAN,SIGMA)', 'stragglers(BASE,CHANCE,MORE)' or a .csv of measured seconds (default: that of the links' "
        "file, or 0).",
        LINKS,
    ),
]
ProtocolName = Annotated[
    str | None,
    option(
        "--protocol",
        "NAME",
        "rendezvous: as gloo, a message leaves when its receiver has asked for it (default); or eager.",
        LINKS,
        choices=("rendezvous", "eager"),
    ),
]
ReceiveAhead = Annotated[
    int | None,
    option(
        "--receive-ahead",
        "STEPS",
        "Steps by which receives are posted in advance, as receive_ahead of perron.Decentralized (0 to 16; default: 2).",
        LINKS,
        min=0,
        max=16,
    ),
]
Route = Annotated[bool, flag("--route", "Pairs without a link use the path of least latency.", LINKS)]
Condition = Annotated[
    float | None,
    option(
        "--condition",
        "KAPPA",
        "L / mu of the losses, on which the number of steps depends (default: 50).",
        LINKS,
        min=1,
    ),
]
Target = Annotated[
    float | None,
    option(
        "--target",
        "RATIO",
        "Seconds until |grad f|^2 is this share of its value at the start, between 0 and 1 (default: 1e-8; 1e-4 with --noise).",
        LINKS,
    ),
]
Json = Annotated[bool, flag("--json", "Print one JSON document, for programs.", OUTPUT)]


def noise_variance(noise: float | None) -> float | None:
    """Return sigma^2 of --noise SIGMA."""
    if noise is not None and not 0 <= noise < 1e150:
        raise PerronError(f"--noise is a standard deviation, a number that is not negative; got {noise}.")
    return None if noise is None else noise**2


def check_writable(out: Path | None, *suffixes: str) -> None:
    """Refuse a file that cannot be written, before hours of work."""
    if out is None:
        return
    if suffixes and out.suffix.lower() not in suffixes:
        raise PerronError(f"Results go to a file that ends in {' or '.join(suffixes)}; got {out}.")
    if not out.parent.is_dir():
        raise PerronError(f"{out}: there is no directory {out.parent}; make it first.")
    if out.is_dir() or not os.access(out.parent, os.W_OK):
        raise PerronError(f"Cannot write to {out}; choose another file.")


def parse_numbers(pairs: list[str] | None) -> dict[str, Any]:
    """Return the options given as KEY=NUMBER."""
    options = {}
    for pair in pairs or []:
        key, equals, value = pair.partition("=")
        try:
            options[key] = json.loads(value)
        except json.JSONDecodeError:
            equals = ""
        if not equals or isinstance(options[key], bool) or not isinstance(options[key], int | float):
            raise PerronError(f"--set takes KEY=NUMBER, as probability=0.5; got {pair!r}.")
    return options


def parse_compute(text: str) -> Any:
    """Return --compute: a number or distribution, or a list of them, as ``0.1,0.2`` or ``[0.1, exponential(0.2)]``."""
    inside = text.strip()
    bracketed = inside.startswith("[") and inside.endswith("]")
    inside = inside[1:-1] if bracketed else inside
    parts = [part.strip().strip("'\"") for part in re.split(r",(?![^()]*\))", inside)]
    if inside.lower().endswith(".csv") and not bracketed:
        return text
    if not all(parts):
        raise PerronError(f"--compute is one time, or one for each node, as 0.1,0.2,0.1; got {text!r}.")
    return parts if bracketed or len(parts) > 1 else parts[0]


def make_clock(
    links: str | None, size: float | None, compute: str | None, protocol: str | None, ahead: int | None, *, route: bool
) -> Clock | None:
    """Return the clock of the options about links; None without --links, which the others need."""
    if links is None:
        given = {"size": size, "compute": compute, "protocol": protocol, "receive-ahead": ahead, "route": route or None}
        if names := [f"--{name}" for name, value in given.items() if value is not None]:
            raise PerronError(f"{', '.join(names)}: on which links? Add --links FILE, or a preset, as --links gaia.")
        return None
    from perron.clock import Clock, Machines

    machines = Machines.read(links, route=route)
    times = None if compute is None else parse_compute(compute)
    if isinstance(times, list) and machines.nodes not in (None, len(times)):
        raise PerronError(
            f"--compute has {len(times)} value{'s' * (len(times) > 1)} for {machines.nodes} nodes; give one for all nodes, or "
            f"{machines.nodes} with commas between."
        )
    settings: dict[str, Any] = {"compute": times, "size": size, "protocol": protocol, "ahead": ahead}
    return Clock(machines, **{name: value for name, value in settings.items() if value is not None})

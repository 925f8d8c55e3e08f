"""``perron paper``: what holds in the paper."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perron.errors import PerronError

if TYPE_CHECKING:
    from perron.claims import Result

app = typer.Typer(help="The paper's claims, put to the test.", no_args_is_help=True)
WEIGHTINGS = 30  # of each graph, in the table of what the theorem asks for


class Effort(StrEnum):
    """How hard to look for counterexamples."""

    quick = "quick"
    full = "full"


@app.callback()
def _paper() -> None:
    """The paper's claims, put to the test."""  # a callback, so that ``check`` stays a command of its own


@app.command()
def check(
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY", help="Check this claim only, as 7h, or 7 for 7a to 7l; repeatable."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the searches.")] = 0,
    effort: Annotated[Effort, typer.Option(help="How hard to look for counterexamples.")] = Effort.quick,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with the counterexamples.")] = False,
    write: Annotated[Path | None, typer.Option(metavar="FILE.md", help="Also write the results as a page.")] = None,
) -> None:
    """Check the paper's claims numerically: a counterexample search for each. Exit code 1 if a verdict is not the expected one.

    perron paper check
    perron paper check --only 7h --only 8 --json
    perron paper check --effort full --write docs/paper.md
    """
    from rich.console import Console
    from rich.progress import track

    from perron.claims import EFFORT, checked, chosen

    if write is not None and only:
        raise PerronError("--write writes the page of all claims; leave out --only.")
    claims, screen = chosen(only or []), Console(stderr=True)
    shown = track(claims, "Looking for counterexamples", console=screen, transient=True, disable=not screen.is_terminal)
    results = [checked(claim, seed=seed, effort=EFFORT[effort.value]) for claim in shown]
    agree = sum(result.agrees for result in results)
    if write is not None:
        _write(write, results, seed, effort.value)
    if as_json:
        facts = {
            "seed": seed,
            "effort": effort.value,
            "agree": agree,
            "claims": [result.to_dict() for result in results],
        }
        sys.stdout.write(json.dumps(facts, allow_nan=False) + "\n")
    else:
        _print(results, agree)
    if agree < len(results):
        raise typer.Exit(1)


@app.command()
def theorem(
    network: Annotated[
        str, typer.Argument(metavar="NAME|FILE", help="A topology, or a .graphml, .edges, .csv or .npz file.")
    ],
    nodes: Annotated[
        int | None, typer.Option("--nodes", "-n", help="How many nodes, of a named topology (default 16).")
    ] = None,
    weights: Annotated[str | None, typer.Option(help="Weight rule, as in perron graph.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of random topologies and weights (default 0).")] = None,
    smoothness: Annotated[float, typer.Option(help="L.")] = 1.0,
    gap: Annotated[float, typer.Option(help="Delta = f(x_0) - f*.")] = 1.0,
    noise: Annotated[float, typer.Option(help="sigma.")] = 1.0,
    steps: Annotated[float, typer.Option(help="T.")] = 1e6,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Theorem 1 for a network, as printed and as corrected: block length, step, bound. Diagnostics: for steps ask perron advise.

    perron paper theorem exponential --nodes 16
    """
    from perron.named import named_network
    from perron.theory.theorem import TheoremOne

    _, mixing, _ = named_network(network, nodes, weights, seed, {}, None)
    constants = {"smoothness": smoothness, "gap": gap, "noise": noise, "steps": steps}
    printed, corrected = (TheoremOne.of(mixing, **constants, corrected=which).rows() for which in (False, True))
    if as_json:
        sys.stdout.write(json.dumps({"printed": dict(printed), "corrected": dict(corrected)}) + "\n")
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("", "as printed", "as corrected", title=Text(f"Theorem 1 on {mixing.name}"))
    for (label, one), (other, two) in zip(printed, corrected, strict=True):
        table.add_row(label if label == other else f"{label} / {other}", one, two)
    Console().print(table)


def _write(path: Path, results: list[Result], seed: int, effort: str) -> None:
    from perron.atomic import write_bytes
    from perron.claims.page import page
    from perron.claims.practicality import practicality

    rows = practicality(weightings=WEIGHTINGS)
    text = page(results, rows, seed=seed, effort=effort, weightings=WEIGHTINGS)
    write_bytes(path, text.encode())


def _print(results: list[Result], agree: int) -> None:
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    if not console.is_terminal:
        console.width = 120  # a file has room
    table = Table(box=SIMPLE, expand=True, padding=(0, 1, 1, 0))
    table.add_column("", no_wrap=True)
    table.add_column("the paper says", ratio=5)
    table.add_column("verdict", ratio=2)
    table.add_column("evidence", ratio=6)
    colours = {"holds": "green", "false": "red", "repaired": "yellow"}
    for result in results:
        claim, found = result.claim, result.evidence
        verdict = Text(found.verdict, style=colours[found.verdict])
        if found.verdict == "repaired":
            verdict.append(f": {claim.repair}", style="default")
        if not result.agrees:
            verdict.append(f"\nexpected: {claim.expected}", style="bold red")
        table.add_row(claim.key, Text(f"{claim.statement} ({claim.where})"), verdict, Text(found.text))
    console.print(table)
    counts = {word: sum(one.evidence.verdict == word for one in results) for word in colours}
    told = ", ".join(f"{number} {word}" for word, number in counts.items() if number)
    seconds = sum(result.seconds for result in results)
    line = (
        f"{len(results)} claims in {seconds:.0f} s: {told}. {agree} of {len(results)} verdicts are the expected ones."
    )
    console.print(line, soft_wrap=True, highlight=False)

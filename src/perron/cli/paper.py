"""``perron paper``: what holds in the paper."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perron import networks
from perron.cli.app import OUTPUT, App, screen, write_json
from perron.cli.options import Json, Network, Nodes, Options, SearchSeed, Seed, Weights, number_option, parsed, writable
from perron.errors import FailedError, PerronError

if TYPE_CHECKING:
    from perron.paper import Result

app = App(
    help="""Put the paper's claims to the test.

    perron paper check --only 7h           # a counterexample to a claim
    perron paper theorem exponential       # theorem 1 for a network
    """
)
WEIGHTINGS = 30  # of each graph, in the table of what the theorem asks for


class Effort(StrEnum):
    """How hard to look for counterexamples."""

    quick = "quick"
    full = "full"


@app.command()
def check(
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="KEY", help="Check this claim only, as 7h, or 7 for 7a to 7l; repeatable."),
    ] = None,
    seed: SearchSeed = 0,
    effort: Annotated[
        Effort, typer.Option("--effort", metavar="quick|full", help="How hard to look for counterexamples.")
    ] = Effort.quick,
    write: Annotated[
        Path | None,
        typer.Option("--write", metavar="FILE.md", help="Also write the results as a page.", rich_help_panel=OUTPUT),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check the paper's claims: a search for a counterexample to each.

    Exit code 3 if a verdict is not the expected one.

    perron paper check
    perron paper check --only 7h --only 8 --json
    perron paper check --effort full --write docs/paper.md
    """
    from rich.console import Console
    from rich.progress import track

    from perron.paper import EFFORT, checked, chosen

    if write is not None and only:
        raise PerronError("--write writes the page of all claims; leave out --only.")
    writable(write, ".md")
    claims, screen = chosen(only or []), Console(stderr=True)
    shown = track(claims, "Looking for counterexamples", console=screen, transient=True, disable=not screen.is_terminal)
    results = [checked(claim, seed=seed, effort=EFFORT[effort.value]) for claim in shown]
    agree = sum(result.agrees for result in results)
    if as_json:
        facts = {
            "seed": seed,
            "effort": effort.value,
            "agree": agree,
            "claims": [result.to_dict() for result in results],
        }
        write_json(facts)
    else:
        _print(results, agree)
    if write is not None:
        _write(write, results, seed, effort.value)
    if agree < len(results):
        others = ", ".join(result.claim.key for result in results if not result.agrees)
        raise FailedError(f"{len(results) - agree} verdicts are not the expected ones: {others}.")


@app.command()
def theorem(
    network: Network,
    nodes: Nodes = None,
    weights: Weights = None,
    seed: Seed = None,
    option: Options = None,
    smoothness: Annotated[float, number_option("smoothness", "L", "L, the largest curvature.")] = 1.0,
    noise: Annotated[float, number_option("noise", "SIGMA", "sigma, the noise of a node's gradient.")] = 1.0,
    gap: Annotated[float, number_option("gap", "DELTA", "Delta = f(x_0) - f*.")] = 1.0,
    steps: Annotated[float, number_option("steps", "T", "T, how many steps.")] = 1e6,
    as_json: Json = False,
) -> None:
    """Theorem 1 for a network, as printed and as corrected.

    Block length, step and bound, for diagnosis: for steps to train with, ask perron advise.

    perron paper theorem exponential --nodes 16
    perron paper theorem ring --nodes 8 --steps 1e7 --json
    """
    from perron.theory.theorem import TheoremOne

    _, mixing, _ = networks.load_network(network, nodes, weights, seed, parsed(option or []), None)
    constants = {"smoothness": smoothness, "gap": gap, "noise": noise, "steps": steps}
    printed, corrected = (TheoremOne.of(mixing, **constants, corrected=which).rows() for which in (False, True))
    if as_json:
        write_json({"printed": dict(printed), "corrected": dict(corrected)})
        return
    from rich.table import Table
    from rich.text import Text

    table = Table("", "as printed", "as corrected", title=Text(f"Theorem 1 on {mixing.name}"))
    for (label, one), (other, two) in zip(printed, corrected, strict=True):
        table.add_row(label if label == other else f"{label} / {other}", one, two)
    screen().print(table)


def _write(path: Path, results: list[Result], seed: int, effort: str) -> None:
    from perron._storage.atomic import write_bytes
    from perron.paper.page import page
    from perron.paper.practicality import practicality

    rows = practicality(weightings=WEIGHTINGS)
    text = page(results, rows, seed=seed, effort=effort, weightings=WEIGHTINGS)
    write_bytes(path, text.encode())


def _print(results: list[Result], agree: int) -> None:
    from rich.box import SIMPLE
    from rich.table import Table
    from rich.text import Text

    console = screen(120)
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

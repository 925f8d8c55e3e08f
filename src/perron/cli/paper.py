"""``perron paper``: checks of the paper's claims."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from perron import networks
from perron.cli.app import OUTPUT, App, console, print_table, write_json
from perron.cli.options import (
    Json,
    Network,
    Nodes,
    Options,
    SearchSeed,
    Seed,
    Weights,
    check_writable,
    option,
    parse_numbers,
)
from perron.errors import FailedError, PerronError

if TYPE_CHECKING:
    from perron.paper import CheckResult

app = App(
    help="""Put the paper's claims to the test.

    perron paper check --only 7h           # a counterexample to a claim
    perron paper theorem exponential       # theorem 1 for a network
    """
)
WEIGHTINGS = 30  # of each graph, in the table of the theorem's requirements
COLORS = {"holds": "green", "false": "red", "repaired": "yellow"}


class Effort(StrEnum):
    """How hard to search for counterexamples."""

    quick = "quick"
    full = "full"


@app.command()
def check(
    only: Annotated[
        list[str] | None,
        option("--only", "KEY", "Check this claim only, as 7h, or 7 for 7a to 7l; repeatable."),
    ] = None,
    seed: SearchSeed = 0,
    effort: Annotated[
        Effort, option("--effort", "quick|full", "How hard to search for counterexamples.")
    ] = Effort.quick,
    write: Annotated[Path | None, option("--write", "FILE.md", "Also write the results as a page.", OUTPUT)] = None,
    as_json: Json = False,
) -> None:
    """Check the paper's claims: search for a counterexample to each.

    Exit code 3 if a verdict is not the expected one.

    perron paper check
    perron paper check --only 7h --only 8 --json
    perron paper check --effort full --write docs/paper.md
    """
    from rich.console import Console
    from rich.progress import track

    from perron.paper import EFFORT, check_claim, select_claims

    if write is not None and only:
        raise PerronError("--write writes the page of all claims; leave out --only.")
    check_writable(write, ".md")
    claims, screen = select_claims(only or []), Console(stderr=True)
    tracked = track(claims, "Searching counterexamples", console=screen, transient=True, disable=not screen.is_terminal)
    results = [check_claim(claim, seed=seed, effort=EFFORT[effort.value]) for claim in tracked]
    others = [result.claim.key for result in results if not result.agrees]
    agree = len(results) - len(others)
    if as_json:
        documents = [result.to_dict() for result in results]
        write_json({"seed": seed, "effort": effort.value, "agree": agree, "claims": documents})
    else:
        _print(results, agree)
    if write is not None:
        _write(write, results, seed, effort.value)
    if others:
        raise FailedError(f"{len(others)} verdicts are not the expected ones: {', '.join(others)}.")


@app.command()
def theorem(
    network: Network,
    nodes: Nodes = None,
    weights: Weights = None,
    seed: Seed = None,
    options: Options = None,
    smoothness: Annotated[float, option("--smoothness", "L", "L, the largest curvature.")] = 1.0,
    noise: Annotated[float, option("--noise", "SIGMA", "sigma, the noise of a node's gradient.")] = 1.0,
    gap: Annotated[float, option("--gap", "DELTA", "Delta = f(x_0) - f*.")] = 1.0,
    steps: Annotated[float, option("--steps", "T", "T, how many steps.")] = 1e6,
    as_json: Json = False,
) -> None:
    """Evaluate Theorem 1 for a network, as printed and as repaired.

    Block length, step and bound, for diagnosis; for a step to train with, see perron advise. The theorem says nothing about runs
    shorter than one block.

    perron paper theorem exponential --nodes 16
    perron paper theorem ring --nodes 8 --steps 1e7 --json
    """
    from perron.theory.theorem import TheoremOne

    _, mixing, _ = networks.load_network(network, nodes, weights, seed, parse_numbers(options), None)
    constants = {"smoothness": smoothness, "gap": gap, "noise": noise, "steps": steps}
    both = [TheoremOne.of(mixing, **constants, corrected=which) for which in (False, True)]
    printed, corrected = (one.rows() for one in both)
    if as_json:
        write_json({"printed": dict(printed), "corrected": dict(corrected)})
        return
    rows = (
        (label if label == other else f"{label} / {other}", first, second)
        for (label, first), (other, second) in zip(printed, corrected, strict=True)
    )
    print_table(("", "as printed", "as repaired"), rows, title=f"Theorem 1 on {mixing.name}")
    if not all(one.applies for one in both):
        least = max(float(one.block) for one in both)
        told = f"Theorem 1 says nothing about runs shorter than one block: --steps has to be more than {least:.2g}."
        console().print(told, soft_wrap=True)


def _write(path: Path, results: list[CheckResult], seed: int, effort: str) -> None:
    from perron._storage.atomic import write_bytes
    from perron.paper.page import page
    from perron.paper.practicality import practicality

    rows = practicality(weightings=WEIGHTINGS)
    text = page(results, rows, seed=seed, effort=effort, weightings=WEIGHTINGS)
    write_bytes(path, text.encode())


def _print(results: list[CheckResult], agree: int) -> None:
    from rich.box import SIMPLE
    from rich.table import Table
    from rich.text import Text

    screen = console(120)
    table = Table(box=SIMPLE, expand=True, padding=(0, 1, 1, 0))
    table.add_column("", no_wrap=True)
    table.add_column("the paper's claim", ratio=5)
    table.add_column("verdict", ratio=2)
    table.add_column("evidence", ratio=6)
    for result in results:
        claim, evidence = result.claim, result.evidence
        verdict = Text(evidence.verdict, style=COLORS[evidence.verdict])
        if evidence.verdict == "repaired":
            verdict.append(f": {claim.repair}", style="default")
        if not result.agrees:
            verdict.append(f"\nexpected: {claim.expected}", style="bold red")
        table.add_row(claim.key, Text(f"{claim.statement} ({claim.where})"), verdict, Text(evidence.text))
    screen.print(table)
    counts = {verdict: sum(result.evidence.verdict == verdict for result in results) for verdict in COLORS}
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    line = f"{len(results)} claims in {sum(result.seconds for result in results):.0f} s: {verdicts}."
    line += f" {agree} of {len(results)} verdicts are the expected ones."
    screen.print(line, soft_wrap=True, highlight=False)

"""``perron advise``: what a network is good for, which algorithm and step to take, and what to expect."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Annotated

import typer

from perron import networks
from perron.cli.app import screen, write_json
from perron.cli.options import (
    Json,
    Network,
    Nodes,
    Options,
    Push,
    Seed,
    Weights,
    algorithms,
    number_option,
    parsed,
    problems,
)
from perron.errors import PerronError

if TYPE_CHECKING:
    from perron.advise import Advice, Fit, Needs
    from perron.networks.mixing import Mixing


def advise(
    network: Network,
    nodes: Nodes = None,
    weights: Weights = None,
    seed: Seed = None,
    option: Options = None,
    push: Push = None,
    algorithm: Annotated[
        list[str] | None,
        typer.Option(
            "--algorithm",
            metavar="NAME",
            help="An algorithm to look at; repeatable (default: one or two of each family).",
            autocompletion=algorithms,
        ),
    ] = None,
    problem: Annotated[
        str | None,
        typer.Option(
            "--problem",
            metavar="KIND",
            help="Take the constants from a problem: logistic, quadratic or images (digits).",
            autocompletion=problems,
        ),
    ] = None,
    smoothness: Annotated[
        float | None, number_option("smoothness", "L", "L, the largest curvature (default: 1).")
    ] = None,
    noise: Annotated[
        float | None,
        number_option("noise", "SIGMA", "sigma, the noise of a node's gradient: E|noise|^2 = sigma^2 (default: 1)."),
    ] = None,
    gap: Annotated[
        float | None, number_option("gap", "DELTA", "Delta, how far the loss has to fall (default: 1).")
    ] = None,
    steps: Annotated[int, number_option("steps", "T", "T, how many steps you can afford.", min=1)] = 10_000,
    dim: Annotated[int | None, number_option("dim", "D", "d, the length of the model, for bytes.", min=1)] = None,
    as_json: Json = False,
) -> None:
    """Advise on a network: its limits, an algorithm and a step.

    Is it valid, what limits it, which algorithm and learning rate, and what floor and speedup to expect.

    perron advise exponential --nodes 16 --steps 20000
    perron advise my-network.graphml --smoothness 4 --noise 2 --dim 100000
    perron advise ring --nodes 12 --problem logistic --json
    """
    from perron.advise import advise as advised

    options = parsed(option or [])
    drawn, mixing, notes = networks.load_network(network, nodes, weights, seed, options, push)
    named = mixing.pull_graph if mixing.has_pull else mixing.push_graph
    named = named if isinstance(drawn, tuple) else drawn
    labels = [named.label(node) for node in range(mixing.nodes)]
    fixed = push is not None or networks.is_file(network)
    needs, more = _needs(mixing, problem, smoothness, noise, gap, steps, dim)

    def family(size: int) -> Mixing:
        return networks.load_network(network, size, weights, seed, options, None)[1]

    found = advised(mixing, needs, algorithms=algorithm, family=None if fixed else family, labels=labels)
    if as_json:
        write_json(found.to_dict() | {"notes": [*notes, *more]})
        return
    _print(found, [*notes, *more], labels)


def _needs(
    mixing: Mixing,
    problem: str | None,
    smoothness: float | None,
    noise: float | None,
    gap: float | None,
    steps: int,
    dim: int | None,
) -> tuple[Needs, list[str]]:
    """The constants: those given, those of a problem, or one."""
    from perron.advise import Needs

    if noise is not None and not 0 <= noise < 1e150:
        raise PerronError(f"--noise is a standard deviation, a number that is not negative; got {noise}.")
    given = {
        "smoothness": smoothness,
        "noise_var": None if noise is None else noise**2,
        "gap": gap,
        "dim": dim,
    }
    found: dict[str, float | int | None] = {}
    notes = []
    if problem is not None:
        from perron._registry import lookup
        from perron.studies.run import PROBLEMS
        from perron.theory.constants import estimate

        made = lookup(problem, PROBLEMS, "problem")(mixing.nodes)
        constants = estimate(made)
        found = {
            "smoothness": constants.known_smoothness or constants.smoothness,
            "noise_var": constants.noise_var if constants.known_noise_var is None else constants.known_noise_var,
            "gap": constants.gap,
            "dim": constants.dim,
        }
        notes.append(
            f"{problem}: L = {found['smoothness']:.4g}, sigma^2 = {found['noise_var']:.4g}, Delta = {found['gap']:.4g}, "
            f"d = {found['dim']}; at its starting point"
        )
    merged = found | {name: value for name, value in given.items() if value is not None}
    return Needs(steps=steps, **merged), notes  # type: ignore[arg-type]


def _print(found: Advice, notes: list[str], labels: list[str]) -> None:
    from rich.box import SIMPLE
    from rich.table import Table
    from rich.text import Text

    console = screen(120)
    console.width = max(console.width, 120)
    needs = found.needs
    unit = "bytes/step" if needs.dim is not None else "d-vectors/step"
    columns = ("algorithm", "family", "stable lr", "lr", "floor", "from step", "speedup", unit, "")
    title = Text(
        f"{found.metrics.name}: {found.metrics.nodes} nodes; L = {needs.smoothness:.4g}, sigma^2 = {needs.noise_var:.4g}, "
        f"Delta = {needs.gap:.4g}, T = {needs.steps:,}"
    )
    table = Table(*columns, title=title, box=SIMPLE)
    for fit in found.fits:
        table.add_row(*_row(fit, bold=fit is found.chosen))
    console.print(table)
    console.print(
        "stable lr: the largest (or the interval); lr: the recommended; floor: predicted E|grad f(x-hat)|^2 at that lr;\n"
        "from step: where linear speedup begins; speedup: so many times more steps would a single node need.\n"
    )
    if found.limits:
        limits = Table(
            "matrix",
            "number",
            "its value",
            "link that matters most",
            "slope",
            "node",
            box=SIMPLE,
            title="What limits it",
        )
        for limit in found.limits:
            value = found.metrics.c if limit.what == "c" else getattr(getattr(found.metrics, limit.side), limit.what)
            link = f"{labels[limit.source]} -> {labels[limit.target]}"
            limits.add_row(limit.side, limit.what, f"{value:.4g}", link, f"{limit.slope:+.3g}", labels[limit.node])
        console.print(limits)
        console.print(
            "slope: of the number, by weight that the link is given; node: whose choice of weights matters most to the number.\n"
        )
    for line in [*found.words, *notes]:
        console.print(f"- {line}", highlight=False, markup=False)


def _row(fit: Fit, *, bold: bool) -> list[str]:
    name = f"[bold]{fit.name}[/bold]" if bold else fit.name
    if not fit.works or fit.stable is None:
        return [name, fit.family, "-", "-", "-", "-", "-", "-", fit.refusal or "no stable step"]
    stable = f"{fit.stable.upper:.4g}" if fit.stable.lower == 0 else f"{fit.stable.lower:.3g} .. {fit.stable.upper:.3g}"
    counts = {"transient": fit.transient, "bytes": fit.bytes_per_step}
    shown = {name: "-" if value is None or not isfinite(value) else f"{value:,.0f}" for name, value in counts.items()}
    speedup = "-" if fit.speedup is None or shown["transient"] == "-" else f"{fit.speedup:.3g}"
    return [
        name, fit.family, stable if fit.exact else f"~ {stable}", f"{fit.lr:.4g}", f"{fit.level:.3g}",
        shown["transient"], speedup, shown["bytes"], fit.remark,
    ]  # fmt: skip

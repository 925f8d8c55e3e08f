"""``perron advise``: the limits of a network, an algorithm and a step for it, and the results to expect."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Annotated, Any

from perron import networks
from perron.cli import _names
from perron.cli.app import console, waiting, write_json
from perron.cli.options import (
    Component,
    Json,
    Network,
    Nodes,
    Options,
    Push,
    Seed,
    Undirected,
    Weights,
    option,
    parse_numbers,
)
from perron.errors import PerronError

if TYPE_CHECKING:
    from perron.advise import Advice, Assessment
    from perron.networks.mixing import Mixing

WIDTH = 120  # columns that the table needs


def advise(
    network: Network,
    nodes: Nodes = None,
    weights: Weights = None,
    seed: Seed = None,
    options: Options = None,
    push: Push = None,
    undirected: Undirected = False,
    largest_component: Component = False,
    algorithm: Annotated[
        list[str] | None,
        option(
            "--algorithm",
            "NAME",
            "An algorithm to consider; repeatable (default: one or two of each family).",
            choices=_names.ALGORITHMS,
        ),
    ] = None,
    problem: Annotated[
        str | None,
        option(
            "--problem",
            "KIND",
            "Take the constants from a problem: logistic, quadratic or images (digits).",
            choices=_names.PROBLEMS,
        ),
    ] = None,
    smoothness: Annotated[float | None, option("--smoothness", "L", "L, the largest curvature (default: 1).")] = None,
    noise: Annotated[
        float | None,
        option("--noise", "SIGMA", "sigma, the noise of a node's gradient: E|noise|^2 = sigma^2 (default: 1)."),
    ] = None,
    gap: Annotated[float | None, option("--gap", "DELTA", "Delta, how far the loss has to fall (default: 1).")] = None,
    steps: Annotated[int, option("--steps", "T", "T, how many steps you can afford.", min=1)] = 10_000,
    dim: Annotated[int | None, option("--dim", "D", "d, the length of the model, for bytes.", min=1)] = None,
    as_json: Json = False,
) -> None:
    """Advise on a network: its limits, an algorithm and a step.

    Whether it is valid, its bottleneck links, an algorithm and a learning rate, and the floor and speedup to expect.

    perron advise exponential --nodes 16 --steps 20000
    perron advise my-network.graphml --smoothness 4 --noise 2 --dim 100000
    perron advise ring --nodes 12 --problem logistic --json
    """
    from perron.advise import Needs
    from perron.advise import advise as advise_on

    settings = parse_numbers(options)
    drawn, mixing, notes = networks.load_network(
        network, nodes, weights, seed, settings, push, undirected=undirected, largest_component=largest_component
    )
    graph = mixing.pull_graph if mixing.has_pull else mixing.push_graph
    graph = graph if isinstance(drawn, tuple) else drawn
    labels = [graph.label(node) for node in range(mixing.nodes)]
    if noise is not None and not 0 <= noise < 1e150:
        raise PerronError(f"--noise is a standard deviation, a number that is not negative; got {noise}.")
    given = {"smoothness": smoothness, "noise_var": None if noise is None else noise**2, "gap": gap, "dim": dim}
    constants = _estimate(problem, mixing.nodes, notes) if problem is not None else {}
    constants |= {name: value for name, value in given.items() if value is not None}

    def family(size: int) -> Mixing:
        return networks.load_network(network, size, weights, seed, settings, None)[1]

    fixed = push is not None or networks.is_file(network)
    needs = Needs(steps=steps, **constants)
    with waiting(f"comparing algorithms on {mixing.nodes:,} nodes"):
        advice = advise_on(mixing, needs, algorithms=algorithm, family=None if fixed else family, labels=labels)
    if as_json:
        write_json(advice.to_dict() | {"notes": notes})
    else:
        _print(advice, notes, labels)


def _estimate(problem: str, nodes: int, notes: list[str]) -> dict[str, Any]:
    """Return the constants of a problem, and add a note with them."""
    from perron._registry import lookup
    from perron.studies.run import PROBLEMS
    from perron.theory.constants import estimate

    among = {name: PROBLEMS[name] for name in _names.PROBLEMS}  # not text: the constants of a GPT would take hours
    constants = estimate(lookup(problem, among, "problem")(nodes))
    smoothness = constants.known_smoothness or constants.smoothness
    noise_var = constants.noise_var if constants.known_noise_var is None else constants.known_noise_var
    notes.append(
        f"{problem}: L = {smoothness:.4g}, sigma^2 = {noise_var:.4g}, Delta = {constants.gap:.4g}, d = {constants.dim}; "
        "at its starting point"
    )
    return {"smoothness": smoothness, "noise_var": noise_var, "gap": constants.gap, "dim": constants.dim}


def _print(advice: Advice, notes: list[str], labels: list[str]) -> None:
    from rich.box import SIMPLE
    from rich.table import Table
    from rich.text import Text

    screen = console(WIDTH)
    screen.width = max(screen.width, WIDTH)
    needs, metrics = advice.needs, advice.metrics
    unit = "bytes/step" if needs.dim is not None else "d-vectors/step"
    columns = ("algorithm", "family", "stable lr", "lr", "floor", "from step", "speedup", unit, "")
    title = Text(
        f"{metrics.name}: {metrics.nodes} nodes; L = {needs.smoothness:.4g}, sigma^2 = {needs.noise_var:.4g}, "
        f"Delta = {needs.gap:.4g}, T = {needs.steps:,}"
    )
    table = Table(*columns, title=title, box=SIMPLE)
    for fit in advice.assessments:
        table.add_row(*_row(fit, bold=fit is advice.chosen))
    screen.print(table)
    screen.print(
        "stable lr: the largest (or the interval); lr: the recommended; floor: predicted E|grad f(x-hat)|^2 at that lr;\n"
        "from step: where linear speedup begins; speedup: how many times more steps a single node would need.\n"
    )
    if advice.limits:
        names = ("matrix", "number", "value", "most sensitive link", "slope", "node")
        table = Table(*names, box=SIMPLE, title="Bottlenecks")
        for limit in advice.limits:
            value = metrics.c if limit.what == "c" else getattr(getattr(metrics, limit.side), limit.what)
            link = f"{labels[limit.source]} -> {labels[limit.target]}"
            table.add_row(limit.side, limit.what, f"{value:.4g}", link, f"{limit.slope:+.3g}", labels[limit.node])
        screen.print(table)
        screen.print(
            "slope: derivative of the number by the weight of the link; node: the node whose choice of weights matters most.\n"
        )
    for line in [*advice.words, *notes]:
        screen.print(f"- {line}", highlight=False, markup=False)


def _row(fit: Assessment, *, bold: bool) -> list[str]:
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

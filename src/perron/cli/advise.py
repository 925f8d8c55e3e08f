"""``perron advise``: the limits of a network, an algorithm and a step for it, and the results to expect."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from perron import networks
from perron.cli import _names
from perron.cli.app import console, waiting, write_json
from perron.cli.options import (
    LINKS,
    Component,
    ComputeTime,
    Condition,
    Json,
    LinksFile,
    Network,
    Nodes,
    Options,
    ProtocolName,
    Push,
    ReceiveAhead,
    Route,
    Seed,
    Size,
    Target,
    Undirected,
    Weights,
    check_writable,
    flag,
    make_clock,
    noise_variance,
    option,
    out_option,
    parse_numbers,
)
from perron.errors import PerronError

if TYPE_CHECKING:
    from perron.advise import Advice, Assessment, Goal, GradientCost, Needs, Timing
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
        option(
            "--noise",
            "SIGMA",
            "sigma, the noise of a node's gradient: E|noise|^2 = sigma^2 (default: 1; seconds are without noise unless given).",
        ),
    ] = None,
    gap: Annotated[float | None, option("--gap", "DELTA", "Delta, how far the loss has to fall (default: 1).")] = None,
    steps: Annotated[int, option("--steps", "T", "T, how many steps you can afford.", min=1)] = 10_000,
    dim: Annotated[int | None, option("--dim", "D", "d, the length of the model, for bytes.", min=1)] = None,
    wire: Annotated[
        str | None,
        option(
            "--wire",
            "CODEC",
            "Quantized messages: bf16, int8 or int4 (default: 32-bit numbers). --size is then that of the 32-bit vector.",
            choices=_names.WIRES,
        ),
    ] = None,
    links: LinksFile = None,
    size: Size = None,
    compute: ComputeTime = None,
    target: Target = None,
    condition: Condition = None,
    protocol: ProtocolName = None,
    receive_ahead: ReceiveAhead = None,
    route: Route = False,
    only_given: Annotated[
        bool, flag("--only-given", "Seconds of the given network only, not of other graphs on the same links.", LINKS)
    ] = False,
    out: Annotated[
        Path | None,
        out_option(
            "With --links: write the network that takes the fewest seconds, for perron.read_mixing.", "FILE.npz"
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Advise on a network: its limits, an algorithm and a step.

    Whether it is valid, its bottleneck links, an algorithm and a learning rate, and the floor and speedup to expect. With
    --links also which algorithm, and which graph on these links, takes the fewest seconds.

    perron advise exponential --nodes 16 --steps 20000
    perron advise my-network.graphml --smoothness 4 --noise 2 --dim 100000
    perron advise ring --nodes 12 --problem logistic --json
    perron advise exponential --links gaia --size 5.62e6 --compute 0.0254
    perron advise exponential --links gaia --size 5.62e6 --compute 0.0254 --wire int4 --out network.npz
    """
    from perron.advise import Needs
    from perron.advise import advise as advise_on
    from perron.theory.time_to_accuracy import CONDITION

    settings = parse_numbers(options)
    check_writable(out, ".npz")
    clock = make_clock(links, size, compute, protocol, receive_ahead, route=route)
    if clock is None and (target is not None or condition is not None or only_given or out is not None):
        raise PerronError(
            "--target, --condition, --only-given and --out are for seconds: add --links FILE, or a preset, as --links gaia."
        )
    if clock is not None and nodes is None and not networks.is_file(network):
        nodes = clock.record.nodes
    drawn, mixing, notes = networks.load_network(
        network, nodes, weights, seed, settings, push, undirected=undirected, largest_component=largest_component
    )
    graph = mixing.pull_graph if mixing.has_pull else mixing.push_graph
    graph = graph if isinstance(drawn, tuple) else drawn
    labels = [graph.label(node) for node in range(mixing.nodes)]
    if (
        clock is not None
        and clock.record.labels is not None
        and graph.labels is None
        and clock.record.nodes == len(labels)
    ):
        labels = list(clock.record.labels)
    given = {"smoothness": smoothness, "noise_var": noise_variance(noise), "gap": gap, "dim": dim}
    constants = _estimate(problem, mixing.nodes, notes) if problem is not None else {}
    constants |= {name: value for name, value in (given | {"wire": wire}).items() if value is not None}

    def family(size: int) -> Mixing:
        return networks.load_network(network, size, weights, seed, settings, None)[1]

    fixed = push is not None or networks.is_file(network)
    needs = Needs(steps=steps, **constants)
    with waiting(f"comparing algorithms on {mixing.nodes:,} nodes"):
        advice = advise_on(
            mixing,
            needs,
            algorithms=algorithm,
            family=None if fixed or clock is not None else family,
            labels=labels,
            clock=clock,
            target=target,
            condition=CONDITION if condition is None else condition,
            noisy=noise is not None and noise > 0,
            other_graphs=not only_given,
            progress=None,
        )
    if out is not None:
        notes.append(_written(advice, out))
    if as_json:
        write_json(advice.to_dict() | {"notes": notes})
    else:
        _print(advice, notes, labels)


def _written(advice: Advice, out: Path) -> str:
    """Write the network of the fastest choice, and return a note."""
    from perron.networks.files import write_mixing

    one = advice.fastest
    if one is None or one.mixing is None:
        raise PerronError(f"No network considered reaches the target, so that none is written to {out}.")
    note = f"written to {write_mixing(one.mixing, out)}: the network of {one.described}; lr = {one.lr:.4g}"
    faster = min(advice.times, key=lambda other: other.seconds)
    return note if faster is one else f"{note}; {faster.described} is faster and has no network of its own"


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
    from perron.advise.seconds import words_in_seconds

    needs, metrics = advice.needs, advice.metrics
    if advice.goal is not None:
        _print_seconds(advice.times, advice.goal, needs, screen)
        _print_gradients(advice.gradients, screen)
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
    said = words_in_seconds(advice.times, advice.goal) if advice.goal is not None else []
    for line in [*(line for line in advice.words if line not in said), *notes]:
        screen.print(f"- {line}", highlight=False, markup=False)


def _print_seconds(times: Sequence[Timing], goal: Goal, needs: Needs, screen: Any) -> None:
    """Print algorithms and graphs in seconds, fastest first."""
    from rich.box import SIMPLE
    from rich.table import Table
    from rich.text import Text

    from perron.advise.seconds import shown_timings, words_in_seconds

    noise = f"sigma^2 = {needs.noise_var:.4g}" if goal.noisy else "no noise"
    title = Text(f"Seconds until |grad f|^2 is {goal.target:g} of its start; L / mu = {goal.condition:g}, {noise}")
    table = Table("algorithm", "graph", title=title, box=SIMPLE)
    for name in ("ms/step", "steps", "seconds", "lr"):
        table.add_column(name, justify="right")
    table.add_column("critical cycle", max_width=60)
    shown = shown_timings(times)
    for number, one in enumerate(shown):
        known = isfinite(one.seconds)
        error = one.standard_error or 0.0
        spread = f" ± {1e3 * error:.1g}" if error > 1e-4 * one.step_seconds else ""
        cells = [
            one.algorithm, one.graph, f"{one.step_seconds * 1e3:.4g}{spread}", f"{one.steps:,.0f}" if known else "-",
            f"{one.seconds:.3g}" if known else "-", "-" if one.lr is None else f"{one.lr:.3g}",
            one.critical or one.remark,
        ]  # fmt: skip
        table.add_row(*(Text(cell, style="bold" if number == 0 and known else "") for cell in cells))
    screen.print(table)
    legend = (
        "The best graph of each algorithm, and the given network. ms/step: in the long run, set by the critical cycle, of nodes "
        "that wait for each other; steps: predicted, at the best lr, in units of 1/L if L was not given. A step of "
        "local_push_pull has 4 gradients. By number: made without knowing the links; in ring order: along a short ring."
    )
    if any(one.standard_error is not None for one in shown):
        legend += (
            " Compute times are random: ms/step are simulated, with standard errors above 0.01 %. Which cycle is critical is "
            "not known; the column shows that with the mean times."
        )
    screen.print(f"{legend}\n", highlight=False)
    for line in words_in_seconds(times, goal):
        screen.print(f"- {line}", highlight=False, markup=False)
    screen.print()


def _print_gradients(costs: Sequence[GradientCost], screen: Any) -> None:
    """Print what a gradient costs with local steps and quantized messages."""
    from rich.box import SIMPLE
    from rich.table import Table

    if not costs:
        return
    table = Table("algorithm", title="A gradient of each node on the given network", box=SIMPLE)
    for name in ("H", "messages", "ms", "sent by a node", "times fewer bytes"):
        table.add_column(name, justify="right")
    for one in costs:
        fewer = f"{costs[0].bytes / one.bytes:,.3g}" if one.bytes else "-"
        cells = (f"{one.seconds * 1e3:.4g}", f"{one.bytes / 1e6:,.3g} MB", fewer)
        table.add_row(one.algorithm, str(one.local_steps), one.wire or "full", *cells)
    screen.print(table)
    screen.print(
        "H: gradients for one exchange; full: messages of 32-bit numbers. centralized and diloco average by a ring all-reduce.\n",
        highlight=False,
    )


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

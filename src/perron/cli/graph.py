"""``perron graph``: how a network mixes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from perron import networks
from perron.cli.app import OUTPUT, console, print_lines, print_table, waiting, write_json
from perron.cli.options import (
    Component,
    ComputeTime,
    Json,
    LinksFile,
    Nodes,
    Options,
    ProtocolName,
    Push,
    ReceiveAhead,
    Route,
    Seed,
    Size,
    Undirected,
    Weights,
    flag,
    make_clock,
    network_argument,
    option,
    parse_numbers,
)
from perron.errors import PerronError

if TYPE_CHECKING:
    from perron.clock import Clock
    from perron.networks.mixing import Mixing

SHOWN = 32  # entries of a Perron vector


def graph(
    network: Annotated[str | None, network_argument()] = None,
    nodes: Nodes = None,
    weights: Weights = None,
    seed: Seed = None,
    options: Options = None,
    push: Push = None,
    undirected: Undirected = False,
    largest_component: Component = False,
    power: Annotated[int, option("--power", "M", "Also show s of A^m and B^m.")] = 1,
    show_list: Annotated[bool, flag("--list", "List the topologies and stop.")] = False,
    picture: Annotated[Path | None, option("--draw", "FILE", "Draw it (.png, .pdf or .svg).", OUTPUT)] = None,
    links: LinksFile = None,
    size: Size = None,
    compute: ComputeTime = None,
    protocol: ProtocolName = None,
    receive_ahead: ReceiveAhead = None,
    route: Route = False,
    as_json: Json = False,
) -> None:
    """Show how a network mixes, and draw it.

    Perron vectors, rho_2, beta, kappa, s, M and c of a named topology or a file, with advice. With --links also the time of
    a step, and the cycle of links that sets it.

    perron graph exponential --nodes 16
    perron graph --list
    perron graph random --nodes 12 --set probability=0.5 --seed 3 --draw random.png
    perron graph my-network.graphml --weights uniform --json
    perron graph p2p-Gnutella08.txt.gz --largest-component
    perron graph A.csv --push B.csv
    perron graph exponential --links gaia --size 5.62e6 --compute 0.0254
    """
    if (
        network is None
        and not show_list
        and any(given is not None for given in (links, size, compute, protocol, receive_ahead))
    ):
        raise PerronError(
            "Which network on these links? Name a topology or a file, as in perron graph ring --links gaia."
        )
    if show_list or network is None:
        if (
            any(given is not None for given in (nodes, weights, seed, options, push, picture))
            or undirected
            or largest_component
        ):
            raise PerronError(
                "Which network? Name a topology or a file, as in perron graph ring --nodes 8; without one, topologies are "
                "listed."
            )
        _list_topologies(as_json=as_json)
        return
    from perron.networks import spectral

    clock = make_clock(links, size, compute, protocol, receive_ahead, route=route)
    if clock is not None and nodes is None and not networks.is_file(network):
        nodes = clock.record.nodes
    with waiting(f"reading {network}"):
        drawn, mixing, notes = networks.load_network(
            network,
            nodes,
            weights,
            seed,
            parse_numbers(options),
            push,
            undirected=undirected,
            largest_component=largest_component,
        )
    if picture:
        from perron import plots

        notes.append(f"drawn in {plots.draw(drawn, picture)}")
    with waiting(f"computing how {mixing.nodes:,} nodes mix"):
        metrics = spectral.describe(mixing)
        powers = _sums_of_powers(mixing, power)
    notes += [f"{name} = {value:.4g}" for name, value in powers.items()]
    labels = None if isinstance(drawn, tuple) else drawn.labels
    advice = metrics.advice(labels)
    steps: dict[str, dict[str, Any]] = {}
    if clock is not None:
        with waiting("computing the time of a step"):
            steps = _times_of_steps(clock, mixing)
        for name, one in steps.items():
            link = ", set by " if one["known"] else "; "
            notes.append(f"{name}: {one['ms']:.4g} ms per step{link}{one['critical']}")
    if as_json:
        edges = max(side.edges for side in (metrics.pull, metrics.push) if side)
        times = {"steps": steps} if clock is not None else {}
        write_json(metrics.to_dict() | powers | times | {"edges": edges, "notes": notes, "advice": advice})
    else:
        _print_metrics(metrics, labels, [*advice, *notes])


def _times_of_steps(clock: Clock, mixing: Mixing) -> dict[str, dict[str, Any]]:
    """Return the milliseconds of a step of Push-Pull in its three orders, or of what the network's matrices allow."""
    from perron.algorithms import ALGORITHMS

    names = ["push_pull", "push_pull_pu", "push_pull_atc"]
    if not (mixing.has_pull and mixing.has_push):
        names = ["frost" if mixing.has_pull else "push_diging"]
    found = {}
    for name in names:
        cycle = clock.cycle_time(ALGORITHMS[name], mixing)
        found[name] = {
            "ms": cycle.seconds * 1e3, "critical": cycle.describe(), "links": cycle.links,
            "exact": cycle.exact, "known": bool(cycle.critical),
        }  # fmt: skip
    return found


def _sums_of_powers(mixing: Mixing, power: int) -> dict[str, float]:
    """Return s_{A^m} and s_{B^m}, if m is not 1."""
    from perron.networks import spectral

    sums = {}
    if power != 1 and mixing.has_pull:
        sums[f"s_A^{power}"] = spectral.mixing_sum(spectral.period_product(mixing, "pull"), power=power).value
    if power != 1 and mixing.has_push:
        sums[f"s_B^{power}"] = spectral.mixing_sum(spectral.period_product(mixing, "push"), power=power).value
    return sums


def _list_topologies(*, as_json: bool) -> None:
    from inspect import signature

    from perron.networks import topologies

    rows = [
        (
            name,
            (function.__doc__ or "").partition("\n")[0],
            [key for key in signature(function).parameters if key != "n"],
        )
        for name, function in topologies.NAMES.items()
    ]
    if as_json:
        write_json([dict(zip(("name", "about", "options"), row, strict=True)) for row in rows])
        return
    cells = ((name, about, ", ".join(options)) for name, about, options in rows)
    print_table(("topology", "description", "options"), cells, title="Topologies (the paper's six first)")


def _print_metrics(metrics: Any, labels: Sequence[str] | None, remarks: list[str]) -> None:
    from rich.table import Table
    from rich.text import Text

    title = f"{metrics.name}: {metrics.nodes} nodes"
    if metrics.period > 1:
        title += f"; metrics of the product over its period of {metrics.period} steps"
    table = Table("", "")
    table.add_column("pull (A)", justify="right")
    table.add_column("push (B)", justify="right")
    for row in metrics.rows():
        table.add_row(*row)
    screen = console()
    screen.print(Text(title, style="bold"), soft_wrap=True)
    screen.print(table)
    lines = []
    for side in ("pull", "push"):
        if (matrix := getattr(metrics, side)) is not None:
            names = [f"{label} " for label in labels[:SHOWN]] if labels else [""] * SHOWN
            shown = zip(names, matrix.perron, strict=False)
            entries = ", ".join(f"{name}{w:.4f}" if w >= 0.001 else f"{name}{w:.2g}" for name, w in shown)
            rest = f", ... ({metrics.nodes - SHOWN} more)" if metrics.nodes > SHOWN else ""
            lines.append(f"Perron vector of {side}: {entries}{rest}")
    print_lines(*lines, *(f"- {line}" for line in remarks))

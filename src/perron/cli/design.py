"""``perron design``: weights for a goal, on a named topology or a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from perron import networks
from perron.cli import _names
from perron.cli.app import NETWORK, print_lines, print_table, waiting, write_json
from perron.cli.options import (
    LINKS,
    Component,
    ComputeTime,
    Condition,
    Json,
    LinksFile,
    Nodes,
    Options,
    ProtocolName,
    ReceiveAhead,
    Route,
    Seed,
    Size,
    Target,
    check_writable,
    flag,
    make_clock,
    network_argument,
    noise_variance,
    option,
    out_option,
    parse_numbers,
    weights_option,
)
from perron.errors import PerronError

if TYPE_CHECKING:
    from perron.clock import Clock


def design(
    network: Annotated[str | None, network_argument()] = None,
    nodes: Nodes = None,
    weights: Annotated[str | None, weights_option("uniform")] = None,
    seed: Seed = None,
    options: Options = None,
    undirected: Annotated[
        bool,
        flag("--undirected", "The edges of the file go both ways; with --goal time: undirected graphs only.", NETWORK),
    ] = False,
    largest_component: Component = False,
    goal: Annotated[
        str,
        option(
            "--goal",
            "GOAL",
            "rate, fastest, sum, alignment, level, balanced, symmetric or leaf, for weights; or time, for a graph on --links; "
            "see docs/design.md.",
            choices=(*_names.GOALS, "time"),
        ),
    ] = "rate",
    step: Annotated[
        float | None, option("--step", "STEP", "Goal level: the effective step c lr at which noise is to be low.")
    ] = None,
    curvature: Annotated[
        list[float] | None,
        option(
            "--curvature", "H", "Goals rate and level: a curvature of the losses; repeatable (default: 0.1, 0.3 and 1)."
        ),
    ] = None,
    leaf: Annotated[int | None, option("--leaf", "NODE", "Goal leaf: the node with the slow uplink.")] = None,
    floor: Annotated[float, option("--floor", "SHARE", "Smallest weight, as a share of the equal weight.")] = 0.01,
    starts: Annotated[int, option("--starts", "N", "How many points to search from, besides the start.", min=1)] = 4,
    links: LinksFile = None,
    size: Size = None,
    compute: ComputeTime = None,
    target: Target = None,
    condition: Condition = None,
    noise: Annotated[
        float | None,
        option(
            "--noise",
            "SIGMA",
            "Goal time: sigma, the noise of a node's gradient, where |grad f|^2 is 2 at the start (default: 0).",
            LINKS,
        ),
    ] = None,
    protocol: ProtocolName = None,
    receive_ahead: ReceiveAhead = None,
    route: Route = False,
    directed: Annotated[bool, flag("--directed", "Goal time: digraphs and Push-Pull only.", LINKS)] = False,
    algorithm: Annotated[
        list[str] | None,
        option(
            "--algorithm",
            "NAME",
            "Goal time: an algorithm to consider; repeatable (default: push_pull in three orders, local_push_pull, "
            "exact_diffusion, extra).",
            LINKS,
            choices=_names.ALGORITHMS,
        ),
    ] = None,
    tries: Annotated[
        int | None, option("--tries", "N", "Goal time: networks tried for each algorithm (default: 300).", LINKS, min=1)
    ] = None,
    seconds: Annotated[
        float | None,
        option(
            "--seconds", "S", "Time that the search may take; the best found so far is the result (default: no limit)."
        ),
    ] = None,
    out: Annotated[Path | None, out_option("Write the weights, for perron.read_mixing.", "FILE.npz")] = None,
    as_json: Json = False,
) -> None:
    """Choose mixing weights, or a graph, for a goal.

    --weights gives the weights to improve on. The goal time searches for the graph and the algorithm that take the fewest
    seconds on given links. Ctrl-C, or the end of --seconds, ends a search with the best found so far.

    perron design exponential --nodes 16 --goal rate --out weights.npz
    perron design grid --goal level --step 0.05 --seconds 20
    perron design my-network.graphml --goal leaf --leaf 3
    perron design --goal time --links gaia --size 5.62e6 --compute 0.0254 --out network.npz
    """
    from perron.design import design as design_weights
    from perron.networks.files import holds_mixing, read_matrix, write_mixing
    from perron.networks.graph import Graph

    check_writable(out, ".npz")
    clock = make_clock(links, size, compute, protocol, receive_ahead, route=route)
    if goal == "time":
        if clock is None:
            raise PerronError("--goal time: on which links? Add --links FILE, or a preset, as --links gaia.")
        if network is not None:
            raise PerronError(f"--goal time searches among all graphs of the links; leave out {network!r}.")
        kind = "any" if directed == undirected else "directed" if directed else "undirected"
        settings = {"target": target, "condition": condition, "tries": tries, "algorithms": algorithm, "nodes": nodes}
        settings |= {"seconds": seconds}
        if noise:
            settings |= {"noise_var": noise_variance(noise), "start": 2.0}  # as in perron advise: 2 L Delta
        _search(clock, kind, settings | {"seed": seed}, out, as_json=as_json)
        return
    if clock is not None or directed or algorithm or any(one is not None for one in (target, condition, tries, noise)):
        raise PerronError(f"--links and options of its group are for --goal time; got --goal {goal}.")
    if network is None:
        raise PerronError("Which network? Name a topology or a file, as in perron design ring --nodes 8.")
    from_file = networks.is_file(network)
    from_mixing = from_file and holds_mixing(network)
    if weights is None and not from_mixing and not (from_file and (read_matrix(network).data != 1).any()):
        weights = "uniform"
    graph, start, notes = networks.load_network(
        network,
        nodes,
        weights,
        seed,
        parse_numbers(options),
        None,
        undirected=undirected,
        largest_component=largest_component,
    )
    if not isinstance(graph, Graph):
        raise PerronError(f"Weights are designed for graphs that do not vary in time, and {network} does.")
    with waiting(f"searching for weights of {graph.nodes} nodes"):
        designed = design_weights(
            graph,
            start.push_graph if from_mixing and start.has_pull and start.has_push else None,
            goal=goal,
            start=start,
            floor=floor,
            starts=starts,
            seed=seed or 0,
            curvature=tuple(curvature) if curvature else (0.1, 0.3, 1.0),
            step=step,
            leaf=leaf,
            seconds=seconds,
            progress=None,
        )
    if out is not None:
        notes.append(f"written to {write_mixing(designed.mixing, out)}")
    if as_json:
        write_json(designed.to_dict() | {"name": designed.mixing.name, "notes": [*designed.notes, *notes]})
        return
    print_lines(start.name, str(designed), *notes)


def _search(clock: Clock, kind: Any, settings: dict[str, Any], out: Path | None, *, as_json: bool) -> None:
    """Search for the graph that takes the fewest seconds, and print or write it."""
    from perron.design import fastest_graph
    from perron.design.time_records import COLUMNS
    from perron.networks.files import write_mixing

    given = {name: value for name, value in settings.items() if value is not None}
    with waiting(f"searching for a graph of {clock.record.nodes or given.get('nodes')} nodes"):
        found = fastest_graph(clock, kind=kind, **given)
    notes = found.notes
    if out is not None:
        notes = [*notes, f"written to {write_mixing(found.mixing, out)}; lr = {found.best.lr:.4g} / L"]
    if as_json:
        write_json(found.to_dict() | {"notes": notes})
        return
    tried = f"{sum(found.evaluations.values())} networks tried"
    print_table(COLUMNS, found.rows(), title=f"{found.goal}; {tried}")
    print_lines(
        "X | Y, and m + n links: models are pulled along the first graph, trackers pushed along the second. improved: by the",
        "search. steps: predicted, at the best lr, in units of 1/L; a step of local_push_pull has 4 gradients. By number: made",
        "without knowing the links; in ring order: along a short ring. centralized: for comparison, without a graph.",
        "",
    )
    print_lines(*(f"- {line}" for line in notes))

"""``perron design``: weights for a goal, on a named topology or a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from perron import networks
from perron.cli import _names
from perron.cli.app import print_lines, waiting, write_json
from perron.cli.options import (
    Component,
    Json,
    Network,
    Nodes,
    Options,
    Seed,
    Undirected,
    check_writable,
    option,
    out_option,
    parse_numbers,
    weights_option,
)
from perron.errors import PerronError


def design(
    network: Network,
    nodes: Nodes = None,
    weights: Annotated[str | None, weights_option("uniform")] = None,
    seed: Seed = None,
    options: Options = None,
    undirected: Undirected = False,
    largest_component: Component = False,
    goal: Annotated[
        str,
        option(
            "--goal",
            "GOAL",
            "rate, fastest, sum, alignment, level, balanced, symmetric or leaf; see docs/design.md.",
            choices=_names.GOALS,
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
    out: Annotated[Path | None, out_option("Write the weights, for perron.read_mixing.", "FILE.npz")] = None,
    as_json: Json = False,
) -> None:
    """Choose mixing weights for a goal, and show what they gain.

    --weights gives the weights to improve on.

    perron design exponential --nodes 16 --goal rate --out weights.npz
    perron design grid --goal level --step 0.05
    perron design my-network.graphml --goal leaf --leaf 3
    """
    from perron.design import design as design_weights
    from perron.networks.files import holds_mixing, read_matrix, write_mixing
    from perron.networks.graph import Graph

    check_writable(out, ".npz")
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
        )
    if out is not None:
        notes.append(f"written to {write_mixing(designed.mixing, out)}")
    if as_json:
        write_json(designed.to_dict() | {"name": designed.mixing.name, "notes": [*designed.notes, *notes]})
        return
    print_lines(start.name, str(designed), *notes)

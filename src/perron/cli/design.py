"""``perron design``: weights for a goal, on a named topology or a file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from perron import networks
from perron.cli.app import write_json
from perron.cli.options import (
    Json,
    Network,
    Nodes,
    Options,
    SearchSeed,
    Seed,
    goals,
    number_option,
    out_option,
    parsed,
    weights_option,
    writable,
)
from perron.errors import PerronError

FACTS = ("degree", "slowest_before", "slowest", "proven", "seconds_before", "seconds", "rho_2")  # of chosen links


def links(
    rates: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="Link rates: a .csv matrix, [i, j] the rate at which i receives from j, or edges."
        ),
    ],
    degree: Annotated[
        int, number_option("degree", "N", "How many others a node may hear, and how many may hear it.", min=1)
    ] = 3,
    message: Annotated[float, number_option("message", "SIZE", "Size of a message, in the unit of the rates.")] = 1.0,
    seed: SearchSeed = 0,
    out: Annotated[Path | None, out_option("Write the digraph (.graphml, .edges, .csv or .npz).")] = None,
    as_json: Json = False,
) -> None:
    """Choose a digraph from measured link rates.

    Slow links are left out, degrees are bounded, and the rest mixes well.

    perron links rates.csv --degree 3 --out network.graphml
    perron links rates.csv --message 8e6 --json
    """
    from perron.design import choose_graph
    from perron.networks.files import read_graph, read_matrix, write_graph
    from perron.networks.graph import Graph

    writable(out)
    matrix, labels = read_matrix(rates).toarray(), read_graph(rates).labels
    found = choose_graph(matrix, degree=degree, message=message, seed=seed, name=rates.stem)
    named = Graph(found.graph.nodes, found.graph.edges, labels=labels, name=found.graph.name)
    written = None if out is None else write_graph(named, out)
    edges = [(named.label(i), named.label(j)) for i, j in named.edges.tolist()]
    if as_json:
        facts = {field: getattr(found, field) for field in FACTS}
        write_json({"name": named.name, "nodes": named.nodes, "links": edges, "out": written} | facts)
        return
    lines = [str(found)]
    if written:
        lines.append(f"written to {written}")
    else:
        lines.append("links: " + ", ".join(f"{source} -> {target}" for source, target in edges))
    sys.stdout.write("\n".join(lines) + "\n")


def design(
    network: Network,
    nodes: Nodes = None,
    weights: Annotated[str | None, weights_option("uniform")] = None,
    seed: Seed = None,
    option: Options = None,
    goal: Annotated[
        str,
        typer.Option(
            "--goal",
            metavar="GOAL",
            help="rate, fastest, sum, alignment, level, balanced, symmetric or leaf; see docs/design.md.",
            autocompletion=goals,
        ),
    ] = "rate",
    step: Annotated[
        float | None, number_option("step", "STEP", "Goal level: the effective step c lr at which noise is to be low.")
    ] = None,
    curvature: Annotated[
        list[float] | None,
        number_option(
            "curvature", "H", "Goals rate and level: a curvature of the losses; repeatable (default: 0.1, 0.3 and 1)."
        ),
    ] = None,
    leaf: Annotated[int | None, number_option("leaf", "NODE", "Goal leaf: the node with the slow uplink.")] = None,
    floor: Annotated[float, number_option("floor", "SHARE", "Smallest weight, as a share of the equal weight.")] = 0.01,
    starts: Annotated[
        int, number_option("starts", "N", "How many points to search from, besides the start.", min=1)
    ] = 4,
    out: Annotated[Path | None, out_option("Write the weights, for perron.read_mixing.", "FILE.npz")] = None,
    as_json: Json = False,
) -> None:
    """Choose mixing weights for a goal, and show what they gain.

    --weights are those to improve on.

    perron design exponential --nodes 16 --goal rate --out weights.npz
    perron design grid --goal level --step 0.05
    perron design my-network.graphml --goal leaf --leaf 3
    """
    from perron.design import design as designed
    from perron.networks.files import holds_mixing, read_matrix, write_mixing
    from perron.networks.graph import Graph

    writable(out, ".npz")
    if weights is None and (
        not networks.is_file(network) or (not holds_mixing(network) and (read_matrix(network).data == 1).all())
    ):
        weights = "uniform"
    graph, start, notes = networks.load_network(network, nodes, weights, seed, parsed(option or []), None)
    if not isinstance(graph, Graph):
        raise PerronError(f"Weights are designed for graphs that do not vary in time, and {network} does.")
    two = networks.is_file(network) and holds_mixing(network) and start.has_pull and start.has_push
    found = designed(
        graph,
        start.push_graph if two else None,
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
        notes.append(f"written to {write_mixing(found.mixing, out)}")
    if as_json:
        write_json(found.to_dict() | {"name": found.mixing.name, "notes": [*found.notes, *notes]})
        return
    sys.stdout.write("\n".join([start.name, str(found), *notes]) + "\n")

"""``perron design``: weights for a goal, on a named topology or a file."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from perron.errors import PerronError
from perron.named import named_network, parsed


def links(
    rates: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="Link rates: a .csv matrix, [i, j] the rate at which i receives from j, or edges."
        ),
    ],
    degree: Annotated[int, typer.Option(min=1, help="How many others a node may hear, and how many may hear it.")] = 3,
    message: Annotated[float, typer.Option(help="Size of a message, in the unit of the rates.")] = 1.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the search.")] = 0,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the digraph (.graphml, .edges, .csv, .npz).")
    ] = None,
) -> None:
    """Choose a digraph from measured link rates: slow links are left out, degrees are bounded, the rest mixes well.

    perron links rates.csv --degree 3 --out network.graphml
    """
    from perron.design import choose_graph
    from perron.files import read_graph, read_matrix, write_graph
    from perron.graph import Graph

    if out is not None and not out.parent.is_dir():
        raise PerronError(f"--out {out}: there is no directory {out.parent}; make it first.")
    matrix, labels = read_matrix(rates).toarray(), read_graph(rates).labels
    found = choose_graph(matrix, degree=degree, message=message, seed=seed, name=rates.stem)
    named = Graph(found.graph.nodes, found.graph.edges, labels=labels, name=found.graph.name)
    lines = [str(found)]
    if out is not None:
        lines.append(f"written to {write_graph(named, out)}")
    else:
        lines.append("links: " + ", ".join(f"{named.label(i)} -> {named.label(j)}" for i, j in named.edges.tolist()))
    sys.stdout.write("\n".join(lines) + "\n")


def design(
    network: Annotated[
        str, typer.Argument(metavar="NAME|FILE", help="A topology, or a .graphml, .edges, .csv or .npz file.")
    ],
    goal: Annotated[
        str,
        typer.Option(help="rate, fastest, sum, alignment, level, balanced, symmetric or leaf; see docs/design.md."),
    ] = "rate",
    nodes: Annotated[
        int | None, typer.Option("--nodes", "-n", help="How many nodes, of a named topology (default 16).")
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(help="The weights to improve on, a rule as in perron graph (default: uniform, or the file's)."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of random topologies, weights and starts (default 0).")] = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="An option of the topology, as probability=0.5."),
    ] = None,
    step: Annotated[
        float | None, typer.Option(help="Goal level: the effective step c lr at which noise is to be low.")
    ] = None,
    curvature: Annotated[
        list[float] | None,
        typer.Option(help="Goals rate and level: a curvature of the losses; give several (default 0.1, 0.3 and 1)."),
    ] = None,
    leaf: Annotated[int | None, typer.Option(help="Goal leaf: the node with the slow uplink.")] = None,
    floor: Annotated[float, typer.Option(help="Smallest weight, as a share of the equal weight.")] = 0.01,
    starts: Annotated[int, typer.Option(min=1, help="How many points to search from, besides the start.")] = 4,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE.npz", help="Write the weights, for perron.read_mixing.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Choose mixing weights for a goal, and show what they gain.

    perron design exponential --nodes 16 --goal rate --out weights.npz
    perron design grid --goal level --step 0.05
    perron design my-network.graphml --goal leaf --leaf 3
    """
    from perron.design import design as designed
    from perron.files import holds_mixing, read_matrix, write_mixing
    from perron.graph import Graph

    if out is not None and out.suffix.lower() != ".npz":
        raise PerronError(f"--out takes a file that ends in .npz; got {out}.")
    if out is not None and not out.parent.is_dir():
        raise PerronError(f"--out {out}: there is no directory {out.parent}; make it first.")
    is_file = "." in network or "/" in network
    if weights is None and (not is_file or (not holds_mixing(network) and (read_matrix(network).data == 1).all())):
        weights = "uniform"
    graph, start, notes = named_network(network, nodes, weights, seed, parsed(option or []), None)
    if not isinstance(graph, Graph):
        raise PerronError(f"Weights are designed for graphs that do not vary in time, and {network} does.")
    two = is_file and holds_mixing(network) and start.has_pull and start.has_push
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
        sys.stdout.write(
            json.dumps(found.to_dict() | {"name": found.mixing.name, "notes": [*found.notes, *notes]}) + "\n"
        )
        return
    sys.stdout.write("\n".join([start.name, str(found), *notes]) + "\n")

"""``perron links``: a digraph from measured link rates."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perron.cli.app import print_lines, write_json
from perron.cli.options import Json, SearchSeed, check_writable, option, out_option

FIELDS = ("degree", "slowest_before", "slowest", "proven", "seconds_before", "seconds", "rho_2")


def links(
    rates: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="Link rates: a .csv matrix, [i, j] the rate at which i receives from j, or edges."
        ),
    ],
    degree: Annotated[
        int, option("--degree", "N", "How many in-neighbors and out-neighbors a node may have.", min=1)
    ] = 3,
    message: Annotated[float, option("--message", "SIZE", "Size of a message, in the unit of the rates.")] = 1.0,
    seed: SearchSeed = 0,
    out: Annotated[Path | None, out_option("Write the digraph (.graphml, .edges, .csv or .npz).")] = None,
    as_json: Json = False,
) -> None:
    """Choose a digraph from measured link rates.

    It avoids slow links, bounds the degrees, and mixes well.

    perron links rates.csv --degree 3 --out network.graphml
    perron links rates.csv --message 8e6 --json
    """
    from perron.design import choose_graph
    from perron.networks.files import read_graph, read_matrix, write_graph
    from perron.networks.graph import Graph

    check_writable(out)
    matrix, labels = read_matrix(rates).toarray(), read_graph(rates).labels
    choice = choose_graph(matrix, degree=degree, message=message, seed=seed, name=rates.stem)
    graph = Graph(choice.graph.nodes, choice.graph.edges, labels=labels, name=choice.graph.name)
    written = None if out is None else write_graph(graph, out)
    edges = [(graph.label(i), graph.label(j)) for i, j in graph.edges.tolist()]
    if as_json:
        fields = {field: getattr(choice, field) for field in FIELDS}
        write_json({"name": graph.name, "nodes": graph.nodes, "links": edges, "out": written} | fields)
        return
    listed = "links: " + ", ".join(f"{source} -> {target}" for source, target in edges)
    print_lines(str(choice), listed if written is None else f"written to {written}")

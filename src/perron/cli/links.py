"""``perron links``: a digraph from measured link rates."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perron.cli.app import print_lines, write_json
from perron.cli.options import Json, SearchSeed, check_writable, option, out_option
from perron.errors import PerronError

if TYPE_CHECKING:
    from perron._typing import FloatArray

FIELDS = ("degree", "slowest_before", "slowest", "proven", "seconds_before", "seconds", "rho_2")


def links(
    rates: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="Link rates: a .csv matrix, [i, j] the rate at which i receives from j, or edges; a file of links (as of "
            "perron launch --measure) or a preset, as gaia, in bytes per second.",
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
    perron links measured.csv --message 5.62e6
    """
    from perron.clock.files import holds_links
    from perron.design import choose_graph
    from perron.networks.builder import is_file
    from perron.networks.files import read_graph, read_matrix, write_graph
    from perron.networks.graph import Graph

    check_writable(out)
    timed = holds_links(rates) or not (rates.exists() or is_file(str(rates)))  # or a preset, misspelt
    matrix, labels = _rates_of(rates) if timed else (read_matrix(rates).toarray(), read_graph(rates).labels)
    choice = choose_graph(matrix, degree=degree, message=message, seed=seed, name=rates.stem)
    graph = Graph(choice.graph.nodes, choice.graph.edges, labels=labels, name=choice.graph.name)
    written = None if out is None else write_graph(graph, out)
    edges = [(graph.label(i), graph.label(j)) for i, j in graph.edges.tolist()]
    if as_json:
        fields = {field: getattr(choice, field) for field in FIELDS}
        write_json({"name": graph.name, "nodes": graph.nodes, "links": edges, "out": written} | fields)
        return
    listed = "links: " + ", ".join(f"{source} -> {target}" for source, target in edges)
    lines = [str(choice), listed if written is None else f"written to {written}"]
    if timed:
        lines.append(f"Rates are in bytes per second. Latencies do not count here; where they do: {_by_time(rates)}.")
    print_lines(*lines)


def _rates_of(path: Path) -> tuple[FloatArray, Sequence[str] | None]:
    """The rate of each link of a file of links if it is used alone, and the labels of the nodes."""
    import numpy as np

    from perron.clock import Machines

    machines = Machines.read(path)
    n = machines.graph.nodes
    rates = np.minimum(machines.rate_matrix, np.minimum(machines.up, np.reshape(machines.down, (-1, 1))))
    np.fill_diagonal(rates, 0.0)
    if (unlimited := np.argwhere(np.isinf(rates))).size:
        target, source = unlimited[0].tolist()
        raise PerronError(
            f"{path}: link {machines.label(source)} -> {machines.label(target)} has no rate, by which perron links chooses. "
            f"State the rates of all {n} nodes' links, or choose by latencies, too: {_by_time(path)}."
        )
    return rates, machines.labels


def _by_time(path: Path) -> str:
    return f"perron design --goal time --links {path} --size BYTES"

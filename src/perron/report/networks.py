"""The digraphs of a study: positions of nodes and links, Perron weights, and the numbers that decide how they mix."""

from __future__ import annotations

from typing import Any

from perron import plots
from perron._typing import FloatArray
from perron.errors import PerronError
from perron.networks.graph import Graph
from perron.networks.spectral import MatrixMetrics, NetworkMetrics, describe
from perron.studies.conclusions import text
from perron.studies.conclusions.base import Table
from perron.studies.results import Outcome
from perron.studies.run import Run

MOST_NODES, MOST_EDGES = 120, 2000  # of a network that is drawn in the page
MOST = 100  # networks
MEANINGS = {
    "nodes, links": "the number of nodes, and of links between different nodes",
    "rho_2": "decay rate: how much of the nodes' disagreement is left after each step in the end (0: none, 1: all)",
    "kappa": "skewness: how many times as much the node that counts most counts as the one that counts least (1: all alike)",
    "beta": "contraction: the share of disagreement that a step leaves for sure, in the norm of the paper",
    "s": "mixing sum: all disagreement that is ever left behind, added up; large for slow networks",
    "c": "alignment n pi_A^T pi_B: Push-Pull moves as if its learning rate were c times lr",
    "A, B": "the matrix with which models are pulled (rows sum to one) and the one with which gradients are pushed (columns do)",
}


def networks(outcome: Outcome) -> tuple[list[dict[str, Any]], Table | None, list[str]]:
    """Return the drawings, the table of all networks, and the networks that could not be made, as text."""
    drawn, rows, lost = [], [], []
    different = {
        (run.columns["topology"], run.nodes, run.weights, run.network_seed): run for run in reversed(outcome.study.runs)
    }
    several = {name: len({key[place] for key in different}) > 1 for place, name in ((2, "weights"), (3, "seed"))}
    chosen = list(reversed(different.values()))
    if len(chosen) > MOST:
        lost.append(f"The study has {len(chosen)} networks; the first {MOST} are shown.")
    for run in chosen[:MOST]:
        title = f"{text.readable(run.columns['topology'])}, n = {run.nodes}"
        title += f", weights {text.readable(run.weights)}" if several["weights"] else ""
        title += f", seed {run.network_seed}" if several["seed"] else ""
        try:
            mixing = run.mixing()
            metrics = describe(mixing)
        except PerronError as error:
            lost.append(f"{title}: {error}")
            continue
        sides = {
            side: _side(_placed(graph, run), each)
            for side, graph, each in (
                ("pull", mixing.pull_graph if mixing.has_pull else None, metrics.pull),
                ("push", mixing.push_graph if mixing.has_push else None, metrics.push),
            )
            if graph is not None and each is not None
        }
        rows.append(_row(run, metrics, several))
        drawn.append({"title": title, "nodes": run.nodes, "period": metrics.period, "advice": metrics.advice()} | sides)
    return drawn, text.table(rows) if rows else None, lost


def _placed(graph: Graph, run: Run) -> Graph:
    """Return the graph with the positions of its topology, which matrices do not have."""
    laid_out = run.graph()
    first = laid_out[0] if isinstance(laid_out, tuple) else laid_out
    return Graph(graph.nodes, graph.edges, labels=first.labels, positions=first.positions)


def _side(graph: Graph, metrics: MatrixMetrics) -> dict[str, Any]:
    """Return the drawing of one matrix: node positions, Perron weights, and links ``[source, target, bend]``."""
    drawing: dict[str, Any] = {
        "weights": [float(f"{weight:.4g}") for weight in metrics.perron.tolist()],
        "labels": [graph.label(node) for node in range(graph.nodes)],
        "hears": [graph.sources(node).tolist() for node in range(graph.nodes)],
    }
    if graph.nodes > MOST_NODES or len(graph.edges) > MOST_EDGES:
        return drawing | {"at": None}
    where = plots.layout(graph)
    reach = plots.node_radius(graph, where)
    one_way, both_ways = plots.split_links(graph)
    return drawing | {
        "at": [[round(float(x), 4), round(float(y), 4)] for x, y in where],
        "room": round(reach, 4),
        "arrows": _bent(where, one_way, reach),
        "lines": _bent(where, both_ways, reach),
        "undirected": graph.is_symmetric,
    }


def _bent(where: FloatArray, pairs: list[tuple[int, int]], reach: float) -> list[list[float]]:
    return [[source, target, plots.link_bend(where, source, target, reach=reach)] for source, target in pairs]


def _row(run: Run, metrics: NetworkMetrics, several: dict[str, bool]) -> dict[str, str]:
    """Return a row of the table of networks."""
    row = {"topology": text.readable(run.columns["topology"]), "nodes": str(run.nodes)}
    row |= {"weights": text.readable(run.weights)} if several["weights"] else {}
    row |= {"seed": str(run.network_seed)} if several["seed"] else {}
    row["links"] = str(max(each.edges for each in (metrics.pull, metrics.push) if each))
    row |= {"c": f"{metrics.c:.4g}"} if metrics.c is not None else {}
    for symbol, _, pull, push in metrics.rows():
        if symbol in ("rho_2", "beta", "kappa", "s"):
            row |= {f"{symbol} of A": pull, f"{symbol} of B": push}
    return row

"""The digraphs of a study: positions of nodes and links, Perron weights, and the numbers that decide how they mix."""

from __future__ import annotations

from typing import Any

from perron import plots
from perron._typing import FloatArray
from perron.algorithms.codecs import wire_sizes
from perron.clock import Clock, CycleTime
from perron.errors import PerronError
from perron.networks.graph import Graph
from perron.networks.mixing import Mixing
from perron.networks.spectral import MatrixMetrics, NetworkMetrics, describe
from perron.report.curves import size_of
from perron.studies.conclusions import text
from perron.studies.conclusions.base import Table
from perron.studies.results import Outcome
from perron.studies.run import Run

MOST_NODES, MOST_EDGES = 120, 2000  # of a network that is drawn in the page
MOST = 100  # networks
MOST_TIMED, MOST_CLOCKS = 24, 4  # cycle times of a page, and of a network
Link = tuple[int, int]
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
    different = {_network_of(run): run for run in reversed(outcome.study.runs)}
    several = {name: len({key[place] for key in different}) > 1 for place, name in ((2, "weights"), (3, "seed"))}
    chosen = list(reversed(different.values()))
    timed = 0
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
        times, critical = _times(outcome, run, mixing) if timed < MOST_TIMED else ([], ())
        timed += len(times)
        sides = {
            side: _side(_placed(graph, run), each, critical)
            for side, graph, each in (
                ("pull", mixing.pull_graph if mixing.has_pull else None, metrics.pull),
                ("push", mixing.push_graph if mixing.has_push else None, metrics.push),
            )
            if graph is not None and each is not None
        }
        rows.append(_row(run, metrics, several))
        about = {"title": title, "nodes": run.nodes, "period": metrics.period, "advice": metrics.advice()}
        drawn.append(about | {"times": times} | sides)
    return drawn, text.table(rows) if rows else None, lost


def _network_of(run: Run) -> tuple[str, int, str, int]:
    """What decides the network of a run."""
    return run.columns["topology"], run.nodes, run.weights, run.network_seed


def _times(outcome: Outcome, first: Run, mixing: Mixing) -> tuple[list[str], tuple[Link, ...]]:
    """Return the seconds per step of the algorithms that run on a network, as text, and the critical links of the first."""
    if not first.clock or first.nodes > MOST_NODES:
        return [], ()
    runs = {
        (run.columns["algorithm"], str(run.clock)): run
        for run in reversed(outcome.study.runs)
        if _network_of(run) == _network_of(first)
    }
    sentences, critical = list[str](), tuple[Link, ...]()
    varying = [key for key, values in outcome.study.clock.items() if len(values) > 1]
    for run in list(reversed(runs.values()))[:MOST_CLOCKS]:
        if (found := _cycle(run, mixing)) is None:
            continue
        clock, cycle = found
        settings = "".join(f", {key} {run.clock[key]}" for key in varying)
        what = f"{text.algorithm_title(run.columns['algorithm'])}{settings}"
        why = f", set by {cycle.describe(clock.record.label)}" if cycle.critical else ""
        sentences.append(f"{what}: {cycle.seconds:.4g} s per step{why}.")
        critical = critical or cycle.links
    return sentences, critical


def _cycle(run: Run, mixing: Mixing) -> tuple[Clock, CycleTime] | None:
    """Return the clock of a run and its cycle time; None if it cannot be computed here."""
    try:
        clock = run.build_clock()
        if clock is None:
            return None
        dim, number = (1, 4) if clock.size is not None else size_of(run)[:2]
        sizes: Any = wire_sizes(run.wire, dim, number)._asdict()
        return clock, clock.cycle_time(run.build_algorithm(), mixing, **sizes, rounds=run.rounds)
    except Exception:  # files and code of the user's own may not be here, and may raise anything
        return None


def _placed(graph: Graph, run: Run) -> Graph:
    """Return the graph with the positions of its topology, which matrices do not have."""
    laid_out = run.graph()
    first = laid_out[0] if isinstance(laid_out, tuple) else laid_out
    return Graph(graph.nodes, graph.edges, labels=first.labels, positions=first.positions)


def _side(graph: Graph, metrics: MatrixMetrics, critical: tuple[Link, ...] = ()) -> dict[str, Any]:
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
        "critical": _bent(where, [link for link in critical if link[0] in graph.sources(link[1])], reach),
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

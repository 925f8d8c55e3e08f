"""Graphs on given machines that are worth a comparison in seconds, and starts of a search for better ones.

Rings and circulant graphs by number are what a user takes who does not know the links; in the order of a short tour they avoid
slow ones. Links faster than a threshold are a start of their own: where several slow links set the time of a step, dropping
one of them gains nothing, and a search by single links would stop.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from perron._registry import public_dir
from perron._typing import FloatArray, IntArray
from perron.clock.machines import Machines
from perron.clock.overlays import delays, minimum_spanning_tree, ring
from perron.errors import PerronError
from perron.networks import topologies
from perron.networks.graph import Graph

THRESHOLDS = (1.0, 1.3, 1.7, 2.2, 3.0)  # links of a threshold graph, in multiples of those at which it is connected
MOST = 8  # links per node of a threshold graph
MANY = 30  # nodes; with more, there are fewer thresholds
NEAREST = (2, 3)  # fastest links of every node


class Candidate(NamedTuple):
    """A graph with a name for tables.

    Attributes:
        graph: one, or one for each step of a period.
        plain: whether it does not depend on the links: what a user takes who does not know them.
    """

    name: str
    graph: Graph | tuple[Graph, ...]
    plain: bool = False

    @property
    def directed(self) -> bool:
        """Whether some link has no way back."""
        return isinstance(self.graph, tuple) or not self.graph.is_symmetric


def tour(machines: Machines, size: float) -> IntArray:
    """Return the nodes in the order of a short directed ring; missing links count as paths of others."""
    n = machines.graph.nodes
    complete = len(machines.graph.edges) >= n * (n - 1)
    following = dict(ring(machines if complete else machines.routed(), size).edges.tolist()) if n > 1 else {}
    order = [0]
    while len(order) < n:
        order.append(following[order[-1]])
    return np.array(order, dtype=np.int64)


def candidates(machines: Machines, size: float, *, order: Sequence[int] | IntArray | None = None) -> list[Candidate]:
    """Return the graphs of all kinds whose links exist, strongly connected, each once.

    Args:
        machines: the machines, with a known number of nodes.
        size: bytes of a message.
        order: nodes in the order of a short ring; that of `tour` if None.
    """
    n = machines.graph.nodes
    if n < 2:
        return []
    order = tour(machines, size) if order is None else np.asarray(order)
    by_number = np.arange(n)
    shifts = [2**k for k in range((n - 1).bit_length())]
    found = [
        Candidate("ring by number", _circulant(by_number, [1], machines), plain=True),
        Candidate("ring both ways by number", _circulant(by_number, [1, -1], machines), plain=True),
        Candidate("exponential by number", _circulant(by_number, shifts, machines), plain=True),
        Candidate("one-peer exponential", _one_peer(by_number, machines), plain=True),
        Candidate("ring", _circulant(order, [1], machines)),
        Candidate("ring both ways", _circulant(order, [1, -1], machines)),
        Candidate("shifts 1, 3", _circulant(order, [1, 3], machines)),
        Candidate("exponential in ring order", _circulant(order, shifts, machines)),
        Candidate(
            "exponential in ring order, both ways", _circulant(order, [*shifts, *(-s for s in shifts)], machines)
        ),
        Candidate("one-peer in ring order", _one_peer(order, machines)),
    ]
    with suppress(PerronError):  # links both ways may not join all nodes
        found.append(Candidate("minimum spanning tree", minimum_spanning_tree(machines, size)))
    seconds = delays(machines, size, compute=0.0)
    seconds = np.where(np.isneginf(seconds), np.inf, seconds)
    trees = [one.graph for one in found if one.name == "minimum spanning tree" and isinstance(one.graph, Graph)]
    found += [_nearest(machines, seconds, count, tree) for tree in trees for count in NEAREST]
    found += _thresholds(machines, seconds)
    return _distinct(machines, found)


def of_nodes(machines: Machines, nodes: int) -> Machines:
    """Return machines with a known number of nodes: those given for any number get one."""
    machines.check_nodes(nodes)
    if machines.nodes is not None:
        return machines
    targets, sources = np.indices((nodes, nodes)).reshape(2, -1)
    latency, rate = (of(sources, targets).reshape(nodes, nodes) for of in (machines.latencies, machines.rates))
    return machines.changed(latency=latency, rate=rate)


def exists(machines: Machines, graph: Graph | tuple[Graph, ...]) -> bool:
    """Return whether all links of a graph exist."""
    links = machines.graph.adjacency().toarray() > 0
    return all(links[one.edges[:, 1], one.edges[:, 0]].all() for one in _sequence(graph))


def _sequence(graph: Graph | tuple[Graph, ...]) -> tuple[Graph, ...]:
    return graph if isinstance(graph, tuple) else (graph,)


def _circulant(order: IntArray, shifts: Sequence[int], machines: Machines) -> Graph:
    """Every node sends to those at the given distances behind it in an order."""
    n = len(order)
    places = [(k, (k + shift) % n) for k in range(n) for shift in shifts if shift % n]
    return Graph(n, order[np.array(places)], labels=machines.labels)


def _one_peer(order: IntArray, machines: Machines) -> tuple[Graph, ...]:
    graphs = topologies.one_peer_exponential(len(order))
    return tuple(Graph(one.nodes, order[one.edges], labels=machines.labels) for one in graphs)


def _nearest(machines: Machines, seconds: FloatArray, count: int, tree: Graph) -> Candidate:
    """A spanning tree, and the fastest links both ways of every node."""
    times = np.maximum(seconds, seconds.T) + np.diag(np.full(len(seconds), np.inf))
    chosen = np.argsort(times, axis=1, kind="stable")[:, :count]
    pairs = [(node, int(other)) for node, row in enumerate(chosen) for other in row if np.isfinite(times[node, other])]
    edges = np.concatenate([tree.edges, np.array(pairs).reshape(-1, 2), np.array(pairs).reshape(-1, 2)[:, ::-1]])
    return Candidate(f"tree and {count} nearest", Graph(len(seconds), edges, labels=machines.labels))


def _thresholds(machines: Machines, seconds: FloatArray) -> list[Candidate]:
    """The fastest links, directed and both ways, as many as connect all nodes and some more."""
    found = []
    n = len(seconds)
    for both, kind in ((False, "fastest links"), (True, "fastest links both ways")):
        times = np.maximum(seconds, seconds.T) if both else seconds
        values = np.sort(times[np.isfinite(times)])

        def graph(count: int, times: FloatArray = times, values: FloatArray = values) -> Graph:
            targets, sources = np.nonzero(times <= values[min(count, len(values)) - 1])
            return Graph(n, np.column_stack([sources, targets]), labels=machines.labels)

        low, high = 0, len(values)
        if not high or not graph(high).is_strongly_connected:
            continue
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if graph(middle).is_strongly_connected else (middle, high)
        for factor in THRESHOLDS if n <= MANY else THRESHOLDS[::2]:
            one = graph(round(high * factor))
            if len(one.edges) <= MOST * n:
                found.append(Candidate(f"{len(one.edges)} {kind}", one))
    return found


def _distinct(machines: Machines, found: list[Candidate]) -> list[Candidate]:
    kept: dict[tuple[bytes, ...], Candidate] = {}
    for one in found:
        if exists(machines, one.graph) and (isinstance(one.graph, tuple) or one.graph.is_strongly_connected):
            kept.setdefault(tuple(part.edges.tobytes() for part in _sequence(one.graph)), one)
    return list(kept.values())


__dir__ = public_dir(__name__)

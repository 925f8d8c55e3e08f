r"""Graphs on given machines that make a step short: star, spanning trees, rings; and the cycle time of Marfoq et al. 2020.

A message along a link takes the latency and the time on the wire,
$d_{ij} = c_j + l_{ij} + \max(s / r_{ij},\; \deg^+_j s / u_j,\; \deg^-_i s / v_i)$,
for s bytes, rates r of links and accesses u (up) and v (down) of nodes, after the compute time c of the sender. Marfoq et al.,
"Throughput-Optimal Topology Design for Cross-Silo Federated Learning" (NeurIPS 2020), take the maximum cycle mean of d as the
time of a step. It lets a link carry several messages at once, as only latencies can (`perron.Clock.cycle_time` does not), and is
here for comparison with published figures.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import minimum_spanning_tree as scipy_tree

from perron._registry import public_dir
from perron._typing import FloatArray, IntArray
from perron.clock.machines import Machines
from perron.clock.maxplus import max_cycle_mean
from perron.errors import PerronError
from perron.networks.graph import Graph

__all__ = ["delays", "delta_mbst", "is_star", "minimum_spanning_tree", "published_cycle_time", "ring", "star"]
__dir__ = public_dir(__name__)

STARTS = 20  # nodes from which a tour is begun, for up to SMALL nodes
SMALL = 300
EFFORT = 2e8  # links looked at, for one tour


def delays(machines: Machines, size: float, *, compute: float | None = None, graph: Graph | None = None) -> FloatArray:
    """Return d of the module's formula, ``[i, j]`` from j to i; -inf where there is no link.

    Args:
        machines: the machines; all values are those of a preset or file.
        size: bytes of a message.
        compute: seconds of a gradient; those of the machines if None, 0 if they have none.
        graph: the links in use, whose messages share the access of a node; if None, every link alone.
    """
    rate, latency = machines.rate_matrix, machines.latency_matrix
    n = len(rate)
    own = machines.compute if compute is None else compute
    seconds = np.broadcast_to(0.0 if own is None else own, n)
    up, down = np.broadcast_to(machines.up, n), np.broadcast_to(machines.down, n)
    out, into = (1, 1) if graph is None else (graph.out_degrees, graph.in_degrees)
    with np.errstate(divide="ignore", invalid="ignore"):
        wire = np.maximum(size / rate, np.maximum((out * size / up)[None, :], (into * size / down)[:, None]))
    links = machines.graph.adjacency().toarray() if graph is None else _links(machines, graph)
    used = np.array(links, dtype=bool) & (rate > 0)
    np.fill_diagonal(used, val=False)
    return np.where(used, seconds[None, :] + latency + wire, -np.inf)


def published_cycle_time(machines: Machines, graph: Graph, size: float, *, compute: float | None = None) -> float:
    """Return the seconds of a step by the model of Marfoq et al.: the maximum cycle mean of `delays`, no self-loops.

    On a `star` all messages travel to the hub and back before the next step: its compute counts once, the way twice.
    """
    d = delays(machines, size, compute=compute, graph=graph)
    mean, _ = max_cycle_mean(d)
    if is_star(graph):
        own = machines.compute if compute is None else compute
        seconds = float(np.max(0.0 if own is None else own))
        return seconds + 2 * (mean - seconds)
    return mean


def is_star(graph: Graph) -> bool:
    """Return whether all links of a graph join one hub with the others, both ways."""
    degrees = np.sort(graph.in_degrees)
    return graph.nodes > 2 and graph.is_symmetric and degrees[-1] == graph.nodes - 1 and bool((degrees[:-1] == 1).all())


def star(machines: Machines, *, hub: int | None = None) -> Graph:
    """Return the star of a hub: it exchanges with all others. By default the hub whose farthest node is nearest."""
    latency = np.where(machines.rate_matrix > 0, machines.latency_matrix, np.inf)
    np.fill_diagonal(latency, 0.0)
    if hub is None:
        hub = int((latency + latency.T).max(axis=0).argmin())
    n = len(latency)
    if not 0 <= hub < n:
        raise PerronError(f"The hub of a star is a node from 0 to {n - 1}; got {hub}.")
    others = np.delete(np.arange(n), hub)
    return _both_ways(machines, np.column_stack([np.full(n - 1, hub), others]), f"star around {machines.label(hub)}")


def minimum_spanning_tree(machines: Machines, size: float = 0.0, *, compute: float | None = None) -> Graph:
    """Return the tree with the least sum of delays (the mean of both directions), and hence the least largest one."""
    weights = _symmetric(delays(machines.changed(up=np.inf, down=np.inf), size, compute=compute))
    rows, columns = np.nonzero(np.isfinite(weights))
    entries = (
        weights[rows, columns] + 1e-9
    )  # a delay of 0 is no missing link; in a dense array scipy takes 1e-9 for one, too
    places = rows.astype(np.int32), columns.astype(np.int32)  # scipy before 1.17.1 takes no other indices
    tree = scipy_tree(csr_array((entries, places), shape=weights.shape)).tocoo()
    pairs = np.column_stack([tree.row, tree.col])
    if len(pairs) < len(weights) - 1:
        raise PerronError(
            f"The links of {machines.name or 'the machines'} do not join all nodes; there is no spanning tree."
        )
    return _both_ways(machines, pairs, "minimum spanning tree")


def delta_mbst(machines: Machines, size: float, *, compute: float | None = None) -> Graph:
    """Return the spanning tree of bounded degree with the shortest step, over all bounds 2, 3, ... .

    Each tree grows by the link of least delay from a node whose degree is below the bound (Marfoq et al., Algorithm 1). A node
    with many neighbors shares its access among them, so the best bound is small if accesses are narrow.
    """
    weights = _symmetric(delays(machines, size, compute=compute))
    best, least = minimum_spanning_tree(machines, size, compute=compute), np.inf
    for bound in range(2, len(weights)):
        tree = _bounded_tree(machines, weights, bound)
        if tree is None:
            continue
        mean, _ = max_cycle_mean(delays(machines, size, compute=compute, graph=tree))
        if mean < least:
            best, least = tree, mean
        if tree.in_degrees.max() < bound:  # larger bounds change nothing
            break
    return best


def ring(machines: Machines, size: float = 0.0, *, improve: bool = True) -> Graph:
    """Return a directed ring with a small sum of delays: a tour by Christofides, and by default a better one.

    Args:
        machines: machines in which all pairs have a link, see `Machines.routed`.
        size: bytes of a message.
        improve: whether to look further: also tours by nearest neighbors, all improved until reversing a part (2-opt), or moving
            up to three nodes elsewhere, shortens none; beyond 300 nodes from one tour, and for a limited number of rounds. If
            not, the tour by Christofides' algorithm, as in Marfoq et al., which takes minutes for a thousand nodes.
    """
    d = delays(machines, size, compute=0.0)
    n = len(d)
    np.fill_diagonal(d, 0.0)
    if np.isneginf(d).any():
        target, source = np.argwhere(np.isneginf(d))[0]
        raise PerronError(
            f"A ring is sought among machines in which all pairs have a link; {machines.label(source)} -> "
            f"{machines.label(target)} has none. Fill in missing pairs by machines.routed()."
        )
    cost = d.T  # from, to
    tours = [_christofides(cost)] if n <= SMALL or not improve else []
    if improve and n > 3:
        starts = np.linspace(0, n - 1, min(n, STARTS)).astype(int) if n <= SMALL else [0]
        tours = [_improved(cost, one) for one in (*tours, *(_nearest(cost, int(node)) for node in starts))]
    tour = min(tours, key=lambda one: _length(cost, one))
    tour = min((tour, tour[::-1]), key=lambda one: _length(cost, one))
    tour = np.roll(tour, -int(np.flatnonzero(tour == 0)[0]))
    edges = np.column_stack([tour, np.roll(tour, -1)])
    return Graph(n, edges, labels=machines.labels, name="ring, 2-opt" if improve else "ring, Christofides")


# ---- private


def _links(machines: Machines, graph: Graph) -> FloatArray:
    machines.check_nodes(graph.nodes)
    if len(graph.edges):
        machines.check_links(*graph.edges.T)
    return np.asarray(graph.adjacency().toarray())


def _both_ways(machines: Machines, pairs: IntArray, name: str) -> Graph:
    edges = np.concatenate([pairs, pairs[:, ::-1]]).astype(np.int64)
    graph = Graph(len(machines.rate_matrix), edges, labels=machines.labels, name=name)
    machines.check_links(*graph.edges.T)
    return graph


def _symmetric(d: FloatArray) -> FloatArray:
    """The mean of both directions; inf where one of them is missing."""
    both = (d + d.T) / 2
    return np.where(np.isneginf(both), np.inf, both)


def _bounded_tree(machines: Machines, weights: FloatArray, bound: int) -> Graph | None:
    """Prim's algorithm with at most ``bound`` neighbors of a node; None if it cannot reach all."""
    n = len(weights)
    inside, degree, pairs = np.zeros(n, dtype=bool), np.zeros(n, dtype=int), list[tuple[int, int]]()
    inside[0] = True
    while len(pairs) < n - 1:
        open_links = np.where((inside & (degree < bound))[:, None] & ~inside[None, :], weights, np.inf)
        tail, head = divmod(int(open_links.argmin()), n)
        if open_links[tail, head] == np.inf:
            return None
        pairs.append((tail, head))
        inside[head] = True
        degree[[tail, head]] += 1
    return _both_ways(machines, np.array(pairs), f"delta-MBST, degree {degree.max()}")


def _length(cost: FloatArray, tour: IntArray) -> float:
    return float(cost[tour, np.roll(tour, -1)].sum())


def _christofides(cost: FloatArray) -> IntArray:
    import networkx as nx

    if len(cost) < 4:
        return np.arange(len(cost))
    graph = nx.from_numpy_array((cost + cost.T) / 2 + 1e-12 * (1 - np.eye(len(cost))))
    return np.array(nx.approximation.christofides(graph)[:-1], dtype=np.int64)


def _nearest(cost: FloatArray, start: int) -> IntArray:
    tour, left = [start], np.ones(len(cost), dtype=bool)
    left[start] = False
    while left.any():
        tour.append(int(np.where(left, cost[tour[-1]], np.inf).argmin()))
        left[tour[-1]] = False
    return np.array(tour, dtype=np.int64)


def _improved(cost: FloatArray, tour: IntArray) -> IntArray:
    """Reverse or move the part of a tour that gains most, until none gains."""
    for _ in range(100 + int(EFFORT / len(tour) ** 2)):
        along = cost[np.ix_(tour, tour)]
        gain, better = max((_reversal(along), _move(along)), key=lambda found: found[0])
        if gain <= 1e-12 * np.abs(along).max():
            break
        tour = tour[better]
    return tour


def _reversal(along: FloatArray) -> tuple[float, IntArray]:
    """The best reversal of a part of the tour 0, 1, ..., n-1: its gain and the new tour; reversed links have their own costs."""
    n = len(along)
    first, last = np.triu_indices(n - 1, 1)
    first, last = first + 1, last + 1  # node 0 stays
    forward = np.concatenate([[0.0], np.cumsum(np.diagonal(along, 1))])
    backward = np.concatenate([[0.0], np.cumsum(np.diagonal(along, -1))])
    after = (last + 1) % n
    gain = (
        along[first - 1, first] + along[last, after] - along[first - 1, last] - along[first, after]
        + (forward[last] - forward[first]) - (backward[last] - backward[first])
    )  # fmt: skip
    best = int(gain.argmax())
    i, j = first[best], last[best]
    nodes = np.arange(n)
    return float(gain[best]), np.concatenate([nodes[:i], nodes[i : j + 1][::-1], nodes[j + 1 :]])


def _move(along: FloatArray) -> tuple[float, IntArray]:
    """The best move of up to three nodes to another place of the tour 0, 1, ..., n-1, likewise."""
    n = len(along)
    nodes = np.arange(n)
    following = np.roll(nodes, -1)
    best, tour = -np.inf, nodes
    for count in range(1, min(3, n - 3) + 1):
        end = (nodes + count - 1) % n
        freed = along[nodes - 1, nodes] + along[end, (end + 1) % n] - along[nodes - 1, (end + 1) % n]
        gain = freed[:, None] - (along[:, nodes].T + along[end][:, following] - along[nodes, following][None, :])
        offset = (nodes[None, :] - nodes[:, None]) % n  # places within the part, and the one before it, are no others
        gain[(offset < count) | (offset == n - 1)] = -np.inf
        place = int(gain.argmax())
        start, to = divmod(place, n)
        if gain[start, to] > best:
            best = float(gain[start, to])
            part = (start + np.arange(count)) % n
            rest = (start + np.arange(count, n)) % n
            cut = int((to - start) % n) - count + 1
            tour = np.concatenate([rest[:cut], part, rest[cut:]])
    return best, tour

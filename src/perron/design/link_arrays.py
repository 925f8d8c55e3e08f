"""Graphs as arrays of links, as a search changes them: connectivity and weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from perron._typing import FloatArray
from perron.networks.graph import Graph
from perron.networks.mixing import Mixing

Links = Any  # (n, n) array of bool, [i, j] for the link from j to i, without the diagonal


def one_peer(order: Any, shifts: Sequence[int]) -> tuple[Graph, ...]:
    """Return graphs of degree one: in each step every node sends to the one a number of places behind it in an order."""
    order = np.asarray(order)
    return tuple(Graph(len(order), np.column_stack([order, np.roll(order, -shift)])) for shift in shifts)


def places_of(graphs: tuple[Graph, ...]) -> tuple[list[int], list[int]]:
    """Return the order and the shifts of graphs that `one_peer` made, the first with shift 1."""
    following = dict(graphs[0].edges.tolist())
    order = [0]
    while len(order) < len(following):
        order.append(following[order[-1]])
    place = {node: k for k, node in enumerate(order)}
    ends = [next((place[target] for source, target in graph.edges.tolist() if source == 0)) for graph in graphs]
    return order, ends


def links_of(graph: Graph) -> Links:
    """Return the links of a graph."""
    links = graph.adjacency().toarray() > 0
    np.fill_diagonal(links, val=False)
    return links


def connected(pull: Links, push: Links) -> bool:
    """Whether both graphs are strongly connected, or some node reaches all by pulling and is reached by all by pushing."""
    graphs = (pull, push.T) if not np.array_equal(pull, push) else (pull,)
    roots = np.ones(len(pull), dtype=bool)
    for links in graphs:
        count, component = connected_components(csr_array(links.T), directed=True, connection="strong")
        if count > 1:
            if len(graphs) == 1:
                return False
            closed = np.ones(count, dtype=bool)  # components that no other one reaches
            targets, sources = np.nonzero(links)
            closed[component[targets[component[targets] != component[sources]]]] = False
            if closed.sum() != 1:
                return False
            roots &= closed[component]
    return bool(roots.any())


def mixing_of(pair: tuple[Links, Links], *, undirected: bool) -> Mixing:
    """Return equal weights for the links to pull and to push along; Metropolis weights of undirected ones."""
    pull, push = (links + np.eye(len(links)) for links in pair)
    if undirected:
        W = metropolis(pair[0])
        return Mixing(W, W)
    return Mixing(pull / pull.sum(1, keepdims=True), push / push.sum(0), connected="rooted")


def metropolis(links: Links) -> FloatArray:
    """Return the weights of `Mixing.metropolis`."""
    degree = links.sum(1)
    W = np.where(links, 1 / (1 + np.maximum(degree[:, None], degree[None, :])), 0.0)
    np.fill_diagonal(W, 1 - W.sum(1))
    return np.asarray(W)

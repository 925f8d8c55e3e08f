"""Matrices of the weight rules of `Mixing`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.sparse import block_array, csr_array, diags_array

from perron._typing import FloatArray, IntArray
from perron.errors import GraphError, MixingError, brief, listed
from perron.networks.graph import Graph, as_graph

Graphs = Graph | Sequence[Graph]
SEARCH_ROOT_UP_TO = 2000  # nodes; in larger graphs a spanning tree gets the first possible root
SINKHORN_SWEEPS = 100  # then Newton steps, each of which needs a factorization
MAX_ITERATIONS = 160


def as_graphs(graph: Graphs) -> list[Graph]:
    """Return one graph or a sequence of graphs as a list."""
    graph = as_graph(graph)
    graphs = [graph] if isinstance(graph, Graph) else list(map(as_graph, graph))
    if not graphs or not all(isinstance(member, Graph) for member in graphs):
        raise MixingError(f"Weights are defined on a Graph or a sequence of them; got {brief(graph)}.")
    return graphs


def as_single(graph: Graphs, rule: str) -> Graph:
    """Return one graph; a sequence of graphs is refused."""
    graph = as_graph(graph)
    if not isinstance(graph, Graph):
        raise MixingError(
            f"{rule} weights are defined on one graph, not on a time-varying sequence; use uniform, lazy or random_integer."
        )
    return graph


def links(graph: Graph) -> csr_array:
    """Return the 0-1 matrix of a graph without its self-loops."""
    source, target = graph.edges.T
    return csr_array((np.ones(len(source)), (target, source)), shape=(graph.nodes, graph.nodes))


def add_diagonal(matrix: csr_array, keep: float, axis: int) -> csr_array:
    """Return keep I + (1 - keep) matrix, with 1 on the diagonal of an empty row (axis 1) or column (axis 0)."""
    if not keep:
        return matrix
    idle = matrix.sum(axis=axis) == 0
    return csr_array(diags_array(np.where(idle, 1.0, keep)) + (1 - keep) * matrix)


def metropolis(graph: Graph) -> csr_array:
    """Return W with W[i, j] = 1 / (1 + max(degree i, degree j)) on the links and the rest of each row on the diagonal."""
    edge = graph.one_way_edge()
    if edge is not None:
        raise MixingError(
            f"Metropolis weights need an undirected graph; {graph.name} has the edge {edge} but not its reverse. "
            "Use graph.symmetric(), or Mixing.balanced(graph) for doubly stochastic weights on a digraph."
        )
    source, target = graph.edges.T
    weight = 1.0 / (1 + np.maximum(graph.in_degrees[source], graph.in_degrees[target]))
    weights = csr_array((weight, (target, source)), shape=(graph.nodes, graph.nodes))
    return csr_array(weights + diags_array(1 - weights.sum(axis=1)))


def choose_root(down: Graph, up: Graph) -> int:
    """Return the common root of two graphs with the smallest sum of the depths of its two breadth-first trees."""
    from scipy.sparse.csgraph import shortest_path

    each = {"pull": down.roots(), "push": up.roots()}
    check_connected("rooted", each, [])
    roots = common_nodes(each)
    if down.nodes > SEARCH_ROOT_UP_TO:
        return int(roots[0])
    depths = [shortest_path(links(graph).T, unweighted=True, indices=roots).max(axis=1) for graph in (down, up)]
    return int(roots[np.argmin(depths[0] + depths[1])])


def common_nodes(roots: Mapping[str, IntArray]) -> IntArray:
    """Return the nodes that are roots on both sides."""
    return np.intersect1d(roots["pull"], roots["push"], assume_unique=True)


def tree_matrices(down: Graph, up: Graph, root: int) -> tuple[csr_array, csr_array]:
    """Return the 0-1 matrices that send values along a tree down from the root, and along one up to it."""
    node, one, shape = np.arange(down.nodes), np.ones(down.nodes), (down.nodes, down.nodes)
    pull = csr_array((one, (node, down.tree(root).parent)), shape=shape)
    push = csr_array((one, (up.tree(root).parent, node)), shape=shape)
    return pull, push


def check_connected(connected: str, roots: Mapping[str, IntArray], graphs: Sequence[Graph]) -> None:
    """Raise a `MixingError` unless a network is strongly connected or has a common root, given the roots of its two graphs."""
    if connected == "rooted":
        if not len(common_nodes(roots)):
            raise MixingError(
                "The network has no common root: no node reaches all others along pull and is reached by all along push. "
                f"Nodes that reach all others along pull: {{{listed(roots['pull']) or 'none'}}}; nodes that all others reach "
                f"along push: {{{listed(roots['push']) or 'none'}}}. Add edges until the two share a node."
            )
        return
    for graph in graphs:
        try:
            graph.check_strongly_connected()
        except GraphError as error:
            common = common_nodes(roots)
            hint = f" Or pass connected='rooted': nodes {{{listed(common)}}} are common roots, which is enough for Push-Pull."
            raise MixingError(f"{error}{hint if len(common) else ''}") from None


def check_aperiodic(sides: Mapping[str, Sequence[Any]], roots: Mapping[str, IntArray]) -> None:
    """Raise a `MixingError` unless self-loops let the powers of the matrices converge."""
    for side, matrices in sides.items():
        for matrix in matrices:
            diagonal = matrix.diagonal()
            if len(matrices) > 1 and (diagonal == 0).any():
                raise MixingError(
                    f"{side}: a matrix of a time-varying sequence needs a positive diagonal; node "
                    f"{np.flatnonzero(diagonal == 0)[0]} has 0. Use graph.with_self_loops()."
                )
            if not diagonal[roots[side]].any():
                among = "" if len(roots[side]) == len(diagonal) else f" among the roots {{{listed(roots[side])}}}"
                raise MixingError(
                    f"{side}: no positive diagonal entry{among}. Without one the values may oscillate forever instead of "
                    "converging. Give at least one node a self-loop, as graph.with_self_loops() does."
                )


# ---- doubly stochastic weights on a digraph


def balance(graph: Graph, tolerance: float = 1e-13) -> csr_array:
    """Scale the 0-1 matrix M of a graph to a doubly stochastic D1 M D2.

    The scaling minimizes the convex function sum_ij M_ij exp(u_i + v_j) - sum u - sum v: first by Sinkhorn sweeps, then by
    Newton's method, because Sinkhorn alone needs about n^2 sweeps on a ring-like graph.
    """
    from scipy.sparse.csgraph import connected_components

    graph.check_strongly_connected()
    M = graph.adjacency()
    _check_total_support(graph, M)
    n = graph.nodes
    _, component = connected_components(block_array([[None, M], [M.T, None]]).tocsr(), directed=False)
    fixed = np.unique(component, return_index=True)[
        1
    ]  # u + t, v - t scale alike: one unknown of each component is free
    free = np.setdiff1d(np.arange(2 * n), fixed)
    u, v = np.zeros(n), np.zeros(n)
    for iteration in range(MAX_ITERATIONS):
        W = csr_array(diags_array(np.exp(u)) @ M @ diags_array(np.exp(v)))
        rows, columns = W.sum(axis=1), W.sum(axis=0)
        error = np.concatenate([rows - 1, columns - 1])
        if np.abs(error).max() < tolerance:
            return W
        if iteration < SINKHORN_SWEEPS:
            u = u - np.log(rows)
            v = -np.log(M.T @ np.exp(u))
        else:
            step = _newton_step(W, rows, columns, error, free)
            step /= max(1.0, np.abs(step).max())  # far from the solution a full step may overshoot
            u, v = u - step[:n], v - step[n:]
    raise MixingError(
        f"{graph.name}: balancing stopped at an error of {np.abs(error).max():.1g}. Use Mixing.uniform instead."
    )


def _newton_step(W: csr_array, rows: FloatArray, columns: FloatArray, error: FloatArray, free: IntArray) -> FloatArray:
    """Solve [[diag rows, W], [W^T, diag columns]] step = error for the free unknowns; the others do not move."""
    from scipy.sparse.linalg import spsolve

    hessian = block_array([[diags_array(rows), W], [W.T, diags_array(columns)]]).tocsc()[free][:, free]
    step = np.zeros(len(error))
    step[free] = spsolve(hessian.tocsc(), error[free])
    return step


def _check_total_support(graph: Graph, M: csr_array) -> None:
    """Refuse a pattern with an edge that lies on no permutation: no doubly stochastic matrix has this pattern."""
    from scipy.sparse.csgraph import connected_components, maximum_bipartite_matching

    column = maximum_bipartite_matching(M, perm_type="column")
    if (column < 0).any():
        row = int(np.flatnonzero(column < 0)[0])
        raise MixingError(
            f"{graph.name} has no doubly stochastic weights: its nodes cannot be covered by disjoint cycles (node "
            f"{row} is left over). Use graph.with_self_loops()."
        )
    # With the matched columns on the diagonal, an edge lies on a permutation iff it stays within a component.
    permuted = csr_array(M[:, column])
    _, component = connected_components(permuted, directed=True, connection="strong")
    entries = permuted.tocoo()
    outside = np.flatnonzero(component[entries.row] != component[entries.col])
    if len(outside):
        target, source = int(entries.row[outside[0]]), int(column[entries.col[outside[0]]])
        raise MixingError(
            f"{graph.name} has no doubly stochastic weights that use all its edges: edge ({source}, {target}) lies on "
            "no collection of disjoint cycles through all nodes. Use graph.with_self_loops(), or leave the edge out."
        )

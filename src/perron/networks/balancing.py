"""Doubly stochastic weights on a digraph: which graphs have them, and how to find them."""

from __future__ import annotations

import numpy as np
from scipy.sparse import block_array, csr_array, diags_array
from scipy.sparse.csgraph import connected_components, maximum_bipartite_matching
from scipy.sparse.linalg import spsolve

from perron._typing import FloatArray, IntArray
from perron.errors import MixingError
from perron.networks.graph import Graph

SINKHORN_SWEEPS = 100  # then Newton takes over, which needs a factorisation in each step
MAX_STEPS = 160


def balance(graph: Graph, tolerance: float = 1e-13) -> csr_array:
    """Diagonal scaling D1 M D2 of the 0-1 matrix M to doubly stochastic.

    It minimises sum_ij M_ij exp(u_i + v_j) - sum u - sum v, which is convex: sweeps of Sinkhorn bring us near,
    Newton does the rest (Sinkhorn alone needs about n^2 sweeps on a ring-like graph).
    """
    graph.check_strongly_connected()
    M = graph.adjacency()
    _check_total_support(graph, M)
    n = graph.nodes
    bipartite = block_array([[None, M], [M.T, None]]).tocsr()
    _, component = connected_components(bipartite, directed=False)
    fixed = np.unique(component, return_index=True)[
        1
    ]  # u + t, v - t scale alike: one unknown of each component is free
    u, v = np.zeros(n), np.zeros(n)
    for sweep in range(MAX_STEPS):
        W = csr_array(diags_array(np.exp(u)) @ M @ diags_array(np.exp(v)))
        rows, columns = W.sum(axis=1), W.sum(axis=0)
        error = np.concatenate([rows - 1, columns - 1])
        if np.abs(error).max() < tolerance:
            return W
        if sweep < SINKHORN_SWEEPS:
            u = u - np.log(rows)
            v = -np.log(M.T @ np.exp(u))
        else:
            step = _newton_step(W, rows, columns, error, fixed)
            step /= max(1.0, np.abs(step).max())  # far from the solution a full step may overshoot
            u, v = u - step[:n], v - step[n:]
    raise MixingError(
        f"{graph.name}: balancing got no closer than {np.abs(error).max():.1g}. Use Mixing.uniform instead."
    )


def _newton_step(W: csr_array, rows: FloatArray, columns: FloatArray, error: FloatArray, fixed: IntArray) -> FloatArray:
    """Solve [[diag rows, W], [W^T, diag columns]] step = error for all unknowns but the fixed ones, which stay."""
    free = np.setdiff1d(np.arange(len(error)), fixed)
    hessian = block_array([[diags_array(rows), W], [W.T, diags_array(columns)]]).tocsc()[free][:, free]
    step = np.zeros(len(error))
    step[free] = spsolve(hessian.tocsc(), error[free])
    return step


def _check_total_support(graph: Graph, M: csr_array) -> None:
    """Every edge must lie on a permutation within the pattern, or no doubly stochastic matrix has this pattern."""
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

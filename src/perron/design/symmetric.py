"""The fastest-mixing symmetric weights of an undirected graph: a semidefinite program."""

from __future__ import annotations

from typing import Any

import numpy as np

from perron._typing import FloatArray
from perron.errors import MixingError, PerronError
from perron.networks.graph import Graph


def fastest_symmetric(graph: Graph, floor: float) -> FloatArray:
    """Return W = W^T on the links of an undirected graph with the smallest rho_2 = ||W - 11^T/n||.

    A convex problem (Boyd, Diaconis & Xiao 2004): minimise t subject to -t I <= W - 11^T/n <= t I (as matrices), W 1 = 1,
    W >= 0 and zero where there is no link. Links weigh at least ``floor`` / (1 + the larger of the two degrees), self-loops at
    least floor / (1 + degree); with floor 0 it is the problem of the literature. The diagonal absorbs the solver's error, so
    that the rows sum to one exactly.
    """
    edge = graph.one_way_edge()
    if edge is not None:
        raise MixingError(
            f"Symmetric weights need an undirected graph; {graph.name} has the edge {edge} but not its reverse. Use "
            "graph.symmetric(), or goal='balanced' for doubly stochastic weights on a digraph."
        )
    graph.check_strongly_connected()
    n = graph.nodes
    if n == 1:
        return np.ones((1, 1))
    cp = _cvxpy()
    low, high = (ends[graph.edges[:, 0] < graph.edges[:, 1]] for ends in graph.edges.T)
    loops = np.zeros(n)
    loops[graph.self_loops] = 1
    least_link = floor / (1 + np.maximum(graph.in_degrees[low], graph.in_degrees[high]))
    least_loop = floor * loops / (1 + graph.in_degrees)
    incidence = np.zeros((n, len(low)))
    incidence[low, np.arange(len(low))], incidence[high, np.arange(len(low))] = 1, -1
    weight, t = cp.Variable(len(low)), cp.Variable()
    W = np.eye(n) - incidence @ cp.diag(weight) @ incidence.T
    apart = W - np.ones((n, n)) / n
    own = 1 - np.abs(incidence) @ weight
    limits = [weight >= least_link, own >= least_loop, apart << t * np.eye(n), apart >> -t * np.eye(n)]
    if (loops == 0).any():
        limits.append(own[loops == 0] == 0)
    problem = cp.Problem(cp.Minimize(t), limits)
    try:
        problem.solve(solver=cp.CLARABEL)
    except cp.error.SolverError as error:
        raise MixingError(f"{graph.name}: the solver failed ({error}). Use goal='balanced'.") from None
    if weight.value is None:
        raise MixingError(
            f"{graph.name}: no symmetric weights found (the solver says: {problem.status}). Use graph.with_self_loops(), or a "
            f"smaller floor than {floor:g}."
        )
    return _exact(incidence, np.maximum(weight.value, least_link))


def _exact(incidence: FloatArray, weight: FloatArray) -> FloatArray:
    """I - incidence diag(weight) incidence^T, its weights scaled down until the diagonal is not negative."""
    weight = weight / max(float((np.abs(incidence) @ weight).max()), 1.0)
    W = np.eye(len(incidence)) - (incidence * weight) @ incidence.T
    W[np.abs(W) < 1e-9] = 0.0
    np.fill_diagonal(W, 0.0)
    np.fill_diagonal(W, np.maximum(1 - W.sum(1), 0.0))
    return W


def _cvxpy() -> Any:
    try:
        import cvxpy
    except ImportError:
        raise PerronError(
            "goal='symmetric' solves a semidefinite program and needs cvxpy, which is not installed. Install perron[design], or "
            "use goal='balanced' or Mixing.metropolis, which do not need it."
        ) from None
    return cvxpy

"""The maximum cycle mean of a matrix: the growth per step of ``now = max_j(weights[i, j] + now_j)``."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from perron._typing import FloatArray, IntArray
from perron.errors import PerronError

KARP_UP_TO = 100  # nodes of a strongly connected component; above it, policy iteration is faster
POLICIES = 1000  # far more than are needed; rounding might make two of them alternate


def max_cycle_mean(weights: FloatArray) -> tuple[float, list[int]]:
    r"""Return the largest mean weight of a cycle, and a cycle that has it.

    $\lambda = \max_C \frac{1}{|C|} \sum_{(j, i) \in C} w_{ij}$ over all cycles C.

    Args:
        weights: ``(n, n)``; ``[i, j]`` is the weight of the edge from j to i, -inf if there is none.

    Returns:
        The mean and the nodes of the cycle in the order of travel, each once; ``(-inf, [])`` if there is no cycle.

    Example:
        >>> none = -np.inf
        >>> max_cycle_mean(np.array([[1.0, 4.0, none], [3.0, none, none], [none, 9.0, none]]))
        (3.5, [0, 1])
    """
    weights = np.asarray(weights, dtype=np.float64)
    if weights.ndim != 2 or weights.shape[0] != weights.shape[1]:
        raise PerronError(f"A cycle mean is that of an (n, n) matrix; got the shape {weights.shape}.")
    if np.isnan(weights).any() or np.isposinf(weights).any():
        wrong = weights[np.isnan(weights) | np.isposinf(weights)]
        raise PerronError(f"Weights of edges are finite, or -inf if there is no edge; got {float(wrong[0])}.")
    best, critical = -np.inf, list[int]()
    count, component = connected_components(csr_array(weights > -np.inf), directed=True, connection="strong")
    sizes = np.bincount(component, minlength=count)
    alone = np.flatnonzero(sizes[component] == 1)
    loops = weights[alone, alone]
    if len(alone) and loops.max() > -np.inf:
        best, critical = float(loops.max()), [int(alone[loops.argmax()])]
    for number in np.flatnonzero(sizes > 1):
        nodes = np.flatnonzero(component == number)
        part = weights[np.ix_(nodes, nodes)]
        cycle = (_karp if len(nodes) <= KARP_UP_TO else _howard)(part)
        mean = _mean(part, cycle)
        if mean > best:
            best, critical = mean, nodes[cycle].tolist()
    return best, _from_least(critical)


def _mean(weights: FloatArray, cycle: list[int]) -> float:
    return float(weights[np.roll(cycle, -1), cycle].mean())


def _from_least(cycle: list[int]) -> list[int]:
    """The same cycle from its least node."""
    start = cycle.index(min(cycle)) if cycle else 0
    return cycle[start:] + cycle[:start]


def _karp(weights: FloatArray) -> list[int]:
    """A critical cycle of a strongly connected digraph, by the heaviest walks of 0, ..., n edges from node 0 (Karp 1978).

    The walk of n edges to the node that attains the maximum holds critical cycles only.
    """
    n = len(weights)
    heaviest = np.full((n + 1, n), -np.inf)
    before = np.zeros((n + 1, n), dtype=np.int64)
    heaviest[0, 0] = 0.0
    for k in range(n):
        through = weights + heaviest[k]
        before[k + 1] = through.argmax(axis=1)
        heaviest[k + 1] = through[np.arange(n), before[k + 1]]
    reached = heaviest[:n] > -np.inf
    with np.errstate(invalid="ignore"):
        means = (heaviest[n] - heaviest[:n]) / np.arange(n, 0, -1)[:, None]
    node = int(np.where(reached, means, np.inf).min(axis=0).argmax())
    walk = [node]
    for k in range(n, 0, -1):
        walk.append(int(before[k, walk[-1]]))
    return max(_cycles(walk[::-1]), key=lambda cycle: _mean(weights, cycle))


def _cycles(walk: list[int]) -> list[list[int]]:
    """The cycles that a walk closes, each once it is closed."""
    found, path, place = [], list[int](), dict[int, int]()
    for node in walk:
        if node in place:
            cycle = path[place[node] :]
            found.append(cycle)
            del path[place[node] :]
            for one in cycle:
                del place[one]
        place[node] = len(path)
        path.append(node)
    return found


def _howard(weights: FloatArray) -> list[int]:
    """A critical cycle of a strongly connected digraph, by policy iteration (Cochet-Terrasson et al. 1998).

    A policy chooses one edge into every node. Its walks, followed backwards, end in a cycle; ``mean`` is that of the cycle and
    ``value`` the excess of the walk over it. Policies improve first in their means, then in their values.
    """
    n = len(weights)
    rows = np.arange(n)
    policy: IntArray = weights.argmax(axis=1)
    edge = weights > -np.inf
    slack = 1e-12 * max(1e-300, float(np.abs(weights[edge]).max()))
    value = np.zeros(n)
    for _ in range(POLICIES):
        mean, value, cycle = _evaluate(weights, policy, value)
        means = np.where(edge, mean[None, :], -np.inf)
        better = means.max(axis=1) > mean + slack
        if better.any():
            policy = np.where(better, means.argmax(axis=1), policy)
            continue
        values = np.where(means >= mean[:, None] - slack, weights - mean[:, None] + value[None, :], -np.inf)
        choice = values.argmax(axis=1)
        better = values[rows, choice] > value + n * slack
        if not better.any():
            return cycle
        policy = np.where(better, choice, policy)
    return _karp(weights)


def _evaluate(weights: FloatArray, policy: IntArray, last: FloatArray) -> tuple[FloatArray, FloatArray, list[int]]:
    """The mean and the value of every node under a policy, and the best of its cycles in the order of travel.

    One node of every cycle keeps its last value, so that policies of equal means improve and none returns.
    """
    n = len(policy)
    mean, value = np.full(n, np.nan), np.array(last)
    best, critical = -np.inf, list[int]()
    back, gain = policy.tolist(), weights[np.arange(n), policy].tolist()
    done, seen = [False] * n, [-1] * n
    for start in range(n):
        path, node = list[int](), start
        while not done[node] and seen[node] != start:
            seen[node] = start
            path.append(node)
            node = back[node]
        if not done[node]:  # a new cycle, which node closes
            cycle = path[path.index(node) :]
            average = sum(gain[one] for one in cycle) / len(cycle)
            if average > best:
                best, critical = average, cycle[::-1]
            mean[node], done[node] = average, True
        for one in reversed(path):
            if not done[one]:
                mean[one] = mean[back[one]]
                value[one] = gain[one] - mean[one] + value[back[one]]
                done[one] = True
    return mean, value, critical

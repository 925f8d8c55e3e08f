"""A digraph chosen by measured link rates: it leaves out slow links, and mixes well."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array, eye_array, hstack
from scipy.sparse.csgraph import connected_components

from perron._typing import FloatArray, IntArray, check_whole
from perron.design.goals import power_sum
from perron.errors import GraphError
from perron.networks import spectral
from perron.networks.graph import Graph
from perron.networks.mixing import Mixing
from perron.theory.recursion import single_threaded

TIME_LIMIT = 5.0  # seconds for one exact search
DELETIONS = 12  # random orders in which links are deleted before the exact search
MOST_TRIED = 400  # candidates for the next link


@dataclass(frozen=True)
class ChosenGraph:
    """A digraph chosen by link rates.

    Attributes:
        graph: strongly connected, with self-loops; in- and out-degrees at most ``degree``.
        slowest_before: the rate of the slowest of all links: the bottleneck of a network that uses them all.
        slowest: the rate of the slowest link in ``graph``: its bottleneck.
        proven: whether no such graph has a faster bottleneck.
        seconds_before, seconds: the time of one message of the given size along the slowest link.
        rho_2: the larger of those of A and B with equal weights.
    """

    graph: Graph
    degree: int
    slowest_before: float
    slowest: float
    proven: bool
    seconds_before: float
    seconds: float
    rho_2: float

    def rows(self) -> list[tuple[str, str]]:
        """Return ``(label, value)`` pairs, for tables."""
        optimal = "" if self.proven else " (a faster one may exist)"
        return [
            ("links", f"{len(self.graph.edges)} (at most {self.degree} in and {self.degree} out at a node)"),
            ("slowest link, of all", f"{self.slowest_before:.4g}"),
            ("slowest link, chosen", f"{self.slowest:.4g}{optimal}"),
            ("time of a message, before", f"{self.seconds_before:.4g}"),
            ("time of a message, chosen", f"{self.seconds:.4g}"),
            ("rho_2 with equal weights", f"{self.rho_2:.4g}"),
        ]

    def __str__(self) -> str:
        rows = self.rows()
        width = max(len(label) for label, _ in rows)
        return "\n".join(f"{label:<{width}}  {value}" for label, value in rows)


def choose_graph(rates: Any, *, degree: int, message: float = 1.0, seed: int = 0, name: str = "") -> ChosenGraph:
    """Return a strongly connected digraph of bounded degree whose slowest link is as fast as possible, and which mixes well.

    First the bottleneck: the largest rate t such that the links of at least that rate contain a strongly connected digraph
    with in- and out-degrees of at most ``degree``; by binary search over the rates. Each decision is NP-hard (with degree 1 it
    asks for a Hamiltonian cycle). We first delete links in random order as long as the rest stays connected, which usually
    succeeds; if it does not, a mixed-integer program (two flows, from a root to all and from all to it) decides, within a time
    limit. Where it reaches the limit, a faster graph may exist, and ``proven`` is False.

    Then links of at least the rate t are added greedily as long as they lower sum_i ||A^i - A_inf||_F^2 + the same of B for equal
    weights (a heuristic). Links are assumed not to slow each other down.

    Args:
        rates: ``[i, j]`` is the rate at which i receives from j, such as bytes per second; 0 or nan where there is no link.
        degree: the most nodes that a node may receive from, and send to.
        message: the size of a message, in the unit of the rates: for `ChosenGraph.seconds`.

    Example:
        >>> rates = np.full((4, 4), 1.0)
        >>> rates[0, 1] = rates[2, 3] = 0.01
        >>> choose_graph(rates, degree=2).slowest
        1.0
    """
    speed = _checked(rates)
    n = len(speed)
    check_whole("degree", degree, low=1)
    check_whole("The seed of choose_graph", seed)
    if not message > 0:
        raise GraphError(f"A message has a positive size; got message={message!r}.")
    name = name or f"chosen by link rates ({n} nodes)"
    Graph.from_matrix(speed, name="the network of all links").check_strongly_connected()
    rng = np.random.default_rng(seed)
    present = np.unique(speed[speed > 0])
    if n == 1:
        return ChosenGraph(Graph(1, name=name), degree, np.inf, np.inf, True, 0.0, 0.0, 0.0)
    links, threshold, proven = _bottleneck(speed, present, degree, rng)
    links = _extended(links, speed >= threshold, degree, rng)
    target, source = np.nonzero(links)
    graph = Graph(n, np.stack([source, target], axis=1), name=name)
    slowest = float(speed[links].min())
    metrics = spectral.describe(Mixing.uniform(graph))
    rho_2 = max(m.rho_2 for m in (metrics.pull, metrics.push) if m is not None)
    before = float(present[0])
    return ChosenGraph(graph, degree, before, slowest, proven, message / before, message / slowest, rho_2)


def _checked(rates: Any) -> FloatArray:
    try:
        speed = np.array(rates.toarray() if hasattr(rates, "toarray") else rates, dtype=np.float64)
    except (TypeError, ValueError):
        raise GraphError(f"Link rates are a square array of numbers; got {rates!r:.80}.") from None
    if speed.ndim != 2 or speed.shape[0] != speed.shape[1] or not len(speed):
        raise GraphError(f"Link rates are a square array, [i, j] for what i receives from j; got shape {speed.shape}.")
    np.fill_diagonal(speed, 0.0)
    speed[np.isnan(speed)] = 0.0
    wrong = np.argwhere((speed < 0) | np.isinf(speed))
    if len(wrong):
        i, j = wrong[0]
        raise GraphError(
            f"A link rate is finite and not negative (0 or nan: no link); got rates[{i}, {j}] = {speed[i, j]}."
        )
    return speed


def _bottleneck(
    speed: FloatArray, present: FloatArray, degree: int, rng: np.random.Generator
) -> tuple[FloatArray, float, bool]:
    """Links of a strongly connected digraph of bounded degree with the fastest slowest link, its rate, and whether it is proven.

    Rates above which the links are not strongly connected need no search. Below, the invariant is that ``low`` is feasible and
    ``high`` infeasible or undecided.
    """
    low, high = 0, len(present)
    while high - low > 1:  # the largest rate with a strongly connected graph of any degree
        middle = (low + high) // 2
        low, high = (middle, high) if _connected(speed >= present[middle]) else (low, middle)
    low, high, best, undecided = -1, low + 1, None, False
    while high - low > 1:
        # The upper end first: usually the degree is no constraint.
        middle = high - 1 if best is None and low < 0 and not undecided and high == len(present) else (low + high) // 2
        links, decided = _spanning(speed >= present[middle], degree, rng)
        if links is None:
            high, undecided = middle, undecided or not decided
        else:
            low, best = middle, links
    if best is None:
        reason = "were not found in time to contain a" if undecided else "contain no"
        raise GraphError(
            f"These links {reason} strongly connected digraph with degrees of at most {degree}. Allow a larger degree."
        )
    return best, float(present[low]), not undecided


def _connected(links: Any) -> bool:
    return int(connected_components(csr_array(links), directed=True, connection="strong")[0]) == 1


def _spanning(allowed: Any, degree: int, rng: np.random.Generator) -> tuple[Any, bool]:
    """A strongly connected subgraph with bounded degrees or None, and whether the answer is certain."""
    for _ in range(
        DELETIONS if degree > 1 or len(allowed) <= 8 else 0
    ):  # deletion hardly ever leaves a Hamiltonian cycle
        links = _pruned(allowed, degree, rng)
        if links is not None:
            return links, True
    return _exact(allowed, degree)


def _pruned(allowed: Any, degree: int, rng: np.random.Generator) -> Any:
    """Delete links at nodes above the degree in random order, those with two such ends first; None if some stay above it."""
    links = allowed.copy()
    candidates = [tuple(pair) for pair in rng.permutation(np.argwhere(links))]
    for both in (True, False):
        for i, j in candidates:
            excess = (links[i].sum() > degree, links[:, j].sum() > degree)
            if links[i, j] and (all(excess) if both else any(excess)):
                links[i, j] = False
                if not _connected(links):
                    links[i, j] = True
    return links if max(links.sum(0).max(), links.sum(1).max()) <= degree else None


def _exact(allowed: Any, degree: int) -> tuple[Any, bool]:
    """Decide by mixed-integer programming: a unit of flow from node 0 to each other node, and one back, along used links."""
    target, source = np.nonzero(allowed)
    n, m = len(allowed), len(target)
    edge = np.arange(m)
    into, out = (csr_array((np.ones(m), (ends, edge)), shape=(n, m)) for ends in (target, source))
    zero, need = csr_array((n, m)), np.where(np.arange(n) == 0, 1 - n, 1)
    one, wide = eye_array(m, format="csr"), csr_array((m, m))
    limits = [
        LinearConstraint(hstack([into, zero, zero]), -np.inf, degree),
        LinearConstraint(hstack([out, zero, zero]), -np.inf, degree),
        LinearConstraint(hstack([zero, into - out, zero]), need, need),
        LinearConstraint(hstack([zero, zero, out - into]), need, need),
        LinearConstraint(hstack([(1 - n) * one, one, wide]), -np.inf, 0),
        LinearConstraint(hstack([(1 - n) * one, wide, one]), -np.inf, 0),
    ]
    whole = np.concatenate([np.ones(m), np.zeros(2 * m)])
    bounds = Bounds(0, np.concatenate([np.ones(m), np.full(2 * m, n - 1)]))
    found = milp(
        np.zeros(3 * m), integrality=whole, bounds=bounds, constraints=limits, options={"time_limit": TIME_LIMIT}
    )
    if found.x is None:
        return None, found.status == 2
    links = np.zeros_like(allowed)
    used = found.x[:m] > 0.5
    links[target[used], source[used]] = True
    return links, True


@single_threaded()
def _extended(links: Any, allowed: Any, degree: int, rng: np.random.Generator) -> Any:
    """Add allowed links while they improve mixing, the best first."""
    links, current = links.copy(), _mixing_cost(links)
    while True:
        open_rows, open_columns = links.sum(1) < degree, links.sum(0) < degree
        candidates: IntArray = np.argwhere(allowed & ~links & open_rows[:, None] & open_columns)
        candidates = rng.permutation(candidates)[:MOST_TRIED]
        costs = []
        for i, j in candidates:
            links[i, j] = True
            costs.append(_mixing_cost(links))
            links[i, j] = False
        if not costs or not min(costs) < current * (1 - 1e-9):
            return links
        best = int(np.argmin(costs))
        links[tuple(candidates[best])], current = True, costs[best]


def _mixing_cost(links: Any) -> float:
    """sum_i ||A^i - A_inf||_F^2 of equal weights, of A and of B."""
    pattern = torch.as_tensor(links + np.eye(len(links)))
    rows = (pattern / pattern.sum(1, keepdim=True), (pattern / pattern.sum(0)).T)
    return sum(float(power_sum(matrix)) for matrix in rows)

"""The digraph itself, chosen by measured link rates: slow links are left out, the rest mixes well."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array, eye_array, hstack
from scipy.sparse.csgraph import connected_components

from perron._typing import FloatArray, IntArray, check_whole
from perron.errors import GraphError
from perron.networks import spectral
from perron.networks.graph import Graph
from perron.networks.mixing import Mixing

PATIENCE = 5.0  # seconds for one exact search
DELETIONS = 12  # random orders in which links are deleted before the exact search is asked
MOST_TRIED = 400  # links that are tried as the next one to add


@dataclass(frozen=True)
class Chosen:
    """A digraph chosen by link rates.

    Attributes:
        graph: strongly connected, with self-loops; in- and out-degrees at most ``degree``.
        slowest_before: the slowest link there is, which a network that uses all links would wait for.
        slowest: the slowest link in ``graph``: its bottleneck.
        proven: whether it is known that no such graph has a faster bottleneck.
        seconds_before, seconds: what one message of the given size takes along the slowest link.
        rho_2: of the graph with equal weights, the larger of the two.
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
        """``(what, value)``, for tables."""
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
        width = max(len(what) for what, _ in rows)
        return "\n".join(f"{what:<{width}}  {value}" for what, value in rows)


def choose_graph(rates: Any, *, degree: int, message: float = 1.0, seed: int = 0, name: str = "") -> Chosen:
    """A strongly connected digraph of bounded degree whose slowest link is as fast as can be, and which mixes well.

    First the bottleneck: the largest rate t such that the links of at least that rate contain a strongly connected digraph
    with in- and out-degrees of at most ``degree``; by binary search over the rates, as more links never hurt. Whether they do
    is NP-hard to decide (with degree 1 it asks for a Hamiltonian cycle). We first delete links in random order as long as the
    rest stays connected, which mostly succeeds; if it does not, a mixed-integer program (two flows, from a root to all and from
    all to it) decides, for at most some seconds at a time. Where it runs out of time, a faster graph may exist, and
    ``proven`` is False.

    Then links of at least the rate t are added, one at a time, as long as they lower sum_i ||A^i - A_inf||_F^2 + the same of B
    for equal weights: greedy, a heuristic. Links are assumed not to slow each other down.

    Args:
        rates: ``[i, j]`` is the rate at which i receives from j, such as bytes per second; 0 or nan where there is no link.
        degree: how many other nodes a node may hear, and how many may hear it.
        message: the size of a message, in the unit of the rates: for the times in the report.

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
        return Chosen(Graph(1, name=name), degree, np.inf, np.inf, True, 0.0, 0.0, 0.0)
    links, threshold, proven = _bottleneck(speed, present, degree, rng)
    links = _richer(links, speed >= threshold, degree, rng)
    target, source = np.nonzero(links)
    graph = Graph(n, np.stack([source, target], axis=1), name=name)
    slowest = float(speed[links].min())
    metrics = spectral.describe(Mixing.uniform(graph))
    rho_2 = max(m.rho_2 for m in (metrics.pull, metrics.push) if m is not None)
    before = float(present[0])
    return Chosen(graph, degree, before, slowest, proven, message / before, message / slowest, rho_2)


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

    Rates above which the links are not even strongly connected need no search. Between them: invariant that ``low`` works and
    ``high`` does not, or was given up.
    """
    low, high = 0, len(present)
    while high - low > 1:  # the largest rate with a strongly connected graph of any degree
        middle = (low + high) // 2
        low, high = (middle, high) if _connected(speed >= present[middle]) else (low, middle)
    low, high, best, given_up = -1, low + 1, None, False
    while high - low > 1:
        # The upper end first: mostly the degree costs nothing.
        middle = high - 1 if best is None and low < 0 and not given_up and high == len(present) else (low + high) // 2
        links, decided = _spanning(speed >= present[middle], degree, rng)
        if links is None:
            high, given_up = middle, given_up or not decided
        else:
            low, best = middle, links
    if best is None:
        if given_up:
            raise GraphError(
                f"No strongly connected digraph with degrees of at most {degree} was found in time. Allow a larger degree."
            )
        raise GraphError(
            f"These links contain no strongly connected digraph with degrees of at most {degree}. Allow a larger degree."
        )
    return best, float(present[low]), not given_up


def _connected(links: Any) -> bool:
    return int(connected_components(csr_array(links), directed=True, connection="strong")[0]) == 1


def _spanning(allowed: Any, degree: int, rng: np.random.Generator) -> tuple[Any, bool]:
    """A strongly connected subgraph with bounded degrees or None, and whether None is certain."""
    for _ in range(DELETIONS if degree > 1 or len(allowed) <= 8 else 0):  # of cycles, deleting hardly ever leaves one
        links = _thinned(allowed, degree, rng)
        if links is not None:
            return links, True
    return _exact(allowed, degree)


def _thinned(allowed: Any, degree: int, rng: np.random.Generator) -> Any:
    """Delete links at overloaded nodes, in random order, those that relieve both ends first; None if some stay overloaded."""
    links = allowed.copy()
    candidates = [tuple(pair) for pair in rng.permutation(np.argwhere(links))]
    for both in (True, False):
        for i, j in candidates:
            crowded = (links[i].sum() > degree, links[:, j].sum() > degree)
            if links[i, j] and (all(crowded) if both else any(crowded)):
                links[i, j] = False
                if not _connected(links):
                    links[i, j] = True
    return links if max(links.sum(0).max(), links.sum(1).max()) <= degree else None


def _exact(allowed: Any, degree: int) -> tuple[Any, bool]:
    """By mixed-integer programming: a unit of flow from node 0 to each other node, and one back, along links that are used."""
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
        np.zeros(3 * m), integrality=whole, bounds=bounds, constraints=limits, options={"time_limit": PATIENCE}
    )
    if found.x is None:
        return None, found.status == 2
    links = np.zeros_like(allowed)
    used = found.x[:m] > 0.5
    links[target[used], source[used]] = True
    return links, True


def _richer(links: Any, allowed: Any, degree: int, rng: np.random.Generator) -> Any:
    """Add allowed links while they help mixing, the most helpful first."""
    links, now = links.copy(), _mixing_cost(links)
    while True:
        open_rows, open_columns = links.sum(1) < degree, links.sum(0) < degree
        candidates: IntArray = np.argwhere(allowed & ~links & open_rows[:, None] & open_columns)
        candidates = rng.permutation(candidates)[:MOST_TRIED]
        costs = []
        for i, j in candidates:
            links[i, j] = True
            costs.append(_mixing_cost(links))
            links[i, j] = False
        if not costs or not min(costs) < now * (1 - 1e-9):
            return links
        at = int(np.argmin(costs))
        links[tuple(candidates[at])], now = True, costs[at]


def _mixing_cost(links: Any) -> float:
    """sum_i ||A^i - A_inf||_F^2 of equal weights, of A and of B."""
    pattern = links + np.eye(len(links))
    total = 0.0
    for rows in (pattern / pattern.sum(1, keepdims=True), (pattern / pattern.sum(0)).T):
        n = len(rows)
        pi = np.linalg.solve((np.eye(n) - rows + 1).T, np.ones(n))
        X, power = (np.eye(n) - pi) @ (np.eye(n) - pi).T, rows - pi
        for _ in range(40):  # the series by doubling, as theory.levels.lyapunov
            more = power @ X @ power.T
            X, power = X + more, power @ power
            if np.abs(more).max() <= 1e-10 * np.abs(X).max():
                break
        total += float(np.trace(X))
    return total

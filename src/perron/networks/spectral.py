"""How well a network mixes: the Perron vectors and the metrics that the paper builds on them.

For a row-stochastic A with limit A_inf = 1 pi_A^T, and likewise for a column-stochastic B with B_inf = pi_B 1^T:

| symbol   | here             | meaning                                                                             |
|----------|------------------|-------------------------------------------------------------------------------------|
| pi       | `perron`         | how much each node counts in the end: left (A) or right (B) eigenvector of 1, sum 1   |
| rho_2    | `decay_rate`     | second largest modulus of an eigenvalue: how fast disagreement dies out in the end    |
| beta     | `contraction`    | norm of A - A_inf in the geometry weighted by pi: guaranteed shrinkage in each step   |
| kappa    | `skewness`       | max pi / min pi: how unequally the nodes count                                        |
| s        | `mixing_sum`     | max of sum_i ||A^i - A_inf|| and sum_i ||A^i - A_inf||^2: all disagreement, ever      |
| M        | `peak_deviation` | max_i ||A^i - A_inf||                                                                 |
| c        | `alignment`      | n pi_A^T pi_B: how well pull and push agree on who counts; the effective step is c lr |

All norms are spectral. Transposing swaps the two kinds without changing a norm, so that everything is computed for
the row-stochastic one. ``A`` may be dense or sparse; a matrix that is doubly stochastic counts as row-stochastic.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from math import inf, isfinite, log
from typing import Any, Literal

import numpy as np

from perron._storage.jsonable import to_jsonable
from perron._typing import FloatArray
from perron.errors import SpectralError
from perron.networks import eigen
from perron.networks.eigen import MixingSum
from perron.networks.mixing import Mixing
from perron.networks.stochastic import Matrix

# ---- single metrics of one stochastic matrix


def perron(matrix: Any) -> FloatArray:
    """The Perron vector pi: pi^T A = pi^T of a row-stochastic, B pi = pi of a column-stochastic matrix; sum 1.

    Small matrices: by state reduction without subtractions (Grassmann, Taksar & Heyman 1985), which is accurate in
    every entry however skewed. Large ones: power iteration; where the graph mixes too slowly for that, state reduction
    up to 2,500 nodes, and a sparse factorisation beyond, which is refused where it would be inaccurate.
    Nodes outside the root component of a `rooted` network have weight zero.

    >>> perron([[0.5, 0.5], [0.25, 0.75]]).round(4).tolist()
    [0.3333, 0.6667]
    """
    return eigen.stationary(eigen.row_stochastic(matrix))


def decay_rate(matrix: Any) -> float:
    """rho_2: the second largest modulus among the eigenvalues, from the whole complex spectrum.

    >>> round(decay_rate([[0.5, 0.5], [0.25, 0.75]]), 4)
    0.25
    """
    rows = eigen.row_stochastic(matrix)
    return eigen.second_modulus(rows, eigen.stationary(rows))


def contraction(matrix: Any) -> float:
    """beta = || Pi^1/2 (A - A_inf) Pi^-1/2 ||, Pi = diag(pi); for a column-stochastic B the same of its transpose.

    Below one if every node has a self-loop; otherwise it may be one (a 3-ring with a single self-loop), and it is
    infinite where some entry of pi is zero.
    """
    rows = eigen.row_stochastic(matrix)
    return eigen.weighted_norm(rows, eigen.stationary(rows))


def skewness(matrix: Any) -> float:
    """kappa = max pi / min pi; infinite where some entry of pi is zero."""
    return eigen.skew(perron(matrix))


def mixing_sum(matrix: Any, *, power: int = 1, tolerance: float = 1e-9) -> MixingSum:
    """s of A^power: max of sum_i ||A^(power i) - A_inf|| and of the sum of their squares, i = 0, 1, ...

    The sum is cut where the rest is provably below ``tolerance`` times the sum: with q = ||A^k - A_inf|| < 1 for some
    k, the rest is at most q/(1-q) times the last k terms, as ||A^(i+k) - A_inf|| <= q ||A^i - A_inf||. Above
    600 nodes, or where the matrix mixes very slowly, that takes too long and an upper bound is returned
    instead, from ||A^i - A_inf|| <=
    sqrt(kappa) beta^i.
    """
    if not isinstance(power, int) or power < 1:
        raise SpectralError(f"mixing_sum needs a whole power >= 1; got {power}.")
    rows = eigen.row_stochastic(matrix)
    return eigen.summed_norms(rows, eigen.stationary(rows), power, tolerance)


def peak_deviation(matrix: Any) -> float:
    """M = max_i ||A^i - A_inf||; at most sqrt(2n) (the paper's sqrt(n) does not hold)."""
    return mixing_sum(matrix).peak


def alignment(mixing: Mixing) -> float:
    """c = n pi_A^T pi_B: 1 where pull or push weighs all nodes equally; n where both follow one root alone."""
    return mixing.nodes * float(perron(period_product(mixing, "pull")) @ perron(period_product(mixing, "push")))


# ---- all metrics of a network


@dataclass(frozen=True)
class MatrixMetrics:
    """The metrics of one matrix; see the table at the top of the module."""

    perron: FloatArray
    rho_2: float
    beta: float
    kappa: float
    s: float
    s_tail: float
    s_is_bound: bool
    peak: float
    edges: int
    is_rooted: bool

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, for JSON: an infinite value becomes None."""
        return to_jsonable(asdict(self))


@dataclass(frozen=True)
class NetworkMetrics:
    """The metrics of a network: of its pull matrix, its push matrix, and c, which joins them."""

    name: str
    nodes: int
    period: int
    pull: MatrixMetrics | None
    push: MatrixMetrics | None
    c: float | None

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, for JSON."""
        sides = {side: metrics.to_dict() if (metrics := getattr(self, side)) else None for side in ("pull", "push")}
        return {field.name: getattr(self, field.name) for field in fields(self)} | sides

    def advice(self) -> list[str]:
        """What the numbers mean, in sentences."""
        return _advice(self)

    def __str__(self) -> str:
        head = f"{self.name or 'network'}: {self.nodes} nodes" + (f", period {self.period}" if self.period > 1 else "")
        lines = [head, f"{'':24}{'pull (A)':>12}{'push (B)':>12}"]
        for symbol, meaning, pull, push in self.rows():
            lines.append(f"{symbol + '  ' + meaning:24}{pull:>12}{push:>12}")
        return "\n".join(lines + self.advice())

    def rows(self) -> list[tuple[str, str, str, str]]:
        """Symbol, meaning, and the formatted value for pull and for push, line by line."""
        table = [("edges", "", *(str(m.edges) if m else "-" for m in (self.pull, self.push)))]
        for symbol, meaning, field in (
            ("rho_2", "decay rate", "rho_2"), ("beta", "contraction", "beta"), ("kappa", "skewness", "kappa"),
            ("s", "mixing sum", "s"), ("M", "peak deviation", "peak"),
        ):  # fmt: skip
            cells = [_cell(m, field) for m in (self.pull, self.push)]
            table.append((symbol, meaning, *cells))
        if self.c is not None:
            table.append(("c", "alignment", f"{self.c:.4g}", ""))
        return table  # type: ignore[return-value]


def describe(mixing: Mixing) -> NetworkMetrics:
    """All metrics of a network, with advice; ``print`` it for a table.

    A time-varying network is described by the product of its matrices over one period.
    """
    pull = _metrics(mixing, "pull") if mixing.has_pull else None
    push = _metrics(mixing, "push") if mixing.has_push else None
    c = mixing.nodes * float(pull.perron @ push.perron) if pull and push else None
    return NetworkMetrics(mixing.name, mixing.nodes, mixing.period, pull, push, c)


def period_product(mixing: Mixing, side: Literal["pull", "push"]) -> Matrix:
    """What one period of a time-varying network does: A_{T-1} ... A_1 A_0; the matrix itself if it does not vary."""
    at = mixing.pull_at if side == "pull" else mixing.push_at
    if mixing.period == 1:
        return at(0)
    if mixing.nodes > eigen.DENSE_UP_TO:
        raise SpectralError(
            f"The metrics of a time-varying network need the product over a period, a full matrix: at most "
            f"{eigen.DENSE_UP_TO} nodes; got {mixing.nodes}."
        )
    product: FloatArray = np.eye(mixing.nodes)
    for step in range(mixing.period):
        product = at(step) @ product
    # Each factor may be off by the tolerance; without this their product would be off by more.
    return product / (product.sum(axis=1, keepdims=True) if side == "pull" else product.sum(axis=0))


def _metrics(mixing: Mixing, side: Literal["pull", "push"]) -> MatrixMetrics:
    rows = eigen.row_stochastic(period_product(mixing, side))
    pi = eigen.stationary(rows)
    beta = eigen.weighted_norm(rows, pi)
    s = eigen.summed_norms(rows, pi, 1, 1e-9, beta)
    graph = mixing.pull_graph if side == "pull" else mixing.push_graph
    return MatrixMetrics(
        perron=pi,
        rho_2=eigen.second_modulus(rows, pi),
        beta=beta,
        kappa=eigen.skew(pi),
        s=s.value,
        s_tail=s.tail,
        s_is_bound=s.is_bound,
        peak=s.peak,
        edges=len(graph.edges),
        is_rooted=not graph.is_strongly_connected,
    )


def _cell(metrics: MatrixMetrics | None, field: str) -> str:
    if metrics is None:
        return "-"
    at_most = "<= " if metrics.s_is_bound and field in ("s", "peak") else ""
    return f"{at_most}{getattr(metrics, field):.4g}"


def _advice(network: NetworkMetrics) -> list[str]:
    sides = [(name, m) for name, m in (("pull", network.pull), ("push", network.push)) if m is not None]
    advice = []
    for name, m in sides:
        top = int(np.argmax(m.perron))
        if isfinite(m.kappa) and m.kappa > 10:
            advice.append(
                f"{name} is skewed: node {top} counts {m.kappa:.0f} times as much as node {int(np.argmin(m.perron))}. "
                f"{'Pull' if name == 'pull' else 'Push'}-only methods need steps smaller by that; Push-Pull does not."
            )
        if m.is_rooted:
            advice.append(f"{name} is rooted at node {top}: others count for nothing, only Push-Pull and trees work.")
        elif not isfinite(m.kappa):
            advice.append(f"{name} is skewed beyond double precision: some nodes count less than 1e-308 of all.")
        if m.rho_2 > 0.99:
            steps = log(10) / -log(m.rho_2) if m.rho_2 < 1 else inf
            advice.append(f"{name} mixes slowly: disagreement takes {steps:.0f} steps to fall tenfold.")
    if network.c is not None and (network.c < 0.5 or network.c > 2):
        advice.append(f"c = {network.c:.3g}: the effective step of Push-Pull is {network.c:.3g} times lr; choose lr/c.")
    return advice

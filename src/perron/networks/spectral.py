"""Spectral metrics of a network: its Perron vectors and the quantities that the paper derives from them.

For a row-stochastic A with limit A_inf = 1 pi_A^T, and likewise for a column-stochastic B with B_inf = pi_B 1^T:

| symbol   | here             | meaning                                                                             |
|----------|------------------|-------------------------------------------------------------------------------------|
| pi       | `perron`         | weight of each node in the limit: left (A) or right (B) eigenvector of 1, sum 1       |
| rho_2    | `decay_rate`     | second largest modulus of an eigenvalue: asymptotic decay of disagreement             |
| beta     | `contraction`    | norm of A - A_inf in the geometry weighted by pi: guaranteed decay in each step       |
| kappa    | `skewness`       | max pi / min pi                                                                       |
| s        | `mixing_sum`     | max of sum_i ||A^i - A_inf|| and sum_i ||A^i - A_inf||^2: accumulated disagreement    |
| M        | `peak_deviation` | max_i ||A^i - A_inf||                                                                 |
| c        | `alignment`      | n pi_A^T pi_B: agreement of the two Perron vectors; the effective step is c lr        |

All norms are spectral. A transposed matrix has the same norms, so that all metrics are computed for row-stochastic matrices.
Matrices may be dense or sparse; a doubly stochastic one counts as row-stochastic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import inf, isfinite, log
from typing import Any, Literal

import numpy as np

from perron._registry import public_dir
from perron._storage.jsonable import to_jsonable
from perron._typing import FloatArray
from perron.errors import SpectralError
from perron.networks import _eigen
from perron.networks._eigen import MixingSum
from perron.networks.mixing import Mixing
from perron.networks.stochastic import Matrix

# ---- metrics of a stochastic matrix


def perron(matrix: Any) -> FloatArray:
    """Return the Perron vector pi: pi^T A = pi^T of a row-stochastic, B pi = pi of a column-stochastic matrix; sum 1.

    Small matrices: state reduction without subtractions (Grassmann, Taksar & Heyman 1985), which is accurate in every entry.
    Large ones: power iteration; if it converges too slowly, state reduction up to 2,500 nodes, and above a sparse factorization,
    or an error if that would be inaccurate. Nodes outside the root component of a `rooted` network have weight zero.

    >>> perron([[0.5, 0.5], [0.25, 0.75]]).round(4).tolist()
    [0.3333, 0.6667]
    """
    return _eigen.perron_vector(_eigen.row_stochastic(matrix))


def decay_rate(matrix: Any) -> float:
    """Return rho_2, the second largest modulus of an eigenvalue.

    >>> round(decay_rate([[0.5, 0.5], [0.25, 0.75]]), 4)
    0.25
    """
    rows = _eigen.row_stochastic(matrix)
    return _eigen.second_modulus(rows, _eigen.perron_vector(rows))


def contraction(matrix: Any) -> float:
    """Return beta = || Pi^1/2 (A - A_inf) Pi^-1/2 ||, Pi = diag(pi), and for a column-stochastic B that of its transpose.

    It is below one if every node has a self-loop; otherwise it may be one (a 3-ring with a single self-loop). It is infinite if
    an entry of pi is zero.
    """
    rows = _eigen.row_stochastic(matrix)
    return _eigen.weighted_norm(rows, _eigen.perron_vector(rows))


def skewness(matrix: Any) -> float:
    """Return kappa = max pi / min pi, infinite if an entry of pi is zero."""
    return _eigen.skewness(perron(matrix))


def mixing_sum(matrix: Any, *, power: int = 1, tolerance: float = 1e-9, pi: FloatArray | None = None) -> MixingSum:
    """Return s of A^power: the maximum of sum_i ||A^(power i) - A_inf|| and of the sum of their squares, i = 0, 1, ...

    The sum is truncated when the rest is provably below ``tolerance`` times the sum: with q = ||A^k - A_inf|| < 1 for some k, the
    rest is at most q/(1-q) times the last k terms, because ||A^(i+k) - A_inf|| <= q ||A^i - A_inf||. Once A^i - A_inf has rank
    one, as for two nodes, the rest is a geometric series. If the matrix mixes too slowly for that, as a nearly periodic one,
    the result is an upper bound: the smaller one of S_2k <= S_k (1 + ||A^k - A_inf||) for the sums S_k of k terms, and of
    ||A^i - A_inf|| <= sqrt(kappa) beta^i, which alone is used above 600 nodes. It takes about a second at most. ``pi`` is the
    Perron vector, if it is known.
    """
    if not isinstance(power, int) or power < 1:
        raise SpectralError(f"mixing_sum needs a whole power >= 1; got {power}.")
    rows = _eigen.row_stochastic(matrix)
    return _eigen.summed_norms(rows, _eigen.perron_vector(rows) if pi is None else pi, power, tolerance)


def peak_deviation(matrix: Any) -> float:
    """Return M = max_i ||A^i - A_inf||, which is at most sqrt(2n) (the paper's bound sqrt(n) does not hold)."""
    return mixing_sum(matrix).peak


def alignment(mixing: Mixing) -> float:
    """Return c = n pi_A^T pi_B: 1 if pi_A or pi_B is uniform, n if both are concentrated on one node."""
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
        """Return a dictionary for JSON, in which an infinite value is None."""
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
        """Return a dictionary for JSON, in which an infinite value is None."""
        return to_jsonable(asdict(self))

    def __str__(self) -> str:
        head = f"{self.name or 'network'}: {self.nodes} nodes" + (f", period {self.period}" if self.period > 1 else "")
        lines = [head, f"{'':24}{'pull (A)':>12}{'push (B)':>12}"]
        for symbol, meaning, pull, push in self.rows():
            lines.append(f"{symbol + '  ' + meaning:24}{pull:>12}{push:>12}")
        return "\n".join(lines + self.advice())

    def rows(self) -> list[tuple[str, str, str, str]]:
        """Return (symbol, meaning, value of pull, value of push) of each metric, formatted."""
        sides = (self.pull, self.push)
        table = [("edges", "", *(str(m.edges) if m else "-" for m in sides))]
        for symbol, meaning, field in (
            ("rho_2", "decay rate", "rho_2"), ("beta", "contraction", "beta"), ("kappa", "skewness", "kappa"),
            ("s", "mixing sum", "s"), ("M", "peak deviation", "peak"),
        ):  # fmt: skip
            table.append((symbol, meaning, *(_cell(m, field) for m in sides)))
        if self.c is not None:
            table.append(("c", "alignment", f"{self.c:.4g}", ""))
        return table  # type: ignore[return-value]

    def advice(self, labels: Sequence[str] | None = None) -> list[str]:
        """Return sentences on what the metrics mean for algorithms; ``labels`` are names of the nodes."""
        advice = []

        def name_of(node: int) -> str:
            return labels[node] if labels else f"node {node}"

        for name, m in (("pull", self.pull), ("push", self.push)):
            if m is None:
                continue
            top, bottom = (name_of(int(find(m.perron))) for find in (np.argmax, np.argmin))
            if isfinite(m.kappa) and m.kappa > 10:
                advice.append(
                    f"{name} is skewed: {top} counts {m.kappa:.0f} times as much as {bottom}. "
                    f"{name.title()}-only methods need steps smaller by that; Push-Pull does not."
                )
            if m.is_rooted:
                advice.append(f"{name} is rooted at {top}: others count for nothing, only Push-Pull and trees work.")
            elif not isfinite(m.kappa):
                advice.append(f"{name} is skewed beyond double precision: some nodes count less than 1e-308 of all.")
            if m.rho_2 > 0.99:
                steps = log(10) / -log(m.rho_2) if m.rho_2 < 1 else inf
                advice.append(f"{name} mixes slowly: disagreement takes {steps:.0f} steps to fall tenfold.")
        if self.c is not None and (self.c < 0.5 or self.c > 2):
            advice.append(f"c = {self.c:.3g}: the effective step of Push-Pull is {self.c:.3g} times lr; choose lr/c.")
        return advice


def describe(mixing: Mixing) -> NetworkMetrics:
    """Return all metrics of a network; ``print`` them for a table with advice.

    The metrics of a time-varying network are those of the product of its matrices over one period.
    """
    pull = _metrics(mixing, "pull") if mixing.has_pull else None
    push = _metrics(mixing, "push") if mixing.has_push else None
    c = mixing.nodes * float(pull.perron @ push.perron) if pull and push else None
    return NetworkMetrics(mixing.name, mixing.nodes, mixing.period, pull, push, c)


def period_product(mixing: Mixing, side: Literal["pull", "push"]) -> Matrix:
    """Return the product A_{T-1} ... A_1 A_0 over a period of a time-varying network; the matrix itself if it is constant.

    Of matrices that are drawn at random, it is the mean.
    """
    mixing = mixing.expected
    at = mixing.pull_at if side == "pull" else mixing.push_at
    if mixing.period == 1:
        return at(0)
    if mixing.nodes > _eigen.DENSE_UP_TO:
        raise SpectralError(
            f"The metrics of a time-varying network need the product over a period, a full matrix: at most "
            f"{_eigen.DENSE_UP_TO} nodes; got {mixing.nodes}."
        )
    product: FloatArray = np.eye(mixing.nodes)
    for step in range(mixing.period):
        product = at(step) @ product
    # Each factor may be off by the tolerance, and so their product by more.
    return product / (product.sum(axis=1, keepdims=True) if side == "pull" else product.sum(axis=0))


def _metrics(mixing: Mixing, side: Literal["pull", "push"]) -> MatrixMetrics:
    rows = _eigen.row_stochastic(period_product(mixing, side))
    pi = _eigen.perron_vector(rows)
    beta = _eigen.weighted_norm(rows, pi)
    s = _eigen.summed_norms(rows, pi, 1, 1e-9, beta)
    graph = mixing.pull_graph if side == "pull" else mixing.push_graph
    return MatrixMetrics(
        perron=pi,
        rho_2=_eigen.second_modulus(rows, pi),
        beta=beta,
        kappa=_eigen.skewness(pi),
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


__dir__ = public_dir(__name__)

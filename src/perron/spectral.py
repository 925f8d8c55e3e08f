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
from math import exp, inf, isfinite, log, sqrt
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy.linalg import eigvals
from scipy.sparse import csc_array, csr_array, diags_array, eye_array, issparse
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigs, eigsh, onenormest, splu, svds
from threadpoolctl import threadpool_limits

from perron.errors import SpectralError
from perron.graph import FloatArray, Graph
from perron.mixing import Mixing
from perron.stochastic import TOLERANCE, Matrix

DENSE_UP_TO = 600  # nodes; above that sparse iterations are used
POWER_STEPS = 3000  # power iterations before we conclude that the graph mixes too slowly for them
REDUCE_UP_TO = 2500  # nodes; up to that a slow matrix is reduced state by state, which is exact and takes seconds
BLOCK_ENTRIES = 8_000_000  # entries of the powers that are held at a time
MOST_WORK = 4e10  # operations spent on s, some seconds, before a bound has to do


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
    return _perron(_row_stochastic(matrix))


def decay_rate(matrix: Any) -> float:
    """rho_2: the second largest modulus among the eigenvalues, from the whole complex spectrum.

    >>> round(decay_rate([[0.5, 0.5], [0.25, 0.75]]), 4)
    0.25
    """
    rows = _row_stochastic(matrix)
    return _decay_rate(rows, _perron(rows))


def contraction(matrix: Any) -> float:
    """beta = || Pi^1/2 (A - A_inf) Pi^-1/2 ||, Pi = diag(pi); for a column-stochastic B the same of its transpose.

    Below one if every node has a self-loop; otherwise it may be one (a 3-ring with a single self-loop), and it is
    infinite where some entry of pi is zero.
    """
    rows = _row_stochastic(matrix)
    return _contraction(rows, _perron(rows))


def skewness(matrix: Any) -> float:
    """kappa = max pi / min pi; infinite where some entry of pi is zero."""
    return _skewness(perron(matrix))


class MixingSum(NamedTuple):
    """s of a matrix: ``value``, up to ``tail`` (the true s lies in [value, value + tail]); a mere upper bound if
    ``is_bound``. ``peak`` is M, the largest of the norms, itself an upper bound if ``is_bound``."""

    value: float
    tail: float
    peak: float
    is_bound: bool


def mixing_sum(matrix: Any, *, power: int = 1, tolerance: float = 1e-9) -> MixingSum:
    """s of A^power: max of sum_i ||A^(power i) - A_inf|| and of the sum of their squares, i = 0, 1, ...

    The sum is cut where the rest is provably below ``tolerance`` times the sum: with q = ||A^k - A_inf|| < 1 for some
    k, the rest is at most q/(1-q) times the last k terms, as ||A^(i+k) - A_inf|| <= q ||A^i - A_inf||. Above
    `DENSE_UP_TO` nodes, or where the matrix mixes very slowly, that takes too long and an upper bound is returned
    instead, from ||A^i - A_inf|| <=
    sqrt(kappa) beta^i.
    """
    if not isinstance(power, int) or power < 1:
        raise SpectralError(f"mixing_sum needs a whole power >= 1; got {power}.")
    rows = _row_stochastic(matrix)
    return _mixing_sum(rows, _perron(rows), power, tolerance)


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
        values = asdict(self) | {"perron": self.perron.tolist()}
        return {key: None if isinstance(v, float) and not isfinite(v) else v for key, v in values.items()}


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
    if mixing.nodes > DENSE_UP_TO:
        raise SpectralError(
            f"The metrics of a time-varying network need the product over a period, a full matrix: at most "
            f"{DENSE_UP_TO} nodes; got {mixing.nodes}."
        )
    product: FloatArray = np.eye(mixing.nodes)
    for step in range(mixing.period):
        product = at(step) @ product
    # Each factor may be off by the tolerance; without this their product would be off by more.
    return product / (product.sum(axis=1, keepdims=True) if side == "pull" else product.sum(axis=0))


def _metrics(mixing: Mixing, side: Literal["pull", "push"]) -> MatrixMetrics:
    rows = _row_stochastic(period_product(mixing, side))
    pi = _perron(rows)
    beta = _contraction(rows, pi)
    s = _mixing_sum(rows, pi, 1, 1e-9, beta)
    graph = mixing.pull_graph if side == "pull" else mixing.push_graph
    return MatrixMetrics(
        perron=pi,
        rho_2=_decay_rate(rows, pi),
        beta=beta,
        kappa=_skewness(pi),
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


# ---- how they are computed, for a row-stochastic matrix


def _row_stochastic(matrix: Any) -> Matrix:
    """The matrix if its rows sum to one, its transpose if its columns do."""
    try:
        m: Matrix = matrix if issparse(matrix) else np.asarray(matrix, dtype=np.float64)
    except (TypeError, ValueError):
        raise SpectralError(f"A stochastic matrix is an array of numbers; got {matrix!r:.80}.") from None
    if m.ndim != 2 or m.shape[0] != m.shape[1] or not m.shape[0]:
        raise SpectralError(f"A stochastic matrix is square; got shape {m.shape}.")
    ones = np.ones(m.shape[0])
    values = m.data if issparse(m) else m
    if not np.isfinite(values).all() or (values < 0).any():
        raise SpectralError("A stochastic matrix has finite entries that are not negative.")
    if np.abs(m @ ones - 1).max() > TOLERANCE:
        m = m.T
        if np.abs(m @ ones - 1).max() > TOLERANCE:
            raise SpectralError("Neither the rows nor the columns of the matrix sum to one.")
    if m.shape[0] <= DENSE_UP_TO:
        return m.toarray() if issparse(m) else m
    return csr_array(m)


def _perron(rows: Matrix) -> FloatArray:
    n = rows.shape[0]
    graph = Graph.from_matrix(rows, name="the matrix")
    root = graph.roots()
    if not len(root):
        raise SpectralError(
            "The matrix has no unique Perron vector: its graph has no root, no node reaches all others."
        )
    pi = np.zeros(n)
    block = rows if len(root) == n else rows[np.ix_(root, root)] if not issparse(rows) else rows[root][:, root]
    pi[root] = _stationary_dense(block) if len(root) <= DENSE_UP_TO else _stationary_sparse(csr_array(block))
    return pi


def _stationary_dense(rows: Matrix) -> FloatArray:
    """State reduction: eliminate one node after the other, routing its traffic past it; then substitute back."""
    P = rows.toarray() if issparse(rows) else np.array(rows)
    n = len(P)
    for k in range(n - 1, 0, -1):
        P[:k, k] /= P[k, :k].sum()
        P[:k, :k] += np.outer(P[:k, k], P[k, :k])
    pi = np.ones(n)
    for k in range(1, n):
        pi[k] = pi[:k] @ P[:k, k]
    return pi / pi.sum()


def _stationary_sparse(rows: csr_array) -> FloatArray:
    n = rows.shape[0]
    columns = csr_array(rows.T)
    pi = np.full(n, 1 / n)
    for _ in range(POWER_STEPS):
        previous, pi = pi, columns @ pi
        pi /= pi.sum()
        if np.abs(pi - previous).sum() < 1e-15 * sqrt(n):
            return pi
    if n <= REDUCE_UP_TO:
        return _stationary_dense(rows)
    # The graph mixes slowly, so it is ring- or grid-like and factorises with little fill. One node's entry is fixed.
    system = csc_array(eye_array(n - 1) - columns[1:, 1:])
    factor = splu(system)
    inverse = LinearOperator(
        (n - 1, n - 1), matvec=factor.solve, rmatvec=lambda v: factor.solve(v, "T"), dtype=np.float64
    )
    condition = float(onenormest(inverse)) * float(np.abs(system).sum(axis=0).max())
    pi = np.concatenate([[1.0], factor.solve(columns[1:, [0]].toarray().ravel())])
    if not (condition < 1e10 and (pi > 0).all()):
        raise SpectralError(
            f"The Perron vector of this {n}-node matrix cannot be found accurately in double precision (condition "
            f"{condition:.0e}): some nodes count far too little. Up to {REDUCE_UP_TO} nodes it can."
        )
    return pi / pi.sum()


def _decay_rate(rows: Matrix, pi: FloatArray) -> float:
    n = rows.shape[0]
    if n == 1:
        return 0.0
    if not issparse(rows):
        # A - 1 pi^T has the eigenvalues of A, with the one that is 1 replaced by 0.
        return float(np.abs(eigvals(rows - pi)).max())
    # The eigenvalues of a reducible matrix are those of its diagonal blocks: of the root, and of the other components.
    graph = Graph.from_matrix(rows)
    sizes = np.bincount(graph.components)
    alone = sizes[graph.components] == 1
    found = float(np.abs(rows.diagonal()[alone & (pi == 0)]).max(initial=0.0))
    for number in np.flatnonzero(sizes > 1):
        nodes = np.flatnonzero(graph.components == number)
        found = max(found, _second_modulus(csr_array(rows[nodes][:, nodes]), pi[nodes]))
    return found


def _second_modulus(block: csr_array, pi: FloatArray) -> float:
    """The largest modulus among the eigenvalues of a component, without the Perron one if it is the root's (pi > 0)."""
    n = block.shape[0]
    if n <= DENSE_UP_TO:
        return float(np.abs(eigvals(block.toarray() - pi)).max())
    columns = csr_array(block.T)
    operator = LinearOperator((n, n), matvec=lambda v: columns @ v - pi * v.sum(), dtype=np.float64)
    start = np.random.default_rng(0).standard_normal(n)
    with threadpool_limits(1):  # the vectors are short: threads cost more than they give
        for accuracy, steps in (
            (1e-6, 12),
            (1e-4, 12),
        ):  # eigenvalues that fill a disc densely are not told apart finely
            try:
                found = eigs(operator, k=1, ncv=80, v0=start, maxiter=steps, tol=accuracy, return_eigenvectors=False)
                if 1 - np.abs(found).max() > 100 * accuracy:  # it is the distance from one that matters
                    return float(np.abs(found).max())
            except ArpackNoConvergence:
                continue
        observed = _observed_decay(operator, start)
        if observed < 0.99:
            return observed
        # Too slow for Arnoldi, so the graph is ring- or grid-like: it factorises with little fill, and the eigenvalues
        # that matter crowd around 1 (without self-loops, also around -1), where we look for them.
        near = eigs(csc_array(columns), k=8, sigma=1 + 1e-7, v0=start, tol=1e-10, return_eigenvectors=False)
        found = np.delete(near, np.argmin(np.abs(near - 1)))
        if (block.diagonal() == 0).any():
            far = eigs(csc_array(columns), k=4, sigma=-1 - 1e-7, v0=start, tol=1e-10, return_eigenvectors=False)
            found = np.append(found, far)
    return float(np.abs(found).max())


def _observed_decay(operator: LinearOperator, start: FloatArray, steps: int = 200) -> float:
    """By how much a disagreement shrinks in a step, after many steps: good to a percent or so."""
    vector, logarithm, half = start, 0.0, 0.0
    for step in range(2 * steps):
        vector = operator.matvec(vector)
        size = float(np.linalg.norm(vector))
        if size == 0:
            return 0.0
        vector, logarithm = vector / size, logarithm + log(size)
        if step == steps - 1:
            half = logarithm
    return exp((logarithm - half) / steps)


def _contraction(rows: Matrix, pi: FloatArray) -> float:
    if pi.min() <= 0:
        return inf
    n = rows.shape[0]
    root = np.sqrt(pi)
    if not issparse(rows):
        return float(np.linalg.norm(root[:, None] * (rows - pi) / root, 2))
    scaled = csr_array(diags_array(root) @ rows @ diags_array(1 / root))
    transposed = csr_array(scaled.T)
    operator = LinearOperator(
        (n, n),
        matvec=lambda v: scaled @ v.ravel() - root * (root @ v.ravel()),
        rmatvec=lambda v: transposed @ v.ravel() - root * (root @ v.ravel()),
        dtype=np.float64,
    )
    start = np.random.default_rng(0).standard_normal(n)
    with threadpool_limits(1):
        try:
            return float(svds(operator, k=1, ncv=40, v0=start, maxiter=40, tol=1e-8, return_singular_vectors=False)[0])
        except ArpackNoConvergence:  # as above; the largest singular value, 1, has the singular vector sqrt(pi)
            gram = csc_array(transposed @ scaled)
            near_one = eigsh(gram, k=4, sigma=1 + 1e-7, v0=start, tol=1e-10, return_eigenvectors=False)
            return sqrt(float(np.sort(near_one)[-2]))


def _skewness(pi: FloatArray) -> float:
    return float(pi.max() / pi.min()) if pi.min() > 0 else inf


def _mixing_sum(rows: Matrix, pi: FloatArray, power: int, tolerance: float, beta: float | None = None) -> MixingSum:
    norms = None if issparse(rows) else _deviation_norms(np.linalg.matrix_power(rows, power), pi, tolerance)
    if norms is None:
        return _mixing_bound(pi, (_contraction(rows, pi) if beta is None else beta) ** power)
    plain, squared = norms.sum(), (norms**2).sum()
    largest = norms if plain >= squared else norms**2
    return MixingSum(float(largest.sum()), _tail(largest), float(norms.max()), is_bound=False)


def _mixing_bound(pi: FloatArray, beta: float) -> MixingSum:
    kappa = _skewness(pi)
    first = sqrt(len(pi)) * float(np.linalg.norm(pi))  # ||I - A_inf||, exactly
    if not (beta < 1 - 1e-12 and isfinite(kappa)):
        return MixingSum(inf, 0.0, inf, is_bound=True)
    beta *= 1 + 1e-12  # a bound must not fall short by rounding
    plain = first + sqrt(kappa) * beta / (1 - beta)
    squared = first**2 + kappa * beta**2 / (1 - beta**2)
    return MixingSum(max(plain, squared), 0.0, max(first, sqrt(kappa) * beta), is_bound=True)


def _deviation_norms(rows: FloatArray, pi: FloatArray, tolerance: float) -> FloatArray | None:
    """||A^i - A_inf|| for i = 0, 1, ... until the rest of the sum is below ``tolerance`` of it; None if that takes too long.

    E_0 = I - A_inf and E_{i+1} = (A - A_inf) E_i. After a while E_i has few directions left: we then go on in an
    orthonormal basis of its range and row space, in which the matrices are small and their norms the same.
    """
    step, deviation = rows - pi, np.eye(len(pi)) - pi
    norms: list[float] = [float(np.linalg.norm(deviation, 2))]
    work = 0.0
    while True:
        size = len(deviation)
        block = np.empty((int(np.clip(len(norms) // 4, 16, max(16, BLOCK_ENTRIES // size**2))), size, size))
        for i in range(len(block)):
            deviation = block[i] = step @ deviation
        largest = np.linalg.eigvalsh(block @ block.transpose(0, 2, 1))[:, -1]  # of E E^T: several times faster than SVD
        norms.extend(np.sqrt(np.maximum(largest, 0)).tolist())
        found = np.array(norms)
        if norms[-1] <= 1e-300 or _tail(found) <= tolerance * found.sum():
            return found
        work += len(block) * (2 * size**3 + 800 * size**2)
        if work > MOST_WORK:
            return None
        left, sizes, _ = np.linalg.svd(deviation)
        rank = int((sizes > 1e-13 * sizes[0]).sum())
        if rank < size:
            basis = left[:, :rank]
            # The range is invariant up to rounding: step maps it into itself.
            step, deviation = basis.T @ step @ basis, np.diag(sizes[:rank])


def _tail(terms: FloatArray) -> float:
    """A bound for the sum of all later terms, as term[i + k] <= term[k] term[i]; infinite while none is below one."""
    k = len(terms) // 2
    q = terms[k]
    return float(terms[-k:].sum() * q / (1 - q)) if q < 1 else inf

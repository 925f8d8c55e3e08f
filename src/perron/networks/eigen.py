"""How the metrics of `perron.spectral` are computed, for a row-stochastic matrix: small ones densely, large ones sparsely.

A matrix is dense up to `DENSE_UP_TO` nodes and a csr_array beyond; ``pi`` is its Perron vector.
"""

from __future__ import annotations

from math import exp, inf, isfinite, log, sqrt
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import eigvals
from scipy.sparse import csc_array, csr_array, diags_array, eye_array, issparse
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigs, eigsh, onenormest, splu, svds
from threadpoolctl import threadpool_limits

from perron._typing import FloatArray
from perron.errors import SpectralError
from perron.networks.graph import Graph
from perron.networks.stochastic import TOLERANCE, Matrix

DENSE_UP_TO = 600  # nodes; above that sparse iterations are used
POWER_STEPS = 3000  # power iterations before we conclude that the graph mixes too slowly for them
REDUCE_UP_TO = 2500  # nodes; up to that a slow matrix is reduced state by state, which is exact and takes seconds
BLOCK_ENTRIES = 8_000_000  # entries of the powers that are held at a time
MOST_WORK = 4e10  # operations spent on s, some seconds, before a bound has to do


class MixingSum(NamedTuple):
    """s of a matrix: ``value``, up to ``tail`` (the true s lies in [value, value + tail]); a mere upper bound if
    ``is_bound``. ``peak`` is M, the largest of the norms, itself an upper bound if ``is_bound``."""

    value: float
    tail: float
    peak: float
    is_bound: bool


def row_stochastic(matrix: Any) -> Matrix:
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


def stationary(rows: Matrix) -> FloatArray:
    """pi: of the root component, and zero elsewhere."""
    n = rows.shape[0]
    graph = Graph.from_matrix(rows, name="the matrix")
    root = graph.roots()
    if not len(root):
        raise SpectralError(
            "The matrix has no unique Perron vector: its graph has no root, no node reaches all others."
        )
    pi = np.zeros(n)
    block = rows if len(root) == n else rows[np.ix_(root, root)] if not issparse(rows) else rows[root][:, root]
    pi[root] = reduced(block) if len(root) <= DENSE_UP_TO else _iterated(csr_array(block))
    return pi


def reduced(rows: Matrix) -> FloatArray:
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


def _iterated(rows: csr_array) -> FloatArray:
    n = rows.shape[0]
    columns = csr_array(rows.T)
    pi = np.full(n, 1 / n)
    for _ in range(POWER_STEPS):
        previous, pi = pi, columns @ pi
        pi /= pi.sum()
        if np.abs(pi - previous).sum() < 1e-15 * sqrt(n):
            return pi
    if n <= REDUCE_UP_TO:
        return reduced(rows)
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


def second_modulus(rows: Matrix, pi: FloatArray) -> float:
    """rho_2."""
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
        found = max(found, _block_modulus(csr_array(rows[nodes][:, nodes]), pi[nodes]))
    return found


def _block_modulus(block: csr_array, pi: FloatArray) -> float:
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


def weighted_norm(rows: Matrix, pi: FloatArray) -> float:
    """beta: || Pi^1/2 (A - A_inf) Pi^-1/2 ||; infinite where some entry of pi is zero."""
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


def skew(pi: FloatArray) -> float:
    """kappa: max pi / min pi."""
    return float(pi.max() / pi.min()) if pi.min() > 0 else inf


def summed_norms(rows: Matrix, pi: FloatArray, power: int, tolerance: float, beta: float | None = None) -> MixingSum:
    """s of A^power: the sum itself, or the bound where that takes too long; ``beta`` if it is known already."""
    norms = None if issparse(rows) else _deviation_norms(np.linalg.matrix_power(rows, power), pi, tolerance)
    if norms is None:
        return bounded_sum(pi, (weighted_norm(rows, pi) if beta is None else beta) ** power)
    plain, squared = norms.sum(), (norms**2).sum()
    largest = norms if plain >= squared else norms**2
    return MixingSum(float(largest.sum()), _tail(largest), float(norms.max()), is_bound=False)


def bounded_sum(pi: FloatArray, beta: float) -> MixingSum:
    """The bound on s that follows from ||A^i - A_inf|| <= sqrt(kappa) beta^i."""
    kappa = skew(pi)
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

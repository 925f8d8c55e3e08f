"""Numerics of `perron.networks.spectral` for a row-stochastic matrix.

Up to `DENSE_UP_TO` nodes a matrix is dense, above it is a csr_array; ``pi`` is its Perron vector.
"""

from __future__ import annotations

from math import exp, inf, isfinite, log, sqrt
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csc_array, csr_array, diags_array, eye_array, issparse

from perron._typing import FloatArray
from perron.errors import SpectralError
from perron.networks.graph import Graph
from perron.networks.stochastic import TOLERANCE, Matrix, to_dense

DENSE_UP_TO = 600  # nodes; larger matrices are sparse
POWER_STEPS = 3000  # largest number of power iterations; graphs that mix more slowly need another method
REDUCE_UP_TO = 2500  # nodes; state reduction of a slowly mixing matrix, which is exact, takes seconds at this size
SPARSE_SHARE = 0.1  # of entries, up to which a block of a matrix is faster by its indices
BLOCK_ENTRIES = 8_000_000  # largest number of entries of a block of powers
MAX_WORK = 1e10  # operations for s (about a second); above, an upper bound is computed instead
TERM_WORK = 1e5  # of each term besides, the operations that take as long
DOUBLINGS = 64  # of the number of terms, for a bound on all later ones


class MixingSum(NamedTuple):
    """s of a matrix, which lies in [value, value + tail], and the largest norm M = ``peak``.

    If ``is_bound``, ``value`` and ``peak`` are upper bounds.
    """

    value: float
    tail: float
    peak: float
    is_bound: bool


def row_stochastic(matrix: Any) -> Matrix:
    """Return the matrix if its rows sum to one, its transpose if its columns do."""
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
    return to_dense(m) if m.shape[0] <= DENSE_UP_TO else csr_array(m)


def perron_vector(rows: Matrix) -> FloatArray:
    """Return pi, which is zero outside the root component."""
    n = rows.shape[0]
    graph = Graph.from_matrix(rows, name="the matrix")
    root = graph.roots()
    if not len(root):
        raise SpectralError(
            "The matrix has no unique Perron vector: its graph has no root, no node reaches all others."
        )
    pi = np.zeros(n)
    block = rows if len(root) == n else rows[root][:, root] if issparse(rows) else rows[np.ix_(root, root)]
    pi[root] = reduce_states(block) if len(root) <= DENSE_UP_TO else _iterate(csr_array(block))
    return pi


def reduce_states(rows: Matrix) -> FloatArray:
    """Return pi by state reduction: eliminate the nodes one by one as in Gaussian elimination, then substitute back."""
    P = np.array(to_dense(rows))
    n = len(P)
    for k in range(n - 1, 0, -1):
        P[:k, k] /= P[k, :k].sum()
        into, out = np.flatnonzero(P[:k, k]), np.flatnonzero(P[k, :k])
        if len(into) * len(out) < SPARSE_SHARE * k * k:  # the rest of the outer product is zero
            P[np.ix_(into, out)] += np.outer(P[into, k], P[k, out])
        else:
            P[:k, :k] += np.outer(P[:k, k], P[k, :k])
    pi = np.ones(n)
    for k in range(1, n):
        pi[k] = pi[:k] @ P[:k, k]
    return pi / pi.sum()


def _iterate(rows: csr_array) -> FloatArray:
    n = rows.shape[0]
    columns = csr_array(rows.T)
    pi = np.full(n, 1 / n)
    for _ in range(POWER_STEPS):
        previous, pi = pi, columns @ pi
        pi /= pi.sum()
        if np.abs(pi - previous).sum() < 1e-15 * sqrt(n):
            return pi
    if n <= REDUCE_UP_TO:
        return reduce_states(rows)
    from scipy.sparse.linalg import LinearOperator, onenormest, splu

    # A graph that mixes slowly is ring- or grid-like and factorizes with little fill. The entry of one node is fixed.
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
            f"{condition:.0e}): some entries are far too small. Up to {REDUCE_UP_TO} nodes it can."
        )
    return pi / pi.sum()


def second_modulus(rows: Matrix, pi: FloatArray) -> float:
    """Return rho_2, the second largest modulus of an eigenvalue."""
    n = rows.shape[0]
    if n == 1:
        return 0.0
    if not issparse(rows):
        # A - 1 pi^T has the eigenvalues of A, with the one that is 1 replaced by 0.
        return float(np.abs(np.linalg.eigvals(rows - pi)).max())
    # The eigenvalues of a reducible matrix are those of its diagonal blocks, the strongly connected components.
    graph = Graph.from_matrix(rows)
    sizes = np.bincount(graph.components)
    single = sizes[graph.components] == 1
    modulus = float(np.abs(rows.diagonal()[single & (pi == 0)]).max(initial=0.0))
    for number in np.flatnonzero(sizes > 1):
        nodes = np.flatnonzero(graph.components == number)
        modulus = max(modulus, _block_modulus(csr_array(rows[nodes][:, nodes]), pi[nodes]))
    return modulus


def _block_modulus(block: csr_array, pi: FloatArray) -> float:
    """Return the largest modulus of an eigenvalue of a component, without the Perron one if it is the root's (pi > 0)."""
    n = block.shape[0]
    if n <= DENSE_UP_TO:
        return float(np.abs(np.linalg.eigvals(block.toarray() - pi)).max())
    from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigs
    from threadpoolctl import threadpool_limits

    columns = csr_array(block.T)
    operator = LinearOperator((n, n), matvec=lambda v: columns @ v - pi * v.sum(), dtype=np.float64)
    start = np.random.default_rng(0).standard_normal(n)
    with threadpool_limits(1):  # the vectors are short: threads cost more than they save
        for accuracy in (1e-6, 1e-4):  # eigenvalues that fill a disc densely cannot be resolved finely
            try:
                found = eigs(operator, k=1, ncv=80, v0=start, maxiter=12, tol=accuracy, return_eigenvectors=False)
                if 1 - np.abs(found).max() > 100 * accuracy:  # the distance from one matters
                    return float(np.abs(found).max())
            except ArpackNoConvergence:
                continue
        observed = _observed_decay(operator, start)
        if observed < 0.99:
            return observed
        # Too slow for Arnoldi, so the graph is ring- or grid-like: it factorizes with little fill, and the relevant
        # eigenvalues are close to 1 (without self-loops, also to -1).
        near = eigs(csc_array(columns), k=8, sigma=1 + 1e-7, v0=start, tol=1e-10, return_eigenvectors=False)
        found = np.delete(near, np.argmin(np.abs(near - 1)))
        if (block.diagonal() == 0).any():
            far = eigs(csc_array(columns), k=4, sigma=-1 - 1e-7, v0=start, tol=1e-10, return_eigenvectors=False)
            found = np.append(found, far)
    return float(np.abs(found).max())


def _observed_decay(operator: Any, start: FloatArray, steps: int = 200) -> float:
    """Return the factor by which a deviation shrinks in a step, after many steps, with an error of about a percent."""
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
    """Return beta = || Pi^1/2 (A - A_inf) Pi^-1/2 ||, infinite if an entry of pi is zero."""
    if pi.min() <= 0:
        return inf
    n = rows.shape[0]
    root = np.sqrt(pi)
    if not issparse(rows):
        return float(np.linalg.norm(root[:, None] * (rows - pi) / root, 2))
    from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh, svds
    from threadpoolctl import threadpool_limits

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
        except (
            ArpackNoConvergence
        ):  # as above; of A itself the largest singular value is 1, with the singular vector sqrt(pi)
            gram = csc_array(transposed @ scaled)
            near_one = eigsh(gram, k=4, sigma=1 + 1e-7, v0=start, tol=1e-10, return_eigenvectors=False)
            return sqrt(float(np.sort(near_one)[-2]))


def skewness(pi: FloatArray) -> float:
    """Return kappa = max pi / min pi, infinite if an entry of pi is zero."""
    return float(pi.max() / pi.min()) if pi.min() > 0 else inf


def summed_norms(rows: Matrix, pi: FloatArray, power: int, tolerance: float, beta: float | None = None) -> MixingSum:
    """Return s of A^power: the sum itself, or a bound if that takes too long; ``beta`` may be given if it is known."""
    found = None if issparse(rows) else _dense_sum(np.linalg.matrix_power(rows, power), pi, tolerance)
    if found is not None and not found.is_bound:
        return found
    bound = bounded_sum(pi, (weighted_norm(rows, pi) if beta is None else beta) ** power)
    return bound if found is None else min(bound, found, key=lambda one: one.value)


def bounded_sum(pi: FloatArray, beta: float) -> MixingSum:
    """Return the bound on s that follows from ||A^i - A_inf|| <= sqrt(kappa) beta^i."""
    kappa = skewness(pi)
    first = sqrt(len(pi)) * float(np.linalg.norm(pi))  # ||I - A_inf||, exactly
    if not (beta < 1 - 1e-12 and isfinite(kappa)):
        return MixingSum(inf, 0.0, inf, is_bound=True)
    beta *= 1 + 1e-12  # rounding must not invalidate the bound
    plain = first + sqrt(kappa) * beta / (1 - beta)
    squared = first**2 + kappa * beta**2 / (1 - beta**2)
    return MixingSum(max(plain, squared), 0.0, max(first, sqrt(kappa) * beta), is_bound=True)


def _dense_sum(rows: FloatArray, pi: FloatArray, tolerance: float) -> MixingSum:
    """Return s from the norms ||A^i - A_inf||, i = 0, 1, ..., or a bound if there are too many that matter.

    E_0 = I - A_inf and E_{i+1} = (A - A_inf) E_i, until the rest is below ``tolerance`` of the sum. When the numerical rank of
    E_i has fallen, the iteration continues in an orthonormal basis of its range and row space, in which the matrices are small
    and have the same norms; with rank one the rest is a geometric series, however slowly it falls.
    """
    step, deviation = rows - pi, np.eye(len(pi)) - pi
    norms: FloatArray = np.array([np.linalg.norm(deviation, 2)])
    work = 0.0
    while True:
        size = len(deviation)
        block = np.empty((int(np.clip(len(norms) // 4, 16, max(16, BLOCK_ENTRIES // size**2))), size, size))
        for i in range(len(block)):
            deviation = block[i] = step @ deviation
        largest = np.linalg.eigvalsh(block @ block.transpose(0, 2, 1))[:, -1]  # of E E^T: several times faster than SVD
        norms = np.append(norms, np.sqrt(np.maximum(largest, 0)))
        if norms[-1] <= 1e-300 or _tail(norms) <= tolerance * norms.sum():
            largest = norms if norms.sum() >= (norms**2).sum() else norms**2
            return MixingSum(float(largest.sum()), _tail(largest), float(norms.max()), is_bound=False)
        work += len(block) * (2 * size**3 + 800 * size**2 + TERM_WORK)
        if work > MAX_WORK:
            return _bounded_by_doubling(norms, step, deviation)
        left, sizes, _ = np.linalg.svd(deviation)
        rank = int((sizes > 1e-13 * sizes[0]).sum())
        if rank < size:
            basis = left[:, :rank]
            # The range is invariant up to rounding: step maps it into itself.
            step, deviation = basis.T @ step @ basis, np.diag(sizes[:rank])
        if rank == 1 and (ratio := float(abs(step.item()))) < 1:
            rest, rest_squared = (last * r / (1 - r) for last, r in ((norms[-1], ratio), (norms[-1] ** 2, ratio**2)))
            whole = max(norms.sum() + rest, (norms**2).sum() + rest_squared)
            return MixingSum(float(whole), 0.0, float(norms.max()), is_bound=False)


def _bounded_by_doubling(norms: FloatArray, step: FloatArray, deviation: FloatArray) -> MixingSum:
    """Return a bound on s from the first k norms: ||E_{k+i}|| <= ||E_k|| ||E_i||, so that S_2k <= S_k (1 + ||E_k||).

    ``deviation`` is the last of E_i, i < k; step^k maps E_i to E_{i+k}.
    """
    deviation, power = step @ deviation, np.linalg.matrix_power(step, len(norms))
    plain, squared, peak, count = norms.sum(), (norms**2).sum(), norms.max(), float(len(norms))
    for _ in range(DOUBLINGS):
        rounding = 1e-14 * count  # of as many products, which must not invalidate the bound
        size = float(np.linalg.norm(deviation, 2)) * (1 + rounding)
        plain, squared, peak = plain * (1 + size), squared * (1 + size**2), peak * max(1.0, size)
        if size < 1e-16:
            break
        deviation, power, count = power @ deviation, power @ power, 2 * count
    else:
        plain = squared = peak = inf
    return MixingSum(float(max(plain, squared)), 0.0, float(peak), is_bound=True)


def _tail(terms: FloatArray) -> float:
    """Bound the sum of all later terms by term[i + k] <= term[k] term[i]; infinite while term[k] is not below one."""
    k = len(terms) // 2
    q = terms[k]
    return float(terms[-k:].sum() * q / (1 - q)) if q < 1 else inf

"""Stochastic matrices: convert, normalize, check and store them.

``[i, j]`` is the weight that node i gives to the values of node j. Rows of a pull matrix and columns of a push matrix sum to one.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Any, TypeAlias

import numpy as np
from scipy.sparse import csr_array, issparse

from perron._typing import FloatArray
from perron.errors import MixingError, brief

Matrix: TypeAlias = Any  # a dense float64 array or a csr_array

TOLERANCE = 1e-9  # largest allowed distance of a row or column sum from one
SPARSE_FROM = 256  # nodes; smaller matrices are dense, for which a product is cheaper than following indices
HASH_DENSE_UP_TO = 40_000  # nodes; the hash of a larger matrix is that of its sparse form
HASHED_ROWS = 100  # of a sparse matrix that are made dense at a time
SPARSE_BELOW = 0.1  # larger ones are sparse (CSR) if at most this share of the entries is nonzero


def normalize_rows(matrix: csr_array) -> csr_array:
    """Divide each row by its sum; an empty row stays empty."""
    normal = matrix.copy()
    normal.data /= np.repeat(matrix.sum(axis=1), np.diff(matrix.indptr))
    return normal


def normalize_columns(matrix: csr_array) -> csr_array:
    """Divide each column by its sum; an empty column stays empty."""
    normal = matrix.copy()
    normal.data /= matrix.sum(axis=0)[matrix.indices]
    return normal


def to_dense(matrix: Matrix) -> FloatArray:
    """Return a dense or sparse matrix as a dense array, without a copy if it is one."""
    dense: FloatArray = matrix.toarray() if issparse(matrix) else np.asarray(matrix)
    return dense


def to_csr(matrix: Any) -> csr_array:
    """Copy a matrix of any kind (nested lists, array, tensor, scipy sparse) to canonical CSR form."""
    if not issparse(matrix):
        try:
            matrix = np.asarray(matrix.detach() if hasattr(matrix, "detach") else matrix)
            matrix = matrix if np.iscomplexobj(matrix) else matrix.astype(np.float64)
        except (TypeError, ValueError):
            raise MixingError(f"A mixing matrix is an n x n array of numbers; got {brief(matrix)}.") from None
        if matrix.ndim != 2:
            raise MixingError(f"A mixing matrix is an n x n array of numbers; got shape {matrix.shape}.")
    if np.iscomplexobj(matrix):
        raise MixingError("A mixing matrix has real weights; got complex ones.")
    sparse = csr_array(matrix, dtype=np.float64, copy=True)  # a checked matrix must not change afterwards
    sparse.sum_duplicates()
    sparse.eliminate_zeros()
    if max(sparse.shape[0], sparse.nnz) <= np.iinfo(np.int32).max:  # a product reads half as much
        sparse.indices, sparse.indptr = (part.astype(np.int32, copy=False) for part in (sparse.indices, sparse.indptr))
    return sparse


def rescale(matrix: csr_array, given: Any, axis: int) -> csr_array:
    """Divide rows (axis 1) or columns (axis 0) by their sums if these are one in the lower precision of the given matrix."""
    digits = str(getattr(given, "dtype", "")).removeprefix("torch.")
    precision = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}.get(digits, 0.0)
    if not precision or matrix.shape[0] != matrix.shape[1] or not matrix.nnz:
        return matrix
    if not TOLERANCE < _worst_line(matrix, axis)[0] <= precision * (2 + float(np.diff(matrix.indptr).max())):
        return matrix
    line = "row" if axis == 1 else "column"
    warnings.warn(
        f"The {line}s of a {digits} matrix sum to one in that precision only; each {line} was divided by its sum.",
        stacklevel=4,
    )
    return normalize_rows(matrix) if axis == 1 else normalize_columns(matrix)


def same_pattern(some: Sequence[Matrix], others: Sequence[Matrix]) -> bool:
    """Whether the matrices of two sequences have their nonzero entries in the same places."""
    if len(some) != len(others):
        return False
    for one, other in zip(some, others, strict=True):
        if one is not other and (issparse(one) != issparse(other) or not _same_entries(one, other)):
            return False
    return True


def _same_entries(one: Matrix, other: Matrix) -> bool:
    if not issparse(one):
        return np.array_equal(one != 0, other != 0)
    return np.array_equal(one.indptr, other.indptr) and np.array_equal(one.indices, other.indices)


def fingerprint(matrices: Iterable[Matrix]) -> str:
    """Return a hash of all entries of some matrices, dense or sparse; of a very large sparse one, of its nonzero entries."""
    digest = sha256()
    for matrix in matrices:
        if not issparse(matrix):
            digest.update(matrix.tobytes())
        elif matrix.shape[0] > HASH_DENSE_UP_TO:
            for part in (matrix.indptr, matrix.indices, matrix.data):
                digest.update(part)
        else:
            for first in range(0, matrix.shape[0], HASHED_ROWS):
                digest.update(matrix[first : first + HASHED_ROWS].toarray())
    return digest.hexdigest()[:12]


def as_sequence(matrices: Any, axis: int) -> list[csr_array]:
    """Return one matrix or a sequence of them in canonical form, with rows (axis 1) or columns (axis 0) that sum to one."""
    if matrices is None:
        return []
    try:
        several = isinstance(matrices, list | tuple) and len(matrices) > 0 and np.ndim(matrices[0]) != 1
    except ValueError:  # rows of different lengths, which to_csr refuses
        several = True
    return [rescale(to_csr(matrix), matrix, axis) for matrix in (matrices if several else [matrices])]


def count_links(matrix: Matrix) -> int:
    """Return the number of nonzero entries off the diagonal."""
    return int(csr_array(matrix).count_nonzero() - np.count_nonzero(matrix.diagonal()))


def freeze(matrix: csr_array) -> Matrix:
    """Return the matrix read-only, in the faster of the two forms: dense or CSR."""
    n = matrix.shape[0]
    if n < SPARSE_FROM or matrix.nnz > SPARSE_BELOW * n * n:
        dense: FloatArray = matrix.toarray()
        dense.flags.writeable = False
        return dense
    for part in (matrix.data, matrix.indices, matrix.indptr):
        part.flags.writeable = False
    return matrix


def check_sizes(pulls: list[csr_array], pushes: list[csr_array]) -> int:
    """Return the number of nodes, or raise a `MixingError` unless all matrices are square and of one size."""
    shapes = [("pull", m.shape) for m in pulls] + [("push", m.shape) for m in pushes]
    first_side, (first, _) = shapes[0]
    for side, (rows, columns) in shapes:
        if rows != columns or not rows:
            raise MixingError(
                f"{side} must be a square matrix, a row and a column for each node; got {rows} x {columns}."
            )
    for side, (rows, _) in shapes:
        if rows != first:
            raise MixingError(f"All matrices need as many nodes; got {first} in {first_side} but {rows} in {side}.")
    return int(first)


def check_stochastic(pulls: list[csr_array], pushes: list[csr_array]) -> None:
    """Raise a `MixingError` unless the rows of every pull and the columns of every push matrix sum to one."""
    for side, matrices in (("pull", pulls), ("push", pushes)):
        for matrix in matrices:
            check_entries(side, matrix)
    both = bool(pulls and pushes)
    swapped = both and all(_sums_to_one(m, 0) for m in pulls) and all(_sums_to_one(m, 1) for m in pushes)
    for side, matrices, axis in (("pull", pulls, 1), ("push", pushes, 0)):
        for matrix in matrices:
            if not _sums_to_one(matrix, axis):
                remedy = _remedy(side, matrix, axis, swapped=swapped, both=both)
                raise MixingError(f"{side}: {_worst_line(matrix, axis)[1]}, must be 1 within {TOLERANCE:g}. {remedy}")


def check_entries(side: str, matrix: csr_array) -> None:
    """Raise a `MixingError` with the location of the first entry that is negative or not finite."""
    for problem, wrong in (
        ("is not finite", ~np.isfinite(matrix.data)),
        ("is negative, but weights are shares", matrix.data < 0),
    ):
        if wrong.any():
            entry = int(np.flatnonzero(wrong)[0])
            row = int(np.searchsorted(matrix.indptr, entry, side="right")) - 1
            column, value = int(matrix.indices[entry]), float(matrix.data[entry])
            raise MixingError(
                f"{side}: entry [{row}, {column}] = {value:g} {problem}; node {row} takes it from node {column}."
            )


def _worst_line(matrix: csr_array, axis: int) -> tuple[float, str]:
    """Return the largest distance of a row sum (axis 1) or column sum (axis 0) from one, and a description of that sum."""
    sums = matrix.sum(axis=axis)
    line = int(np.argmax(np.abs(sums - 1)))
    return abs(float(sums[line]) - 1), f"{'row' if axis == 1 else 'column'} {line} sums to {float(sums[line]):.12g}"


def _sums_to_one(matrix: csr_array, axis: int) -> bool:
    return _worst_line(matrix, axis)[0] <= TOLERANCE


def worst_sum(matrix: Matrix) -> str:
    """Describe the row or column sum that is farthest from one; empty if the matrix is doubly stochastic."""
    distance, text = max(_worst_line(csr_array(matrix), axis) for axis in (1, 0))
    return text if distance > TOLERANCE else ""


def worst_asymmetry(matrix: Matrix) -> str:
    """Describe the entries ``[i, j]`` and ``[j, i]`` that differ most; empty if the matrix is symmetric."""
    sparse = csr_array(matrix)
    difference = csr_array(abs(sparse - sparse.T)).tocoo()
    if not difference.nnz or difference.max() <= TOLERANCE:
        return ""
    largest = np.argmax(difference.data)
    i, j = int(difference.row[largest]), int(difference.col[largest])
    return f"[{i}, {j}] = {sparse[i, j]:.12g} but [{j}, {i}] = {sparse[j, i]:.12g}"


def _remedy(side: str, matrix: csr_array, axis: int, *, swapped: bool, both: bool) -> str:
    if swapped:
        return "pull is column-stochastic and push is row-stochastic: the two are swapped."
    kind, other = ("row", "column") if axis == 1 else ("column", "row")
    if not _sums_to_one(matrix, 1 - axis):
        return f"Divide each {kind} by its sum. ([i, j] is the weight that node i gives to node j.)"
    effect = "lets the nodes agree, but on a wrong point" if side == "push" else "keeps the nodes from agreeing"
    cause = f"both matrices are {other}-stochastic, which {effect}" if both else f"it is {other}-stochastic"
    return f"Its {other}s do sum to one: {cause}. Divide each {kind} by its sum instead."

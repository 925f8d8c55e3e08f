"""Stochastic matrices: normalised, checked and stored.

``[i, j]`` is what node i takes from node j. Rows of a pull matrix and columns of a push matrix sum to one.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from scipy.sparse import csr_array, issparse

from perron._typing import FloatArray
from perron.errors import MixingError, brief

Matrix: TypeAlias = Any  # a dense float64 array or a csr_array

TOLERANCE = 1e-9  # how far a row or column sum may be from one
SPARSE_FROM = 256  # smaller matrices are dense: one product costs less than walking through the indices
SPARSE_BELOW = 0.1  # larger ones are sparse (CSR) where at most this share of the entries is not zero


def rows_to_one(matrix: csr_array) -> csr_array:
    """Each row divided by its sum; an empty row stays empty."""
    normal = matrix.copy()
    normal.data /= np.repeat(matrix.sum(axis=1), np.diff(matrix.indptr))
    return normal


def columns_to_one(matrix: csr_array) -> csr_array:
    """Each column divided by its sum; an empty column stays empty."""
    return csr_array(rows_to_one(csr_array(matrix.T)).T)


def as_csr(matrix: Any) -> csr_array:
    """A matrix of any kind (nested lists, array, tensor, scipy sparse) in canonical sparse form."""
    if not issparse(matrix):
        try:
            matrix = matrix.detach() if hasattr(matrix, "detach") else matrix
            matrix = np.asarray(matrix)
            matrix = matrix if np.iscomplexobj(matrix) else matrix.astype(np.float64)
        except (TypeError, ValueError):
            raise MixingError(f"A mixing matrix is an n x n array of numbers; got {brief(matrix)}.") from None
        if matrix.ndim != 2:
            raise MixingError(f"A mixing matrix is an n x n array of numbers; got shape {matrix.shape}.")
    if np.iscomplexobj(matrix):
        raise MixingError("A mixing matrix has real weights; got complex ones.")
    sparse = csr_array(matrix, dtype=np.float64, copy=True)  # what is checked must be ours alone
    sparse.sum_duplicates()
    sparse.eliminate_zeros()
    return sparse


def stored(matrix: csr_array) -> Matrix:
    """Dense where that is quicker, otherwise CSR; never to be written to."""
    n = matrix.shape[0]
    if n < SPARSE_FROM or matrix.nnz > SPARSE_BELOW * n * n:
        dense: FloatArray = matrix.toarray()
        dense.flags.writeable = False
        return dense
    for part in (matrix.data, matrix.indices, matrix.indptr):
        part.flags.writeable = False
    return matrix


def check_stochastic(pulls: list[csr_array], pushes: list[csr_array]) -> None:
    """Raise a `MixingError` unless the rows of every pull and the columns of every push matrix sum to one."""
    for side, matrices in (("pull", pulls), ("push", pushes)):
        for matrix in matrices:
            check_entries(side, matrix)
    swapped = bool(pulls and pushes) and all(_worst(m, axis=0)[1] <= TOLERANCE for m in pulls)
    swapped = swapped and all(_worst(m, axis=1)[1] <= TOLERANCE for m in pushes)
    for side, matrices, axis in (("pull", pulls, 1), ("push", pushes, 0)):
        for matrix in matrices:
            line, off, total = _worst(matrix, axis)
            if off > TOLERANCE:
                kind = "row" if axis == 1 else "column"
                what = f"{side}: {kind} {line} sums to {total:.12g}, must be 1 within {TOLERANCE:g}."
                raise MixingError(f"{what} {_remedy(side, matrix, axis, swapped=swapped, both=bool(pulls and pushes))}")


def check_entries(side: str, matrix: csr_array) -> None:
    """Raise a `MixingError` that names the entry, if one is negative or not finite."""
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


def _worst(matrix: csr_array, axis: int) -> tuple[int, float, float]:
    """The row (axis 1) or column (axis 0) whose sum is farthest from one: its number, how far, and its sum."""
    sums = matrix.sum(axis=axis)
    line = int(np.argmax(np.abs(sums - 1)))
    return line, abs(float(sums[line]) - 1), float(sums[line])


def uneven(matrix: Matrix) -> str:
    """The row or column whose sum is farthest from one, in words; nothing if all sum to one."""
    sparse = csr_array(matrix)
    (off, kind, line, total) = max(
        (off, kind, line, total)
        for kind, axis in (("row", 1), ("column", 0))
        for line, off, total in [_worst(sparse, axis)]
    )
    return f"{kind} {line} sums to {total:.12g}" if off > TOLERANCE else ""


def skewed(matrix: Matrix) -> str:
    """The pair of entries ``[i, j]`` and ``[j, i]`` that differ most, in words; nothing if the matrix is symmetric."""
    sparse = csr_array(matrix)
    apart = csr_array(abs(sparse - sparse.T)).tocoo()
    if not apart.nnz or apart.max() <= TOLERANCE:
        return ""
    i, j = (int(one[np.argmax(apart.data)]) for one in (apart.row, apart.col))
    return f"[{i}, {j}] = {sparse[i, j]:.12g} but [{j}, {i}] = {sparse[j, i]:.12g}"


def _remedy(side: str, matrix: csr_array, axis: int, *, swapped: bool, both: bool) -> str:
    if swapped:
        return "pull is column-stochastic and push is row-stochastic: the two are swapped."
    kind = "row" if axis == 1 else "column"
    if _worst(matrix, 1 - axis)[1] > TOLERANCE:
        return f"Divide each {kind} by its sum. ([i, j] is what node i takes from node j.)"
    other = "column" if axis == 1 else "row"
    wrong = "lets the nodes agree, but on a wrong point" if side == "push" else "keeps the nodes from agreeing"
    found = f"both matrices are {other}-stochastic, which {wrong}" if both else f"it is {other}-stochastic"
    return f"Its {other}s do sum to one: {found}. Divide each {kind} by its sum instead."

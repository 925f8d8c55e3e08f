"""Sparse adjacency matrices: entry [i, j] stands for an edge between i and j."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array

from perron._typing import IntArray


def reaches_all(matrix: csr_array) -> bool:
    """Whether a path along entries [i, j], from i to j, leads from node 0 to every other."""
    starts, neighbors = matrix.indptr.tolist(), matrix.indices.tolist()
    seen, stack = {0}, [0]
    while stack:
        node = stack.pop()
        new = set(neighbors[starts[node] : starts[node + 1]]) - seen
        seen |= new
        stack += new
    return len(seen) == matrix.shape[0]


def without_diagonal(matrix: csr_array) -> tuple[csr_array, IntArray]:
    """Return a sorted matrix without its diagonal, with indices of 32 bits where these are enough, and the rows that had one."""
    small = max(matrix.shape[0], matrix.nnz) <= np.iinfo(np.int32).max
    kind = np.int32 if small else np.int64
    indices, starts = matrix.indices.astype(kind, copy=False), matrix.indptr.astype(kind, copy=False)
    kept = indices != np.repeat(np.arange(matrix.shape[0], dtype=kind), np.diff(starts))
    if kept.all():
        return csr_array((matrix.data, indices, starts), shape=matrix.shape), np.empty(0, dtype=np.int64)
    loops = indices[~kept].astype(np.int64)
    before = np.zeros(len(starts), kind)
    before[1 + loops] = 1
    starts = starts - np.cumsum(before, dtype=kind)
    return csr_array((matrix.data[kept], indices[kept], starts), shape=matrix.shape), loops

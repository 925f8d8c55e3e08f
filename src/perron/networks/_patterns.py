"""Edge patterns and positions that several topologies share. Edges are arrays ``(edges, 2)`` of pairs (source, target)."""

from __future__ import annotations

from collections.abc import Sequence
from math import pi
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perron._typing import FloatArray, IntArray


def both_ways(low: IntArray, high: IntArray) -> IntArray:
    """Return the edges from each low to its high node and back."""
    return np.stack([np.concatenate([low, high]), np.concatenate([high, low])], axis=1).astype(np.int64)


def distinct(edges: IntArray) -> IntArray:
    """Return each edge once."""
    return np.unique(edges, axis=0)


def circulant(n: int, shifts: Sequence[int] | IntArray | range) -> NDArray[Any]:
    """Return the edges from node i to i + s (mod n), for each shift s."""
    node, shift = np.arange(n, dtype=np.int32), (np.asarray(shifts, dtype=np.int64) % n).astype(np.int32)
    edges = np.empty((len(shift), n, 2), np.int32)
    edges[..., 0] = node
    edges[..., 1] = (node + shift[:, None]) % n
    return edges.reshape(-1, 2)


def distinct_others(n: int, k: int, rng: np.random.Generator) -> IntArray:
    """Draw for each of n nodes k distinct other nodes, uniformly: draw all, then redraw rows with repeated nodes."""
    if k * k > n:  # most rows would have repeats: take the k smallest of n - 1 random keys instead
        rows = [rng.random(n - 1).argpartition(k - 1)[:k] if k else np.empty(0, dtype=np.int64) for _ in range(n)]
        picked = np.array(rows, dtype=np.int64).reshape(n, k)
        return picked + (picked >= np.arange(n)[:, None])
    chosen = rng.integers(0, n - 1, size=(n, k)) if n > 1 else np.empty((1, 0), dtype=np.int64)
    while len(again := np.flatnonzero((np.diff(np.sort(chosen, axis=1), axis=1) == 0).any(axis=1))):
        chosen[again] = rng.integers(0, n - 1, size=(len(again), k))
    return chosen + (chosen >= np.arange(n)[:, None])


def lattice_positions(height: int, width: int) -> FloatArray:
    """Return positions row by row, from the top."""
    row, column = np.divmod(np.arange(height * width), width)
    return np.stack([column, -row], axis=1).astype(np.float64)


def tree_positions(n: int, branching: int) -> FloatArray:
    """Return positions on circles around the root, each node within the sector of its parent."""
    start, sector, depth = np.zeros(n), np.full(n, 2 * pi), np.zeros(n)
    for node in range(1, n):
        parent, place = divmod(node - 1, branching)
        sector[node] = sector[parent] / branching
        start[node] = start[parent] + place * sector[node]
        depth[node] = depth[parent] + 1
    angle = start + sector / 2
    return depth[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)

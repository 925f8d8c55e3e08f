"""Checks of what a graph is made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perron._typing import FloatArray
from perron.errors import GraphError, brief

MAX_NODES = 10_000_000
MAX_EDGES = 100_000_000
BYTES_PER_NODE = 200  # a node with about ten edges, in a graph and its two mixing matrices


def check_nodes(nodes: int) -> int:
    """Return the number of nodes if it is valid and fits into memory, otherwise raise an error."""
    if isinstance(nodes, bool) or not isinstance(nodes, int | np.integer) or nodes < 1:
        raise GraphError(f"A graph needs a whole number of nodes, at least 1; got {nodes!r}.")
    if nodes > MAX_NODES:
        gigabytes = nodes * BYTES_PER_NODE / 1e9
        raise GraphError(
            f"{nodes:,} nodes would need about {gigabytes:,.0f} GB; perron takes at most {MAX_NODES:,} nodes."
        )
    return int(nodes)


def check_edges(family: str, expected: float, remedy: str) -> None:
    """Raise an error, before a graph is built, if it would not fit into memory."""
    if expected > MAX_EDGES:
        raise GraphError(
            f"{family} would have about {expected:,.0f} edges, {expected * 40 / 1e9:,.0f} GB with its two matrices; at most "
            f"{MAX_EDGES:,} are built. Choose {remedy}."
        )


def to_pairs(edges: Iterable[tuple[int, int]] | ArrayLike, nodes: int) -> NDArray[np.int32]:
    """Return edges as an array of pairs, or raise an error."""
    try:
        raw = np.asarray(edges if isinstance(edges, np.ndarray) else list(edges))  # type: ignore[arg-type]
    except (ValueError, TypeError):
        raise GraphError(f"Edges are pairs of whole numbers (source, target); got {brief(edges)}.") from None
    if raw.size == 0:
        return np.empty((0, 2), dtype=np.int32)
    if raw.ndim != 2 or raw.shape[1] != 2 or not np.issubdtype(raw.dtype, np.integer):
        raise GraphError(f"Edges are pairs of whole numbers (source, target); got shape {raw.shape}, type {raw.dtype}.")
    if raw.min() < 0 or raw.max() >= nodes:
        source, target = raw[np.flatnonzero(((raw < 0) | (raw >= nodes)).any(axis=1))[0]]
        raise GraphError(f"Edge ({source}, {target}) leaves the nodes 0 .. {nodes - 1}.")
    return raw.astype(np.int32, copy=False)  # `MAX_NODES` fit


def check_labels(labels: Sequence[str] | None, nodes: int) -> tuple[str, ...] | None:
    """Return labels that are printable and all different, or raise an error."""
    if labels is None:
        return None
    if len(labels) != nodes or len(set(labels)) != nodes:
        raise GraphError(
            f"{nodes} nodes need {nodes} different labels; got {len(labels)}, {len(set(labels))} different."
        )
    for label in labels:
        if not label or not str(label).isprintable() or str(label) != str(label).strip():
            raise GraphError(f"A label is printable text without blanks around it; got {brief(label)}.")
    return tuple(str(label) for label in labels)


def to_positions(positions: ArrayLike | None, nodes: int) -> FloatArray | None:
    """Return positions as an array, or raise an error."""
    if positions is None:
        return None
    try:
        where = np.array(positions, dtype=np.float64)
    except (ValueError, TypeError):
        where = np.empty(0)
    if where.shape != (nodes, 2) or not np.isfinite(where).all():
        raise GraphError(f"Positions are a finite ({nodes}, 2) array; got shape {where.shape}.")
    return where

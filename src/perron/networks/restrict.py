"""The network on a subset of its nodes, or without some of its links."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np

from perron.errors import PerronError
from perron.networks.mixing import Mixing
from perron.networks.stochastic import to_dense


def restrict(mixing: Mixing, kept: Sequence[int]) -> Mixing:
    """Restrict a network to some of its nodes; paths through the others become direct links.

        A' = A[k, k] + A[k, g] (I - A[g, g])^-1 A[g, k]          (k kept, g removed; the same for B)

    This is the stochastic complement [Meyer 1989]: a walk on the network, observed only while it is at kept nodes. It is
    row-stochastic if A is (B': column-stochastic), strongly connected if A is, and its Perron vector is that of A on the kept
    nodes, scaled.

    >>> from perron.networks import topologies
    >>> sorted(restrict(Mixing.uniform(topologies.ring(4)), [0, 1, 3]).pull_graph.edges.tolist())
    [[0, 1], [1, 2], [2, 0]]
    """
    if list(kept) == list(range(mixing.nodes)):
        return mixing
    if outside := [node for node in kept if node >= mixing.nodes]:
        raise PerronError(f"The network has {mixing.nodes} nodes; there is no node {outside[0]}.")
    if mixing.varies:
        raise PerronError(
            "A network that varies in time cannot be restricted to some nodes; give a function n -> network."
        )
    removed = [node for node in range(mixing.nodes) if node not in set(kept)]

    def complement(matrices: Sequence[Any], axis: int) -> Any:
        if not matrices:
            return None
        full = to_dense(matrices[0])
        through = np.linalg.solve(np.eye(len(removed)) - full[np.ix_(removed, removed)], full[np.ix_(removed, kept)])
        direct = full[np.ix_(kept, kept)] + full[np.ix_(kept, removed)] @ through
        return direct / direct.sum(axis, keepdims=True)  # corrects rounding only

    pulls, pushes = mixing.sequences
    labels = None if mixing.labels is None else [mixing.labels[node] for node in kept]
    return Mixing(pull=complement(pulls, 1), push=complement(pushes, 0), labels=labels)


def avoid(mixing: Mixing, pairs: Collection[Iterable[int]]) -> Mixing:
    """Remove the links between pairs of nodes, in both directions, at all times.

    The weight of a removed link goes to the receiver's own weight in A, and to the sender's own in B, so that sums stay one, and
    symmetric matrices symmetric. The result need not be connected.

    >>> from perron.networks import topologies
    >>> avoid(Mixing.uniform(topologies.complete(3)), [(0, 1)]).pull.round(2).tolist()
    [[0.67, 0.0, 0.33], [0.0, 0.67, 0.33], [0.33, 0.33, 0.33]]
    """
    if not pairs:
        return mixing

    def without(matrices: Sequence[Any], axis: int) -> list[Any] | None:
        changed = []
        for matrix in matrices:
            full = to_dense(matrix).copy()
            for one, other in pairs:
                for i, j in ((one, other), (other, one)):
                    end = (i, j)[axis]
                    full[end, end] += full[i, j]
                    full[i, j] = 0
            changed.append(full)
        return changed or None

    pulls, pushes = mixing.sequences
    return Mixing(pull=without(pulls, 0), push=without(pushes, 1), labels=mixing.labels)

"""All nodes of a network as one `Node` on dense matrices, differentiable in their entries."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from perron.algorithms.node import Handle, Node, NodeLinks, Ready, Side
from perron.errors import PerronError
from perron.networks.facts import Network


class MatrixNode(Node):
    """All nodes at once, mixing with the given dense matrices; differentiable in their entries.

    Args:
        pulls, pushes: A and B of each step of a period.
        share: n pi_B; None if there is no push matrix.
        pattern: the numbers that `uniform` returns, one for each node. `drew` records whether it was called.
    """

    def __init__(self, pulls: list[Tensor], pushes: list[Tensor], *, share: Tensor | None, pattern: Tensor) -> None:
        self.pulls, self.pushes, self.share, self.pattern = pulls, pushes, share, pattern
        self.nodes, self.step, self.drew = len(pattern), 0, False

    @cached_property
    def unit(self) -> Tensor:
        return torch.eye(self.nodes, dtype=torch.float64)

    def _matrix(self, side: Side) -> Tensor:
        matrices = self.pulls if side == "pull" else self.pushes
        return matrices[self.step % len(matrices)]

    def pull(self, x: Tensor) -> Handle:
        return Ready(self._matrix("pull") @ x)

    def push(self, y: Tensor) -> Handle:
        return Ready(self._matrix("push") @ y)

    def mean(self, x: Tensor) -> Handle:
        return Ready(x.mean(-2, keepdim=True).expand_as(x))

    def uniform(self) -> Tensor:
        self.drew = True
        return self.pattern[:, None]

    def links(self, side: Side) -> NodeLinks:
        if side == "pull" or self.share is None:
            raise PerronError("This network has no push matrix, hence no n pi_B.")
        return _MatrixLinks(self.share)


class _MatrixLinks(NodeLinks):
    """Gives n pi_B only: theory covers reliable links, and needs no single ones."""

    def __init__(self, share: Tensor) -> None:
        self.share = share[:, None]


def matrix_node(network: Network) -> MatrixNode:
    """Return all nodes of a network on dense matrices; nodes that may stay away all take part."""
    pulls, pushes = ([torch.as_tensor(dense(m)) for m in side] for side in network.mixing.sequences)
    share = torch.as_tensor(network.nodes * network.push_perron) if network.mixing.has_push else None
    return MatrixNode(pulls, pushes, share=share, pattern=torch.zeros(network.nodes, dtype=torch.float64))


def dense(matrix: Any) -> np.ndarray[Any, Any]:
    """Return a dense copy, which torch may write to."""
    return np.array(matrix.toarray() if hasattr(matrix, "toarray") else matrix, dtype=np.float64)

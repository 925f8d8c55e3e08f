"""All nodes and all trials as one node: tensors ``(trials, n, d)``, one matrix product mixes them all."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.sparse import coo_array, csr_array, issparse
from torch import Tensor

from perron.algorithms.node import Handle, Later, Node, Side
from perron.networks.facts import Network
from perron.networks.mixing import Mixing
from perron.random import LOSSES, PARTICIPATION, Keyed, link_names

DENSE = 2**20  # entries of a matrix of nodes and links, beyond which it is sparse


class SimulatedNode(Node):
    """All nodes of all trials at once; an exchange is done when it is waited for.

    Args:
        mixing: the network.
        trials: how many, or their numbers; None for tensors without a trial axis.
        seed: of what nodes draw themselves.
    """

    def __init__(
        self,
        mixing: Mixing,
        *,
        trials: int | Sequence[int] | None = None,
        seed: int = 0,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
    ) -> None:
        self.mixing, self.nodes, self.step = mixing, mixing.nodes, 0
        self._count = None if trials is None else trials if isinstance(trials, int) else len(trials)
        self._dtype, self._device = dtype, device
        pulls, pushes = mixing.sequences
        self._matrices: dict[Side, list[Tensor]] = {
            "pull": [self._tensor(matrix) for matrix in pulls],
            "push": [self._tensor(matrix) for matrix in pushes],
        }
        self._batched = {
            side: [self._batch(matrix) for matrix in matrices] for side, matrices in self._matrices.items()
        }
        self._key: dict[str, Any] = {"seed": seed, "trials": trials, "device": device}
        self._participation = Keyed(nodes=self.nodes, stream=PARTICIPATION, **self._key)
        self._links: dict[tuple[Side, int], _Links] = {}

    def _tensor(self, matrix: Any) -> Tensor:
        if not issparse(matrix):
            return torch.tensor(matrix, dtype=self._dtype, device=self._device)
        rows, columns, values = (
            torch.from_numpy(np.array(part)) for part in (matrix.indptr, matrix.indices, matrix.data)
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch calls its CSR tensors a beta feature
            return torch.sparse_csr_tensor(
                rows, columns, values, size=matrix.shape, dtype=self._dtype, device=self._device
            )

    def _batch(self, matrix: Tensor) -> Tensor | None:
        """The matrix once for each trial (without copying it), as the batched product wants it."""
        if self._count is None or matrix.layout != torch.strided:
            return None
        return matrix.expand(self._count, self.nodes, self.nodes)

    def _mixed(self, side: Side, x: Tensor) -> Tensor:
        which = self.step % len(self._matrices[side])
        batched = self._batched[side][which]
        if batched is not None and x.ndim == 3:
            return torch.bmm(batched, x)
        return _product(self._matrices[side][which], x)

    def pull(self, x: Tensor) -> Handle:
        """A x."""
        return Later(lambda: self._mixed("pull", x))

    def push(self, y: Tensor) -> Handle:
        """B y."""
        return Later(lambda: self._mixed("push", y))

    def mean(self, x: Tensor) -> Handle:
        """The average, for every node."""
        return Later(lambda: x.mean(-2, keepdim=True).expand_as(x))

    def uniform(self) -> Tensor:
        """A number for every node of every trial."""
        return self._participation.uniform(self.step).to(self._dtype)

    @cached_property
    def unit(self) -> Tensor:
        """The identity."""
        return torch.eye(self.nodes, dtype=self._dtype, device=self._device)

    @cached_property
    def push_share(self) -> Tensor:
        """n pi_B."""
        share = self.nodes * Network(self.mixing).push_perron
        return torch.as_tensor(share, dtype=self._dtype, device=self._device)[:, None]

    def self_weight(self, side: Side) -> Tensor:
        """The diagonal."""
        matrix = self.mixing.pull_at(self.step) if side == "pull" else self.mixing.push_at(self.step)
        return torch.as_tensor(matrix.diagonal().copy(), dtype=self._dtype, device=self._device)[:, None]

    def _of(self, side: Side) -> _Links:
        """The links of this step."""
        matrices = self.mixing.sequences[0 if side == "pull" else 1]
        which = (side, self.step % len(matrices))
        if which not in self._links:
            links = coo_array(matrices[which[1]])
            apart = links.row != links.col
            rows, columns, weights = (part[apart] for part in (links.row, links.col, links.data))
            order = np.lexsort((columns, rows))
            targets, sources = rows[order].astype(np.int64), columns[order].astype(np.int64)
            gather = csr_array((weights[order], (targets, np.arange(len(order)))), shape=(self.nodes, len(order)))
            large = gather.shape[0] * gather.shape[1] > DENSE
            self._links[which] = _Links(
                torch.from_numpy(sources).to(self._device),
                torch.from_numpy(targets).to(self._device),
                self._tensor(gather if large else gather.toarray()),
                Keyed(nodes=link_names(sources, targets, self.nodes), stream=LOSSES, **self._key),
            )
        return self._links[which]

    def hear(self, side: Side, x: Tensor) -> Handle:
        """The sender's value on each link."""
        return Later(lambda: x.index_select(-2, self._of(side).sources))

    def inward(self, side: Side, x: Tensor) -> Tensor:
        """The listener's value on each link."""
        return x.index_select(-2, self._of(side).targets)

    def weigh(self, side: Side, heard: Tensor) -> Tensor:
        """A product with the matrix of nodes and links."""
        return _product(self._of(side).gather, heard)

    def chances(self, side: Side, size: int) -> Tensor:
        """Numbers for every link of every trial."""
        return self._of(side).random.uniform(2 * self.step + (side == "push"), size)


class _Links(NamedTuple):
    """The links of one side and step, ordered by listener and sender."""

    sources: Tensor
    targets: Tensor
    gather: Tensor  # the weight of each link in the row of its listener
    random: Keyed


def _product(matrix: Tensor, x: Tensor) -> Tensor:
    """matrix @ x for each trial."""
    if matrix.layout == torch.strided or x.ndim == 2:
        return matrix @ x
    # Sparse matrices multiply flat ones: the trials stand side by side.
    flat = x.transpose(0, 1).reshape(x.shape[1], -1)
    return (matrix @ flat).view(len(matrix), x.shape[0], x.shape[2]).transpose(0, 1)

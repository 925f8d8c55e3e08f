"""All nodes of all trials as one node: tensors ``(trials, n, d)``, mixed by one matrix product."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from scipy.sparse import coo_array, csr_array, issparse
from torch import Tensor

from perron.algorithms.codecs import Encoded, values_of
from perron.algorithms.node import Handle, Later, LocalSamples, Node, NodeLinks, Side
from perron.networks.facts import Network
from perron.networks.mixing import Mixing
from perron.networks.stochastic import Matrix
from perron.random import LOSSES, PARTICIPATION, SAMPLES, Keyed, link_names

KEPT = 16  # matrices in a cache, where they do not repeat
DENSE = 2**20  # entries beyond which the matrix of nodes and links is sparse


class SimulatedNode(Node):
    """All nodes of all trials at once; an exchange is computed when it is waited for.

    Args:
        mixing: the network.
        trials: number of trials, or their indices; None for tensors without a trial axis.
        seed: of the nodes' own random numbers.
        samples: number of samples of each node, ``(n,)``, where it is known.
    """

    def __init__(
        self,
        mixing: Mixing,
        *,
        trials: int | Sequence[int] | None = None,
        seed: int = 0,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
        samples: Tensor | None = None,
    ) -> None:
        self.mixing, self.nodes, self.step = mixing, mixing.nodes, 0
        self._count = None if trials is None else trials if isinstance(trials, int) else len(trials)
        self._dtype, self._device = dtype, device
        self._tensors: dict[tuple[Side, int], tuple[Tensor, Tensor | None]] = {}
        self._key: dict[str, Any] = {"seed": seed, "trials": trials, "device": device}
        self._participation = self.keyed(PARTICIPATION, self.nodes)
        self._samples = None if samples is None else (samples[:, None].to(device), self.keyed(SAMPLES, self.nodes))
        self._links: dict[tuple[Side, int], NodeLinks] = {}

    def tensor(self, matrix: Any) -> Tensor:
        """Return a dense or sparse matrix as a tensor."""
        if not issparse(matrix):
            return torch.tensor(matrix, dtype=self._dtype, device=self._device)
        with warnings.catch_warnings():
            # torch calls its CSR tensors a beta feature, and arrays that it shares should be writable; it only reads these.
            warnings.simplefilter("ignore")
            rows, columns, values = map(torch.from_numpy, (matrix.indptr, matrix.indices, matrix.data))
            return torch.sparse_csr_tensor(
                rows, columns, values, size=matrix.shape, dtype=self._dtype, device=self._device
            )

    def _batch(self, matrix: Tensor) -> Tensor | None:
        """The matrix once per trial, without a copy, for the batched product."""
        if self._count is None or matrix.layout != torch.strided:
            return None
        return matrix.expand(self._count, self.nodes, self.nodes)

    def _mixed(self, side: Side, x: Tensor, step: int) -> Tensor:
        key = (side, self.mixing.index(side, step))
        if key not in self._tensors:
            self._forget(self._tensors)
            matrix = self.tensor(self.mixing.at(side, step))
            self._tensors[key] = (matrix, self._batch(matrix))
        matrix, batched = self._tensors[key]
        return torch.bmm(batched, x) if batched is not None and x.ndim == 3 else _product(matrix, x)

    def _forget(self, cached: dict[Any, Any]) -> None:
        """Empty a cache by step if steps do not repeat."""
        if not self.mixing.period and len(cached) >= KEPT:
            cached.clear()

    def pull(self, x: Tensor | Encoded) -> Handle:
        return Later(partial(self._mixed, "pull", values_of(x), self.step))

    def push(self, y: Tensor | Encoded) -> Handle:
        return Later(partial(self._mixed, "push", values_of(y), self.step))

    def mean(self, x: Tensor) -> Handle:
        return Later(lambda: x.mean(-2, keepdim=True).expand_as(x))

    def uniform(self) -> Tensor:
        return self._participation.uniform(self.step).to(self._dtype)

    @cached_property
    def unit(self) -> Tensor:
        return torch.eye(self.nodes, dtype=self._dtype, device=self._device)

    def links(self, side: Side) -> NodeLinks:
        which = (side, self.mixing.index(side, self.step))
        if which not in self._links:
            self._forget(self._links)
            self._links[which] = _SimulatedLinks(self, side, self.mixing.at(side, self.step))
        return self._links[which]

    @property
    def samples(self) -> LocalSamples:
        return super().samples if self._samples is None else LocalSamples(*self._samples, self.step)

    def column(self, values: Any) -> Tensor:
        """Return one number per node as a column ``(n, 1)``."""
        return torch.as_tensor(values, dtype=self._dtype, device=self._device)[:, None]

    def keyed(self, stream: int, names: Any) -> Keyed:
        """Return keyed random numbers for nodes or links."""
        return Keyed(nodes=names, stream=stream, **self._key)


class _SimulatedLinks(NodeLinks):
    """All links of one side and one matrix, ordered by receiver and sender."""

    def __init__(self, node: SimulatedNode, side: Side, matrix: Matrix) -> None:
        self._node, self._side = node, side
        self.self_weight = node.column(matrix.diagonal().copy())
        links = coo_array(matrix)
        apart = links.row != links.col
        rows, columns, weights = (part[apart] for part in (links.row, links.col, links.data))
        order = np.lexsort((columns, rows))
        targets, sources = rows[order].astype(np.int64), columns[order].astype(np.int64)
        # The weight of each link, in the row of its receiver.
        gather = csr_array((weights[order], (targets, np.arange(len(order)))), shape=(node.nodes, len(order)))
        self._gather = node.tensor(gather if gather.shape[0] * gather.shape[1] > DENSE else gather.toarray())
        self._sources, self._targets = (torch.from_numpy(ends).to(self._gather.device) for ends in (sources, targets))
        self._random = node.keyed(LOSSES, link_names(sources, targets, node.nodes))

    @cached_property
    def share(self) -> Tensor:  # type: ignore[override]
        return self._node.column(self._node.nodes * Network(self._node.mixing).push_perron)

    def receive(self, x: Tensor) -> Handle:
        return Later(lambda: x.index_select(-2, self._sources))

    def broadcast(self, x: Tensor) -> Tensor:
        return x.index_select(-2, self._targets)

    def reduce(self, messages: Tensor) -> Tensor:
        return _product(self._gather, messages)

    def uniform(self, size: int) -> Tensor:
        return self._random.uniform(2 * self._node.step + (self._side == "push"), size)


def _product(matrix: Tensor, x: Tensor) -> Tensor:
    """Return matrix @ x for each trial."""
    if matrix.layout == torch.strided or x.ndim == 2:
        return matrix @ x
    # Sparse matrices multiply two-dimensional ones: put the trials side by side.
    flat = x.transpose(0, 1).reshape(x.shape[1], -1)
    return (matrix @ flat).view(len(matrix), x.shape[0], x.shape[2]).transpose(0, 1)

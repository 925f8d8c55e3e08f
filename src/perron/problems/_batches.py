"""Minibatches by key: which samples a node uses in which step."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from perron.random import Keyed

ORDERS = 1  # the stream of random numbers


class Batches:
    """Minibatches of each node's own samples, determined by (seed, trial, node, draw): there is no position to save.

    Args:
        parts: for each node, the indices of its samples.
        size: samples per batch.
        sampling: ``"epochs"``: samples are shuffled once per epoch, and each occurs once in it; a batch may end one epoch and
            begin the next. ``"replacement"``: every sample of every batch is drawn independently.
        longest: the largest number of samples of any node, if that node is not among these.
    """

    def __init__(
        self, parts: list[Tensor], size: int, sampling: Literal["epochs", "replacement"], *, longest: int = 0
    ) -> None:
        self.parts, self.size, self.sampling = parts, size, sampling
        self.longest = max(longest, *(len(part) for part in parts))
        self._orders: tuple[Keyed | None, dict[int, dict[int, Tensor]]] = (None, {})  # by node and epoch

    def __call__(self, draw: int, random: Keyed) -> Tensor:
        """The numbers of the samples in each node's batch, ``(..., n, size)``."""
        rows = []
        for node, part in enumerate(self.parts):
            many = len(part)
            if self.sampling == "replacement":
                drawn = random.uniform(draw, self.size)[..., node, :]
                places = (drawn * many).long().clamp_(max=many - 1)
            else:
                first = draw * self.size
                epochs = range(first // many, (first + self.size - 1) // many + 1)
                places = self._order(node, epochs, random)[..., first % many :][..., : self.size]
            rows.append(part.to(places.device)[places])
        return torch.stack(rows, -2)

    def _order(self, node: int, epochs: range, random: Keyed) -> Tensor:
        """The random orders of a node's samples in some epochs, one after the other, ``(..., samples)``."""
        if self._orders[0] is not random:
            self._orders = (random, {})
        known, numbers, many = self._orders[1].get(node, {}), random.stream(ORDERS), len(self.parts[node])
        found: dict[int, Tensor] = {}
        for epoch in epochs:
            new = epoch not in known
            found[epoch] = numbers.uniform(epoch, self.longest)[..., node, :many].argsort(-1) if new else known[epoch]
        self._orders[1][node] = found  # those of epochs that are over are forgotten
        return torch.cat(list(found.values()), -1)

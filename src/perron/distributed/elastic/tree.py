"""Collective operations along a tree, for groups in which some pairs of processes cannot reach each other."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from perron.distributed.process_group import Transfer

FIRST_TAG, TAGS = 2**30, 2**20  # apart from those of exchanges between neighbors


class Tree:
    """All-reduce, all-gather and broadcast by messages between pairs that reach each other.

    Args:
        post: starts transfers, see `perron.distributed.process_group.Peers`.
        rank: of this process.
        size: the number of processes; all are connected by pairs that are not broken.
        broken: the pairs of ranks that cannot reach each other.
    """

    def __init__(
        self, post: Callable[[list[Transfer]], list[Any]], rank: int, size: int, broken: set[frozenset[int]]
    ) -> None:
        self.post, self.rank, self.size, self.broken = post, rank, size, broken
        self._count = 0

    def all_reduce(self, tensor: Tensor, op: Any) -> _Work:
        """Reduce a tensor over all ranks, in place."""
        combine: Callable[..., Tensor] = torch.maximum if op == dist.ReduceOp.MAX else torch.add
        parent, children, _ = self.links(0)

        def run(exchange: Exchange) -> None:
            for child in children:
                part = torch.empty_like(tensor)
                exchange(child, part, sent=False)
                combine(tensor, part, out=tensor)
            if parent is not None:
                exchange(parent, tensor, sent=True)
                exchange(parent, tensor, sent=False)
            for child in children:
                exchange(child, tensor, sent=True)

        return self._work(run)

    def all_gather(self, tensors: list[Tensor], tensor: Tensor) -> _Work:
        """Gather the tensors of all ranks: a table with a row for each, whose rows go up the tree, and all of it down."""
        parent, children, below = self.links(0)
        table = torch.zeros((self.size, *tensor.shape), dtype=tensor.dtype)
        table[self.rank] = tensor

        def run(exchange: Exchange) -> None:
            for child in children:
                part = torch.empty_like(table)
                exchange(child, part, sent=False)
                table[below[child]] = part[below[child]]
            if parent is not None:
                exchange(parent, table, sent=True)
                exchange(parent, table, sent=False)
            for child in children:
                exchange(child, table, sent=True)
            for row, result in zip(table, tensors, strict=True):
                result.copy_(row)

        return self._work(run)

    def broadcast(self, tensor: Tensor, root: int) -> _Work:
        """Copy the tensor of rank ``root`` to all ranks, in place."""
        parent, children, _ = self.links(root)

        def run(exchange: Exchange) -> None:
            if parent is not None:
                exchange(parent, tensor, sent=False)
            for child in children:
                exchange(child, tensor, sent=True)

        return self._work(run)

    def links(self, root: int) -> tuple[int | None, list[int], dict[int, list[int]]]:
        """Return this rank's parent and children in a breadth-first tree, and for each child the ranks from it downwards."""
        parents = {root: -1}
        for one in (queue := [root]):
            found = [other for other in range(self.size) if other not in parents and {one, other} not in self.broken]
            parents |= dict.fromkeys(found, one)
            queue += found
        below: dict[int, list[int]] = {rank: [rank] for rank in queue}
        for rank in reversed(queue[1:]):
            below[parents[rank]] += below[rank]
        children = [rank for rank in queue if parents[rank] == self.rank]
        parent = parents[self.rank] if self.rank != root else None
        return parent, children, {child: sorted(below[child]) for child in children}

    def _work(self, run: Callable[[Exchange], None]) -> _Work:
        self._count += 1
        return _Work(run, self.post, FIRST_TAG + self._count % TAGS)


Exchange = Callable[..., None]


class _Work:
    """A collective operation that is done when it is waited for, as all ranks do."""

    def __init__(self, run: Callable[[Exchange], None], post: Callable[[list[Transfer]], list[Any]], tag: int) -> None:
        self.run, self.post, self.tag = run, post, tag

    def wait(self, timeout: timedelta) -> None:
        def exchange(peer: int, tensor: Tensor, *, sent: bool) -> None:
            for work in self.post([Transfer(peer, tensor, self.tag, sent)]):
                work.wait(timeout)

        self.run(exchange)

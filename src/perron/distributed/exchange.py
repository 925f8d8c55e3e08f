"""Exchanges with neighbors: the messages of pulls and pushes, posted in batches, and the weighted sums of those that arrive."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from scipy.sparse import issparse
from torch import Tensor

from perron.algorithms.node import Handle, Side
from perron.distributed.finite import is_finite
from perron.distributed.process_group import Transfer, record_waits
from perron.errors import DivergenceError, NetworkError, listed
from perron.random import Keyed

if TYPE_CHECKING:
    from perron.distributed.node import DistributedNode

# Bytes: smaller messages to one neighbor are concatenated; for larger ones the copy costs more than it saves.
FUSE_BELOW = 2**20


class Neighbors:
    """The in-neighbors (with weights) and out-neighbors of a node, and its own weight, for one matrix."""

    def __init__(self, matrix: Any, number: int) -> None:
        row = matrix[[number]].toarray()[0] if issparse(matrix) else matrix[number]
        column = matrix[:, [number]].toarray()[:, 0] if issparse(matrix) else matrix[:, number]
        self.sources = {int(j): float(row[j]) for j in row.nonzero()[0] if j != number}
        self.targets = {int(j) for j in column.nonzero()[0] if j != number}
        self.own = float(row[number])
        self.random: Keyed | None = None  # decides which messages unreliable links lose


class Message(NamedTuple):
    """A tensor that a neighbor sent, and its weight."""

    source: int
    weight: float
    tensor: Tensor


class Exchange(Handle):
    """A pull or push of one tensor; posted in a batch with the others that are pending.

    ``batch`` is set while its messages are in flight, ``result`` and ``error`` afterwards. The algorithm that takes the result
    gets the error; waiting for messages in flight without taking their result (`DistributedNode.drain`) raises none.
    """

    batch: Batch
    result: Tensor

    def __init__(self, node: DistributedNode, side: Side, tensor: Tensor) -> None:
        self.node, self.side, self.tensor = node, side, tensor
        self.step, self.neighbors = node.step, node.neighbors(side, node.step)
        self.posted = self.done = False
        self.error: DivergenceError | None = None

    def wait(self) -> Tensor:
        if not self.posted:
            self.node.flush()
        if not self.done:
            self.batch.finish()
        if self.error is not None:
            raise self.error
        return self.result

    def finish(self, received: list[Message]) -> None:
        """Combine the messages; a result that is not finite becomes an error that names their sender."""
        self.result, self.done = self.combine(received), True
        if not is_finite(self.result):  # one pass over the result costs less than one over each message
            self.error = self._divergence(received)

    def combine(self, received: list[Message]) -> Tensor:
        """Return the weighted sum of the messages and the own tensor, in the memory of the first message if possible."""
        own = self.neighbors.own
        if not received or received[0].tensor.dtype != self.tensor.dtype:
            result = self._own_part()
        else:
            (_, weight, result), *received = received
            if weight + own == 1:  # one pass over memory rather than two
                result.lerp_(self.tensor, own)
            else:
                result.mul_(weight).add_(self.tensor, alpha=own)
        for _, weight, message in received:
            result.add_(message, alpha=weight)
        return result

    def _divergence(self, received: list[Message]) -> DivergenceError:
        """Return the error about a result that is not finite.

        The result may have overwritten the first message; it is at fault if all other terms are finite and too small to overflow.
        """
        name, names, where = self.node.name, self.node.peers.node_ids, f"in step {self.step}"
        overwritten = [one.source for one in received if one.tensor.data_ptr() == self.result.data_ptr()]
        intact = [one for one in received if one.source not in overwritten]
        sources = [one.source for one in intact if not is_finite(one.tensor)]
        remedy = "Lower lr, or pass clip=. Start again to resume from the last checkpoint, which is finite."
        if not is_finite(self.tensor):
            return DivergenceError(
                f"Node {name} has diverged: its own part of the {self} {where} is not finite. {remedy}"
            )
        if not sources:
            largest = max(float(one.abs().max()) for one in (self.tensor, *(one.tensor for one in intact)))
            if largest < torch.finfo(self.tensor.dtype).max / (1 + len(received)):
                sources = overwritten
        if not sources:
            return DivergenceError(
                f"Node {name} has diverged: the weighted sum of the {self} {where} overflows. {remedy}"
            )
        senders = listed(names[source] for source in sources)
        edges = listed(f"edge node {names[source]} -> node {name}" for source in sources)
        return DivergenceError(
            f"Node {name} received numbers that are not finite from node {senders} {where} ({edges}, {self}). {remedy}"
        )

    def _own_part(self) -> Tensor:
        """Return the own term; of a push in low precision it includes the rounding errors of the messages: no mass is lost."""
        if self.side == "pull" or self.node.wire is None:
            return self.tensor * self.neighbors.own
        sent = self.tensor.to(self.node.wire).to(self.tensor.dtype)
        return sent * self.neighbors.own + (self.tensor - sent)

    def __str__(self) -> str:
        return f"{self.side} of {self.tensor.numel()} numbers"


class Gather(Exchange):
    """The messages of all in-neighbors, unweighted: one row for each, in the order of the neighbors."""

    def combine(self, received: list[Message]) -> Tensor:
        rows = [message.tensor for message in received]
        return torch.stack(rows) if rows else self.tensor.new_empty((0, *self.tensor.shape))


class Mean(Handle):
    """The exact average over all nodes, by an all-reduce."""

    def __init__(self, node: DistributedNode, x: Tensor) -> None:
        self.node, self.step, self.own = node, node.step, x
        self.total = x.clone()
        self.work = node.peers.all_reduce(self.total, timeout=node.timeout)

    def wait(self) -> Tensor:
        what = f"Node {self.node.name} lost another node in the average of step {self.step}"
        self.node.peers.finish([(self.work, what)], self.node.timeout)
        if not is_finite(self.total):
            part = "finite, that of another node is not" if is_finite(self.own) else "not finite"
            raise DivergenceError(
                f"The average of step {self.step} is not finite: node {self.node.name}'s part is {part}."
            )
        return self.total / self.node.nodes


class MessagePlan(NamedTuple):
    """One message of a batch: its neighbor, its direction, and the indices of the exchanges whose tensors it contains."""

    neighbor: int
    sent: bool
    number: int  # among the messages to, or from, this neighbor
    indices: list[int]


def plan_messages(exchanges: list[Exchange], nodes: int) -> list[MessagePlan]:
    """Return the messages of a batch, in an order that the sender and the receiver of each agree on."""
    return [
        MessagePlan(neighbor, sent, number, indices)
        for sent in (False, True)  # posting receives first saves gloo a round trip
        for neighbor in range(nodes)
        for number, indices in enumerate(_fuse(exchanges, neighbor, sent=sent))
    ]


def _fuse(exchanges: list[Exchange], neighbor: int, *, sent: bool) -> list[list[int]]:
    """Return the indices of the exchanges with a neighbor, by message: all in one if they are small, otherwise one each."""
    sides = [one.neighbors.targets if sent else one.neighbors.sources for one in exchanges]
    indices = [index for index, side in enumerate(sides) if neighbor in side]
    size = sum(exchanges[index].tensor.numel() * exchanges[index].tensor.element_size() for index in indices)
    if size <= FUSE_BELOW:
        return [indices] if indices else []
    return [[index] for index in indices]


class _FailedWork:
    """Stands for a transfer that could not be posted; waiting for it raises the error."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def wait(self, _timeout: object) -> None:
        raise self.error


class Batch:
    """Exchanges that are posted together."""

    def __init__(self, node: DistributedNode, exchanges: list[Exchange]) -> None:
        self.node, self.exchanges = node, exchanges
        self.plans = node.plan(exchanges)
        self.transfers = [self._transfer(plan) for plan in self.plans]
        self.works: list[Any] = []
        self.failed: tuple[int, _FailedWork] | None = None  # the transfer that could not be posted
        # On gloo each transfer has a work of its own, NCCL has one for all of them.
        self.separate = all(one.tensor.device.type == "cpu" for one in self.transfers)
        try:
            for group in [[one] for one in self.transfers] if self.separate else [self.transfers]:
                self.works += node.peers.post(group)
        except (RuntimeError, dist.DistError) as error:
            self.failed = len(self.works), _FailedWork(error)

    def _transfer(self, plan: MessagePlan) -> Transfer:
        node, tensors = self.node, [self.exchanges[index].tensor for index in plan.indices]
        if plan.sent:
            flat = [tensor.reshape(-1) for tensor in tensors]
            buffer = node.encode((flat[0] if len(flat) == 1 else torch.cat(flat)).contiguous())
        else:
            size = sum(tensor.numel() for tensor in tensors)
            buffer = torch.empty(size, dtype=node.wire or tensors[0].dtype, device=tensors[0].device)
        return Transfer(plan.neighbor, buffer, node.tag(plan.number), plan.sent)

    def finish(self) -> None:
        """Wait for all messages and compute the results."""
        node = self.node
        neighbors = [node.peers.node_ids[plan.neighbor] for plan in self.plans]
        works = list(enumerate(record_waits(self.works, neighbors, node.waited)))
        if self.failed is not None:
            works = [self.failed]
        try:
            node.peers.finish([(work, partial(self._describe_loss, place)) for place, work in works], node.timeout)
        except NetworkError:
            self.works, self.transfers = [], []  # they are large and keep connections open
            raise
        received: list[list[Message]] = [[] for _ in self.exchanges]
        for plan, transfer in zip(self.plans, self.transfers, strict=True):
            if not plan.sent:
                tensors = [self.exchanges[index].tensor for index in plan.indices]
                parts = transfer.tensor.split([tensor.numel() for tensor in tensors])  # type: ignore[no-untyped-call]
                for index, tensor, part in zip(plan.indices, tensors, parts, strict=True):
                    weight = self.exchanges[index].neighbors.sources[plan.neighbor]
                    received[index].append(Message(plan.neighbor, weight, part.view_as(tensor)))
        for exchange, messages in zip(self.exchanges, received, strict=True):
            exchange.finish(messages)
        for exchange in self.exchanges:
            del exchange.batch  # breaks the cycle, so that buffers are freed at once
        node.finished(self)

    def _describe_loss(self, place: int) -> str:
        """Return the beginning of the error about a work that failed: the node, the edge and the exchanges that it concerns."""
        name, names = self.node.name, self.node.peers.node_ids
        plans = [self.plans[place]] if self.separate else self.plans
        lost = sorted({names[plan.neighbor] for plan in plans})
        who = f"node {lost[0]}" if len(lost) == 1 else f"one of the nodes {listed(lost)}"
        ends = [(name, names[plan.neighbor]) if plan.sent else (names[plan.neighbor], name) for plan in plans]
        edges = listed(dict.fromkeys(f"edge node {source} -> node {target}" for source, target in ends))
        exchanges = [self.exchanges[index] for index in sorted({index for plan in plans for index in plan.indices})]
        what = f"{edges}, {' and '.join(map(str, exchanges))}"
        return f"Node {name} lost {who} in step {self.exchanges[0].step} ({what})"

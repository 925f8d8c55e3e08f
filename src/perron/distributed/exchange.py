"""Exchanges with neighbors: the messages of pulls and pushes, posted in batches, and the weighted sums of those that arrive."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from scipy.sparse import issparse
from torch import Tensor

from perron.algorithms.codecs import Encoded, values_of
from perron.algorithms.node import Handle, Side
from perron.algorithms.wrappers import ring_all_reduce
from perron.distributed.finite import is_finite
from perron.distributed.process_group import record_waits
from perron.distributed.receive_ahead import Form, Receives, is_blank
from perron.errors import DivergenceError, NetworkError, PerronError, listed
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

    def __init__(self, node: DistributedNode, side: Side, x: Tensor | Encoded) -> None:
        self.node, self.side, self.tensor = node, side, values_of(x)
        self.codec = x.codec if isinstance(x, Encoded) else None
        self.message = x.message if isinstance(x, Encoded) else x.reshape(-1)  # what is sent
        self.step, self.neighbors = node.step, node.neighbors(side, node.step)
        self.form = Form(side, node.step, self.message.numel(), self.message.dtype, self.message.device)
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
        if not received:
            result = self.tensor * own
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

    def read(self, message: Tensor, source: int) -> Message:
        """Return a neighbor's message; one that cannot be read is an error."""
        if self.codec is not None:
            try:
                message = self.codec.read(message, self.tensor.numel(), self.tensor.dtype)
            except PerronError as error:
                sender, name = self.node.peers.node_ids[source], self.node.name
                raise PerronError(
                    f"Node {name} received from node {sender} {error} in step {self.step} (edge node {sender} -> node {name}, "
                    f"{self}). Use the same version of perron and the same wire= on all nodes."
                ) from None
        return Message(source, self.neighbors.sources[source], message.view_as(self.tensor))

    def __str__(self) -> str:
        return f"{self.side} of {self.tensor.numel()} numbers" + (f" as {self.codec.name}" if self.codec else "")


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
        node.posted_bytes += ring_all_reduce(node.nodes) * x.nbytes // node.nodes

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
    part: int  # number among the messages to, or from, this neighbor
    indices: list[int]


def plan_messages(forms: Sequence[Form], neighbors: Sequence[Neighbors], nodes: int) -> list[MessagePlan]:
    """Return the messages of a batch, in an order that the sender and the receiver of each agree on."""
    return [
        MessagePlan(neighbor, sent, part, indices)
        for sent in (False, True)  # posting receives first saves gloo a round trip
        for neighbor in range(nodes)
        for part, indices in enumerate(_fuse(forms, neighbors, neighbor, sent=sent))
    ]


def _fuse(forms: Sequence[Form], neighbors: Sequence[Neighbors], neighbor: int, *, sent: bool) -> list[list[int]]:
    """Return the indices of the exchanges with a neighbor, by message: all in one if they are small, otherwise one each."""
    sides = [one.targets if sent else one.sources for one in neighbors]
    indices = [index for index, side in enumerate(sides) if neighbor in side]
    size = sum(forms[index].numel * forms[index].dtype.itemsize for index in indices)
    if size <= FUSE_BELOW:
        return [indices] if indices else []
    return [[index] for index in indices]


def _split(message: Tensor, forms: Sequence[Form]) -> list[Tensor]:
    """Return the tensors that were joined in a message; bytes that begin where numbers may not are copied."""
    if all(form.dtype == message.dtype for form in forms):
        return list(message.split([form.numel for form in forms]))  # type: ignore[no-untyped-call]
    parts = message.split([form.numel * form.dtype.itemsize for form in forms])  # type: ignore[no-untyped-call]
    return [
        (part if part.storage_offset() % form.dtype.itemsize == 0 else part.clone()).view(form.dtype)
        for part, form in zip(parts, forms, strict=True)
    ]


class Batch:
    """Exchanges that are posted together."""

    def __init__(self, node: DistributedNode, exchanges: list[Exchange], receives: Receives) -> None:
        self.node, self.exchanges, self.number, self.plans = node, exchanges, receives.number, receives.plans
        self.ahead = receives.ahead
        sends = [receives.transfer(plan, self._message(plan)) for plan in self.plans if plan.sent]
        self.transfers = [*receives.transfers, *sends]
        node.posted_bytes += sum(one.tensor.nbytes for one in sends)
        self.separate = receives.separate  # on gloo each transfer has a work of its own, NCCL has one for all of them
        receives.post(node, sends if self.separate else self.transfers)
        self.works, self.failed = receives.works, receives.failed

    def _message(self, plan: MessagePlan) -> Tensor:
        """Return a message to be sent; tensors of different types are joined byte by byte."""
        flat = [self.exchanges[index].message for index in plan.indices]
        if len({one.dtype for one in flat}) > 1:
            flat = [one.contiguous().view(torch.uint8) for one in flat]
        return (flat[0] if len(flat) == 1 else torch.cat(flat)).contiguous()

    def finish(self) -> None:
        """Wait for all messages and compute the results."""
        node = self.node
        neighbors = [node.peers.node_ids[plan.neighbor] for plan in self.plans]
        works = list(enumerate(record_waits(self.works, neighbors, node.waited)))
        if self.failed is not None:
            works = [self.failed]
        try:
            node.peers.finish([(work, partial(self._describe_loss, place)) for place, work in works], node.timeout)
            self._refuse_blanks()
        except NetworkError:
            self.works, self.transfers = [], []  # they are large and keep connections open
            node.ahead.clear()
            raise
        if left := node.peers.ledger.completed(self.number, self.transfers):
            node.peers.finish([(work, f"Node {node.name} lost a neighbor") for work in left], node.timeout)
        received: list[list[Message]] = [[] for _ in self.exchanges]
        for plan, transfer in zip(self.plans, self.transfers, strict=True):
            if not plan.sent:
                parts = _split(transfer.tensor, [self.exchanges[index].form for index in plan.indices])
                for index, part in zip(plan.indices, parts, strict=True):
                    received[index].append(self.exchanges[index].read(part, plan.neighbor))
        for exchange, messages in zip(self.exchanges, received, strict=True):
            exchange.finish(messages)
        for exchange in self.exchanges:
            del exchange.batch  # breaks the cycle, so that buffers are freed at once
        node.finished(self)

    def _refuse_blanks(self) -> None:
        """Raise an error if a neighbor has completed a receive without a message for it."""
        for place, transfer in enumerate(self.transfers if self.ahead else ()):
            if not transfer.sent and is_blank(transfer.tensor):
                text = f"{self._describe_loss(place)}: it has ended its training or restarted its algorithm."
                raise NetworkError(f"{text} {self.node.peers.remedy}".rstrip())

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

"""Messages between neighbours: exchanges that are posted together, and the weighted sums of what arrives."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from scipy.sparse import issparse
from torch import Tensor

from perron.algorithms.node import Handle, Side
from perron.distributed.process_group import Transfer, explain_error, record_waits
from perron.errors import NetworkError
from perron.random import Keyed

if TYPE_CHECKING:
    from perron.distributed.node import DistributedNode

# Bytes: messages to one neighbour travel as one up to here; beyond, copying costs more than it saves.
FUSE_BELOW = 2**20


class Edges:
    """Whom a node hears with what weight, whom it speaks to, and what it keeps, on one side and in one step."""

    def __init__(self, matrix: Any, number: int) -> None:
        row = matrix[[number]].toarray()[0] if issparse(matrix) else matrix[number]
        column = matrix[:, [number]].toarray()[:, 0] if issparse(matrix) else matrix[:, number]
        self.sources = {int(j): float(row[j]) for j in row.nonzero()[0] if j != number}
        self.targets = {int(j) for j in column.nonzero()[0] if j != number}
        self.own = float(row[number])
        self.random: Keyed | None = None  # of the links, if they are not reliable


class Exchange(Handle):
    """A pull or push that was asked for; posted with all others that are pending then.

    ``batch`` is there from when it is posted until it is done, ``result`` from then on.
    """

    batch: Batch
    result: Tensor

    def __init__(self, node: DistributedNode, side: Side, tensor: Tensor) -> None:
        self.node, self.side, self.tensor = node, side, tensor
        self.step = node.step
        self.edges = edges = node.edges(side, node.step)
        self.sources, self.own = edges.sources, edges.own
        self.posted = self.done = False

    def wait(self) -> Tensor:
        """The weighted sum of what the neighbours sent and of one's own."""
        if not self.posted:
            self.node.flush()
        if not self.done:
            self.batch.finish()
        return self.result

    def mixed(self, heard: list[tuple[float, Tensor]]) -> Tensor:
        """The weighted sum, in the place of the first message: large vectors are not copied more often than need be."""
        if not heard or heard[0][1].dtype != self.tensor.dtype:
            result = self.kept()
        else:
            (weight, result), *heard = heard
            if weight + self.own == 1:  # one pass over memory rather than two
                result.lerp_(self.tensor, self.own)
            else:
                result.mul_(weight).add_(self.tensor, alpha=self.own)
        for weight, other in heard:
            result.add_(other, alpha=weight)
        return result

    def kept(self) -> Tensor:
        """One's own part; of a push in few bits with all that rounding took from the messages, so that no mass is lost."""
        if self.side == "pull" or self.node.wire is None:
            return self.tensor * self.own
        sent = self.tensor.to(self.node.wire).to(self.tensor.dtype)
        return sent * self.own + (self.tensor - sent)

    def __str__(self) -> str:
        return f"{self.side} of {self.tensor.numel()} numbers"


class Apart(Exchange):
    """What the neighbours send, a row for each, unweighted."""

    def mixed(self, heard: list[tuple[float, Tensor]]) -> Tensor:
        """Together, in the order of the neighbours."""
        return torch.stack([value for _, value in heard]) if heard else self.tensor.new_empty((0, *self.tensor.shape))


class Mean(Handle):
    """An exact average under way."""

    def __init__(self, node: DistributedNode, x: Tensor) -> None:
        self.node, self.step = node, node.step
        self.total = x.clone()
        self.work = node.peers.all_reduce(self.total, timeout=node.timeout)

    def wait(self) -> Tensor:
        """The average."""
        what = f"Node {self.node.name} lost somebody in the average of step {self.step}"
        self.node.peers.finish([(self.work, what)], self.node.timeout)
        return self.total / self.node.nodes


class Load(NamedTuple):
    """What a message will hold: the places of some of the exchanges that are posted together."""

    neighbour: int
    sent: bool
    number: int  # among those to, or from, this neighbour
    places: list[int]


class Batch:
    """Exchanges that were posted together."""

    def __init__(self, node: DistributedNode, exchanges: list[Exchange]) -> None:
        self.node, self.exchanges = node, exchanges
        self.loads = node.plan(exchanges)
        self.parcels = [self._parcel(load) for load in self.loads]
        self.error: BaseException | None = None
        self.works: list[Any] = []
        try:
            self.works = node.peers.post(self.parcels)
        except (RuntimeError, dist.DistError) as error:
            self.error = error  # raised where somebody waits

    def _parcel(self, load: Load) -> Transfer:
        node, tensors = self.node, [self.exchanges[place].tensor for place in load.places]
        if load.sent:
            flat = [tensor.reshape(-1) for tensor in tensors]
            buffer = node.encode((flat[0] if len(flat) == 1 else torch.cat(flat)).contiguous())
        else:
            size = sum(tensor.numel() for tensor in tensors)
            buffer = torch.empty(size, dtype=node.wire or tensors[0].dtype, device=tensors[0].device)
        return Transfer(load.neighbour, buffer, node.tag(load.number), load.sent)

    def finish(self) -> None:
        """Wait for all messages and form the sums."""
        node = self.node
        if self.error is not None:
            said = f"Node {node.name} lost {self._everybody()} in step {node.step}: {explain_error(self.error)}."
            raise NetworkError(f"{said} {node.peers.remedy}".rstrip()) from None
        works = record_waits(self.works, [node.peers.node_ids[load.neighbour] for load in self.loads], node.waited)
        try:
            node.peers.finish([(one, partial(self._lost, place)) for place, one in enumerate(works)], node.timeout)
        except NetworkError:
            self.works, self.parcels = [], []  # large, and connections hang on them
            raise
        heard: list[list[tuple[float, Tensor]]] = [[] for _ in self.exchanges]
        for load, parcel in zip(self.loads, self.parcels, strict=True):
            start = 0
            for place in load.places if not load.sent else ():
                exchange = self.exchanges[place]
                stop = start + exchange.tensor.numel()
                one = parcel.tensor[start:stop].view_as(exchange.tensor)
                heard[place].append((exchange.sources[load.neighbour], one))
                start = stop
        results = [exchange.mixed(parts) for exchange, parts in zip(self.exchanges, heard, strict=True)]
        for exchange, result in zip(self.exchanges, results, strict=True):
            exchange.result, exchange.done = result, True
            del exchange.batch  # without the cycle, buffers go at once
        node.finished(self)

    def _lost(self, place: int) -> str:
        """What an error says if a work fails. NCCL gives one for all messages, gloo one for each."""
        node, single = self.node, len(self.works) == len(self.loads)
        load, other = self.loads[place], node.peers.node_ids[self.loads[place].neighbour]
        who = f"node {other}" if single else self._everybody()
        exchanges = [self.exchanges[one] for one in load.places] if single else self.exchanges
        what = " and ".join(str(one) for one in exchanges)
        if single:
            source, target = (node.name, other) if load.sent else (other, node.name)
            what = f"edge node {source} -> node {target}, {what}"
        return f"Node {node.name} lost {who} in step {self.exchanges[0].step} ({what})"

    def _everybody(self) -> str:
        names = sorted({self.node.peers.node_ids[load.neighbour] for load in self.loads})
        return f"one of the nodes {', '.join(map(str, names))}"


def loads(exchanges: list[Exchange], neighbour: int, *, sent: bool) -> list[list[int]]:
    """The places of exchanges with one neighbour, message by message: together if small, each on its own if large."""
    places = [
        place for place, one in enumerate(exchanges) if neighbour in (one.edges.targets if sent else one.edges.sources)
    ]
    tensors = [exchanges[place].tensor for place in places]
    if sum(tensor.numel() * tensor.element_size() for tensor in tensors) <= FUSE_BELOW:
        return [places] if places else []
    return [[place] for place in places]

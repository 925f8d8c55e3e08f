"""What a step of an algorithm does in time, read off the algorithm's own text: posts, gradients, waits and averages, in order."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from perron.algorithms.base import Algorithm, Query, advance
from perron.algorithms.node import Handle, LocalSamples, Node, NodeLinks, Ready, Side
from perron.algorithms.wrappers import Repeated
from perron.errors import PerronError, brief
from perron.random import SAMPLES, Keyed

PROBE = 1  # the step that is recorded: the first may differ


class Message(NamedTuple):
    """What one exchange sends along each link of its side.

    Attributes:
        vectors: number of model vectors, of length d.
        numbers: number of other numbers, as the n entries of an estimated Perron vector, or the one of a push-sum weight.
        round: which of the matrices of a step it uses; 0 unless a step has several rounds.
    """

    side: Side
    vectors: int
    numbers: int
    round: int = 0


class Post(NamedTuple):
    """The exchanges of a batch leave."""

    batch: int
    messages: tuple[Message, ...]


class Gradient(NamedTuple):
    """A gradient is computed; messages in flight travel meanwhile."""

    number: int


class Wait(NamedTuple):
    """The node waits for all messages of a batch."""

    batch: int


class Average(NamedTuple):
    """The node waits for an average over all nodes of that many model vectors and other numbers."""

    vectors: int
    numbers: int


Operation = Post | Gradient | Wait | Average


class Tape(NamedTuple):
    """The operations of one step, the same for every node.

    Attributes:
        operations: in order.
        rounds: matrices of a network that a step uses on each side.
    """

    operations: tuple[Operation, ...]
    rounds: int = 1

    @property
    def gradients(self) -> int:
        """The number of gradients in a step."""
        return sum(isinstance(one, Gradient) for one in self.operations)

    @property
    def overlapped(self) -> list[Message]:
        """The messages that travel while a gradient is computed."""
        posted: dict[int, tuple[Message, ...]] = {}
        found: dict[int, tuple[Message, ...]] = {}
        for one in self.operations:
            match one:
                case Post(batch, messages):
                    posted[batch] = messages
                case Wait(batch):
                    posted.pop(batch)
                case Gradient():
                    found |= posted
        return [message for batch in sorted(found) for message in found[batch]]

    def __str__(self) -> str:
        return "; ".join(map(_text, self.operations))


def _text(one: Operation) -> str:
    """An operation as text: ``post[pull d, push d]``, ``gradient``, ``wait``, ``average d``."""
    match one:
        case Post(_, messages):
            return f"post[{', '.join(f'{m.side} {_size(m.vectors, m.numbers)}' for m in messages)}]"
        case Average(vectors, numbers):
            return f"average {_size(vectors, numbers)}"
    return type(one).__name__.lower()


def _size(vectors: int, numbers: int) -> str:
    return ("d" if vectors == 1 else f"{vectors} d") if vectors else str(numbers)


@lru_cache(maxsize=256)
def record_tape(algorithm: Algorithm, nodes: int, rounds: int = 1) -> Tape:
    """Record one step of an algorithm on a network of that many nodes."""
    if not isinstance(getattr(algorithm, "local_steps", 1), int):
        raise PerronError(
            f"A clock needs the same number of local steps on all nodes and in all rounds; {algorithm.about.title} has "
            f"local_steps={brief(algorithm.local_steps)}. Give one number."  # type: ignore[attr-defined]
        )
    inner = _TapeNode(nodes)
    node: Node = inner if rounds == 1 else Repeated(inner, rounds)
    dim = nodes + 7  # a length that no other vector has
    state = algorithm.init(torch.ones(dim, dtype=torch.float64), node)

    def gradient(point: Tensor) -> Tensor:
        inner.compute()
        return torch.zeros_like(point)

    def query(asked: Query) -> Tensor:
        inner.compute()
        zero = torch.zeros_like(asked.point)
        return zero if asked.samples is None else zero.expand(*asked.samples.shape, -1)

    for inner.step in range(PROBE + 1):
        inner.begin(dim, rounds)
        state = advance(algorithm, state, node, 0.0, gradient, query)
        inner.end()
    if not inner.operations:
        raise PerronError(f"A step of {algorithm.about.title} neither computes nor sends: it takes no time.")
    return Tape(tuple(inner.operations), rounds)


class _Recorded(Handle):
    """An exchange on the tape."""

    def __init__(self, node: _TapeNode, message: Message, result: Tensor) -> None:
        self.node, self.message, self.result = node, message, result
        self.batch = -1

    def wait(self) -> Tensor:
        self.node.wait(self)
        return self.result


class _TapeNode(Node):
    """One node that talks to itself and writes down when it would post, compute and wait, as `DistributedNode` does."""

    def __init__(self, nodes: int) -> None:
        self.nodes, self.step = nodes, 0
        self.begin(0, 1)

    def begin(self, dim: int, rounds: int) -> None:
        """Start a new tape."""
        self.dim, self.first = dim, self.step * rounds
        self.operations: list[Operation] = []
        self.pending: list[_Recorded] = []
        self.open: list[int] = []
        self.batches = self.gradients = 0

    def end(self) -> None:
        """Wait for batches that the algorithm did not wait for."""
        self.flush()
        for batch in list(self.open):
            self._finish(batch)

    def flush(self) -> None:
        """Post all pending exchanges as one batch."""
        if self.pending:
            for one in self.pending:
                one.batch = self.batches
            self.operations.append(Post(self.batches, tuple(one.message for one in self.pending)))
            self.open.append(self.batches)
            self.pending = []
            self.batches += 1

    def compute(self) -> None:
        self.flush()
        self.operations.append(Gradient(self.gradients))
        self.gradients += 1

    def wait(self, one: _Recorded) -> None:
        if one.batch < 0:
            self.flush()
        if one.batch in self.open:
            self._finish(one.batch)

    def _finish(self, batch: int) -> None:
        self.operations.append(Wait(batch))
        self.open.remove(batch)

    def exchange(self, side: Side, x: Tensor, result: Tensor) -> Handle:
        """Add an exchange to those that the next flush posts."""
        vectors, numbers = self._size(x)
        self.pending.append(_Recorded(self, Message(side, vectors, numbers, self.step - self.first), result))
        return self.pending[-1]

    def _size(self, x: Tensor) -> tuple[int, int]:
        length = x.shape[-1]
        return (length // self.dim, 0) if self.dim and length % self.dim == 0 else (0, length)

    def pull(self, x: Tensor) -> Handle:
        return self.exchange("pull", x, x.clone())

    def push(self, y: Tensor) -> Handle:
        return self.exchange("push", y, y.clone())

    def mean(self, x: Tensor) -> Handle:
        self.flush()
        self.operations.append(Average(*self._size(x)))
        return Ready(x.clone())

    def uniform(self) -> Tensor:
        return torch.full((1,), 0.5, dtype=torch.float64)

    @property
    def unit(self) -> Tensor:
        unit = torch.zeros(self.nodes, dtype=torch.float64)
        unit[0] = 1
        return unit

    def links(self, side: Side) -> NodeLinks:
        return _TapeLinks(self, side)

    @property
    def samples(self) -> LocalSamples:
        return LocalSamples(torch.ones(1, dtype=torch.int64), Keyed(0, stream=SAMPLES), self.step)


class _TapeLinks(NodeLinks):
    """One link, from the node to itself."""

    def __init__(self, node: _TapeNode, side: Side) -> None:
        self.node, self.side = node, side
        self.self_weight = torch.full((1,), 0.5, dtype=torch.float64)
        self.share = torch.ones(1, dtype=torch.float64)

    def receive(self, x: Tensor) -> Handle:
        return self.node.exchange(self.side, x, x[None].clone())

    def broadcast(self, x: Tensor) -> Tensor:
        return x[None]

    def reduce(self, messages: Tensor) -> Tensor:
        return messages.sum(0)

    def uniform(self, size: int) -> Tensor:
        return torch.full((1, size), 0.5, dtype=torch.float64)

"""Nodes around a node: they count, record or repeat what passes through."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from perron.algorithms.codecs import Encoded
from perron.algorithms.node import Handle, Later, LocalSamples, Node, NodeLinks, Side
from perron.errors import PerronError


class Wrapper(Node):
    """A node that delegates everything to another; subclasses override what they change."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.nodes = node.nodes

    @property
    def step(self) -> int:
        return self.node.step

    @step.setter
    def step(self, step: int) -> None:
        self.node.step = step

    @property
    def unit(self) -> Tensor:
        return self.node.unit

    def pull(self, x: Tensor) -> Handle:
        return self.node.pull(x)

    def push(self, y: Tensor) -> Handle:
        return self.node.push(y)

    def mean(self, x: Tensor) -> Handle:
        return self.node.mean(x)

    def uniform(self) -> Tensor:
        return self.node.uniform()

    def links(self, side: Side) -> NodeLinks:
        return self.node.links(side)

    @property
    def samples(self) -> LocalSamples:
        return self.node.samples


class LinksWrapper(NodeLinks):
    """Links that delegate everything to others; subclasses override what they change."""

    def __init__(self, links: NodeLinks) -> None:
        self.links = links

    @property
    def self_weight(self) -> Tensor:  # type: ignore[override]
        return self.links.self_weight

    @property
    def share(self) -> Tensor:  # type: ignore[override]
        return self.links.share

    def receive(self, x: Tensor) -> Handle:
        return self.links.receive(x)

    def latest(self, x: Tensor, before: Tensor) -> Handle:
        return self.links.latest(x, before)

    def broadcast(self, x: Tensor) -> Tensor:
        return self.links.broadcast(x)

    def reduce(self, messages: Tensor) -> Tensor:
        return self.links.reduce(messages)

    def uniform(self, size: int) -> Tensor:
        return self.links.uniform(size)


class RecordedExchange(Handle):
    """An exchange that was recorded.

    Attributes:
        verb: pull, push or mean.
        sent: the vector that was sent.
        waited: whether the algorithm has waited for it.
    """

    def __init__(self, verb: str, sent: Tensor | Encoded, handle: Handle) -> None:
        self.verb, self.sent, self.waited, self._handle = verb, sent, False, handle

    def wait(self) -> Tensor:
        self.waited = True
        return self._handle.wait()


class Recording(Wrapper):
    """Records every exchange, in order, in ``exchanges``."""

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self.exchanges: list[RecordedExchange] = []

    @property
    def verbs(self) -> list[tuple[str, int]]:
        """The name of each exchange, and the length of the vector that was sent."""
        return [(one.verb, one.sent.shape[-1]) for one in self.exchanges]

    def record(self, verb: str, x: Tensor | Encoded, handle: Handle) -> Handle:
        """Record one exchange."""
        self.exchanges.append(RecordedExchange(verb, x, handle))
        return self.exchanges[-1]

    def pull(self, x: Tensor) -> Handle:
        return self.record("pull", x, self.node.pull(x))

    def push(self, y: Tensor) -> Handle:
        return self.record("push", y, self.node.push(y))

    def mean(self, x: Tensor) -> Handle:
        return self.record("mean", x, self.node.mean(x))

    def links(self, side: Side) -> NodeLinks:
        return _RecordingLinks(self.node.links(side), self, side)


class _RecordingLinks(LinksWrapper):
    def __init__(self, links: NodeLinks, recording: Recording, side: Side) -> None:
        super().__init__(links)
        self._recording, self._side = recording, side

    def latest(self, x: Tensor, before: Tensor) -> Handle:
        return self._recording.record(self._side, x, self.links.latest(x, before))


class Counting(Recording):
    """Counts messages and bytes, per edge and over all edges.

    A pull sends one message along each edge of the pull graph, a push along each edge of the push graph. An average over all
    nodes does not travel along edges; in the totals it is a ring all-reduce, in which each of the n nodes sends 2 (n - 1) times
    an n-th of the vector. Trials are counted as one network.

    Args:
        node: the node whose exchanges are counted.
        number: bytes of one number in full precision; those of the tensor if None.
        block: two lengths; vectors of the first length stand for vectors of the second, of which they are a block.
        link_count: returns the number of edges of a side in a step; without it, totals are not counted.

    Attributes:
        messages, bytes: per edge, for each side.
        total_messages, total_bytes: over all edges, and of averages.
    """

    def __init__(
        self,
        node: Node,
        *,
        number: int | None = None,
        block: tuple[int, int] = (0, 0),
        link_count: Callable[[Side, int], int] = lambda _side, _step: 0,
    ) -> None:
        super().__init__(node)
        self.number, self.block, self.link_count = number, block, link_count
        self.messages: dict[Side, int] = {"pull": 0, "push": 0}
        self.bytes: dict[Side, int] = {"pull": 0, "push": 0}
        self.total_messages = self.total_bytes = 0

    def record(self, verb: str, x: Tensor | Encoded, handle: Handle) -> Handle:
        """Count one exchange."""
        part, whole = self.block
        if isinstance(x, Encoded):
            size = x.nbytes
        else:
            size = (whole if x.shape[-1] == part else x.shape[-1]) * (self.number or x.element_size())
        if verb == "mean":
            self.total_messages += self.nodes * ring_all_reduce(self.nodes)
            self.total_bytes += ring_all_reduce(self.nodes) * size
        else:
            side: Side = "pull" if verb == "pull" else "push"
            edges = self.link_count(side, self.step)
            self.messages[side] += 1
            self.bytes[side] += size
            self.total_messages += edges
            self.total_bytes += edges * size
        return handle

    @property
    def counts(self) -> list[int]:
        """Messages and bytes per edge, and their totals."""
        return [*self.messages.values(), *self.bytes.values(), self.total_messages, self.total_bytes]


def ring_all_reduce(nodes: int) -> int:
    """Return how many messages each node sends in a ring all-reduce, and how many vectors all nodes together."""
    return 2 * (nodes - 1)


class Repeated(Wrapper):
    """Several exchanges for each that an algorithm starts: A^rounds x, or with matrices in turn the product of the next ones.

    The first exchange travels as soon as it is started, the others when it is waited for. In step t, these are numbers
    t rounds to t rounds + rounds - 1 of the node's sequence of matrices; `perron.networks.repeat.repeat` has their products.
    """

    def __init__(self, node: Node, rounds: int) -> None:
        super().__init__(node)
        self.rounds = rounds

    def _exchange(self, verb: Side, x: Tensor) -> Handle:
        first = self.rounds * self.node.step
        handle = self._at(first, verb, x)

        def rest() -> Tensor:
            result = handle.wait()
            for number in range(first + 1, first + self.rounds):
                result = self._at(number, verb, result).wait()
            return result

        return Later(rest)

    def _at(self, number: int, verb: Side, x: Tensor) -> Handle:
        """Start an exchange with the matrix of that number."""
        step, self.node.step = self.node.step, number
        try:
            return self.node.pull(x) if verb == "pull" else self.node.push(x)
        finally:
            self.node.step = step

    def pull(self, x: Tensor) -> Handle:
        return self._exchange("pull", x)

    def push(self, y: Tensor) -> Handle:
        return self._exchange("push", y)

    def links(self, side: Side) -> NodeLinks:
        raise PerronError("Algorithms that handle single messages take one exchange in a step; pass rounds=1.")

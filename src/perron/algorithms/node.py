"""What a node can do in the world it lives in, and wrappers that change or watch it.

An algorithm knows its world only through a `Node`: it starts exchanges (`pull`, `push`, `mean`), each of which returns
a handle, and waits for them when it needs their results. In the simulator one object stands for all nodes at once and
tensors have the node axis at -2; in a process it stands for one node. The algorithm's text is the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from perron.errors import PerronError

Side = Literal["pull", "push"]
IN_FULL = "Algorithms for unreliable links send running sums, in full precision; pass wire=None."


class Handle(ABC):
    """An exchange under way."""

    @abstractmethod
    def wait(self) -> Tensor:
        """Its result, when it is there."""


class Ready(Handle):
    """An exchange that is done already, as in the simulator."""

    __slots__ = ("_result",)

    def __init__(self, result: Tensor) -> None:
        self._result = result

    def wait(self) -> Tensor:
        """The result."""
        return self._result


class Later(Handle):
    """An exchange that is done when it is waited for: what was sent stays as it is until then, so nobody can tell."""

    __slots__ = ("_make", "_result")

    def __init__(self, make: Callable[[], Tensor]) -> None:
        self._make = make
        self._result: Tensor | None = None

    def wait(self) -> Tensor:
        """The result."""
        if self._result is None:
            self._result = self._make()
        return self._result


class Node(ABC):
    """What a node can do: the seam between algorithms and worlds.

    What a pull or a push gives belongs to the algorithm, which may overwrite it; what was sent must not change before that.

    Attributes:
        nodes: n, how many there are.
        step: the number of the step under way.
        unit: this node's unit vector, ``(n,)``; stacked, the identity matrix.
        push_share: n pi_B of this node, ``(1,)``: its share of the mass in the end, where push weights are fixed.
    """

    nodes: int
    step: int

    @property
    @abstractmethod
    def unit(self) -> Tensor:
        """This node's unit vector."""

    @property
    @abstractmethod
    def push_share(self) -> Tensor:
        """This node's n pi_B."""

    @abstractmethod
    def pull(self, x: Tensor) -> Handle:
        """Start the exchange that gives sum_j A[i, j] x_j."""

    @abstractmethod
    def push(self, y: Tensor) -> Handle:
        """Start the exchange that gives sum_j B[i, j] y_j."""

    @abstractmethod
    def mean(self, x: Tensor) -> Handle:
        """Start the exchange that gives the exact average over all nodes (for centralized baselines)."""

    @abstractmethod
    def uniform(self) -> Tensor:
        """A random number in (0, 1) for this node and step, ``(1,)``."""

    @abstractmethod
    def self_weight(self, side: Side) -> Tensor:
        """A[i, i] or B[i, i], ``(1,)``: the share that a node keeps to itself in this step."""

    # ---- single links, for algorithms that reckon with lost and late messages

    @abstractmethod
    def hear(self, side: Side, x: Tensor) -> Handle:
        """Start the exchange that gives what each neighbour sends, unweighted, ``(links, d)``.

        A row for each link that this node hears on, in the order of the neighbours; stacked, ``(..., links of all nodes, d)``.
        """

    def latest(self, side: Side, x: Tensor, before: Tensor) -> Handle:
        """Start the exchange that gives the newest message of each neighbour that has arrived by now, ``(links, d)``.

        Where nothing has arrived lately, what was heard ``before``. On reliable links this is `hear`.
        """
        return self.hear(side, x)

    @abstractmethod
    def inward(self, side: Side, x: Tensor) -> Tensor:
        """This node's own value, on each link that it hears on: ``(d,) -> (links, d)``."""

    @abstractmethod
    def weigh(self, side: Side, heard: Tensor) -> Tensor:
        """sum_j A[i, j] heard_j (or B) over the links that this node hears on: ``(links, d) -> (d,)``."""

    @abstractmethod
    def chances(self, side: Side, size: int) -> Tensor:
        """Random numbers in (0, 1) for each link that this node hears on, for this step, ``(links, size)``."""

    def own(self, vector: Tensor) -> Tensor:
        """This node's own entry of an n-vector that it holds, ``(n,) -> (1,)``."""
        return (vector * self.unit).sum(-1, keepdim=True)


class Wrapper(Node):
    """A node that passes everything on; subclasses change what they are about."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.nodes = node.nodes

    @property
    def step(self) -> int:  # type: ignore[override]
        """As the node within."""
        return self.node.step

    @property
    def unit(self) -> Tensor:
        """As the node within."""
        return self.node.unit

    @property
    def push_share(self) -> Tensor:
        """As the node within."""
        return self.node.push_share

    def pull(self, x: Tensor) -> Handle:
        """As the node within."""
        return self.node.pull(x)

    def push(self, y: Tensor) -> Handle:
        """As the node within."""
        return self.node.push(y)

    def mean(self, x: Tensor) -> Handle:
        """As the node within."""
        return self.node.mean(x)

    def uniform(self) -> Tensor:
        """As the node within."""
        return self.node.uniform()

    def self_weight(self, side: Side) -> Tensor:
        """As the node within."""
        return self.node.self_weight(side)

    def hear(self, side: Side, x: Tensor) -> Handle:
        """As the node within."""
        return self.node.hear(side, x)

    def latest(self, side: Side, x: Tensor, before: Tensor) -> Handle:
        """As the node within."""
        return self.node.latest(side, x, before)

    def inward(self, side: Side, x: Tensor) -> Tensor:
        """As the node within."""
        return self.node.inward(side, x)

    def weigh(self, side: Side, heard: Tensor) -> Tensor:
        """As the node within."""
        return self.node.weigh(side, heard)

    def chances(self, side: Side, size: int) -> Tensor:
        """As the node within."""
        return self.node.chances(side, size)


class Recording(Wrapper):
    """Writes down the verbs in their order, with the last dimension of what was sent."""

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self.verbs: list[tuple[str, int]] = []

    def pull(self, x: Tensor) -> Handle:
        """Record and pass on."""
        self.verbs.append(("pull", x.shape[-1]))
        return self.node.pull(x)

    def push(self, y: Tensor) -> Handle:
        """Record and pass on."""
        self.verbs.append(("push", y.shape[-1]))
        return self.node.push(y)

    def mean(self, x: Tensor) -> Handle:
        """Record and pass on."""
        self.verbs.append(("mean", x.shape[-1]))
        return self.node.mean(x)

    def latest(self, side: Side, x: Tensor, before: Tensor) -> Handle:
        """Record and pass on."""
        self.verbs.append((side, x.shape[-1]))
        return self.node.latest(side, x, before)


class Counting(Wrapper):
    """Counts what travels along each edge: messages and bytes of all pulls and all pushes so far.

    A pull sends one message along each edge of the pull graph, a push along each edge of the push graph; a trial counts
    as one network. ``wire`` is the number of bytes of an entry on the wire, if not that of the tensor. ``stands_for`` are two
    lengths: vectors of the first stand for vectors of the second (of which they are a stripe).
    """

    def __init__(self, node: Node, *, wire: int | None = None, stands_for: tuple[int, int] = (0, 0)) -> None:
        super().__init__(node)
        self.wire, self.stands_for = wire, stands_for
        self.messages: dict[Side, int] = {"pull": 0, "push": 0}  # along each edge
        self.bytes: dict[Side, int] = {"pull": 0, "push": 0}

    def _count(self, side: Side, x: Tensor) -> None:
        self.messages[side] += 1
        short, full = self.stands_for
        self.bytes[side] += (full if x.shape[-1] == short else x.shape[-1]) * (self.wire or x.element_size())

    def pull(self, x: Tensor) -> Handle:
        """Count and pass on."""
        self._count("pull", x)
        return self.node.pull(x)

    def push(self, y: Tensor) -> Handle:
        """Count and pass on."""
        self._count("push", y)
        return self.node.push(y)

    def latest(self, side: Side, x: Tensor, before: Tensor) -> Handle:
        """Count and pass on."""
        self._count(side, x)
        return self.node.latest(side, x, before)


class Quantized(Wrapper):
    """Messages in few bits: bf16 (truncated floats) or int8 (a scale for each message, 255 levels).

    What a node keeps to itself stays exact; what a push loses by rounding stays with the sender, so that mass is
    conserved to the last bit of the full format.
    """

    def __init__(self, node: Node, wire: Literal["bf16", "int8"] = "bf16") -> None:
        super().__init__(node)
        if wire not in ("bf16", "int8"):
            raise ValueError(f"Quantized knows the wires 'bf16' and 'int8'; got {wire!r}.")
        self.wire = wire

    def _rounded(self, x: Tensor) -> Tensor:
        if self.wire == "bf16":
            return x.to(torch.bfloat16).to(x.dtype)
        scale = x.abs().amax(-1, keepdim=True).clamp_min(torch.finfo(x.dtype).tiny) / 127
        return (x / scale).round() * scale

    def pull(self, x: Tensor) -> Handle:
        """With rounded messages."""
        sent = self._rounded(x)
        return Ready(self.node.pull(sent).wait() + self.node.self_weight("pull") * (x - sent))

    def push(self, y: Tensor) -> Handle:
        """With rounded messages."""
        sent = self._rounded(y)
        return Ready(self.node.push(sent).wait() + (y - sent))

    def latest(self, side: Side, x: Tensor, before: Tensor) -> Handle:
        """Not in few bits: who counts on the newest message alone sends sums, of which rounding would leave nothing."""
        raise PerronError(IN_FULL)

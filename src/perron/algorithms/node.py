"""What an algorithm can ask of its node: the interface between algorithms and the simulator or the processes.

An algorithm starts exchanges (`pull`, `push`, `mean`), each of which returns a handle, and waits for a handle when it needs
the result. In the simulator one object stands for all nodes at once, and tensors have the node axis at -2; in a process it
stands for one node. The text of the algorithm is the same for both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Literal

from torch import Tensor

from perron.errors import PerronError
from perron.random import Keyed

Side = Literal["pull", "push"]
SIDES: tuple[Side, Side] = ("pull", "push")
NO_SAMPLES = (
    "The algorithm asks for gradients of chosen samples, which are not available here. Run it with `simulate` or "
    "`perron.distributed.iterates` on a problem that is a sum over samples (with `sample_counts`). Optimizers, theory and advice "
    "need an algorithm that takes any stochastic gradient, such as PushPull."
)


class Handle(ABC):
    """An exchange in flight."""

    @abstractmethod
    def wait(self) -> Tensor:
        """Wait for the exchange and return its result."""


class Ready(Handle):
    """An exchange whose result is known."""

    __slots__ = ("_result",)

    def __init__(self, result: Tensor) -> None:
        self._result = result

    def wait(self) -> Tensor:
        return self._result


class Later(Handle):
    """An exchange that is computed when it is waited for; what was sent does not change until then."""

    __slots__ = ("_compute", "_result")

    def __init__(self, compute: Callable[[], Tensor]) -> None:
        self._compute = compute
        self._result: Tensor | None = None

    def wait(self) -> Tensor:
        if self._result is None:
            self._result = self._compute()
            del self._compute  # it may refer to the state before the step
        return self._result


class NodeLinks:
    """The incoming links of a node on one side and in one step, for algorithms that handle single messages.

    Rows of ``(links, d)`` tensors are in the order of the senders; stacked over all nodes, ``(..., links of all nodes, d)``.
    An implementation overrides what it supports; the rest is refused here.

    Attributes:
        self_weight: A[i, i] or B[i, i], ``(1,)``.
        share: n pi_B[i], ``(1,)``: the limit of this node's push-sum weight, where push weights are fixed.
    """

    self_weight: Tensor
    share: Tensor

    def receive(self, x: Tensor) -> Handle:
        """Start the exchange that gives the unweighted message of each neighbor, ``(d,) -> (links, d)``."""
        raise self._refused()

    def latest(self, x: Tensor, before: Tensor) -> Handle:
        """Start the exchange that gives the newest message of each neighbor that has arrived so far, ``(links, d)``.

        ``before`` is returned where nothing new has arrived. On reliable links this is `receive`.
        """
        return self.receive(x)

    def broadcast(self, x: Tensor) -> Tensor:
        """Return this node's value once per link, ``(d,) -> (links, d)``."""
        raise self._refused()

    def reduce(self, messages: Tensor) -> Tensor:
        """Return the weighted sum over the links, ``(links, d) -> (d,)``; the node's own share is not part of it."""
        raise self._refused()

    def uniform(self, size: int) -> Tensor:
        """Return random numbers in (0, 1) for each link and this step, ``(links, size)``."""
        raise self._refused()

    def _refused(self) -> PerronError:
        return PerronError(
            f"{type(self).__name__} does not give access to single links. Use `simulate` or processes, or an algorithm that "
            "needs pull and push only."
        )


class LocalSamples:
    """The samples of a node in the current step, for algorithms that yield a `perron.algorithms.base.Query`.

    Args:
        counts: m_i, ``(1,)``; stacked over all nodes, ``(n, 1)``.
        random: keyed random numbers of the node.
        step: number of the current step.
    """

    def __init__(self, counts: Tensor, random: Keyed, step: int) -> None:
        self.counts, self._random, self._step = counts, random, step

    def draw(self, size: int, number: int = 0) -> Tensor:
        """Return ``size`` samples, drawn uniformly with replacement, ``(size,)``; ``number`` separates the draws of one step."""
        return self._random.stream(number).integers(self._step, size, self.counts)


class Node(ABC):
    """A node as an algorithm sees it.

    The result of a pull or push belongs to the algorithm, which may overwrite it; what was sent must not change before that.
    Nodes of the simulator and of processes also exchange a `perron.algorithms.codecs.Encoded` vector.

    Attributes:
        nodes: number of nodes, n.
        step: number of the current step.
        unit: this node's unit vector, ``(n,)``; stacked, the identity matrix.
    """

    nodes: int
    step: int

    @property
    @abstractmethod
    def unit(self) -> Tensor: ...

    @abstractmethod
    def pull(self, x: Tensor) -> Handle:
        """Start the exchange that gives sum_j A[i, j] x_j."""

    @abstractmethod
    def push(self, y: Tensor) -> Handle:
        """Start the exchange that gives sum_j B[i, j] y_j."""

    @abstractmethod
    def mean(self, x: Tensor) -> Handle:
        """Start the exchange that gives the exact average over all nodes, for centralized baselines."""

    @abstractmethod
    def uniform(self) -> Tensor:
        """Return a random number in (0, 1) for this node and step, ``(1,)``."""

    @abstractmethod
    def links(self, side: Side) -> NodeLinks:
        """Return the incoming links on one side in this step."""

    @property
    def samples(self) -> LocalSamples:
        """The samples of this node in this step."""
        raise PerronError(NO_SAMPLES)

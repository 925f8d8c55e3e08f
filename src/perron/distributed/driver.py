"""Running the generator of an algorithm in an optimizer: it is sent gradients, and yields the points of the next ones."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from perron.algorithms.base import Algorithm, Partial, Query
from perron.algorithms.node import NO_SAMPLES, Node
from perron.algorithms.wrappers import Repeated
from perron.distributed.collective import recovery_from
from perron.distributed.flat_parameters import FlatParameters
from perron.distributed.node import DistributedNode
from perron.errors import NetworkError, PerronError

if TYPE_CHECKING:
    from perron.distributed.elastic.recovery import Recovery


class Driver(torch.optim.Optimizer):
    """The part of `Decentralized` that runs the algorithm on this node."""

    algorithm: Algorithm
    _running_algorithm: Algorithm  # with quantized messages
    algorithm_state: Any = None
    last: Tensor  # the last gradient
    node: DistributedNode
    gradients_received: int = 0
    _flat: FlatParameters
    _settings: dict[str, Any]
    _recovery: Recovery | None
    _running: Any = None
    _progress: dict[str, Tensor] | None = None  # of the step that has begun, if it can be saved
    _failure: PerronError | None = None
    _calls: int = 0

    @property
    def steps(self) -> int:
        """The number of steps done; equal on all nodes whenever they exchange."""
        return self.node.step

    @property
    def _world(self) -> Node:
        """The node as the algorithm sees it."""
        rounds = self._settings["rounds"]
        return self.node if rounds == 1 else Repeated(self.node, rounds)

    @property
    def _model(self) -> Tensor:
        """This node's model; within a round of local steps, where it has come to."""
        inside = self._progress if self.gradients_received else None
        point: Tensor = self.algorithm_state.x if inside is None else inside.get("point", self.algorithm_state.x)
        return point

    def _advance(self, grad: Tensor) -> None:
        """Give the algorithm one gradient; if a node is lost, recover and repeat."""
        if self._failure is not None:
            raise self._failure
        step = self.steps
        try:
            self._send(grad)
        except NetworkError as error:
            recovery_from(self, error).repeat_step(grad, step, error)
        except Exception as error:  # the step is abandoned
            ended = PerronError(
                f"Step {step} ended with an error and cannot be continued: {type(error).__name__}: {error}"
            )
            self._failure = error if isinstance(error, PerronError) else ended
            raise
        if self._recovery is not None:
            self._recovery.membership.stepped()
        self._calls += 1

    def _send(self, grad: Tensor) -> None:
        self._flat.learning_rates(self.param_groups)  # a scheduler may have changed them after the step began
        if self._running is None:  # after close
            self._begin(self._progress if self.gradients_received else None)
        self.last = grad
        try:
            point = self._running.send(grad)
            self.gradients_received += 1
            self._show(point)
        except StopIteration as done:
            self.algorithm_state, self.gradients_received = done.value, 0
            self.node.step += 1
            self._begin()

    def _start(self, x: Tensor, *, resume: bool = False) -> None:
        """Restart the algorithm from the model x; ``resume`` keeps what its move remembers of the gradients."""
        before, first = self.algorithm_state, self._running_algorithm.init(x, self._world)
        if not resume or before is None:
            self.state.clear()
        if resume:
            first = self._running_algorithm.resume(first if before is None else before, x, self._world)
        self.algorithm_state = first
        self.last, self.gradients_received = torch.zeros_like(x), 0

    def _begin(self, progress: dict[str, Tensor] | None = None) -> None:
        """Run the next step up to the point at which it needs a gradient; given its progress, up to where it was."""
        rates = self._flat.learning_rates(self.param_groups)
        more: Any = {} if progress is None else {"progress": progress}
        self._running = self._running_algorithm.step(self.algorithm_state, self._world, rates, **more)
        try:
            point = next(self._running)
        except StopIteration:
            raise PerronError(f"{self.algorithm.about.title} uses no gradients: it is no optimizer.") from None
        self._show(point)

    def _show(self, point: Tensor | Query | Partial) -> None:
        """Post the exchanges, and put the point of the next gradient into the model."""
        self._progress = point.progress if isinstance(point, Partial) else None
        if isinstance(point, Partial):
            point = point.point
        if isinstance(point, Query):
            raise PerronError(NO_SAMPLES)
        self.node.flush()
        self._flat.show(point)

    def _settle(self) -> None:
        """Wait for the messages in flight, and leave the step that has begun; from its progress it can be continued."""
        running, self._running = self._running, None
        if self._progress is None:
            self.gradients_received = 0
        if running is not None and self._failure is None:
            with nullcontext() if self._recovery is None else suppress(NetworkError):  # the next step recovers
                self.node.drain()

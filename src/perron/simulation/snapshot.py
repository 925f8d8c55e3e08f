"""What is known after a step of a simulation, from which metrics are computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from perron._typing import FloatArray
from perron.algorithms.base import Algorithm
from perron.algorithms.node import SIDES, Side
from perron.errors import PerronError
from perron.networks.facts import Network
from perron.networks.mixing import Mixing
from perron.problems.base import Problem

T = TypeVar("T")


class Traffic(NamedTuple):
    """Messages and bytes that one edge of the pull graph and one of the push graph have carried, and totals over all edges."""

    pulls: int = 0
    pushes: int = 0
    pull_bytes: int = 0
    push_bytes: int = 0
    messages: int = 0
    bytes: int = 0


def converted_traffic(counts: Mapping[str, Mapping[Side, int]], mixing: Mixing) -> Traffic:
    """Convert counts per edge, as checkpoints of version 0.1 have them, with the mean number of edges per step."""

    def total(each: Mapping[Side, int]) -> int:
        steps = range(mixing.period)
        links = {side: sum(mixing.link_count(side, step) for step in steps) for side in SIDES if each[side]}
        return sum(each[side] * links[side] for side in links) // len(steps)

    edges = [counts[kind][side] for kind in ("messages", "bytes") for side in SIDES]
    return Traffic(*[*edges, total(counts["messages"]), total(counts["bytes"])])


class Snapshot(NamedTuple):
    """Everything that is known after a step.

    Attributes:
        previous: the state before the step; None at the start, and for large models unless a metric needs it.
        grads: the stochastic gradients of the step, ``(trials, n, d)`` each, of large models the last only; empty at the start,
            and for algorithms that choose samples themselves.
        lr: the learning rate of the step.
        traffic: messages and bytes so far.
        network: the network of a whole step, which with several rounds has the products of the matrices.
        notes: results that metrics share, see `once`.
        gradients: how many gradients a node has evaluated so far, on average: of single samples, where the problem has samples.
        times: when each node had done the step, on the run's clock; ``(trials, n)``, with one row or column for equal ones. None
            without a clock.
    """

    step: int
    state: Any
    previous: Any
    grads: Sequence[Tensor]
    lr: float | Tensor
    traffic: Traffic
    problem: Problem
    algorithm: Algorithm
    network: Network
    notes: dict[str, Any] | None = None
    gradients: float = 0.0
    times: FloatArray | None = None

    def once(self, name: str, make: Callable[[], T]) -> T:
        """Return a result that several metrics share, computed by the first of them."""
        if self.notes is None:
            return make()
        if name not in self.notes:
            self.notes[name] = make()
        result: T = self.notes[name]
        return result

    @property
    def average(self) -> Tensor:
        """x-hat, ``(trials, d)``."""
        return self.algorithm.average(self.state, self.network)

    @property
    def gradient(self) -> Tensor:
        """The last gradients that the algorithm has used, or its own estimates of them, ``(trials, n, d)``."""
        if not self.grads and "grad" not in self.state._fields:
            raise PerronError(f"{self.algorithm.about.title} keeps no gradients; leave out metrics that need them.")
        return self.grads[-1] if self.grads else self.state.grad

    @property
    def seconds(self) -> Tensor:
        """When the last node had done the step, ``(trials,)``."""
        return self._over_nodes(np.max)

    @property
    def first_seconds(self) -> Tensor:
        """When the first node had done the step, ``(trials,)``."""
        return self._over_nodes(np.min)

    def _over_nodes(self, extremum: Callable[..., FloatArray]) -> Tensor:
        if self.times is None:
            raise PerronError("Seconds need a clock: pass clock= to simulate, or a table [clock] to a study.")
        return torch.from_numpy(extremum(self.times, axis=-1)).expand(self.state.x.shape[0])

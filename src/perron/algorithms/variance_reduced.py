"""Variance reduction: exact linear convergence with single samples, where f_i = (1/m_i) sum_l f_i,l over the samples of a node.

A method asks for gradients as always; what it is sent is an estimate whose noise vanishes as the models converge.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from perron.algorithms.base import About, Algorithm, Query, Rate, Step
from perron.algorithms.moves import Memory
from perron.algorithms.node import Node
from perron.algorithms.push_only import ADDOPT
from perron.algorithms.push_pull import PushPull
from perron.algorithms.states import extend
from perron.algorithms.undirected import GradientTracking
from perron.errors import PerronError
from perron.networks.facts import Network

Estimate = Generator[Query, Tensor, tuple[Tensor, Memory]]
QXKK, XKK = "Qureshi, Xin, Kar & Khan", "Xin, Khan & Kar"
PUSH_PULL, ADD_OPT, TRACKING = PushPull(), ADDOPT(), GradientTracking()
PUBLISHED: dict[tuple[str, Algorithm], tuple[str, str]] = {  # title and reference, by estimator and method
    ("SAGA", PUSH_PULL): ("AB-SAGA", f"{QXKK} 2022"),
    ("SAGA", ADD_OPT): ("Push-SAGA", f"{QXKK} 2021"),
    ("SAGA", TRACKING): ("GT-SAGA", f"{XKK} 2020"),
    ("SVRG", PUSH_PULL): ("AB-SVRG", f"after {XKK} 2020"),
    ("SVRG", TRACKING): ("GT-SVRG", f"{XKK} 2020"),
}


@dataclass(frozen=True, kw_only=True)
class VarianceReduced(Algorithm):
    """Base of `SAGA` and `SVRG`: a method whose gradients are replaced by estimates.

    The state is that of the method, and the fields that the estimates need.
    """

    method: Algorithm = PUSH_PULL
    batch: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch < 1:
            raise PerronError(f"{type(self).__name__} draws 1 sample or more in a step; got batch={self.batch}.")
        if self.method.about.family == "gossip" or self.method.about.samples:
            raise PerronError(
                f"{type(self).__name__} needs a method that asks for stochastic gradients, as PushPull(); "
                f"got {self.method.about.title}."
            )

    @property
    def about(self) -> About:
        kind, base = type(self).__name__, self.method.about
        title, reference = PUBLISHED.get((kind, self.method), (f"{base.title} with {kind}", base.reference))
        return About(
            title=title, family=base.family, matrices=base.matrices, exact=base.exact, reference=reference,
            speedup=base.speedup, robust=base.robust, samples=True, varying=base.varying,
        )  # fmt: skip

    @abstractmethod
    def memory(self, x: Tensor, node: Node) -> Memory:
        """Return the initial values of the fields that estimates need."""

    @abstractmethod
    def estimate(self, point: Tensor, state: Any, node: Node, number: int) -> Estimate:
        """Yield queries, and return the estimate of the gradient at a point and the new fields.

        ``state`` has the fields; ``number`` counts the gradients of the step.
        """

    def init(self, x: Tensor, node: Node) -> Any:
        return extend(self.method.init(x, node), self.memory(x, node))

    def step(self, state: Any, node: Node, lr: Rate) -> Step:
        running: Generator[Tensor, Tensor, Any] = self.method.step(state, node, lr)  # type: ignore[assignment]
        number = 0
        point = next(running)
        while True:
            grad, memory = yield from self.estimate(point, state, node, number)
            state, number = state._replace(**memory), number + 1
            try:
                point = running.send(grad)
            except StopIteration as done:
                return extend(done.value, memory)

    def average(self, state: Any, network: Network) -> Tensor:
        return self.method.average(state, network)

    def effective_step(self, network: Network) -> float:
        return self.method.effective_step(network)

    def conserved(self, state: Any, network: Network) -> dict[str, Tensor]:
        return self.method.conserved(state, network)

    def check(self, network: Network) -> None:
        self.method.check(network)

    def with_l1(self, l1: float) -> Algorithm:
        return replace(self, method=self.method.with_l1(l1))

    def default_lr(self, network: Network, smoothness: float) -> float:
        """That of the method."""
        return self.method.default_lr(network, smoothness)


@dataclass(frozen=True, kw_only=True)
class SAGA(VarianceReduced):
    """A method with SAGA's estimates: AB-SAGA with `PushPull`, Push-SAGA with `ADDOPT`, GT-SAGA with `GradientTracking`.

    AB-SAGA:    g = grad_s(x) - T_s + mean(T)   T_s+ = grad_s(x)   y = B y + g - g_prev   x+ = A x - lr y
    Push-SAGA:  g = grad_s(x) - T_s + mean(T)   T_s+ = grad_s(x)   y = B y + g - g_prev   u+ = B u - lr y   v+ = B v   x = u / v
    GT-SAGA:    g = grad_s(x) - T_s + mean(T)   T_s+ = grad_s(x)   y = W y + g - g_prev   x+ = W x - lr y

    where s is a sample of the node, drawn uniformly in every step, grad_s its gradient, and T the node's table of the last
    gradient of each of its m_i samples. From y = g_prev = 0; in the first step g is the exact gradient, and fills the table. The
    publications start with y = grad f_i(x) and then update the model first, which is the same.

    With a ``batch`` of b samples, drawn with replacement, g has the mean of grad_s(x) - T_s over them. Conserves what the method
    does, with g in the place of the gradient: 1^T y = 1^T g. The table takes m_i d numbers, and a step overwrites b of its rows.

    Args:
        method: an algorithm that asks for stochastic gradients.
        batch: b.

    References: Qureshi, Xin, Kar & Khan 2022 (AB-SAGA) and 2021 (Push-SAGA); Xin, Khan & Kar 2020 (GT-SAGA); Defazio, Bach &
    Lacoste-Julien 2014 (SAGA).
    """

    overwritten: ClassVar[tuple[str, ...]] = ("table",)

    def memory(self, x: Tensor, node: Node) -> Memory:
        """An empty table, padded with zeros if the nodes have different numbers of samples."""
        most = int(node.samples.counts.max())
        return {"table": x.new_zeros(*x.shape[:-1], most, x.shape[-1]), "table_sum": torch.zeros_like(x)}

    def estimate(self, point: Tensor, state: Any, node: Node, number: int) -> Estimate:
        table, counts = state.table, node.samples.counts
        if node.step == number == 0:
            every = torch.arange(table.shape[-2], device=table.device).expand(table.shape[:-1])
            grads = yield Query(point, every.minimum(counts - 1))
            table = grads * (every < counts).unsqueeze(-1)
            total = table.sum(-2)
            return total / counts, {"table": table, "table_sum": total}
        samples = node.samples.draw(self.batch, number)
        new = yield Query(point, samples)
        rows = samples.unsqueeze(-1).expand_as(new)
        change = new - table.gather(-2, rows)
        grad = change.mean(-2) + state.table_sum / counts
        table.scatter_(-2, rows, new)
        if self.batch > 1:  # a sample that was drawn twice changes the sum once
            again = (samples.unsqueeze(-1) == samples.unsqueeze(-2)).tril(-1).any(-1)
            change = change.masked_fill(again.unsqueeze(-1), 0)
        return grad, {"table": table, "table_sum": state.table_sum + change.sum(-2)}

    def conserved(self, state: Any, network: Network) -> dict[str, Tensor]:
        return super().conserved(state, network) | {"table_sum - sum of table": state.table_sum - state.table.sum(-2)}


@dataclass(frozen=True, kw_only=True)
class SVRG(VarianceReduced):
    """A method with SVRG's estimates: AB-SVRG with `PushPull`, GT-SVRG with `GradientTracking`.

    AB-SVRG:  g = grad_s(x) - grad_s(w) + grad(w)   y = B y + g - g_prev   x+ = A x - lr y
    GT-SVRG:  g = grad_s(x) - grad_s(w) + grad(w)   y = W y + g - g_prev   x+ = W x - lr y

    where s is a sample of the node, drawn uniformly in every step, grad_s its gradient, and w the model of the node at the last
    step whose number is a multiple of ``period``, when g is the exact gradient. From y = g_prev = 0. The publication starts with
    y = grad f_i(x) and then updates the model first, which is the same.

    It needs no table, but two gradients of samples per step, and one of all samples per period. With a ``batch`` of b samples,
    drawn with replacement, g has the mean of grad_s(x) - grad_s(w) over them.

    Args:
        method: an algorithm that asks for stochastic gradients.
        batch: b.
        period: steps from one exact gradient to the next; about m_i / b or more keeps its cost small.

    References: Xin, Khan & Kar 2020 (GT-SVRG); Johnson & Zhang 2013 (SVRG). AB-SVRG is GT-SVRG with A and B in the places of W.
    """

    period: int = 1000

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.period < 1:
            raise PerronError(f"SVRG needs a period of 1 step or more; got period={self.period}.")

    def memory(self, x: Tensor, node: Node) -> Memory:
        """The kept point and its gradient; the first step replaces both."""
        _ = node.samples  # refused where there are none
        return {"kept": x, "kept_grad": torch.zeros_like(x)}

    def estimate(self, point: Tensor, state: Any, node: Node, number: int) -> Estimate:
        if number == 0 and node.step % self.period == 0:
            grad = yield Query(point)
            return grad, {"kept": point, "kept_grad": grad}
        samples = node.samples.draw(self.batch, number)
        new = yield Query(point, samples)
        old = yield Query(state.kept, samples)
        return (new - old).mean(-2) + state.kept_grad, {"kept": state.kept, "kept_grad": state.kept_grad}

"""Push-Pull: models are pulled with a row-stochastic A, gradient trackers pushed with a column-stochastic B."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from perron.algorithms.base import About, Algorithm, Rate, Step
from perron.algorithms.moves import Moving
from perron.algorithms.node import Node
from perron.algorithms.requirements import check_momentum
from perron.algorithms.states import extend
from perron.algorithms.trackers import Late, begun
from perron.errors import PerronError
from perron.networks.facts import Network


class TrackerState(NamedTuple):
    """Model, gradient tracker, and the gradient that the tracker contains last."""

    x: Tensor
    y: Tensor
    grad: Tensor


class LateTrackerState(NamedTuple):
    """`TrackerState`, and 1 once the first step is done."""

    x: Tensor
    y: Tensor
    grad: Tensor
    begun: Tensor


@dataclass(frozen=True, kw_only=True)
class PushPull(Moving):
    """Push-Pull, also known as AB; with noisy gradients SAB.

    cta:  y = B y + grad(x) - grad(x_prev)      x+ = A x - lr y             (the paper's; both exchanges overlap)
    pu:   y = B y + grad(x) - grad(x_prev)      x+ = A (x - lr y)           (Pu et al.; y overlaps)
    atc:  y = B (y + grad(x) - grad(x_prev))    x+ = A (x - lr y)           (nothing overlaps)

    from y = grad(x_prev) = 0, so that the first step has y = grad(x); with plain descent ``atc`` does not mix this first y, as
    published (`perron.algorithms.trackers`). Needs a common root of the two graphs, as strongly connected graphs have. Conserves
    1^T y = 1^T grad. x-hat = pi_A^T x follows SGD with the step c lr and the residual eps = -lr pi_A^T (I - B_inf) y, which
    does not vanish under noise, but does so identically where A is doubly stochastic. The step may differ between nodes.

    With another ``move``, its displacement along y takes the place of -lr y. For moves that depend on the scale of y it is along
    y / w, where w is y's `perron.algorithms.moves.Weight`, one more number in the message; 1^T w = n.

    References: Xin & Khan 2018 (AB); Pu, Shi, Xu & Nedic 2021 (Push-Pull); Xin, Sahu, Khan & Kar 2019 (SAB).
    """

    order: Literal["cta", "pu", "atc"] = "cta"

    @property
    def about(self) -> About:
        return About(
            title=self.titled(
                {"cta": "Push-Pull (AB, SAB)", "pu": "Push-Pull, Pu's order", "atc": "Push-Pull, ATC"}[self.order]
            ),
            family="push-pull", matrices="A B", exact=True,
            reference={"cta": "Xin & Khan 2018", "pu": "Pu, Shi, Xu & Nedic 2021", "atc": "as Aug-DGM"}[self.order],
        )  # fmt: skip

    def init(self, x: Tensor, node: Node) -> Any:
        """y = grad = 0, so that the first step finds y = grad(x)."""
        zero = torch.zeros_like(x)
        if self.order == "atc":
            return self.begin(LateTrackerState(x, y=zero, grad=zero, begun=begun(self, x)))
        return self.begin(TrackerState(x, y=zero, grad=zero))

    def step(self, state: Any, node: Node, lr: Rate) -> Step:
        if self.order == "cta":
            pulled = node.pull(state.x)
            pushed, weight = node.push(state.y), self.weigh(state, node.push)
            grad = yield state.x  # both messages travel while the gradient is computed
            y = pushed.wait() + grad - state.grad
            x, memory = self.displace(state, y, lr, weight, base=pulled.wait())
            return extend(TrackerState(x, y, grad), memory)
        if self.order == "pu":
            pushed, weight = node.push(state.y), self.weigh(state, node.push)
            grad = yield state.x
            y = pushed.wait() + grad - state.grad
            dx, memory = self.displace(state, y, lr, weight)
            return extend(TrackerState(node.pull(state.x + dx).wait(), y, grad), memory)
        grad = yield state.x
        late = Late(node.push, state.y + grad - state.grad, state.begun)
        weight = self.weigh(state, node.push, late=True)
        y = late.wait()
        dx, memory = self.displace(state, y, lr, weight)
        x = node.pull(state.x + dx).wait()
        return extend(LateTrackerState(x, y, grad, torch.ones_like(state.begun)), memory)

    def conserved(self, state: Any, network: Network) -> dict[str, Tensor]:
        return {"1'y - 1'grad": (state.y - state.grad).sum(-2)} | weights_sum(state)


@dataclass(frozen=True, kw_only=True)
class PushPullUpdate(Moving):
    """Base of the methods whose update is Push-Pull's, on matrices of another kind."""

    @cached_property
    @abstractmethod
    def _push_pull(self) -> PushPull:
        """Push-Pull in the order of the method, with its move."""

    def init(self, x: Tensor, node: Node) -> Any:
        """As Push-Pull."""
        return self._push_pull.init(x, node)

    def step(self, state: Any, node: Node, lr: Rate) -> Step:
        return (yield from self._push_pull.step(state, node, lr))

    def conserved(self, state: Any, network: Network) -> dict[str, Tensor]:
        return self._push_pull.conserved(state, network)


def weights_sum(state: Any) -> dict[str, Tensor]:
    """1^T w = n, once there is a w."""
    return {"1'w - n": (state.w - state.one).sum(-2)} if "w" in state._fields else {}


class MomentumState(NamedTuple):
    """Model, previous model, the point of the next gradient, tracker and its last gradient."""

    x: Tensor
    previous: Tensor
    ahead: Tensor
    y: Tensor
    grad: Tensor


@dataclass(frozen=True, kw_only=True)
class AcceleratedPushPull(Algorithm):
    """Push-Pull with heavy ball (``heavy``: ABm), Nesterov (``nesterov``: ABN) or both (APP).

    y = B y + grad(s) - grad(s_prev)     x+ = A s - lr y + heavy (x - x_prev)     s+ = x+ + nesterov (x+ - x)

    from s = x and y = grad(s_prev) = 0. In the long run x-hat moves with the step c lr / (1 - heavy - nesterov). On a directed
    network too much momentum is unstable for EVERY step size: all roots of r^2 - ((1+nesterov) l + heavy) r
    + (nesterov l + heavy) must lie in the unit disc for each eigenvalue l of A but 1, which `check` checks, also on networks that
    vary in time. `PushPull` with the move `perron.Momentum` has no such limit.

    References: Xin & Khan 2020 (ABm); Xin, Jakovetic & Khan 2019 (ABN); Nguyen, Nguyen & Nedic 2023 (the combination is
    our reading of its abstract).
    """

    heavy: float = 0.2
    nesterov: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.heavy >= 0 and self.nesterov >= 0 and self.heavy + self.nesterov < 1):
            raise PerronError(
                f"Momentum needs heavy >= 0, nesterov >= 0 and heavy + nesterov < 1; got heavy={self.heavy}, "
                f"nesterov={self.nesterov}."
            )

    @property
    def about(self) -> About:
        name = "APP" if self.heavy and self.nesterov else "ABm" if self.heavy else "ABN"
        kind = {"APP": "heavy ball and Nesterov", "ABm": "heavy ball", "ABN": "Nesterov"}[name]
        source = {"APP": "Nguyen, Nguyen & Nedic 2023", "ABm": "Xin & Khan 2020", "ABN": "Xin, Jakovetic & Khan 2019"}
        return About(
            title=f"{name} (Push-Pull, {kind})", family="push-pull", matrices="A B", exact=True,
            reference=source[name],
        )  # fmt: skip

    def init(self, x: Tensor, node: Node) -> MomentumState:
        """Start at rest."""
        zero = torch.zeros_like(x)
        return MomentumState(x, previous=x, ahead=x, y=zero, grad=zero)

    def step(self, state: MomentumState, node: Node, lr: Rate) -> Step:
        pulled = node.pull(state.ahead)
        pushed = node.push(state.y)
        grad = yield state.ahead
        y = pushed.wait() + grad - state.grad
        x = pulled.wait() - lr * y + self.heavy * (state.x - state.previous)
        return MomentumState(x, state.x, x + self.nesterov * (x - state.x), y, grad)

    def conserved(self, state: MomentumState, network: Network) -> dict[str, Tensor]:
        return {"1'y - 1'grad": (state.y - state.grad).sum(-2)}

    def check(self, network: Network) -> None:
        super().check(network)
        check_momentum(self.about.title, network, self.heavy, self.nesterov)

    def effective_step(self, network: Network) -> float:
        """c / (1 - heavy - nesterov), in the long run."""
        return super().effective_step(network) / (1 - self.heavy - self.nesterov)

    def default_lr(self, network: Network, smoothness: float) -> float:
        """The default step of Push-Pull, divided by the gain of momentum."""
        return super().default_lr(network, smoothness) * (1 - self.heavy - self.nesterov)


class ConstrainedState(NamedTuple):
    """Model, multiplier, their trackers, and what the trackers contain last."""

    x: Tensor
    multiplier: Tensor
    y: Tensor
    z: Tensor
    grad: Tensor
    value: Tensor


@dataclass(frozen=True, kw_only=True)
class ConstrainedPushPull(Algorithm):
    """Push-Pull for min sum_i f_i(x) subject to sum_i c_i(x) <= 0 and x in a set X (primal-dual).

    y = B y + G - G_prev     z = B z + c(x) - c(x_prev)     x+ = P(A x - lr y)     m+ = max(0, A m + lr z)

    with G_i = grad f_i(x_i) + J_i(x_i)^T m_i, the gradient of the Lagrangian, from m = y = z = G_prev = c(x_prev) = 0.

    Args:
        constraint: ``(x, node) -> c(x)``, each node's own part, ``(..., d) -> (..., constraints)``; differentiable.
            What differs between nodes is stacked ``(n, ...)`` and picked with ``node.unit``, see the example.
        constraints: number of constraints.
        project: the projection P onto X; None without such a set.

    Reference: after Gong & Zhang 2023, our reconstruction from its abstract.
    """

    constraint: Callable[[Tensor, Node], Tensor] | None = None
    constraints: int = 0
    project: Callable[[Tensor], Tensor] | None = None

    @property
    def about(self) -> About:
        return About(
            title="Constrained Push-Pull", family="push-pull", matrices="A B", exact=True,
            reference="after Gong & Zhang 2023", speedup=False,
        )  # fmt: skip

    def init(self, x: Tensor, node: Node) -> ConstrainedState:
        """Start without a multiplier, tracking nothing."""
        zero, none = torch.zeros_like(x), x.new_zeros(*x.shape[:-1], self.constraints)
        return ConstrainedState(x, multiplier=none, y=zero, z=none, grad=zero, value=none)

    def step(self, state: ConstrainedState, node: Node, lr: Rate) -> Step:
        pulled = node.pull(state.x)
        pushed = node.push(state.y)
        if self.constraint is not None:
            pulled_multiplier = node.pull(state.multiplier)
            pushed_value = node.push(state.z)
        grad = yield state.x
        multiplier, z, value = state.multiplier, state.z, state.value
        if self.constraint is not None:
            with torch.enable_grad():
                point = state.x.detach().requires_grad_()
                at_point = self.constraint(point, node)
                (pullback,) = torch.autograd.grad(at_point, point, state.multiplier)
            grad, value = grad + pullback, at_point.detach()
            z = pushed_value.wait() + value - state.value
            multiplier = (pulled_multiplier.wait() + lr * z).clamp_min(0)
        y = pushed.wait() + grad - state.grad
        x = pulled.wait() - lr * y
        return ConstrainedState(self.project(x) if self.project else x, multiplier, y, z, grad, value)

    def conserved(self, state: ConstrainedState, network: Network) -> dict[str, Tensor]:
        return {"1'y - 1'G": (state.y - state.grad).sum(-2), "1'z - 1'c": (state.z - state.value).sum(-2)}

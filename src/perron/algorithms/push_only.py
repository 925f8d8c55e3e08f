"""Push-only methods: everything is pushed with a column-stochastic B; the push-sum weight v corrects its bias.

All keep u (mass) and v = B^t 1 (weight) and use the model x = u / v. A node only needs to know its number of receivers.
They conserve 1^T v = n, and x-hat = 1^T u / n follows SGD with the step lr exactly (eps = 0).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from perron.algorithms.base import About, Algorithm, Rate, Step
from perron.algorithms.moves import Descent, Moving
from perron.algorithms.node import Node
from perron.algorithms.push_pull import weights_sum
from perron.algorithms.requirements import warn_if_small_steps_fail
from perron.algorithms.states import extend
from perron.errors import PerronError
from perron.networks.facts import Network


def _one(x: Tensor) -> Tensor:
    """A one for each node."""
    return torch.ones_like(x[..., :1])


def _weights_sum(state: Any) -> Tensor:
    return (state.v - 1).sum(-2)


class PushSumState(NamedTuple):
    """Model x = u / v, mass and weight."""

    x: Tensor
    u: Tensor
    v: Tensor


@dataclass(frozen=True, kw_only=True)
class PushSum(Algorithm):
    """Push-sum gossip: every node's x tends to the average of the starting values; no gradients.

    u+ = B u     v+ = B v     x = u / v

    Reference: Kempe, Dobra & Gehrke 2003.
    """

    @property
    def about(self) -> About:
        return About(
            title="Push-sum gossip", family="gossip", matrices="B", exact=True,
            reference="Kempe, Dobra & Gehrke 2003", speedup=False,
        )  # fmt: skip

    def init(self, x: Tensor, node: Node) -> PushSumState:
        """u = x, v = 1."""
        return PushSumState(x, u=x, v=_one(x))

    def step(self, state: PushSumState, node: Node, lr: Rate) -> Step:
        mass, weight = node.push(state.u), node.push(state.v)
        yield from ()  # no gradient is needed
        u, v = mass.wait(), weight.wait()
        return PushSumState(u / v, u, v)

    def conserved(self, state: PushSumState, network: Network) -> dict[str, Tensor]:
        return {"1'v - n": _weights_sum(state)}


@dataclass(frozen=True, kw_only=True)
class SubgradientPush(Algorithm):
    """Subgradient-Push: push-sum, and a gradient step on the mass. Biased by O(lr); use a falling lr.

    w = B u     v+ = B v     x = w / v+     u+ = w - lr grad(x)

    Reference: Nedic & Olshevsky 2015; Tsianos, Lawlor & Rabbat 2012.
    """

    @property
    def about(self) -> About:
        return About(
            title="Subgradient-Push", family="push-only", matrices="B", exact=False,
            reference="Nedic & Olshevsky 2015",
        )  # fmt: skip

    def init(self, x: Tensor, node: Node) -> PushSumState:
        """u = x, v = 1."""
        return PushSumState(x, u=x, v=_one(x))

    def step(self, state: PushSumState, node: Node, lr: Rate) -> Step:
        mass, weight = node.push(state.u), node.push(state.v)
        w, v = mass.wait(), weight.wait()
        x = w / v
        grad = yield x
        return PushSumState(x, w - lr * grad, v)

    def conserved(self, state: PushSumState, network: Network) -> dict[str, Tensor]:
        return {"1'v - n": _weights_sum(state)}


@dataclass(frozen=True, kw_only=True)
class SGP(Moving):
    """SGD-Push, Stochastic Gradient Push. Biased by O(lr) where the nodes' data differ.

    atc:  u+ = B (u - lr grad(x))     v+ = B v     x = u / v
    cta:  u+ = B u - lr grad(x)       v+ = B v     x = u / v              (overlaps)

    With another ``move``, its displacement along grad(x) takes the place of -lr grad(x). With AdamW the bias does not vanish
    with lr.

    Reference: Assran, Loizou, Ballas & Rabbat 2019.
    """

    tracks: ClassVar[bool] = False

    order: Literal["atc", "cta"] = "atc"

    @property
    def about(self) -> About:
        return About(
            title=self.titled(f"SGD-Push (SGP), {self.order.upper()}"), family="push-only", matrices="B", exact=False,
            reference="Assran, Loizou, Ballas & Rabbat 2019",
        )  # fmt: skip

    def init(self, x: Tensor, node: Node) -> Any:
        """u = x, v = 1."""
        return self.begin(PushSumState(x, u=x, v=_one(x)))

    def step(self, state: Any, node: Node, lr: Rate) -> Step:
        weight = node.push(state.v)
        mass = node.push(state.u) if self.order == "cta" else None
        grad = yield state.x
        dx, memory = self.displace(state, grad, lr)
        u = node.push(state.u + dx).wait() if mass is None else mass.wait() + dx
        v = weight.wait()
        return extend(PushSumState(u / v, u, v), memory)

    def conserved(self, state: Any, network: Network) -> dict[str, Tensor]:
        return {"1'v - n": _weights_sum(state)}

    def default_lr(self, network: Network, smoothness: float) -> float:
        """1/L for atc, with a move less where a node has a small weight v; for cta the rule of ADD-OPT."""
        if self.order == "cta":
            return super().default_lr(network, smoothness)
        least = 1.0 if self.move == Descent() else min(1.0, network.nodes * float(network.push_perron.min()))
        return self.move.default_lr(least / smoothness)


class PushTrackerState(NamedTuple):
    """Model x = u / v, mass, weight, tracker and its last gradient."""

    x: Tensor
    u: Tensor
    v: Tensor
    y: Tensor
    grad: Tensor


@dataclass(frozen=True, kw_only=True)
class ADDOPT(Moving):
    """ADD-OPT; with noisy gradients S-ADDOPT. It is the paper's Example 1, there called Push-DIGing.

    y = B y + grad(x) - grad(x_prev)     u+ = B u - lr y     v+ = B v     x = u / v

    Conserves 1^T y = 1^T grad too. Its step must shrink with n min pi_B. With another ``move``, its displacement along y, or
    y / w, takes the place of -lr y, as in Push-Pull.

    Reference: Xi, Xin & Khan 2018; Qureshi, Xin, Kar & Khan 2021 (S-ADDOPT).
    """

    @property
    def about(self) -> About:
        return About(
            title=self.titled("ADD-OPT (S-ADDOPT)"), family="push-only", matrices="B", exact=True,
            reference="Xi, Xin & Khan 2018",
        )  # fmt: skip

    def init(self, x: Tensor, node: Node) -> Any:
        """u = x, v = 1, y = grad = 0."""
        zero = torch.zeros_like(x)
        return self.begin(PushTrackerState(x, u=x, v=_one(x), y=zero, grad=zero))

    def step(self, state: Any, node: Node, lr: Rate) -> Step:
        mass, weight, pushed = node.push(state.u), node.push(state.v), node.push(state.y)
        tracker_weight = self.weigh(state, node.push)
        grad = yield state.x
        y = pushed.wait() + grad - state.grad
        dx, memory = self.displace(state, y, lr, tracker_weight)
        u, v = mass.wait() + dx, weight.wait()
        return extend(PushTrackerState(u / v, u, v, y, grad), memory)

    def conserved(self, state: Any, network: Network) -> dict[str, Tensor]:
        return {"1'v - n": _weights_sum(state), "1'y - 1'grad": (state.y - state.grad).sum(-2)} | weights_sum(state)


@dataclass(frozen=True, kw_only=True)
class PushDIGing(Moving):
    """Push-DIGing, the original: as ADD-OPT, but the tracker is mixed together with the mass.

    y = B y + grad(x) - grad(x_prev)     u+ = B (u - lr y)     v+ = B v     x = u / v

    Stable for larger steps than ADD-OPT on well-connected networks; only y overlaps. It takes a ``move`` as ADD-OPT does.

    Reference: Nedic, Olshevsky & Shi 2017, Algorithm 2.
    """

    @property
    def about(self) -> About:
        return About(
            title=self.titled("Push-DIGing"), family="push-only", matrices="B", exact=True,
            reference="Nedic, Olshevsky & Shi 2017",
        )  # fmt: skip

    def init(self, x: Tensor, node: Node) -> Any:
        """u = x, v = 1, y = grad = 0."""
        zero = torch.zeros_like(x)
        return self.begin(PushTrackerState(x, u=x, v=_one(x), y=zero, grad=zero))

    def step(self, state: Any, node: Node, lr: Rate) -> Step:
        weight, pushed, tracker_weight = node.push(state.v), node.push(state.y), self.weigh(state, node.push)
        grad = yield state.x
        y = pushed.wait() + grad - state.grad
        dx, memory = self.displace(state, y, lr, tracker_weight)
        u, v = node.push(state.u + dx).wait(), weight.wait()
        return extend(PushTrackerState(u / v, u, v, y, grad), memory)

    def conserved(self, state: Any, network: Network) -> dict[str, Tensor]:
        return {"1'v - n": _weights_sum(state), "1'y - 1'grad": (state.y - state.grad).sum(-2)} | weights_sum(state)


class ExtraPushState(NamedTuple):
    """Model x = u / v, mass, weight, what is held back of the mass before, and the last gradient."""

    x: Tensor
    u: Tensor
    v: Tensor
    held: Tensor
    grad: Tensor


@dataclass(frozen=True, kw_only=True)
class DEXTRA(Algorithm):
    """DEXTRA; with ``theta`` = 1/2 EXTRA-Push; with ``normalized`` the weight v is n pi_B from the start.

    u+ = u + B u - h - lr (grad(x) - grad(x_prev))     h+ = theta u + (1 - theta) B u     v+ = B v     x = u / v

    from h = u = x (times v, if normalized) and grad(x_prev) = 0, so that the first step is B u - lr grad(x). Exact, but on
    digraphs only for steps in an interval whose lower end may be positive, and which may be empty: as lr -> 0 all roots of
    r^2 - (1 + l) r + (theta + (1 - theta) l) must lie in the unit disc for each eigenvalue l of B but 1. `check` warns where
    they do not, with the largest theta for which they do.

    Reference: Xi & Khan 2017 (DEXTRA); Zeng & Yin 2017 (ExtraPush).
    """

    theta: float = 0.25
    normalized: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.theta <= 0.5:
            raise PerronError(f"DEXTRA needs 0 < theta <= 1/2; got {self.theta}.")

    @property
    def about(self) -> About:
        extra = "Normalized ExtraPush" if self.normalized else "EXTRA-Push"
        return About(
            title=extra if self.theta == 0.5 else f"DEXTRA, theta={self.theta:g}", family="push-only", matrices="B",
            exact=True, varying=False, reference="Zeng & Yin 2017" if self.theta == 0.5 else "Xi & Khan 2017",
            speedup=self.theta != 0.5,
        )  # fmt: skip

    def init(self, x: Tensor, node: Node) -> ExtraPushState:
        """u = h = x v."""
        v = node.links("push").share.expand_as(x[..., :1]) if self.normalized else _one(x)
        return ExtraPushState(x, u=x * v, v=v, held=x * v, grad=torch.zeros_like(x))

    def step(self, state: ExtraPushState, node: Node, lr: Rate) -> Step:
        mass = node.push(state.u)
        weight = None if self.normalized else node.push(state.v)
        grad = yield state.x
        mixed = mass.wait()
        u = state.u + mixed - state.held - lr * (grad - state.grad)
        v = state.v if weight is None else weight.wait()
        return ExtraPushState(u / v, u, v, self.theta * state.u + (1 - self.theta) * mixed, grad)

    def conserved(self, state: ExtraPushState, network: Network) -> dict[str, Tensor]:
        return {"1'v - n": _weights_sum(state)}

    def check(self, network: Network) -> None:
        super().check(network)
        warn_if_small_steps_fail(self.about.title, network, "push", self.theta)

"""Methods for doubly stochastic weights W: undirected networks, or balanced digraphs where no symmetry is needed.

They mix with pull and push alike, both being W. x-hat is the plain mean; it follows SGD with the step lr exactly (eps = 0).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from perron.algorithms.base import About, Algorithm, Rate, Step
from perron.algorithms.centralized import ModelState
from perron.algorithms.moves import Moving
from perron.algorithms.node import Node
from perron.algorithms.push_pull import PushPull, PushPullUpdate
from perron.algorithms.states import extend
from perron.errors import MixingError
from perron.networks.facts import Network


@dataclass(frozen=True, kw_only=True)
class DSGD(Moving):
    """Decentralized SGD (DGD). Biased by O(lr) where the nodes' data differ.

    awc:  x+ = W x - lr grad(x)                 (overlaps)
    atc:  x+ = W (x - lr grad(x))

    With another ``move``, its displacement along grad(x) takes the place of -lr grad(x). With AdamW the bias does not vanish
    with lr.

    Reference: Nedic & Ozdaglar 2009; Lian et al. 2017.
    """

    tracks: ClassVar[bool] = False

    order: Literal["awc", "atc"] = "awc"

    @property
    def about(self) -> About:
        return About(
            title=self.titled(f"D-SGD (DGD), {self.order.upper()}"), family="undirected", matrices="W", exact=False,
            reference="Lian et al. 2017",
        )  # fmt: skip

    def init(self, x: Tensor, node: Node) -> Any:
        """The model alone."""
        return self.begin(ModelState(x))

    def step(self, state: Any, node: Node, lr: Rate) -> Step:
        pulled = node.pull(state.x) if self.order == "awc" else None
        grad = yield state.x
        dx, memory = self.displace(state, grad, lr)
        return extend(ModelState(node.pull(state.x + dx).wait() if pulled is None else pulled.wait() + dx), memory)


@dataclass(frozen=True, kw_only=True)
class GradientTracking(PushPullUpdate):
    """Gradient tracking over W, which is Push-Pull with A = B = W: DIGing (cta), NEXT / SONATA (pu), Aug-DGM (atc).

    cta:  y = W y + grad(x) - grad(x_prev)      x+ = W x - lr y
    pu:   y = W y + grad(x) - grad(x_prev)      x+ = W (x - lr y)
    atc:  y = W (y + grad(x) - grad(x_prev))    x+ = W (x - lr y)

    from y = grad(x), which ``atc`` does not mix, as in `PushPull`. Conserves 1^T y = 1^T grad.

    Reference: Nedic, Olshevsky & Shi 2017; Di Lorenzo & Scutari 2016; Xu, Zhu, Soh & Xie 2015.
    """

    order: Literal["cta", "pu", "atc"] = "cta"

    @property
    def about(self) -> About:
        name, source = {
            "cta": ("DIGing", "Nedic, Olshevsky & Shi 2017"),
            "pu": ("NEXT (SONATA)", "Di Lorenzo & Scutari 2016"),
            "atc": ("Aug-DGM (ATC-DIGing)", "Xu, Zhu, Soh & Xie 2015"),
        }[self.order]
        return About(title=self.titled(name), family="undirected", matrices="W", exact=True, reference=source)

    @cached_property
    def _push_pull(self) -> PushPull:
        return PushPull(order=self.order, move=self.move)


class DiffusionState(NamedTuple):
    """Model and the adapted model before."""

    x: Tensor
    adapted: Tensor


@dataclass(frozen=True, kw_only=True)
class ExactDiffusion(Algorithm):
    """Exact Diffusion (damped, with (I + W)/2) and D^2 (undamped, with W itself).

    psi = x - lr grad(x)     phi = psi + x - psi_prev     x+ = (phi + W phi)/2,  or W phi where undamped        from psi_prev = x

    The step does not depend on the network: up to about 1/L and beyond. W must be symmetric; D^2 needs its smallest
    eigenvalue above -1/3.

    Reference: Yuan, Ying, Zhao & Sayed 2019; Tang et al. 2018 (D^2).
    """

    damped: bool = True

    @property
    def about(self) -> About:
        return About(
            title="Exact Diffusion" if self.damped else "D^2", family="undirected", matrices="W sym", exact=True,
            reference="Yuan, Ying, Zhao & Sayed 2019" if self.damped else "Tang et al. 2018", varying=False,
        )  # fmt: skip

    def init(self, x: Tensor, node: Node) -> DiffusionState:
        """psi = x."""
        return DiffusionState(x, adapted=x)

    def step(self, state: DiffusionState, node: Node, lr: Rate) -> Step:
        grad = yield state.x
        adapted = state.x - lr * grad
        corrected = adapted + state.x - state.adapted
        mixed = node.pull(corrected).wait()
        return DiffusionState((corrected + mixed) / 2 if self.damped else mixed, adapted)

    def check(self, network: Network) -> None:
        super().check(network)
        lowest = float(network.pull_spectrum.real.min(initial=0.0))
        if not self.damped and lowest <= -1 / 3:
            raise MixingError(
                f"D^2 needs the smallest eigenvalue of W above -1/3; it is {lowest:.3g}. Use Mixing.lazy-like weights "
                "(I + W)/2, or ExactDiffusion(damped=True)."
            )

    def default_lr(self, network: Network, smoothness: float) -> float:
        """1/L on every network."""
        return 1 / smoothness


class DifferenceState(NamedTuple):
    """Model, previous model, last gradient, and 1 once the first step is done."""

    x: Tensor
    previous: Tensor
    grad: Tensor
    begun: Tensor


@dataclass(frozen=True, kw_only=True)
class NIDS(Algorithm):
    """NIDS: Exact Diffusion but for the first step, which does not mix.

    phi = 2 x - x_prev - lr (grad(x) - grad(x_prev))     x+ = (phi + W phi)/2          first: x+ = x - lr grad(x)

    Reference: Li, Shi & Yan 2019.
    """

    @property
    def about(self) -> About:
        return About(
            title="NIDS", family="undirected", matrices="W sym", exact=True, reference="Li, Shi & Yan 2019", varying=False,
        )  # fmt: skip

    def init(self, x: Tensor, node: Node) -> DifferenceState:
        """x_prev = x, grad = 0."""
        return DifferenceState(x, previous=x, grad=torch.zeros_like(x), begun=torch.zeros_like(x[..., :1]))

    def step(self, state: DifferenceState, node: Node, lr: Rate) -> Step:
        grad = yield state.x
        corrected = 2 * state.x - state.previous - lr * (grad - state.grad)
        mixed = node.pull(corrected).wait()
        x = corrected + state.begun * (mixed - corrected) / 2
        return DifferenceState(x, state.x, grad, torch.ones_like(state.begun))

    def default_lr(self, network: Network, smoothness: float) -> float:
        """1/L on every network."""
        return 1 / smoothness


class ExtraState(NamedTuple):
    """Model, what is held back of the model before, and the last gradient."""

    x: Tensor
    held: Tensor
    grad: Tensor


@dataclass(frozen=True, kw_only=True)
class EXTRA(Algorithm):
    """EXTRA.

    x+ = x + W x - h - lr (grad(x) - grad(x_prev))     h+ = (x + W x)/2                from h = x, grad(x_prev) = 0

    Stable below (1 + smallest eigenvalue of W) / L.

    Reference: Shi, Ling, Wu & Yin 2015.
    """

    @property
    def about(self) -> About:
        return About(
            title="EXTRA", family="undirected", matrices="W sym", exact=True, reference="Shi, Ling, Wu & Yin 2015", varying=False,
        )  # fmt: skip

    def init(self, x: Tensor, node: Node) -> ExtraState:
        """h = x."""
        return ExtraState(x, held=x, grad=torch.zeros_like(x))

    def step(self, state: ExtraState, node: Node, lr: Rate) -> Step:
        pulled = node.pull(state.x)
        grad = yield state.x
        mixed = pulled.wait()
        x = state.x + mixed - state.held - lr * (grad - state.grad)
        return ExtraState(x, (state.x + mixed) / 2, grad)

    def default_lr(self, network: Network, smoothness: float) -> float:
        """(1 + smallest eigenvalue of W) / (2 L)."""
        return (1 + float(network.pull_spectrum.real.min(initial=0.0))) / (2 * smoothness)

"""Local steps: several gradients for one exchange, over any digraph."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from perron.algorithms.base import About, Algorithm, Partial, Rate, Step
from perron.algorithms.moves import LEAST_WEIGHT, Memory, Moving
from perron.algorithms.node import Node
from perron.algorithms.push_pull import PushPull, weights_sum
from perron.algorithms.requirements import check_outer_step
from perron.algorithms.states import extend
from perron.errors import PerronError
from perron.networks.facts import Network

Counts = int | tuple[int, ...]
LocalSteps = Counts | Callable[[int], Counts]


class LocalState(NamedTuple):
    """Model, tracker, and the node's mean gradient of the last round, which the tracker contains."""

    x: Tensor
    y: Tensor
    grad: Tensor


@dataclass(frozen=True, kw_only=True)
class LocalPushPull(Moving):
    """Push-Pull with tracked local steps: H = ``local_steps`` gradients for one exchange, exact for any H.

    z = x, then H times  z -= lr (grad(z) + y - h)     h+ is the mean of the H gradients
    atc:  y+ = B (y + h+ - h)     x+ = A z             (nothing overlaps)
    pu:   y+ = B y + h+ - h       x+ = A z             (y overlaps the round)
    cta:  y+ = B y + h+ - h       x+ = A x + z - x     (both overlap the round)

    from y = h = 0, so that the first round has no correction. h is the node's mean gradient of the last round, and y - h
    corrects the drift of a node towards its own data: at the fixed point h_i = grad f_i(x*), y = 0, and every node stays at x*.
    Conserves 1^T y = 1^T h.

    With another ``move``, its displacement along grad(z) + y - h takes the place of -lr (...), and its memory stays local. For
    moves that depend on the scale of the direction y / w takes the place of y, as in `PushPull`.

    The order atc tolerates the longest rounds: on graphs that mix well it is stable as long as gradient descent is, up to
    lr L = 2, where cta tolerates lr H L of 0.3 to 0.8. Take it with H up to 8; beyond that, or if rounds are few, take
    `PushPullDiLoCo`. A directed ring leaves little room in any order. With H = 1 the correction is one exchange older than the
    tracker of `PushPull`: take that instead.

    References: Liu, Lin, Koloskova & Stich 2023 (K-GT, undirected); Karimireddy et al. 2020 (SCAFFOLD, with a server).
    """

    local_steps: int = 4
    order: Literal["atc", "pu", "cta"] = "atc"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not _is_count(self.local_steps):
            raise PerronError(
                f"local_steps of LocalPushPull is a whole number, at least 1; got {self.local_steps!r:.80}."
            )

    @property
    def about(self) -> About:
        order = {"atc": "", "pu": ", Pu's order", "cta": ", CTA"}[self.order]
        return About(
            title=self.titled(f"Push-Pull, local steps, H={self.local_steps}{order}"),
            family="push-pull", matrices="A B", exact=True, reference="after Liu, Lin, Koloskova & Stich 2023",
        )  # fmt: skip

    def init(self, x: Tensor, node: Node) -> Any:
        """y = h = 0."""
        zero = torch.zeros_like(x)
        return self.begin(LocalState(x, y=zero, grad=zero))

    def step(self, state: Any, node: Node, lr: Rate, progress: Memory | None = None) -> Step:
        pulled = node.pull(state.x) if self.order == "cta" else None
        pushed = weight = None
        if self.order != "atc":
            pushed, weight = node.push(state.y), self.weigh(state, node.push)
        correction = self._tracked(state) - state.grad
        begun = progress or {"point": state.x, "total": torch.zeros_like(state.x)}
        z, total, memory, done = (
            begun["point"],
            begun["total"],
            _memory(self.move.remembers, begun, state),
            _done(begun),
        )
        for k in range(done, self.local_steps):
            # What was sent before travels during the whole round.
            grad = yield Partial(z, {"point": z, "total": total, "done": torch.tensor(k), **memory})
            total = total + grad
            z, memory = self.move.add(z, memory, z, grad + correction, lr)
        mean = total / self.local_steps
        if pushed is None:
            pushed, weight = node.push(state.y + mean - state.grad), self.weigh(state, node.push, late=True)
            pulled = node.pull(z)  # travels together with y, on which it does not depend
            y, x = pushed.wait(), pulled.wait()
        else:
            y = pushed.wait() + mean - state.grad
            x = node.pull(z).wait() if pulled is None else pulled.wait() + (z - state.x)
        weights = {} if weight is None else {"w": weight.wait(), "one": weight.one}
        return extend(LocalState(x, y, mean), weights | memory)

    def _tracked(self, state: Any) -> Tensor:
        """y, or y / w, which is 0 before the first exchange."""
        y: Tensor = state.y
        return y * torch.where(state.w > LEAST_WEIGHT, 1 / state.w, 0.0) if self.move.scale_dependent else y

    def conserved(self, state: Any, network: Network) -> dict[str, Tensor]:
        return {"1'y - 1'h": (state.y - state.grad).sum(-2)} | weights_sum(state)

    def effective_step(self, network: Network) -> float:
        """That of Push-Pull with the same move, H times."""
        return self.local_steps * super().effective_step(network)

    def default_lr(self, network: Network, smoothness: float) -> float:
        """That of Push-Pull with the same move, divided by H."""
        return super().default_lr(network, smoothness) / self.local_steps


@dataclass(frozen=True, kw_only=True)
class OuterSteps(Moving):
    """Base of the methods with an inner optimizer and an outer one, which is Nesterov's momentum on pseudo-gradients."""

    tracks: ClassVar[bool] = (
        False  # the direction of the move is a gradient; what is sent is the sum of its displacements
    )
    local_steps: LocalSteps = 4
    outer_lr: float = 0.7
    outer_momentum: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.local_steps, list):
            object.__setattr__(self, "local_steps", tuple(self.local_steps))
        name = type(self).__name__
        if not callable(self.local_steps):
            _check_counts(name, self.local_steps)
        if not (self.outer_lr > 0 and 0 <= self.outer_momentum < 1):
            raise PerronError(
                f"{name} needs outer_lr > 0 and 0 <= outer_momentum < 1; got outer_lr={self.outer_lr}, "
                f"outer_momentum={self.outer_momentum}."
            )

    @property
    def _many(self) -> str:
        """The number of local steps, for titles."""
        steps = self.local_steps
        if isinstance(steps, tuple):
            return str(steps[0]) if len(set(steps)) == 1 else f"{min(steps)} to {max(steps)}"
        return getattr(steps, "__name__", "changing") if callable(steps) else str(steps)

    def check(self, network: Network) -> None:
        super().check(network)
        if isinstance(self.local_steps, tuple):
            _check_counts(type(self).__name__, self.local_steps, network.nodes)

    def _round(
        self, state: Any, node: Node, lr: Rate, begun: Memory
    ) -> Generator[Partial, Tensor, tuple[Tensor, Memory]]:
        """Do the local steps; a node that is done before the others it is stacked with stays where it is."""
        counts = self._counts(node.step, node.nodes)
        if isinstance(counts, int):
            least = most = counts
        else:
            own = (node.unit * node.unit.new_tensor(counts)).sum(-1, keepdim=True)
            least, most = int(own.min()), int(own.max())
        z, memory = begun["point"], _memory(self.move.remembers, begun, state)
        for k in range(_done(begun), most):
            grad = yield Partial(z, {"point": z, "done": torch.tensor(k), **memory})
            after, then = self.move.add(z, memory, z, grad, lr)
            if k >= least:
                after = torch.where(own > k, after, z)
                then = {name: torch.where(own > k, value, memory[name]) for name, value in then.items()}
            z, memory = after, then
        return z, memory

    def _outer(self, y: Tensor, velocity: Tensor) -> tuple[Tensor, Tensor]:
        """Return the outer displacement along y and the next outer momentum."""
        velocity = torch.add(y, velocity, alpha=self.outer_momentum)
        return self.outer_lr * torch.add(y, velocity, alpha=self.outer_momentum), velocity

    def _counts(self, number: int, nodes: int) -> Counts:
        """The numbers of local steps in a round."""
        counts = self.local_steps(number) if callable(self.local_steps) else self.local_steps
        _check_counts(type(self).__name__, counts, nodes)
        return counts

    @property
    def remembered(self) -> tuple[str, ...]:
        return ("velocity", *self.move.remembers)

    def effective_step(self, network: Network) -> float:
        """outer_lr / (1 - outer_momentum) times the inner steps of the first round, with the mean H of the nodes.

        It is a multiple of c where pseudo-gradients are tracked.
        """
        counts = self._counts(0, network.nodes)
        mean = counts if isinstance(counts, int) else sum(counts) / len(counts)
        tracked = network.alignment if self.about.matrices == "A B" else 1.0
        return tracked * mean * self._outer_gain * self.move.gain

    def default_lr(self, network: Network, smoothness: float) -> float:
        """That of the method with one gradient for the same effective step, with the largest H of the first round."""
        counts = self._counts(0, network.nodes)
        most = counts if isinstance(counts, int) else max(counts)
        return self.move.default_lr(super(Moving, self).default_lr(network, smoothness)) / (most * self._outer_gain)

    @property
    def _outer_gain(self) -> float:
        return self.outer_lr / (1 - self.outer_momentum)


class DiLoCoState(NamedTuple):
    """Model and outer momentum."""

    x: Tensor
    velocity: Tensor


@dataclass(frozen=True, kw_only=True)
class DiLoCo(OuterSteps):
    """DiLoCo with an all-reduce: H = ``local_steps`` steps of an inner optimizer, whose mean drives an outer one.

    z = x, then H times  z -= lr grad(z)     p = mean(x - z)     m+ = b m + p     x+ = x - a (p + b m+)

    from m = 0, with a = ``outer_lr`` and b = ``outer_momentum``. All nodes hold the same x. a = 1 and b = 0 is local SGD, also
    known as FedAvg. It ends where the mean pseudo-gradient p vanishes, which is not the optimum; for quadratics
    sum_i (I - (I - lr H_i)^H) (x - b_i) = 0. The inner ``move`` sees local gradients, its memory stays local, and with
    `perron.AdamW` it is that of DiLoCo. ``local_steps`` may differ as in `PushPullDiLoCo`, which is the same over any digraph.

    A pseudo-gradient of gradient descent has curvature at most 1, whatever the loss: the outer step is unstable from
    a = 2 (1 + b) / (1 + 2 b) on, which is refused.

    References: Douillard et al. 2023; McMahan et al. 2017 (FedAvg).
    """

    @property
    def about(self) -> About:
        title = "Local SGD" if (self.outer_lr, self.outer_momentum) == (1, 0) else "DiLoCo"
        return About(
            title=self.titled(f"{title}, H={self._many}"), family="centralized", matrices="-", exact=False,
            reference="McMahan et al. 2017" if title == "Local SGD" else "Douillard et al. 2023",
        )  # fmt: skip

    def check(self, network: Network) -> None:
        super().check(network)
        largest = 2 * (1 + self.outer_momentum) / (1 + 2 * self.outer_momentum)
        if self.outer_lr >= largest:
            raise PerronError(
                f"{self.about.title}: rounds diverge with outer_lr={self.outer_lr:g} and outer_momentum={self.outer_momentum:g} "
                f"once a round comes near the local optima. They are stable below outer_lr={largest:.3g}."
            )

    def init(self, x: Tensor, node: Node) -> Any:
        """All nodes start from the average of their models."""
        return self.begin(DiLoCoState(node.mean(x).wait().expand_as(x), velocity=torch.zeros_like(x)))

    def step(self, state: Any, node: Node, lr: Rate, progress: Memory | None = None) -> Step:
        z, memory = yield from self._round(state, node, lr, progress or {"point": state.x})
        outer, velocity = self._outer(node.mean(state.x - z).wait(), state.velocity)
        return extend(DiLoCoState(state.x - outer, velocity), memory)


class PushPullDiLoCoState(NamedTuple):
    """Model, tracker of the pseudo-gradients, the pseudo-gradient that it contains last, and the outer momentum."""

    x: Tensor
    y: Tensor
    pseudo: Tensor
    velocity: Tensor


@dataclass(frozen=True, kw_only=True)
class PushPullDiLoCo(OuterSteps):
    """DiLoCo over any digraph: H = ``local_steps`` steps of an inner optimizer, whose sum is tracked and drives an outer one.

    z = x, then H times  z -= lr grad(z)     p+ = x - z
    atc:  y+ = B (y + p+ - p)     m+ = b m + y+     x+ = A (x - a (y+ + b m+))     (nothing overlaps)
    pu:   y+ = B y + p+ - p       m+ = b m + y+     x+ = A (x - a (y+ + b m+))     (y overlaps the round)
    cta:  y+ = B y + p+ - p       m+ = b m + y+     x+ = A x - a (y+ + b m+)       (both overlap the round)

    from y = p = m = 0. p is the pseudo-gradient, start minus end of a round; a = ``outer_lr`` and b = ``outer_momentum`` are the
    outer step, with Nesterov's momentum. Conserves 1^T y = 1^T p. Over complete averaging, in the order atc, it is `DiLoCo`. On
    any network its fixed point is that of DiLoCo: not the optimum, but the point at which the mean pseudo-gradient vanishes. For
    quadratics sum_i (I - (I - lr H_i)^H) (x - b_i) = 0.

    The inner ``move`` sees local gradients, its memory stays local, and with `perron.AdamW` it is that of DiLoCo. ``local_steps``
    may differ between nodes, with one number for each, and between rounds, as a function of the number of the round that gives
    either. Where it differs between nodes, those with fewer steps wait; in the simulator their further gradients are discarded.

    A pseudo-gradient of gradient descent has curvature at most 1, whatever the loss: `check` refuses outer steps that are
    unstable for it on this network, on up to 150 nodes. Take it for long rounds, from H = 16 on. A directed ring needs an
    outer_lr below 0.1.

    References: Douillard et al. 2023 (DiLoCo, with an all-reduce); Kolehmainen et al. 2025 (NoLoCo, without tracking).
    """

    order: Literal["atc", "pu", "cta"] = "atc"

    @property
    def about(self) -> About:
        order = {"atc": "", "pu": ", Pu's order", "cta": ", CTA"}[self.order]
        return About(
            title=self.titled(f"Push-Pull DiLoCo, H={self._many}{order}"), family="push-pull", matrices="A B", exact=False,
            reference="after Douillard et al. 2023",
        )  # fmt: skip

    def check(self, network: Network) -> None:
        super().check(network)
        check_outer_step(self.about.title, network, self.order, self.outer_lr, self.outer_momentum)

    def init(self, x: Tensor, node: Node) -> Any:
        """y = p = m = 0."""
        zero = torch.zeros_like(x)
        return self.begin(PushPullDiLoCoState(x, y=zero, pseudo=zero, velocity=torch.zeros_like(x)))

    def step(self, state: Any, node: Node, lr: Rate, progress: Memory | None = None) -> Step:
        pulled = node.pull(state.x) if self.order == "cta" else None
        pushed = node.push(state.y) if self.order != "atc" else None
        # What was sent before travels during the whole round.
        z, memory = yield from self._round(state, node, lr, progress or {"point": state.x})
        pseudo = state.x - z
        if pushed is None:
            y = node.push(state.y + pseudo - state.pseudo).wait()
        else:
            y = pushed.wait() + pseudo - state.pseudo
        outer, velocity = self._outer(y, state.velocity)
        x = node.pull(state.x - outer).wait() if pulled is None else pulled.wait() - outer
        return extend(PushPullDiLoCoState(x, y, pseudo, velocity), memory)

    def conserved(self, state: Any, network: Network) -> dict[str, Tensor]:
        return {"1'y - 1'p": (state.y - state.pseudo).sum(-2)}


def with_local_steps(algorithm: Algorithm, local_steps: int | None) -> Algorithm:
    """Return an algorithm with a number of local steps; itself if it is None.

    Push-Pull becomes `LocalPushPull` with the same move, in the order atc where it was cta, which leaves little room for rounds.
    """
    if local_steps is None:
        return algorithm
    if isinstance(algorithm, PushPull) and local_steps == 1:
        return algorithm
    if isinstance(algorithm, PushPull):
        order = "atc" if algorithm.order == "cta" else algorithm.order
        return LocalPushPull(local_steps=local_steps, order=order, move=algorithm.move)
    if "local_steps" in {one.name for one in fields(algorithm)}:  # type: ignore[arg-type]
        return replace(algorithm, local_steps=local_steps)  # type: ignore[type-var]
    raise PerronError(
        f"{algorithm.about.title} has one gradient for each exchange; got local_steps={local_steps!r}. Take PushPull, "
        "LocalPushPull, PushPullDiLoCo or DiLoCo."
    )


def _memory(names: tuple[str, ...], begun: Memory, state: Any) -> Memory:
    """Return what the move remembers: in the middle of a round what it had there, otherwise that of the state."""
    return {name: begun[name] if name in begun else getattr(state, name) for name in names}


def _done(begun: Memory) -> int:
    """Return the number of local steps that a round has had."""
    return int(begun["done"]) if "done" in begun else 0


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _check_counts(name: str, counts: object, nodes: int | None = None) -> None:
    """Refuse what is no number of local steps, nor a tuple with one for each node."""
    each = counts if isinstance(counts, tuple) and counts else (counts,)
    if not all(map(_is_count, each)):
        raise PerronError(
            f"local_steps of {name} is a whole number, at least 1, or a tuple with one for each node, or a function of "
            f"the round that gives either; got {counts!r:.80}."
        )
    if isinstance(counts, tuple) and nodes is not None and len(counts) != nodes:
        raise PerronError(
            f"local_steps has {len(counts)} numbers, and the network {nodes} nodes: give one for each node."
        )

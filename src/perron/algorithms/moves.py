"""Moves: what a node does with a direction that stands for the mean gradient. Plain descent, momentum, AdamW, clipping.

A move turns its memory, the model x, a direction u and lr into a displacement and a new memory. It is pure and acts on the last
axis, so it serves one node's vector and the simulator's stacked tensors alike. What it remembers are named tensors of the
algorithm's state, with the names that torch.optim has for them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from math import inf, log
from typing import Any, ClassVar

import torch
from torch import Tensor

from perron._registry import lookup, options_model, validate
from perron.algorithms.base import Algorithm, Rate
from perron.algorithms.node import Handle
from perron.algorithms.requirements import warn_if_slow
from perron.algorithms.states import extend
from perron.errors import PerronError
from perron.networks.facts import Network

Memory = dict[str, Tensor]
LEAST_WEIGHT = 1e-6  # of a tracker; the mean over all nodes is 1


class Move(ABC):
    """Base of all moves; subclasses are frozen dataclasses.

    Attributes:
        scale_dependent: whether a direction of twice the length gives another displacement than twice as far.
    """

    scale_dependent: ClassVar[bool] = False

    @property
    def rests(self) -> bool:
        """Whether it stays where the direction is zero; with weight decay, for example, it does not."""
        return True

    @property
    def label(self) -> str:
        """The class with the options that are not at their default."""
        values = {one.name: (getattr(self, one.name), one.default) for one in fields(self)}  # type: ignore[arg-type]
        given = ", ".join(f"{name}={value}" for name, (value, default) in values.items() if value != default)
        return f"{type(self).__name__}({given})" if given else type(self).__name__

    @property
    def gain(self) -> float:
        """How far it moves in the long run along a constant direction, as a multiple of lr."""
        return 1.0

    @property
    def remembers(self) -> tuple[str, ...]:
        """The names of the tensors in its memory."""
        return ()

    def init(self, x: Tensor) -> Memory:
        """Return its memory before the first step; each tensor has storage of its own."""
        return {}

    @abstractmethod
    def step(self, memory: Memory, x: Tensor, u: Tensor, lr: Rate) -> tuple[Tensor, Memory]:
        """Return the displacement of x along the direction u, and the new memory."""

    def add(self, base: Tensor, memory: Memory, x: Tensor, u: Tensor, lr: Rate) -> tuple[Tensor, Memory]:
        """Return ``base`` plus the displacement, and the new memory."""
        displacement, memory = self.step(memory, x, u, lr)
        return base + displacement, memory

    def default_lr(self, lr: float) -> float:
        """Return its default step where plain descent has the default step ``lr``."""
        return lr / self.gain


@dataclass(frozen=True, kw_only=True)
class Descent(Move):
    """Plain gradient descent, the default.

    dx = -lr u
    """

    def step(self, memory: Memory, x: Tensor, u: Tensor, lr: Rate) -> tuple[Tensor, Memory]:
        return -lr * u, memory

    def add(self, base: Tensor, memory: Memory, x: Tensor, u: Tensor, lr: Rate) -> tuple[Tensor, Memory]:
        return descend(base, lr, u), memory


@dataclass(frozen=True, kw_only=True)
class Momentum(Move):
    """Heavy-ball momentum as in torch.optim.SGD, of the direction and not of the model.

    m+ = momentum m + u     dx = -lr m+,  or with ``nesterov`` -lr (u + momentum m+)                            from m = 0

    On a tracker this is momentum tracking: for constant B, the momentum of the tracker is the tracker of the nodes' momenta. The
    network never mixes m, and therefore sets no limit to ``momentum``, unlike the heavy ball on x of `AcceleratedPushPull`.
    In the long run it moves with the step lr / (1 - momentum).

    Reference: Takezawa, Bao, Niwa, Sato & Yamada 2022 (momentum tracking, undirected networks).
    """

    momentum: float = 0.9
    nesterov: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1:
            raise PerronError(f"Momentum needs 0 <= momentum < 1; got {self.momentum}.")

    @property
    def gain(self) -> float:
        return 1 / (1 - self.momentum)

    @property
    def remembers(self) -> tuple[str, ...]:
        return ("momentum_buffer",)

    def init(self, x: Tensor) -> Memory:
        """m = 0."""
        return {"momentum_buffer": torch.zeros_like(x)}

    def step(self, memory: Memory, x: Tensor, u: Tensor, lr: Rate) -> tuple[Tensor, Memory]:
        m = torch.add(u, memory["momentum_buffer"], alpha=self.momentum)
        return -lr * (torch.add(u, m, alpha=self.momentum) if self.nesterov else m), {"momentum_buffer": m}


@dataclass(frozen=True, kw_only=True)
class AdamW(Move):
    """Adam with decoupled weight decay, as torch.optim.AdamW.

    m+ = b1 m + (1 - b1) u     v+ = b2 v + (1 - b2) u^2     k+ = k + 1                                  from m = v = k = 0
    dx = -lr (m+ / (1 - b1^k+) / (sqrt(v+ / (1 - b2^k+)) + eps) + weight_decay x)

    Weight decay is part of the move: it is not tracked. There is no default lr. On a tracker start with the lr that suits the
    batch of one node; do not divide it by the number of nodes, since the noise of a tracker does not fall with it.

    Reference: Loshchilov & Hutter 2019; Carnevale, Farina, Notarnicola & Notarstefano 2020 (on a tracker, undirected networks).
    """

    scale_dependent: ClassVar[bool] = True
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.01

    def __post_init__(self) -> None:
        if not all(0 <= beta < 1 for beta in self.betas) or not self.eps >= 0 or not self.weight_decay >= 0:
            raise PerronError(
                f"AdamW needs betas in [0, 1), eps >= 0 and weight_decay >= 0; got betas={self.betas}, eps={self.eps}, "
                f"weight_decay={self.weight_decay}."
            )

    @property
    def rests(self) -> bool:
        return self.weight_decay == 0

    @property
    def remembers(self) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq", "updates")

    def init(self, x: Tensor) -> Memory:
        """m = v = k = 0; k is a float of at least 32 bits, which counts further than bfloat16."""
        k = torch.zeros_like(x[..., :1], dtype=torch.promote_types(x.dtype, torch.float32))
        return {"exp_avg": torch.zeros_like(x), "exp_avg_sq": torch.zeros_like(x), "updates": k}

    def step(self, memory: Memory, x: Tensor, u: Tensor, lr: Rate) -> tuple[Tensor, Memory]:
        first, second = self.betas
        m, k = torch.lerp(memory["exp_avg"], u, 1 - first), memory["updates"] + 1
        v = torch.addcmul(second * memory["exp_avg_sq"], u, u, value=1 - second)
        root = v.sqrt() / _filled(second, k).sqrt().to(v.dtype)
        direction = m / _filled(first, k).to(m.dtype) / (root + self.eps)
        if self.weight_decay:
            direction = torch.add(direction, x, alpha=self.weight_decay)
        return -lr * direction, {"exp_avg": m, "exp_avg_sq": v, "updates": k}

    def default_lr(self, lr: float) -> float:
        raise PerronError(
            "AdamW has no default step, because its steps do not depend on the smoothness of the loss: pass lr=, for example the "
            "one that suits torch.optim.AdamW with the batch of one node."
        )


@dataclass(frozen=True)
class Clipped(Move):
    """Another move along a direction whose norm is limited, as by torch.nn.utils.clip_grad_norm_.

    u' = u min(1, norm / (|u| + 1e-6))     dx as of the other move along u'

    |u| is over all coordinates of a node. Clipping the direction keeps a method exact; clipping gradients before they are
    tracked does not, since clipped gradients of different nodes do not add up to zero at the optimum.
    """

    scale_dependent: ClassVar[bool] = True
    move: Move
    norm: float = field(kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.move, Move) or not (isinstance(self.norm, float | int) and 0 < self.norm < inf):
            raise PerronError(f"Clipped needs a move and a finite norm > 0; got {self.move!r} and norm={self.norm}.")

    @property
    def label(self) -> str:
        return f"{self.move.label} clipped to {self.norm:g}"

    @property
    def rests(self) -> bool:
        return self.move.rests

    @property
    def gain(self) -> float:
        return self.move.gain

    @property
    def remembers(self) -> tuple[str, ...]:
        return self.move.remembers

    def init(self, x: Tensor) -> Memory:
        return self.move.init(x)

    def step(self, memory: Memory, x: Tensor, u: Tensor, lr: Rate) -> tuple[Tensor, Memory]:
        length = torch.linalg.vector_norm(u, dim=-1, keepdim=True)
        return self.move.step(memory, x, u * (self.norm / (length + 1e-6)).clamp_max(1.0), lr)

    def default_lr(self, lr: float) -> float:
        return self.move.default_lr(lr)


@dataclass(frozen=True, kw_only=True)
class Proximal(Move):
    """A proximal gradient step for f + l1 |x|_1, where u stands for the gradient of f alone; None: the l1 of the problem.

    dx = S(x - lr u) - x     S(z) = sign(z) max(|z| - lr l1, 0)

    Exact where models are mixed after they moved along a tracker (``atc``, ``pu``); otherwise it settles near the optimum.
    References: Di Lorenzo & Scutari 2016 (NEXT); Sun, Scutari & Daneshmand 2022 (SONATA).
    """

    scale_dependent: ClassVar[bool] = True
    l1: float | None = None

    @property
    def rests(self) -> bool:
        return self.l1 == 0

    def step(self, memory: Memory, x: Tensor, u: Tensor, lr: Rate) -> tuple[Tensor, Memory]:
        z = descend(x, lr, u)
        return z.sign() * (z.abs() - lr * (self.l1 or 0.0)).clamp_min(0) - x, memory


MOVES: dict[str, type[Move]] = {"descent": Descent, "momentum": Momentum, "adamw": AdamW, "proximal": Proximal}


def move_of(given: str | Mapping[str, Any]) -> Move:
    """Return the move of a name, or of a table with its name, its options and ``clip``, the norm that it is clipped to.

    >>> move_of({"name": "adamw", "weight_decay": 0.1, "clip": 1.0}).label
    'AdamW(weight_decay=0.1) clipped to 1'
    """
    options: dict[str, Any] = dict(given) if isinstance(given, Mapping) else {"name": given}
    if not isinstance(name := options.pop("name", None), str):
        raise PerronError(f"A move is a name or a table with a name; got {given!r}. There are: {', '.join(MOVES)}.")
    kind, clip = lookup(name, MOVES, "move"), options.pop("clip", None)
    for key in options:
        lookup(key, dict.fromkeys([*(one.name for one in fields(kind)), "clip"]), f"option of {name}")  # type: ignore[arg-type]
    move: Move = kind(**validate(options_model(kind), options).model_dump(include=set(options)))
    return move if clip is None else Clipped(move, norm=clip)


def descend(x: Tensor, lr: Rate, y: Tensor) -> Tensor:
    """Return x - lr y in one pass over memory, rounded once."""
    return torch.addcmul(x, y, lr, value=-1) if isinstance(lr, Tensor) else torch.sub(x, y, alpha=lr)


def _filled(beta: float, k: Tensor) -> Tensor:
    """Return 1 - beta^k without cancellation: how much of a moving average comes from its k values."""
    return -torch.expm1(k * log(beta)) if beta else torch.ones_like(k)


class Weight:
    """The weight w of a tracker during a step: what the tracker of a gradient that is always 1 is. Its mean over all nodes is 1.

    w = M w + one - one_prev,  or  ``late``:  w = M (w + one - one_prev)                    from w = one_prev = 0

    with the M that mixes the tracker, in the same step. So y / w has the scale of the mean gradient, from the first step on and
    with weights that vary in time. ``one`` is 1, or 1 / D for a tracker of gradients that are divided by D.

    Args:
        state: the algorithm's state before the step.
        exchange: the exchange that mixes the tracker, `Node.push` or `Node.pull`.
        one: the gradient that is tracked.
        late: whether the exchange comes after the new gradient is added.
    """

    def __init__(self, state: Any, exchange: Callable[[Tensor], Handle], one: Tensor | None, *, late: bool) -> None:
        self.one = torch.ones_like(state.one) if one is None else one.expand_as(state.one)
        self._change = self.one - state.one
        self._late = late
        self._handle = exchange(state.w + self._change if late else state.w)

    def wait(self) -> Tensor:
        """Wait for the exchange and return w."""
        return self._handle.wait() if self._late else self._handle.wait() + self._change


@dataclass(frozen=True, kw_only=True)
class Moving(Algorithm):
    """Base of the algorithms whose models move along a direction that stands for the mean gradient.

    Attributes:
        move: what they do with the direction. Where it depends on the scale of the direction and the direction is a tracker,
            the tracker's `Weight` is exchanged with it, and the direction is y / w.
        tracks: whether the direction is a tracker; otherwise it is a gradient.
    """

    move: Move = field(default=Descent(), metadata={"later": True})
    tracks: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.move, Move):
            raise PerronError(
                f"move of {type(self).__name__} is a move such as Momentum() or AdamW(); got {self.move!r:.80}."
            )

    def with_l1(self, l1: float) -> Algorithm:
        if not isinstance(self.move, Proximal) or self.move.l1 not in (None, l1):
            return super().with_l1(l1)
        return replace(self, move=Proximal(l1=l1))

    def titled(self, title: str) -> str:
        """Return a title that names the move, unless it is plain descent."""
        return title if self.move == Descent() else f"{title} with {self.move.label}"

    def check(self, network: Network) -> None:
        super().check(network)
        if self.tracks and self.move.scale_dependent and not isinstance(self.move, Proximal):
            warn_if_slow(self.about, network)

    def begin(self, state: Any) -> Any:
        """Return an initial state with the fields of the move and, where it needs one, of the tracker's weight."""
        weight = {}
        if self.tracks and self.move.scale_dependent:
            zero = torch.zeros_like(state.x[..., :1])
            weight = {"w": zero, "one": zero}
        return extend(state, weight | self.move.init(state.x))

    def weigh(
        self, state: Any, exchange: Callable[[Tensor], Handle], *, one: Tensor | None = None, late: bool = False
    ) -> Weight | None:
        """Start the exchange of the tracker's weight, if the move needs it."""
        return Weight(state, exchange, one, late=late) if self.move.scale_dependent else None

    def displace(
        self, state: Any, u: Tensor, lr: Rate, weight: Weight | None = None, *, base: Tensor | None = None
    ) -> tuple[Tensor, Memory]:
        """Return the displacement along u, or u / w, and the fields of the next state that belong to the move.

        A node whose weight is nearly zero, as of all but the root of a tree, does not move by itself: its tracker knows nothing
        of the mean gradient. Given ``base``, the displacement is added to it.
        """
        extra: Memory = {}
        if weight is not None:
            w = weight.wait()
            u = u * torch.where(w > LEAST_WEIGHT, 1 / w, 0.0)
            extra = {"w": w, "one": weight.one}
        memory = {name: getattr(state, name) for name in self.move.remembers}
        if base is None:
            moved, memory = self.move.step(memory, state.x, u, lr)
        else:
            moved, memory = self.move.add(base, memory, state.x, u, lr)
        return moved, extra | memory

    @property
    def remembered(self) -> tuple[str, ...]:
        return self.move.remembers

    def effective_step(self, network: Network) -> float:
        """That of plain descent times the gain of the move; with y / w instead of y, the gain alone."""
        return (1.0 if self.move.scale_dependent else super().effective_step(network)) * self.move.gain

    def default_lr(self, network: Network, smoothness: float) -> float:
        """That of plain descent, divided by the gain of the move; with y / w, that of the node with the least weight."""
        least = 1.0
        if self.move.scale_dependent and self.about.matrices in ("A B", "B", "R C"):
            weights = network.nodes * network.push_perron
            least = float(weights[weights > LEAST_WEIGHT].min())
        elif self.move.scale_dependent and self.about.matrices == "A":
            least = 1 / float(network.pull_perron.max())
        return self.move.default_lr(super().default_lr(network, smoothness) * least)


def names_with_move() -> str:
    """Return the classes that take a move, for errors."""
    from perron.algorithms import ALGORITHMS

    return ", ".join(sorted({type(one).__name__ for one in ALGORITHMS.values() if isinstance(one, Moving)}))

"""Step sizes as functions of the step. ``lr`` is a number, a tensor with a number for each node, or such a function."""

from __future__ import annotations

from collections.abc import Callable
from math import cos, pi, prod

from torch import Tensor

from perron._registry import public_dir
from perron.errors import PerronError

Schedule = Callable[[int], float]
LearningRate = float | Tensor | Schedule


def power(lr: float, *, exponent: float = 0.5, scale: float = 1.0) -> Schedule:
    """lr / (1 + step/scale)^exponent; exponent 1/2 is the classical decreasing step of subgradient methods.

    >>> [round(power(0.5)(t), 4) for t in (0, 3, 99)]
    [0.5, 0.25, 0.05]
    """
    if not lr > 0 or exponent < 0 or not scale > 0:
        raise PerronError(f"power needs lr > 0, exponent >= 0, scale > 0; got {lr}, {exponent}, {scale}.")
    return lambda step: lr / (1 + step / scale) ** exponent


def cosine(lr: float, *, steps: int, final: float = 0.0) -> Schedule:
    """Decay from lr to ``final`` along half a cosine over ``steps`` steps, then stay constant.

    >>> [round(cosine(1.0, steps=10)(t), 3) for t in (0, 5, 10, 20)]
    [1.0, 0.5, 0.0, 0.0]
    """
    if steps < 1:
        raise PerronError(f"cosine needs steps >= 1; got {steps}.")
    return lambda step: final + (lr - final) * (1 + cos(pi * min(step / steps, 1.0))) / 2


def piecewise(lr: float, drops: dict[int, float]) -> Schedule:
    """lr, multiplied by a factor at each of the given steps.

    >>> [piecewise(1.0, {10: 0.1, 20: 0.5})(t) for t in (9, 10, 25)]
    [1.0, 0.1, 0.05]
    """
    return lambda step: prod((factor for start, factor in drops.items() if step >= start), start=lr)


def warmup(schedule: LearningRate, steps: int) -> Schedule:
    """Scale a schedule (or constant) linearly from near zero to one over the first ``steps`` steps.

    >>> [round(warmup(1.0, 4)(t), 2) for t in range(6)]
    [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    """
    if isinstance(schedule, Tensor):
        raise PerronError("warmup takes a number or a schedule, not one step size for each node.")
    full = schedule if callable(schedule) else lambda _: schedule
    return lambda step: full(step) * min((step + 1) / steps, 1.0)


def rate_at(lr: LearningRate, step: int) -> float | Tensor:
    """Return the step size of a step."""
    return lr if isinstance(lr, float | int | Tensor) else lr(step)


__dir__ = public_dir(__name__)

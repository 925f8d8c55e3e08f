"""Step sizes as functions of the step: ``lr`` may be a number, a tensor with a number for each node, or one of these."""

from __future__ import annotations

from collections.abc import Callable
from math import cos, pi

from torch import Tensor

Schedule = Callable[[int], float]
LearningRate = float | Tensor | Schedule


def power(lr: float, *, exponent: float = 0.5, scale: float = 1.0) -> Schedule:
    """lr / (1 + step/scale)^exponent: with exponent 1/2 the classical falling step of subgradient methods.

    >>> [round(power(0.5)(t), 4) for t in (0, 3, 99)]
    [0.5, 0.25, 0.05]
    """
    if not lr > 0 or exponent < 0 or not scale > 0:
        raise ValueError(f"power needs lr > 0, exponent >= 0, scale > 0; got {lr}, {exponent}, {scale}.")
    return lambda step: lr / (1 + step / scale) ** exponent


def cosine(lr: float, *, steps: int, final: float = 0.0) -> Schedule:
    """From lr down to ``final`` along half a cosine, over ``steps`` steps; constant afterwards.

    >>> [round(cosine(1.0, steps=10)(t), 3) for t in (0, 5, 10, 20)]
    [1.0, 0.5, 0.0, 0.0]
    """
    if steps < 1:
        raise ValueError(f"cosine needs steps >= 1; got {steps}.")
    return lambda step: final + (lr - final) * (1 + cos(pi * min(step / steps, 1.0))) / 2


def piecewise(lr: float, drops: dict[int, float]) -> Schedule:
    """lr, multiplied from each given step on by its factor.

    >>> [piecewise(1.0, {10: 0.1, 20: 0.5})(t) for t in (9, 10, 25)]
    [1.0, 0.1, 0.05]
    """

    def at(step: int) -> float:
        rate = lr
        for start, factor in drops.items():
            rate *= factor if step >= start else 1.0
        return rate

    return at


def warmup(schedule: LearningRate, steps: int) -> Schedule:
    """A schedule (or constant) that grows linearly from near zero over the first ``steps`` steps.

    >>> [round(warmup(1.0, 4)(t), 2) for t in range(6)]
    [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    """
    if isinstance(schedule, Tensor):
        raise TypeError("warmup takes a number or a schedule, not one step size for each node.")
    full = schedule if callable(schedule) else lambda _: schedule
    return lambda step: full(step) * min((step + 1) / steps, 1.0)


def rate_at(lr: LearningRate, step: int) -> float | Tensor:
    """The step size of a step."""
    return lr if isinstance(lr, float | int | Tensor) else lr(step)

"""Losses of linear models: functions phi of the scores z of a sample, ``(..., k)``, and of its target t, ``(..., k)``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import one_hot, softplus

from perron.errors import PerronError, listed


@dataclass(frozen=True)
class Loss:
    """A convex loss.

    Attributes:
        value: phi, ``(...)``.
        slope: its gradient in z, ``(..., k)``.
        bend: its Hessian in z times a direction v, as a function of (z, v), ``(..., k)``.
        curvature: the largest eigenvalue of that Hessian, at any z.
        classify: whether targets are classes.
    """

    value: Callable[[Tensor, Tensor], Tensor]
    slope: Callable[[Tensor, Tensor], Tensor]
    bend: Callable[[Tensor, Tensor], Tensor]
    curvature: float
    classify: bool = True


def _logistic_bend(z: Tensor, v: Tensor) -> Tensor:
    p = torch.sigmoid(z)
    return p * (1 - p) * v


def _softmax_bend(z: Tensor, v: Tensor) -> Tensor:
    p = torch.softmax(z, -1)
    return p * (v - (p * v).sum(-1, keepdim=True))


# ln(1 + exp(-t z)) with t = -1 or 1; half the square of z - t; ln(sum_c exp(z_c)) - t^T z with a unit vector t.
LOSSES = {
    "logistic": Loss(
        lambda z, t: softplus(-t * z).sum(-1), lambda z, t: -t * torch.sigmoid(-t * z), _logistic_bend, 0.25
    ),
    "squared": Loss(lambda z, t: (z - t).square().sum(-1) / 2, lambda z, t: z - t, lambda _, v: v, 1.0, classify=False),
    "softmax": Loss(
        lambda z, t: z.logsumexp(-1) - (t * z).sum(-1), lambda z, t: torch.softmax(z, -1) - t, _softmax_bend, 0.5
    ),
}


def encode(loss: str, targets: Any, classes: NDArray[Any] | None) -> tuple[Tensor, NDArray[Any]]:
    """Return targets ``(N, k)`` for a loss, and the classes in order; of two classes, the second one is +1.

    Args:
        loss: a key of `LOSSES`.
        targets: numbers, or names of classes.
        classes: those of the training samples, if these are test samples.
    """
    given = np.asarray(targets)
    if given.ndim != 1:
        raise PerronError(f"Targets are a vector, one for each sample; got the shape {given.shape}.")
    if not LOSSES[loss].classify:
        if given.dtype.kind not in "fiub":
            raise PerronError(f"Regression needs numbers as targets; got {listed(np.unique(given))}.")
        return torch.from_numpy(given.astype(np.float64))[:, None], np.empty(0)
    found = np.unique(given)
    known = found if classes is None else classes
    if loss == "logistic" and len(known) != 2:
        raise PerronError(
            f"Logistic regression needs two classes; the labels are {listed(found)}. For more classes use softmax, for numbers a "
            'squared loss (kind = "softmax" or "ridge" in a study).'
        )
    if len(known) < 2:
        raise PerronError(f"A classifier needs two classes or more; all labels are {listed(found)}.")
    if not np.isin(found, known).all():
        raise PerronError(
            f"The test set has labels {listed(found[~np.isin(found, known)])}, which no training sample has."
        )
    if len(known) > max(2, len(given) // 2) and classes is None:
        raise PerronError(
            f"{len(known)} classes of {len(given)} samples are too many: these targets look like numbers; use a squared loss."
        )
    numbers = torch.from_numpy(np.searchsorted(known, given))
    if loss == "logistic":
        return (2.0 * numbers.double() - 1)[:, None], known
    return one_hot(numbers, len(known)).double(), known

"""Unbiased moments of stochastic gradients, with standard errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from perron._typing import FloatArray
from perron.theory.curvature import finite


def moments(draws: Callable[[], Iterator[Tensor]], count: int) -> dict[str, tuple[float, float | None]]:
    """noise_var, heterogeneity and grad_norm_sq, unbiased, each with its standard error, from draws ``(n, d)``.

    Draws are made twice, for the mean and for what is about it: they are too large to be kept, and come out the same.
    Errors are the jackknife's: with s^2 = mean_t q_t, q_t = T/(T-1) |g_t - mean|^2, the variance without draw t is
    s^2 - (q_t - s^2) / (T-2), and the mean without it (T mean - g_t) / (T-1).
    """
    first = total = torch.zeros(())
    for number, grads in enumerate(draws()):
        finite(grads, "A stochastic gradient")
        first, total = (grads.double().clone(), torch.zeros_like(grads.double())) if not number else (first, total)
        total += grads - first  # so that of exact gradients nothing is left but zeros
    mean = first + total / count
    nodes = len(mean)
    about, spreads, squares = np.empty(count), np.empty(count), np.empty(count)
    for number, grads in enumerate(draws()):
        apart = grads.double() - mean
        about[number] = float(apart.square().sum()) / nodes * count / (count - 1)
        without = mean - apart / (count - 1)
        spreads[number], squares[number] = scatter(without), float(without.mean(0).square().sum())
    noise = about.mean()
    noises = noise - (about - noise) / (count - 2)
    spread, square = scatter(mean), float(mean.mean(0).square().sum())
    each, all_of_them = 1 - 1 / nodes, 1 / nodes  # how much of a node's noise is in the spread and in the average
    return {
        "noise_var": (float(noise), _jackknife(noises)),
        "heterogeneity": (
            float(spread - each * noise / count),
            _jackknife(spreads - each * noises / (count - 1)),
        ),
        "grad_norm_sq": (
            float(square - all_of_them * noise / count),
            _jackknife(squares - all_of_them * noises / (count - 1)),
        ),
    }


def _jackknife(without: FloatArray) -> float:
    """The standard error of an estimate from its values with one draw left out."""
    return float(np.sqrt((len(without) - 1) * without.var()))


def scatter(grads: Tensor) -> float:
    """(1/n) sum_i |g_i - mean|^2."""
    return float((grads - grads.mean(0)).square().sum()) / len(grads)

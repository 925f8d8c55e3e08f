"""Unbiased moments of stochastic gradients, with standard errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from perron._typing import FloatArray
from perron.theory.curvature import check_finite


def moments(draws: Callable[[], Iterator[Tensor]], count: int) -> dict[str, tuple[float, float | None]]:
    """Return noise_var, heterogeneity and grad_norm_sq, unbiased, each with its standard error, from draws ``(n, d)``.

    The draws are generated twice, identically, for the mean and for the deviations from it: they are too large to be kept.
    Errors are the jackknife's: with s^2 = mean_t q_t, q_t = T/(T-1) |g_t - mean|^2, the variance without draw t is
    s^2 - (q_t - s^2) / (T-2), and the mean without it (T mean - g_t) / (T-1).
    """
    first = total = torch.zeros(())
    for number, grads in enumerate(draws()):
        check_finite(grads, "A stochastic gradient")
        if not number:
            first, total = grads.double().clone(), torch.zeros_like(grads.double())
        total += grads - first  # exact gradients give exactly zero
    mean = first + total / count
    nodes = len(mean)
    squares, spreads, norms = np.empty(count), np.empty(count), np.empty(count)
    for number, grads in enumerate(draws()):
        deviation = grads.double() - mean
        squares[number] = float(deviation.square().sum()) / nodes * count / (count - 1)
        without = mean - deviation / (count - 1)
        spreads[number], norms[number] = scatter(without), float(without.mean(0).square().sum())
    noise = squares.mean()
    noises = noise - (squares - noise) / (count - 2)

    def corrected(value: float, values: FloatArray, share: float) -> tuple[float, float]:
        """An estimate less its share of the noise, and its standard error."""
        return float(value - share * noise / count), _jackknife(values - share * noises / (count - 1))

    return {
        "noise_var": (float(noise), _jackknife(noises)),
        "heterogeneity": corrected(scatter(mean), spreads, 1 - 1 / nodes),
        "grad_norm_sq": corrected(float(mean.mean(0).square().sum()), norms, 1 / nodes),
    }


def _jackknife(without: FloatArray) -> float:
    """The standard error of an estimate from its values with one draw left out."""
    return float(np.sqrt((len(without) - 1) * without.var()))


def scatter(grads: Tensor) -> float:
    """Return (1/n) sum_i |g_i - mean|^2."""
    return float((grads - grads.mean(0)).square().sum()) / len(grads)

"""Is there a speedup? Stationary levels, their slope against the number of nodes, and the time to an accuracy.

A level counts only if the curve has stopped falling: a transient can look like a speedup, as starting points that scatter,
averaged over more nodes, start lower.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf, nan, sqrt
from typing import Any

import numpy as np
from scipy.special import ndtri, stdtrit

from perron._registry import public_dir
from perron._typing import FloatArray, IntArray
from perron.errors import PerronError

SHARES = (1 / 2, 1 / 3, 1 / 4)  # of the run that are tried as the window of a level, the longest first
RECORDS = 16  # the fewest that a level is measured from
SIGNIFICANT = 3.0  # standard errors by which a fall must differ from zero
TOLERANCE = 0.2  # of the level: a fall of this size within the window must be excluded by two standard errors
RESAMPLES = 400
BAND = 0.1  # a slope is that of linear speedup if its whole interval lies within this of -1
COARSE = "cannot say: measured too coarsely"


@dataclass(frozen=True)
class Level:
    """The mean of a metric over the last part of a run.

    Attributes:
        mean, error: over the window, with the standard error over trials.
        fall, fall_error: by which share of the level the second half of the window lies below the first.
        since: the first step of the window.
        stationary: whether the run was shown to stay at this level.
        why: the reason, if not.
        each: the mean of each trial, ``(trials,)``.
    """

    mean: float
    error: float
    fall: float
    fall_error: float
    since: int
    stationary: bool
    why: str = ""
    each: FloatArray = field(default_factory=lambda: np.empty(0), repr=False, compare=False)


def level(steps: IntArray, values: FloatArray) -> Level:
    """Return the level at the end of a run; ``values`` is ``(records, trials)``.

    The window is the longest of the last half, third and quarter of the run in which the curve is shown not to fall or rise: the
    means of the window's two halves differ by less than three standard errors, *and* a difference of a fifth of the level is
    excluded by two of them. A curve that is too noisy for that is not stationary either: the noise could hide a fall.

    >>> noise = np.random.default_rng(0).exponential(size=(100, 20))
    >>> level(np.arange(100), noise).stationary
    True
    >>> level(np.arange(100), noise * 0.99 ** np.arange(100)[:, None]).why
    'still falling'
    """
    if not np.isfinite(values[-1]).all():
        return Level(nan, nan, nan, nan, int(steps[-1]), False, "diverged")
    if len(steps) < RECORDS:
        raise PerronError(
            f"A level needs at least {RECORDS} records of a run; got {len(steps)}. Set every to a smaller number."
        )
    levels = [_level(steps, values, share) for share in SHARES]
    return next((each for each in levels if each.stationary), levels[0])


def _level(steps: IntArray, values: FloatArray, share: float) -> Level:
    late = values[steps >= steps[-1] * (1 - share)]
    since, trials = int(steps[len(steps) - len(late)]), late.shape[1]
    half = len(late) // 2
    each = late.mean(axis=0)  # (trials,)
    mean = float(each.mean())
    falls = (late[:half].mean(axis=0) - late[len(late) - half :].mean(axis=0)) / (mean or 1.0)
    fall = float(falls.mean())
    if trials < 3:
        return Level(mean, nan, fall, nan, since, False, "too few trials", each)
    error, fall_error = (float(x.std(ddof=1)) / sqrt(trials) for x in (each, falls))
    if abs(fall) > max(SIGNIFICANT * fall_error, 1e-9):
        why = "still falling" if fall > 0 else "rising"
    elif abs(fall) + 2 * fall_error > TOLERANCE or error > TOLERANCE / 2 * mean:
        why = "too noisy"
    else:
        why = ""
    return Level(mean, error, fall, fall_error, since, not why, why, each)


@dataclass(frozen=True)
class Fit:
    """A power law y ~ x^slope with the 95 % interval of its slope, and the point ``(x, y)`` that it is fitted through."""

    slope: float
    low: float
    high: float
    center: tuple[float, float] = (nan, nan)

    def at(self, x: FloatArray, slope: float | None = None) -> FloatArray:
        """Return the values of the power law, or of one with another slope through the same point."""
        return self.center[1] * (x / self.center[0]) ** (self.slope if slope is None else slope)

    def __str__(self) -> str:
        return f"{self.slope:.3f} [{self.low:.3f}, {self.high:.3f}]"


def power_law(
    x: Sequence[float] | FloatArray,
    y: Sequence[float] | FloatArray,
    error: Sequence[float] | FloatArray,
    *,
    trials: int | None = None,
) -> Fit:
    """Fit log y to log x by least squares, weighted by the standard errors of y.

    The interval is wider where the points scatter more about the line than their errors predict, and where the errors come from
    few ``trials`` (Student's t). Errors of zero weigh as the smallest that is not.

    >>> str(power_law([1, 2, 4], [8, 4, 2], [0.1, 0.1, 0.1]))[:6]
    '-1.000'
    """
    u, v = np.log(np.asarray(x, dtype=float)), np.log(np.asarray(y, dtype=float))
    if len(set(u.tolist())) < 2:
        return Fit(nan, nan, nan)
    relative = np.asarray(error, dtype=float) / np.asarray(y)  # the standard error of log y
    weight = np.maximum(relative, relative[relative > 0].min(initial=1.0)) ** -2.0
    center = np.average(u, weights=weight)
    spread = float((weight * (u - center) ** 2).sum())
    slope = float((weight * (u - center) * v).sum()) / spread
    height = np.average(v, weights=weight)
    rest = v - height - slope * (u - center)
    misfit = float((weight * rest**2).sum()) / max(len(u) - 2, 1)
    quantile = stdtrit(trials - 1, 0.975) if trials else ndtri(0.975)  # of Student's t, and of the normal distribution
    width = float(quantile) * sqrt(max(1.0, misfit) / spread)
    return Fit(slope, slope - width, slope + width, (float(np.exp(center)), float(np.exp(height))))


def slope_verdict(fit: Fit) -> str:
    """Return what a slope of log(level/c) against log(n) says: a test of equivalence to -1, up to `BAND`.

    Linear speedup is claimed if the whole 95 % interval lies within `BAND` of -1, so that a slope at an edge of the band or
    beyond is called linear at most once in forty times. It is denied if the interval lies outside. Otherwise the measurement is
    too coarse. ``benchmarks/slopes.py`` measures how often each verdict is given.

    >>> slope_verdict(Fit(-0.98, -1.04, -0.92)), slope_verdict(Fit(-0.95, -1.02, -0.88)), slope_verdict(Fit(-0.5, -0.6, -0.4))
    ('linear speedup', 'cannot say: measured too coarsely', 'no linear speedup')
    """
    if not np.isfinite(fit.slope):
        return "needs two node counts"
    if fit.low >= -1 - BAND and fit.high <= -1 + BAND:
        return "linear speedup"
    if fit.high < -1 - BAND or fit.low > -1 + BAND:
        return "no linear speedup"
    return COARSE


def time_to(steps: IntArray, curve: FloatArray, accuracy: float) -> FloatArray:
    """Return the first recorded step from which curves ``(records, ...)`` stay at or below ``accuracy``; inf if they do not.

    A curve must stay there for the last fifth of the run at least.
    """
    above = ~(curve <= accuracy)  # nan is above
    last = np.where(above.any(axis=0), len(curve) - 1 - np.argmax(above[::-1], axis=0), -1)
    when = np.append(steps, inf)[last + 1].astype(float)
    return np.where(when <= 0.8 * steps[-1], when, inf)


@dataclass(frozen=True)
class Times:
    """Steps to an accuracy with the best of a grid of learning rates; resampled over trials for intervals.

    ``steps`` and ``lr`` are inf and nan if no learning rate of the grid gets there.
    """

    steps: float
    lr: float
    resampled: FloatArray
    at_edge: bool

    def speedup(self, many: Times) -> tuple[float, float, float]:
        """Return how many times fewer steps ``many`` takes, with the 95 % interval."""
        if not np.isfinite([self.steps, many.steps]).all() or not many.steps:
            return nan, nan, nan
        with np.errstate(invalid="ignore", divide="ignore"):
            ratios = self.resampled / many.resampled
        unknown = np.isnan(ratios)  # neither gets there, or both start there: the ratio can be anything
        low = np.percentile(np.where(unknown, 0.0, ratios), 2.5, method="lower")
        high = np.percentile(np.where(unknown, inf, ratios), 97.5, method="higher")
        return self.steps / many.steps, float(low), float(high)


def best_time(grid: dict[float, tuple[IntArray, FloatArray]], accuracy: float, *, seed: int = 0) -> Times:
    """Return the shortest time to an accuracy over learning rates: ``{lr: (steps, values (records, trials))}``.

    The mean over trials must stay below the accuracy. For the interval, the trials are resampled with replacement, and the best
    learning rate is chosen for each sample.
    """
    random = np.random.default_rng(seed)
    trials = next(iter(grid.values()))[1].shape[1]
    draws = random.integers(trials, size=(trials, RESAMPLES))
    rates = sorted(grid)
    times = np.array([float(time_to(grid[lr][0], grid[lr][1].mean(axis=1), accuracy)) for lr in rates])
    samples = np.array([time_to(grid[lr][0], grid[lr][1][:, draws].mean(axis=1), accuracy) for lr in rates])
    best = int(times.argmin())
    if not np.isfinite(times[best]):
        return Times(inf, nan, samples.min(axis=0), False)
    return Times(float(times[best]), rates[best], samples.min(axis=0), len(rates) > 1 and best in (0, len(rates) - 1))


def series(table: Any, metric: str) -> tuple[IntArray, FloatArray]:
    """Return the steps and values ``(records, trials)`` of one run's part of a results table."""
    if metric not in table.columns:
        raise PerronError(f"The results have no {metric}; add it to the study's metrics.")
    if table["run"].nunique() != 1:
        raise PerronError(
            f"{table['run'].nunique()} runs cannot be shown as one; the study varies too many parameters for this conclusion."
        )
    values = table.pivot(index="step", columns="trial", values=metric)
    return values.index.to_numpy(), np.ascontiguousarray(values.to_numpy(float))


__dir__ = public_dir(__name__)

"""Steps and seconds until |grad f|^2 has fallen to a share of its value at the start: what graphs and algorithms are compared by.

Without noise the errors in directions of curvature h fall by the spectral radius rho(lr h) of a linear recursion in a step.
From a start that is equally far from the optimum in the directions of curvature mu, sqrt(mu L) and L, these have the shares
w_h = h^2 / sum h^2 of |grad f|^2, so that

    T = max_h log(share / w_h) / (2 log rho(lr h))

at the lr with the smallest T. Directions of small curvature are slow, but have little of the gradient to lose. `RateCurve`
computes rho, a function of lr times curvature, on the smallest matrix that has the same eigenvalues, fast enough to search for a
graph. Seconds are steps times the seconds of a step (`perron.clock`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, inf, isfinite, log, sqrt

import torch

from perron.algorithms.base import Algorithm
from perron.clock.clock import Clock
from perron.clock.cycle import CycleTime
from perron.errors import PerronError
from perron.networks.facts import Network
from perron.networks.mixing import Mixing
from perron.theory.levels import Linearization, stationary_level
from perron.theory.rate_curve import RateCurve
from perron.theory.recursion import Recursion, as_network, recursion, single_threaded

# Effective step times largest curvature, in the search for the best lr:
LARGEST, SMALLEST, LEAST = 4.0, 2e-3, 1e-8  # where it begins and ends; where it ends if nothing larger is stable
RATIO, WORSE = 1.5, 4  # of neighbouring values, and how often they may be worse than the best before the search stops
GOLDEN, SECTIONS = (sqrt(5) - 1) / 2, 7  # golden sections between the neighbours of the best value: to about 2 %
STABLE = 1 - 1e-12  # a larger spectral radius does not count as convergence
COARSELY = 0.75  # of the logarithm of a rate that is good enough: with less, lr is not refined
TARGET, NOISY_TARGET, CONDITION = 1e-8, 1e-4, 50.0  # defaults: without noise, with noise; of the condition number
LEAST_TARGET = 1e-28  # of |grad f|^2: below, double precision does not resolve the gradient


@dataclass(frozen=True)
class StepsToAccuracy:
    """How many steps an algorithm needs on a network.

    Attributes:
        steps: T.
        lr: the step size with which it takes T steps.
        rate: the factor by which errors shrink in a step, in the long run.
        level: the stationary E |grad f(x-hat)|^2 at that lr; 0 without noise.
    """

    steps: float
    lr: float
    rate: float
    level: float = 0.0


@dataclass(frozen=True)
class TimeToAccuracy:
    """How many seconds an algorithm needs on a network of given links: ``cycle.seconds`` times ``found.steps``.

    Attributes:
        cycle: the seconds of a step, and what sets them.
        found: the steps; None if no step size is stable.
    """

    cycle: CycleTime
    found: StepsToAccuracy | None

    @property
    def seconds(self) -> float:
        """Seconds in all; infinite if no step size is stable."""
        return self.cycle.seconds * self.found.steps if self.found else inf


def curvatures_of(smoothness: float, condition: float) -> tuple[float, float, float]:
    """Return mu, sqrt(mu L) and L of a condition number L / mu."""
    if not (isfinite(smoothness) and smoothness > 0):
        raise PerronError(f"smoothness, the largest curvature, is a positive number; got {smoothness}.")
    if not (isfinite(condition) and condition >= 1):
        raise PerronError(f"A condition number L / mu is at least 1; got condition={condition}.")
    return smoothness / condition, smoothness / sqrt(condition), smoothness


def check_target(target: float | None, *, noisy: bool = False) -> float:
    """Return a target if it is one that can be reached; the default one if it is None."""
    if target is None:
        return NOISY_TARGET if noisy else TARGET
    if not 0 < target < 1:
        raise PerronError(
            f"A target is the share of |grad f|^2 at the start that may remain, between 0 and 1, as 1e-8; got {target}."
        )
    if target < LEAST_TARGET:
        raise PerronError(
            f"Double precision resolves |grad f|^2 down to about {LEAST_TARGET:g} of its value at the start; got target={target}."
        )
    return target


def _powers(curvatures: Sequence[float], share: float) -> dict[float, float]:
    """For each curvature, log(share) / log(share / w): to this power, its rate is that of an error which falls from 1 to share.

    It is infinite where the gradient is small enough from the start.
    """
    total = sum(curvature**2 for curvature in curvatures)
    weights = {curvature: curvature**2 / total for curvature in curvatures}
    return {h: log(share) / log(share / weight) if share < weight else inf for h, weight in weights.items()}


@single_threaded()
def steps_to_accuracy(
    algorithm: Algorithm,
    network: Network | Mixing,
    target: float | None = None,
    *,
    condition: float = CONDITION,
    smoothness: float = 1.0,
    noise_var: float = 0.0,
    start: float = 1.0,
    guess: float | None = None,
    enough: float = inf,
) -> StepsToAccuracy | None:
    """Return the steps until |grad f|^2 is ``target`` times its value at the start, at the best lr; None if no lr is stable.

    The start is equally far from the optimum in directions of the curvatures mu, sqrt(mu L) and L.

    With noise, lr is at most the largest at which the exact stationary level (`perron.theory.stationary`: second moments) is
    half of the goal, and the error of the start has to fall to the other half; without such an lr above 1e-8 / L there are no
    steps either. For biased methods the steps are those until their bias is reached, which is no accuracy at all: they are
    refused.

    Args:
        target: 1e-8 if None, and 1e-4 with noise.
        condition, smoothness: L / mu and L of the losses, which all nodes share; curvatures are mu, sqrt(mu L) and L.
        noise_var: E |noise|^2 of one node's gradient, spread evenly over the three curvatures.
        start: |grad f|^2 at the start, in whose units noise is.
        guess: an lr that should be nearly best, such as that of a similar network: fewer values are tried.
        enough: more steps than that need not be known exactly, and are found faster: they may be up to a quarter too many.

    Example:
        >>> import perron
        >>> ring = perron.Mixing.metropolis(perron.topologies.ring(8).symmetric())
        >>> found = steps_to_accuracy(perron.ALGORITHMS["exact_diffusion"], ring, 1e-8, condition=50)
        >>> round(found.steps), round(found.lr, 2)
        (154, 1.71)
    """
    target = check_target(target, noisy=noise_var > 0)
    if not (noise_var >= 0 and isfinite(noise_var) and isfinite(start) and start > 0):
        raise PerronError(f"noise_var must not be negative and start be positive; got {noise_var} and {start}.")
    network, algorithm = as_network(network), algorithm.reliable
    if not algorithm.about.exact:
        raise PerronError(f"{algorithm.about.title} is biased where nodes' data differ: it reaches no given accuracy.")
    curvatures = curvatures_of(smoothness, condition)
    linear = recursion(algorithm, network)
    curve, unit = RateCurve(linear, network.mixing), 1 / (smoothness * algorithm.effective_step(network))
    share, most = target, inf
    if noise_var:
        share, most = target / 2, _noise_cap(linear, curvatures, noise_var, target * start / 2, unit)
    lr, decay = _best(curve, _powers(curvatures, share), unit, guess, most, exp(log(share) / (2 * enough)))
    rate = curve.worst(lr, dict.fromkeys(curvatures, 1.0)) if lr else inf
    if not rate < STABLE:
        return None
    level = _level(linear, curvatures, noise_var, lr) if noise_var else 0.0
    return StepsToAccuracy(max(1.0, log(share) / (2 * log(max(decay, 1e-300)))), lr, rate, level)


def time_to_accuracy(
    algorithm: Algorithm,
    mixing: Mixing,
    clock: Clock,
    target: float | None = None,
    *,
    condition: float = CONDITION,
    smoothness: float = 1.0,
    noise_var: float = 0.0,
    start: float = 1.0,
    dim: int | None = None,
) -> TimeToAccuracy:
    """Return the seconds until |grad f|^2 is ``target`` times its value at the start: steps times seconds of a step.

    Arguments are those of `steps_to_accuracy`; ``dim`` is the length of the model, where the clock has no ``size``.
    """
    cycle = clock.cycle_time(algorithm, mixing, dim=dim)
    found = steps_to_accuracy(
        algorithm, mixing, target, condition=condition, smoothness=smoothness, noise_var=noise_var, start=start
    )
    return TimeToAccuracy(cycle, found)


def _best(
    curve: RateCurve, powers: Mapping[float, float], unit: float, guess: float | None, most: float, enough: float
) -> tuple[float, float]:
    """The lr with the smallest `RateCurve.worst`, up to ``most``, and that value; coarsely, if it is far above ``enough``."""
    best, least, worse = 0.0, inf, 0

    def tried(lr: float) -> float:
        nonlocal best, least
        rate = curve.worst(lr, powers, least)
        if rate < least:
            best, least = lr, rate
        return rate

    lr = min(most, LARGEST * unit if guess is None else guess * RATIO**2)
    while lr > (SMALLEST if least < STABLE else LEAST) * unit:
        worse = 0 if tried(lr) <= least else worse + 1
        if least < STABLE and worse >= (WORSE if guess is None else 2):
            break
        lr /= RATIO
    if guess is not None and best == min(most, guess * RATIO**2) < most:
        return _best(curve, powers, unit, None, most, enough)  # the best may be far from the guess
    if not least < STABLE or log(max(least, 1e-300)) > COARSELY * log(enough):
        return best, least
    low, high = best / RATIO, min(best * RATIO, most)
    left, right = (low * (high / low) ** share for share in (1 - GOLDEN, GOLDEN))
    at_left, at_right = tried(left), tried(right)
    for _ in range(SECTIONS):
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = low * (high / low) ** (1 - GOLDEN)
            at_left = tried(left)
        else:
            low, left, at_left = left, right, at_right
            right = low * (high / low) ** GOLDEN
            at_right = tried(right)
    return best, least


def _level(linear: Recursion, curvatures: Sequence[float], noise_var: float, lr: float) -> float:
    """The stationary E |grad f(x-hat)|^2, for the same noise at all nodes; infinite where the recursion is unstable."""
    spread = torch.full((linear.nodes, len(curvatures)), noise_var / len(curvatures), dtype=torch.float64)
    local = Linearization(torch.tensor(curvatures, dtype=torch.float64), torch.zeros_like(spread), spread)
    try:
        return stationary_level(linear, local, lr).grad_norm_sq
    except PerronError:
        return inf


def _noise_cap(linear: Recursion, curvatures: Sequence[float], noise_var: float, goal: float, unit: float) -> float:
    """The largest lr whose stationary level is at most ``goal``, to 1 %; the level of small steps is proportional to lr."""

    def good(lr: float) -> bool:
        return _level(linear, curvatures, noise_var, lr) <= goal

    return _last(good, 0.1 * unit, LARGEST * unit)


def _last(good: Callable[[float], bool], first: float, most: float) -> float:
    """The largest value for which a predicate holds that holds for small values, to 1 %."""
    low = high = first
    while good(high) and high < most:
        low, high = high, high * 4
    while not good(low) and low > 1e-15 * first:
        low, high = low / 4, low
    while high / low > 1.01:
        middle = sqrt(low * high)
        low, high = (middle, high) if good(middle) else (low, middle)
    return low

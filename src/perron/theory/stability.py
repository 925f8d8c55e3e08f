"""The steps at which an algorithm is stable on a network, its rate of convergence, and the steps until only noise is left."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import inf, isfinite
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from perron.algorithms.base import Algorithm, advance
from perron.errors import PerronError
from perron.monitor.progress import waiting
from perron.networks.facts import Network
from perron.networks.mixing import Mixing
from perron.problems.base import Problem
from perron.theory.levels import check_nodes, linearize, optimum_of, stationary
from perron.theory.matrix_node import matrix_node
from perron.theory.rate_curve import HessianRates, RateCurve, SharedRates
from perron.theory.recursion import as_network, check_lr, single_threaded, unit_recursion

# Effective step times largest curvature, in the search for stable steps:
SMALLEST, GREATEST = 1e-3, 10.0  # its first and last value
MOST = 1000.0  # its last value if everything up to there is stable
LEAST = 1e-8  # the smallest value that is tried
COARSE, FINE, FINE_FROM = (
    1.25,
    1.08,
    0.02,
)  # ratios of neighbouring values: fine where methods have windows of instability
ACCURACY = 1e-4  # relative accuracy of the ends of an interval

Curvature = float | Tensor  # a number that all nodes share, several ``(k,)``, or the nodes' Hessians ``(n, d, d)``


class StableRange(NamedTuple):
    """The steps for which a recursion contracts: lower < lr < upper; ``lower`` is 0 where small steps are stable."""

    lower: float
    upper: float


class BestStep(NamedTuple):
    """The step with the fastest convergence: errors shrink by ``rate`` in a step, asymptotically."""

    lr: float
    rate: float


@single_threaded()
def rate(algorithm: Algorithm, network: Network | Mixing, lr: float, problem: Problem | Curvature) -> float:
    """Return the factor by which errors shrink in a step, asymptotically: the spectral radius of the recursion at the optimum.

    Above one, errors grow. Without noise |x_t - x*| falls like rate^t; exact for quadratics, and for others close to the
    optimum. Where nodes take part at random, it is the root of the rate of E |x_t - x*|^2.

    Args:
        problem: whose Hessians at the optimum count; or a curvature that all nodes share, or several.
    """
    network = as_network(network)
    check_lr(lr)
    return _rates(algorithm, network, _curvature(problem, network))(lr)


@single_threaded()
@waiting("searching for stable steps")
def stable_lr(algorithm: Algorithm, network: Network | Mixing, problem: Problem | Curvature) -> StableRange | None:
    """Return the interval of steps for which the recursion at the optimum contracts, or None if there is none.

    Steps are tried upwards with effective step times largest curvature from 0.001 on (from less, down to 1e-8, if that is
    unstable), 8 % apart from 0.02 on, and the ends bisected to 0.01 %. Where small steps are stable (lower = 0), the interval
    ends at the first that is not. EXTRA-like methods on digraphs are often unstable for small steps; then it is the widest
    interval up to 10. Exact for quadratics; other losses diverge beyond it if they are as curved as at the optimum.

    Args:
        problem: whose Hessians at the optimum count; or a curvature L that all nodes share.

    Example:
        >>> import perron
        >>> mixing = perron.Mixing.random_integer(perron.topologies.exponential(16), seed=0)
        >>> [round(stable_lr(perron.PushPull(order=order), mixing, 1.0).upper, 2) for order in ("cta", "pu", "atc")]
        [0.28, 2.01, 1.34]
    """
    network = as_network(network)
    curvature = _curvature(problem, network)
    unit, rates = _unit(algorithm, network, curvature), _rates(algorithm, network, curvature)

    @cache
    def contracts(step: float) -> bool:
        return rates.contracts(step * unit, 1 - 1e-12)

    first = SMALLEST
    while not contracts(first) and first > LEAST:  # slow networks need tiny steps
        first /= COARSE**4
    first = first if contracts(first) else SMALLEST
    grid, stable = [first], [contracts(first)]
    while grid[-1] < GREATEST or (stable[-1] and grid[-1] < MOST):
        grid.append(grid[-1] * (COARSE if grid[-1] < FINE_FROM else FINE))
        stable.append(contracts(grid[-1]))
        if stable[0] and not stable[-1]:
            break
    changes = np.diff([0, *stable, 0])
    starts, ends = np.flatnonzero(changes == 1), np.flatnonzero(changes == -1) - 1
    if not len(starts):
        return None
    widest = int(np.argmax(np.array(grid)[ends] / np.array(grid)[starts]))
    begin, last = int(starts[widest]), int(ends[widest])
    lower = 0.0 if begin == 0 else _edge(contracts, inside=grid[begin], outside=grid[begin - 1])
    upper = inf if last == len(grid) - 1 else _edge(contracts, inside=grid[last], outside=grid[last + 1])
    return StableRange(lower * unit, upper * unit)


def _edge(contracts: Callable[[float], bool], *, inside: float, outside: float) -> float:
    """The last point at which a predicate holds, between a point where it does and one where it does not."""
    while abs(outside / inside - 1) > ACCURACY:
        middle = (inside * outside) ** 0.5
        inside, outside = (middle, outside) if contracts(middle) else (inside, middle)
    return inside


@single_threaded()
def best_lr(
    algorithm: Algorithm, network: Network | Mixing, problem: Problem | Curvature, *, stable: StableRange | None = None
) -> BestStep | None:
    """Return the step at which errors shrink fastest, with its rate; None if no step is stable.

    Found by a search over the stable interval (``stable``, if it is known), for the curvatures of the problem: with a single
    curvature, the answer is for that alone.
    """
    network = as_network(network)
    curvature = _curvature(problem, network)
    stable = stable_lr(algorithm, network, curvature) if stable is None else stable
    if stable is None:
        return None
    upper = stable.upper if isfinite(stable.upper) else GREATEST * _unit(algorithm, network, curvature)
    ends = (max(stable.lower, upper * 0.02), upper)
    best, rate_of = BestStep(0.0, inf), _rates(algorithm, network, curvature)
    for _ in range(4):  # finer and finer grids: the rate has kinks, where another mode becomes the slowest
        grid = np.geomspace(*ends, 14).tolist()
        rates = [rate_of(lr) for lr in grid]
        least = int(np.argmin(rates))
        best = min(best, BestStep(grid[least], rates[least]), key=lambda step: step.rate)
        ends = (grid[max(least - 1, 0)], grid[min(least + 1, len(grid) - 1)])
    return best


@single_threaded()
def transient(
    problem: Problem, algorithm: Algorithm, network: Network | Mixing, lr: float, *, most: int = 100_000
) -> int | None:
    """Return the number of steps until noise dominates, or None if more than ``most`` are needed.

    That is the first step at which |grad f(x-hat)|^2 of the run WITHOUT noise, from the problem's own start, is below the
    stationary level. At that point E grad_norm_sq is about twice the level of an exact method, and more steps at this lr gain at
    most another factor of two. (The noiseless run of a biased method approaches its bias.) The noiseless run is made with the
    problem linearised at its optimum.
    """
    network = as_network(network)
    level = stationary(problem, algorithm, network, lr).grad_norm_sq
    x, node = optimum_of(problem), matrix_node(network)
    hessians, force = (
        problem.local_hessians(x).double(),
        problem.local_grads(x.expand(problem.nodes, problem.dim)).double(),
    )
    hessian = hessians.mean(0)

    def gradient(deviation: Tensor) -> Tensor:
        return (hessians @ deviation.unsqueeze(-1)).squeeze(-1) + force

    with torch.no_grad():
        state = algorithm.init(problem.start().double() - x, node)
        for step in range(most + 1):
            if float(((hessian @ algorithm.average(state, network)) ** 2).sum()) <= level:
                return step
            state = advance(algorithm, state, node, lr, gradient)
            node.step += 1
    return None


def as_curvature(given: object, nodes: int) -> Tensor:
    """Return curvatures as a tensor: a number or several as ``(k,)``, Hessians as ``(n, d, d)``."""
    try:
        curvature = torch.as_tensor(given, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError):
        curvature = torch.empty(0)
    curvature = curvature[None] if curvature.ndim == 0 else curvature
    square = curvature.ndim == 3 and len(curvature) == nodes and curvature.shape[1] == curvature.shape[2]
    if not curvature.numel() or not (curvature.ndim == 1 or square) or not bool(curvature.isfinite().all()):
        raise PerronError(
            f"A curvature is a positive number, several, or Hessians (n, d, d) for n = {nodes}; got {given!r:.80}."
        )
    return curvature


def _curvature(problem: Problem | Curvature, network: Network) -> Tensor:
    """The curvature of a problem at its optimum, or as given.

    Directions without curvature (below 1e-9 of the largest) are left out: nothing changes along them at any step.
    """
    if isinstance(problem, Problem):
        check_nodes(problem, network)
        curvature = as_curvature(linearize(problem, noise=False).curvature, network.nodes)
    else:
        curvature = as_curvature(problem, network.nodes)
    if curvature.ndim == 1:
        curvature = curvature[curvature > 1e-9 * curvature.max()]
        if not len(curvature):
            raise PerronError(f"A curvature is a positive number; got {problem!r:.80}.")
    return curvature


def largest_curvature(curvature: Tensor) -> float:
    """Return the largest of shared curvatures, or the largest eigenvalue of any Hessian."""
    return float((curvature if curvature.ndim == 1 else torch.linalg.eigvalsh(curvature)).max())


def _unit(algorithm: Algorithm, network: Network, curvature: Tensor) -> float:
    """The lr at which effective step times largest curvature is one."""
    return 1 / (largest_curvature(curvature) * algorithm.effective_step(network))


def _rates(algorithm: Algorithm, network: Network, curvature: Tensor) -> SharedRates | HessianRates:
    """The rate as a function of lr."""
    unit = unit_recursion(algorithm, network)
    if not unit.stages[0].R.shape[0]:
        raise PerronError(f"{algorithm.about.title} asks for no gradients, so that no step is too large for it.")
    if curvature.ndim == 1:
        return SharedRates(RateCurve(unit, network.mixing), curvature.tolist())
    return HessianRates(unit, curvature)

"""Which steps an algorithm bears on a network, how fast it then converges, and how long until noise is all that is left."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, isfinite
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator, eigs
from torch import Tensor

from perron.algorithms.base import Algorithm, advance
from perron.errors import PerronError
from perron.networks.facts import Network
from perron.networks.mixing import Mixing
from perron.problems.base import Problem
from perron.theory.levels import Around, Closed, around, check_nodes, closed, product, spectral_radius, stationary
from perron.theory.recursion import LARGEST, as_network, matrix_node, one_thread, unit_recursion

SMALLEST, GREATEST = 1e-3, 10.0  # effective step times curvature: where trying begins and ends
MOST = 1000.0  # where it ends if all is stable up to there
LEAST = 1e-8  # how far down we look for a stable step
COARSE, FINE, FINE_FROM = 1.25, 1.08, 0.02  # the spacing: fine where methods have windows of instability
ACCURACY = 1e-4  # to which the ends of an interval are found, relatively


class Stable(NamedTuple):
    """The steps for which a recursion contracts: lower < lr < upper; ``lower`` is 0 where small steps do."""

    lower: float
    upper: float


class Best(NamedTuple):
    """The step with the fastest convergence: errors shrink by ``rate`` in a step, in the long run."""

    lr: float
    rate: float


@one_thread()
def rate(algorithm: Algorithm, network: Network | Mixing, lr: float, problem: Problem | float | Tensor) -> float:
    """By how much errors shrink in a step, in the long run: the spectral radius of the recursion at the optimum.

    Above one, errors grow. Without noise |x_t - x*| falls like rate^t; exact for quadratics, and for others close to the
    optimum. Where nodes take part at random, it is the root of the rate of E |x_t - x*|^2.

    Args:
        problem: whose Hessians at the optimum count; or a curvature that all nodes share, or several.
    """
    network = as_network(network)
    if not (isfinite(lr) and lr > 0):
        raise PerronError(f"lr must be a positive number; got {lr}.")
    return _rate(algorithm, network, lr, _curvature(problem, network))


@one_thread()
def stable_lr(algorithm: Algorithm, network: Network | Mixing, problem: Problem | float | Tensor) -> Stable | None:
    """The interval of steps for which the recursion at the optimum contracts, or None if there is none.

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
    unit = _unit(algorithm, network, curvature)

    def contracts(step: float) -> bool:
        return _rate(algorithm, network, step * unit, curvature) < 1 - 1e-12

    first = SMALLEST
    while not contracts(first) and first > LEAST:  # slow networks bear tiny steps only
        first /= COARSE**4
    first = first if contracts(first) else SMALLEST
    grid, good = [first], [contracts(first)]
    while grid[-1] < GREATEST or (good[-1] and grid[-1] < MOST):
        grid.append(grid[-1] * (COARSE if grid[-1] < FINE_FROM else FINE))
        good.append(contracts(grid[-1]))
        if good[0] and not good[-1]:
            break
    held = np.array([False, *good, False])
    starts, ends = np.flatnonzero(held[1:] & ~held[:-1]), np.flatnonzero(held[:-1] & ~held[1:]) - 1
    if not len(starts):
        return None
    widest = int(np.argmax(np.array(grid)[ends] / np.array(grid)[starts]))
    begin, last = int(starts[widest]), int(ends[widest])
    lower = 0.0 if begin == 0 else _edge(contracts, inside=grid[begin], outside=grid[begin - 1])
    upper = inf if last == len(grid) - 1 else _edge(contracts, inside=grid[last], outside=grid[last + 1])
    return Stable(lower * unit, upper * unit)


@one_thread()
def best_lr(
    algorithm: Algorithm, network: Network | Mixing, problem: Problem | float | Tensor, *, stable: Stable | None = None
) -> Best | None:
    """The step at which errors shrink fastest, and by how much; None if there is no stable one.

    Found by a search over the stable interval (``stable``, if it is known), for the curvatures of the problem: with one curvature
    only, the answer is for that alone.
    """
    network = as_network(network)
    curvature = _curvature(problem, network)
    stable = stable_lr(algorithm, network, curvature) if stable is None else stable
    if stable is None:
        return None
    upper = stable.upper if isfinite(stable.upper) else GREATEST * _unit(algorithm, network, curvature)
    ends = (max(stable.lower, upper * 0.02), upper)
    best = Best(0.0, inf)
    for _ in range(
        4
    ):  # ever finer grids around the best so far: the rate has kinks, where one mode takes over from another
        grid = np.geomspace(*ends, 14)
        found = [_rate(algorithm, network, float(lr), curvature) for lr in grid]
        at = int(np.argmin(found))
        best = min(best, Best(float(grid[at]), found[at]), key=lambda one: one.rate)
        ends = (float(grid[max(at - 1, 0)]), float(grid[min(at + 1, len(grid) - 1)]))
    return best


@one_thread()
def transient(
    problem: Problem, algorithm: Algorithm, network: Network | Mixing, lr: float, *, most: int = 100_000
) -> int | None:
    """How many steps until noise is all that is left: the first at which |grad f(x-hat)|^2 of the run WITHOUT noise, from the
    problem's own start, is below the stationary level. None if it is not within ``most`` steps.

    At that point E grad_norm_sq is about twice the level of an exact method, and more steps at this lr gain another factor of two
    at most. (Of a biased method it is the bias that the noiseless run approaches.) The noiseless run is made with the problem
    linearised at its optimum.
    """
    network = as_network(network)
    level = stationary(problem, algorithm, network, lr).grad_norm_sq
    run = Noiseless(problem, algorithm, network)
    for step in range(most + 1):
        if run.grad_norm_sq() <= level:
            return step
        run.advance(lr)
    return None


class Noiseless:
    """A run with exact gradients of the problem linearised at its optimum; all nodes in one, on dense matrices."""

    def __init__(self, problem: Problem, algorithm: Algorithm, network: Network) -> None:
        if problem.optimum is None:
            raise PerronError("The optimum of this problem is not known, so theory cannot linearise it there.")
        self.algorithm, self.network = algorithm, network
        x = problem.optimum.double()
        self.hessians = problem.local_hessians(x).double()
        self.force = problem.local_grads(x.expand(problem.nodes, problem.dim)).double()
        self.mean = self.hessians.mean(0)
        self.node = matrix_node(network)
        with torch.no_grad():
            self.state = algorithm.init(problem.start().double() - x, self.node)

    def grad_norm_sq(self) -> float:
        """|grad f(x-hat)|^2."""
        return float(((self.mean @ self.algorithm.average(self.state, self.network)) ** 2).sum())

    def advance(self, lr: float) -> None:
        """One step."""
        with torch.no_grad():
            self.state = advance(
                self.algorithm, self.state, self.node, lr,
                lambda x: (self.hessians @ x.unsqueeze(-1)).squeeze(-1) + self.force,
            )  # fmt: skip
        self.node.step += 1


def _curvature(problem: Problem | float | Tensor | Around, network: Network) -> Tensor:
    """Of a problem at its optimum, or as given: shared scalars ``(k,)``, or Hessians ``(n, d, d)``.

    Directions without curvature (below 1e-9 of the largest) do not count: nothing happens along them at any step.
    """
    if isinstance(problem, Problem):
        check_nodes(problem, network)
        found = around(problem, noise=False).curvature
    elif isinstance(problem, Around):
        found = problem.curvature
    else:
        try:
            found = torch.as_tensor(problem, dtype=torch.float64)
        except (TypeError, ValueError, RuntimeError):
            found = torch.empty(0)
        found = found[None] if found.ndim == 0 else found
    square = found.ndim == 3 and found.shape[0] == network.nodes and found.shape[1] == found.shape[2]
    if not found.numel() or not (found.ndim == 1 or square) or not bool(found.isfinite().all()):
        raise PerronError(
            f"A curvature is a positive number, several, or Hessians (n, d, d) for n = {network.nodes}; got {problem!r:.80}."
        )
    if found.ndim == 1:
        found = found[found > 1e-9 * found.max()]
        if not len(found):
            raise PerronError(f"A curvature is a positive number; got {problem!r:.80}.")
    return found


def _unit(algorithm: Algorithm, network: Network, curvature: Tensor) -> float:
    """The lr at which effective step times largest curvature is one."""
    largest = float((curvature if curvature.ndim == 1 else torch.linalg.eigvalsh(curvature)).max())
    return 1 / (largest * algorithm.effective_step(network))


def _rate(algorithm: Algorithm, network: Network, lr: float, curvature: Tensor) -> float:
    found = unit_recursion(algorithm, network)
    size = found.stages[0].P.shape[0] * (1 if curvature.ndim == 1 else curvature.shape[-1])
    if size > LARGEST:
        raise PerronError(f"The recursion has {size} unknowns, and theory works with dense matrices, up to {LARGEST}.")
    if not found.stages[0].R.shape[0]:
        raise PerronError(f"{algorithm.about.title} asks for no gradients, so that no step is too large for it.")
    steps, _ = closed(found, lr * curvature)
    if found.fluctuations:
        return _mean_square_rate(steps, found.variance) ** (1 / len(steps))
    return spectral_radius(product(steps)) ** (1 / len(steps))


def _mean_square_rate(steps: list[Closed], variance: float) -> float:
    """The root of the spectral radius of X -> E[M X M^T], the map that carries second moments over a period."""
    largest = 0.0
    for system in range(len(steps[0].M)):
        each = [
            torch.stack([step.M[system], *(variance**0.5 * part[system] for part, _ in step.parts)]) for step in steps
        ]
        size = steps[0].M.shape[-1]
        if size**2 <= 800:  # as a matrix on flattened X: sum of Kronecker products
            whole = torch.eye(size**2, dtype=torch.float64)
            for kinds in each:
                rows, columns = kinds.shape[1:]
                whole = torch.einsum("kab,kcd->acbd", kinds, kinds).reshape(rows**2, columns**2) @ whole
            largest = max(largest, float(torch.linalg.eigvals(whole).abs().max()))
            continue

        def carried(flat: Any, each: list[Tensor] = each, size: int = size) -> Any:
            X = torch.as_tensor(np.asarray(flat).reshape(size, size))
            for kinds in each:
                X = (kinds @ X @ kinds.mT).sum(0)
            return X.reshape(-1).numpy()

        operator = LinearOperator((size**2, size**2), matvec=carried, dtype=np.float64)
        found = eigs(operator, k=1, v0=np.eye(size).ravel(), tol=1e-6, return_eigenvectors=False)
        largest = max(largest, float(np.abs(found).max()))
    return largest**0.5


def _edge(contracts: Callable[[float], bool], *, inside: float, outside: float) -> float:
    """Where a predicate changes between a point at which it holds and one at which it does not; the last where it holds."""
    while abs(outside / inside - 1) > ACCURACY:
        middle = (inside * outside) ** 0.5
        inside, outside = (middle, outside) if contracts(middle) else (inside, middle)
    return inside

"""Which steps an algorithm bears on a network, how fast it then converges, and how long until noise is all that is left."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, isfinite
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from scipy.sparse.linalg import LinearOperator, eigs
from torch import Tensor

from perron.algorithm import Algorithm, advance
from perron.errors import PerronError
from perron.mixing import Mixing
from perron.network import Network
from perron.problem import Problem
from perron.theory.levels import Around, Closed, around, closed, level_of, product
from perron.theory.recursion import LARGEST, MatrixNode, dense, recursion

SMALLEST, GREATEST = 1e-3, 10.0  # effective step times curvature: where trying begins and ends
MOST = 1000.0  # where it ends if all is stable up to there
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


def rate(algorithm: Algorithm, network: Network | Mixing, lr: float, problem: Problem | float | Tensor) -> float:
    """By how much errors shrink in a step, in the long run: the spectral radius of the recursion at the optimum.

    Above one, errors grow. Without noise |x_t - x*| falls like rate^t; exact for quadratics, and for others close to the
    optimum. Where nodes take part at random, it is the root of the rate of E |x_t - x*|^2.

    Args:
        problem: whose Hessians at the optimum count; or a curvature that all nodes share, or several.
    """
    return _rate(algorithm, _as_network(network), lr, _curvature(problem))


def stable_lr(algorithm: Algorithm, network: Network | Mixing, problem: Problem | float | Tensor) -> Stable | None:
    """The interval of steps for which the recursion at the optimum contracts, or None if there is none.

    Steps are tried upwards with effective step times largest curvature from 0.001 on, 8 % apart from 0.02 on, and the ends
    bisected to 0.01 %. Where small steps are stable (lower = 0), the interval ends at the first that is not. EXTRA-like methods
    on digraphs are often unstable for small steps; then it is the widest interval up to 10. Exact for quadratics; other losses
    diverge beyond it if they are as curved as at the optimum.

    Args:
        problem: whose Hessians at the optimum count; or a curvature L that all nodes share.

    Example:
        >>> import perron
        >>> mixing = perron.Mixing.random_integer(perron.topologies.exponential(16), seed=0)
        >>> [round(stable_lr(perron.PushPull(order=order), mixing, 1.0).upper, 2) for order in ("cta", "pu", "atc")]
        [0.23, 1.92, 1.67]
    """
    network, curvature = _as_network(network), _curvature(problem)
    unit = _unit(algorithm, network, curvature)

    def contracts(step: float) -> bool:
        return _rate(algorithm, network, step * unit, curvature) < 1 - 1e-12

    grid, good = [SMALLEST], [contracts(SMALLEST)]
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
    first, last = int(starts[widest]), int(ends[widest])
    lower = 0.0 if first == 0 else _edge(contracts, inside=grid[first], outside=grid[first - 1])
    upper = inf if last == len(grid) - 1 else _edge(contracts, inside=grid[last], outside=grid[last + 1])
    return Stable(lower * unit, upper * unit)


def best_lr(
    algorithm: Algorithm, network: Network | Mixing, problem: Problem | float | Tensor, *, stable: Stable | None = None
) -> Best | None:
    """The step at which errors shrink fastest, and by how much; None if there is no stable one.

    Found by a search over the stable interval (``stable``, if it is known), for the curvatures of the problem: with one curvature
    only, the answer is for that alone.
    """
    network, curvature = _as_network(network), _curvature(problem)
    stable = stable_lr(algorithm, network, curvature) if stable is None else stable
    if stable is None:
        return None
    upper = stable.upper if isfinite(stable.upper) else GREATEST * _unit(algorithm, network, curvature)
    grid = np.geomspace(max(stable.lower, upper * 0.02), upper, 14)[1:-1]
    found = [_rate(algorithm, network, float(lr), curvature) for lr in grid]
    at = int(np.argmin(found))
    ends = (grid[max(at - 1, 0)], grid[min(at + 1, len(grid) - 1)])
    finer = minimize_scalar(
        lambda lr: _rate(algorithm, network, float(lr), curvature),
        bounds=ends,
        method="bounded",
        options={"xatol": ends[1] * 1e-3},
    )
    best = (float(finer.x), float(finer.fun)) if finer.fun < found[at] else (float(grid[at]), found[at])
    return Best(*best)


def transient(
    problem: Problem, algorithm: Algorithm, network: Network | Mixing, lr: float, *, most: int = 100_000
) -> int | None:
    """How many steps until noise is all that is left: the first at which |grad f(x-hat)|^2 of the run WITHOUT noise, from the
    problem's own start, is below the stationary level. None if it is not within ``most`` steps.

    At that point E grad_norm_sq is twice the level, and more steps at this lr gain another factor of two at most. The
    noiseless run is made with the problem linearised at its optimum.
    """
    network = _as_network(network)
    near = around(problem)
    level = level_of(recursion(algorithm, network, lr), near).grad_norm_sq
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


def matrix_node(network: Network) -> MatrixNode:
    """All nodes of a network on dense matrices; who could stay away does not."""
    pulls, pushes = ([torch.as_tensor(dense(m)) for m in side] for side in network.mixing.sequences)
    share = torch.as_tensor(network.nodes * network.push_perron) if network.mixing.has_push else None
    return MatrixNode(pulls, pushes, share=share, pattern=torch.zeros(network.nodes, dtype=torch.float64))


def _as_network(network: Network | Mixing) -> Network:
    return network if isinstance(network, Network) else Network(network)


def _curvature(problem: Problem | float | Tensor | Around) -> Tensor:
    """Of a problem at its optimum, or as given: shared scalars ``(k,)``, or Hessians ``(n, d, d)``."""
    if isinstance(problem, Problem):
        return around(problem, noise=False).curvature
    if isinstance(problem, Around):
        return problem.curvature
    given = torch.as_tensor(problem, dtype=torch.float64)
    given = given[None] if given.ndim == 0 else given
    if given.ndim not in (1, 3) or not bool(given.isfinite().all()) or float(given.max()) <= 0:
        raise PerronError(f"A curvature is a positive number, several, or Hessians (n, d, d); got {problem!r:.80}.")
    return given


def _unit(algorithm: Algorithm, network: Network, curvature: Tensor) -> float:
    """The lr at which effective step times largest curvature is one."""
    largest = float((curvature if curvature.ndim == 1 else torch.linalg.eigvalsh(curvature)).max())
    return 1 / (largest * algorithm.effective_step(network))


def _rate(algorithm: Algorithm, network: Network, lr: float, curvature: Tensor) -> float:
    found = recursion(algorithm, network, lr)
    size = found.stages[0].P.shape[0] * (1 if curvature.ndim == 1 else curvature.shape[-1])
    if size > LARGEST:
        raise PerronError(f"The recursion has {size} unknowns, and theory works with dense matrices, up to {LARGEST}.")
    if not found.stages[0].R.shape[0]:
        raise PerronError(f"{algorithm.about.title} asks for no gradients, so that no step is too large for it.")
    steps, _ = closed(found, curvature)
    if found.fluctuations:
        return _mean_square_rate(steps, found.variance) ** (1 / len(steps))
    return float(torch.linalg.eigvals(product(steps)).abs().max()) ** (1 / len(steps))


def _mean_square_rate(steps: list[Closed], variance: float) -> float:
    """The root of the spectral radius of X -> E[M X M^T], the map that carries second moments over a period."""
    largest = 0.0
    for system in range(len(steps[0].M)):
        size = steps[0].M.shape[-1]

        def carried(flat: Any, system: int = system, size: int = size) -> Any:
            X = torch.as_tensor(np.asarray(flat).reshape(size, size))
            for step in steps:
                M = step.M[system]
                moved = M @ X @ M.T
                for part, _ in step.parts:
                    moved = moved + variance * part[system] @ X @ part[system].T
                X = moved
            return X.reshape(-1).numpy()

        operator = LinearOperator((size * size, size * size), matvec=carried, dtype=np.float64)
        start = np.eye(size).ravel()
        value = (
            eigs(operator, k=1, v0=start, tol=1e-8, return_eigenvectors=False) if size > 2 else [_power(carried, start)]
        )
        largest = max(largest, float(np.abs(value).max()))
    return largest**0.5


def _power(apply: Callable[[Any], Any], start: Any) -> float:
    """The spectral radius of a positive map on tiny matrices, by iteration."""
    vector, size = start, 0.0
    for _ in range(2000):
        vector = apply(vector)
        size = float(np.abs(vector).max())
        if size == 0:
            return 0.0
        vector = vector / size
    return size


def _edge(contracts: Callable[[float], bool], *, inside: float, outside: float) -> float:
    """Where a predicate changes between a point at which it holds and one at which it does not; the last where it holds."""
    while abs(outside / inside - 1) > ACCURACY:
        middle = (inside * outside) ** 0.5
        inside, outside = (middle, outside) if contracts(middle) else (inside, middle)
    return inside

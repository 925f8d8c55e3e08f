"""Stochastic matrices on the edges of a graph as functions of free parameters, and the search over these parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Protocol

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from perron._typing import FloatArray
from perron.design.effort import Effort, TimeIsUpError
from perron.errors import MixingError

LIMIT = 12.0  # bound on the free parameters: e^-12 is nothing next to the floor, and beyond it gradients vanish
BALANCED_TO = 1e-13
NEWTON_STEPS = 60
Objective = Callable[[list[Tensor]], Tensor]


class Space(Protocol):
    """A set of matrices, each the image of a vector of free parameters."""

    size: int

    def matrix(self, free: Tensor) -> Tensor:
        """Return the matrix of these parameters; differentiable."""

    def free(self, matrix: FloatArray) -> FloatArray:
        """Return parameters whose matrix is this one, or near it where it is outside the set."""


class _Floored:
    """Matrices floor times ``base`` plus the rest, where the rest depends on a parameter for each positive entry of ``base``."""

    def __init__(self, base: Tensor, floor: float) -> None:
        self.base, self.mask, self.floor = base, base > 0, floor
        self.size = int(self.mask.sum())

    def free(self, matrix: FloatArray) -> FloatArray:
        """Return the logarithms of the weights above the floor, which is approached but not reached."""
        share = (torch.as_tensor(matrix) - self.floor * self.base).clamp_min(1e-4 * self.base)[self.mask]
        return np.asarray(share.log().clamp(-LIMIT, LIMIT))


class Simplex(_Floored):
    """Row-stochastic matrices on a pattern: floor / k + (1 - floor) softmax, in each row over its k entries.

    No weight is below floor / k, so that no edge, and no self-loop, vanishes. ``transposed``, for B: columns.
    """

    def __init__(self, pattern: FloatArray, floor: float, *, transposed: bool = False) -> None:
        entries = torch.as_tensor(((pattern.T if transposed else pattern) != 0).copy())
        super().__init__(entries.double() / entries.sum(1, keepdim=True), floor)
        self.transposed = transposed

    def matrix(self, free: Tensor) -> Tensor:
        full = torch.full(self.mask.shape, -torch.inf, dtype=torch.float64).masked_scatter(self.mask, free)
        rows = self.floor * self.base + (1 - self.floor) * torch.softmax(full, dim=1)
        return rows.T if self.transposed else rows

    def free(self, matrix: FloatArray) -> FloatArray:
        return super().free(matrix.T.copy() if self.transposed else matrix)


class Balanced(_Floored):
    """Doubly stochastic matrices on a pattern: floor W0 + (1 - floor) D1 exp(free) D2, W0 given, D1 and D2 diagonal.

    The scaling is found by Newton's method (exact to rounding), and differentiated by the implicit function theorem: one
    more Newton step with its matrix held fixed has the derivative of the solution.
    """

    def __init__(self, balanced: FloatArray, floor: float) -> None:
        super().__init__(torch.as_tensor(balanced), floor)

    def matrix(self, free: Tensor) -> Tensor:
        weights = torch.zeros_like(self.base).masked_scatter(self.mask, free.exp())
        scale, inverse = self._scaling(weights.detach())
        scaled = _scaled(weights, scale)
        scale = scale - inverse @ torch.cat([scaled.sum(1) - 1, scaled.sum(0) - 1])
        return self.floor * self.base + (1 - self.floor) * _scaled(weights, scale)

    @staticmethod
    def _scaling(weights: Tensor) -> tuple[Tensor, Tensor]:
        """Logarithms of both scalings, and the inverse of the Hessian there (one unknown is free, hence a pseudo-inverse)."""
        n = len(weights)
        scale = torch.zeros(2 * n, dtype=torch.float64)
        for _ in range(20):  # Sinkhorn iterations, for a starting point
            scale[:n] = -torch.log(weights @ scale[n:].exp())
            scale[n:] = -torch.log(weights.T @ scale[:n].exp())
        for _ in range(NEWTON_STEPS):
            W = _scaled(weights, scale)
            error = torch.cat([W.sum(1) - 1, W.sum(0) - 1])
            hessian = torch.cat([torch.cat([W.sum(1).diag(), W], 1), torch.cat([W.T, W.sum(0).diag()], 1)])
            inverse = torch.linalg.pinv(hessian, hermitian=True, rtol=1e-12)
            if float(error.abs().max()) < BALANCED_TO:
                return scale, inverse
            step = inverse @ error
            scale = scale - step / max(1.0, float(step.abs().max()))
        raise MixingError(f"Balancing got no closer than {float(error.abs().max()):.1g}. Choose a larger floor.")


def _scaled(weights: Tensor, scale: Tensor) -> Tensor:
    n = len(weights)
    return scale[:n, None].exp() * weights * scale[n:].exp()


class Scalar:
    """A positive number, as its logarithm: for a step that is optimized along with the weights."""

    size = 1

    def matrix(self, free: Tensor) -> Tensor:
        return free.exp()

    def free(self, matrix: FloatArray) -> FloatArray:
        return np.log(np.atleast_1d(matrix))


@dataclass(frozen=True)
class Candidate:
    """The best matrices of a search, their value, and the number of evaluations of objectives."""

    matrices: list[FloatArray]
    value: float
    evaluations: int


def search(
    spaces: Sequence[Space],
    objectives: Sequence[Objective],
    starts: Sequence[list[FloatArray]],
    value: Callable[[list[FloatArray]], float],
    *,
    effort: Effort,
) -> Candidate:
    """Minimise one objective after the other from each start (L-BFGS-B); return the candidate with the smallest TRUE value.

    The first start is a candidate as it is, so that the result is never worse than it. Where the time of ``effort`` is up or
    the search is interrupted, the best so far is returned.
    """
    best, lowest, count = starts[0], value(starts[0]), 0
    cuts = np.cumsum([space.size for space in spaces])[:-1].tolist()

    def matrices(free: Tensor) -> list[Tensor]:
        return [space.matrix(part) for space, part in zip(spaces, torch.tensor_split(free, cuts), strict=True)]

    try:
        for start in starts:
            free = np.concatenate([space.free(matrix) for space, matrix in zip(spaces, start, strict=True)])
            for objective in objectives:
                if effort.over:
                    break
                title = f"searching for weights, {lowest:.4g}"

                def surrogate(point: Tensor, objective: Objective = objective) -> Tensor:
                    return objective(matrices(point))

                free, evaluations = _minimized(surrogate, free, effort, title)
                count += evaluations
                with torch.no_grad():
                    candidate = [np.asarray(matrix) for matrix in matrices(torch.as_tensor(free))]
                reached = value(candidate)
                if reached < lowest:
                    best, lowest = candidate, reached
    except KeyboardInterrupt:
        effort.interrupt()
    return Candidate(best, lowest, count)


def _minimized(
    objective: Callable[[Tensor], Tensor], free: FloatArray, effort: Effort, title: str
) -> tuple[FloatArray, int]:
    """The best parameters, and the number of evaluations; the best so far where the time is up or a user interrupts."""
    worst, best, least, count = 0.0, free, inf, 0

    def with_gradient(x: FloatArray) -> tuple[float, FloatArray]:
        nonlocal worst, best, least, count
        effort.check()
        point = torch.tensor(x, requires_grad=True)
        value = objective(point)
        (gradient,) = torch.autograd.grad(value, point)
        count += 1
        effort.advance(title)
        if not (bool(value.isfinite()) and bool(gradient.isfinite().all())):
            return abs(worst) * 10 + 1e3, np.zeros_like(x)  # too long a step, into an unstable region: turn back
        worst = max(worst, float(value.detach()))
        if float(value.detach()) < least:
            best, least = x.copy(), float(value.detach())
        return float(value.detach()), np.asarray(gradient)

    try:
        result: Any = minimize(
            with_gradient, free, jac=True, method="L-BFGS-B", bounds=[(-LIMIT, LIMIT)] * len(free),
            options={"maxiter": effort.iterations, "maxcor": 20, "ftol": 1e-10, "gtol": 1e-9},
        )  # fmt: skip
    except TimeIsUpError:
        return best, count
    except KeyboardInterrupt:
        effort.interrupt()
        return best, count
    return np.asarray(result.x), count

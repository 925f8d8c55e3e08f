"""Stochastic matrices on the edges of a graph as functions of free numbers, and the search over these numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from perron._typing import FloatArray
from perron.errors import MixingError

FARTHEST = 12.0  # bound on the free numbers: e^-12 is nothing next to the floor, and beyond it gradients vanish
BALANCED_TO = 1e-13
NEWTON_STEPS = 60
Objective = Callable[[list[Tensor]], Tensor]


class Space(Protocol):
    """A set of matrices, each the image of a vector of free numbers."""

    size: int

    def matrix(self, free: Tensor) -> Tensor:
        """The matrix of these numbers; differentiable."""

    def free(self, matrix: FloatArray) -> FloatArray:
        """Numbers whose matrix is this one, or near it where it is outside the set."""


class Simplex:
    """Row-stochastic matrices on a pattern: floor / k + (1 - floor) softmax, in each row over its k entries.

    No weight is below floor / k, so that no edge, and no self-loop, vanishes. ``transposed``, for B: columns.
    """

    def __init__(self, pattern: FloatArray, floor: float, *, transposed: bool = False) -> None:
        rows = (pattern.T if transposed else pattern) != 0
        self.mask = torch.as_tensor(rows.copy())
        self.even = self.mask.double() / self.mask.sum(1, keepdim=True)
        self.floor, self.transposed = floor, transposed
        self.size = int(rows.sum())

    def matrix(self, free: Tensor) -> Tensor:
        """Softmax over each row, mixed with equal weights."""
        full = torch.full(self.mask.shape, -torch.inf, dtype=torch.float64)
        full = full.masked_scatter(self.mask, free)
        rows = self.floor * self.even + (1 - self.floor) * torch.softmax(full, dim=1)
        return rows.T if self.transposed else rows

    def free(self, matrix: FloatArray) -> FloatArray:
        """Logarithms of what exceeds the floor, cut off where there is hardly any."""
        rows = torch.as_tensor(matrix.T.copy() if self.transposed else matrix)
        share = (rows - self.floor * self.even).clamp_min(1e-4 * self.even)[self.mask]
        return np.asarray(share.log().clamp(-FARTHEST, FARTHEST))


class Balanced:
    """Doubly stochastic matrices on a pattern: floor W0 + (1 - floor) D1 exp(free) D2, W0 given, D1 and D2 diagonal.

    The scaling is found by Newton's method (exact to rounding), and differentiated by the implicit function theorem: one
    more Newton step with its matrix held fixed has the derivative of the solution.
    """

    def __init__(self, balanced: FloatArray, floor: float) -> None:
        self.W0 = torch.as_tensor(balanced)
        self.mask, self.floor = self.W0 > 0, floor
        self.size = int(self.mask.sum())

    def matrix(self, free: Tensor) -> Tensor:
        """The scaled matrix, mixed with W0."""
        weights = torch.zeros_like(self.W0).masked_scatter(self.mask, free.exp())
        n = len(weights)
        scale, inverse = self._scaling(weights.detach())
        scaled = scale[:n, None].exp() * weights * scale[n:].exp()
        step = inverse @ torch.cat([scaled.sum(1) - 1, scaled.sum(0) - 1])
        scale = scale - step
        W = scale[:n, None].exp() * weights * scale[n:].exp()
        return self.floor * self.W0 + (1 - self.floor) * W

    def free(self, matrix: FloatArray) -> FloatArray:
        """Logarithms of what exceeds the floor."""
        share = (torch.as_tensor(matrix) - self.floor * self.W0).clamp_min(1e-4 * self.W0)[self.mask]
        return np.asarray(share.log().clamp(-FARTHEST, FARTHEST))

    @staticmethod
    def _scaling(weights: Tensor) -> tuple[Tensor, Tensor]:
        """Logarithms of both scalings, and the inverse of the Hessian there (one unknown is free, hence a pseudo-inverse)."""
        n = len(weights)
        scale = torch.zeros(2 * n, dtype=torch.float64)
        for _ in range(20):  # sweeps of Sinkhorn bring us near
            scale[:n] = -torch.log(weights @ scale[n:].exp())
            scale[n:] = -torch.log(weights.T @ scale[:n].exp())
        for _ in range(NEWTON_STEPS):
            W = scale[:n, None].exp() * weights * scale[n:].exp()
            error = torch.cat([W.sum(1) - 1, W.sum(0) - 1])
            hessian = torch.cat([torch.cat([W.sum(1).diag(), W], 1), torch.cat([W.T, W.sum(0).diag()], 1)])
            inverse = torch.linalg.pinv(hessian, hermitian=True, rtol=1e-12)
            if float(error.abs().max()) < BALANCED_TO:
                return scale, inverse
            step = inverse @ error
            scale = scale - step / max(1.0, float(step.abs().max()))
        raise MixingError(f"Balancing got no closer than {float(error.abs().max()):.1g}. Choose a larger floor.")


class Scalar:
    """A positive number, as its logarithm: for a step that is sought along with the weights."""

    size = 1

    def matrix(self, free: Tensor) -> Tensor:
        """exp."""
        return free.exp()

    def free(self, matrix: FloatArray) -> FloatArray:
        """log."""
        return np.log(np.atleast_1d(matrix))


@dataclass(frozen=True)
class Found:
    """The best candidate: its matrices, its value, and how often an objective was evaluated."""

    matrices: list[FloatArray]
    value: float
    evaluations: int


def search(
    spaces: Sequence[Space],
    objectives: Sequence[Objective],
    starts: Sequence[list[FloatArray]],
    value: Callable[[list[FloatArray]], float],
    *,
    iterations: int,
) -> Found:
    """From each start descend one objective after the other (L-BFGS-B); the candidate whose TRUE value is smallest.

    The first start is a candidate as it is, so that the result is never worse than it.
    """
    best, lowest, count = starts[0], value(starts[0]), 0
    cuts = np.cumsum([space.size for space in spaces])[:-1]

    def matrices(free: Tensor) -> list[Tensor]:
        parts = torch.tensor_split(free, [int(cut) for cut in cuts])
        return [space.matrix(part) for space, part in zip(spaces, parts, strict=True)]

    for start in starts:
        free = np.concatenate([space.free(matrix) for space, matrix in zip(spaces, start, strict=True)])
        for objective in objectives:
            free, evaluations = _descended(lambda x, f=objective: f(matrices(x)), free, iterations)  # type: ignore[misc]
            count += evaluations
            with torch.no_grad():
                candidate = [np.asarray(matrix) for matrix in matrices(torch.as_tensor(free))]
            reached = value(candidate)
            if reached < lowest:
                best, lowest = candidate, reached
    return Found(best, lowest, count)


def _descended(objective: Callable[[Tensor], Tensor], free: FloatArray, iterations: int) -> tuple[FloatArray, int]:
    worst = 0.0

    def with_gradient(x: FloatArray) -> tuple[float, FloatArray]:
        nonlocal worst
        at = torch.tensor(x, requires_grad=True)
        value = objective(at)
        (gradient,) = torch.autograd.grad(value, at)
        if not (bool(value.isfinite()) and bool(gradient.isfinite().all())):
            return abs(worst) * 10 + 1e3, np.zeros_like(x)  # a step too far, as where a recursion explodes: go back
        worst = max(worst, float(value.detach()))
        return float(value.detach()), np.asarray(gradient)

    found: Any = minimize(
        with_gradient, free, jac=True, method="L-BFGS-B", bounds=[(-FARTHEST, FARTHEST)] * len(free),
        options={"maxiter": iterations, "maxcor": 20, "ftol": 1e-10, "gtol": 1e-9},
    )  # fmt: skip
    return np.asarray(found.x), int(found.nfev)

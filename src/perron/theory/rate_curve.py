"""The factor by which errors shrink in a step, as a function of the learning rate: spectral radii, computed cheaply.

With curvatures that all nodes share, the recursion has a few rows for each curvature (`RateCurve`). With a Hessian (d, d) of
its own at each node it has d times as many rows, and falls apart no further. A step of it needs no matrix of that size, though:
it multiplies by those of the network and by the Hessians. `HessianRates` finds its largest eigenvalue by Arnoldi's method, as
accurately as is needed to tell whether it is below one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from math import inf
from typing import Any

import numpy as np
import torch
from scipy.linalg import schur
from scipy.sparse.linalg import ArpackError, ArpackNoConvergence, LinearOperator, eigs
from threadpoolctl import ThreadpoolController
from torch import Tensor

from perron._typing import FloatArray
from perron.errors import PerronError
from perron.networks.mixing import Mixing
from perron.theory.levels import ClosedStep, closed_loop, spectral_radius
from perron.theory.matrix_node import dense
from perron.theory.recursion import LARGEST, TOLERANCE, Recursion

MODES_FROM = 24  # nodes; with fewer, taking a recursion apart costs more than it saves
NULL = 1e-10  # singular values below this count as zero
DENSE_UP_TO = 200  # rows; the eigenvalues of a larger matrix take longer than a few hundred products with it
AFFORDABLE = 800  # rows; the eigenvalues of a larger matrix take seconds
ATTEMPTS = ((20, 1e-3), (20, 1e-3), (40, 1e-6))  # of Arnoldi's method: vectors and accuracy
PRECISELY = (80, 1e-12)  # the same where a rate is wanted
RESTARTS = 10
POWER = 16  # of the matrix from the second attempt on: its eigenvalues are farther apart
CLEAR = 5  # accuracies by which a radius has to differ from one to tell that it is below, or above


class RateCurve:
    """The factor by which errors shrink in a step, as a function of lr times curvature; what `perron.theory.rate` returns.

    Eigenvalues are those of the recursion on its reachable states, without directions that neither the next state nor the next
    gradients depend on: with Push-Pull, of 2 n rows instead of 3 n. Where A = B is normal (symmetric or circulant weights), the
    recursion falls apart into one of a few rows for each eigenvalue of A.

    Args:
        linear: the recursion at lr = 1.
        mixing: its network; if None, it is not taken apart.
    """

    def __init__(self, linear: Recursion, mixing: Mixing | None = None) -> None:
        self.linear, self.period = linear, len(linear.stages)
        self._known: dict[float, float] = {}
        if not linear.stages[0].R.shape[0]:
            raise PerronError("This algorithm asks for no gradients, so that it needs no steps to minimise.")
        self._systems: list[list[list[Tensor]]] = []  # of each: its stages P, Q, R, T
        if linear.fluctuations:
            return
        stages = [[getattr(stage, name) for name in "PQRT"] for stage in linear.stages]
        modes = None if mixing is None or self.period > 1 or mixing.nodes < MODES_FROM else _modes(stages[0], mixing)
        self._systems = [reduced_stages(stages, linear.free)] if modes is None else modes

    def __call__(self, product: float) -> float:
        """Return the rate at one value of lr times curvature."""
        if product not in self._known:
            self._known[product] = self._radius(product) ** (1 / self.period)
        return self._known[product]

    def _radius(self, product: float) -> float:
        if self.linear.fluctuations:
            steps, _ = closed_loop(self.linear, torch.tensor([product], dtype=torch.float64))
            return mean_square_rate(steps, self.linear.variance)
        radius = 0.0
        for stages in self._systems:
            through: Tensor | None = None
            for P, Q, R, T in stages:
                gradients = product * R
                if T.any():
                    gradients = torch.linalg.solve(torch.eye(T.shape[-1], dtype=T.dtype) - product * T, gradients)
                M = P + Q @ gradients
                through = M if through is None else M @ through
            if through is None or not bool(through.isfinite().all()):
                return inf
            radius = max(radius, spectral_radius(through))
        return radius

    def worst(self, lr: float, powers: Mapping[float, float], above: float = inf) -> float:
        """Return the largest rate over curvatures, each to a power of at least 1 if it is below 1.

        Once one of them is above a value, the others are not computed.
        """
        found = 0.0
        for curvature in sorted(powers, reverse=True):
            rate = self(lr * curvature)
            found = max(found, rate ** powers[curvature] if rate < 1 else rate)
            if found > above:
                break
        return found


class SharedRates:
    """The factor by which errors shrink in a step, as a function of lr, for curvatures that all nodes share."""

    def __init__(self, curve: RateCurve, curvatures: Sequence[float]) -> None:
        self.curve, self.powers = curve, dict.fromkeys(curvatures, 1.0)

    def __call__(self, lr: float) -> float:
        """Return the rate at one lr: that of the slowest curvature."""
        return self.curve.worst(lr, self.powers)

    def contracts(self, lr: float, below: float) -> bool:
        """Return whether the rate is below a number; not all curvatures are looked at if it is not."""
        return self.curve.worst(lr, self.powers, below) < below


class HessianRates:
    """The factor by which errors shrink in a step, as a function of lr, where nodes have Hessians of their own.

    Args:
        linear: the recursion at lr = 1.
        hessians: ``(n, d, d)``.
    """

    def __init__(self, linear: Recursion, hessians: Tensor) -> None:
        self.linear, self.hessians, self.period = linear, hessians, len(linear.stages)
        stages = [[getattr(stage, name) for name in "PQRT"] for stage in linear.stages]
        self._stages = [[matrix.numpy() for matrix in stage] for stage in reduced_stages(stages, linear.free)]
        self.rows = self._stages[0][0].shape[1] * hessians.shape[-1]
        self._start = np.random.default_rng(0).standard_normal(self.rows)

    def __call__(self, lr: float) -> float:
        """Return the rate at one lr."""
        return self._radius(lr) ** (1 / self.period)

    def contracts(self, lr: float, below: float) -> bool:
        """Return whether the rate is below a number next to one, without computing it more accurately than that takes."""
        if self.linear.fluctuations or self.rows <= DENSE_UP_TO:
            return self(lr) < below
        with self._threads.limit(limits=1):  # for products with vectors, more cost more than they gain
            step = self._power(lr, 1)
            for number, (vectors, accuracy) in enumerate(ATTEMPTS):
                step = self._power(lr, POWER) if number == 1 else step
                radius = self._arnoldi(step, vectors, accuracy)
                if radius is not None and abs(radius - 1) > CLEAR * accuracy:
                    return radius < 1
        return self(lr) < below

    def _radius(self, lr: float) -> float:
        if self.linear.fluctuations:
            steps, _ = closed_loop(self.linear, lr * self.hessians)
            return mean_square_rate(steps, self.linear.variance)
        if self.rows > AFFORDABLE and (radius := self._arnoldi(self._power(lr, POWER), *PRECISELY)) is not None:
            return float(radius ** (1 / POWER))
        if self.rows > LARGEST:
            raise PerronError(
                f"The largest eigenvalue of a recursion with {self.rows:,} unknowns was not found: too many are nearly as large. "
                f"Choose another lr, or fewer nodes or coordinates; up to {LARGEST:,} unknowns all are computed."
            )
        return spectral_radius(torch.as_tensor(self._matrix(lr)))

    def _power(self, lr: float, power: int) -> Any:
        """The matrix of as many periods; where it is large, as a function."""
        if power > 1 and self.rows <= AFFORDABLE:
            return np.linalg.matrix_power(self._matrix(lr), power)

        def applied(vector: Any) -> Any:
            for _ in range(power):
                vector = self._step(lr, vector)
            return vector

        return LinearOperator((self.rows,) * 2, matvec=applied, dtype=np.float64)

    def _matrix(self, lr: float) -> FloatArray:
        """The matrix of a period; it is affine in lr if that is one step, with one gradient."""
        if self.period > 1 or self._stages[0][3].any():
            return self._columns(lr)
        constant, slope = self._affine
        return constant + lr * slope

    @cached_property
    def _threads(self) -> ThreadpoolController:
        return ThreadpoolController()

    @cached_property
    def _affine(self) -> tuple[FloatArray, FloatArray]:
        constant, at_one = self._columns(0.0), self._columns(1.0)
        return constant, at_one - constant

    def _columns(self, lr: float) -> FloatArray:
        return np.array([self._step(lr, column) for column in np.eye(self.rows)]).reshape(self.rows, -1).T

    def _arnoldi(self, step: Any, vectors: int, accuracy: float) -> float | None:
        """The largest modulus of an eigenvalue; None where it is not found."""
        try:
            found = eigs(
                step, k=1, ncv=vectors, maxiter=RESTARTS, tol=accuracy, v0=self._start, return_eigenvectors=False
            )
        except (ArpackNoConvergence, ArpackError):
            return None
        return float(np.abs(found).max())

    def _step(self, lr: float, flat: Any) -> Any:
        """A period without noise, from a state to the next; gradients of one step may depend on those before them."""
        state, hessians = np.asarray(flat).reshape(-1, self.hessians.shape[-1]), self.hessians.numpy()
        n = len(hessians)
        for P, Q, R, T in self._stages:
            points, grads = R @ state, np.empty((len(R), state.shape[1]))
            for first in range(0, len(R), n):
                asked = slice(first, first + n)
                if first:
                    points[asked] += T[asked, :first] @ grads[:first]
                grads[asked] = lr * (hessians @ points[asked, :, None])[..., 0]
            state = P @ state + Q @ grads
        return state.ravel()


def reduced_stages(stages: list[list[Tensor]], free: Tensor) -> list[list[Tensor]]:
    """Return stages on the smallest space with the same eigenvalues other than 0, within that of the columns of ``free``."""
    P, _, R, _ = stages[0]
    _, sizes, rows = torch.linalg.svd(torch.cat([P @ free, R @ free]))
    rank = int((sizes > NULL * max(1.0, float(sizes.max()))).sum()) if sizes.numel() else 0
    basis = free @ rows[:rank].mH
    stages = [list(stage) for stage in stages]
    stages[0][0], stages[0][2] = stages[0][0] @ basis, stages[0][2] @ basis
    stages[-1][0], stages[-1][1] = basis.mH @ stages[-1][0], basis.mH @ stages[-1][1]
    return stages


def _modes(stage: list[Tensor], mixing: Mixing) -> list[list[list[Tensor]]] | None:
    """The systems of few rows into which a recursion falls apart where A = B is normal; None elsewhere."""
    if not (mixing.has_pull and mixing.has_push) or mixing.varies:
        return None
    A, n = dense(mixing.pull), mixing.nodes
    if not np.array_equal(A, dense(mixing.push)) or not np.allclose(A @ A.T, A.T @ A, atol=1e-12):
        return None
    vectors = torch.as_tensor(np.linalg.eigh(A)[1] if np.array_equal(A, A.T) else schur(A, output="complex")[1])
    blocks = []
    for matrix in stage:  # (fields n, fields n), of which each block of n x n is diagonal in the vectors
        parts = matrix.reshape(matrix.shape[0] // n, n, matrix.shape[1] // n, n).transpose(1, 2).to(vectors.dtype)
        parts = vectors.mH @ parts @ vectors
        diagonal = parts.diagonal(dim1=-2, dim2=-1)
        if parts.numel() and float((parts - torch.diag_embed(diagonal)).abs().max()) > 1e-9:
            return None
        blocks.append(diagonal.permute(2, 0, 1))  # (n, fields, fields)
    P, Q = blocks[:2]
    one = torch.eye(P.shape[-1], dtype=P.dtype)
    sizes = torch.linalg.svdvals(torch.cat([P - one, Q], dim=-1))
    whole = sizes[:, -1] > TOLERANCE * sizes[:, 0].clamp(min=1.0)
    systems = [[[block[whole] for block in blocks]]] if bool(whole.any()) else []
    for k in (
        torch.nonzero(~whole).flatten().tolist()
    ):  # modes with conserved quantities, usually that of the mean alone
        free, mode = one, [block[k] for block in blocks]
        while free.shape[1]:
            changes = [free.mH @ mode[0] @ free - torch.eye(free.shape[1], dtype=P.dtype), free.mH @ mode[1]]
            basis, size, _ = torch.linalg.svd(torch.cat(changes, dim=1))
            rank = int((size > TOLERANCE * max(float(size[0]), 1.0)).sum())
            if rank == free.shape[1]:
                break
            free = free @ basis[:, :rank]
        systems.append(reduced_stages([mode], free))
    return systems


def mean_square_rate(steps: list[ClosedStep], variance: float) -> float:
    """The root of the spectral radius of X -> E[M X M^T], the map of second moments over a period."""
    largest, size = 0.0, steps[0].M.shape[-1]
    for system in range(len(steps[0].M)):
        modes = [
            torch.stack([step.M[system], *(variance**0.5 * part[system] for part, _ in step.parts)]) for step in steps
        ]
        if size**2 <= 800:  # as a matrix on flattened X: a sum of Kronecker products
            whole = torch.eye(size**2, dtype=torch.float64)
            for matrices in modes:
                rows, columns = matrices.shape[1:]
                whole = torch.einsum("kab,kcd->acbd", matrices, matrices).reshape(rows**2, columns**2) @ whole
            largest = max(largest, spectral_radius(whole))
            continue

        def mapped(flat: Any, modes: list[Tensor] = modes) -> Any:
            X = torch.as_tensor(np.asarray(flat).reshape(size, size))
            for matrices in modes:
                X = (matrices @ X @ matrices.mT).sum(0)
            return X.reshape(-1).numpy()

        operator = LinearOperator((size**2, size**2), matvec=mapped, dtype=np.float64)
        values = eigs(operator, k=1, v0=np.eye(size).ravel(), tol=1e-6, return_eigenvectors=False)
        largest = max(largest, float(np.abs(values).max()))
    return largest**0.5

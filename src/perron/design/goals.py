"""What is minimised: smooth functions of A and B that stand for rho_2, s, the residual, a noise level and a rate."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from perron.algorithm import Algorithm
from perron.errors import PerronError
from perron.graph import FloatArray
from perron.mixing import Mixing
from perron.network import Network
from perron.theory.levels import Around, level_of, lyapunov
from perron.theory.recursion import MatrixNode, Stage, drive, recursion, spread
from perron.theory.stability import best_lr

TINY = 1e-24  # added under roots and logarithms: at A = 11^T/n the deviation is zero


def perron_vector(A: Tensor) -> Tensor:
    """pi of a row-stochastic A, differentiably: pi^T (I - A + 11^T) = 1^T."""
    n = len(A)
    pi: Tensor = torch.linalg.solve((torch.eye(n, dtype=A.dtype) - A + 1).T, torch.ones(n, dtype=A.dtype))
    return pi


def deviation(A: Tensor) -> Tensor:
    """A - A_inf, whose powers are A^k - A_inf."""
    return A - perron_vector(A)


def log_power_norm(E: Tensor, doublings: int) -> Tensor:
    """log ||E^K||_F / K for K = 2^doublings: an upper bound on log rho(E) that is smooth, and tends to it as K grows.

    E may be a batch. Powers are rescaled at every squaring, so that nothing under- or overflows.
    """
    size = (E * E).sum((-2, -1)).add(TINY).sqrt()
    log, power = size.log(), E / size[..., None, None]
    for _ in range(doublings):
        power = power @ power
        size = (power * power).sum((-2, -1)).add(TINY).sqrt()
        log, power = 2 * log + size.log(), power / size[..., None, None]
    return log / 2**doublings


def fastest(doublings: int) -> Callable[[list[Tensor]], Tensor]:
    """log ||A^K - A_inf||_F^(1/K), added up over the matrices (B transposed)."""

    def objective(matrices: list[Tensor]) -> Tensor:
        return torch.stack([log_power_norm(deviation(m), doublings) for m in as_rows(matrices)]).sum()

    return objective


def summed(matrices: list[Tensor]) -> Tensor:
    """log of sum_i ||A^i - A_inf||_F^2, added up over the matrices: the trace of the solution of a Lyapunov equation."""
    total = torch.zeros((), dtype=torch.float64)
    for m in as_rows(matrices):
        first = torch.eye(len(m), dtype=m.dtype) - perron_vector(m)
        total = total + lyapunov(deviation(m), first @ first.T).trace().log()
    return total


def residual(matrices: list[Tensor]) -> Tensor:
    """The residual of Push-Pull under noise, relative to the step: E |eps|^2 / E |c lr (mean of the nodes' noise)|^2.

    With independent noise g_t of one variance at all nodes, y_t = g_t + sum_k (B^k - B^(k-1)) g_(t-k), so that
    eps = -lr pi_A^T (I - B_inf) y has the variance lr^2 [ |v|^2 + sum_{k>=1} |(B^k - B^(k-1))^T pi_A|^2 ] with
    v = (I - B_inf)^T pi_A, against c^2 lr^2 / n of what centralized SGD would do. Zero if and only if pi_A is uniform.
    """
    A, B = matrices
    n = len(A)
    one = torch.eye(n, dtype=A.dtype)
    pull, push = perron_vector(A), perron_vector(B.T)
    limit = push[:, None].expand(n, n)
    first, later = (one - limit).T @ pull, (B - one).T @ pull
    # sum_k |(B^T)^k w|^2 = w^T X w, X = B X B^T + I, on the vectors w = (B - I)^T pi_A, which B_inf^T maps to zero
    X = lyapunov(B - limit, one)
    c = n * (pull @ push)
    return n / c**2 * (first @ first + later @ X @ later)


def as_rows(matrices: list[Tensor]) -> list[Tensor]:
    """A, and the transpose of B: both row-stochastic. A single matrix is an A."""
    return [m if k == 0 else m.T for k, m in enumerate(matrices[:2])]


class Driven:
    """An algorithm of the Push-Pull family as a differentiable function of A, B and its effective step.

    Its recursion is read off its own text (`perron.theory.recursion`), at lr = step / c(A, B): lowering c at a fixed lr would
    lower the level, but only by making smaller steps. Needs an algorithm with the matrices A B whose state has model-sized
    fields only, x first, and x-hat = pi_A^T x.

    Args:
        curvature: numbers that all nodes share, ``(k,)``; or the nodes' Hessians, ``(n, d, d)``.
    """

    def __init__(self, algorithm: Algorithm, curvature: Tensor, start: Mixing) -> None:
        if algorithm.about.matrices != "A B" or algorithm.about.family != "push-pull":
            raise PerronError(
                f"Goals 'level' and 'rate' need an algorithm of the Push-Pull family with the matrices A B; got "
                f"{algorithm.about.title} with {algorithm.about.matrices}. Use goal 'sum' or 'balanced' for others."
            )
        network = Network(start)
        self.algorithm, self.curvature, self.n = algorithm, curvature, start.nodes
        self.boost = algorithm.effective_step(network) / network.alignment  # 1, or 1/(1 - momentum)
        # What is conserved, 1^T (y - grad), is the same for all A and B.
        self.basis = recursion(algorithm, network, 0.1 / network.alignment).free
        width = 2 * self.n + 3
        settled = algorithm.init(torch.zeros(self.n, width, dtype=torch.float64), self._node(self._any, self._any))
        self.settled, self.fields = settled, tuple(settled._fields)

    @cached_property
    def _any(self) -> Tensor:
        return torch.eye(self.n, dtype=torch.float64)

    def _node(self, A: Tensor, B: Tensor) -> MatrixNode:
        return MatrixNode([A], [B], share=None, pattern=torch.zeros(self.n, dtype=torch.float64))

    def stage(self, A: Tensor, B: Tensor, step: Tensor | float) -> tuple[Stage, Tensor]:
        """One step of the algorithm, and pi_A."""
        pull, push = perron_vector(A), perron_vector(B.T)
        lr = step / (self.n * (pull @ push) * self.boost)
        return drive(self.algorithm, self._node(A, B), self.settled, lr, self.fields)[0], pull  # type: ignore[arg-type]

    def closed(self, A: Tensor, B: Tensor, step: Tensor | float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """M and N of S+ = M S + N noise on the states that runs reach, the basis of those, and pi_A."""
        stage, pull = self.stage(A, B, step)
        free = spread(self.basis, 1 if self.curvature.ndim == 1 else self.curvature.shape[-1])
        M, N = stage.closed(self.curvature)
        return free.mT @ M @ free, free.mT @ N, free, pull

    def level(self, step: float, metric: str) -> Callable[[list[Tensor]], Tensor]:
        """log of a stationary level, for unit noise in every coordinate of every node; curvatures are shared."""

        def objective(matrices: list[Tensor]) -> Tensor:
            M, N, free, pull = self.closed(matrices[0], matrices[1], step)
            X = free @ lyapunov(M, N @ N.mT) @ free.mT
            models = X[:, : self.n, : self.n]
            center = torch.einsum("i,kij,j->k", pull, models, pull)
            if metric == "distance_sq":
                return center.sum().log()
            if metric == "grad_norm_sq":
                return (self.curvature**2 * center).sum().log()
            local = models.diagonal(dim1=-2, dim2=-1).mean(-1)
            if metric == "distance_sq_local":
                return local.sum().log()
            return (local - 2 * (models @ pull).mean(-1) + center).sum().log()

        return objective

    def rate(self, doublings: int) -> Callable[[list[Tensor]], Tensor]:
        """log ||M^K|| / K of the slowest curvature (softly), of A, B and the step."""

        def objective(matrices: list[Tensor]) -> Tensor:
            M, _, _, _ = self.closed(matrices[0], matrices[1], matrices[2])
            logs = log_power_norm(M, doublings)
            sharp = 2.0**doublings
            return torch.logsumexp(sharp * logs, 0) / sharp

        return objective

    # ---- the true values, by theory's own means

    def true_level(self, mixing: Mixing, step: float, metric: str) -> float:
        """The level that `perron.theory.levels` finds; infinite where the recursion is unstable."""
        lr = step / self.algorithm.effective_step(Network(mixing))
        k = len(self.curvature)
        near = Around(
            curvature=self.curvature,
            pull=torch.zeros(self.n, k, dtype=torch.float64),
            noise=torch.ones(self.n, k, dtype=torch.float64),
        )
        try:
            return float(getattr(level_of(recursion(self.algorithm, mixing, lr), near), metric))
        except PerronError:
            return float("inf")

    def true_rate(self, mixing: Mixing) -> float:
        """The rate at the best step; infinite where no step is stable."""
        best = best_lr(self.algorithm, mixing, self.curvature)
        return float("inf") if best is None else best.rate


def true_residual(matrices: list[FloatArray]) -> float:
    """`residual` of given matrices."""
    with torch.no_grad():
        return float(residual([torch.as_tensor(np.asarray(m)) for m in matrices]))

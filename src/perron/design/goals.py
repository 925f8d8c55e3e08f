"""What is minimised: smooth functions of A and B that stand for rho_2, s, the residual, a noise level and a rate."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from math import ceil, inf, log, log2

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from perron._typing import FloatArray
from perron.algorithms.base import Algorithm
from perron.errors import PerronError
from perron.networks.facts import Network
from perron.networks.mixing import Mixing
from perron.theory.levels import Around, level_of, lyapunov
from perron.theory.recursion import MatrixNode, Stage, drive, recursion, spread
from perron.theory.sensitivity import stationary
from perron.theory.stability import best_lr, rate

TINY = 1e-24  # added under roots and logarithms: at A = 11^T/n the deviation is zero


def deviation(A: Tensor) -> Tensor:
    """A - A_inf, whose powers are A^k - A_inf."""
    return A - stationary(A)


def log_power_norm(E: Tensor, doublings: int) -> Tensor:
    """log ||E^K||_F / K for K = 2^doublings: an upper bound on log rho(E) that is smooth, and tends to it as K grows.

    E may be a batch. Powers are rescaled at every squaring, so that nothing under- or overflows.
    """
    size = (E * E).sum((-2, -1)).add(TINY).sqrt()
    total, power = size.log(), E / size[..., None, None]
    for _ in range(doublings):
        power = power @ power
        size = (power * power).sum((-2, -1)).add(TINY).sqrt()
        total, power = 2 * total + size.log(), power / size[..., None, None]
    return total / 2**doublings


def fastest(doublings: int) -> Callable[[list[Tensor]], Tensor]:
    """log ||A^K - A_inf||_F^(1/K), added up over the matrices (B transposed)."""

    def objective(matrices: list[Tensor]) -> Tensor:
        return torch.stack([log_power_norm(deviation(m), doublings) for m in as_rows(matrices)]).sum()

    return objective


def summed(matrices: list[Tensor]) -> Tensor:
    """log of sum_i ||A^i - A_inf||_F^2, added up over the matrices: the trace of the solution of a Lyapunov equation."""
    total = torch.zeros((), dtype=torch.float64)
    for m in as_rows(matrices):
        first = torch.eye(len(m), dtype=m.dtype) - stationary(m)
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
    pull, push = stationary(A), stationary(B.T)
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
        found = recursion(algorithm, network, 0.1 / network.alignment)
        self.basis = found.free
        width = 2 * self.n + 3
        settled = algorithm.init(torch.zeros(self.n, width, dtype=torch.float64), self._node(self._any, self._any))
        self.settled, self.fields = settled, found.fields

    @cached_property
    def _any(self) -> Tensor:
        return torch.eye(self.n, dtype=torch.float64)

    def _node(self, A: Tensor, B: Tensor) -> MatrixNode:
        return MatrixNode([A], [B], share=None, pattern=torch.zeros(self.n, dtype=torch.float64))

    def stage(self, A: Tensor, B: Tensor, step: Tensor | float) -> tuple[Stage, Tensor]:
        """One step of the algorithm, and pi_A."""
        pull, push = stationary(A), stationary(B.T)
        lr = step / (self.n * (pull @ push) * self.boost)
        return drive(self.algorithm, self._node(A, B), self.settled, lr, self.fields)[0], pull  # type: ignore[arg-type]

    def closed(self, A: Tensor, B: Tensor, step: Tensor | float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """M and N of S+ = M S + N noise on the states that runs reach, the basis of those, and pi_A."""
        stage, pull = self.stage(A, B, step)
        free = spread(self.basis, 1 if self.curvature.ndim == 1 else self.curvature.shape[-1])
        M, N = stage.closed(self.curvature)
        return free.mT @ M @ free, free.mT @ N, free, pull

    def level(self, step: float, metric: str, slowest: float) -> Callable[[list[Tensor]], Tensor]:
        """log of a stationary level, for unit noise in every coordinate of every node; curvatures are shared.

        Plus a penalty where errors shrink more slowly than by the factor ``slowest`` in a step: a network that hardly mixes would
        filter the noise out, and the signal with it. The Lyapunov equation is solved by doubling, and the last power of M that it
        meets tells the rate.
        """
        doublings = ceil(log2(100 / -log(slowest)))

        def objective(matrices: list[Tensor]) -> Tensor:
            M, N, free, pull = self.closed(matrices[0], matrices[1], step)
            X, power, total = N @ N.mT, M, torch.zeros(len(M), dtype=torch.float64)
            for _ in range(doublings):
                X = X + (2 * total).exp()[:, None, None] * (power @ X @ power.mT)
                power = power @ power
                size = (power * power).sum((-2, -1)).add(TINY).sqrt()
                total, power = 2 * total + size.log(), power / size[:, None, None]
            speed = total.max() / 2**doublings / log(slowest)
            return (
                _readout(free @ X @ free.mT, self.n, self.curvature, pull, metric).log() + 100 * (1 - speed).relu() ** 2
            )

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

    def true_level(self, mixing: Mixing, step: float, metric: str, slowest: float = inf) -> float:
        """The level that `perron.theory.levels` finds; infinite where errors do not shrink as fast as they should."""
        lr = step / self.algorithm.effective_step(Network(mixing))
        if not self.true_rate(mixing, step) < min(slowest, 1.0):
            return inf
        k = len(self.curvature)
        near = Around(
            curvature=self.curvature,
            grads=torch.zeros(self.n, k, dtype=torch.float64),
            noise=torch.ones(self.n, k, dtype=torch.float64),
        )
        return float(getattr(level_of(recursion(self.algorithm, mixing), near, lr), metric))

    def true_rate(self, mixing: Mixing, step: float) -> float:
        """By how much errors shrink in a step of this effective size."""
        return rate(self.algorithm, mixing, step / self.algorithm.effective_step(Network(mixing)), self.curvature)

    def near_rate(self, mixing: Mixing, step: float) -> float:
        """The rate at the best effective step near a given one."""
        ends = (step / 1.5, step * 1.5)
        found = minimize_scalar(
            lambda s: self.true_rate(mixing, float(s)), bounds=ends, method="bounded", options={"xatol": step * 1e-3}
        )
        return float(min(found.fun, self.true_rate(mixing, step)))

    def rough_step(self, mixing: Mixing) -> float:
        """About the best effective step: of a dozen."""
        most = float((self.curvature if self.curvature.ndim == 1 else torch.linalg.eigvalsh(self.curvature)).max())
        steps = np.geomspace(0.003, 2.0, 14) / most
        return float(steps[np.argmin([self.true_rate(mixing, float(s)) for s in steps])])

    def best_rate(self, mixing: Mixing) -> float:
        """The rate at the best step of all; infinite where no step is stable."""
        best = best_lr(self.algorithm, mixing, self.curvature)
        return inf if best is None else best.rate


def _readout(X: Tensor, n: int, curvature: Tensor, pull: Tensor, metric: str) -> Tensor:
    """A level, named as in `perron.theory.Level`, from the covariance of the state; x is its first field."""
    models = X[:, :n, :n]
    center = torch.einsum("i,kij,j->k", pull, models, pull)
    if metric == "distance_sq":
        return center.sum()
    if metric == "grad_norm_sq":
        return (curvature**2 * center).sum()
    local = models.diagonal(dim1=-2, dim2=-1).mean(-1)
    if metric == "distance_sq_local":
        return local.sum()
    return (local - 2 * (models @ pull).mean(-1) + center).sum()


def true_residual(matrices: list[FloatArray]) -> float:
    """`residual` of given matrices; what is rounding only is zero."""
    with torch.no_grad():
        found = float(residual([torch.as_tensor(np.asarray(m)) for m in matrices]))
    return found if found > 1e-20 else 0.0

"""Objectives: smooth functions of A and B that stand for rho_2, s, the residual, a noise level and a rate."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import ceil, inf, log, log2

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from perron._typing import FloatArray
from perron.algorithms.base import Algorithm, advance
from perron.errors import PerronError
from perron.networks.facts import Network
from perron.networks.mixing import Mixing
from perron.theory.levels import Linearization, lyapunov, stationary_level
from perron.theory.matrix_node import MatrixNode
from perron.theory.recursion import kron_identity, recursion, trace_step
from perron.theory.sensitivity import perron_vector
from perron.theory.stability import best_lr, largest_curvature, rate

TINY = 1e-24  # added under roots and logarithms: at A = 11^T/n the deviation is zero


def deviation(A: Tensor) -> Tensor:
    """Return A - A_inf, whose powers are A^k - A_inf."""
    return A - perron_vector(A)


def _squarings(E: Tensor, doublings: int) -> Iterator[tuple[Tensor, Tensor]]:
    """E^K for K = 1, 2, 4, ..., 2^doublings, each as the logarithm of its norm and a matrix of norm one.

    E may be a batch. Powers are rescaled at every squaring, so that nothing under- or overflows.
    """
    total, power = torch.zeros((), dtype=E.dtype), E
    for doubling in range(doublings + 1):
        if doubling:
            total, power = 2 * total, power @ power
        size = (power * power).sum((-2, -1)).add(TINY).sqrt()
        total, power = total + size.log(), power / size[..., None, None]
        yield total, power


def log_power_norm(E: Tensor, doublings: int) -> Tensor:
    """Return log ||E^K||_F / K for K = 2^doublings: a smooth upper bound on log rho(E) that tends to it as K grows."""
    *_, (total, _) = _squarings(E, doublings)
    return total / 2**doublings


def fastest(doublings: int) -> Callable[[list[Tensor]], Tensor]:
    """Return the objective log ||A^K - A_inf||_F^(1/K), summed over the matrices (B transposed)."""

    def objective(matrices: list[Tensor]) -> Tensor:
        return torch.stack([log_power_norm(deviation(m), doublings) for m in _as_rows(matrices)]).sum()

    return objective


def power_sum(A: Tensor) -> Tensor:
    """Return sum_i ||A^i - A_inf||_F^2, the trace of the solution of a Lyapunov equation."""
    first = torch.eye(len(A), dtype=A.dtype) - perron_vector(A)
    return lyapunov(deviation(A), first @ first.T).trace()


def summed(matrices: list[Tensor]) -> Tensor:
    """Return the logarithm of `power_sum`, summed over the matrices (B transposed)."""
    return torch.stack([power_sum(m).log() for m in _as_rows(matrices)]).sum()


def residual(matrices: list[Tensor]) -> Tensor:
    """Return the residual of Push-Pull under noise, relative to the step: E |eps|^2 / E |c lr (mean of the nodes' noise)|^2.

    With independent noise g_t of one variance at all nodes, y_t = g_t + sum_k (B^k - B^(k-1)) g_(t-k), so that
    eps = -lr pi_A^T (I - B_inf) y has the variance lr^2 [ |v|^2 + sum_{k>=1} |(B^k - B^(k-1))^T pi_A|^2 ] with
    v = (I - B_inf)^T pi_A, against c^2 lr^2 / n of centralized SGD. Zero if and only if pi_A is uniform.
    """
    A, B = matrices
    n = len(A)
    identity = torch.eye(n, dtype=A.dtype)
    pull, push = perron_vector(A), perron_vector(B.T)
    limit = push[:, None].expand(n, n)
    first, later = (identity - limit).T @ pull, (B - identity).T @ pull
    # sum_k |(B^T)^k w|^2 = w^T X w, X = B X B^T + I, on the vectors w = (B - I)^T pi_A, which B_inf^T maps to zero
    X = lyapunov(B - limit, identity)
    c = n * (pull @ push)
    return n / c**2 * (first @ first + later @ X @ later)


def true_residual(matrices: list[FloatArray]) -> float:
    """Return `residual` of given matrices; rounding errors count as zero."""
    with torch.no_grad():
        value = float(residual([torch.as_tensor(np.asarray(m)) for m in matrices]))
    return value if value > 1e-20 else 0.0


def _as_rows(matrices: list[Tensor]) -> list[Tensor]:
    """A, and the transpose of B: both row-stochastic. A single matrix is an A."""
    return [m.T if k else m for k, m in enumerate(matrices[:2])]


class Dynamics:
    """An algorithm of the Push-Pull family as a differentiable function of A, B and its effective step.

    Its recursion is that of `perron.theory.recursion`, at lr = step / c(A, B): at a fixed lr, a lower c would lower the level by
    making smaller steps. The state of the algorithm must have model-sized fields only, x first, and x-hat = pi_A^T x.

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
        # The conserved quantity, 1^T (y - grad), is the same for all A and B.
        linear = recursion(algorithm, network, 0.1 / network.alignment)
        self.basis, self.fields = linear.free, linear.fields
        identity = torch.eye(self.n, dtype=torch.float64)
        zeros = torch.zeros(self.n, 2 * self.n + 3, dtype=torch.float64)
        node = self._node(identity, identity)
        # After a step without gradients, since the first one may be special.
        self.settled = advance(algorithm, algorithm.init(zeros, node), node, 0.0, torch.zeros_like)

    def _node(self, A: Tensor, B: Tensor) -> MatrixNode:
        return MatrixNode([A], [B], share=None, pattern=torch.zeros(self.n, dtype=torch.float64))

    def closed_loop(self, A: Tensor, B: Tensor, step: Tensor | float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return M and N of S+ = M S + N noise on the reachable states, a basis of these, and pi_A."""
        pull, push = perron_vector(A), perron_vector(B.T)
        lr = step / (self.n * (pull @ push) * self.boost)
        stage, _ = trace_step(self.algorithm, self._node(A, B), self.settled, lr, self.fields)  # type: ignore[arg-type]
        free = kron_identity(self.basis, 1 if self.curvature.ndim == 1 else self.curvature.shape[-1])
        M, N = stage.closed_loop(self.curvature)
        return free.mT @ M @ free, free.mT @ N, free, pull

    def level(self, step: float, metric: str, slowest: float) -> Callable[[list[Tensor]], Tensor]:
        """Return the logarithm of a stationary level, for unit noise in every coordinate of every node, as an objective.

        Curvatures must be shared. A penalty is added where errors shrink by less than the factor ``slowest`` in a step: a network
        that hardly mixes would filter out the noise, and the signal with it. The Lyapunov equation is solved by doubling, and the
        last power of M gives the rate.
        """
        doublings = ceil(log2(100 / -log(slowest)))

        def objective(matrices: list[Tensor]) -> Tensor:
            M, N, free, pull = self.closed_loop(matrices[0], matrices[1], step)
            X = N @ N.mT
            *terms, (last, _) = _squarings(M, doublings)
            for size, power in terms:
                X = X + (2 * size).exp()[:, None, None] * (power @ X @ power.mT)
            penalty = 100 * (1 - last.max() / 2**doublings / log(slowest)).relu() ** 2
            return _readout(free @ X @ free.mT, self.n, self.curvature, pull, metric).log() + penalty

        return objective

    def rate(self, doublings: int) -> Callable[[list[Tensor]], Tensor]:
        """Return log ||M^K|| / K of the slowest curvature (as a soft maximum) as an objective of A, B and the step."""
        sharpness = 2.0**doublings

        def objective(matrices: list[Tensor]) -> Tensor:
            logs = log_power_norm(self.closed_loop(matrices[0], matrices[1], matrices[2])[0], doublings)
            return torch.logsumexp(sharpness * logs, 0) / sharpness

        return objective

    # ---- true values, by theory

    def true_level(self, mixing: Mixing, step: float, metric: str, slowest: float = inf) -> float:
        """Return the level by `perron.theory.levels`; infinite where errors shrink by less than ``slowest`` in a step."""
        lr = step / self.algorithm.effective_step(Network(mixing))
        if not self.true_rate(mixing, step) < min(slowest, 1.0):
            return inf
        zeros = torch.zeros(self.n, len(self.curvature), dtype=torch.float64)
        local = Linearization(self.curvature, grads=zeros, noise=torch.ones_like(zeros))
        return float(getattr(stationary_level(recursion(self.algorithm, mixing), local, lr), metric))

    def true_rate(self, mixing: Mixing, step: float) -> float:
        """Return the factor by which errors shrink in a step of this effective size."""
        return rate(self.algorithm, mixing, step / self.algorithm.effective_step(Network(mixing)), self.curvature)

    def near_rate(self, mixing: Mixing, step: float) -> float:
        """Return the rate at the best effective step near a given one."""
        best = minimize_scalar(
            lambda s: self.true_rate(mixing, float(s)),
            bounds=(step / 1.5, step * 1.5),
            method="bounded",
            options={"xatol": step * 1e-3},
        )
        return float(min(best.fun, self.true_rate(mixing, step)))

    def rough_step(self, mixing: Mixing) -> float:
        """Return the best of 14 effective steps."""
        steps = np.geomspace(0.003, 2.0, 14) / largest_curvature(self.curvature)
        return float(steps[np.argmin([self.true_rate(mixing, float(s)) for s in steps])])

    def best_rate(self, mixing: Mixing) -> float:
        """Return the rate at the best step; infinite where no step is stable."""
        best = best_lr(self.algorithm, mixing, self.curvature)
        return inf if best is None else best.rate


def _readout(X: Tensor, n: int, curvature: Tensor, pull: Tensor, metric: str) -> Tensor:
    """A level, named as in `perron.theory.StationaryLevel`, from the covariance of the state; x is its first field."""
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

"""The level at which a run with noisy gradients and a constant step settles: simple formulas, and exact second moments."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import reduce
from math import isfinite

import torch
from torch import Tensor

from perron.algorithms.base import Algorithm
from perron.errors import PerronError
from perron.networks.facts import Network
from perron.networks.mixing import Mixing
from perron.problems.base import Problem
from perron.theory.recursion import (
    LARGEST,
    Recursion,
    Stage,
    as_network,
    block_diagonal,
    check_lr,
    kron_identity,
    single_threaded,
    unit_recursion,
)


def noise_floor(problem: Problem, step: float) -> float:
    """Return the level at which grad_norm_sq of a method that follows centralized SGD settles with a constant step:

        E |grad f(x-hat)|^2  ->  step tr(H Sigma) / (2 n)

    H is the Hessian at the optimum, Sigma the covariance of one node's stochastic gradient there, and ``step`` the effective
    step: c lr for Push-Pull (`Algorithm.effective_step` times lr). Near the optimum x-hat follows
    x-hat+ = x-hat - step (H (x-hat - x*) + noise), whose covariance P solves H P + P H - step H P H = step Sigma / n; the
    level is tr(H P H), and the formula its leading term for small steps (the next is larger by about step L / 2).
    `stationary` computes the exact level of an algorithm on a network.

    Example:
        >>> from perron.problems import Quadratic
        >>> problem = Quadratic.random(16, dim=4, noise_std=0.5)
        >>> round(noise_floor(problem, step=0.1), 6)
        0.00043
    """
    hessian, covariance = _averages(problem, step)
    return step * float((hessian * covariance).sum()) / (2 * problem.nodes)


def distance_floor(problem: Problem, step: float) -> float:
    """Return the level at which distance_sq settles, under the assumptions of `noise_floor`:

        E |x-hat - x*|^2  ->  step tr(H^-1 Sigma) / (2 n)

    H must be positive definite.
    """
    hessian, covariance = _averages(problem, step)
    if float(torch.linalg.eigvalsh(hessian).min()) <= 0:
        raise PerronError("The distance to the optimum does not settle: the Hessian there is not positive definite.")
    return step * float(torch.linalg.solve(hessian, covariance).trace()) / (2 * problem.nodes)


def _averages(problem: Problem, step: float) -> tuple[Tensor, Tensor]:
    """Hessian and noise covariance at the optimum, averaged over the nodes."""
    if not (isfinite(step) and step > 0):
        raise PerronError(f"An effective step is a positive number; got {step}.")
    if problem.proximal_l1:
        raise PerronError("The level of a problem with l1 |x|_1 is not known: near its optimum it is not quadratic.")
    x = optimum_of(problem)
    return problem.hessian(x), _known(problem.noise_covariance(x))


def optimum_of(problem: Problem) -> Tensor:
    """Return the optimum in double precision, or refuse a problem whose optimum is not known."""
    if problem.optimum is None:
        raise PerronError("The optimum of this problem is not known, so theory cannot linearise it there.")
    return problem.optimum.to(torch.float64)


def _known(covariance: Tensor | None) -> Tensor:
    if covariance is None:
        raise PerronError(
            "The covariance of this problem's gradient noise is not known: override Problem.noise_covariances."
        )
    return covariance


@dataclass(frozen=True)
class Linearization:
    """A problem linearised at its optimum.

    Attributes:
        curvature: the nodes' Hessians H_i, ``(n, d, d)``; or ``(d,)``, the eigenvalues of one H that all nodes share.
        grads: c_i = grad f_i(x*), which sum to zero, ``(n, d)``; in the eigenvectors of H if that is shared.
        noise: covariances of the nodes' gradients, ``(n, d, d)``; variances ``(n, d)`` in the eigenvectors of a shared H, whose
            covariances with each other do not matter.
    """

    curvature: Tensor
    grads: Tensor
    noise: Tensor

    @property
    def shared(self) -> bool:
        """Whether all nodes have the same Hessian."""
        return self.curvature.ndim == 1

    @property
    def dim(self) -> int:
        return self.curvature.shape[-1]


def linearize(problem: Problem, *, noise: bool = True) -> Linearization:
    """Return the Hessians, gradients and (if ``noise``) gradient covariances of a problem at its optimum."""
    x = optimum_of(problem)
    shape = (problem.nodes, problem.dim, problem.dim)
    covariances = _known(problem.noise_covariances(x)).double() if noise else torch.zeros(shape, dtype=torch.float64)
    hessians = problem.local_hessians(x).double()
    grads = problem.local_grads(x.expand(problem.nodes, problem.dim)).double()
    tolerance = 1e-12 * float(hessians.abs().max())
    if not torch.allclose(hessians, hessians[:1].expand_as(hessians), rtol=1e-10, atol=tolerance):
        return Linearization(hessians, grads, covariances)
    values, vectors = torch.linalg.eigh(hessians[0])
    return Linearization(values, grads @ vectors, torch.einsum("ji,njk,ki->ni", vectors, covariances, vectors))


@dataclass(frozen=True)
class StationaryLevel:
    """Expected values in the stationary state, named as the metrics of `simulate`; ``bias`` are those without noise.

    Attributes:
        grad_norm_sq: E |grad f(x-hat)|^2.
        grad_norm_sq_mean: E |grad f(x-bar)|^2 at the plain mean of the models.
        grad_norm_sq_local: E |mean_i grad f_i(x_i)|^2.
        distance_sq: E |x-hat - x*|^2.
        distance_sq_local: mean_i E |x_i - x*|^2.
        consensus_error_sq: mean_i E |x_i - x-hat|^2.
        bias: the same for exact gradients: zero for exact methods, of order lr^2 for biased ones on heterogeneous data.
    """

    grad_norm_sq: float
    grad_norm_sq_mean: float
    grad_norm_sq_local: float
    distance_sq: float
    distance_sq_local: float
    consensus_error_sq: float
    bias: StationaryLevel | None = field(default=None, kw_only=True)


METRICS = tuple(entry.name for entry in fields(StationaryLevel) if entry.name != "bias")


def stationary(problem: Problem, algorithm: Algorithm, network: Network | Mixing, lr: float) -> StationaryLevel:
    """Return the exact stationary level of an algorithm near the optimum, where it is a linear stochastic recursion.

    With deviations S from the optimum, S+ = M S + N (c + noise) (`perron.theory.recursion`), the mean m solves
    m = M m + N c, and the covariance X the Lyapunov equation

        X = M X M^T + N Sigma N^T

    on the reachable subspace. It holds for every step and topology, and is exact for quadratics with additive noise,
    whatever the nodes' Hessians; for other losses as far as they are quadratic, and their noise constant, over the region in
    which a run moves. Push-sum weights and similar fields are at their limits. Where nodes take part at random, X includes the
    variance that this causes.

    Raises a `PerronError` where the recursion is unstable.

    Example:
        >>> import perron
        >>> mixing = perron.Mixing.random_integer(perron.topologies.ring(8), seed=0)
        >>> problem = perron.problems.Quadratic.random(8, noise_std=0.5)
        >>> level = stationary(problem, perron.PushPull(), mixing, lr=0.03)
        >>> simple = noise_floor(problem, 0.03 * perron.Network(mixing).alignment)
        >>> round(level.grad_norm_sq / simple, 3)
        1.039
    """
    network = as_network(network)
    check_nodes(problem, network)
    check_lr(lr)
    return stationary_level(unit_recursion(algorithm, network), linearize(problem), lr)


def check_nodes(problem: Problem, network: Network) -> None:
    """Refuse a problem and a network with different numbers of nodes."""
    if problem.nodes != network.nodes:
        raise PerronError(
            f"The problem has {problem.nodes} nodes, the network {network.nodes}; the numbers must be equal."
        )


@single_threaded()
def stationary_level(unit: Recursion, local: Linearization, lr: float = 1.0) -> StationaryLevel:
    """Return the level that `stationary` returns, for a recursion at lr = 1 and a linearised problem."""
    mean, covariance = _moments(unit, Linearization(lr * local.curvature, lr * local.grads, lr**2 * local.noise))
    readouts = _readouts(unit, local)
    bias = [float(((readouts[name] @ mean) ** 2).sum()) for name in METRICS]
    noisy = [float((readouts[name] @ covariance * readouts[name]).sum()) for name in METRICS]
    total = [constant + varying for constant, varying in zip(bias, noisy, strict=True)]
    return StationaryLevel(*total, bias=StationaryLevel(*bias))


def _moments(linear: Recursion, local: Linearization) -> tuple[Tensor, Tensor]:
    """Mean and covariance of S in the stationary state: ``(batch, size, 1)`` and ``(batch, size, size)``.

    A shared Hessian gives one system for each of its eigenvalues; others give a single one, d times as large.
    """
    if linear.size * (1 if local.shared else local.dim) > LARGEST:
        raise PerronError(
            f"The recursion has {linear.size} x {local.dim} unknowns, and theory works with dense matrices, up to {LARGEST}. "
            "Choose fewer nodes or coordinates."
        )
    steps, free = closed_loop(linear, local.curvature)
    repeat = steps[0].N.shape[-1] // (linear.nodes if local.shared else linear.nodes * local.dim)
    if local.shared:
        force = local.grads.T.repeat(1, repeat)[:, :, None]
        noise = torch.diag_embed(local.noise.T.repeat(1, repeat))
    else:
        force = local.grads.reshape(1, -1, 1).repeat(1, repeat, 1)
        noise = block_diagonal(local.noise, repeat)[None]
    # A period of several steps is one long step: through = M_p ... M_1, and each step's input is carried to its end.
    through = period_matrix(steps)
    shift = torch.zeros(len(through), through.shape[-1], 1, dtype=torch.float64)
    for step in steps:
        shift = step.M @ shift + step.N @ force
    radius = spectral_radius(through)
    if radius >= 1 - 1e-13:
        raise PerronError(
            f"The recursion is unstable: its spectral radius is {radius:.6g}. Choose another lr; theory.stable_lr says which are "
            "stable, if any. (1 at every lr: some curvature is zero, or a quantity that should decay never does.)"
        )
    mean = torch.linalg.solve(torch.eye(through.shape[-1], dtype=torch.float64) - through, shift)

    def added(covariance: Tensor | None) -> Tensor:
        """The covariance that a period adds: by noise and, where nodes take part at random, by their choice."""
        total, center, current = torch.zeros_like(through), mean, covariance
        for step in steps:
            more = step.N @ noise @ step.N.mT
            for M, N in step.parts:
                offset = M @ center + N @ force
                more = more + linear.variance * (N @ noise @ N.mT + offset @ offset.mT)
                if current is not None:
                    more = more + linear.variance * M @ current @ M.mT
            total, center = step.M @ total @ step.M.mT + more, step.M @ center + step.N @ force
            current = None if current is None else step.M @ current @ step.M.mT + more
        return total

    covariance = lyapunov(through, added(None))
    if linear.fluctuations:
        for _ in range(5000):
            before, covariance = covariance, lyapunov(through, added(covariance))
            change, size = float((covariance - before).abs().max()), float(covariance.abs().max())
            if change <= 1e-10 * size or not size < 1e100:
                break
        if not change <= 1e-10 * size:
            raise PerronError(
                "With nodes that take part at random the second moments do not settle: choose a smaller lr."
            )
    return free @ mean, free @ covariance @ free.mT


@dataclass(frozen=True)
class ClosedStep:
    """A step S+ = M S + N (c + noise) in reachable coordinates; ``parts`` are M and N of its fluctuations."""

    M: Tensor
    N: Tensor
    parts: tuple[tuple[Tensor, Tensor], ...] = ()


def closed_loop(linear: Recursion, curvature: Tensor) -> tuple[list[ClosedStep], Tensor]:
    """Return M and N of every step of a period in a basis of the reachable states, and that basis.

    The basis is that of a period's start: within a period of several steps, states are kept in full coordinates.
    """
    free = kron_identity(linear.free, 1 if curvature.ndim == 1 else curvature.shape[-1])
    last = len(linear.stages) - 1

    def reduced(number: int, M: Tensor, N: Tensor) -> tuple[Tensor, Tensor]:
        M = M if number else M @ free
        return (M, N) if number < last else (free.mT @ M, free.mT @ N)

    steps = []
    for number, stage in enumerate(linear.stages):
        M, N = stage.closed_loop(curvature)
        parts = []
        for part in linear.fluctuations[number] if linear.fluctuations else ():
            # Points do not depend on which nodes take part, so the gradients are those of the mean stage.
            whole = Stage(stage.P + part.P, stage.Q + part.Q, stage.R, stage.T).closed_loop(curvature)
            parts.append(reduced(number, whole[0] - M, whole[1] - N))
        steps.append(ClosedStep(*reduced(number, M, N), tuple(parts)))
    return steps, free


def spectral_radius(matrices: Tensor) -> float:
    """Return the largest modulus of an eigenvalue over a batch; zero of matrices without rows."""
    return float(torch.linalg.eigvals(matrices).abs().max()) if matrices.numel() else 0.0


def period_matrix(steps: list[ClosedStep]) -> Tensor:
    """Return M_p ... M_1: a period as one step."""
    return reduce(lambda through, step: step.M @ through, steps[1:], steps[0].M)


def lyapunov(M: Tensor, added: Tensor) -> Tensor:
    """Solve X = M X M^T + added by doubling: sums of 1, 2, 4, ... terms of its series. M must contract. Differentiable."""
    X, power = added, M
    for _ in range(64):
        more = power @ X @ power.mT
        X = X + more
        if float(more.detach().abs().max()) <= 1e-15 * float(X.detach().abs().max()):
            break
        power = power @ power
    return (X + X.mT) / 2


def _readouts(linear: Recursion, local: Linearization) -> dict[str, Tensor]:
    """Rows whose squares, summed over rows and systems, are the metrics: ``(batch, rows, size)``."""
    n = linear.nodes
    models = torch.zeros(n, linear.size, dtype=torch.float64)
    models[:, linear.field("x")] = torch.eye(n, dtype=torch.float64)
    center, mean = linear.average[None], models.mean(0, keepdim=True)
    rows = {
        "distance_sq": center,
        "distance_sq_local": models / n**0.5,
        "consensus_error_sq": (models - center) / n**0.5,
        "grad_norm_sq": center,
        "grad_norm_sq_mean": mean,
        "grad_norm_sq_local": mean if local.shared else models,
    }
    if local.shared:
        slopes = local.curvature[:, None, None]
        return {
            name: slopes * row if name.startswith("grad") else row.expand(local.dim, *row.shape)
            for name, row in rows.items()
        }
    average = local.curvature.mean(0)
    each = torch.cat(list(local.curvature), dim=1) / n  # (1/n) [H_1 ... H_n]
    wide = {name: kron_identity(row, local.dim) for name, row in rows.items()}
    wide |= {name: average @ wide[name] for name in ("grad_norm_sq", "grad_norm_sq_mean")}
    wide["grad_norm_sq_local"] = each @ wide["grad_norm_sq_local"]
    return {name: row[None] for name, row in wide.items()}

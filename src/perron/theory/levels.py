"""Where a run with noisy gradients and a constant step settles: simple formulas, and the exact second moments."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
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
    as_network,
    blocks,
    one_thread,
    spread,
    unit_recursion,
)


def noise_floor(problem: Problem, step: float) -> float:
    """The level at which grad_norm_sq of a method that follows centralized SGD settles with a constant step:

        E |grad f(x-hat)|^2  ->  step tr(H Sigma) / (2 n)

    H is the Hessian at the optimum, Sigma the covariance of one node's stochastic gradient there, and ``step`` the effective
    step: c lr for Push-Pull (`Algorithm.effective_step` times lr). Near the optimum x-hat follows
    x-hat+ = x-hat - step (H (x-hat - x*) + noise), whose covariance P solves H P + P H - step H P H = step Sigma / n; the
    level is tr(H P H), and the formula its leading term for small steps (the next is larger by about step L / 2).
    `stationary` has the exact answer for an algorithm on a network.

    Example:
        >>> from perron.problems import Quadratic
        >>> problem = Quadratic.random(16, dim=4, noise_std=0.5)
        >>> round(noise_floor(problem, step=0.1), 6)
        0.00043
    """
    _check_step(step)
    hessian, covariance = _average(problem)
    return step * float((hessian * covariance).sum()) / (2 * problem.nodes)


def distance_floor(problem: Problem, step: float) -> float:
    """The level at which distance_sq settles, under the assumptions of `noise_floor`:

        E |x-hat - x*|^2  ->  step tr(H^-1 Sigma) / (2 n)

    It needs a positive definite H.
    """
    _check_step(step)
    hessian, covariance = _average(problem)
    if float(torch.linalg.eigvalsh(hessian).min()) <= 0:
        raise PerronError("The distance to the optimum does not settle: the Hessian there is not positive definite.")
    return step * float(torch.linalg.solve(hessian, covariance).trace()) / (2 * problem.nodes)


def _check_step(step: float) -> None:
    if not (isfinite(step) and step > 0):
        raise PerronError(f"An effective step is a positive number; got {step}.")


def _average(problem: Problem) -> tuple[Tensor, Tensor]:
    """Hessian and covariance of the noise at the optimum, averaged over the nodes."""
    x = _optimum(problem)
    covariance = problem.noise_covariance(x)
    if covariance is None:
        raise _unknown_noise()
    return problem.hessian(x), covariance


def _optimum(problem: Problem) -> Tensor:
    if problem.optimum is None:
        raise PerronError("The optimum of this problem is not known, so neither is the noise there.")
    return problem.optimum.to(torch.float64)


def _unknown_noise() -> PerronError:
    return PerronError(
        "The covariance of this problem's gradient noise is not known: override Problem.noise_covariances."
    )


@dataclass(frozen=True)
class Around:
    """A problem in the neighbourhood of its optimum, as linear theory sees it.

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
        """Whether all nodes have one Hessian."""
        return self.curvature.ndim == 1

    @property
    def dim(self) -> int:
        """d."""
        return self.curvature.shape[-1]


def around(problem: Problem, *, noise: bool = True) -> Around:
    """The Hessians, gradients and, if asked for, noise covariances of a problem at its optimum."""
    x = _optimum(problem)
    covariances = problem.noise_covariances(x) if noise else None
    if covariances is None:
        if noise:
            raise _unknown_noise()
        covariances = torch.zeros(problem.nodes, problem.dim, problem.dim, dtype=torch.float64)
    hessians = problem.local_hessians(x).double()
    grads = problem.local_grads(x.expand(problem.nodes, problem.dim)).double()
    covariances = covariances.double()
    if not torch.allclose(
        hessians, hessians[:1].expand_as(hessians), rtol=1e-10, atol=1e-12 * float(hessians.abs().max())
    ):
        return Around(hessians, grads, covariances)
    values, turn = torch.linalg.eigh(hessians[0])
    return Around(values, grads @ turn, torch.einsum("ji,njk,ki->ni", turn, covariances, turn))


@dataclass(frozen=True)
class Level:
    """Expected values in the stationary state, named as the metrics of `simulate`; ``bias`` are those without noise.

    Attributes:
        grad_norm_sq: E |grad f(x-hat)|^2.
        grad_norm_sq_mean: E |grad f(x-bar)|^2 at the plain mean of the models.
        grad_norm_sq_local: E |mean_i grad f_i(x_i)|^2.
        distance_sq: E |x-hat - x*|^2.
        distance_sq_local: mean_i E |x_i - x*|^2.
        consensus_error_sq: mean_i E |x_i - x-hat|^2.
        bias: the same for exact gradients: zero for exact methods, of order lr^2 for biased ones on differing data.
    """

    grad_norm_sq: float
    grad_norm_sq_mean: float
    grad_norm_sq_local: float
    distance_sq: float
    distance_sq_local: float
    consensus_error_sq: float
    bias: Level | None = field(default=None, kw_only=True)


NAMES = tuple(one.name for one in fields(Level) if one.name != "bias")


def stationary(problem: Problem, algorithm: Algorithm, network: Network | Mixing, lr: float) -> Level:
    """The exact stationary level of the linear stochastic recursion that an algorithm is near the optimum.

    With deviations S from the optimum, S+ = M S + N (c + noise) (`perron.theory.recursion`), the mean m solves
    m = M m + N c, and the covariance X the Lyapunov equation

        X = M X M^T + N Sigma N^T

    on the subspace that runs reach. It holds for every step and topology, and is exact for quadratics with additive noise,
    whatever the nodes' Hessians; for other losses as far as they are quadratic, and their noise constant, over the region in
    which a run moves. Push-sum weights and the like have settled. Where nodes take part at random, X has the terms of that too.

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
    if not (isfinite(lr) and lr > 0):
        raise PerronError(f"lr must be a positive number; got {lr}.")
    return level_of(unit_recursion(algorithm, network), around(problem), lr)


def check_nodes(problem: Problem, network: Network) -> None:
    """Refuse a problem and a network that do not have as many nodes."""
    if problem.nodes != network.nodes:
        raise PerronError(f"The problem has {problem.nodes} nodes, the network {network.nodes}; they need as many.")


@one_thread()
def level_of(found: Recursion, near: Around, lr: float = 1.0) -> Level:
    """`stationary`, of a recursion and a problem's neighbourhood that are known already; with ``lr`` if that is of lr = 1."""
    scaled = Around(lr * near.curvature, lr * near.grads, lr**2 * near.noise)
    mean, covariance = moments(found, scaled)
    readouts = _readouts(found, near)
    bias = {name: float(((rows @ mean) ** 2).sum()) for name, rows in readouts.items()}
    noisy = {name: float((rows @ covariance * rows).sum()) for name, rows in readouts.items()}
    return Level(*(bias[name] + noisy[name] for name in NAMES), bias=Level(*(bias[name] for name in NAMES)))


def moments(found: Recursion, near: Around) -> tuple[Tensor, Tensor]:
    """Mean and covariance of S in the stationary state: ``(batch, size, 1)`` and ``(batch, size, size)``.

    Of a shared Hessian there is one system for each of its eigenvalues; otherwise a single one, d times as large.
    """
    if found.stages[0].P.shape[0] * (1 if near.shared else near.dim) > LARGEST:
        raise PerronError(
            f"The recursion has {found.stages[0].P.shape[0]} x {near.dim} unknowns, and theory works with dense matrices, up to "
            f"{LARGEST}. Choose fewer nodes or coordinates."
        )
    steps, free = closed(found, near.curvature)
    repeat = steps[0].N.shape[-1] // (found.nodes if near.shared else found.nodes * near.dim)
    if near.shared:
        force = near.grads.T.repeat(1, repeat)[:, :, None]
        noise = torch.diag_embed(near.noise.T.repeat(1, repeat))
    else:
        force = near.grads.reshape(1, -1, 1).repeat(1, repeat, 1)
        noise = blocks(near.noise, repeat)[None]
    # A period of several steps is one long step: through = M_p ... M_1, and what the steps add is carried to its end.
    through = product(steps)
    shift = torch.zeros(len(through), through.shape[-1], 1, dtype=torch.float64)
    for step in steps:
        shift = step.M @ shift + step.N @ force
    radius = spectral_radius(through)
    if radius >= 1 - 1e-13:
        raise PerronError(
            f"The recursion is unstable: its spectral radius is {radius:.6g}. Choose another lr; theory.stable_lr says which are "
            "stable, if any. (1 at every lr: some curvature is zero, or something that should die out never does.)"
        )
    mean = torch.linalg.solve(torch.eye(through.shape[-1], dtype=torch.float64) - through, shift)

    def added(covariance: Tensor | None) -> Tensor:
        """What a period adds to the covariance: noise and, where nodes take part at random, what that makes of the state."""
        total, at, within = torch.zeros_like(through), mean, covariance
        for step in steps:
            more = step.N @ noise @ step.N.mT
            for M, N in step.parts:
                offset = M @ at + N @ force
                more = more + found.variance * (N @ noise @ N.mT + offset @ offset.mT)
                if within is not None:
                    more = more + found.variance * M @ within @ M.mT
            total, at = step.M @ total @ step.M.mT + more, step.M @ at + step.N @ force
            within = None if within is None else step.M @ within @ step.M.mT + more
        return total

    covariance = lyapunov(through, added(None))
    if found.fluctuations:
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
class Closed:
    """A step with its gradients put in, in the coordinates of what runs reach; ``parts`` are the fluctuations' M and N."""

    M: Tensor
    N: Tensor
    parts: tuple[tuple[Tensor, Tensor], ...] = ()


def closed(found: Recursion, curvature: Tensor) -> tuple[list[Closed], Tensor]:
    """M and N of every step of a period in the basis of the states that runs reach, and that basis.

    Within a period of several steps the basis is that of its start, and steps are kept in full coordinates.
    """
    dim = 1 if curvature.ndim == 1 else curvature.shape[-1]
    free = spread(found.free, dim)
    count = len(found.stages)
    steps = []
    for number, stage in enumerate(found.stages):
        M, N = stage.closed(curvature)
        parts = found.fluctuations[number] if found.fluctuations else ()
        pairs = []
        for part in parts:
            # Points do not depend on who takes part, so that the gradients are those of the mean stage.
            whole = type(stage)(stage.P + part.P, stage.Q + part.Q, stage.R, stage.T)
            with_part = whole.closed(curvature)
            pairs.append((with_part[0] - M, with_part[1] - N))
        first, last = number == 0, number == count - 1

        def within(M: Tensor, *, enter: bool = first, leave: bool = last) -> Tensor:
            M = M @ free if enter else M
            return free.mT @ M if leave else M

        def added(N: Tensor, *, leave: bool = last) -> Tensor:
            return free.mT @ N if leave else N

        steps.append(Closed(within(M), added(N), tuple((within(m), added(k)) for m, k in pairs)))
    return steps, free


def spectral_radius(matrices: Tensor) -> float:
    """The largest modulus of an eigenvalue, over a batch; zero of matrices without rows."""
    return float(torch.linalg.eigvals(matrices).abs().max()) if matrices.numel() else 0.0


def product(steps: list[Closed]) -> Tensor:
    """M_p ... M_1: a period as one step."""
    through = steps[0].M
    for step in steps[1:]:
        through = step.M @ through
    return through


def lyapunov(M: Tensor, added: Tensor) -> Tensor:
    """X = M X M^T + added, by doubling: sums of 1, 2, 4, ... terms of its series. M must contract. Differentiable."""
    X, power = added, M
    for _ in range(64):
        more = power @ X @ power.mT
        X = X + more
        if float(more.detach().abs().max()) <= 1e-15 * float(X.detach().abs().max()):
            break
        power = power @ power
    return (X + X.mT) / 2


def _readouts(found: Recursion, near: Around) -> dict[str, Tensor]:
    """Rows whose squares, summed over rows and systems, are the metrics: ``(batch, rows, size)``."""
    n, size = found.nodes, found.stages[0].P.shape[0]
    models = torch.zeros(n, size, dtype=torch.float64)
    models[:, found.field("x")] = torch.eye(n, dtype=torch.float64)
    center = found.average[None]
    apart = (models - center) / n**0.5
    if near.shared:
        h = near.curvature[:, None, None]
        plain = {"distance_sq": center, "distance_sq_local": models / n**0.5, "consensus_error_sq": apart}
        sloped = {"grad_norm_sq": center, "grad_norm_sq_mean": models.mean(0, keepdim=True)}
        sloped["grad_norm_sq_local"] = sloped["grad_norm_sq_mean"]
        wide = {name: rows.expand(near.dim, *rows.shape) for name, rows in plain.items()}
        found_rows = wide | {name: h * rows for name, rows in sloped.items()}
    else:
        mean = near.curvature.mean(0)
        each = torch.cat(list(near.curvature), dim=1) / n  # (1/n) [H_1 ... H_n]
        full = spread(center, near.dim)
        locals_ = spread(models, near.dim)
        found_rows = {
            "distance_sq": full,
            "distance_sq_local": locals_ / n**0.5,
            "consensus_error_sq": spread(apart, near.dim),
            "grad_norm_sq": mean @ full,
            "grad_norm_sq_mean": mean @ spread(models.mean(0, keepdim=True), near.dim),
            "grad_norm_sq_local": each @ locals_,
        }
        found_rows = {name: rows[None] for name, rows in found_rows.items()}
    return {name: found_rows[name] for name in NAMES}

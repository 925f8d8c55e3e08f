"""The constants of theory, estimated from data: smoothness, gradient noise, heterogeneity and the gap to the optimum.

Step sizes and rates are stated in terms of f = (1/n) sum_i f_i, stochastic gradients g_i and a starting point x:

    L        |grad f_i(x) - grad f_i(y)| <= L |x - y| for all nodes
    sigma^2  (1/n) sum_i E|g_i - grad f_i|^2
    zeta^2   (1/n) sum_i |grad f_i - grad f|^2
    Delta    f(x) - f*

`estimate` measures them for any `Problem`; `estimate_model` for a torch module and a few minibatches.

The estimates hold at one point. The curvature there is only a lower bound on L: for a quadratic it is L, for a neural network it
usually grows during training, so that a step that suits the start may be too long later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import isfinite, sqrt
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from perron._modules import LossAt
from perron._typing import check_whole
from perron.errors import PerronError, listed
from perron.problems import Neural
from perron.problems.base import Problem
from perron.random import NOISE, Keyed
from perron.theory._minibatches import common_size, read_pairs
from perron.theory.curvature import check_finite, dense, lanczos, products
from perron.theory.gradient_moments import moments, scatter

CHUNK = 2**20  # numbers in the stochastic gradients that are drawn at a time
DENSE = 64  # coordinates up to which whole Hessians are formed, with all their eigenvalues


@dataclass(frozen=True, kw_only=True)
class Constants:
    """Estimates at one point, with standard errors where they are sampled, and separately the constants that are known.

    An error is None where the value is exact for the samples that were used, or was not measured.

    Attributes:
        dim, nodes: d and n.
        smoothness: the largest |eigenvalue| of the Hessian of any local loss: L at this point.
        noise_var: sigma^2, of ONE node's stochastic gradient, averaged over the nodes.
        heterogeneity: zeta^2; None if not measured. From minibatches it is unbiased, so it may come out below zero.
        gap: Delta, the loss minus ``lower_bound``.
        lower_bound: the loss at the optimum where that is known, otherwise the assumed bound.
        smoothness_average: the largest |eigenvalue| of the Hessian of the average f.
        smallest_curvature: the smallest eigenvalue of that Hessian: mu at this point if it is above zero; below zero, f
            is not convex here.
        grad_norm_sq: |grad f|^2.
        batch: samples in one stochastic gradient; None if there are no samples.
        known_smoothness, known_strong_convexity, known_noise_var: as stated by the problem; None if it does not.
        how: for each estimate, how it was made.
    """

    dim: int
    nodes: int
    smoothness: float
    noise_var: float
    heterogeneity: float | None
    gap: float
    noise_var_error: float | None = None
    heterogeneity_error: float | None = None
    gap_error: float | None = None
    lower_bound: float = 0.0
    smoothness_average: float | None = None
    smallest_curvature: float | None = None
    grad_norm_sq: float | None = None
    grad_norm_sq_error: float | None = None
    batch: int | None = None
    known_smoothness: float | None = None
    known_strong_convexity: float | None = None
    known_noise_var: float | None = None
    how: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def noise_scale(self) -> float | None:
        """sigma^2 B / |grad f|^2: the batch size beyond which larger batches gain little.

        (McCandlish, Kaplan, Amodei & OpenAI Dota Team 2018, An Empirical Model of Large-Batch Training; their "simple"
        noise scale.) B is the batch that sigma^2 belongs to, and sigma^2 B the variance of single samples' gradients if the
        batch is a small part of the data or drawn with replacement. None where there are no batches, or where the
        gradient is zero within its standard error.
        """
        if self.batch is None or self.grad_norm_sq is None or self.grad_norm_sq <= (self.grad_norm_sq_error or 0.0):
            return None
        return self.noise_var * self.batch / self.grad_norm_sq

    def rows(self) -> list[dict[str, str | float | None]]:
        """Return a table: ``constant``, ``value``, ``error``, ``known``, ``how``."""
        known = {
            "smoothness": self.known_smoothness,
            "smallest_curvature": self.known_strong_convexity,
            "noise_var": self.known_noise_var,
        }
        names = (
            "smoothness", "smoothness_average", "smallest_curvature", "noise_var", "heterogeneity", "grad_norm_sq", "gap",
            "noise_scale",
        )  # fmt: skip
        return [
            {"constant": name, "value": getattr(self, name), "error": getattr(self, f"{name}_error", None),
             "known": known.get(name), "how": self.how.get(name, "")}
            for name in names
        ]  # fmt: skip

    def __str__(self) -> str:
        def text(value: object) -> str:
            return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)

        lines = [["constant", "estimate", "+-", "known", "how"]]
        lines += [[text(cell) for cell in row.values()] for row in self.rows()]
        widths = [max(len(line[column]) for line in lines) for column in range(4)]
        table = ["  ".join([*map(str.ljust, line, widths), line[-1]]).rstrip() for line in lines]
        size = f"{self.dim:,} parameters, {self.nodes} nodes" + (f", batch {self.batch}" if self.batch else "")
        return "\n".join([size, *table])


def estimate(
    problem: Problem,
    x: Tensor | None = None,
    *,
    draws: int = 16,
    seed: int = 0,
    exact: bool | None = None,
    samples: int | None = 1024,
    lower_bound: float | None = None,
    tolerance: float = 1e-3,
) -> Constants:
    """Estimate the constants of a problem at a point that all nodes share.

    Smoothness: all eigenvalues of the local Hessians up to d = 64; beyond that Lanczos on their products with vectors
    (`Problem.hessian_products`), for the largest of all nodes at once on the block-diagonal matrix of them. Noise: the
    unbiased variance of ``draws`` independent stochastic gradients of each node, with the jackknife's standard error.
    Heterogeneity: from exact local gradients, or, unbiased, from the draws: with T of them and their means m_i,

        zeta^2  =  (1/n) sum_i |m_i - mean_j m_j|^2  -  (1 - 1/n) sigma^2 / T.

    Networks with BatchNorm have two losses, with the batch's statistics and with running ones, whose gradients may differ
    widely. Noise is that of training; so are, by default, heterogeneity and |grad f|^2 for networks with such statistics.
    Curvature and Delta are in eval mode, with statistics that the draws have updated. The problem and its memory are left
    unchanged.

    Args:
        problem: the problem to minimise.
        x: the point, ``(d,)``; by default where the problem starts, averaged over the nodes.
        draws: stochastic gradients of each node, at least 3.
        seed: of the draws.
        exact: whether to take heterogeneity and |grad f|^2 from gradients over all samples, rather than from the draws; by
            default, unless the problem has a memory (`Problem.memory`).
        samples: for `Neural`, the most samples of each node, drawn at random, from which the curvature is computed; None for
            all. The largest eigenvalue over few samples is on average too large.
        lower_bound: f* for Delta. By default the loss at the problem's optimum where that is known, and otherwise 0, a lower
            bound of cross-entropy and squares; since their infimum may be far above it, Delta is then an upper bound.
        tolerance: relative accuracy of eigenvalues by Lanczos; of the smallest, relative to the largest.

    Example:
        >>> from perron.problems import Quadratic
        >>> found = estimate(Quadratic.random(8, dim=3, smoothness=2.0, noise_std=0.5), draws=400)
        >>> round(found.smoothness, 6), round(found.noise_var, 2), found.known_noise_var
        (2.0, 0.25, 0.25)
    """
    _check_accuracy(draws, tolerance)
    if samples is not None:
        check_whole("samples", samples, low=1)
    x = _point(problem, x)
    with _preserved(problem, x.device) as copy:
        values, how = _gradient_estimates(copy, x, draws, seed, exact)
        curvature, way = _curvature_estimates(copy, x, samples, seed, tolerance)
        loss, bound, gap = _loss(copy, x, lower_bound)
        noise = copy.noise_std**2 if copy.noise_std is not None else None
        if noise is None and copy.dim <= DENSE and (covariance := copy.noise_covariance(x)) is not None:
            noise = float(covariance.trace())
    batch = getattr(problem, "batch", None)
    return Constants(
        dim=problem.dim,
        nodes=problem.nodes,
        gap=_gap(loss, bound),
        lower_bound=bound,
        batch=batch if isinstance(batch, int) else None,
        known_smoothness=problem.smoothness,
        known_strong_convexity=problem.strong_convexity,
        known_noise_var=noise,
        how=_described(how | dict.fromkeys(curvature, way), gap),
        **curvature,
        **values,
    )


@contextmanager
def _preserved(problem: Problem, device: torch.device) -> Iterator[Problem]:
    """The problem or a copy of it on a device; afterwards the problem's memory is as it was."""
    copy = problem.to(dtype=problem.dtype, device=device)
    memory = {name: value.clone() for name, value in problem.memory.items()}
    losses = copy.batch_losses
    if copy is not problem and memory:
        copy.recall({name: value.clone() for name, value in memory.items()})
    try:
        yield copy
    finally:
        if copy is problem:
            copy.batch_losses = losses
            copy.recall(memory)


def _gradient_estimates(
    problem: Problem, x: Tensor, draws: int, seed: int, exact: bool | None
) -> tuple[dict[str, Any], dict[str, str]]:
    """noise_var, heterogeneity and grad_norm_sq with their errors, and how they were made."""
    nodes, dim = problem.nodes, problem.dim
    chunk = 1 if isinstance(problem, Neural) else max(1, CHUNK // (nodes * dim))

    def stochastic() -> Iterator[Tensor]:
        for first in range(0, draws, chunk):
            # A trial of its own for each: within a trial, draws may be without replacement from one to the next.
            trials = range(first, min(draws, first + chunk))
            points = x.expand(len(trials), nodes, dim).contiguous()
            yield from problem.grad(points, 0, Keyed(seed, trials=trials, nodes=nodes, stream=NOISE, device=x.device))

    estimates = moments(stochastic, draws)
    way = f"{draws} stochastic gradients of each node, less their noise"
    if exact if exact is not None else not problem.memory:
        grads = problem.local_grads(x.expand(nodes, dim).contiguous()).double()
        check_finite(grads, "The exact gradient")
        way, square = "exact local gradients", float(grads.mean(0).square().sum())
        estimates |= {"heterogeneity": (scatter(grads), None), "grad_norm_sq": (square, None)}
    noise = f"variance of {draws} stochastic gradients of each node"
    return _flat(estimates), {"noise_var": noise, "heterogeneity": way, "grad_norm_sq": way}


def _curvature_estimates(
    problem: Problem, x: Tensor, samples: int | None, seed: int, tolerance: float
) -> tuple[dict[str, float], str]:
    """The curvatures, and how they were computed."""
    if problem.dim <= DENSE:
        return dense(problem.local_hessians(x)), "all eigenvalues of the local Hessians"
    way = "Lanczos on Hessian products"
    if isinstance(problem, Neural):
        product = problem.hessian_products(x, samples)
        way += f", at most {samples} samples of a node" if samples else ""
    else:
        product = problem.hessian_products(x)
    return lanczos(product, x, problem.nodes, seed, tolerance), way


def _loss(problem: Problem, x: Tensor, lower_bound: float | None) -> tuple[float, float, str]:
    """The loss, its lower bound, and a description of their difference."""
    loss = float(problem.loss(x))
    if isinstance(problem, Neural) and problem.weight_decay:
        loss += problem.weight_decay / 2 * float(x.double().square().sum())  # as in the gradients
    if lower_bound is not None:
        return loss, lower_bound, f"loss less the lower bound {lower_bound}"
    try:
        optimum = problem.optimum
    except PerronError:  # it exists, but cannot be computed
        optimum = None
    if optimum is None:
        return loss, 0.0, "loss less the lower bound 0.0, assumed"
    return loss, float(problem.loss(optimum.to(x))), "loss less that at the optimum"


def _flat(estimates: dict[str, tuple[float, float | None]]) -> dict[str, Any]:
    return {
        key: value for name, pair in estimates.items() for key, value in zip((name, f"{name}_error"), pair, strict=True)
    }


def _described(how: dict[str, str], gap: str) -> dict[str, str]:
    return how | {"gap": gap, "noise_scale": "noise_var x batch / grad_norm_sq"}


def estimate_model(
    model: nn.Module,
    loss: Callable[[Any, Any], Tensor],
    batches: Iterable[Any],
    *,
    by_node: bool = False,
    draws: int = 16,
    curvature_batches: int = 4,
    lower_bound: float = 0.0,
    seed: int = 0,
    tolerance: float = 1e-3,
) -> Constants:
    """Estimate the constants of a torch model at its current parameters, from a few minibatches.

    The first ``draws`` batches are used. Noise is the variance of their gradients, from batch to batch. If they are batches of
    one epoch in random order, that is the variance of batches drawn with replacement, without bias, and
    noise_var x batch that of single samples. The Hessian is that of the mean loss over ``curvature_batches`` of them, by
    differentiating twice, or by central differences of gradients where an operation of the model has no second
    derivative; over so small a sample its largest eigenvalue is on average too large. The model is evaluated in its current
    mode, and its parameters, gradients, buffers (BatchNorm's, too) and mode are left unchanged.

    Args:
        model: its parameters that require a gradient are x, in one floating type on one device.
        loss: ``(outputs, targets) -> mean over the samples``, without parameters of its own.
        batches: pairs ``(inputs, targets)`` with equally many samples each; inputs are a tensor, or a tuple of the
            model's arguments. With ``by_node``, one such iterable for each node.
        by_node: whether batches are given node by node: then heterogeneity is estimated, too, and smoothness is the
            largest of all nodes'.
        draws: batches of each node that are used, at least 3; fewer if there are fewer.
        curvature_batches: the number of batches for the Hessian.
        lower_bound: f* for Delta; 0 is right for cross-entropy and squares, in that Delta is then an upper bound.
        seed: of Lanczos' first vector, and of dropout, which differs between batches.
        tolerance: relative accuracy of eigenvalues; of the smallest, relative to the largest.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> batches = [(torch.randn(32, 5), torch.randn(32, 1)) for _ in range(8)]
        >>> found = estimate_model(nn.Linear(5, 1), nn.functional.mse_loss, batches)
        >>> found.dim, found.heterogeneity is None, 2 < found.smoothness < 5
        (6, True, True)
    """
    _check_accuracy(draws, tolerance)
    if curvature_batches < 1:
        raise PerronError(f"curvature_batches must be at least 1; got {curvature_batches}.")
    at = LossAt(model, loss)
    kinds = {f"{param.dtype} on {param.device}" for param in at.params.values()}
    if len(kinds) > 1:
        raise PerronError(f"All parameters need one floating type and one device; got {listed(sorted(kinds))}.")
    x = at.point
    own = [read_pairs(part, draws, x.device) for part in (batches if by_node else [batches])]
    size, count = common_size(own)
    losses = np.full((len(own), count), np.nan)

    def stochastic() -> Iterator[Tensor]:
        for number in range(count):
            rows = []
            for node, pairs in enumerate(own):
                value, grad = at.grad(x, *pairs[number], seed=seed + number)
                losses[node, number] = float(value)
                if not isfinite(float(value)):
                    where = f"on batch {number}" + (f" of node {node}" if by_node else "")
                    raise PerronError(f"The loss is {float(value)} {where}. Check the data and the model's parameters.")
                rows.append(grad)
            yield torch.stack(rows)

    values = _flat(moments(stochastic, count))
    some = [pairs[:curvature_batches] for pairs in own]
    product, way = products(at, some, seed)
    curvature = lanczos(product, x, len(own), seed, tolerance)
    each = " of each node" if by_node else ""
    how = dict.fromkeys(curvature, f"{way}, {len(some[0])} batches{each}")
    how["noise_var"] = f"variance of {count} batches{each}"
    how["grad_norm_sq"] = how["heterogeneity"] = f"{count} batches, less their noise"
    if not by_node:
        values |= {"heterogeneity": None, "heterogeneity_error": None}
        how["heterogeneity"] = "not measured: needs the batches of each node"
    means = losses.mean(0)
    return Constants(
        dim=len(x),
        nodes=len(own),
        gap=_gap(float(means.mean()), lower_bound),
        gap_error=float(means.std(ddof=1) / sqrt(count)),
        lower_bound=lower_bound,
        batch=size,
        how=_described(how, f"loss less the lower bound {lower_bound:g}"),
        **curvature,
        **values,
    )


def _check_accuracy(draws: int, tolerance: float) -> None:
    if draws < 3:
        raise PerronError(f"A variance with a standard error needs draws >= 3; got {draws}.")
    if not 0 < tolerance < 1:
        raise PerronError(f"tolerance lies between 0 and 1; got {tolerance}.")


def _point(problem: Problem, x: Tensor | None) -> Tensor:
    point = problem.start().mean(0) if x is None else x.detach()
    if tuple(point.shape) != (problem.dim,):
        raise PerronError(
            f"x is one point common to all nodes, of shape ({problem.dim},); got {tuple(point.shape)}. "
            "Of points of all nodes, take the mean."
        )
    check_finite(point, "The point x")
    return point.to(problem.dtype)


def _gap(loss: float, bound: float) -> float:
    if not (isinstance(bound, int | float) and isfinite(bound)):
        raise PerronError(f"lower_bound is a finite number that the loss does not go below; got {bound!r}.")
    if not isfinite(loss):
        raise PerronError(
            f"The loss is {loss} at this point. Check the data, and estimate where it is finite, as where runs start."
        )
    if loss < bound - 1e-6 * (1 + abs(bound)):  # at the optimum, rounding may be on either side
        raise PerronError(
            f"The loss, {loss:g}, lies below its lower bound {bound:g}; pass a lower_bound that it does not go below."
        )
    return max(0.0, loss - bound)

"""The constants that theory needs, estimated from data: smoothness, gradient noise, heterogeneity, distance to go.

Step sizes and rates are stated in terms of f = (1/n) sum_i f_i, stochastic gradients g_i and a starting point x:

    L        |grad f_i(x) - grad f_i(y)| <= L |x - y| for all nodes
    sigma^2  (1/n) sum_i E|g_i - grad f_i|^2
    zeta^2   (1/n) sum_i |grad f_i - grad f|^2
    Delta    f(x) - f*

`estimate` measures them for any `Problem`; `estimate_model` for a torch module and a few minibatches.

What is measured holds at one point. The curvature there bounds L from below only: for a quadratic it is L, for a
network it usually grows in the course of training, so that a step that fits it at the start may be too long later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
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
from perron.theory.curvature import dense, finite, lanczos, products
from perron.theory.gradient_moments import moments, scatter

TOGETHER = 2**20  # numbers in the stochastic gradients that are drawn at a time
DENSE = 64  # coordinates up to which whole Hessians are made, and all their eigenvalues


@dataclass(frozen=True, kw_only=True)
class Constants:
    """Estimates at one point, with standard errors where they are sampled; known constants stand beside, not among them.

    An error is None where the value is exact for the samples that were looked at, or was not measured.

    Attributes:
        dim, nodes: d and n.
        smoothness: the largest |eigenvalue| of the Hessian of any local loss: L at this point.
        noise_var: sigma^2, of ONE node's stochastic gradient, averaged over the nodes.
        heterogeneity: zeta^2; None if not measured. From minibatches it is unbiased, so it may come out below zero.
        gap: Delta, the loss minus ``lower_bound``.
        lower_bound: the loss at the optimum where that is known, otherwise what was assumed.
        smoothness_average: the largest |eigenvalue| of the Hessian of the average f.
        smallest_curvature: the smallest eigenvalue of that Hessian: mu at this point if it is above zero; below zero, f
            is not convex here.
        grad_norm_sq: |grad f|^2.
        batch: samples in one stochastic gradient; None if there are no samples.
        known_smoothness, known_strong_convexity, known_noise_var: what the problem itself says; None if it does not.
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
        """sigma^2 B / |grad f|^2: the batch from which on larger ones are of little use.

        (McCandlish, Kaplan, Amodei & OpenAI Dota Team 2018, An Empirical Model of Large-Batch Training; their "simple"
        noise scale.) B is the batch that sigma^2 belongs to, and sigma^2 B the variance of single samples' gradients if the
        batch is a small part of the data or drawn with replacement. None where there are no batches, or where the
        gradient cannot be told from zero.
        """
        if self.batch is None or self.grad_norm_sq is None or self.grad_norm_sq <= (self.grad_norm_sq_error or 0.0):
            return None
        return self.noise_var * self.batch / self.grad_norm_sq

    def rows(self) -> list[dict[str, str | float | None]]:
        """A table: ``constant``, ``value``, ``error``, ``known``, ``how``."""
        table: list[tuple[str, float | None, float | None, float | None]] = [
            ("smoothness", self.smoothness, None, self.known_smoothness),
            ("smoothness_average", self.smoothness_average, None, None),
            ("smallest_curvature", self.smallest_curvature, None, self.known_strong_convexity),
            ("noise_var", self.noise_var, self.noise_var_error, self.known_noise_var),
            ("heterogeneity", self.heterogeneity, self.heterogeneity_error, None),
            ("grad_norm_sq", self.grad_norm_sq, self.grad_norm_sq_error, None),
            ("gap", self.gap, self.gap_error, None),
            ("noise_scale", self.noise_scale, None, None),
        ]
        return [
            {"constant": name, "value": value, "error": error, "known": known, "how": self.how.get(name, "")}
            for name, value, error, known in table
        ]

    def __str__(self) -> str:
        def shown(value: object) -> str:
            return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)

        lines = [["constant", "estimate", "+-", "known", "how"]]
        lines += [[shown(cell) for cell in row.values()] for row in self.rows()]
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
    """The constants of a problem at a common point.

    Smoothness: all eigenvalues of the local Hessians up to d = 64; beyond that Lanczos on their products with vectors
    (`Problem.hessian_products`), for the largest of all nodes at once on the block-diagonal matrix of them. Noise: the
    unbiased variance of ``draws`` independent stochastic gradients of each node, with the jackknife's standard error.
    Heterogeneity: from exact local gradients, or, unbiased, from the draws: with T of them and their means m_i,

        zeta^2  =  (1/n) sum_i |m_i - mean_j m_j|^2  -  (1 - 1/n) sigma^2 / T.

    Networks with BatchNorm have two losses, with the batch's statistics and with running ones, and gradients of the two
    may have little to do with each other. Noise is that of training; so are, by default, heterogeneity and |grad f|^2
    for networks that remember such statistics. Curvature and Delta are in eval mode, with statistics that the draws have
    moved already. The problem and what it remembers are left as they are.

    Args:
        problem: what is minimised.
        x: where, ``(d,)``; by default where the problem starts, averaged over the nodes.
        draws: stochastic gradients of each node, at least 3.
        seed: of the draws.
        exact: whether to take heterogeneity and |grad f|^2 from gradients over all samples, rather than from the draws; by
            default, unless the problem remembers something (`Problem.memory`).
        samples: for `Neural`, the curvature is that of at most so many (random) samples of each node; None for all. The
            largest eigenvalue over few samples is on average too large.
        lower_bound: f* for Delta. By default the loss at the problem's optimum where that is known, and otherwise 0,
            which no loss that is a cross-entropy or a square goes below; but their infimum may be far above it, so then
            Delta is an upper bound.
        tolerance: relative accuracy of eigenvalues by Lanczos; of the smallest, relative to the largest.

    Example:
        >>> from perron.problems import Quadratic
        >>> found = estimate(Quadratic.random(8, dim=3, smoothness=2.0, noise_std=0.5), draws=400)
        >>> round(found.smoothness, 6), round(found.noise_var, 2), found.known_noise_var
        (2.0, 0.25, 0.25)
    """
    _positive(draws=draws, tolerance=tolerance)
    if samples is not None:
        check_whole("samples", samples, low=1)
    point = _point(problem, x)
    mine = problem.to(dtype=problem.dtype, device=point.device)  # a copy, of problems that remember something
    kept = {name: value.clone() for name, value in problem.memory.items()}
    losses = mine.batch_losses
    if mine is not problem and kept:
        mine.recall({name: value.clone() for name, value in kept.items()})
    try:
        return _estimated(mine, point, draws, seed, exact, samples, lower_bound, tolerance)
    finally:
        if mine is problem:
            mine.batch_losses = losses
            mine.recall(kept)


def _estimated(
    problem: Problem,
    x: Tensor,
    draws: int,
    seed: int,
    exact: bool | None,
    samples: int | None,
    lower_bound: float | None,
    tolerance: float,
) -> Constants:
    nodes, dim = problem.nodes, problem.dim
    together = 1 if problem.in_place else max(1, TOGETHER // (nodes * dim))

    def stochastic() -> Iterator[Tensor]:
        for first in range(0, draws, together):
            # A trial of its own for each: within a trial, draws may be without replacement from one to the next.
            trials = range(first, min(draws, first + together))
            points = x.expand(len(trials), nodes, dim).contiguous()
            yield from problem.grad(points, 0, Keyed(seed, trials=trials, nodes=nodes, stream=NOISE, device=x.device))

    found = moments(stochastic, draws)
    values: dict[str, Any] = {"noise_var": found["noise_var"][0], "noise_var_error": found["noise_var"][1]}
    how = {"noise_var": f"variance of {draws} stochastic gradients of each node"}
    if exact is None:
        exact = not problem.memory
    if exact:
        grads = problem.local_grads(x.expand(nodes, dim).contiguous()).double()
        finite(grads, "The exact gradient")
        found |= {"heterogeneity": (scatter(grads), None), "grad_norm_sq": (float(grads.mean(0).square().sum()), None)}
    for name in ("heterogeneity", "grad_norm_sq"):
        values[name], values[f"{name}_error"] = found[name]
        how[name] = "exact local gradients" if exact else f"{draws} stochastic gradients of each node, less their noise"

    if dim <= DENSE:
        curvature = dense(problem.local_hessians(x))
        way = "all eigenvalues of the local Hessians"
    else:
        few = isinstance(problem, Neural)
        product = problem.hessian_products(x, samples) if isinstance(problem, Neural) else problem.hessian_products(x)
        curvature = lanczos(product, x, nodes, seed, tolerance)
        way = "Lanczos on Hessian products" + (f", at most {samples} samples of a node" if few and samples else "")
    how |= dict.fromkeys(curvature, way)

    loss = float(problem.loss(x))
    if isinstance(problem, Neural) and problem.weight_decay:
        loss += problem.weight_decay / 2 * float(x.double().square().sum())  # as in the gradients
    if lower_bound is None and (optimum := _optimum(problem)) is not None:
        bound, above = float(problem.loss(optimum.to(x))), "loss less that at the optimum"
    else:
        bound = 0.0 if lower_bound is None else lower_bound
        above = f"loss less the lower bound {bound}" + (", assumed" if lower_bound is None else "")
    known = problem.noise_std**2 if problem.noise_std is not None else None
    if known is None and dim <= DENSE and (covariance := problem.noise_covariance(x)) is not None:
        known = float(covariance.trace())
    batch = getattr(problem, "batch", None)
    return Constants(
        dim=dim,
        nodes=nodes,
        gap=_gap(loss, bound),
        lower_bound=bound,
        batch=batch if isinstance(batch, int) else None,
        known_smoothness=problem.smoothness,
        known_strong_convexity=problem.strong_convexity,
        known_noise_var=known,
        how=how | {"gap": above, "noise_scale": "noise_var x batch / grad_norm_sq"},
        **curvature,
        **values,
    )


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
    """The constants of a torch model where it is now, from a few minibatches.

    The first ``draws`` batches are used. Noise is their gradients' variance, from batch to batch. If they are batches of
    one epoch in random order, that is the variance of batches drawn with replacement, without bias, and
    noise_var x batch that of single samples. The Hessian is that of the mean loss over ``curvature_batches`` of them, by
    differentiating twice, or by central differences of gradients where an operation of the model has no second
    derivative; over so few samples its largest eigenvalue is on average too large. The model is evaluated in the mode
    that it is in, and its parameters, gradients, buffers (BatchNorm's, too) and mode are left as they are.

    Args:
        model: its parameters that require a gradient are x, in one floating type on one device.
        loss: ``(outputs, targets) -> mean over the samples``, without parameters of its own.
        batches: pairs ``(inputs, targets)`` with equally many samples each; inputs are a tensor, or a tuple of the
            model's arguments. With ``by_node``, one such iterable for each node.
        by_node: whether batches are given node by node: then heterogeneity is estimated, too, and smoothness is the
            largest of all nodes'.
        draws: batches of each node that are used, at least 3; fewer if there are fewer.
        curvature_batches: how many of them for the Hessian.
        lower_bound: f* for Delta; 0 is right for cross-entropy and squares, in that Delta is then an upper bound.
        seed: of Lanczos' first vector, and of dropout, which is another for each batch.
        tolerance: relative accuracy of eigenvalues; of the smallest, relative to the largest.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> batches = [(torch.randn(32, 5), torch.randn(32, 1)) for _ in range(8)]
        >>> found = estimate_model(nn.Linear(5, 1), nn.functional.mse_loss, batches)
        >>> found.dim, found.heterogeneity is None, 2 < found.smoothness < 5
        (6, True, True)
    """
    _positive(draws=draws, tolerance=tolerance)
    if curvature_batches < 1:
        raise PerronError(f"curvature_batches must be at least 1; got {curvature_batches}.")
    at = LossAt(model, loss)
    kinds = {f"{param.dtype} on {param.device}" for param in at.params.values()}
    if len(kinds) > 1:
        raise PerronError(f"All parameters need one floating type and one device; got {listed(sorted(kinds))}.")
    x = at.point
    own = [_pairs(one, draws, x.device) for one in (batches if by_node else [batches])]
    size, count = _same_size(own)
    nodes, losses = len(own), np.full((len(own), count), np.nan)

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

    found = moments(stochastic, count)
    some = [pairs[:curvature_batches] for pairs in own]
    product, way = products(at, some, seed)
    curvature = lanczos(product, x, nodes, seed, tolerance)
    how = dict.fromkeys(curvature, f"{way}, {len(some[0])} batches" + (" of each node" if by_node else ""))
    how["noise_var"] = f"variance of {count} batches" + (" of each node" if by_node else "")
    how["grad_norm_sq"] = how["heterogeneity"] = f"{count} batches, less their noise"
    each = losses.mean(0)
    values: dict[str, Any] = {}
    for name, (value, error) in found.items():
        values |= {name: value, f"{name}_error": error}
    if not by_node:
        values |= {"heterogeneity": None, "heterogeneity_error": None}
        how["heterogeneity"] = "not measured: needs the batches of each node"
    return Constants(
        dim=len(x),
        nodes=nodes,
        gap=_gap(float(each.mean()), lower_bound),
        gap_error=float(each.std(ddof=1) / sqrt(count)),
        lower_bound=lower_bound,
        batch=size,
        how=how
        | {"gap": f"loss less the lower bound {lower_bound:g}", "noise_scale": "noise_var x batch / grad_norm_sq"},
        **curvature,
        **values,
    )


# ---- gradients


# ---- checks


def _positive(*, draws: int, tolerance: float) -> None:
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
    finite(point, "The point x")
    return point.to(problem.dtype)


def _optimum(problem: Problem) -> Tensor | None:
    """Where it is known, and can be computed."""
    try:
        return problem.optimum
    except PerronError:
        return None


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


def _pairs(batches: Iterable[Any], draws: int, device: torch.device) -> list[tuple[Any, Any]]:
    """The first so many batches, on the model's device."""

    def moved(part: Any) -> Any:
        if isinstance(part, tuple | list):
            return tuple(moved(one) for one in part)
        return part.to(device) if torch.is_tensor(part) else part

    found = []
    for number, batch in enumerate(islice(batches, draws)):
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            got = f"{len(batch)} parts" if isinstance(batch, tuple | list) else type(batch).__name__
            raise PerronError(f"A batch is a pair (inputs, targets); batch {number} is {got}.")
        if not torch.is_tensor(batch[1]) or not batch[1].ndim:
            raise PerronError(
                f"The targets of a batch are a tensor, one for each sample; those of batch {number} are "
                f"{'a single number' if torch.is_tensor(batch[1]) else type(batch[1]).__name__}. "
                "If batches are given node by node, pass by_node=True."
            )
        found.append((moved(batch[0]), moved(batch[1])))
    return found


def _same_size(own: list[list[tuple[Any, Any]]]) -> tuple[int, int]:
    """Samples of each batch, and batches of each node."""
    counts = sorted({len(pairs) for pairs in own})
    if not counts or counts[0] < 3:
        raise PerronError(
            f"A variance with a standard error needs at least 3 batches of each node; got {counts[0] if counts else 0}. "
            "Pass smaller batches, or a list: an iterator that was used before is empty."
        )
    if len(counts) > 1:
        raise PerronError(f"All nodes need equally many batches; got {listed(counts)}. Pass draws={counts[0]}.")
    sizes = sorted({len(targets) for pairs in own for _, targets in pairs})
    if len(sizes) > 1:
        raise PerronError(
            f"The noise of batches depends on their size, which must be the same for all; got {listed(sizes)}. "
            "Leave out the last one of an epoch (drop_last=True of a DataLoader)."
        )
    return sizes[0], counts[0]

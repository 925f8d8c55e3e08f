"""The linear recursion of an algorithm, extracted by running the algorithm itself.

Given the gradients, every step is linear in the state. We let the algorithm make ONE step on unit vectors (the coordinate axis
enumerates them) and obtain four matrices with

    S+ = P S + Q g          z = R S + T g

S stacks the n entries of all model-sized fields of the state, z the points at which the step asks for gradients (one after the
other, if there are several) and g the gradients. Nothing is derived by hand: the analysis applies to the code that runs. With
g = H (z - x*) + c + noise it yields stability and rates (`perron.theory.stability`) and second moments (`perron.theory.levels`).

In every algorithm lr only multiplies gradients. The matrices are therefore computed once, at lr = 1, and other steps follow by
scaling the gradients: H by lr, noise covariances by lr^2. This also keeps all numbers in range, whatever the unit of the loss.

Other fields of the state (push-sum weights, rows of A^t) do not depend on the model and are set to their limits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import isfinite
from typing import Any

import numpy as np
import torch
from torch import Tensor

from perron._threads import single_threaded as single_threaded  # noqa: PLC0414 (others import it from here)
from perron.algorithms.base import Algorithm, advance
from perron.algorithms.moves import Moving
from perron.algorithms.requirements import check_matrices
from perron.errors import PerronError
from perron.networks.facts import Network
from perron.networks.mixing import Mixing
from perron.theory.matrix_node import MatrixNode, matrix_node

TOLERANCE = 1e-9  # singular values below this count as zero when conserved quantities are computed
NOT_LINEAR = "{} is not linear given the gradients; theory cannot analyse it."
LARGEST = 3000  # rows of a dense matrix whose eigenvalues we compute


@dataclass(frozen=True)
class Stage:
    """One step: S+ = P S + Q g, z = R S + T g. Sizes: S is fields x n, z and g are gradients-per-step x n."""

    P: Tensor
    Q: Tensor
    R: Tensor
    T: Tensor

    def closed_loop(self, curvature: Tensor) -> tuple[Tensor, Tensor]:
        """Return M and N of S+ = M S + N (c + noise) where g = H z + c + noise.

        M = P + Q (I - H T)^-1 H R and N = Q (I - H T)^-1. ``curvature`` is a batch of scalars ``(k,)`` that all nodes share,
        giving ``(k, S, S)``; or the nodes' Hessians ``(n, d, d)``, giving one matrix d times as large, coordinates innermost.
        """
        if curvature.ndim == 1:
            P, Q, R, T = self.P, self.Q, self.R, self.T
            HR, HT = curvature[:, None, None] * R, curvature[:, None, None] * T
        else:
            d = curvature.shape[-1]
            P, Q, R, T = (kron_identity(matrix, d) for matrix in (self.P, self.Q, self.R, self.T))
            H = block_diagonal(curvature, self.R.shape[0] // len(curvature))
            HR, HT = (H @ R)[None], (H @ T)[None]
        if not self.T.any():  # one gradient in a step, or gradients that do not depend on each other
            return P + Q @ HR, Q.expand(len(HR), *Q.shape)
        N = torch.linalg.solve(torch.eye(HT.shape[-1], dtype=HT.dtype) - HT, Q.expand_as(Q @ HT), left=False)
        return P + N @ HR, N


@dataclass(frozen=True)
class Recursion:
    """An algorithm on a network at a constant step: one `Stage` for each step of the network's period.

    Attributes:
        stages: the steps; their expectations where nodes take part at random.
        fluctuations: of each stage, the directions in which it varies: with independent xi_i of mean 0 and variance
            ``variance``, a step is stage + sum_i xi_i fluctuation_i. Empty if nothing is random.
        average: x-hat = average^T S, ``(fields x n,)``.
        fields: the names of the model-sized fields, in their order in S.
        conserved: orthonormal columns l with l^T S = 0 at the start of every period, whatever the gradients.
    """

    stages: tuple[Stage, ...]
    fluctuations: tuple[tuple[Stage, ...], ...]
    variance: float
    average: Tensor
    fields: tuple[str, ...]
    nodes: int
    conserved: Tensor

    @property
    def size(self) -> int:
        """The number of rows of S."""
        return self.stages[0].P.shape[0]

    @cached_property
    def free(self) -> Tensor:
        """An orthonormal basis of the reachable states: those at which all conserved quantities are zero."""
        if not self.conserved.shape[1]:
            return _eye(self.size)
        full: Tensor = torch.linalg.qr(self.conserved, mode="complete")[0]
        return full[:, self.conserved.shape[1] :]

    def field(self, name: str) -> slice:
        """Return the rows of a field in S."""
        first = self.fields.index(name) * self.nodes
        return slice(first, first + self.nodes)


@single_threaded()
def recursion(algorithm: Algorithm, network: Network | Mixing, lr: float = 1.0) -> Recursion:
    """Return the linear recursion of an algorithm on a network with a constant step.

    The algorithm must be linear given the gradients and treat coordinates alike, which holds for all in perron but the
    constrained one with constraints (this is checked). Push-sum weights and similar fields are assumed to have converged.

    Example:
        >>> import perron
        >>> mixing = perron.Mixing.random_integer(perron.topologies.exponential(4), seed=0)
        >>> found = recursion(perron.PushPull(), mixing, lr=0.1)
        >>> found.fields, tuple(found.stages[0].P.shape)
        (('x', 'y', 'grad'), (12, 12))
    """
    network, algorithm = as_network(network), algorithm.reliable
    mixing, n = network.mixing, network.nodes
    check_lr(lr)
    if n > LARGEST // 3:
        raise PerronError(f"theory works with dense matrices, up to {LARGEST // 3} nodes; this network has {n}.")
    if isinstance(algorithm, Moving) and algorithm.move.scale_dependent:
        raise PerronError(NOT_LINEAR.format(algorithm.about.title))
    if callable(getattr(algorithm, "local_steps", None)):
        raise PerronError(
            f"{algorithm.about.title}: theory needs the same number of local steps in all rounds. Give a number, not a function."
        )
    check_matrices(algorithm.about, mixing)  # not `check`, which may refuse momentum: theory tells whether it is stable
    node = matrix_node(network)
    start = _converged(algorithm, network, node)
    fields = _model_fields(algorithm, node)
    fluctuations: tuple[tuple[Stage, ...], ...] = ()
    variance = 0.0
    if _draws(algorithm, node, start):
        stages, fluctuations, variance = _random_stages(algorithm, node, start, lr, mixing.period)
    else:
        stages = _stages(algorithm, node, start, lr, mixing.period)
    size = len(fields) * n
    if not fluctuations:
        _check_linear(algorithm, node, start, lr, fields, stages[0])
    axes = _eye(size).reshape(len(fields), n, size)
    average = algorithm.average(start._replace(**dict(zip(fields, axes, strict=True))), network)
    return Recursion(stages, fluctuations, variance, average, fields, n, _conserved(stages, fluctuations))


def as_network(network: Network | Mixing) -> Network:
    """Return the `Network` of a `Mixing`."""
    if not isinstance(network, Network | Mixing):
        raise PerronError(f"A network is a Mixing or a Network; got {network!r:.80}.")
    return network if isinstance(network, Network) else Network(network)


def check_lr(lr: float) -> None:
    """Refuse a step that is not a positive number."""
    if not (isfinite(lr) and lr > 0):
        raise PerronError(f"lr must be a positive number; got {lr}.")


@lru_cache(maxsize=16)
def unit_recursion(algorithm: Algorithm, network: Network) -> Recursion:
    """Return `recursion` at lr = 1, from which all other steps follow by scaling gradients (checked at lr = 0.3)."""
    unit = recursion(algorithm, network)
    if not unit.fluctuations:
        other = recursion(algorithm, network, 0.3)
        scaled = _period_traces(unit, torch.tensor([0.3 * 0.7], dtype=torch.float64))
        expected = _period_traces(other, torch.tensor([0.7], dtype=torch.float64))
        if not torch.allclose(scaled, expected, rtol=1e-3, atol=1e-3):
            raise PerronError(f"{algorithm.about.title} does more with lr than multiply gradients; theory needs that.")
    return unit


def _period_traces(linear: Recursion, curvature: Tensor) -> Tensor:
    """Traces of the first powers of a period's matrix: they tell two recursions apart, whatever the units of their fields."""
    through = _eye(linear.size)
    for stage in linear.stages:
        through = stage.closed_loop(curvature)[0][0] @ through
    power, traces = through, []
    for _ in range(4):
        traces.append(power.trace())
        power = power @ through
    return torch.stack(traces)


def trace_step(
    algorithm: Algorithm, node: MatrixNode, settled: Any, lr: float, fields: tuple[str, ...]
) -> tuple[Stage, Any]:
    """Run one step on unit vectors; return its matrices, and the state after it, whose model-sized fields mean nothing.

    ``settled`` has the auxiliary fields as they are before the step. Differentiable in the node's matrices.
    """
    n, size = node.nodes, len(fields) * node.nodes
    points: list[Tensor] = []
    count = 1
    while True:  # a step shows how many gradients it needs only when it runs
        columns = size + count * n
        basis = torch.zeros(size, columns, dtype=torch.float64)
        basis[:, :size] = _eye(size)
        state = settled._replace(**dict(zip(fields, basis.reshape(len(fields), n, columns), strict=True)))
        points.clear()

        def gradient(point: Tensor, columns: int = columns) -> Tensor:
            first = size + len(points) * n
            points.append(point)
            grad = torch.zeros(n, columns, dtype=torch.float64)
            grad[:, first : first + n] = _eye(n)[:, : max(columns - first, 0)]
            return grad

        after = advance(algorithm, state, node, lr, gradient)
        if len(points) <= count:
            break
        count = len(points)
    rows = torch.cat([getattr(after, name).expand(n, columns) for name in fields])
    asked = torch.cat([point.expand(n, columns) for point in points]) if points else rows.new_zeros(0, columns)
    used = size + len(points) * n
    return Stage(rows[:, :size], rows[:, size:used], asked[:, :size], asked[:, size:used]), after


def _stages(algorithm: Algorithm, node: MatrixNode, settled: Any, lr: float, period: int) -> tuple[Stage, ...]:
    fields, stages = _model_fields(algorithm, node), []
    for step in range(period):
        node.step = step
        stage, settled = trace_step(algorithm, node, settled, lr, fields)
        stages.append(stage)
    return tuple(stages)


def _random_stages(
    algorithm: Algorithm, node: MatrixNode, settled: Any, lr: float, period: int
) -> tuple[tuple[Stage, ...], tuple[tuple[Stage, ...], ...], float]:
    """Mean stages and fluctuations, where node i takes part (xi_i = 1) with the probability ``algorithm.participation``.

    A step is affine in the xi: stage(0) + sum_i xi_i (stage(e_i) - stage(0)), which is checked on random patterns.
    """
    probability, n = float(algorithm.participation), node.nodes  # type: ignore[attr-defined]

    def stages_with(present: Tensor) -> tuple[Stage, ...]:
        node.pattern = torch.where(present, 0.0, 1.0).double()  # below any probability, or not below it
        return _stages(algorithm, node, settled, lr, period)

    def combined(parts: list[tuple[float, Stage]]) -> Stage:
        return Stage(*(sum(weight * getattr(stage, name) for weight, stage in parts) for name in "PQRT"))

    if probability == 1:
        return stages_with(torch.ones(n, dtype=torch.bool)), (), 0.0
    none = stages_with(torch.zeros(n, dtype=torch.bool))
    single = [stages_with(torch.arange(n) == i) for i in range(n)]
    effects = tuple(
        tuple(combined([(1.0, stages[t]), (-1.0, none[t])]) for stages in single) for t in range(period)
    )  # of each step and node

    def affine(t: int, weights: list[float]) -> Stage:
        return combined([(1.0, none[t]), *zip(weights, effects[t], strict=True)])

    for seed in range(3):
        present = torch.as_tensor(np.random.default_rng(seed).uniform(size=n) < 0.5)
        for t, actual in enumerate(stages_with(present)):
            predicted = affine(t, present.double().tolist())
            if any(not torch.allclose(getattr(predicted, k), getattr(actual, k), atol=1e-9) for k in "PQRT"):
                raise PerronError(
                    f"{algorithm.about.title}: a step is not affine in who takes part; theory needs that."
                )
    mean = tuple(affine(t, [probability] * n) for t in range(period))
    return mean, effects, probability * (1 - probability)


def _model_fields(algorithm: Algorithm, node: MatrixNode) -> tuple[str, ...]:
    """The fields of the state that have the model's size."""
    width = 2 * node.nodes + 3  # no other field is as wide
    state = algorithm.init(torch.zeros(node.nodes, width, dtype=torch.float64), node)
    return tuple(name for name in state._fields if getattr(state, name).shape[-1] == width)


def _converged(algorithm: Algorithm, network: Network, node: MatrixNode) -> Any:
    """A state whose auxiliary fields are at their limits, which a single step with A_inf and B_inf reaches."""
    n, mixing = network.nodes, network.mixing
    ones = torch.ones(n, 1, dtype=torch.float64)
    limits = MatrixNode(
        [ones * torch.as_tensor(network.pull_perron)] if mixing.has_pull else [],
        [torch.as_tensor(network.push_perron)[:, None] * ones.T] if mixing.has_push else [],
        share=node.share,
        pattern=node.pattern,
    )
    state = _idle(algorithm, limits, algorithm.init(torch.zeros(n, 1, dtype=torch.float64), limits))
    fields = _model_fields(algorithm, node)
    state = state._replace(**dict.fromkeys(fields, torch.zeros(n, 2 * n + 3, dtype=torch.float64)))
    after = state
    for step in range(mixing.period):
        node.step = step
        after = _idle(algorithm, node, after)
    for name in state._fields:
        if name not in fields and not torch.allclose(getattr(after, name), getattr(state, name), atol=1e-8):
            raise PerronError(
                f"{algorithm.about.title}: the field {name} of its state does not settle on this network."
            )
    return state


def _idle(algorithm: Algorithm, node: MatrixNode, state: Any) -> Any:
    """The state after a step in which all gradients are zero."""
    return advance(algorithm, state, node, 0.0, torch.zeros_like)


def _check_linear(
    algorithm: Algorithm, node: MatrixNode, settled: Any, lr: float, fields: tuple[str, ...], stage: Stage
) -> None:
    """Refuse an algorithm that does not do with random states and gradients what its matrices do."""
    node.step, n = 0, node.nodes
    rng = np.random.default_rng(0)
    S, g = (torch.as_tensor(rng.standard_normal((rows, 2))) for rows in (stage.P.shape[0], stage.Q.shape[1]))
    grads = iter(g.reshape(-1, n, 2))
    state = settled._replace(**dict(zip(fields, S.reshape(len(fields), n, 2), strict=True)))
    after = advance(algorithm, state, node, lr, lambda _: next(grads))
    result = torch.cat([getattr(after, name).expand(n, 2) for name in fields])
    if not torch.allclose(result, stage.P @ S + stage.Q @ g, atol=1e-8):
        raise PerronError(NOT_LINEAR.format(algorithm.about.title))


def _draws(algorithm: Algorithm, node: MatrixNode, state: Any) -> bool:
    """Whether nodes draw random numbers in a step."""
    node.step, node.drew = 0, False
    _idle(algorithm, node, state)
    return node.drew


def _conserved(stages: tuple[Stage, ...], fluctuations: tuple[tuple[Stage, ...], ...]) -> Tensor:
    """The quantities that no gradient changes in a period: the left null space of [P - I, Q], as orthonormal columns.

    Quantities that are conserved only once these are zero are found in the same way, in the rest of the space (with FOCUS,
    copies of the server's model stay equal if those of its tracker are).
    """
    size = stages[0].P.shape[0]
    through, inputs = _eye(size), [torch.zeros(size, 0, dtype=torch.float64)]
    for stage in stages:
        through, inputs = stage.P @ through, [stage.P @ earlier for earlier in inputs] + [stage.Q]
    through, forced = through.detach(), torch.cat(inputs, dim=1).detach()
    parts = [part for step in fluctuations for part in step]
    free = _eye(size)
    while free.shape[1]:
        changes = [free.T @ through @ free - _eye(free.shape[1]), free.T @ forced]
        changes += [matrix for part in parts for matrix in (free.T @ part.P @ free, free.T @ part.Q)]
        left, sizes, _ = torch.linalg.svd(torch.cat(changes, dim=1))
        rank = int((sizes > TOLERANCE * max(float(sizes[0]), 1.0)).sum())
        if rank == free.shape[1]:
            break
        free = free @ left[:, :rank]
    whole: Tensor = torch.linalg.qr(free, mode="complete")[0] if free.shape[1] else _eye(size)
    return whole[:, free.shape[1] :]


def _eye(size: int) -> Tensor:
    return torch.eye(size, dtype=torch.float64)


def block_diagonal(matrices: Tensor, repeat: int = 1) -> Tensor:
    """Return the block-diagonal matrix of ``(n, d, d)``, with the whole sequence repeated ``repeat`` times."""
    return torch.block_diag(*(list(matrices) * repeat))  # type: ignore[no-untyped-call]


def kron_identity(matrix: Tensor, d: int) -> Tensor:
    """Return the Kronecker product with the identity: the same matrix for each of d coordinates."""
    # Not torch.kron, which fails for matrices with unusual strides.
    product = matrix[:, None, :, None] * torch.eye(d, dtype=matrix.dtype)[:, None, :]
    return product.reshape(matrix.shape[0] * d, matrix.shape[1] * d)

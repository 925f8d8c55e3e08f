"""The linear recursion that an algorithm is, read off its own text.

Given the gradients, every step is linear in the state. So we let the algorithm make ONE step on unit vectors, the coordinate
axis serving as the list of them, and find four matrices for which

    S+ = P S + Q g          z = R S + T g

where S stacks the n entries of all model-sized fields of the state, z the points at which a step asks for gradients (one after
the other, if there are several) and g the gradients it is sent. Nothing is derived by hand: what is analysed is what runs.
With g = H (z - x*) + c + noise this gives stability, rates and second moments; see `perron.theory.levels` and
`perron.theory.stability`.

In all of them lr does nothing but multiply gradients. So the matrices are found once, at lr = 1, and every other step is had by
scaling the gradients: H by lr, noise covariances by lr^2. This also keeps all numbers in range, whatever the unit of the loss.

What a state has besides (push-sum weights, rows of A^t) does not depend on the model and is set to its limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import isfinite
from threading import Lock
from typing import Any

import numpy as np
import torch
from torch import Tensor

from perron.algorithms.base import Algorithm, advance, check_matrices
from perron.algorithms.node import Handle, Node, Ready, Side
from perron.errors import PerronError
from perron.networks.facts import Network
from perron.networks.mixing import Mixing

TOLERANCE = 1e-9  # by which a conserved quantity may seem not to be, in double precision
LARGEST = 3000  # unknowns in a dense matrix whose eigenvalues we are ready to wait for


_lock = Lock()
_inside: list[int] = []  # who is inside `one_thread`, and how many threads there were before the first came


@contextmanager
def one_thread() -> Iterator[None]:
    """Matrices of a few dozen rows: threads cost far more than they give, above all on a busy machine."""
    with _lock:
        _inside.append(torch.get_num_threads() if not _inside else _inside[0])
        torch.set_num_threads(1)
    try:
        yield
    finally:
        with _lock:
            before = _inside.pop()
            if not _inside:
                torch.set_num_threads(before)


class MatrixNode(Node):
    """All nodes at once, mixing with the given dense matrices; differentiable in their entries.

    Args:
        pulls, pushes: A and B of each step of a period.
        share: n pi_B.
        pattern: what `uniform` answers, a number for each node.
    """

    def __init__(self, pulls: list[Tensor], pushes: list[Tensor], *, share: Tensor | None, pattern: Tensor) -> None:
        self.pulls, self.pushes, self.pattern = pulls, pushes, pattern
        self.nodes, self.step, self.drew = len(pattern), 0, False
        self._share = share

    @cached_property
    def unit(self) -> Tensor:
        """The identity."""
        return torch.eye(self.nodes, dtype=torch.float64)

    @property
    def push_share(self) -> Tensor:
        """n pi_B."""
        if self._share is None:
            raise PerronError("This network has no push matrix, hence no n pi_B.")
        return self._share[:, None]

    def pull(self, x: Tensor) -> Handle:
        """A x."""
        return Ready(self.pulls[self.step % len(self.pulls)] @ x)

    def push(self, y: Tensor) -> Handle:
        """B y."""
        return Ready(self.pushes[self.step % len(self.pushes)] @ y)

    def mean(self, x: Tensor) -> Handle:
        """The average, for every node."""
        return Ready(x.mean(-2, keepdim=True).expand_as(x))

    def uniform(self) -> Tensor:
        """The given numbers."""
        self.drew = True
        return self.pattern[:, None]

    def self_weight(self, side: Side) -> Tensor:
        """The diagonal."""
        matrices = self.pulls if side == "pull" else self.pushes
        return matrices[self.step % len(matrices)].diagonal()[:, None]

    def _links(self, side: Side) -> tuple[Tensor, Tensor, Tensor]:
        """Listeners, senders and weights of all links."""
        matrices = self.pulls if side == "pull" else self.pushes
        matrix = matrices[self.step % len(matrices)]
        targets, sources = torch.nonzero(matrix - torch.diag(matrix.diagonal()), as_tuple=True)
        return targets, sources, matrix[targets, sources]

    def hear(self, side: Side, x: Tensor) -> Handle:
        """The sender's value on each link."""
        return Ready(x[..., self._links(side)[1], :])

    def inward(self, side: Side, x: Tensor) -> Tensor:
        """The listener's value on each link."""
        return x[..., self._links(side)[0], :]

    def weigh(self, side: Side, heard: Tensor) -> Tensor:
        """A sum over each node's links."""
        targets, _, weights = self._links(side)
        total = heard.new_zeros((*heard.shape[:-2], self.nodes, heard.shape[-1]))
        return total.index_add(-2, targets, weights[:, None] * heard)

    def chances(self, side: Side, size: int) -> Tensor:  # noqa: ARG002
        """Not here: losses make the recursion random."""
        raise PerronError("theory knows reliable links only; measure others with `simulate`.")


def matrix_node(network: Network) -> MatrixNode:
    """All nodes of a network on dense matrices; who could stay away does not."""
    pulls, pushes = ([torch.as_tensor(dense(m)) for m in side] for side in network.mixing.sequences)
    share = torch.as_tensor(network.nodes * network.push_perron) if network.mixing.has_push else None
    return MatrixNode(pulls, pushes, share=share, pattern=torch.zeros(network.nodes, dtype=torch.float64))


@dataclass(frozen=True)
class Stage:
    """One step: S+ = P S + Q g, z = R S + T g. Sizes: S is fields x n, z and g are gradients-per-step x n."""

    P: Tensor
    Q: Tensor
    R: Tensor
    T: Tensor

    def closed(self, curvature: Tensor) -> tuple[Tensor, Tensor]:
        """M and N of S+ = M S + N (c + noise) where g = H z + c + noise.

        M = P + Q (I - H T)^-1 H R and N = Q (I - H T)^-1. ``curvature`` is a batch of scalars ``(k,)`` that all nodes share,
        giving ``(k, S, S)``; or the nodes' Hessians ``(n, d, d)``, giving one matrix d times as large, coordinates innermost.
        """
        if curvature.ndim == 1:
            P, Q, R, T = self.P, self.Q, self.R, self.T
            HR, HT = curvature[:, None, None] * R, curvature[:, None, None] * T
        else:
            d = curvature.shape[-1]
            P, Q, R, T = (spread(matrix, d) for matrix in (self.P, self.Q, self.R, self.T))
            H = blocks(curvature, self.R.shape[0] // len(curvature))
            HR, HT = (H @ R)[None], (H @ T)[None]
        if not self.T.any():  # one gradient in a step, or gradients that do not depend on each other
            return P + Q @ HR, Q.expand(len(HR), *Q.shape)
        N = torch.linalg.solve(torch.eye(HT.shape[-1], dtype=HT.dtype) - HT, Q.expand_as(Q @ HT), left=False)
        return P + N @ HR, N


@dataclass(frozen=True)
class Recursion:
    """An algorithm on a network at a constant step: one `Stage` for each step of the network's period.

    Attributes:
        stages: the mean ones, where nodes take part at random.
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

    @cached_property
    def free(self) -> Tensor:
        """An orthonormal basis of the states that runs reach: those at which all that is conserved is zero."""
        size = self.stages[0].P.shape[0]
        if not self.conserved.shape[1]:
            return torch.eye(size, dtype=torch.float64)
        full: Tensor = torch.linalg.qr(self.conserved, mode="complete")[0]
        return full[:, self.conserved.shape[1] :]

    def field(self, name: str) -> slice:
        """Where a field stands in S."""
        at = self.fields.index(name) * self.nodes
        return slice(at, at + self.nodes)


@one_thread()
def recursion(algorithm: Algorithm, network: Network | Mixing, lr: float = 1.0) -> Recursion:
    """The linear recursion of an algorithm on a network with a constant step.

    Assumes that the algorithm is linear given the gradients and treats coordinates alike, which all in perron are and do but the
    constrained one with constraints (this is checked); and that push-sum weights and the like have settled.

    Example:
        >>> import perron
        >>> mixing = perron.Mixing.random_integer(perron.topologies.exponential(4), seed=0)
        >>> found = recursion(perron.PushPull(), mixing, lr=0.1)
        >>> found.fields, tuple(found.stages[0].P.shape)
        (('x', 'y', 'grad'), (12, 12))
    """
    network, algorithm = as_network(network), algorithm.reliable
    mixing, n = network.mixing, network.nodes
    if not (isfinite(lr) and lr > 0):
        raise PerronError(f"lr must be a positive number; got {lr}.")
    if n > LARGEST // 3:
        raise PerronError(f"theory works with dense matrices, up to {LARGEST // 3} nodes; this network has {n}.")
    check_matrices(algorithm.about, mixing)  # not `check`: whether its momentum is too much is what theory finds out
    node = matrix_node(network)
    start = _settled(algorithm, network, node)
    if not _draws(algorithm, node, start):
        stages = _stages(algorithm, node, start, lr, mixing.period)
        fluctuations: tuple[tuple[Stage, ...], ...] = ()
        variance = 0.0
    else:
        stages, fluctuations, variance = _random_stages(algorithm, node, start, lr, mixing.period)
    fields = _model_fields(algorithm, node)
    size = len(fields) * n
    if not fluctuations:
        _check_linear(algorithm, node, start, lr, fields, stages[0])
    axes = torch.eye(size, dtype=torch.float64).reshape(len(fields), n, size)
    average = algorithm.average(start._replace(**dict(zip(fields, axes, strict=True))), network)
    conserved = _conserved(stages, fluctuations)
    return Recursion(stages, fluctuations, variance, average, fields, n, conserved)


def as_network(network: Network | Mixing) -> Network:
    """The network's facts."""
    if not isinstance(network, Network | Mixing):
        raise PerronError(f"A network is a Mixing or a Network; got {network!r:.80}.")
    return network if isinstance(network, Network) else Network(network)


@lru_cache(maxsize=16)
def unit_recursion(algorithm: Algorithm, network: Network) -> Recursion:
    """`recursion` at lr = 1, from which those at all other steps follow by scaling gradients; checked against another step."""
    found = recursion(algorithm, network)
    if not found.fluctuations:
        other = recursion(algorithm, network, 0.3)
        mine = _period_values(found, torch.tensor([0.3 * 0.7], dtype=torch.float64))
        theirs = _period_values(other, torch.tensor([0.7], dtype=torch.float64))
        if not torch.allclose(mine, theirs, rtol=1e-3, atol=1e-3):
            raise PerronError(f"{algorithm.about.title} does more with lr than multiply gradients; theory needs that.")
    return found


def _period_values(found: Recursion, curvature: Tensor) -> Tensor:
    """Traces of the first powers of what a period does: they tell two recursions apart, in whatever units of their fields."""
    through = torch.eye(found.stages[0].P.shape[0], dtype=torch.float64)
    for stage in found.stages:
        through = stage.closed(curvature)[0][0] @ through
    powers, traces = through, []
    for _ in range(4):
        traces.append(powers.trace())
        powers = powers @ through
    return torch.stack(traces)


def drive(
    algorithm: Algorithm, node: MatrixNode, settled: Any, lr: float, fields: tuple[str, ...]
) -> tuple[Stage, Any]:
    """One step on unit vectors: its matrices, and the state after it, whose model-sized fields mean nothing.

    ``settled`` has the auxiliary fields as they are before the step. Differentiable in the node's matrices.
    """
    n, size = node.nodes, len(fields) * node.nodes
    asked: list[Tensor] = []
    count = 1
    while True:  # the number of gradients in a step shows when it is made
        columns = size + count * n
        basis = torch.zeros(size, columns, dtype=torch.float64)
        basis[:, :size] = torch.eye(size, dtype=torch.float64)
        state = settled._replace(**dict(zip(fields, basis.reshape(len(fields), n, columns), strict=True)))
        asked.clear()
        step = algorithm.step(state, node, lr)
        try:
            point = next(step)
            while True:
                asked.append(point)
                grad = torch.zeros(n, columns, dtype=torch.float64)
                at = size + (len(asked) - 1) * n
                grad[:, at : at + n] = torch.eye(n, dtype=torch.float64)[:, : max(columns - at, 0)]
                point = step.send(grad)
        except StopIteration as done:
            after = done.value
        if len(asked) <= count:
            break
        count = len(asked)
    rows = torch.cat([getattr(after, name).expand(n, columns) for name in fields])
    points = torch.cat([point.expand(n, columns) for point in asked]) if asked else rows.new_zeros(0, columns)
    used = size + len(asked) * n
    return Stage(rows[:, :size], rows[:, size:used], points[:, :size], points[:, size:used]), after


def _stages(algorithm: Algorithm, node: MatrixNode, settled: Any, lr: float, period: int) -> tuple[Stage, ...]:
    fields, found = _model_fields(algorithm, node), []
    for step in range(period):
        node.step = step
        stage, settled = drive(algorithm, node, settled, lr, fields)
        found.append(stage)
    return tuple(found)


def _random_stages(
    algorithm: Algorithm, node: MatrixNode, settled: Any, lr: float, period: int
) -> tuple[tuple[Stage, ...], tuple[tuple[Stage, ...], ...], float]:
    """Mean stages and fluctuations, where node i takes part (xi_i = 1) with the probability ``algorithm.participation``.

    A step is affine in the xi: stage(0) + sum_i xi_i (stage(e_i) - stage(0)), which is checked on random patterns.
    """
    probability, n = float(algorithm.participation), node.nodes  # type: ignore[attr-defined]

    def at(present: Tensor) -> tuple[Stage, ...]:
        node.pattern = torch.where(present, 0.0, 1.0).double()  # below any probability, or not below it
        return _stages(algorithm, node, settled, lr, period)

    def combined(parts: list[tuple[float, Stage]]) -> Stage:
        sums = (sum(weight * getattr(stage, name) for weight, stage in parts) for name in "PQRT")
        return Stage(*sums)

    if probability == 1:
        return at(torch.ones(n, dtype=torch.bool)), (), 0.0
    nobody = at(torch.zeros(n, dtype=torch.bool))
    alone = [at(torch.arange(n) == i) for i in range(n)]
    effects = tuple(
        tuple(combined([(1.0, one[t]), (-1.0, nobody[t])]) for one in alone) for t in range(period)
    )  # of each step and node
    for seed in range(3):
        present = torch.as_tensor(np.random.default_rng(seed).uniform(size=n) < 0.5)
        whole = at(present)
        for t in range(period):
            predicted = combined([(1.0, nobody[t]), *((float(present[i]), effects[t][i]) for i in range(n))])
            if any(not torch.allclose(getattr(predicted, k), getattr(whole[t], k), atol=1e-9) for k in "PQRT"):
                raise PerronError(
                    f"{algorithm.about.title}: a step is not affine in who takes part; theory needs that."
                )
    mean = tuple(combined([(1.0, nobody[t]), *((probability, effects[t][i]) for i in range(n))]) for t in range(period))
    return mean, effects, probability * (1 - probability)


def _model_fields(algorithm: Algorithm, node: MatrixNode) -> tuple[str, ...]:
    """The fields of the state that have the model's size."""
    width = 2 * node.nodes + 3  # no other field is as wide
    state = algorithm.init(torch.zeros(node.nodes, width, dtype=torch.float64), node)
    return tuple(name for name in state._fields if getattr(state, name).shape[-1] == width)


def _settled(algorithm: Algorithm, network: Network, node: MatrixNode) -> Any:
    """A state whose auxiliary fields are at their limit, found in a single step with A_inf and B_inf."""
    n, mixing = network.nodes, network.mixing
    ones = torch.ones(n, 1, dtype=torch.float64)
    limits = MatrixNode(
        [ones * torch.as_tensor(network.pull_perron)] if mixing.has_pull else [],
        [torch.as_tensor(network.push_perron)[:, None] * ones.T] if mixing.has_push else [],
        share=node._share,
        pattern=node.pattern,
    )
    state = _idle(algorithm, limits, algorithm.init(torch.zeros(n, 1, dtype=torch.float64), limits))
    wide = 2 * n + 3
    fields = _model_fields(algorithm, node)
    state = state._replace(**dict.fromkeys(fields, torch.zeros(n, wide, dtype=torch.float64)))
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
    """Refuse an algorithm that does something else with random states and gradients than its matrices do."""
    node.step, n = 0, node.nodes
    rng = np.random.default_rng(0)
    S, g = (torch.as_tensor(rng.standard_normal((rows, 2))) for rows in (stage.P.shape[0], stage.Q.shape[1]))
    sent = iter(g.reshape(-1, n, 2))
    state = settled._replace(**dict(zip(fields, S.reshape(len(fields), n, 2), strict=True)))
    after = advance(algorithm, state, node, lr, lambda _: next(sent))
    found = torch.cat([getattr(after, name).expand(n, 2) for name in fields])
    if not torch.allclose(found, stage.P @ S + stage.Q @ g, atol=1e-8):
        raise PerronError(f"{algorithm.about.title} is not linear given the gradients; theory cannot analyse it.")


def _draws(algorithm: Algorithm, node: MatrixNode, state: Any) -> bool:
    """Whether nodes draw random numbers in a step."""
    node.step, node.drew = 0, False
    _idle(algorithm, node, state)
    return node.drew


def _conserved(stages: tuple[Stage, ...], fluctuations: tuple[tuple[Stage, ...], ...]) -> Tensor:
    """What no gradient changes in a period: the left null space of [P - I, Q], as orthonormal columns.

    What is conserved once these are zero is found in the same way, in the rest of the space (with FOCUS copies of the server's
    model stay equal, if those of its tracker are).
    """
    size = stages[0].P.shape[0]
    through, inputs = torch.eye(size, dtype=torch.float64), [torch.zeros(size, 0, dtype=torch.float64)]
    for stage in stages:
        through, inputs = stage.P @ through, [stage.P @ earlier for earlier in inputs] + [stage.Q]
    through, given = through.detach(), torch.cat(inputs, dim=1).detach()
    parts = [part for step in fluctuations for part in step]
    free = torch.eye(size, dtype=torch.float64)
    while free.shape[1]:
        changes = [free.T @ through @ free - torch.eye(free.shape[1], dtype=torch.float64), free.T @ given]
        changes += [matrix for part in parts for matrix in (free.T @ part.P @ free, free.T @ part.Q)]
        left, sizes, _ = torch.linalg.svd(torch.cat(changes, dim=1))
        rank = int((sizes > TOLERANCE * max(float(sizes[0]), 1.0)).sum())
        if rank == free.shape[1]:
            break
        free = free @ left[:, :rank]
    whole: Tensor = torch.linalg.qr(free, mode="complete")[0] if free.shape[1] else torch.eye(size, dtype=torch.float64)
    return whole[:, free.shape[1] :]


def blocks(matrices: Tensor, repeat: int = 1) -> Tensor:
    """A block-diagonal matrix of those given, ``(n, d, d)``, all of them ``repeat`` times over."""
    return torch.block_diag(*(list(matrices) * repeat))  # type: ignore[no-untyped-call]


def spread(matrix: Tensor, d: int) -> Tensor:
    """The Kronecker product with the identity: the same for each of d coordinates."""
    one = torch.eye(d, dtype=matrix.dtype)
    return (matrix[:, None, :, None] * one[:, None, :]).reshape(matrix.shape[0] * d, matrix.shape[1] * d)


def dense(matrix: Any) -> np.ndarray[Any, Any]:
    """A dense copy, which torch may write to."""
    return np.array(matrix.toarray() if hasattr(matrix, "toarray") else matrix, dtype=np.float64)

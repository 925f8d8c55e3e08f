"""Weights for a goal: the function `design`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

import numpy as np
import torch
from torch import Tensor

from perron._registry import lookup
from perron._typing import FloatArray, check_whole
from perron.algorithms import PushPull
from perron.algorithms.base import Algorithm
from perron.design import goals
from perron.design.effort import Effort
from perron.design.records import GOALS, Design, Measurement
from perron.design.symmetric import fastest_symmetric
from perron.design.uplink import spare_uplink
from perron.design.weights import Balanced, Objective, Scalar, Simplex, Space, search
from perron.errors import MixingError, PerronError
from perron.monitor.progress import Bar, OnProgress
from perron.networks import spectral
from perron.networks.graph import Graph
from perron.networks.mixing import Mixing
from perron.networks.stochastic import normalize_columns, normalize_rows
from perron.theory.matrix_node import dense
from perron.theory.stability import as_curvature, largest_curvature

SURROGATES = 3  # at most, for a goal
LARGEST = 300  # nodes: the search is dense
METRICS = ("distance_sq_local", "distance_sq", "grad_norm_sq", "consensus_error_sq")
Value = Callable[[list[FloatArray]], float]  # of A and B; smaller is better


def design(
    graph: Graph,
    push_graph: Graph | None = None,
    *,
    goal: str = "rate",
    start: Mixing | None = None,
    floor: float = 0.01,
    starts: int = 4,
    seed: int = 0,
    iterations: int = 150,
    algorithm: Algorithm | None = None,
    curvature: float | Sequence[float] | Tensor = (0.1, 0.3, 1.0),
    step: float | None = None,
    metric: str = "distance_sq_local",
    leaf: int | None = None,
    seconds: float | None = None,
    progress: bool | OnProgress | None = False,
) -> Design:
    """Design mixing weights on a digraph (models are pulled along ``graph``, trackers pushed along ``push_graph``) for a goal.

    * ``"fastest"``: the smallest rho_2 of A and of B. The surrogate is log ||A^K - A_inf||_F / K for K = 4, 32, 256, one after
      the other, which tends to log rho_2. Note that the fastest matrix is nearly a spanning tree, whose root has nearly all the
      weight (kappa grows without bound as the floor falls); consensus is fast, but on the value of the root, and c is arbitrary.
    * ``"sum"``: the smallest s of A and of B. The surrogate is sum_i ||A^i - A_inf||_F^2, a Lyapunov equation. The term i = 0
      is n - 2 + n |pi|^2, which penalises skewness.
    * ``"alignment"``: the smallest residual eps of Push-Pull under noise, relative to its step: see
      `perron.design.goals.residual`. It is zero exactly where pi_A is uniform, that is, A doubly stochastic, whatever B is; then
      c = 1, too. (A large c gains nothing: lr is divided by it.) Where the pull graph has doubly stochastic weights, A is the
      fastest of them, and B has the smallest s; elsewhere the residual itself is minimised.
    * ``"level"``: the lowest stationary level (``metric``) of ``algorithm`` under noise at the effective step ``step``, as theory
      predicts it for the given curvatures, with the same noise at all nodes. lr = step / c: at a fixed lr a small c would lower
      the level by making smaller steps. For the same reason errors have to shrink at least 95 % as fast as at the start.
    * ``"rate"``: the fastest convergence of ``algorithm`` without noise, for the given curvatures, each candidate at its own best
      step: the spectral radius of the recursion, by the surrogate log ||M^K||_F / K of its matrix M.
    * ``"balanced"``: the fastest doubly stochastic weights; A = B where the graphs are the same.
    * ``"symmetric"``: the fastest symmetric ones on an undirected graph; a convex problem, needs cvxpy (``perron[design]``).
    * ``"leaf"``: for a node ``leaf`` with a slow uplink: no node waits for its models, and its gradients go to one node only; see
      `perron.design.uplink.spare_uplink`. The other weights have a small s.

    All but ``"symmetric"`` are non-convex: the search begins at ``starts`` + 1 points and returns the best weights by the true
    value, not by the surrogate; never worse ones than the start. There may be better weights.

    Args:
        start: the weights to improve on and to compare with; equal weights by default.
        floor: smallest weight of an edge, as a share of the equal weight: every weight is at least floor / degree (of those of
            `Mixing.balanced`, where weights are doubly stochastic).
        iterations: the most iterations of L-BFGS-B, for each start and surrogate.
        curvature: a number, several numbers between the smallest and the largest curvature, or (``"rate"`` only) the nodes'
            Hessians ``(n, d, d)``, such as ``theory.linearize(problem, noise=False).curvature``.
        step, metric: for ``"level"``: the effective step, and the metric as `perron.theory.StationaryLevel` names it.
        leaf: for ``"leaf"``: the node.
        seconds: the time that the search may take, or no limit if None; not for ``"symmetric"``, which is solved at once. An
            interrupt (Ctrl-C) ends it, too. The best weights so far are returned, and `Design.interrupted` says why.
        progress: whether to show a bar, None for on a terminal; or a function, see `perron.simulate`.

    Example:
        >>> import perron
        >>> found = design(perron.topologies.grid(9), goal="sum", starts=2)
        >>> found.after.value < found.before.value
        True
    """
    push_graph = graph if push_graph is None else push_graph
    _check(graph, push_graph, goal, floor, starts, iterations)
    for name, value, needed in (
        ("leaf=NODE, a node with a slow uplink", leaf, "leaf"), ("step=, the effective step c lr of the runs", step, "level"),
    ):  # fmt: skip
        if (value is not None) != (goal == needed):
            raise PerronError(f"goal={needed!r} and {name}, go together; got {goal!r} and {value!r}.")
    start = _uniform(graph, push_graph) if start is None else start
    _check_start(start, graph, push_graph)
    rng_seed = check_whole("The seed of a design", seed)
    total = SURROGATES * (starts + 1) * iterations
    with Bar(total, progress, "searching for weights") as bar:
        effort = Effort(iterations, seconds, bar)
        task = Task(graph, push_graph, start, floor, starts, rng_seed, effort)
        found = _searched(task, goal, algorithm, curvature, step, metric, leaf)
    if not effort.over:
        return found
    return replace(
        found, notes=(*found.notes, f"{effort.reason}: these are the best weights so far"), interrupted=effort.reason
    )


def _searched(
    task: Task,
    goal: str,
    algorithm: Algorithm | None,
    curvature: float | Sequence[float] | Tensor,
    step: float | None,
    metric: str,
    leaf: int | None,
) -> Design:
    if goal in ("fastest", "sum"):
        return _fast_mixing(task, goal)
    if goal == "alignment":
        return _aligned(task)
    if goal in ("level", "rate"):
        curvatures = _curvatures(curvature, goal, task.graph.nodes)
        # In units in which the largest curvature is one: neither the search nor rounding then depends on the unit of the loss.
        unit = largest_curvature(curvatures)
        dynamics = goals.Dynamics(PushPull() if algorithm is None else algorithm, curvatures / unit, task.start)
        return _fast_convergence(task, dynamics) if goal == "rate" else _low_level(task, dynamics, step, metric, unit)
    if goal == "balanced":
        return _balanced(task)
    if goal == "symmetric":
        if task.push_graph != task.graph:
            raise MixingError("goal='symmetric' is for one graph; got two that differ. Leave push_graph out.")
        W = fastest_symmetric(task.graph, task.floor)
        kind = "" if task.start.is_symmetric else "symmetric"
        return _finished(task, goal, [W, W], _larger(spectral.decay_rate), 0, kind=kind)
    return _leaf(task, check_whole("leaf", leaf))


@dataclass(frozen=True)
class Task:
    """The inputs that all goals share: the graphs, the weights at the start, and the effort of the search."""

    graph: Graph
    push_graph: Graph
    start: Mixing
    floor: float
    starts: int
    seed: int
    effort: Effort

    @property
    def patterns(self) -> tuple[FloatArray, FloatArray]:
        """The 0-1 matrices of both graphs."""
        return self.graph.adjacency().toarray(), self.push_graph.adjacency().toarray()

    @property
    def spaces(self) -> list[Space]:
        """The sets of all A and of all B."""
        pull, push = self.patterns
        return [Simplex(pull, self.floor), Simplex(push, self.floor, transposed=True)]

    def guesses(self) -> list[list[FloatArray]]:
        """Starting points: the start, equal weights, half-way to spanning-tree pairs of several roots, and random weights."""
        pull, push = self.patterns
        even = [pull / pull.sum(1, keepdims=True), push / push.sum(0)]
        pairs = [_matrices(self.start)]
        if not all(np.allclose(a, b) for a, b in zip(pairs[0], even, strict=True)):
            pairs.append(even)
        rng = np.random.default_rng(self.seed)
        roots = np.intersect1d(self.graph.roots(), self.push_graph.reverse().roots())
        for root in [None, *rng.permutation(roots)[: max(0, self.starts // 2 - 1)].tolist()]:
            tree = Mixing.spanning_trees(self.graph, self.push_graph, root=root)
            pairs.append([(e + t) / 2 for e, t in zip(even, _matrices(tree), strict=True)])
        while len(pairs) < self.starts + 1:
            A, B = (pattern * rng.uniform(0.1, 1, pattern.shape) for pattern in (pull, push))
            pairs.append([A / A.sum(1, keepdims=True), B / B.sum(0)])
        return pairs[: self.starts + 1]

    def mixing(self, goal: str, matrices: Sequence[FloatArray]) -> Mixing:
        """Return the result as a `Mixing`."""
        name = f"{self.graph.name}, designed ({goal})"
        return Mixing(matrices[0], matrices[1], connected="rooted", name=name, labels=self.graph.labels)

    def value(self, of_mixing: Callable[[Mixing], float]) -> Value:
        """Return a function of a `Mixing` as one of two matrices."""
        return lambda matrices: of_mixing(self.mixing("candidate", matrices))


# ---- the goals


def _larger(metric: Callable[[Any], float]) -> Value:
    return lambda matrices: max(metric(matrix) for matrix in matrices)


def _mixing_sum(matrix: FloatArray) -> float:
    return spectral.mixing_sum(matrix).value


def _fast_objectives() -> list[Objective]:
    return [goals.fastest(doublings) for doublings in (2, 5, 8)]


def _fast_mixing(task: Task, goal: str) -> Design:
    objectives = _fast_objectives() if goal == "fastest" else [goals.summed]
    metric = spectral.decay_rate if goal == "fastest" else _mixing_sum
    value = _larger(metric)

    def tie_broken(matrices: list[FloatArray]) -> float:
        return value(matrices) + 1e-3 * float(np.mean([metric(m) for m in matrices]))  # the better side counts a little

    found = search(task.spaces, objectives, task.guesses(), tie_broken, effort=task.effort)
    return _finished(task, goal, found.matrices, value, found.evaluations)


def _aligned(task: Task) -> Design:
    try:
        balanced = dense(Mixing.balanced(task.graph).pull)
    except PerronError:
        found = search(task.spaces, [goals.residual], task.guesses(), goals.true_residual, effort=task.effort)
        return _finished(task, "alignment", found.matrices, goals.true_residual, found.evaluations)
    A, evaluations = _fastest_balanced(task, balanced)
    starts = [[pair[1]] for pair in task.guesses()]
    found = search(
        task.spaces[1:], [lambda m: goals.summed([m[0].T])], starts, _larger(_mixing_sum), effort=task.effort
    )
    matrices = [A, found.matrices[0]]
    return _finished(task, "alignment", matrices, goals.true_residual, evaluations + found.evaluations)


def _balanced(task: Task) -> Design:
    A, count = _fastest_balanced(task, dense(Mixing.balanced(task.graph).pull))
    B = A
    if task.push_graph != task.graph:
        B, more = _fastest_balanced(task, dense(Mixing.balanced(task.push_graph).pull))
        count += more
    kind = "" if task.start.is_doubly_stochastic else "doubly stochastic"
    return _finished(task, "balanced", [A, B], _larger(spectral.decay_rate), count, kind=kind)


def _fastest_balanced(task: Task, balanced: FloatArray) -> tuple[FloatArray, int]:
    space = Balanced(balanced, task.floor)
    rng = np.random.default_rng(task.seed)
    starts = [[balanced]]
    while len(starts) <= task.starts // 2:
        with torch.no_grad():
            starts.append([np.asarray(space.matrix(torch.as_tensor(rng.standard_normal(space.size))))])
    found = search([space], _fast_objectives(), starts, _larger(spectral.decay_rate), effort=task.effort)
    return found.matrices[0], found.evaluations


def _fast_convergence(task: Task, dynamics: goals.Dynamics) -> Design:
    starts = [[*pair, np.array([dynamics.rough_step(task.mixing("rate", pair))])] for pair in task.guesses()]

    def near_rate(matrices: list[FloatArray]) -> float:
        return dynamics.near_rate(task.mixing("rate", matrices), float(matrices[2][0]))

    objectives = [dynamics.rate(doublings) for doublings in (4, 7)]
    found = search([*task.spaces, Scalar()], objectives, starts, near_rate, effort=task.effort)
    return _finished(task, "rate", found.matrices[:2], task.value(dynamics.best_rate), found.evaluations)


def _low_level(task: Task, dynamics: goals.Dynamics, step: float | None, metric: str, unit: float) -> Design:
    if metric not in METRICS:
        raise PerronError(f"goal='level' has the metrics {', '.join(METRICS)}; got {metric!r}.")
    if not (isinstance(step, int | float) and step > 0 and isfinite(step)):
        raise PerronError(f"goal='level' needs a positive effective step; got step={step!r}.")
    scaled, squared = step * unit, 1.0 if metric == "grad_norm_sq" else unit**-2
    rate = dynamics.true_rate(task.start, scaled)
    if not rate < 1:
        raise PerronError(
            f"With the weights at the start the step {step:g} is unstable: errors grow by {rate:.4g} in a step. Choose a smaller "
            "step (theory.stable_lr times c says which), or start from weights that were designed for goal='rate'."
        )
    value = task.value(lambda mixing: squared * dynamics.true_level(mixing, scaled, metric, rate**0.95))
    objective = dynamics.level(scaled, metric, rate)
    found = search(task.spaces, [objective], task.guesses(), value, effort=task.effort)
    return _finished(task, "level", found.matrices, value, found.evaluations)


def _leaf(task: Task, leaf: int) -> Design:
    pulled, candidates = spare_uplink(task.graph, task.push_graph, leaf)
    pushed = min(candidates, key=lambda graph: _mixing_sum(normalize_columns(graph.adjacency()).toarray()))
    reduced = replace(task, graph=pulled, push_graph=pushed, start=_uniform(pulled, pushed))
    found = search(reduced.spaces, [goals.summed], reduced.guesses(), _larger(_mixing_sum), effort=task.effort)
    mixing = reduced.mixing("leaf", found.matrices)
    sent = sum(int((np.delete(matrix[:, leaf], leaf) > 0).sum()) for matrix in _matrices(task.start))
    before = Measurement(spectral.describe(task.start), sent)
    after = Measurement(spectral.describe(mixing), int(pulled.out_degrees[leaf] + pushed.out_degrees[leaf]))
    target = int(pushed.targets(leaf)[0])
    note = (
        f"node {leaf} sends no models, and its gradients to node {target} alone; its model has no weight in x-hat, its data "
        "counts in full"
    )
    return Design("leaf", mixing, before, after, found.evaluations, (note,))


# ---- results and checks


def _matrices(mixing: Mixing) -> list[FloatArray]:
    return [dense(mixing.pull), dense(mixing.push)]


def _uniform(graph: Graph, push_graph: Graph) -> Mixing:
    pull, push = normalize_rows(graph.adjacency()), normalize_columns(push_graph.adjacency())
    return Mixing(pull, push, connected="rooted", name=f"{graph.name}, uniform weights", labels=graph.labels)


def _finished(
    task: Task, goal: str, matrices: list[FloatArray], value: Value, evaluations: int, *, kind: str = ""
) -> Design:
    """The result, or the start where that is as good.

    ``kind`` names a constraint that the start violates: it may then have a smaller value, but cannot be the result.
    """
    mixing = task.mixing(goal, matrices)
    before, after = (Measurement(spectral.describe(m), value(_matrices(m))) for m in (task.start, mixing))
    if kind:
        return Design(
            goal, mixing, before, after, evaluations, (f"the weights before are not {kind}, those after are",)
        )
    if not after.value < before.value:
        return Design(goal, task.start, before, before, evaluations, ("nothing better than the start was found",))
    return Design(goal, mixing, before, after, evaluations)


def _check(graph: Graph, push_graph: Graph, goal: str, floor: float, starts: int, iterations: int) -> None:
    for given in (graph, push_graph):
        if not isinstance(given, Graph):
            raise PerronError(f"Weights are designed on a Graph that does not vary in time; got {given!r:.80}.")
    if graph.nodes != push_graph.nodes:
        raise PerronError(f"The two graphs need as many nodes; got {graph.nodes} and {push_graph.nodes}.")
    if graph.nodes > LARGEST:
        raise PerronError(
            f"design works with dense matrices, up to {LARGEST} nodes; got {graph.nodes}. Use Mixing.uniform or Mixing.balanced."
        )
    lookup(goal, GOALS, "goal")
    if not 0 <= floor < 1:
        raise PerronError(f"floor is a share of the equal weight, at least 0 and below 1; got {floor}.")
    check_whole("starts", starts, low=1)
    check_whole("iterations", iterations, low=1)


def _check_start(start: Mixing, graph: Graph, push_graph: Graph) -> None:
    if not (start.has_pull and start.has_push) or start.period != 1 or start.nodes != graph.nodes:
        raise PerronError(f"start is a fixed Mixing with pull and push on {graph.nodes} nodes; got {start!r}.")
    for side, used, allowed in (("pull", start.pull, graph), ("push", start.push, push_graph)):
        outside = np.argwhere((dense(used) > 0) & (allowed.adjacency().toarray() == 0))
        if len(outside):
            i, j = outside[0]
            raise PerronError(
                f"start has {side}[{i}, {j}] > 0, but {allowed.name} has no edge ({j}, {i}). Add it, or use uniform."
            )


def _curvatures(given: float | Sequence[float] | Tensor, goal: str, nodes: int) -> Tensor:
    curvature = as_curvature(given, nodes)
    shared = curvature.ndim == 1
    least = curvature.min() if shared else torch.linalg.eigvalsh(curvature.mean(0)).min()
    if float(least) <= 0 or not (shared or goal == "rate"):
        raise PerronError(
            f"A curvature is a positive number, several, or (goal 'rate' only) Hessians (n, d, d); got {given!r:.80}."
        )
    return curvature

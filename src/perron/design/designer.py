"""Weights for a goal: the function `design`, and what it found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np
import torch
from torch import Tensor

from perron._registry import lookup
from perron._storage.jsonable import to_jsonable
from perron._typing import FloatArray, check_whole
from perron.algorithms import PushPull
from perron.algorithms.base import Algorithm
from perron.design import goals
from perron.design.symmetric import fastest_symmetric
from perron.design.uplink import messages_sent, spare_uplink
from perron.design.weights import Balanced, Objective, Scalar, Simplex, Space, search
from perron.errors import MixingError, PerronError
from perron.networks import spectral
from perron.networks.graph import Graph
from perron.networks.mixing import Mixing
from perron.networks.stochastic import normalize_columns, normalize_rows
from perron.theory.recursion import dense

LARGEST = 300  # nodes: the search is dense
METRICS = ("distance_sq_local", "distance_sq", "grad_norm_sq", "consensus_error_sq")
GOALS = {
    "fastest": "the larger rho_2",
    "sum": "the larger s",
    "alignment": "residual E|eps|^2, relative",
    "level": "stationary level",
    "rate": "rate at the best step",
    "balanced": "the larger rho_2",
    "symmetric": "rho_2",
    "leaf": "vectors that the leaf sends",
}


@dataclass(frozen=True)
class Measured:
    """A network's metrics, and the value of the goal: smaller is better."""

    network: spectral.NetworkMetrics
    value: float


@dataclass(frozen=True)
class Design:
    """Weights that were designed.

    Attributes:
        goal: what for.
        mixing: the weights.
        before: metrics of the weights at the start.
        after: metrics of ``mixing``.
        evaluations: how often an objective and its gradient were computed.
        notes: remarks.
    """

    goal: str
    mixing: Mixing
    before: Measured
    after: Measured
    evaluations: int
    notes: tuple[str, ...] = ()

    def rows(self) -> list[tuple[str, str, str]]:
        """``(what, before, after)``, for tables."""
        found = [(GOALS[self.goal], f"{self.before.value:.4g}", f"{self.after.value:.4g}")]
        for field in ("rho_2", "s", "kappa"):
            for side, symbol in (("pull", "A"), ("push", "B")):
                cells = [_cell(getattr(m.network, side), field) for m in (self.before, self.after)]
                found.append((f"{field} of {symbol}", cells[0], cells[1]))
        found.append(("c", *(f"{m.network.c:.4g}" for m in (self.before, self.after))))  # type: ignore[arg-type]
        return found

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, for JSON."""
        sides = {
            name: measured.network.to_dict() | {"value": to_jsonable(measured.value)}
            for name, measured in (("before", self.before), ("after", self.after))
        }
        told = {
            "goal": self.goal,
            "value": GOALS[self.goal],
            "evaluations": self.evaluations,
            "notes": list(self.notes),
        }
        return told | sides

    def __str__(self) -> str:
        table = [(f"goal: {self.goal}", "before", "after"), *self.rows()]
        width = [max(len(row[k]) for row in table) for k in range(3)]
        lines = [f"{a:<{width[0]}}  {b:>{width[1]}}  {c:>{width[2]}}" for a, b, c in table]
        return "\n".join([*lines, f"{self.evaluations} evaluations", *self.notes])


@dataclass(frozen=True)
class Task:
    """What the goals share: the graphs, the weights at the start, and how hard to search."""

    graph: Graph
    push_graph: Graph
    start: Mixing
    floor: float
    starts: int
    seed: int
    iterations: int

    @property
    def patterns(self) -> tuple[FloatArray, FloatArray]:
        """The 0-1 matrices of both graphs."""
        return self.graph.adjacency().toarray(), self.push_graph.adjacency().toarray()

    @property
    def spaces(self) -> list[Space]:
        """All A, all B."""
        pull, push = self.patterns
        return [Simplex(pull, self.floor), Simplex(push, self.floor, transposed=True)]

    @property
    def at_start(self) -> list[FloatArray]:
        """A and B at the start."""
        return [dense(self.start.pull), dense(self.start.push)]

    def guesses(self) -> list[list[FloatArray]]:
        """Pairs to begin with: the start, equal weights, half-way to spanning-tree pairs of several roots, and random ones."""
        pull, push = self.patterns
        even = [pull / pull.sum(1, keepdims=True), push / push.sum(0)]
        found = [self.at_start]
        if not all(np.allclose(a, b) for a, b in zip(found[0], even, strict=True)):
            found.append(even)
        rng = np.random.default_rng(self.seed)
        roots = np.intersect1d(self.graph.roots(), self.push_graph.reverse().roots())
        for root in [None, *rng.permutation(roots)[: max(0, self.starts // 2 - 1)]]:
            tree = Mixing.spanning_trees(self.graph, self.push_graph, root=None if root is None else int(root))
            found.append([(e + t) / 2 for e, t in zip(even, (dense(tree.pull), dense(tree.push)), strict=True)])
        while len(found) < self.starts + 1:
            A, B = (pattern * rng.uniform(0.1, 1, pattern.shape) for pattern in (pull, push))
            found.append([A / A.sum(1, keepdims=True), B / B.sum(0)])
        return found[: self.starts + 1]

    def mixing(self, goal: str, matrices: Sequence[FloatArray]) -> Mixing:
        """The result as a `Mixing`."""
        name = f"{self.graph.name}, designed ({goal})"
        return Mixing(matrices[0], matrices[1], connected="rooted", name=name)


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
) -> Design:
    """Mixing weights on a digraph (models are pulled along ``graph``, trackers pushed along ``push_graph``), for a goal.

    * ``"fastest"``: the smallest rho_2 of A and of B. The surrogate is log ||A^K - A_inf||_F / K for K = 4, 32, 256, one after
      the other, which tends to log rho_2. Beware: the fastest matrix is nearly a spanning tree, whose root has nearly all the
      weight (kappa grows without bound as the floor falls); it agrees fast, on what the root says, and c may be anything.
    * ``"sum"``: the smallest s of A and of B. The surrogate is sum_i ||A^i - A_inf||_F^2, a Lyapunov equation. The term i = 0
      is n - 2 + n |pi|^2, so that skew costs something.
    * ``"alignment"``: the smallest residual eps of Push-Pull under noise, relative to its step: see
      `perron.design.goals.residual`. It is zero exactly where pi_A is uniform, that is, A doubly stochastic, whatever B is; then
      c = 1, too. (A large c gains nothing: lr is divided by it.) Where the pull graph has doubly stochastic weights, A is the
      fastest of them, and B has the smallest s; elsewhere the residual is minimised as it is.
    * ``"level"``: the lowest stationary level (``metric``) of ``algorithm`` under noise at the effective step ``step``, as theory
      predicts it for the given curvatures, with the same noise at all nodes. lr = step / c: at a fixed lr a small c would lower
      the level, by making smaller steps. For the same reason errors have to shrink at least 95 % as fast
      as at the start.
    * ``"rate"``: the fastest convergence of ``algorithm`` without noise, for the given curvatures, each candidate at its own best
      step: the spectral radius of the recursion, by the surrogate log ||M^K||_F / K of its matrix M.
    * ``"balanced"``: the fastest doubly stochastic weights; A = B where the graphs are the same.
    * ``"symmetric"``: the fastest symmetric ones on an undirected graph; a convex problem, needs cvxpy (``perron[design]``).
    * ``"leaf"``: for a node ``leaf`` with a slow uplink: nobody waits for its models, and its gradients go to one node only; see
      `perron.design.uplink.spare_uplink`. The other weights have a small s.

    All but ``"symmetric"`` are non-convex: we search from ``starts`` + 1 points and return the best we met, judged by the true
    value and not by the surrogate; never anything worse than the start. There may be better weights.

    Args:
        start: the weights to improve on and to compare with; equal weights by default.
        floor: smallest weight of an edge, as a share of the equal weight: every weight is at least floor / degree (of those of
            `Mixing.balanced`, where weights are doubly stochastic).
        iterations: at most so many of L-BFGS-B, for each start and surrogate.
        curvature: a number, several numbers between the smallest and the largest curvature, or (``"rate"`` only) the nodes'
            Hessians ``(n, d, d)``, such as ``theory.around(problem, noise=False).curvature``.
        step, metric: for ``"level"``: the effective step, and the metric as `perron.theory.Level` names it.
        leaf: for ``"leaf"``: the node.

    Example:
        >>> import perron
        >>> found = design(perron.topologies.grid(9), goal="sum", starts=2)
        >>> found.after.value < found.before.value
        True
    """
    push_graph = graph if push_graph is None else push_graph
    _check(graph, push_graph, goal, floor, starts, iterations)
    algorithm = PushPull() if algorithm is None else algorithm
    if (leaf is not None) != (goal == "leaf"):
        raise PerronError(
            f"goal='leaf' and leaf=NODE, a node with a slow uplink, go together; got {goal!r} and {leaf!r}."
        )
    if (step is not None) != (goal == "level"):
        raise PerronError(
            f"goal='level' and step=, the effective step c lr that it is wanted for, go together; got {goal!r} and {step!r}."
        )
    if start is None:
        start = _even(graph, push_graph)
    _check_start(start, graph, push_graph)
    task = Task(graph, push_graph, start, floor, starts, check_whole("The seed of a design", seed), iterations)
    if goal in ("fastest", "sum"):
        return _mixing_fast(task, goal)
    if goal == "alignment":
        return _aligned(task)
    if goal in ("level", "rate"):
        return _driven(task, goal, algorithm, _curvatures(curvature, goal, graph.nodes), step, metric)
    if goal == "balanced":
        return _balanced(task)
    if goal == "symmetric":
        W = fastest_symmetric(_same(task, goal), floor)
        return _constrained(task, goal, [W, W], 0, fits=start.is_symmetric)
    return _leaf(task, check_whole("leaf", leaf))


# ---- the goals


def _larger(metric: Callable[[Any], float]) -> Callable[[list[FloatArray]], float]:
    return lambda matrices: max(metric(matrix) for matrix in matrices)


def _sum_of(matrix: FloatArray) -> float:
    return spectral.mixing_sum(matrix).value


def _mixing_fast(task: Task, goal: str) -> Design:
    objectives: list[Objective] = [goals.fastest(k) for k in (2, 5, 8)] if goal == "fastest" else [goals.summed]
    metric = spectral.decay_rate if goal == "fastest" else _sum_of
    value = _larger(metric)

    def balanced_value(matrices: list[FloatArray]) -> float:
        return value(matrices) + 1e-3 * float(np.mean([metric(m) for m in matrices]))  # the better side counts a little

    found = search(task.spaces, objectives, task.guesses(), balanced_value, iterations=task.iterations)
    return _finished(task, goal, found.matrices, value, found.evaluations)


def _aligned(task: Task) -> Design:
    try:
        W0 = dense(Mixing.balanced(task.graph).pull)
    except PerronError:
        found = search(task.spaces, [goals.residual], task.guesses(), goals.true_residual, iterations=task.iterations)
        return _finished(task, "alignment", found.matrices, goals.true_residual, found.evaluations)
    A, pulled = _fastest_balanced(task, W0)
    _, push = task.patterns
    space = Simplex(push, task.floor, transposed=True)
    starts = [[pair[1]] for pair in task.guesses()]

    def objective(matrices: list[Tensor]) -> Tensor:
        return goals.summed([matrices[0].T])

    pushed = search([space], [objective], starts, _larger(_sum_of), iterations=task.iterations)
    matrices = [A, pushed.matrices[0]]
    return _finished(task, "alignment", matrices, goals.true_residual, pulled + pushed.evaluations)


def _balanced(task: Task) -> Design:
    A, count = _fastest_balanced(task, dense(Mixing.balanced(task.graph).pull))
    B = A
    if task.push_graph != task.graph:
        B, more = _fastest_balanced(task, dense(Mixing.balanced(task.push_graph).pull))
        count += more
    return _constrained(task, "balanced", [A, B], count, fits=task.start.is_doubly_stochastic)


def _fastest_balanced(task: Task, W0: FloatArray) -> tuple[FloatArray, int]:
    space = Balanced(W0, task.floor)
    rng = np.random.default_rng(task.seed)
    starts = [[W0]]
    while len(starts) <= task.starts // 2:
        with torch.no_grad():
            starts.append([np.asarray(space.matrix(torch.as_tensor(rng.standard_normal(space.size))))])
    objectives: list[Objective] = [goals.fastest(k) for k in (2, 5, 8)]
    found = search([space], objectives, starts, _larger(spectral.decay_rate), iterations=task.iterations)
    return found.matrices[0], found.evaluations


def _driven(task: Task, goal: str, algorithm: Algorithm, curvature: Tensor, step: float | None, metric: str) -> Design:
    # In units in which the largest curvature is one: neither the search nor rounding then depends on the unit of the loss.
    most = float((curvature if curvature.ndim == 1 else torch.linalg.eigvalsh(curvature)).max())
    driven = goals.Driven(algorithm, curvature / most, task.start)
    if goal == "level":
        return _quiet(task, driven, step, metric, most)
    starts = []
    for pair in task.guesses():
        starts.append([*pair, np.array([driven.rough_step(task.mixing(goal, pair))])])

    def near(matrices: list[FloatArray]) -> float:
        return driven.near_rate(task.mixing(goal, matrices), float(matrices[2][0]))

    objectives = [driven.rate(k) for k in (4, 7)]
    found = search([*task.spaces, Scalar()], objectives, starts, near, iterations=task.iterations)
    return _finished(task, goal, found.matrices[:2], _of_pair(task, driven.best_rate), found.evaluations)


def _quiet(task: Task, driven: goals.Driven, step: float | None, metric: str, most: float) -> Design:
    if metric not in METRICS:
        raise PerronError(f"goal='level' has the metrics {', '.join(METRICS)}; got {metric!r}.")
    if not (isinstance(step, int | float) and step > 0 and isfinite(step)):
        raise PerronError(f"goal='level' needs a positive effective step; got step={step!r}.")
    scaled, unit = step * most, 1.0 if metric == "grad_norm_sq" else most**-2
    rate = driven.true_rate(task.start, scaled)
    if not rate < 1:
        raise PerronError(
            f"With the weights at the start the step {step:g} is unstable: errors grow by {rate:.4g} in a step. Choose a smaller "
            "step (theory.stable_lr times c says which), or start from weights that were designed for goal='rate'."
        )
    value = _of_pair(task, lambda mixing: unit * driven.true_level(mixing, scaled, metric, rate**0.95))
    objective = driven.level(scaled, metric, rate)
    found = search(task.spaces, [objective], task.guesses(), value, iterations=task.iterations)
    return _finished(task, "level", found.matrices, value, found.evaluations)


def _of_pair(task: Task, value: Callable[[Mixing], float]) -> Callable[[list[FloatArray]], float]:
    return lambda matrices: value(task.mixing("candidate", matrices))


def _leaf(task: Task, leaf: int) -> Design:
    pulled, candidates = spare_uplink(task.graph, task.push_graph, leaf)
    pushed = min(candidates, key=lambda g: _sum_of(normalize_columns(g.adjacency()).toarray()))
    reduced = Task(pulled, pushed, _even(pulled, pushed), task.floor, task.starts, task.seed, task.iterations)
    found = search(reduced.spaces, [goals.summed], reduced.guesses(), _larger(_sum_of), iterations=task.iterations)
    mixing = reduced.mixing("leaf", found.matrices)
    first = sum(int((np.delete(matrix[:, leaf], leaf) > 0).sum()) for matrix in task.at_start)
    sent = [first, messages_sent(pulled, pushed, leaf)]
    target = int(pushed.targets(leaf)[0])
    note = f"node {leaf} sends no models, and its gradients to node {target} alone; it counts nothing in x-hat, its data in full"
    return Design(
        "leaf", mixing, Measured(spectral.describe(task.start), sent[0]), Measured(spectral.describe(mixing), sent[1]),
        found.evaluations, (note,),
    )  # fmt: skip


# ---- pieces


def _even(graph: Graph, push_graph: Graph) -> Mixing:
    name = f"{graph.name}, uniform weights"
    pull, push = normalize_rows(graph.adjacency()), normalize_columns(push_graph.adjacency())
    return Mixing(pull, push, connected="rooted", name=name)


def _measured(mixing: Mixing, value: Callable[[list[FloatArray]], float]) -> Measured:
    return Measured(spectral.describe(mixing), value([dense(mixing.pull), dense(mixing.push)]))


def _finished(
    task: Task, goal: str, matrices: list[FloatArray], value: Callable[[list[FloatArray]], float], evaluations: int
) -> Design:
    """The result, or the start where that is as good."""
    before = _measured(task.start, value)
    mixing = task.mixing(goal, matrices)
    after = _measured(mixing, value)
    if not after.value < before.value:
        return Design(goal, task.start, before, before, evaluations, ("nothing better than the start was found",))
    return Design(goal, mixing, before, after, evaluations)


def _constrained(task: Task, goal: str, matrices: list[FloatArray], evaluations: int, *, fits: bool) -> Design:
    """The fastest of its kind. A start of another kind may well mix faster, and is no match for it."""
    value = _larger(spectral.decay_rate)
    if fits:
        return _finished(task, goal, matrices, value, evaluations)
    kind = "doubly stochastic" if goal == "balanced" else goal
    mixing = task.mixing(goal, matrices)
    note = f"the weights before are not {kind}, those after are"
    return Design(goal, mixing, _measured(task.start, value), _measured(mixing, value), evaluations, (note,))


def _same(task: Task, goal: str) -> Graph:
    if task.push_graph != task.graph:
        raise MixingError(f"goal={goal!r} is for one graph; got two that differ. Leave push_graph out.")
    return task.graph


def _cell(metrics: spectral.MatrixMetrics | None, field: str) -> str:
    return "-" if metrics is None else f"{getattr(metrics, field):.4g}"


def _check(graph: Graph, push_graph: Graph, goal: str, floor: float, starts: int, iterations: int) -> None:
    for one in (graph, push_graph):
        if not isinstance(one, Graph):
            raise PerronError(f"Weights are designed on a Graph that does not vary in time; got {one!r:.80}.")
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
    try:
        curvature = torch.as_tensor(given, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError):
        curvature = torch.empty(0)
    curvature = curvature[None] if curvature.ndim == 0 else curvature
    square = curvature.ndim == 3 and curvature.shape[1] == curvature.shape[2] and len(curvature) == nodes
    fits = curvature.numel() > 0 and (curvature.ndim == 1 or (goal == "rate" and square))
    if fits and bool(curvature.isfinite().all()):
        least = curvature.min() if curvature.ndim == 1 else torch.linalg.eigvalsh(curvature.mean(0)).min()
        fits = float(least) > 0
    else:
        fits = False
    if not fits:
        raise PerronError(
            f"A curvature is a positive number, several, or (goal 'rate' only) Hessians (n, d, d); got {given!r:.80}."
        )
    return curvature

"""What an algorithm is: a frozen record of hyper-parameters with ``init`` and ``step``, written for ONE node.

``step`` is a generator. It starts exchanges, **yields the point at which it needs a gradient**, is sent the gradient,
waits for the exchanges and returns the next state. Whatever it starts before the yield travels while the gradient is
computed. The simulator and the processes drive the same text; see `advance`.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from perron.algorithms.node import Node
from perron.errors import GraphError, MixingError
from perron.networks.facts import Network
from perron.networks.mixing import Mixing
from perron.networks.spectral import period_product
from perron.networks.stochastic import worst_asymmetry, worst_sum

# Pull-only methods are not to be trusted where diag(A^t) gets as small as WILD of its limit. Measured with exact gradients at the
# default step on directed rings of 6 to 16 nodes with random integer weights: errors of FROST first grow to a peak, and in double
# precision end at 1e-16 to 2e-15 of it, for good. Down to 7e-5 that is 2e-8 at most; at 2e-5 it is 0.8 and at 1e-6 110, from
# starts that are about 1 off. Pull-Diag gossip divides its starting values only: its error is 1e-16 over the least share.
WILD, WILD_GOSSIP = 5e-5, 1e-9
Step = Generator[Tensor, Tensor, Any]
Rate = float | Tensor


@dataclass(frozen=True)
class About:
    """What there is to know about an algorithm, for tables, checks and fair comparisons.

    Attributes:
        title: its name in print.
        family: centralized, push-pull, push-only, pull-only, undirected, tree, federated or gossip.
        matrices: what it mixes with: ``A B`` (row- and column-stochastic), ``A``, ``B``, ``W`` (doubly stochastic),
            ``W sym`` (symmetric too), ``R C`` (a spanning-tree pair) or ``-``.
        sends: what travels along an edge in a step, in vectors of length d and n and scalars.
        overlap: which exchanges can hide behind the gradient.
        effective: the effective step is this many times lr: ``c``, ``1`` or ``n``.
        exact: whether it reaches the optimum with a constant step (no noise); biased otherwise.
        speedup: whether its noise floor falls as 1/n, claimed or measured.
        reference: where it comes from.
        robust: whether it keeps its guarantee on links that lose, delay and repeat messages.
    """

    title: str
    family: str
    matrices: Literal["A B", "A", "B", "W", "W sym", "R C", "-"]
    sends: str
    overlap: str
    effective: Literal["c", "1", "n"]
    exact: bool
    reference: str
    speedup: bool = True
    robust: bool = False


class Algorithm(ABC):
    """Base of all algorithms; subclasses are frozen dataclasses and are not subclassed themselves.

    The state is a NamedTuple of tensors, never changed in place. Its field ``x`` is the model that a node would use.

    Attributes:
        coordinatewise: whether a step treats every coordinate of the model alike and on its own, given the gradient. Then large
            models are stepped block by block, which is faster. Not if it takes norms or projects.
    """

    coordinatewise: ClassVar[bool] = False

    @property
    @abstractmethod
    def about(self) -> About:
        """What there is to know about it."""

    @abstractmethod
    def init(self, x: Tensor, node: Node) -> Any:
        """The state from which to start at models ``x``; also the way to go on after a peer was lost."""

    @abstractmethod
    def step(self, state: Any, node: Node, lr: Rate) -> Step:
        """One step: yield points, be sent gradients, return the next state."""

    @property
    def description(self) -> str:
        """The class with its options, equal in every process: functions are given by their names."""
        options = {one.name: getattr(self, one.name) for one in fields(self)}  # type: ignore[arg-type]
        named = [f"{name}={getattr(value, '__qualname__', None) or repr(value)}" for name, value in options.items()]
        return f"{type(self).__name__}({', '.join(named)})"

    @property
    def reliable(self) -> Algorithm:
        """The algorithm that this one is where every message arrives in its step, for theory; itself but for robust ones."""
        return self

    # ---- what can be said about a run, given the network's facts

    def average(self, state: Any, network: Network) -> Tensor:
        """x-hat: the combination of the nodes' variables that follows centralized SGD, ``(..., n, d) -> (..., d)``."""
        if self.about.matrices in ("A B", "A", "R C"):
            return weighted(network.pull_perron, state.x)
        return (state.u if "u" in state._fields else state.x).mean(-2)

    def effective_step(self, network: Network) -> float:
        """The factor of lr in x-hat+ = x-hat - factor lr g-bar + eps: c, 1 or n."""
        if self.about.effective == "c":
            return network.alignment
        return float(network.nodes) if self.about.effective == "n" else 1.0

    def conserved(self, state: Any, network: Network) -> dict[str, Tensor]:
        """Quantities that are zero after every step, by name; the invariant of the method."""
        return {}

    def check(self, network: Network) -> None:
        """Raise a `MixingError` unless the network offers what the algorithm needs; warn where it will start wildly."""
        check_matrices(self.about, network.mixing)
        gossip = self.about.family == "gossip"
        least = network.least_return if self.about.matrices == "A" else None
        if least is not None and least < (WILD_GOSSIP if gossip else WILD):
            harm = "rounding errors grow by as much"
            if not gossip:
                harm = "errors grow by many orders of magnitude first, and rounding may then spoil for good what is conserved"
            warnings.warn(
                f"{self.about.title} divides by diag(A^t), which on this network falls to {least:.0e} of its limit before it "
                f"settles: {harm}. Give self-loops more weight, as Mixing.lazy(graph, keep=0.8) does.",
                stacklevel=4,
            )

    def default_lr(self, network: Network, smoothness: float) -> float:
        """A step size that was found stable on all networks tried, for gradients with Lipschitz constant ``smoothness``."""
        about, n = self.about, network.nodes
        if about.family == "centralized":
            return 1 / smoothness
        if about.matrices == "R C":
            return 0.5 * min(0.25, 1 / max(network.depth, 1)) / (n * smoothness)
        if about.matrices == "A B":
            return 0.5 * min(0.25, 1 / max(network.pull_sum, network.push_sum, 1)) / (network.alignment * smoothness)
        if about.matrices == "A":
            shy = min(1.0, n * float(network.pull_perron.min()))
            return 0.5 * min(0.25, 1 / max(network.pull_sum, 1)) * shy / (n * smoothness)
        shy = min(1.0, n * float(network.push_perron.min())) if about.matrices == "B" else 1.0
        return 0.5 * min(0.25, 1 / max(network.push_sum, 1)) * shy / smoothness


def advance(algorithm: Algorithm, state: Any, node: Node, lr: Rate, gradient: Callable[[Tensor], Tensor]) -> Any:
    """Drive one step to its end, answering each yielded point with ``gradient(point)``; the next state."""
    step = algorithm.step(state, node, lr)
    try:
        point = next(step)
        while True:
            point = step.send(gradient(point))
    except StopIteration as done:
        return done.value


def stable_roots(linear: object, constant: object) -> bool:
    """Whether all roots of r^2 - linear r + constant lie inside the unit disc, for arrays of complex coefficients.

    This decides, eigenvalue by eigenvalue of the mixing matrix, whether disagreement dies out as lr -> 0; where it does
    not, no small step helps.
    """
    b, c = np.asarray(linear, dtype=np.complex128), np.asarray(constant, dtype=np.complex128)
    root = np.sqrt(b * b - 4 * c)
    return bool(np.maximum(np.abs(b + root), np.abs(b - root)).max(initial=0.0) / 2 < 1 - 1e-12)


def less(x: Tensor, lr: Rate, y: Tensor) -> Tensor:
    """x - lr y, in the place of x: one pass over memory."""
    return x.addcmul_(y, lr, value=-1) if isinstance(lr, Tensor) else x.sub_(y, alpha=lr)


def largest(stable: Callable[[float], bool], upper: float) -> float:
    """The largest value in [0, upper] up to which ``stable`` holds, by bisection; 0 if nowhere."""
    low, high = 0.0, upper
    if stable(upper):
        return upper
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if stable(middle) else (low, middle)
    return low


def spectral_matrix(network: Network, side: Literal["pull", "push"]) -> np.ndarray[Any, Any]:
    """The network's matrix as a dense array, for questions about its limit."""
    matrix = period_product(network.mixing, side)
    return matrix if isinstance(matrix, np.ndarray) else matrix.toarray()


def stable_steps(iteration: Callable[[float], np.ndarray[Any, Any]]) -> tuple[float, float] | None:
    """The widest interval of lr times curvature in which a linear iteration contracts, or None; to about 5 %.

    ``iteration(s)`` is the matrix of a method at its limit, for losses of equal curvature with lr times curvature = s. One
    eigenvalue is 1 by conservation; all others must lie inside the unit disc.
    """

    def contracts(step: float) -> bool:
        values = np.linalg.eigvals(iteration(step))
        return bool(np.abs(np.delete(values, np.argmin(np.abs(values - 1)))).max(initial=0.0) < 1)

    grid = np.geomspace(1e-3, 4, 170)
    good = np.array([False, *(contracts(float(step)) for step in grid), False])
    starts, ends = np.flatnonzero(good[1:] & ~good[:-1]), np.flatnonzero(good[:-1] & ~good[1:])
    if not len(starts):
        return None
    widest = int(np.argmax(ends - starts))
    return float(grid[starts[widest]]), float(grid[ends[widest] - 1])


def weighted(weights: np.ndarray[Any, Any], x: Tensor) -> Tensor:
    """sum_i weights[i] x_i, ``(..., n, d) -> (..., d)``."""
    given = torch.as_tensor(weights, dtype=x.dtype, device=x.device)
    if x.ndim != 3:
        return given @ x
    return torch.bmm(given.expand(x.shape[0], 1, -1), x).squeeze(-2)  # matmul would copy x first


def check_matrices(about: About, mixing: Mixing) -> None:
    """The needs that follow from the matrices an algorithm mixes with."""

    def refuse(need: str, found: str, remedy: str) -> None:
        raise MixingError(f"{about.title} needs {need}; {mixing!r} does not offer that{found}. {remedy}")

    def first(wrong: Callable[[Any], str]) -> str:
        """What is wrong with the first matrix with which something is."""
        both = zip(("pull", "push"), mixing.sequences, strict=True)
        return next(f": in {side}, {said}" for side, matrices in both for one in matrices if (said := wrong(one)))

    kind = about.matrices
    if kind in ("A B", "A", "R C", "W", "W sym") and not mixing.has_pull:
        refuse("a row-stochastic pull matrix", "", "Pass pull= to Mixing.")
    if kind in ("A B", "B", "R C", "W", "W sym") and not mixing.has_push:
        refuse("a column-stochastic push matrix", "", "Pass push= to Mixing.")
    if kind in ("W", "W sym") and not mixing.is_doubly_stochastic:
        remedy = "Use Mixing.metropolis (undirected graphs) or Mixing.balanced (digraphs)."
        refuse("doubly stochastic weights", first(worst_sum), remedy)
    if kind == "W sym" and not mixing.is_symmetric:
        refuse("symmetric weights", first(worst_asymmetry), "Use Mixing.metropolis on an undirected graph.")
    if kind in ("A", "B") and not mixing.is_strongly_connected:
        try:
            for graph in [mixing.pull_graph] * mixing.has_pull + [mixing.push_graph] * mixing.has_push:
                graph.check_strongly_connected()
        except GraphError as error:
            found, remedy = f": {str(error).rstrip('.')}", "Or use Push-Pull, which needs a common root only."
            refuse("a strongly connected network", found, remedy)
    if kind == "A":
        try:
            mixing.check_self_loops()
        except MixingError as error:
            raise MixingError(f"{about.title}: {error}") from None
    if kind == "R C" and not is_tree_pair(mixing):
        found = f": {len(mixing.pull_graph.edges)} edges to pull along and {len(mixing.push_graph.edges)} to push along"
        need = f"a spanning-tree pair, {mixing.nodes - 1} edges each"
        refuse(need, found, "Use Mixing.spanning_trees(graph).")


def is_tree_pair(mixing: Mixing) -> bool:
    """Whether every node listens to one node and speaks to one node, with one common root."""
    return len(mixing.pull_graph.edges) == len(mixing.push_graph.edges) == mixing.nodes - 1

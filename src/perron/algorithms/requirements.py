"""What algorithms need of a network, and where their disagreement is unstable: checks with matrices and eigenvalues."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from math import ceil, floor, log, log10
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from scipy.sparse import coo_array
from torch import Tensor

from perron.errors import GraphError, MixingError
from perron.networks.facts import Network
from perron.networks.mixing import Mixing
from perron.networks.spectral import period_product
from perron.networks.stochastic import to_dense, worst_asymmetry, worst_sum

if TYPE_CHECKING:
    from perron.algorithms.base import About

# Pull-only methods are unreliable where diag(A^t) falls below WILD times its limit. Measured with exact gradients at the
# default step on directed rings of 6 to 16 nodes with random integer weights: errors of FROST first grow to a peak, and in double
# precision end at 1e-16 to 2e-15 of it, for good. Down to 7e-5 that is 2e-8 at most; at 2e-5 it is 0.8 and at 1e-6 110, from
# starts that are about 1 off. Pull-Diag gossip divides its starting values only: its error is 1e-16 over the least share.
WILD, WILD_GOSSIP = 5e-5, 1e-9
# Second eigenvalue above which trackers are slow for AdamW. With benchmarks/recipes.py, on a directed ring: at 0.92 it ended at
# 2.5 times the loss of a centralized run, at 0.92^3 = 0.78 at 1.5 times, at 0.92^6 = 0.60 at 1.1 times.
SLOW = 0.75
SPECTRA_UP_TO = 512  # nodes; eigenvalues of more take seconds
OUTER_UP_TO, OUTER_CURVATURES = 150, (0.02, 0.1, 0.3, 1.0)  # nodes and curvatures for which outer steps are checked


def check_matrices(about: About, mixing: Mixing) -> None:
    """Raise a `MixingError` unless the network has the matrices that an algorithm mixes with."""

    def refuse(need: str, found: str, remedy: str) -> None:
        raise MixingError(f"{about.title} needs {need}; {mixing!r} does not offer that{found}. {remedy}")

    def first(defect: Callable[[Any], str]) -> str:
        """Describe the first matrix that has the defect."""
        both = zip(("pull", "push"), mixing.expected.sequences, strict=True)
        found = (f": in {side}, {text}" for side, matrices in both for one in matrices if (text := defect(one)))
        return next(found, "")

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
    """Whether every node receives from one node and sends to one node, with one common root."""
    return len(mixing.pull_graph.edges) == len(mixing.push_graph.edges) == mixing.nodes - 1


def warn_if_varying(about: About, mixing: Mixing) -> None:
    """Warn where a method needs weights that do not change; pull-only ones only need the same Perron vector at all times."""
    if about.varying or not mixing.varies or (about.matrices == "A" and mixing.is_doubly_stochastic):
        return
    warnings.warn(
        f"{about.title} needs weights that do not change, and {mixing!r} varies in time: it may settle far from the optimum "
        "or diverge. Push-Pull and Push-DIGing, or on undirected graphs DIGing, stay exact.",
        stacklevel=5,
    )


def warn_if_wild(about: About, network: Network) -> None:
    """Warn where a pull-only method divides by a diag(A^t) that is much smaller than its limit."""
    gossip = about.family == "gossip"
    least = network.least_return if about.matrices == "A" else None
    if least is None or least >= (WILD_GOSSIP if gossip else WILD):
        return
    harm = "rounding errors grow by as much"
    if not gossip:
        harm = "errors grow by many orders of magnitude first, and rounding may then spoil for good what is conserved"
    warnings.warn(
        f"{about.title} divides by diag(A^t), which on this network falls to {least:.0e} of its limit before it settles: "
        f"{harm}. Give self-loops more weight, as Mixing.lazy(graph, keep=0.8) does.",
        stacklevel=5,
    )


def warn_if_slow(about: About, network: Network) -> None:
    """Warn where trackers mix too slowly for a move that depends on their scale."""
    if about.matrices == "R C" or network.nodes > SPECTRA_UP_TO:
        return
    sides = [network.pull_spectrum] * (about.matrices != "B") + [network.push_spectrum] * (about.matrices != "A")
    second = max(float(np.abs(side).max(initial=0.0)) for side in sides) ** (1 / network.mixing.expected.period)
    if second > SLOW:
        warnings.warn(
            f"{about.title}: this network mixes slowly (its second eigenvalue is {second:.3g} in modulus). Above {SLOW:g}, "
            "trackers follow the gradient too late for such a move. Use a graph that mixes faster, as "
            f"exponential does, or several exchanges in a step: rounds={ceil(log(SLOW) / log(second))} suffices here.",
            stacklevel=4,
        )


def check_momentum(title: str, network: Network, heavy: float, nesterov: float) -> None:
    """Refuse momentum with which disagreement grows on this network for every step size.

    As lr -> 0 the models follow x+ = A_t (x + nesterov (x - x_prev)) + heavy (x - x_prev). With one A, the roots of
    r^2 - ((1+nesterov) l + heavy) r + (nesterov l + heavy) decide for each of its eigenvalues l but 1. With several in turn,
    it is the product of the companion matrices over the period, whose eigenvalues but 1 must lie in the unit disc.
    """

    def stable(scale: float) -> bool:
        h, g = scale * heavy, scale * nesterov
        if network.mixing.expected.period == 1:
            return _stable_roots((1 + g) * network.pull_spectrum + h, g * network.pull_spectrum + h)
        return _contracts(_companions(network.mixing, h, g))

    if not stable(1.0):
        most = _largest(stable, 1.0)
        raise MixingError(
            f"{title}: on this network disagreement grows with momentum heavy={heavy:g}, nesterov={nesterov:g}, whatever "
            f"the step. It dies out up to heavy={most * heavy:.3g}, nesterov={most * nesterov:.3g}."
        )


def check_outer_step(title: str, network: Network, order: str, outer_lr: float, outer_momentum: float) -> None:
    """Refuse an outer step with which tracked pseudo-gradients diverge on this network.

    Where all nodes have one curvature, a pseudo-gradient is h x with 0 <= h <= 1, for gradient descent with lr L <= 1. With
    w = y - h x from the round before, y mixed already but in the order atc, a = outer_lr and b = outer_momentum, a round is

        y = w + h x  (atc: B (w + h x))     m+ = b m + y     d = a (y + b m+)
        x+ = A (x - d)  (cta: A x - d)      w+ = B y - h x   (atc: y - h x)

    whose eigenvalues but 1, which conservation of 1^T w gives, must lie in the unit disc; the products over a period where the
    network varies, and its mean matrices where it is drawn at random. Not checked on more than 150 nodes, where it takes long.
    """
    if network.nodes > OUTER_UP_TO:
        return

    def stable(rate: float) -> bool:
        return all(
            _contracts(_outer_round(network.mixing.expected, order, rate, outer_momentum, h)) for h in OUTER_CURVATURES
        )

    if not stable(outer_lr):
        most = _largest(stable, outer_lr)
        raise MixingError(
            f"{title}: on this network rounds diverge with outer_lr={outer_lr:g} and outer_momentum={outer_momentum:g} in the "
            f"order {order}, once a round comes near the local optima. "
            + (f"They are stable up to outer_lr={_down(most)}." if most else "They are stable for no outer_lr.")
        )


def _outer_round(mixing: Mixing, order: str, rate: float, momentum: float, h: float) -> np.ndarray[Any, Any]:
    """The matrix that takes (x, w, m) through a period of rounds with pseudo-gradients h x."""
    one = np.eye(mixing.nodes)
    zero, period = 0 * one, np.eye(3 * mixing.nodes)
    for step in range(mixing.period):
        late = order == "atc"  # otherwise w contains the exchange of the next round
        A, B = to_dense(mixing.pull_at(step)), to_dense(mixing.push_at(step + (not late)))
        mixed = B if late else one
        y = np.hstack([h * mixed, mixed, zero])
        m = momentum * np.hstack([zero, zero, one]) + y
        d = rate * (y + momentum * m)
        x = np.hstack([one, zero, zero])
        moved = A @ x - d if order == "cta" else A @ (x - d)
        w = (y if late else B @ y) - h * x
        period = np.vstack([moved, w, m]) @ period
    return period


def _down(value: float) -> str:
    """A positive number with three digits, rounded down."""
    unit = 10.0 ** (floor(log10(value)) - 2)
    return f"{floor(value / unit) * unit:.3g}"


def _companions(mixing: Mixing, heavy: float, nesterov: float) -> np.ndarray[Any, Any]:
    """The matrix that takes (x, x_prev) through a period of x+ = A_t (x + nesterov (x - x_prev)) + heavy (x - x_prev)."""
    one = np.eye(mixing.nodes)
    period = np.eye(2 * mixing.nodes)
    for matrix in (to_dense(mixing.pull_at(step)) for step in range(mixing.period)):
        back = nesterov * matrix + heavy * one
        period = np.block([[matrix + back, -back], [one, 0 * one]]) @ period
    return period


def warn_if_small_steps_fail(title: str, network: Network, side: Literal["pull", "push"], theta: float) -> None:
    """Warn where DEXTRA (push) or row-stochastic EXTRA (pull) is unstable as lr -> 0, with the steps that are stable.

    As lr -> 0 all roots of r^2 - (1 + l) r + (theta + (1 - theta) l) must lie in the unit disc, for each eigenvalue l but 1.
    """
    spectrum = network.push_spectrum if side == "push" else network.pull_spectrum

    def stable(theta: float) -> bool:
        return _stable_roots(1 + spectrum, theta + (1 - theta) * spectrum)

    if not stable(theta):
        most, steps = _largest(stable, 0.5), _stable_steps(_extra_limit(network, side, theta))
        which = "and for no other step either" if steps is None else (
            f"only for lr times curvature between {steps[0]:.3g} and {steps[1]:.3g} does it die out"
        )  # fmt: skip
        warnings.warn(
            f"{title}: on this network disagreement grows as lr -> 0, {which}. Up to theta={most:.3g} small steps work.",
            stacklevel=4,
        )


def in_flight(network: Network, sent: Tensor, used: Tensor) -> Tensor:
    """Return sum_ij B_ij (s_j - r_ij), the mass that was sent but not used yet: ``(..., n, d), (..., links, d) -> (..., d)``."""
    push = coo_array(period_product(network.mixing, "push"))
    links = sorted((i, j, w) for i, j, w in zip(push.row, push.col, push.data, strict=True) if i != j)  # as links are
    sources = torch.tensor([j for _, j, _ in links], dtype=torch.int64, device=sent.device)
    weights = torch.tensor([[w] for _, _, w in links], dtype=sent.dtype, device=sent.device)
    return (weights * (sent.index_select(-2, sources) - used)).sum(-2)


def _extra_limit(
    network: Network, side: Literal["pull", "push"], theta: float
) -> Callable[[float], np.ndarray[Any, Any]]:
    """The iteration matrix of an EXTRA-like method with its weights settled, as a function of lr times curvature.

    push: of (u, u_prev) with v = n pi_B, where grad(x) is curvature times u / v.
    pull: of (x, q) with D = pi_A, where lr is counted n-fold.
    """
    matrix, one = period_product(network.mixing, side), np.eye(network.nodes)
    mixing = matrix if isinstance(matrix, np.ndarray) else matrix.toarray()
    perron = network.push_perron if side == "push" else network.pull_perron

    def limit(step: float) -> np.ndarray[Any, Any]:
        gain = np.diag(step / (network.nodes * perron))
        if side == "push":
            return np.block([[one + mixing - gain, gain - (theta * one + (1 - theta) * mixing)], [one, 0 * one]])
        return np.block([[mixing - gain, -one], [theta * (one - mixing), one]])

    return limit


def _stable_roots(linear: object, constant: object) -> bool:
    """Whether all roots of r^2 - linear r + constant lie inside the unit disc, for arrays of complex coefficients."""
    b, c = np.asarray(linear, dtype=np.complex128), np.asarray(constant, dtype=np.complex128)
    root = np.sqrt(b * b - 4 * c)
    return bool(np.maximum(np.abs(b + root), np.abs(b - root)).max(initial=0.0) / 2 < 1 - 1e-12)


def _contracts(matrix: np.ndarray[Any, Any]) -> bool:
    """Whether all eigenvalues lie inside the unit disc but one, which is 1 by conservation."""
    values = np.linalg.eigvals(matrix)
    return bool(np.abs(np.delete(values, np.argmin(np.abs(values - 1)))).max(initial=0.0) < 1 - 1e-12)


def _largest(stable: Callable[[float], bool], upper: float) -> float:
    """The largest value in [0, upper] up to which ``stable`` holds, by bisection; 0 if nowhere."""
    if stable(upper):
        return upper
    low, high = 0.0, upper
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (middle, high) if stable(middle) else (low, middle)
    return low


def _stable_steps(iteration: Callable[[float], np.ndarray[Any, Any]]) -> tuple[float, float] | None:
    """The widest interval of steps in which a linear iteration contracts, to about 5 %; None if there is none."""
    grid = np.geomspace(1e-3, 4, 170)
    good = np.array([False, *(_contracts(iteration(float(step))) for step in grid), False])
    starts, ends = np.flatnonzero(good[1:] & ~good[:-1]), np.flatnonzero(good[:-1] & ~good[1:])
    if not len(starts):
        return None
    widest = int(np.argmax(ends - starts))
    return float(grid[starts[widest]]), float(grid[ends[widest] - 1])

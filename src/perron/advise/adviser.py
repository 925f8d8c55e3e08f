"""An adviser: what a network is good for, what limits it, which algorithm and which step, and what to expect of it.

Every number has its source in `perron.theory`: stable steps from the linear recursion of the algorithm at the curvature L,
floors from its second moments, horizons from the descent lemma. They are answers for the constants that were given, and only as
good as these.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf

import numpy as np
import torch

from perron._registry import lookup
from perron.advise.records import BETTER, Advice, Fit, Limit, Needs
from perron.advise.words import sentences
from perron.algorithms import ALGORITHMS
from perron.algorithms.base import Algorithm, check_matrices, is_tree_pair
from perron.algorithms.node import Side
from perron.errors import MixingError, PerronError
from perron.networks.facts import Network
from perron.networks.mixing import Mixing
from perron.networks.spectral import decay_rate, describe
from perron.simulation.cost import bytes_per_step
from perron.theory import Stable, stable_lr
from perron.theory.horizon import Horizon, crossover
from perron.theory.levels import Around, level_of
from perron.theory.recursion import dense, unit_recursion
from perron.theory.sensitivity import LARGEST as SENSITIVE_UP_TO
from perron.theory.sensitivity import sensitivity

CANDIDATES = ("push_pull", "push_pull_pu", "add_opt", "push_diging", "frost", "pull_diag_gt", "stpp")
DOUBLY = ("aug_dgm", "exact_diffusion")  # further ones where the weights are doubly stochastic
EXACT_UP_TO = 48  # nodes; beyond, stable steps come from the tested rule
WILD = 1e-3  # of its limit: where diag(A^t) gets as small as that, gradients are blown up a thousandfold


def advise(
    mixing: Mixing | Network,
    needs: Needs | None = None,
    *,
    algorithms: Sequence[str] | None = None,
    family: Callable[[int], Mixing] | None = None,
    labels: Sequence[str] | None = None,
) -> Advice:
    """Advice on a network.

    Args:
        mixing: the network; that it is valid was checked when it was made.
        needs: what is to be trained; by default L = sigma^2 = Delta = 1 and 10,000 steps, so that lr is in units of 1/L.
        algorithms: names from `perron.ALGORITHMS`; by default Push-Pull, push-only, pull-only and trees (and methods for doubly
            stochastic weights where these are).
        family: the network of the same kind with another number of nodes, to find out where more nodes stop helping.
        labels: what the nodes are called; their numbers if None.

    Example:
        >>> import perron
        >>> mixing = perron.Mixing.random_integer(perron.topologies.exponential(8), seed=0)
        >>> advice = advise(mixing, Needs(smoothness=2.0, noise_var=4.0, steps=50_000))
        >>> advice.chosen.name, round(advice.chosen.speedup, 1)
        ('push_pull', 8.0)
    """
    needs = needs or Needs()
    if isinstance(mixing, Network):
        mixing = mixing.mixing
    if isinstance(algorithms, str):
        algorithms = [algorithms]
    if labels is not None and len(labels) != mixing.nodes:
        raise PerronError(f"{mixing.nodes} nodes need as many labels; got {len(labels)}.")
    metrics = describe(mixing)
    asked = tuple(algorithms) if algorithms else CANDIDATES + (DOUBLY if mixing.is_doubly_stochastic else ())
    for name in asked:
        if lookup(name, ALGORITHMS, "algorithm").about.family == "gossip":
            raise PerronError(f"{name} averages and minimises nothing; there is no step to advise on.")
    fits = tuple(_fit(name, mixing, needs) for name in asked)
    chosen = _choice(fits)
    limits = _limits(mixing)
    sizes: tuple[tuple[int, float], ...] = ()
    where = None
    if chosen is not None and chosen.error is not None and family is not None and 1 < mixing.nodes <= EXACT_UP_TO:
        where, sizes = _crossover(chosen.name, mixing.nodes, family, needs)
    advice = Advice(
        metrics=metrics, needs=needs, fits=fits, chosen=chosen, limits=limits, crossover=where, family=sizes, words=()
    )
    return replace(
        advice, words=tuple(sentences(advice, mixing, labels or [str(node) for node in range(mixing.nodes)]))
    )


def _fit(name: str, given: Mixing, needs: Needs) -> Fit:
    """One algorithm on the network it needs."""
    algorithm = ALGORITHMS[name]
    about = algorithm.about
    nobody = Fit(name=name, title=about.title, family=about.family)
    try:
        mixing = _for(algorithm, given)
        network = Network(mixing)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what they say is in the table
            algorithm.check(network)
    except PerronError as error:
        return replace(nobody, refusal=str(error))
    exact = network.nodes <= EXACT_UP_TO
    if exact:
        stable = stable_lr(algorithm, network, needs.smoothness)
    else:
        stable = Stable(0.0, 2 * algorithm.default_lr(network, needs.smoothness))
    fit = replace(nobody, stable=stable, exact=exact, bytes_per_step=_bytes(algorithm, network, needs))
    fit = replace(fit, remark=_remark(algorithm, network))
    if stable is None:
        return replace(fit, refusal="no step is stable on this network")
    factor = algorithm.effective_step(network)
    most = (stable.upper / 2 if stable.lower == 0 else (stable.lower + stable.upper) / 2) * factor
    horizon = _horizon(network.nodes, min(most, 1 / needs.smoothness), needs)
    step = max(horizon.best_step(needs.steps), stable.lower * factor * 1.1)
    lr = step / factor
    level, local, bounded = step * needs.smoothness * needs.noise_var / (2 * network.nodes), None, True
    if exact:
        near = Around(
            torch.tensor([needs.smoothness], dtype=torch.float64),
            torch.zeros(network.nodes, 1, dtype=torch.float64),
            torch.full((network.nodes, 1), needs.noise_var, dtype=torch.float64),
        )
        known = unit_recursion(algorithm, network)
        found = level_of(known, near, lr)
        level, local = found.grad_norm_sq, needs.smoothness**2 * found.distance_sq_local
        bounded = not known.fluctuations
    fit = replace(fit, lr=lr, step=step, level=level, level_local=local)
    doubts = [
        ("biased by O(lr)", about.exact),
        ("unstable where the loss is flatter", stable.lower == 0),
        ("nodes take part at random", bounded),
    ]
    if doubt := next((text for text, fine in doubts if not fine), ""):
        return replace(fit, remark=f"{doubt}: no bound" + (f"; {fit.remark}" if fit.remark else ""))
    bound = horizon.error(needs.steps, step)
    return replace(
        fit,
        error=bound,
        transient=horizon.transient,
        speedup=_speedup(bound, needs),
        saturation=horizon.saturation(needs.steps),
    )


def _for(algorithm: Algorithm, mixing: Mixing) -> Mixing:
    """The network that an algorithm asks for: trees are made of the links that there are."""
    if algorithm.about.matrices != "R C" or (mixing.has_pull and mixing.has_push and is_tree_pair(mixing)):
        return mixing
    if mixing.period > 1:
        raise MixingError("Trees need links that are always there; this network varies in time.")
    pull = mixing.pull_graph if mixing.has_pull else mixing.push_graph
    return Mixing.spanning_trees(pull, mixing.push_graph if mixing.has_push else pull)


def _horizon(nodes: int, most: float, needs: Needs) -> Horizon:
    return Horizon(nodes=nodes, smoothness=needs.smoothness, noise_var=needs.noise_var, gap=needs.gap, most=most)


def _speedup(error: float, needs: Needs) -> float:
    """How many times T a single node needs until its bound is as low."""
    one = _horizon(1, 1 / needs.smoothness, needs)
    low, high = 1.0, 1.0
    while one.error(high) > error and high < 1e30:
        high *= 2
    for _ in range(200):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if one.error(middle) > error else (low, middle)
    return high / needs.steps


def _bytes(algorithm: Algorithm, network: Network, needs: Needs) -> float | None:
    """Bytes in a step, or vectors of length d if d is not known."""
    if needs.dim is not None:
        return bytes_per_step(algorithm, network, dim=needs.dim, wire=needs.wire)
    one, two = (bytes_per_step(algorithm, network, dim=dim, wire=1) for dim in (1, 2))
    return None if one is None or two is None else two - one


def _remark(algorithm: Algorithm, network: Network) -> str:
    kind = algorithm.about.matrices
    if kind == "A":
        scale = f"n min pi_A = {network.nodes * float(network.pull_perron.min()):.3g}"
        least = network.least_return
        return f"{scale}; wild start, {least:.0e}" if least is not None and least < WILD else scale
    if kind == "B":
        return f"n min pi_B = {network.nodes * float(network.push_perron.min()):.3g}"
    if kind == "R C":
        return f"trees {network.depth} links deep, down and up"
    if kind == "A B":
        return f"s_A = {network.pull_sum:.3g}, s_B = {network.push_sum:.3g}"
    return ""


def _choice(fits: tuple[Fit, ...]) -> Fit | None:
    """Push-Pull in the paper's order, unless another one's bound is clearly lower; then the lowest. None that starts wildly."""
    working = [fit for fit in fits if fit.works]
    working = [fit for fit in working if fit.error is not None and "wild" not in fit.remark] or working
    if not working:
        return None
    lowest = min(working, key=lambda fit: (fit.error or inf, fit.bytes_per_step or inf))
    first = working[0]
    return lowest if (lowest.error or 0) < BETTER * (first.error or inf) else first


def _limits(mixing: Mixing) -> tuple[Limit, ...]:
    if mixing.nodes > SENSITIVE_UP_TO or mixing.period > 1 or mixing.nodes < 2:
        return ()
    found = []
    sides: list[Side] = [side for side, has in (("pull", mixing.has_pull), ("push", mixing.has_push)) if has]  # type: ignore[misc]
    for side in sides:
        slopes = sensitivity(mixing, side)
        for what in ("rho_2", "s", "c"):
            values = getattr(slopes, what)
            if values is None or not (np.abs(values) > 1e-9).any():  # none, or no derivative
                continue
            source, target, slope = slopes.steepest(what)
            node = int(np.argmax(slopes.of_nodes(what)))
            moved = _moved(mixing, side, source, target, slope) if what == "rho_2" else None
            found.append(Limit(side=side, what=what, source=source, target=target, slope=slope, node=node, moved=moved))
    return tuple(found)


def _moved(mixing: Mixing, side: Side, source: int, target: int, slope: float) -> float:
    """rho_2 if the weight of a link moves by a tenth, or half of itself, in the direction that lowers rho_2."""
    matrix = dense(mixing.pull if side == "pull" else mixing.push)
    weight = matrix[target, source]
    matrix[target, source] += 0.1 if slope < 0 else -min(0.1, weight / 2)
    return decay_rate(matrix / matrix.sum(1 if side == "pull" else 0, keepdims=True))


def _crossover(
    name: str, nodes: int, family: Callable[[int], Mixing], needs: Needs
) -> tuple[int | None, tuple[tuple[int, float], ...]]:
    """Where more nodes of this kind stop helping, among the numbers of nodes that the family has."""
    horizons = [_horizon(1, 1 / needs.smoothness, needs)]
    for size in sorted({2, 4, 8, 9, 16, 25, 32, 36, nodes}):
        if size > EXACT_UP_TO or size == 1:
            continue
        try:
            mixing = _for(ALGORITHMS[name], family(size))
            network = Network(mixing)
            check_matrices(ALGORITHMS[name].about, mixing)
            stable = stable_lr(ALGORITHMS[name], network, needs.smoothness)
        except PerronError:
            continue  # a family need not have a member of every size
        if stable is not None and stable.lower == 0:
            horizons.append(_horizon(size, stable.upper / 2 * ALGORITHMS[name].effective_step(network), needs))
    return crossover(horizons, needs.steps), tuple((one.nodes, one.error(needs.steps)) for one in horizons)

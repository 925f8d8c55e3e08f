"""The adviser: the limits of a network, an algorithm and a step for it, and the performance to expect.

All numbers come from `perron.theory`: stable steps from the linear recursion of the algorithm at the curvature L, floors from its
second moments, horizons from the descent lemma. They are only as accurate as the constants that were given.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf

import numpy as np
import torch

from perron._registry import lookup
from perron.advise.fewer_bytes import words_on_bytes
from perron.advise.records import BETTER, Advice, Assessment, Goal, GradientCost, Limit, Needs, Timing
from perron.advise.seconds import compare, costs_of_a_gradient, words_in_seconds
from perron.advise.words import sentences
from perron.algorithms import ALGORITHMS
from perron.algorithms.base import Algorithm
from perron.algorithms.node import Side
from perron.algorithms.requirements import check_matrices, is_tree_pair
from perron.clock.clock import Clock
from perron.errors import MixingError, PerronError
from perron.monitor.progress import OnProgress
from perron.networks.facts import Network
from perron.networks.mixing import Mixing
from perron.networks.spectral import decay_rate, describe
from perron.simulation.cost import bytes_per_step
from perron.theory import StableRange, stable_lr
from perron.theory.horizon import Horizon, crossover
from perron.theory.levels import Linearization, stationary_level
from perron.theory.matrix_node import dense
from perron.theory.recursion import single_threaded, unit_recursion
from perron.theory.sensitivity import LARGEST as SENSITIVITY_UP_TO
from perron.theory.sensitivity import sensitivity
from perron.theory.time_to_accuracy import CONDITION

CANDIDATES = ("push_pull", "push_pull_pu", "add_opt", "push_diging", "frost", "pull_diag_gt", "stpp")
DOUBLY_STOCHASTIC = ("aug_dgm", "exact_diffusion")  # further candidates where the weights are doubly stochastic
SIZES = (2, 4, 8, 9, 16, 25, 32, 36)  # numbers of nodes that are tried in a family
EXACT_UP_TO = 48  # nodes; beyond, stable steps come from the tested rule
EXACT_WITH_CLOCK = 20  # the same where seconds are compared, which takes most of the time
WILD = 1e-3  # where diag(A^t) falls below this share of its limit, gradients are amplified a thousandfold


@single_threaded()
def advise(
    mixing: Mixing | Network,
    needs: Needs | None = None,
    *,
    algorithms: Sequence[str] | None = None,
    family: Callable[[int], Mixing] | None = None,
    labels: Sequence[str] | None = None,
    clock: Clock | None = None,
    target: float | None = None,
    condition: float = CONDITION,
    noisy: bool = False,
    other_graphs: bool = True,
    progress: bool | OnProgress | None = False,
) -> Advice:
    """Advise on a network.

    Args:
        mixing: the network; its validity was checked when it was made.
        needs: the constants of the problem; by default L = sigma^2 = Delta = 1 and 10,000 steps, so that lr is in units of 1/L.
        algorithms: names from `perron.ALGORITHMS`; by default Push-Pull, push-only, pull-only and trees (and methods for doubly
            stochastic weights where these are).
        family: the network of the same kind with another number of nodes, to find out where more nodes stop helping.
        labels: the names of the nodes; their numbers if None.
        clock: links and machines; with it, algorithms are also compared in seconds (`Advice.times`).
        target, condition, noisy: what seconds are counted to, see `Goal`.
        other_graphs: whether seconds are also compared on other graphs of the clock's links than the given one.
        progress: whether to show a bar while seconds are compared, None for on a terminal; or a function, see `perron.simulate`.

    Example:
        >>> import perron
        >>> mixing = perron.Mixing.random_integer(perron.topologies.exponential(8), seed=0)
        >>> advice = advise(mixing, Needs(smoothness=2.0, noise_var=4.0, steps=50_000))
        >>> advice.chosen.name, round(advice.chosen.speedup, 1)
        ('push_pull', 8.0)
    """
    needs = needs or Needs()
    mixing = mixing.mixing if isinstance(mixing, Network) else mixing
    algorithms = [algorithms] if isinstance(algorithms, str) else algorithms
    if labels is not None and len(labels) != mixing.nodes:
        raise PerronError(f"{mixing.nodes} nodes need as many labels; got {len(labels)}.")
    names = algorithms or CANDIDATES + (DOUBLY_STOCHASTIC if mixing.is_doubly_stochastic else ())
    for name in names:
        if lookup(name, ALGORITHMS, "algorithm").about.family == "gossip":
            raise PerronError(f"{name} averages and minimises nothing; there is no step to advise on.")
    goal = None if clock is None else Goal(target=target, condition=condition, noisy=noisy)
    times: tuple[Timing, ...] = ()
    gradients: tuple[GradientCost, ...] = ()
    if clock is not None and goal is not None:
        times = compare(mixing, needs, clock, goal, algorithms=algorithms, other_graphs=other_graphs, progress=progress)
        gradients = costs_of_a_gradient(mixing, needs, clock)
    exact = mixing.nodes <= (EXACT_UP_TO if clock is None else EXACT_WITH_CLOCK)
    network = Network(mixing)  # shared by all algorithms: its Perron vectors and sums are computed once
    assessments = tuple(_assess(name, network, needs, exact=exact) for name in names)
    chosen = _choice(assessments)
    horizons: list[Horizon] = []
    if chosen is not None and chosen.error is not None and family is not None and mixing.nodes > 1 and exact:
        horizons = _family_horizons(ALGORITHMS[chosen.name], mixing.nodes, family, needs)
    advice = Advice(
        metrics=describe(mixing),
        needs=needs,
        assessments=assessments,
        chosen=chosen,
        limits=_limits(mixing),
        crossover=crossover(horizons, needs.steps) if horizons else None,
        family=tuple((horizon.nodes, horizon.error(needs.steps)) for horizon in horizons),
        words=(),
        goal=goal,
        times=times,
        gradients=gradients,
    )
    words = sentences(advice, mixing, labels or [str(n) for n in range(mixing.nodes)])
    if goal is not None:
        words = [
            line.replace("Use ", "Counted in steps: use ", 1) if line.startswith("Use ") else line for line in words
        ]
        words = [*words_in_seconds(times, goal), *words_on_bytes(gradients), *words]
    return replace(advice, words=tuple(words))


def _assess(name: str, given: Network, needs: Needs, *, exact: bool) -> Assessment:
    """Assess one algorithm, on the network that it needs: the given one, or trees on its links."""
    algorithm = ALGORITHMS[name]
    about = algorithm.about
    result = Assessment(name=name, title=about.title, family=about.family)
    try:
        suited = _suited(algorithm, given.mixing)
        network = given if suited is given.mixing else Network(suited)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the table has the same information
            algorithm.check(network)
    except PerronError as error:
        return replace(result, refusal=str(error))
    if exact:
        stable = stable_lr(algorithm, network, needs.smoothness)
    else:
        stable = StableRange(0.0, 2 * algorithm.default_lr(network, needs.smoothness))
    remark = _remark(algorithm, network)
    sent = _bytes(algorithm, network, needs)
    result = replace(result, stable=stable, exact=exact, bytes_per_step=sent, remark=remark)
    if stable is None:
        return replace(result, refusal="no step is stable on this network")
    factor = algorithm.effective_step(network)
    most = (stable.upper / 2 if stable.lower == 0 else (stable.lower + stable.upper) / 2) * factor
    horizon = _horizon(network.nodes, min(most, 1 / needs.smoothness), needs)
    step = max(horizon.best_step(needs.steps), stable.lower * factor * 1.1)
    lr = step / factor
    level, local, random = step * needs.smoothness * needs.noise_var / (2 * network.nodes), None, False
    if exact:
        zeros = torch.zeros(network.nodes, 1, dtype=torch.float64)
        curvature = torch.tensor([needs.smoothness], dtype=torch.float64)
        unit = unit_recursion(algorithm, network)
        stationary = stationary_level(
            unit, Linearization(curvature, zeros, torch.full_like(zeros, needs.noise_var)), lr
        )
        level, local = stationary.grad_norm_sq, needs.smoothness**2 * stationary.distance_sq_local
        random = bool(unit.fluctuations)
    result = replace(result, lr=lr, step=step, level=level, level_local=local)
    doubts = {
        "biased by O(lr)": not about.exact,
        "unstable where the loss is flatter": stable.lower > 0,
        "nodes take part at random": random,
    }
    if doubt := next((text for text, applies in doubts.items() if applies), ""):
        return replace(result, remark=f"{doubt}: no bound" + (f"; {remark}" if remark else ""))
    bound = horizon.error(needs.steps, step)
    return replace(
        result,
        error=bound,
        transient=horizon.transient,
        speedup=_speedup(bound, needs),
        saturation=horizon.saturation(needs.steps),
    )


def _suited(algorithm: Algorithm, mixing: Mixing) -> Mixing:
    """The network that an algorithm needs: trees are made from the existing links."""
    if algorithm.about.matrices != "R C" or (mixing.has_pull and mixing.has_push and is_tree_pair(mixing)):
        return mixing
    if mixing.varies:
        raise MixingError("Trees need links that are always there; this network varies in time.")
    pull = mixing.pull_graph if mixing.has_pull else mixing.push_graph
    return Mixing.spanning_trees(pull, mixing.push_graph if mixing.has_push else pull)


def _horizon(nodes: int, most: float, needs: Needs) -> Horizon:
    return Horizon(nodes=nodes, smoothness=needs.smoothness, noise_var=needs.noise_var, gap=needs.gap, most=most)


def _speedup(error: float, needs: Needs) -> float:
    """The multiple of T that a single node needs for the same bound."""
    single = _horizon(1, 1 / needs.smoothness, needs)
    low, high = 1.0, 1.0
    while single.error(high) > error and high < 1e30:
        high *= 2
    for _ in range(200):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if single.error(middle) > error else (low, middle)
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
    return f"s_A = {network.pull_sum:.3g}, s_B = {network.push_sum:.3g}" if kind == "A B" else ""


def _choice(assessments: tuple[Assessment, ...]) -> Assessment | None:
    """The first algorithm, unless the bound of another is clearly lower; then the lowest. None with a wild start."""
    working = [fit for fit in assessments if fit.works]
    working = [fit for fit in working if fit.error is not None and "wild" not in fit.remark] or working
    if not working:
        return None
    lowest = min(working, key=lambda fit: (fit.error or inf, fit.bytes_per_step or inf))
    return lowest if (lowest.error or 0) < BETTER * (working[0].error or inf) else working[0]


def _limits(mixing: Mixing) -> tuple[Limit, ...]:
    if mixing.nodes > SENSITIVITY_UP_TO or mixing.varies or mixing.nodes < 2:
        return ()
    limits = []
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
            limits.append(
                Limit(side=side, what=what, source=source, target=target, slope=slope, node=node, moved=moved)
            )
    return tuple(limits)


def _moved(mixing: Mixing, side: Side, source: int, target: int, slope: float) -> float:
    """rho_2 after the weight of a link is changed by a tenth, or half of itself, in the direction that lowers rho_2."""
    matrix = dense(mixing.pull if side == "pull" else mixing.push)
    matrix[target, source] += 0.1 if slope < 0 else -min(0.1, matrix[target, source] / 2)
    return decay_rate(matrix / matrix.sum(1 if side == "pull" else 0, keepdims=True))


def _family_horizons(algorithm: Algorithm, nodes: int, family: Callable[[int], Mixing], needs: Needs) -> list[Horizon]:
    """The horizons of one node and of the members of a family, where the algorithm is stable on them."""
    horizons = [_horizon(1, 1 / needs.smoothness, needs)]
    for size in sorted({*SIZES, nodes}):
        if size > EXACT_UP_TO:
            continue
        try:
            network = Network(_suited(algorithm, family(size)))
            check_matrices(algorithm.about, network.mixing)
            stable = stable_lr(algorithm, network, needs.smoothness)
        except PerronError:
            continue  # a family need not have a member of every size
        if stable is not None and stable.lower == 0:
            horizons.append(_horizon(size, stable.upper / 2 * algorithm.effective_step(network), needs))
    return horizons

"""An adviser: what a network is good for, what limits it, which algorithm and which step, and what to expect of it.

Every number has its source in `perron.theory`: stable steps from the linear recursion of the algorithm at the curvature L,
floors from its second moments, horizons from the descent lemma. They are answers for the constants that were given, and only as
good as these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from math import ceil, inf, isfinite
from typing import Any

import numpy as np
import torch

from perron.algorithm import Algorithm, advance
from perron.algorithms import ALGORITHMS
from perron.errors import PerronError
from perron.mixing import Mixing
from perron.network import Network
from perron.node import Counting, Side
from perron.spectral import NetworkMetrics, describe
from perron.theory import Stable, stable_lr
from perron.theory.horizon import Horizon, crossover
from perron.theory.levels import Around, level_of
from perron.theory.recursion import recursion
from perron.theory.sensitivity import LARGEST as SENSITIVE_UP_TO
from perron.theory.sensitivity import sensitivity
from perron.theory.stability import matrix_node

CANDIDATES = ("push_pull", "push_pull_pu", "add_opt", "push_diging", "frost", "pull_diag_gt", "stpp")
DOUBLY = ("aug_dgm", "exact_diffusion")  # further ones where the weights are doubly stochastic
EXACT_UP_TO = 48  # nodes; beyond, stable steps come from the tested rule
BETTER = 0.8  # what the error of another algorithm must be times that of Push-Pull for us to prefer it


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What is to be trained: the constants that advice depends on.

    Attributes:
        smoothness: L, the largest curvature of a node's loss.
        noise_var: sigma^2, E |noise|^2 of one node's gradient.
        gap: Delta = f(x_0) - f*.
        steps: T, the budget.
        dim: d, the length of the model, for bytes; None if unknown.
        wire: bytes of a number on the wire.
    """

    smoothness: float = 1.0
    noise_var: float = 1.0
    gap: float = 1.0
    steps: int = 10_000
    dim: int | None = None
    wire: int = 4

    def __post_init__(self) -> None:
        for name in ("smoothness", "gap", "steps"):
            value = getattr(self, name)
            if not (value > 0 and isfinite(value)):
                raise PerronError(f"{name} must be a positive number; got {value}.")
        if not (self.noise_var >= 0 and isfinite(self.noise_var)):
            raise PerronError(f"The noise must not be negative; got {self.noise_var}.")
        if self.dim is not None and self.dim < 1:
            raise PerronError(f"A model has at least one number; got dim={self.dim}.")


@dataclass(frozen=True, kw_only=True)
class Fit:
    """How an algorithm would do on the network; numbers are None where it cannot be used or is not stable.

    Attributes:
        name, title, family: which.
        refusal: why it cannot be used here; empty if it can.
        stable: the steps lr that are stable at the curvature L; ``exact`` says whether from the recursion or from a rule.
        lr, step: the recommended lr, and the effective step that it means.
        level: the predicted stationary E |grad f(x-hat)|^2 at that lr, if all curvature is L.
        level_local: the predicted stationary mean_i E |grad f(x_i)|^2, of the nodes' own models.
        error: the bound on the mean of E |grad f|^2 over T steps.
        transient: T*, the steps from which on the network is not felt.
        speedup: how many times more steps a single node would need for the same bound.
        saturation: n*, the number of nodes from which on more of them do not help much within T steps, if the cap stays the same.
        bytes_per_step: that travel over all links in a step; in vectors of length d if d is not known.
        links: over how many links.
        remark: what limits its step.
    """

    name: str
    title: str
    family: str
    refusal: str = ""
    stable: Stable | None = None
    exact: bool = True
    lr: float | None = None
    step: float | None = None
    level: float | None = None
    level_local: float | None = None
    error: float | None = None
    transient: float | None = None
    speedup: float | None = None
    saturation: float | None = None
    bytes_per_step: float | None = None
    links: int | None = None
    remark: str = ""

    @property
    def works(self) -> bool:
        """Whether there is a step to recommend."""
        return self.lr is not None


@dataclass(frozen=True, kw_only=True)
class Limit:
    """The weight that matters most to a number: moving it changes ``what`` fastest.

    Attributes:
        side: of which matrix.
        what: rho_2, s or c.
        source, target: the edge.
        slope: by how much ``what`` changes for each unit of weight that the edge is given, its row or column normalised again.
        node: whose choice of weights matters most to it.
    """

    side: Side
    what: str
    source: int
    target: int
    slope: float
    node: int


@dataclass(frozen=True, kw_only=True)
class Advice:
    """All that there is to say; ``print`` it, or `to_dict` for JSON.

    Attributes:
        metrics: of the network.
        needs: what was asked for.
        fits: the algorithms looked at.
        chosen: the recommended one; None if none works.
        limits: what limits the network.
        crossover: the number of nodes of this family from which on more do not help within T steps; None if not known or none.
        family: the numbers of nodes that were looked at for it, with the bound on the error for each.
        words: the answer in sentences.
    """

    metrics: NetworkMetrics
    needs: Needs
    fits: tuple[Fit, ...]
    chosen: Fit | None
    limits: tuple[Limit, ...]
    crossover: int | None
    family: tuple[tuple[int, float], ...]
    words: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON: infinite values become None."""
        found = {
            "network": self.metrics.to_dict(),
            "needs": asdict(self.needs),
            "algorithms": [asdict(fit) | {"stable": fit.stable and fit.stable._asdict()} for fit in self.fits],
            "chosen": self.chosen and self.chosen.name,
            "limits": [asdict(limit) for limit in self.limits],
            "crossover": self.crossover,
            "family": [{"nodes": nodes, "error": error} for nodes, error in self.family],
            "words": list(self.words),
        }
        finite: dict[str, Any] = _finite(found)
        return finite

    def __str__(self) -> str:
        head = f"{'':22}{'stable lr':>12}{'lr':>11}{'floor':>11}{'speedup':>9}{'bytes/step':>12}"
        lines = [f"{self.metrics.name or 'network'}: {self.metrics.nodes} nodes", head]
        for fit in self.fits:
            if not fit.works:
                lines.append(f"{fit.name:22}{fit.refusal or 'no stable step'}")
                continue
            upper = fit.stable.upper if fit.stable else inf
            lines.append(
                f"{fit.name:22}{upper:12.4g}{fit.lr:11.4g}{fit.level:11.3g}{fit.speedup:9.3g}{fit.bytes_per_step:12.4g}"
            )
        return "\n".join([*lines, *self.words])


def advise(
    mixing: Mixing,
    needs: Needs | None = None,
    *,
    algorithms: Sequence[str] | None = None,
    family: Callable[[int], Mixing] | None = None,
) -> Advice:
    """Advice on a network.

    Args:
        mixing: the network; that it is valid was checked when it was made.
        needs: what is to be trained; by default L = sigma^2 = Delta = 1 and 10,000 steps, so that lr is in units of 1/L.
        algorithms: names from `perron.ALGORITHMS`; by default Push-Pull, push-only, pull-only and trees (and methods for doubly
            stochastic weights where these are).
        family: the network of the same kind with another number of nodes, to find out where more nodes stop helping.

    Example:
        >>> import perron
        >>> mixing = perron.Mixing.random_integer(perron.topologies.exponential(8), seed=0)
        >>> advice = advise(mixing, Needs(smoothness=2.0, noise_var=4.0, steps=50_000))
        >>> advice.chosen.name, round(advice.chosen.speedup, 1)
        ('push_pull', 8.0)
    """
    needs = needs or Needs()
    metrics = describe(mixing)
    asked = tuple(algorithms) if algorithms else CANDIDATES + (DOUBLY if mixing.is_doubly_stochastic else ())
    for name in asked:
        if name not in ALGORITHMS:
            raise PerronError(f"There is no algorithm {name!r}; `perron algorithms` lists them all.")
        if ALGORITHMS[name].about.family == "gossip":
            raise PerronError(f"{name} averages and minimises nothing; there is no step to advise on.")
    fits = tuple(_fit(name, mixing, needs) for name in asked)
    chosen = _choice(fits)
    limits = _limits(mixing)
    sizes: tuple[tuple[int, float], ...] = ()
    where = None
    if chosen is not None and family is not None:
        where, sizes = _crossover(chosen.name, mixing.nodes, family, needs)
    advice = Advice(
        metrics=metrics, needs=needs, fits=fits, chosen=chosen, limits=limits, crossover=where, family=sizes, words=()
    )
    return replace(advice, words=tuple(_words(advice, mixing)))


def _fit(name: str, given: Mixing, needs: Needs) -> Fit:
    """One algorithm on the network it needs."""
    algorithm = ALGORITHMS[name]
    about = algorithm.about
    nobody = Fit(name=name, title=about.title, family=about.family)
    try:
        mixing = _for(algorithm, given)
        network = Network(mixing)
        algorithm.check(network)
    except PerronError as error:
        return replace(nobody, refusal=str(error))
    exact = network.nodes <= EXACT_UP_TO
    if exact:
        stable = stable_lr(algorithm, network, needs.smoothness)
    else:
        stable = Stable(0.0, 2 * algorithm.default_lr(network, needs.smoothness))
    travels, links = _bytes(algorithm, network, needs)
    fit = replace(nobody, stable=stable, exact=exact, bytes_per_step=travels, links=links)
    fit = replace(fit, remark=_remark(algorithm, network))
    if stable is None:
        return replace(fit, refusal="no step is stable on this network")
    factor = algorithm.effective_step(network)
    most = (stable.upper / 2 if stable.lower == 0 else (stable.lower + stable.upper) / 2) * factor
    horizon = _horizon(network.nodes, most, needs)
    step = max(horizon.best_step(needs.steps), stable.lower * factor * 1.1)
    lr = step / factor
    level = local = step * needs.smoothness * needs.noise_var / (2 * network.nodes)
    if exact:
        near = Around(
            torch.tensor([needs.smoothness], dtype=torch.float64),
            torch.zeros(network.nodes, 1, dtype=torch.float64),
            torch.full((network.nodes, 1), needs.noise_var, dtype=torch.float64),
        )
        found = level_of(recursion(algorithm, network, lr), near)
        level, local = found.grad_norm_sq, needs.smoothness**2 * found.distance_sq_local
    bound = horizon.error(needs.steps, step)
    return replace(
        fit, lr=lr, step=step, level=level, level_local=local, error=bound, transient=horizon.transient,
        speedup=_speedup(bound, needs), saturation=horizon.saturation(needs.steps),
    )  # fmt: skip


def _for(algorithm: Algorithm, mixing: Mixing) -> Mixing:
    """The network that an algorithm asks for: trees are made of the links that there are."""
    if algorithm.about.matrices != "R C" or (mixing.has_pull and mixing.has_push and _is_tree(mixing)):
        return mixing
    pull = mixing.pull_graph if mixing.has_pull else mixing.push_graph
    return Mixing.spanning_trees(pull, mixing.push_graph if mixing.has_push else pull)


def _is_tree(mixing: Mixing) -> bool:
    return len(mixing.pull_graph.edges) == len(mixing.push_graph.edges) == mixing.nodes - 1


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


def _bytes(algorithm: Algorithm, network: Network, needs: Needs) -> tuple[float, int]:
    """Bytes that travel over all links in a step, counted in a step of the algorithm; and over how many links."""
    dims = (network.nodes + 5, network.nodes + 6)  # what is sent is affine in d; no other vector has these lengths
    edges: dict[Side, int] = {
        "pull": len(network.mixing.pull_graph.edges) if network.mixing.has_pull else 0,
        "push": len(network.mixing.push_graph.edges) if network.mixing.has_push else 0,
    }
    totals = []
    for d in dims:
        node = Counting(matrix_node(network), wire=needs.wire)
        state = algorithm.init(torch.zeros(network.nodes, d, dtype=torch.float64), node)
        node.bytes = {"pull": 0, "push": 0}
        advance(algorithm, state, node, 0.0, torch.zeros_like)
        totals.append(sum(node.bytes[side] * edges[side] for side in edges))
    each = totals[1] - totals[0]
    if needs.dim is None:
        return each / needs.wire, sum(edges.values())
    return totals[0] + each * (needs.dim - dims[0]), sum(edges.values())


def _remark(algorithm: Algorithm, network: Network) -> str:
    kind = algorithm.about.matrices
    if kind == "A":
        return f"n min pi_A = {network.nodes * float(network.pull_perron.min()):.3g}"
    if kind == "B":
        return f"n min pi_B = {network.nodes * float(network.push_perron.min()):.3g}"
    if kind == "R C":
        return f"trees {network.depth} links deep, down and up"
    if kind == "A B":
        return f"s_A = {network.pull_sum:.3g}, s_B = {network.push_sum:.3g}"
    return ""


def _choice(fits: tuple[Fit, ...]) -> Fit | None:
    """Push-Pull in the paper's order, unless another one's bound is clearly lower; then the lowest."""
    working = [fit for fit in fits if fit.works]
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
            if values is None or not np.nanmax(np.abs(values)) > 1e-9:
                continue
            source, target, slope = slopes.steepest(what)
            node = int(np.argmax(slopes.of_nodes(what)))
            found.append(Limit(side=side, what=what, source=source, target=target, slope=slope, node=node))
    return tuple(found)


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
            ALGORITHMS[name].check(network)
            stable = stable_lr(ALGORITHMS[name], network, needs.smoothness)
        except PerronError:
            continue  # a family need not have a member of every size
        if stable is not None and stable.lower == 0:
            horizons.append(_horizon(size, stable.upper / 2 * ALGORITHMS[name].effective_step(network), needs))
    return crossover(horizons, needs.steps), tuple((one.nodes, one.error(needs.steps)) for one in horizons)


def _words(advice: Advice, mixing: Mixing) -> list[str]:
    """The answer in sentences."""
    said = [_validity(mixing), *advice.metrics.advice()]
    for limit in advice.limits:
        if limit.what == "rho_2":
            graph = mixing.pull_graph if limit.side == "pull" else mixing.push_graph
            metrics = getattr(advice.metrics, limit.side)
            where = (
                f"what node {graph.label(limit.source)} keeps to itself"
                if limit.source == limit.target
                else f"the link {graph.label(limit.source)} -> {graph.label(limit.target)}"
            )
            which = "More" if limit.slope < 0 else "Less"
            said.append(
                f"What limits {limit.side} (rho_2 = {metrics.rho_2:.4g}): {where}. "
                f"{which} weight there lowers rho_2 fastest, by {abs(limit.slope) / 10:.2g} for a tenth; of all nodes, the "
                f"weights that node {graph.label(limit.node)} chooses matter most."
            )
    chosen = advice.chosen
    if chosen is None:
        return [*said, "None of the algorithms looked at works on this network; see why in the table."]
    needs = advice.needs
    said.append(_reason(advice, chosen))
    limits_text = "" if chosen.exact else " (from the tested rule: the network is too large for the exact recursion)"
    upper = chosen.stable.upper if chosen.stable else inf
    said.append(
        f"Take lr = {chosen.lr:.3g}: stable up to {upper:.3g} at curvature L = {needs.smoothness:g}{limits_text}; "
        f"effective step {chosen.step:.3g}."
    )
    if needs.noise_var == 0:
        said.append("Without noise there is nothing to average: more nodes do not make it faster.")
        return said
    said.append(
        f"Predicted floor of E|grad f(x-hat)|^2: {chosen.level:.3g}; of the nodes' own models: {chosen.level_local:.3g}."
    )
    n, steps = advice.metrics.nodes, needs.steps
    transient = chosen.transient or inf
    if transient <= steps:
        said.append(
            f"Within {steps:,} steps the network is not felt: linear speedup begins after about {ceil(transient):,}, and "
            f"{n} nodes do what one does in {chosen.speedup:.3g} times as many steps."
        )
    else:
        said.append(
            f"{steps:,} steps are too few for this network: it allows no larger step, and linear speedup begins only after about "
            f"{ceil(transient):,}. Until then {n} nodes do what one does in {chosen.speedup:.3g} times as many steps."
        )
    saturation = chosen.saturation or inf
    if advice.crossover is not None:
        said.append(
            f"In this family of networks {advice.crossover} nodes do best within {steps:,} steps; more are slower."
        )
    elif advice.family:
        said.append(
            f"In this family of networks more nodes help within {steps:,} steps, up to {advice.family[-1][0]} at least."
        )
    if saturation < 1e9:
        said.append(
            f"At this cap of the step more than about {max(1, round(saturation)):,} nodes would gain little in {steps:,} steps."
        )
    return said


def _validity(mixing: Mixing) -> str:
    kind = "doubly stochastic" if mixing.is_doubly_stochastic else "row-stochastic pull and column-stochastic push"
    if not (mixing.has_pull and mixing.has_push):
        kind = "row-stochastic pull only" if mixing.has_pull else "column-stochastic push only"
    connected = "strongly connected" if mixing.is_strongly_connected else "with a common root, not strongly connected"
    return f"The network is valid: {kind}, {connected}."


def _reason(advice: Advice, chosen: Fit) -> str:
    """Why this algorithm."""
    others = [fit for fit in advice.fits if fit.works and fit.family != chosen.family and fit.step]
    refused = [fit for fit in advice.fits if not fit.works]
    text = f"Use {chosen.name} ({chosen.title})"
    parts = []
    best: dict[str, Fit] = {}
    for fit in others:
        if fit.family not in best or (fit.error or inf) < (best[fit.family].error or inf):
            best[fit.family] = fit
    for family, fit in best.items():
        ratio = (
            (chosen.stable.upper * _factor(chosen)) / (fit.stable.upper * _factor(fit))
            if chosen.stable and fit.stable
            else 1
        )
        if ratio > 1.25:
            parts.append(f"it bears steps {ratio:.2g} times those of {family} ({fit.name}, {fit.remark})")
        elif (fit.bytes_per_step or 0) < 0.8 * (chosen.bytes_per_step or 0):
            share = (fit.bytes_per_step or 0) / (chosen.bytes_per_step or 1)
            parts.append(f"{family} ({fit.name}) would send {share:.2g} times the bytes for {_compared(fit, chosen)}")
    if refused:
        parts.append("not possible here: " + ", ".join(fit.name for fit in refused))
    return text + (": " + "; ".join(parts) + "." if parts else ".")


def _factor(fit: Fit) -> float:
    return (fit.step or 0.0) / (fit.lr or 1.0)


def _compared(fit: Fit, chosen: Fit) -> str:
    ratio = (fit.error or inf) / (chosen.error or inf)
    return "the same bound" if 0.95 < ratio < 1.05 else f"a bound {ratio:.2g} times as high"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not isfinite(value) else value

"""Advice in sentences."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, inf

from perron.advise.records import BETTER, Advice, Fit
from perron.algorithms import ALGORITHMS
from perron.networks.mixing import Mixing


def sentences(advice: Advice, mixing: Mixing, labels: Sequence[str]) -> list[str]:
    """The answer in sentences."""
    said = [_validity(mixing), *advice.metrics.advice(), *_limits(advice, labels)]
    if wild := [fit for fit in advice.fits if "wild start" in fit.remark]:
        said.append(
            f"{', '.join(fit.name for fit in wild)}: wild start. Gradients are divided by diag(A^t), which here falls to "
            f"{wild[0].remark.rpartition(' ')[2]} of its limit before it settles: errors grow by as much first. Give "
            "self-loops more weight."
        )
    chosen = advice.chosen
    if chosen is None:
        return [*said, "None of the algorithms looked at works on this network; see why in the table."]
    needs = advice.needs
    said.append(_reason(advice, chosen))
    stable = f"stable up to {chosen.stable.upper:.3g} at curvature L = {needs.smoothness:g}" if chosen.stable else ""
    if not chosen.exact:
        stable = "the tested default rule, as the network is too large for the exact recursion"
    said.append(f"Take lr = {chosen.lr:.3g}: {stable}; effective step {chosen.step:.3g}.")
    n, steps = advice.metrics.nodes, needs.steps
    if needs.noise_var == 0:
        said.append("Without noise there is nothing to average: more nodes do not make it faster.")
        return said
    local = "" if chosen.level_local is None else f"; of the nodes' own models: {chosen.level_local:.3g}"
    said.append(f"Predicted floor of E|grad f(x-hat)|^2: {chosen.level:.3g}{local}.")
    if n == 1 or chosen.error is None or chosen.transient is None or chosen.speedup is None:
        return said
    begins = f"{ceil(chosen.transient):,}" if chosen.transient < 1e15 else f"{chosen.transient:.1g}"
    if chosen.transient <= steps:
        said.append(
            f"Within {steps:,} steps the network is not felt: linear speedup begins after about {begins}, and "
            f"{n} nodes do what one does in {chosen.speedup:.3g} times as many steps."
        )
    else:
        said.append(
            f"{steps:,} steps are too few for this network: it allows no larger step, and linear speedup begins only after about "
            f"{begins}. Until then {n} nodes do what one does in {chosen.speedup:.3g} times as many steps."
        )
    if advice.crossover is not None:
        said.append(
            f"In this family of networks {advice.crossover} nodes do best within {steps:,} steps; more are slower."
        )
    elif advice.family:
        said.append(
            f"In this family of networks more nodes help within {steps:,} steps, up to {advice.family[-1][0]} at least."
        )
    elif chosen.saturation is not None and 1 <= chosen.saturation < 1e9:
        said.append(
            f"With the step capped as here, even many more nodes would not get below half the error of "
            f"{round(chosen.saturation):,} in {steps:,} steps."
        )
    if mixing.period > 1:
        said.append(
            "The network varies in time: the floor is exact, at the end of a period; speedup and horizon assume that x-hat "
            "follows SGD, which it then does roughly only."
        )
    return said


def _limits(advice: Advice, labels: Sequence[str]) -> list[str]:
    """Which links limit rho_2."""
    said = []
    for limit in advice.limits:
        if limit.what == "rho_2":
            metrics = getattr(advice.metrics, limit.side)
            where = (
                f"what node {labels[limit.source]} keeps to itself"
                if limit.source == limit.target
                else f"the link {labels[limit.source]} -> {labels[limit.target]}"
            )
            amount = "a tenth more" if limit.slope < 0 else "a tenth (or half of it) less"
            gain = limit.moved is not None and limit.moved < metrics.rho_2
            said.append(
                f"What limits {limit.side} (rho_2 = {metrics.rho_2:.4g}): {where}. "
                + (f"Given {amount} weight, rho_2 is {limit.moved:.4g}. " if gain else "")
                + f"Of all nodes, the weights that node {labels[limit.node]} chooses matter most."
            )
    said += [
        f"What limits {side} (rho_2 = {metrics.rho_2:.4g}): several modes are equally slow, so no single link does."
        for side in ("pull", "push")
        if (metrics := getattr(advice.metrics, side)) is not None
        and metrics.rho_2 > 0
        and advice.limits
        and not any(limit.side == side and limit.what == "rho_2" for limit in advice.limits)
    ]
    return said


def _validity(mixing: Mixing) -> str:
    kind = "doubly stochastic" if mixing.is_doubly_stochastic else "row-stochastic pull and column-stochastic push"
    if not (mixing.has_pull and mixing.has_push):
        kind = "row-stochastic pull only" if mixing.has_pull else "column-stochastic push only"
    connected = "strongly connected" if mixing.is_strongly_connected else "with a common root, not strongly connected"
    return f"The network is valid: {kind}, {connected}."


def _reason(advice: Advice, chosen: Fit) -> str:
    """Why this algorithm."""
    text = f"Use {chosen.name} ({chosen.title})"
    parts = []
    best: dict[str, Fit] = {}
    for fit in sorted(
        advice.fits, key=lambda one: (one.error or inf, -_bears(one))
    ):  # equal bounds: the largest steps first
        if fit.works and fit.error is not None and fit.family != chosen.family:
            best.setdefault(fit.family, fit)
    overlap = ALGORITHMS[chosen.name].about.overlap
    if best and min(fit.error or inf for fit in best.values()) > BETTER * (chosen.error or inf):
        hidden = "" if overlap == "-" else f", and its messages ({overlap}) travel while the gradient is computed"
        parts.append(f"no other has a clearly lower bound{hidden}")
    for family, fit in best.items():
        ratio = (fit.error or inf) / (chosen.error or inf)
        share = (fit.bytes_per_step or inf) / (chosen.bytes_per_step or inf)
        why = f", {fit.remark}" if fit.remark else ""
        if ratio > 1.05:
            parts.append(
                f"{family} has a bound {ratio:.2g} times as high, it bears {_bears(fit) / _bears(chosen):.2g} times the step "
                f"({fit.name}{why})"
            )
        elif share < 0.8:
            parts.append(f"{family} ({fit.name}) would send {share:.2g} times the bytes for the same bound")
        else:
            parts.append(f"{family} ({fit.name}) has the same bound")
    if unbounded := [fit.name for fit in advice.fits if fit.works and fit.error is None and fit is not chosen]:
        parts.append(f"without a bound to compare: {', '.join(unbounded)}")
    if refused := [fit.name for fit in advice.fits if not fit.works]:
        parts.append(f"not possible here: {', '.join(refused)}")
    return text + (": " + "; ".join(parts) + "." if parts else ".")


def _bears(fit: Fit) -> float:
    """The largest stable effective step."""
    return fit.stable.upper * (fit.step or 0.0) / (fit.lr or 1.0) if fit.stable else 0.0

"""Advice in sentences."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, inf

from perron.advise.records import Advice, Fit
from perron.mixing import Mixing


def sentences(advice: Advice, mixing: Mixing, labels: Sequence[str]) -> list[str]:
    """The answer in sentences."""
    said = [_validity(mixing), *advice.metrics.advice()]
    for limit in advice.limits:
        if limit.what == "rho_2":
            metrics = getattr(advice.metrics, limit.side)
            where = (
                f"what node {labels[limit.source]} keeps to itself"
                if limit.source == limit.target
                else f"the link {labels[limit.source]} -> {labels[limit.target]}"
            )
            which = "More" if limit.slope < 0 else "Less"
            said.append(
                f"What limits {limit.side} (rho_2 = {metrics.rho_2:.4g}): {where}. "
                f"{which} weight there lowers rho_2 fastest, by {abs(limit.slope) / 10:.2g} for a tenth; of all nodes, the "
                f"weights that node {labels[limit.node]} chooses matter most."
            )
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

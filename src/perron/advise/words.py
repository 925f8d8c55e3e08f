"""Advice in sentences."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, inf

from perron.advise.records import BETTER, Advice, Assessment
from perron.algorithms import ALGORITHMS
from perron.networks.mixing import Mixing
from perron.simulation.cost import measure_traits


def sentences(advice: Advice, mixing: Mixing, labels: Sequence[str]) -> list[str]:
    """Return the advice in sentences."""
    named = None if list(labels) == [str(node) for node in range(len(labels))] else labels
    lines = [_validity(mixing), *advice.metrics.advice(named), *_limits(advice, labels)]
    if wild := [fit for fit in advice.assessments if "wild start" in fit.remark]:
        lines.append(
            f"{', '.join(fit.name for fit in wild)}: wild start. Gradients are divided by diag(A^t), which on this network falls "
            f"to {wild[0].remark.rpartition(' ')[2]} of its limit before it converges: errors first grow by the inverse. Give "
            "self-loops more weight."
        )
    chosen = advice.chosen
    if chosen is None:
        return [*lines, "None of the algorithms considered works on this network; the table says why."]
    stable = (
        f"stable up to {chosen.stable.upper:.3g} at curvature L = {advice.needs.smoothness:g}" if chosen.stable else ""
    )
    if not chosen.exact:
        stable = "the tested default rule, as the network is too large for the exact recursion"
    lines += [_reason(advice, chosen), f"Take lr = {chosen.lr:.3g}: {stable}; effective step {chosen.step:.3g}."]
    if advice.needs.noise_var == 0:
        return [*lines, "Without noise there is nothing to average: more nodes do not speed up convergence."]
    local = "" if chosen.level_local is None else f"; of the nodes' own models: {chosen.level_local:.3g}"
    lines.append(f"Predicted floor of E|grad f(x-hat)|^2: {chosen.level:.3g}{local}.")
    if advice.metrics.nodes > 1 and chosen.error is not None:
        lines += _expectation(advice, chosen, varying=mixing.varies)
    return lines


def _expectation(advice: Advice, chosen: Assessment, *, varying: bool) -> list[str]:
    """The speedup, and the number of nodes up to which it grows."""
    n, steps = advice.metrics.nodes, advice.needs.steps
    transient, speedup = chosen.transient or inf, chosen.speedup or 0.0
    begins = f"{ceil(transient):,}" if transient < 1e15 else f"{transient:.1g}"
    equivalent = f"{n} nodes do what one does in {speedup:.3g} times as many steps."
    if transient <= steps:
        lines = [
            f"Within {steps:,} steps the network is no bottleneck: linear speedup begins after about {begins}, and {equivalent}"
        ]
    else:
        lines = [
            f"{steps:,} steps are too few for this network: it limits the step, and linear speedup begins only after about "
            f"{begins}. Until then {equivalent}"
        ]
    if advice.crossover is not None:
        lines.append(
            f"In this family of networks {advice.crossover} nodes do best within {steps:,} steps; more are slower."
        )
    elif advice.family:
        lines.append(
            f"In this family of networks more nodes help within {steps:,} steps, up to {advice.family[-1][0]} at least."
        )
    elif chosen.saturation is not None and 1 <= chosen.saturation < 1e9:
        lines.append(
            f"With the same limit on the step, even many more nodes would not reach less than half the error of "
            f"{round(chosen.saturation):,} nodes in {steps:,} steps."
        )
    if varying:
        lines.append(
            "The network varies in time: the floor is exact, at the end of a period; speedup and horizon assume that x-hat "
            "follows SGD, which then holds only approximately."
        )
    return lines


def _limits(advice: Advice, labels: Sequence[str]) -> list[str]:
    """The links that limit rho_2."""
    lines = []
    for side in ("pull", "push"):
        metrics = getattr(advice.metrics, side)
        if metrics is None or not advice.limits:
            continue
        head = f"What limits {side} (rho_2 = {metrics.rho_2:.4g}): "
        limit = next((fit for fit in advice.limits if fit.side == side and fit.what == "rho_2"), None)
        if limit is None:
            if metrics.rho_2 > 0:
                lines.append(f"{head}several modes are equally slow, so no single link does.")
            continue
        source, target = labels[limit.source], labels[limit.target]
        where = f"the self-loop of node {source}" if limit.source == limit.target else f"the link {source} -> {target}"
        amount = "a tenth more" if limit.slope < 0 else "a tenth (or half of it) less"
        gain = limit.moved is not None and limit.moved < metrics.rho_2
        lines.append(
            f"{head}{where}. "
            + (f"Given {amount} weight, rho_2 is {limit.moved:.4g}. " if gain else "")
            + f"Of all nodes, the weights that node {labels[limit.node]} chooses matter most."
        )
    return lines


def _validity(mixing: Mixing) -> str:
    kind = "doubly stochastic" if mixing.is_doubly_stochastic else "row-stochastic pull and column-stochastic push"
    if not (mixing.has_pull and mixing.has_push):
        kind = "row-stochastic pull only" if mixing.has_pull else "column-stochastic push only"
    connected = "strongly connected" if mixing.is_strongly_connected else "with a common root, not strongly connected"
    return f"The network is valid: {kind}, {connected}."


def _reason(advice: Advice, chosen: Assessment) -> str:
    """Why this algorithm."""
    best: dict[str, Assessment] = {}  # of each other family; of equal bounds, that with the largest steps
    for fit in sorted(advice.assessments, key=lambda fit: (fit.error or inf, -_largest_step(fit))):
        if fit.works and fit.error is not None and fit.family != chosen.family:
            best.setdefault(fit.family, fit)
    parts = []
    overlap = measure_traits(ALGORITHMS[chosen.name]).overlap
    if best and min(fit.error or inf for fit in best.values()) > BETTER * (chosen.error or inf):
        hidden = "" if overlap == "-" else f", and its messages ({overlap}) travel while the gradient is computed"
        parts.append(f"no other has a clearly lower bound{hidden}")
    for family, fit in best.items():
        ratio = (fit.error or inf) / (chosen.error or inf)
        share = (fit.bytes_per_step or inf) / (chosen.bytes_per_step or inf)
        remark = f", {fit.remark}" if fit.remark else ""
        if ratio > 1.05:
            parts.append(
                f"{family} has a bound {ratio:.2g} times as high, as it allows {_largest_step(fit) / _largest_step(chosen):.2g} "
                f"times the step ({fit.name}{remark})"
            )
        elif share < 0.8:
            parts.append(f"{family} ({fit.name}) would send {share:.2g} times the bytes for the same bound")
        else:
            parts.append(f"{family} ({fit.name}) has the same bound")
    if unbounded := [fit.name for fit in advice.assessments if fit.works and fit.error is None and fit is not chosen]:
        parts.append(f"without a bound to compare: {', '.join(unbounded)}")
    if refused := [fit.name for fit in advice.assessments if not fit.works]:
        parts.append(f"not possible here: {', '.join(refused)}")
    return f"Use {chosen.name} ({chosen.title})" + (": " + "; ".join(parts) + "." if parts else ".")


def _largest_step(fit: Assessment) -> float:
    """The largest stable effective step."""
    return fit.stable.upper * (fit.step or 0.0) / (fit.lr or 1.0) if fit.stable else 0.0

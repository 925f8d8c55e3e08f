"""Algorithms and graphs compared in seconds: steps to an accuracy times the seconds of a step, on given links.

All candidates get the same effort: every graph of `perron.clock.candidates` with every algorithm that can use it, at its own best
step. No kind of method is preferred; where links are alike in both directions, undirected methods that send one vector are
usually fastest, and where one direction is several times slower, directed ones are.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite

from perron.advise.fewer_bytes import gradient_costs
from perron.advise.records import Goal, GradientCost, Needs, Timing
from perron.algorithms import ALGORITHMS
from perron.algorithms.base import Algorithm
from perron.algorithms.codecs import wire_sizes
from perron.clock.baselines import PLAIN, averages
from perron.clock.candidates import Candidate, candidates, exists, of_nodes, tour
from perron.clock.clock import Clock
from perron.errors import PerronError
from perron.monitor.progress import Bar, OnProgress
from perron.networks import topologies
from perron.networks.facts import Network
from perron.networks.graph import Graph
from perron.networks.mixing import Mixing
from perron.theory.time_to_accuracy import StepsToAccuracy, steps_to_accuracy

TIMED = ("push_pull", "push_pull_pu", "push_pull_atc", "local_push_pull", "exact_diffusion", "extra")
STEPS_UP_TO = 200  # nodes; beyond, theory takes minutes, and seconds per step are all that is said
BIASED, LARGE = "biased: reaches no given accuracy", "steps are not predicted for more than 200 nodes"
FEWEST = (
    0.8  # no candidate takes fewer than this share of the steps on the complete graph: slow ones need no further look
)


@dataclass(frozen=True)
class _Entry:
    """An algorithm on a network of existing links."""

    name: str
    graph: str
    network: Network
    given: bool
    plain: bool

    @property
    def mixing(self) -> Mixing:
        return self.network.mixing


def compare(
    mixing: Mixing,
    needs: Needs,
    clock: Clock,
    goal: Goal,
    *,
    algorithms: Sequence[str] | None = None,
    other_graphs: bool = True,
    progress: bool | OnProgress | None = False,
) -> tuple[Timing, ...]:
    """Return the seconds of algorithms on the given network, on other graphs of the same links, and of centralized methods."""
    clock = clock.matched(mixing)
    machines = of_nodes(clock.record, mixing.nodes)
    whole, n = clock.changed(machines=machines), mixing.nodes
    clock = _quantized(whole, needs)
    names = [name for name in algorithms or TIMED if name not in ("centralized",)]
    order = tour(machines, _size(clock, needs)).tolist() if n > 1 else []
    entries = _on_given(names, mixing, machines)
    if other_graphs and n > 1:
        for one in candidates(machines, _size(clock, needs), order=order):
            entries += _on_candidate(names, one)
    timings: list[Timing] = []
    with Bar(len(entries) + 1, progress, "comparing algorithms and graphs") as bar:
        done = 0
        for name in names:
            same = [e for e in entries if e.name == name]
            timings += _timed(same, clock, needs, goal, bar, done)
            done += len(same)
            bar.update(done)
        if n > 1:
            timings += _centralized(mixing, whole, needs, goal, order)
    shown = {id(one) for one in shown_timings(timings)}
    traced = [
        _traced(one, one.mixing, clock, needs) if id(one) in shown and one.mixing is not None else one
        for one in timings
    ]
    return tuple(sorted(traced, key=lambda one: (one.seconds, one.step_seconds)))


def costs_of_a_gradient(mixing: Mixing, needs: Needs, clock: Clock) -> tuple[GradientCost, ...]:
    """Return what a gradient costs on the given network, with local steps and quantized messages."""
    clock = clock.matched(mixing)
    machines = of_nodes(clock.record, mixing.nodes)
    if mixing.nodes == 1:
        return ()
    size = _size(clock, needs)
    return gradient_costs(mixing, clock.changed(machines=machines), size, tour(machines, size).tolist())


def shown_timings(timings: Sequence[Timing]) -> list[Timing]:
    """Return what a table shows: of each algorithm the best graph and the given one, and centralized methods; fastest first."""
    kept: list[Timing] = []
    best: set[str] = set()
    for one in sorted(timings, key=lambda one: (one.seconds, one.step_seconds)):
        if one.given or one.algorithm == "centralized" or one.algorithm not in best:
            kept.append(one)
        best.add(one.algorithm)
    return kept


def words_in_seconds(
    timings: Sequence[Timing], goal: Goal, shortest: Callable[[float], str] = "{:.3g}".format
) -> list[str]:
    """Return the comparison in sentences."""
    known = [one for one in timings if isfinite(one.seconds)]
    if not known and any(one.remark == LARGE for one in timings):
        return [f"Steps are predicted for up to {STEPS_UP_TO} nodes; the table has seconds per step only."]
    if not known and goal.noisy:
        return [
            f"No algorithm considered reaches {goal.target:g} of |grad f|^2 at the start: with this noise the target is below "
            "the floor of every lr above 1e-8 / L. Take a larger target; the table has seconds per step only."
        ]
    if not known:
        return [
            "No algorithm considered has a stable step on these links' graphs; the table has seconds per step only."
        ]
    fastest = min(known, key=lambda one: one.seconds)
    if fastest.seconds == 0:
        return [
            f"{fastest.described} takes no time: compute, size and latencies are 0 there. Give those of your machines."
        ]
    head = (
        f"Fastest: {fastest.described}, {shortest(fastest.seconds)} s until |grad f|^2 is {goal.target:g} of its start "
        f"({fastest.steps:,.0f} steps of {fastest.step_seconds * 1e3:.4g} ms, lr = {fastest.lr:.3g})"
    )
    quickest = min(known, key=lambda one: one.step_seconds)
    if quickest.step_seconds < 0.99 * fastest.step_seconds:
        head += (
            f". Fewest seconds, not fewest ms per step: {quickest.described} takes {quickest.step_seconds * 1e3:.4g} ms per "
            f"step, but {quickest.steps / fastest.steps:.2g} times the steps"
        )
    lines = [f"{head}."]
    groups = {
        "directed": [one for one in known if one.directed],
        "undirected": [one for one in known if not one.directed and one.algorithm != "centralized"],
        "centralized": [one for one in known if one.algorithm == "centralized"],
        "on the given network": [one for one in known if one.given],
    }
    others = [
        f"{name}: {best.described}, {best.seconds / fastest.seconds:.3g} times the seconds"
        for name, group in groups.items()
        if group and (best := min(group, key=lambda one: one.seconds)) is not fastest
    ]
    if others:
        lines.append(f"The fastest of other kinds: {'; '.join(others)}.")
    return lines


def _size(clock: Clock, needs: Needs) -> float:
    if clock.size is not None:
        return float(clock.size)
    if needs.dim is None:
        raise PerronError("How large is a message? Give the bytes of a model vector (--size), or its length (--dim).")
    return float(needs.dim * needs.number)


def _quantized(clock: Clock, needs: Needs) -> Clock:
    """Return the clock for vectors as they are quantized; averages over all nodes are in full precision."""
    if not isinstance(needs.wire, str):
        return clock
    return clock.changed(size=wire_sizes(needs.wire, round(_size(clock, needs) / needs.number)).vector)


def _on_given(names: Sequence[str], mixing: Mixing, machines: object) -> list[_Entry]:
    """The algorithms on the given network; those for undirected graphs on it both ways, if the links exist."""
    entries, network = [], Network(mixing)
    for name in names:
        about = ALGORITHMS[name].about
        if not about.matrices.startswith("W") or _usable(ALGORITHMS[name], network):
            if _usable(ALGORITHMS[name], network):
                entries.append(_Entry(name, "given", network, given=True, plain=False))
            continue
        if mixing.varies or not (mixing.has_pull and mixing.has_push):
            continue
        both = mixing.pull_graph.symmetric()
        if exists(machines, both):  # type: ignore[arg-type]
            entries.append(_Entry(name, "given, both ways", Network(Mixing.metropolis(both)), given=True, plain=False))
    return entries


def _on_candidate(names: Sequence[str], one: Candidate) -> list[_Entry]:
    entries, graph = [], one.graph
    mixing = Mixing.metropolis(graph) if isinstance(graph, Graph) and not one.directed else Mixing.uniform(graph)
    network = Network(mixing)
    for name in names:
        undirected = ALGORITHMS[name].about.matrices.startswith("W")
        if (undirected and one.directed) or ALGORITHMS[name].about.matrices == "R C":
            continue
        if _usable(ALGORITHMS[name], network):
            entries.append(_Entry(name, one.name, network, given=False, plain=one.plain))
    return entries


def _usable(algorithm: Algorithm, network: Network) -> bool:
    if network.mixing.varies and not algorithm.about.varying:
        return False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            algorithm.check(network)
    except PerronError:
        return False
    return True


def _timed(entries: list[_Entry], clock: Clock, needs: Needs, goal: Goal, bar: Bar, done: int) -> list[Timing]:
    """The seconds of one algorithm on several graphs; steps only where they can still decide, the shortest step first.

    With random compute times a step takes at least the seconds that it takes with their means, and is simulated only where that
    can still decide.
    """
    known, least_clock = [], clock.changed(compute=clock.times.averaged)
    for entry in entries:
        try:
            cycle = least_clock.cycle_time(
                ALGORITHMS[entry.name], entry.mixing, dim=needs.dim, number=needs.number, trace=False
            )
        except PerronError:
            if entry.given:
                raise
            continue
        known.append((cycle.seconds, entry))
    complete = None
    if len(known) > 1:
        everyone = Network(Mixing.uniform(topologies.complete(known[0][1].mixing.nodes)))
        complete = _steps(ALGORITHMS[known[0][1].name], everyone, needs, goal)
    least = FEWEST * complete.steps if complete else 1.0
    best, shortest, timings = inf, inf, list[Timing]()
    for number, (seconds, entry) in enumerate(sorted(known, key=lambda one: one[0])):
        bar.update(done + number)
        if not entry.given and seconds * least >= best:
            continue
        found = _steps(
            ALGORITHMS[entry.name], entry.network, needs, goal, inf if entry.given or not seconds else best / seconds
        )
        one = _timing(entry, seconds, found)
        if clock.random:
            if not entry.given and (one.seconds >= best if found else seconds >= shortest):
                continue
            cycle = clock.cycle_time(ALGORITHMS[entry.name], entry.mixing, dim=needs.dim, number=needs.number)
            one = replace(one, step_seconds=cycle.seconds, standard_error=cycle.standard_error)
        timings.append(one)
        best, shortest = min(best, one.seconds), min(shortest, one.step_seconds)
    return timings


def _steps(
    algorithm: Algorithm, network: Network, needs: Needs, goal: Goal, enough: float = inf
) -> StepsToAccuracy | None:
    if network.nodes > STEPS_UP_TO or not algorithm.about.exact:
        return None
    try:
        return steps_to_accuracy(
            algorithm, network, goal.target, condition=goal.condition, smoothness=needs.smoothness,
            noise_var=needs.noise_var if goal.noisy else 0.0, start=2 * needs.smoothness * needs.gap, enough=enough,
        )  # fmt: skip
    except PerronError:  # not linear, or weights that do not settle
        return None


def _timing(entry: _Entry, seconds: float, found: StepsToAccuracy | None) -> Timing:
    graphs = [entry.mixing.pull_graph] * entry.mixing.has_pull + [entry.mixing.push_graph] * entry.mixing.has_push
    directed = entry.mixing.varies or not all(graph.is_symmetric for graph in graphs) or len({*map(_edges, graphs)}) > 1
    large = entry.mixing.nodes > STEPS_UP_TO
    return Timing(
        algorithm=entry.name, graph=entry.graph, given=entry.given, plain=entry.plain, directed=directed, step_seconds=seconds,
        steps=found.steps if found else inf, lr=found.lr if found else None,
        remark="" if found else BIASED if not ALGORITHMS[entry.name].about.exact else LARGE if large else "",
        mixing=entry.mixing,
    )  # fmt: skip


def _edges(graph: Graph) -> bytes:
    return graph.edges.tobytes()


def _traced(one: Timing, mixing: Mixing, clock: Clock, needs: Needs) -> Timing:
    clock = clock.changed(compute=clock.times.averaged)
    cycle = clock.cycle_time(ALGORITHMS[one.algorithm], mixing, dim=needs.dim, number=needs.number)
    return replace(one, critical=cycle.describe(), links=cycle.links)


def _centralized(mixing: Mixing, clock: Clock, needs: Needs, goal: Goal, order: list[int]) -> list[Timing]:
    """All-reduce along the ring by number and along a short one, and a parameter server at the best hub."""
    found = _steps(ALGORITHMS["centralized"], Network(mixing), needs, goal)
    return [
        Timing(
            algorithm="centralized", graph=name, plain=name in PLAIN, step_seconds=cycle.seconds,
            steps=found.steps if found else inf, lr=found.lr if found else None, critical="all nodes wait for the average",
            standard_error=cycle.standard_error if clock.random else None,
        )
        for name, cycle in averages(clock, mixing, order, dim=needs.dim, number=needs.number).items()
    ]  # fmt: skip

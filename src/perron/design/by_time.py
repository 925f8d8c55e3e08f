"""A graph for given links that takes the fewest seconds: a search over digraphs, pairs of digraphs and undirected graphs.

Seconds to an accuracy are steps (`perron.theory.steps_to_accuracy`) times the seconds of a step (`perron.Clock.cycle_time`). The
same number of networks is evaluated for each algorithm, whether it is for digraphs or for undirected graphs, and the winner is
reported whatever it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from math import gcd, inf
from typing import Any, Literal

import numpy as np

from perron._registry import lookup
from perron._typing import check_whole
from perron.algorithms import ALGORITHMS
from perron.clock.candidates import Candidate, candidates, of_nodes
from perron.clock.clock import Clock
from perron.clock.overlays import delays
from perron.design.effort import Effort, TimeIsUpError
from perron.design.link_arrays import Links, connected, links_of, mixing_of, one_peer, places_of
from perron.design.time_records import FastestGraph, TimedNetwork
from perron.design.time_task import TimeTask
from perron.errors import PerronError
from perron.monitor.progress import Bar, OnProgress
from perron.networks.graph import Graph
from perron.networks.mixing import Mixing
from perron.theory.recursion import single_threaded
from perron.theory.time_to_accuracy import CONDITION, check_target

DIRECTED = ("push_pull", "push_pull_pu", "push_pull_atc", "local_push_pull")
UNDIRECTED = ("exact_diffusion", "extra")
LARGEST = 120  # nodes: theory is dense, and a search evaluates hundreds of networks
PAIRED = 4  # of the best starts, of which models use one and trackers another
CLIMBS = 2  # starts from which the search climbs
LONGEST = 6  # period of a network of degree one that varies
DRAWS = 200  # of a move, until one keeps the graph connected


def fastest_graph(
    clock: Clock,
    nodes: int | None = None,
    *,
    kind: Literal["any", "directed", "undirected"] = "any",
    algorithms: Sequence[str] | None = None,
    tries: int = 300,
    seed: int = 0,
    target: float | None = None,
    condition: float = CONDITION,
    smoothness: float = 1.0,
    noise_var: float = 0.0,
    start: float = 1.0,
    weights: bool = True,
    seconds: float | None = None,
    progress: bool | OnProgress | None = None,
) -> FastestGraph:
    """Search for the graph and the algorithm that take the fewest seconds on given links.

    Starts are rings, trees, circulant graphs, the fastest links (`perron.clock.candidates`) and, for Push-Pull, pairs of these.
    From the best of them links are added, dropped and moved, or nodes and steps of graphs that vary in time; a change is kept
    if it takes fewer seconds. The result is never
    slower than a start, and there may be faster ones. An interrupt (Ctrl-C) ends the search, with the best so far, as does the
    end of its time.

    Args:
        clock: machines and links, with the ``size`` of a model vector.
        nodes: their number, if the machines are those of any number.
        kind: the graphs that are considered.
        algorithms: their names; by default Push-Pull in its three orders and with local steps, exact diffusion and EXTRA.
            Those that need symmetric weights get undirected graphs with Metropolis weights, others digraphs with equal weights.
        tries: networks that are evaluated for each algorithm.
        seed: of the search.
        target, condition, smoothness, noise_var, start: see `perron.theory.steps_to_accuracy`.
        weights: whether to design weights for the winner in the end, which are taken if they are faster.
        seconds: the time that the search may take, of which each algorithm gets its share; no limit if None.
        progress: whether to show a bar, by default on a terminal; or a function, see `perron.simulate`.

    Example:
        >>> import perron
        >>> clock = perron.Clock("gaia", compute=0.0254, size=5.62e6)
        >>> found = fastest_graph(clock, algorithms=["push_pull_pu", "exact_diffusion"], tries=40, weights=False)
        >>> found.best.algorithm, found.best.directed
        ('exact_diffusion', False)
    """
    names = _names(kind, algorithms)
    target = check_target(target, noisy=noise_var > 0)
    check_whole("tries", tries, low=1)
    rng_seed = check_whole("The seed of a search", seed)
    if clock.size is None:
        raise PerronError("How large is a message? Pass size=, the bytes of a model vector, to Clock.")
    if nodes is None and clock.record.nodes is None:
        raise PerronError("These machines are for any number of nodes; pass nodes=.")
    machines = of_nodes(clock.record, nodes or clock.record.nodes or 1)
    n = machines.graph.nodes
    if not 2 <= n <= LARGEST:
        raise PerronError(f"A graph is sought for 2 to {LARGEST} nodes; got {n}.")
    machines.graph.check_strongly_connected()
    task = TimeTask(
        clock.changed(machines=machines), target,
        {"condition": condition, "smoothness": smoothness, "noise_var": noise_var, "start": start}, Effort(tries, seconds),
    )  # fmt: skip
    baselines = task.baselines()
    starts = candidates(machines, float(clock.size))
    searches = [_Search(task, name, tries, np.random.default_rng([rng_seed, k])) for k, name in enumerate(names)]
    effort = task.effort
    with single_threaded(), Bar(tries * len(names), progress, "searching for a graph") as bar:
        task.tell = lambda: _tell(bar, searches)
        try:
            for number, search in enumerate(searches):
                search.effort = effort.share(1 / (len(searches) - number))
                with suppress(TimeIsUpError):
                    search.run(starts)
                effort.reason = effort.reason or search.effort.reason
        except KeyboardInterrupt:
            if not any(search.seen for search in searches):
                raise
            effort.interrupt()
    seen = [one for search in searches for one in search.seen]
    best = min(seen, key=lambda one: one.seconds, default=None)
    if best is None or best.seconds == inf:
        raise PerronError("No graph was found on which one of the algorithms has a stable step; allow more algorithms.")
    designed = None
    if weights and not effort.over:
        try:
            designed = task.with_weights(best)
        except KeyboardInterrupt:
            effort.interrupt()
    if designed is not None and designed.seconds < best.seconds:
        best = designed
    shown = [one for search in searches for one in search.summary()]
    shown += [designed] if designed is not None and designed is best else []
    plain = min((one for one in seen if one.plain), key=lambda one: one.seconds, default=None)
    critical = task.at_means.cycle_time(ALGORITHMS[best.algorithm], best.mixing).describe(machines.label)
    if clock.random:
        critical = f"a cycle that is not known, as compute times are random; with their means by {critical}"
    return FastestGraph(
        best, tuple(sorted(shown, key=lambda one: one.seconds)), plain, designed, critical,
        {search.name: search.count for search in searches}, baselines, target, condition, noise_var, effort.reason,
    )  # fmt: skip


def _names(kind: str, algorithms: Sequence[str] | None) -> list[str]:
    kinds = {"any": DIRECTED + UNDIRECTED, "directed": DIRECTED, "undirected": UNDIRECTED}
    names = list(lookup(kind, kinds, "kind of graph") if algorithms is None else algorithms)
    for name in names:
        about = lookup(name, ALGORITHMS, "algorithm").about
        if not about.exact or about.family == "gossip" or about.matrices not in ("A B", "W", "W sym"):
            raise PerronError(
                f"Graphs are sought for exact methods with two matrices or symmetric weights, as {', '.join(kinds['any'])}; "
                f"got {name!r}."
            )
        if kind != "any" and (kind == "undirected") != about.matrices.startswith("W"):
            raise PerronError(f"{name} does not belong to kind={kind!r}; leave one of them out.")
    return names


def _tell(bar: Bar, searches: list[_Search]) -> None:
    best = min((one.seconds for search in searches for one in search.seen), default=inf)
    bar.title = f"searching for a graph, {best:.4g} s"
    bar.update(sum(search.count for search in searches))


class _Search:
    """The search for one algorithm."""

    def __init__(self, task: TimeTask, name: str, tries: int, rng: np.random.Generator) -> None:
        self.task, self.name, self.tries, self.rng = task, name, tries, rng
        self.undirected = ALGORITHMS[name].about.matrices.startswith("W")
        self.seen: list[TimedNetwork] = []
        self.starts: list[TimedNetwork] = []
        self.found: TimedNetwork | None = None
        self.count = 0
        self.effort = task.effort
        clock = task.clock
        seconds = delays(clock.record, float(clock.size or 0.0), compute=0.0)
        self.seconds = np.where(np.isneginf(seconds), np.inf, seconds)
        if self.undirected:
            self.seconds = np.maximum(self.seconds, self.seconds.T)
        self.possible = np.isfinite(self.seconds) & ~np.eye(len(seconds), dtype=bool)

    def summary(self) -> list[TimedNetwork]:
        """The best start, and the best graph found if it is faster."""
        best = [min(self.starts, key=lambda one: one.seconds)] if self.starts else []
        faster = self.found is not None and (not best or self.found.seconds < best[0].seconds)
        return [*best, self.found] if self.found is not None and faster else best

    def run(self, starts: list[Candidate]) -> None:
        """Evaluate the starts, and climb from the best of them."""
        usable = [one for one in starts if not (self.undirected and one.directed)]
        graphs: list[tuple[TimedNetwork, tuple[Links, Links]]] = []
        varying: list[tuple[TimedNetwork, tuple[Graph, ...]]] = []
        for one in usable:
            if self.count >= self.tries:
                break
            if isinstance(one.graph, tuple):
                timed = replace(self._timed(one.name, Mixing.uniform(one.graph)), plain=one.plain)
                varying.append((self._note(timed), one.graph))
                continue
            links = links_of(one.graph)
            graphs.append((self._note(replace(self._of(one.name, (links, links)), plain=one.plain)), (links, links)))
        graphs.sort(key=lambda pair: pair[0].seconds)
        if not self.undirected:
            for pulled, pushed in self._pairs(graphs):
                if self.count >= self.tries:
                    break
                pair = (pulled[1][0], pushed[1][1])
                graphs.append((self._note(self._of(f"{pulled[0].name} | {pushed[0].name}", pair)), pair))
            graphs.sort(key=lambda pair: pair[0].seconds)
        climbs = graphs[:CLIMBS]
        varying.sort(key=lambda pair: pair[0].seconds)
        if varying and varying[0][0].seconds < inf:
            self._reorder(*varying[0], self.count + (self.tries - self.count) // (1 + len(climbs)))
        left = self.tries - self.count
        for number, (first, pair) in enumerate(climbs):
            self._climb(first, pair, self.count + left // (len(climbs) - number))
            left = self.tries - self.count

    def _pairs(self, graphs: list[Any]) -> Iterator[tuple[Any, Any]]:
        best = graphs[:PAIRED]
        return ((first, second) for first in best for second in best if first is not second)

    def _climb(self, best: TimedNetwork, pair: tuple[Links, Links], until: int) -> None:
        """Change links as long as it takes fewer seconds."""
        critical = self._critical(best)
        while self.count < until:
            changed = self._changed(pair, critical)
            if changed is None:
                return
            one = self._of(_improved(best.name), changed, best)
            if one.seconds < best.seconds:
                best, pair = one, changed
                critical = self._critical(best)
                self._keep(best)

    def _reorder(self, best: TimedNetwork, graphs: tuple[Graph, ...], until: int) -> None:
        """Change a network of degree one that varies: two nodes change places, or a step has another shift."""
        (order, shifts), rng, n = places_of(graphs), self.rng, len(self.possible)
        for _ in range(DRAWS * self.tries):
            if self.count >= until:
                return
            nodes, steps = list(order), list(shifts)
            move = rng.choice(["swap", "shift", "shift", "insert", "drop"])
            if move == "swap":
                first, second = rng.choice(n, size=2, replace=False)
                nodes[first], nodes[second] = nodes[second], nodes[first]
            elif move == "drop":
                steps.pop(int(rng.integers(len(steps))))
            else:
                place, shift = int(rng.integers(len(steps))), int(rng.integers(1, n))
                steps[place : place + (move == "shift")] = [shift]
            changed = one_peer(nodes, steps)
            there = all(self.possible[graph.edges[:, 1], graph.edges[:, 0]].all() for graph in changed)
            if not (there and 1 <= len(steps) <= LONGEST and gcd(n, *steps) == 1):
                continue
            one = self._timed(f"one-peer, shifts {', '.join(map(str, steps))}, improved", Mixing.uniform(changed), best)
            if one.seconds < best.seconds:
                best, order, shifts = one, nodes, steps
                self._keep(best)

    def _keep(self, best: TimedNetwork) -> None:
        self.seen.append(best)
        if self.found is None or best.seconds < self.found.seconds:
            self.found = best

    def _critical(self, one: TimedNetwork) -> list[tuple[int, int]]:
        """The links of the critical cycle, as (target, source)."""
        cycle = self.task.at_means.cycle_time(ALGORITHMS[self.name], one.mixing)
        return [(target, source) for source, target in cycle.links]

    def _changed(self, pair: tuple[Links, Links], critical: list[tuple[int, int]]) -> tuple[Links, Links] | None:
        """A graph with a link added, dropped or moved, still connected; None if there is none."""
        rng = self.rng
        for _ in range(DRAWS):
            move, side = rng.choice(["add", "drop", "move"]), int(rng.integers(3))  # on one side, or on both
            changed = [pair[0].copy(), pair[1].copy()]
            sides = [0, 1] if side == 2 or self.undirected else [side]
            present = changed[sides[0]]
            if move != "add":
                chosen = self._drawn(present, critical)
                if chosen is None:
                    continue
                self._put(changed, sides, chosen, present=False)
            if move != "drop":
                free = np.argwhere(self.possible & ~changed[sides[0]])
                if not len(free):
                    continue
                times = self.seconds[free[:, 0], free[:, 1]]
                order = np.argsort(times, kind="stable")  # fast links are more likely
                self._put(changed, sides, tuple(free[order[int(len(free) * rng.uniform() ** 2)]]), present=True)
            same = all(np.array_equal(before, after) for before, after in zip(pair, changed, strict=True))
            if not same and connected(changed[0], changed[1]):
                return changed[0], changed[1]
        return None

    def _drawn(self, present: Links, critical: list[tuple[int, int]]) -> tuple[int, int] | None:
        """A link to drop: one of the critical cycle half of the time."""
        among = [link for link in critical if present[link]] if self.rng.uniform() < 0.5 else []
        among = among or [tuple(link) for link in np.argwhere(present)]
        return among[int(self.rng.integers(len(among)))] if among else None

    def _put(self, changed: list[Links], sides: list[int], link: tuple[int, int], *, present: bool) -> None:
        for side in sides:
            changed[side][link] = present
            if self.undirected:
                changed[side][link[::-1]] = present

    def _of(self, name: str, pair: tuple[Links, Links], best: TimedNetwork | None = None) -> TimedNetwork:
        return self._timed(name, mixing_of(pair, undirected=self.undirected), best)

    def _timed(self, name: str, mixing: Mixing, best: TimedNetwork | None = None) -> TimedNetwork:
        if self.seen:  # of each algorithm, one network is evaluated in any case
            self.effort.check()
        one = self.task.timed(self.name, name, mixing, best)
        self.count += 1
        self.task.tell()
        return one

    def _note(self, one: TimedNetwork) -> TimedNetwork:
        self.seen.append(one)
        self.starts.append(one)
        return one


def _improved(name: str) -> str:
    return f"{name.removesuffix(', improved')}, improved"

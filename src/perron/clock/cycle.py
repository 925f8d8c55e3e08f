"""Cycle times: the seconds per step in the long run, and what sets them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, gcd
from typing import TYPE_CHECKING

import numpy as np

from perron._typing import FloatArray
from perron.clock.compute import standard_error
from perron.clock.maxplus import max_cycle_mean
from perron.clock.recursion import Recursion, Times
from perron.clock.trace import Part
from perron.clock.trace import trace as trace_cycle

if TYPE_CHECKING:
    from perron.clock.clock import Timer

EXACT_UP_TO = 700  # entries of the clock's state; beyond, steps are simulated
TRACED_UP_TO = 5_000_000  # links times steps of a critical cycle that are followed one by one
SIMULATED = 2000  # steps over which times are measured, after as many that are not
DRAWN = 200, 64  # gradients and trials where compute times are random; many trials at a time cost little more than one
RANDOM = "the critical cycle is not known for random compute times"
MANY = "the critical cycle is not known for networks so large, or that never repeat"


@dataclass(frozen=True)
class CycleTime:
    """Seconds per step in the long run.

    Attributes:
        seconds: per step.
        critical: what follows what on the critical cycle, which takes ``steps`` steps; empty if it is not known.
        steps: length of the critical cycle in steps.
        exact: whether the seconds are a maximum cycle mean, or measured on simulated steps.
        standard_error: of simulated seconds with random compute times; nan otherwise.
        alike: whether all nodes and links are alike, so that none of them is critical alone.
        unknown: why there is no critical cycle, in words.
        labels: names of the nodes, if they have any.
    """

    seconds: float
    critical: tuple[Part, ...] = ()
    steps: int = 0
    exact: bool = True
    standard_error: float = float("nan")
    alike: bool = False
    unknown: str = "the critical cycle was not computed"
    labels: tuple[str, ...] | None = None

    def __float__(self) -> float:
        return self.seconds

    @property
    def links(self) -> tuple[tuple[int, int], ...]:
        """The links of the critical cycle, as (source, target), without repetition."""
        links = () if self.alike else (part.link for part in self.critical if part.link is not None)
        return tuple(dict.fromkeys(links))

    @property
    def shares(self) -> dict[str, float]:
        """Seconds of a step that the critical cycle spends on each kind of part: compute, latency, wire, request, ..."""
        sums: dict[str, float] = {}
        for part in self.critical:
            sums[part.kind] = sums.get(part.kind, 0.0) + part.seconds / self.steps
        return {kind: seconds for kind, seconds in sums.items() if seconds}

    def describe(self, label: Callable[[int], str] | None = None) -> str:
        """Return in words the critical cycle, with links and mean seconds of each kind of part in a step; or why it is unknown.

        ``label`` names a node; by default its own name, or its number.
        """
        names = self.labels
        label = label or (str if names is None else lambda node: names[node])
        if self.seconds == 0:
            return "nothing takes time"
        if not self.critical:
            return self.unknown
        heaviest: dict[tuple[int, int], float] = {}
        for part in self.critical:
            if part.link is not None:
                heaviest[part.link] = heaviest.get(part.link, 0.0) + part.seconds / self.steps
        parts = self._parts()
        links = sorted(heaviest, key=lambda link: -heaviest[link])
        if self.alike:
            return f"{'every link' if links else 'every gradient'} ({parts})"
        if not links:
            nodes = dict.fromkeys(label(part.node) for part in self.critical)
            return f"the gradient of {', '.join(nodes)}"
        shown = [f"{label(source)} -> {label(target)}" for source, target in links[:4]]
        more = f" and {len(links) - 4} more" if len(links) > 4 else ""
        return f"{', '.join(shown)}{more} ({parts})"

    def _parts(self) -> str:
        """The mean seconds of each kind of part in a step, and how many of them there are where that is not one in each step."""
        counts = Counter(part.kind for part in self.critical if part.seconds)
        parts = ", ".join(f"{kind} {seconds * 1e3:.4g} ms" for kind, seconds in self.shares.items())
        if all(count == self.steps for count in counts.values()):
            return parts
        common = gcd(self.steps, *counts.values())
        many = ", ".join(f"{counts[kind] // common} x {kind}" for kind in self.shares)
        steps = self.steps // common
        return f"{parts} per step: {many} in {f'{steps} steps' if steps > 1 else 'each'}"

    def __str__(self) -> str:
        return f"{self.seconds * 1e3:.4g} ms per step: {self.describe()}"


def exact_cycle_time(recursion: Recursion, compute: FloatArray, *, trace: bool = True) -> CycleTime | None:
    """Return the maximum cycle mean of the map that a period of steps is; None if the state is too large or never repeats."""
    period = recursion.period
    layout = {name: value.shape[-1] for name, value in recursion.start().items()}
    size = sum(layout.values())
    if not period or size > EXACT_UP_TO:
        return None
    times = Times()
    first = 0
    for name, length in layout.items():  # trial k starts from the k-th max-plus unit vector
        unit = np.full((size, length), -np.inf)
        unit[first + np.arange(length), np.arange(length)] = 0.0
        times[name] = unit
        first += length
    with np.errstate(invalid="ignore"):
        for step in range(period):
            recursion.advance(times, step, lambda _: compute)
    matrix = np.concatenate([times[name] for name in layout], axis=-1).T
    mean, cycle = max_cycle_mean(matrix)
    critical: tuple[Part, ...] = ()
    links = max((len(recursion.links.at(batch, 0).sources) for batch in recursion.batches), default=1)
    if trace and links * len(cycle) * period <= TRACED_UP_TO and not recursion.averages:
        critical = trace_cycle(recursion, compute, cycle[0], len(cycle) * period)
    unknown = "all nodes wait for the average" if recursion.averages else CycleTime.unknown
    return CycleTime(mean / period, critical, len(cycle) * period, alike=recursion.uniform, unknown=unknown)


def simulated_cycle_time(recursion: Recursion, start: Callable[[Sequence[int]], Timer]) -> CycleTime:
    """Return the slope of simulated times: (t_2K - t_K) / K."""
    trials = min(DRAWN[1], max(8, 4096 // recursion.nodes))
    timer = start(range(trials))
    random = len(timer.times.now) > 1
    steps = ceil(DRAWN[0] / max(1, recursion.tape.gradients)) if random else SIMULATED
    many = ceil(min(max(steps, 5 * recursion.nodes), 2e8 / (1 + _links(recursion)) / (trials if random else 8)))
    many = max(50, many)
    for step in range(many):
        timer.advance(step)
    half = timer.seconds.copy()
    for step in range(many, 2 * many):
        timer.advance(step)
    slopes = (timer.seconds - half) / many
    error = standard_error(slopes) if random else float("nan")
    return CycleTime(
        float(slopes.mean()),
        exact=False,
        standard_error=error,
        alike=recursion.uniform,
        unknown=RANDOM if random else MANY,
    )


def _links(recursion: Recursion) -> int:
    return sum(len(recursion.links.at(batch, 0).sources) for batch in recursion.batches)

"""The seconds of one network on given links, for a search among many: only as accurately as the comparison needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from math import inf, nan

from perron.algorithms import ALGORITHMS
from perron.clock.baselines import PLAIN, averages
from perron.clock.candidates import tour
from perron.clock.clock import Clock
from perron.design.designer import design
from perron.design.effort import Effort
from perron.design.symmetric import fastest_symmetric
from perron.design.time_records import TimedNetwork
from perron.errors import PerronError
from perron.networks import topologies
from perron.networks.mixing import Mixing
from perron.theory.time_to_accuracy import StepsToAccuracy, curvatures_of, steps_to_accuracy

FEWEST = 0.5  # no network takes fewer than this share of the steps of gradient descent


@dataclass
class TimeTask:
    """What all searches share."""

    clock: Clock
    target: float
    needs: dict[str, float]
    effort: Effort
    tell: Callable[[], None] = field(default=lambda: None)

    @cached_property
    def at_means(self) -> Clock:
        """The clock with the means of random compute times, with which steps take no longer than with these."""
        return self.clock.changed(compute=self.clock.times.averaged) if self.clock.random else self.clock

    @cached_property
    def descent(self) -> float:
        """The steps of gradient descent on the average of all losses, which are those of all-reduce."""
        return self.everyone.steps

    @cached_property
    def everyone(self) -> StepsToAccuracy:
        """What gradient descent needs."""
        mixing = Mixing.uniform(topologies.complete(self.clock.record.graph.nodes))
        found = steps_to_accuracy(ALGORITHMS["centralized"], mixing, self.target, **self.needs)
        if found is None:
            raise PerronError(
                f"With noise_var={self.needs['noise_var']:g}, target={self.target:g} is below the floor of every lr above "
                "1e-8 / L; take a larger target."
            )
        return found

    def baselines(self) -> tuple[TimedNetwork, ...]:
        """All-reduce and a parameter server on the same links."""
        machines, found = self.clock.record, self.everyone
        mixing = Mixing.uniform(topologies.complete(machines.graph.nodes))
        order = tour(machines, float(self.clock.size or 0.0)).tolist()
        timed = [
            TimedNetwork("centralized", name, mixing, cycle.seconds, found.steps, found.lr, plain=name in PLAIN)
            for name, cycle in averages(self.clock, mixing, order).items()
        ]
        return tuple(sorted(timed, key=lambda one: one.seconds))

    def least(self, algorithm: str) -> float:
        """A lower bound on the steps: a share of those of gradient descent, for each gradient of a step."""
        return FEWEST * self.descent / getattr(ALGORITHMS[algorithm], "local_steps", 1)

    def timed(self, algorithm: str, name: str, mixing: Mixing, best: TimedNetwork | None = None) -> TimedNetwork:
        """Evaluate a network; roughly, where it is clearly slower than the best one."""
        seconds = self.at_means.cycle_time(ALGORITHMS[algorithm], mixing, trace=False).seconds
        if seconds == 0:
            raise PerronError(
                "On these links a step takes no time: compute, size and latencies are 0. Give those of your machines."
            )
        bound = inf if best is None else best.seconds / seconds
        if self.least(algorithm) >= bound:
            return TimedNetwork(algorithm, name, mixing, seconds, inf, nan)
        guess = best.lr if best is not None and best.seconds < inf else None
        found = steps_to_accuracy(ALGORITHMS[algorithm], mixing, self.target, guess=guess, enough=bound, **self.needs)
        if self.clock.random and found and found.steps < bound:
            seconds = self.clock.cycle_time(ALGORITHMS[algorithm], mixing).seconds
        return TimedNetwork(algorithm, name, mixing, seconds, found.steps if found else inf, found.lr if found else nan)

    def with_weights(self, best: TimedNetwork) -> TimedNetwork | None:
        """The same graph with designed weights: for the rate of the algorithm, or the fastest symmetric ones."""
        if best.mixing.varies:
            return None
        pull, push = best.mixing.pull_graph, best.mixing.push_graph
        try:
            if ALGORITHMS[best.algorithm].about.matrices.startswith("W"):
                W = fastest_symmetric(pull, 0.01)
                mixing = Mixing(W, W, name="")
            else:
                curvature = curvatures_of(1.0, self.needs["condition"])
                mixing = design(
                    pull, push, goal="rate", algorithm=ALGORITHMS[best.algorithm], curvature=curvature, starts=1,
                    iterations=60, start=best.mixing, seconds=self.effort.left,
                ).mixing  # fmt: skip
        except (PerronError, ImportError):  # without cvxpy, or no weights of that kind
            return None
        return self.timed(best.algorithm, f"{best.name}, designed weights", mixing)

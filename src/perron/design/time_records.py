"""Results of a search for a graph that is fast in seconds."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Any

from perron._storage.jsonable import to_jsonable
from perron.networks.mixing import Mixing


@dataclass(frozen=True)
class TimedNetwork:
    """An algorithm on a network of existing links.

    Attributes:
        algorithm: its name.
        name: of the graph: how it came about.
        mixing: the network.
        step_seconds: of a step, in the long run.
        steps: to the goal, at the best lr; infinite if none is stable.
        lr: that step size; nan if none is stable.
        plain: whether the graph does not depend on the links, as a ring by number.
    """

    algorithm: str
    name: str
    mixing: Mixing
    step_seconds: float
    steps: float
    lr: float
    plain: bool = False

    @property
    def seconds(self) -> float:
        """Seconds to the goal."""
        return self.step_seconds * self.steps

    @property
    def directed(self) -> bool:
        """Whether some link has no way back, or models and trackers use different graphs."""
        pull, push = self.mixing.pull_graph, self.mixing.push_graph
        return self.mixing.varies or not pull.is_symmetric or pull != push

    def row(self) -> tuple[str, ...]:
        """Return the cells of a table: algorithm, graph, links, ms/step, steps, seconds, lr."""
        links = "-" if self.algorithm == "centralized" else f"{len(self.mixing.pull_graph.edges)}"
        if self.mixing.push_graph != self.mixing.pull_graph:
            links += f" + {len(self.mixing.push_graph.edges)}"
        steps, seconds = (f"{self.steps:,.0f}", f"{self.seconds:.4g}") if isfinite(self.steps) else ("-", "-")
        lr = f"{self.lr:.3g}" if isfinite(self.lr) else "-"
        return (self.algorithm, self.name, links, f"{self.step_seconds * 1e3:.4g}", steps, seconds, lr)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "algorithm": self.algorithm, "name": self.name, "directed": self.directed, "step_seconds": self.step_seconds,
            "steps": self.steps, "seconds": self.seconds, "lr": self.lr,
            "pull_edges": self.mixing.pull_graph.edges.tolist(), "push_edges": self.mixing.push_graph.edges.tolist(),
        }  # fmt: skip


COLUMNS = ("algorithm", "graph", "links", "ms/step", "steps", "seconds", "lr")


@dataclass(frozen=True)
class FastestGraph:
    """The graph that takes the fewest seconds of all that were tried.

    Attributes:
        best: the algorithm and the network, with the weights that are fastest.
        candidates: the best start and the best graph found of each algorithm, fastest first.
        plain: of graphs that do not depend on the links, the one that is fastest; None if none is possible.
        designed: the winner with designed weights, whether they are faster or not; None if they were not tried.
        critical: what sets the seconds of a step, in words.
        evaluations: of networks, by algorithm.
        baselines: all-reduce and a parameter server on the same links, fastest first; no graph is sought for them.
        target, condition, noise_var: what seconds are counted to, see `perron.theory.steps_to_accuracy`.
        interrupted: why the search ended before its time: "interrupted" or "time is up"; empty if it did not.
    """

    best: TimedNetwork
    candidates: tuple[TimedNetwork, ...]
    plain: TimedNetwork | None
    designed: TimedNetwork | None
    critical: str
    evaluations: dict[str, int]
    baselines: tuple[TimedNetwork, ...]
    target: float
    condition: float
    noise_var: float
    interrupted: str = ""

    @property
    def mixing(self) -> Mixing:
        """The winning network."""
        return self.best.mixing

    def rows(self) -> list[tuple[str, ...]]:
        """Return the cells of a table of candidates and baselines, fastest first."""
        return [one.row() for one in sorted((*self.candidates, *self.baselines), key=lambda one: one.seconds)]

    @property
    def goal(self) -> str:
        """What seconds are counted to, in words."""
        noise = f"sigma^2 = {self.noise_var:.4g}" if self.noise_var else "no noise"
        return f"Seconds until |grad f|^2 is {self.target:g} of its start; L / mu = {self.condition:g}, {noise}"

    @property
    def notes(self) -> list[str]:
        """Return what is to be said besides the table."""
        best = self.best
        lines = [f"fastest: {best.algorithm}, {best.name}: {best.seconds:.4g} s; a step is set by {self.critical}"]
        for kind, wanted in (("directed", True), ("undirected", False)):
            others = [one for one in self.candidates if one.directed is wanted and isfinite(one.seconds)]
            if others and best.directed is not wanted:
                other = min(others, key=lambda one: one.seconds)
                lines.append(
                    f"best {kind}: {other.algorithm}, {other.name}: {other.seconds / best.seconds:.3g} times the seconds"
                )
        if self.baselines:
            compared = [f"{one.name}: {one.seconds / best.seconds:.3g} times the seconds" for one in self.baselines]
            faster = self.baselines[0].seconds < best.seconds
            lines.append(
                f"for comparison, {'; '.join(compared)}" + (": faster than every graph tried" if faster else "")
            )
        if self.plain is not None:
            lines.append(
                f"best without knowing the links: {self.plain.algorithm}, {self.plain.name}: "
                f"{self.plain.seconds / best.seconds:.3g} times the seconds"
            )
        if self.designed is not None and isfinite(self.designed.seconds):
            paid = "which are taken" if self.designed is best else "which do not pay"
            lines.append(f"designed weights: {self.designed.seconds:.4g} s, {paid}")
        if self.interrupted:
            lines.append(f"{self.interrupted}: this is the best so far")
        return lines

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, for JSON."""
        return to_jsonable(
            {
                "best": self.best.to_dict(),
                "candidates": [one.to_dict() for one in self.candidates],
                "baselines": [one.to_dict() for one in self.baselines],
                "plain": self.plain and self.plain.to_dict(),
                "designed": self.designed and self.designed.to_dict(),
                "critical": self.critical,
                "goal": {"target": self.target, "condition": self.condition, "noise_var": self.noise_var},
                "evaluations": self.evaluations,
                "interrupted": bool(self.interrupted),
            }
        )

    def __str__(self) -> str:
        rows = [COLUMNS, *self.rows()]
        width = [max(len(row[k]) for row in rows) for k in range(len(COLUMNS))]
        lines = ["  ".join(cell.ljust(w) if k < 2 else cell.rjust(w) for k, (cell, w) in enumerate(zip(row, width, strict=True)))
                 for row in rows]  # fmt: skip
        total = sum(self.evaluations.values())
        return "\n".join([self.goal, *lines, f"{total} networks tried", *self.notes])

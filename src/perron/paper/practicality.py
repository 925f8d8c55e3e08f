"""The block lengths and steps that Theorem 1 requires on the paper's graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from perron.algorithms import PushPull
from perron.networks import topologies
from perron.networks.facts import Network
from perron.networks.graph import Graph
from perron.networks.mixing import Mixing
from perron.theory.theorem import MixingConstants, TheoremOne, steps_limit

GRAPHS: tuple[tuple[str, Callable[[int], Graph]], ...] = (
    ("exponential", lambda _: topologies.exponential(4)),
    ("exponential", lambda _: topologies.exponential(16)),
    ("grid, directed", lambda _: topologies.grid(16)),
    ("grid, undirected", lambda _: topologies.undirected_grid(16)),
    ("ring", lambda _: topologies.ring(8)),
    ("ring", lambda _: topologies.ring(16)),
    ("ring with two chords", lambda _: topologies.chordal_ring(16)),
    ("random", lambda seed: topologies.random(16, seed=seed)),
    ("geometric", lambda seed: topologies.geometric(16, seed=seed)),
    ("nearest neighbour", lambda seed: topologies.nearest_neighbor(16, seed=seed)),
)
HEADINGS = (
    "graph", "n", "c", "s_A / s_B", "C-tilde", "largest step x L", "usual step x L", "usual / largest", "rate from T =",
)  # fmt: skip


@dataclass(frozen=True)
class Practicality:
    """Medians over weightings: c, s_A, s_B, C-tilde, the block branch of the step and Push-Pull's default step, times L;
    and the number of steps from which the step is the one that gives the rate, at sigma^2 = L Delta."""

    name: str
    nodes: int
    alignment: float
    pull_sum: float
    push_sum: float
    block: float
    step: float
    usual: float
    rate_from: float

    def cells(self) -> list[str]:
        """Return the cells of a table with `HEADINGS`."""
        return [
            self.name, str(self.nodes), f"{self.alignment:.2f}", f"{self.pull_sum:.1f} / {self.push_sum:.1f}",
            f"{self.block:.1e}", f"{self.step:.1e}", f"{self.usual:.1e}", f"{self.usual / self.step:.0e}",
            f"{self.rate_from:.0e}",
        ]  # fmt: skip


def practicality(
    graphs: Sequence[tuple[str, Callable[[int], Graph]]] = GRAPHS, *, weightings: int = 30
) -> list[Practicality]:
    """Return the table for random integer weights 1..9 with seeds 0, 1, ...; each seed draws a new random graph."""
    rows = []
    for name, build in graphs:
        values = []
        for seed in range(weightings):
            mixing = Mixing.random_integer(build(seed), seed=seed)
            known = MixingConstants.of(mixing)
            m = TheoremOne(known, 1.0, 1.0, 1.0, 1.0).least_block
            usual = PushPull().default_lr(Network(mixing), 1.0)
            late = TheoremOne(known, 1.0, 1.0, 1.0, m).standard_from
            values.append((known.alignment, known.pull_sum, known.push_sum, m, steps_limit(known, m, 1.0), usual, late))
        rows.append(Practicality(name, mixing.nodes, *map(float, np.median(values, axis=0))))
    return rows

"""Pairs of mixing matrices to try a claim on: structured families, random ones, and hill climbing from the worst."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, inf, isnan
from typing import Any

import numpy as np

from perron._typing import FloatArray
from perron.errors import PerronError
from perron.networks import spectral, topologies
from perron.networks.mixing import Mixing
from perron.theory.theorem import LARGEST_POWER, Mixes, block_bound

Generator = np.random.Generator
SHORT = 1e-13  # powers of a matrix are followed until they are this close to their limit
LONGEST = 2**12  # but no further


class Pair:
    """A row-stochastic A and a column-stochastic B, from any two matrices of positive weights, and what follows from them."""

    def __init__(self, pull: FloatArray, push: FloatArray, family: str) -> None:
        self.family, self.nodes = family, len(pull)
        self.A: FloatArray = pull / pull.sum(axis=1, keepdims=True)
        self.B: FloatArray = push / push.sum(axis=0)

    @cached_property
    def pi_A(self) -> FloatArray:
        """Of A."""
        return spectral.perron(self.A)

    @cached_property
    def pi_B(self) -> FloatArray:
        """Of B."""
        return spectral.perron(self.B)

    @property
    def c(self) -> float:
        """n pi_A^T pi_B."""
        return self.nodes * float(self.pi_A @ self.pi_B)

    @cached_property
    def A_powers(self) -> FloatArray:
        """A^i - A_inf, i = 0, 1, ..., until they are gone."""
        return deviations(self.A, np.outer(np.ones(self.nodes), self.pi_A))

    @cached_property
    def B_powers(self) -> FloatArray:
        """B^i - B_inf."""
        return deviations(self.B, np.outer(self.pi_B, np.ones(self.nodes)))

    @cached_property
    def A_norms(self) -> FloatArray:
        """|A^i - A_inf|."""
        return norms(self.A_powers)

    @cached_property
    def B_norms(self) -> FloatArray:
        """|B^i - B_inf|."""
        return norms(self.B_powers)

    @cached_property
    def s_A(self) -> float:
        """From `perron.spectral`."""
        return spectral.mixing_sum(self.A).value

    @cached_property
    def s_B(self) -> float:
        """From `perron.spectral`."""
        return spectral.mixing_sum(self.B).value

    @cached_property
    def mixing(self) -> Mixing:
        """As perron knows it."""
        return Mixing(pull=self.A, push=self.B, name=self.family)

    @cached_property
    def mixes(self) -> Mixes:
        """The numbers of Theorem 1, for blocks of C-tilde steps; as `Mixes.of`, from what is known already."""
        power = min(ceil(block_bound(self.nodes, self.c, self.s_A, self.s_B)), LARGEST_POWER)
        sums = (spectral.mixing_sum(matrix, power=power).value for matrix in (self.A, self.B))
        return Mixes(self.nodes, self.c, self.s_A, self.s_B, *sums)

    def steps_B(self) -> FloatArray:
        """delta_0 = I - B_inf and delta_j = B^j - B^(j-1)."""
        powers = self.B_powers
        return np.concatenate([powers[:1], powers[1:] - powers[:-1]])

    def changed(self, rng: Generator, scale: float) -> Pair:
        """Another pair nearby, with the same graphs."""
        pull, push = (m * np.exp(scale * rng.standard_normal(m.shape)) for m in (self.A, self.B))
        return Pair(pull, push, f"{self.family}, climbed" if not self.family.endswith("climbed") else self.family)

    def data(self) -> dict[str, Any]:
        """The matrices, as plain data."""
        return {"A": self.A.tolist(), "B": self.B.tolist()}


def deviations(matrix: FloatArray, limit: FloatArray) -> FloatArray:
    """matrix^i - limit for i = 0, 1, ..., by doubling: E_{i+k} = E_k E_i for i, k >= 1."""
    first = matrix - limit
    later = first[None]
    while len(later) < LONGEST and np.abs(later[-1]).max() > SHORT:
        later = np.concatenate([later, later[-1] @ later])
    return np.concatenate([(np.eye(len(matrix)) - limit)[None], later])


def norms(stack: FloatArray) -> FloatArray:
    """Spectral norms of a stack of matrices."""
    largest = np.linalg.eigvalsh(stack @ stack.transpose(0, 2, 1))[:, -1]
    return np.sqrt(np.maximum(largest, 0))


# ---- families


def two_nodes(rng: Generator) -> Pair:
    """Two nodes; the second eigenvalue is often negative, and each matrix may be near to reducible or to periodic."""

    def weights() -> FloatArray:
        stay = rng.beta(0.5, 0.5, size=2) * 0.96 + 0.02
        return np.array([[stay[0], 1 - stay[0]], [1 - stay[1], stay[1]]])

    return Pair(weights(), weights().T, "2 nodes")


def dense(rng: Generator) -> Pair:
    """All edges, with weights from nearly equal to very unequal."""
    n = int(rng.integers(2, 9))
    spread = rng.choice([0.3, 1.0, 2.5])
    return Pair(np.exp(spread * rng.standard_normal((n, n))), np.exp(spread * rng.standard_normal((n, n))), "dense")


def near_average(rng: Generator) -> Pair:
    """Close to 11^T/n, where many of the bounds are nearly attained."""
    n, spread = int(rng.integers(2, 9)), 10.0 ** rng.uniform(-3, -0.5)
    return Pair(
        np.exp(spread * rng.standard_normal((n, n))), np.exp(spread * rng.standard_normal((n, n))), "near 11^T/n"
    )


def hub(rng: Generator) -> Pair:
    """Nodes 2.. hear node 0, node 0 hears node 1, node 1 hears (nearly) itself alone: one step goes far from the limit."""
    n = int(rng.integers(4, 13))
    return Pair(hub_weights(n, 10.0 ** rng.uniform(-4, -1)), hub_weights(n, 10.0 ** rng.uniform(-4, -1)).T, "hub")


def hub_weights(n: int, leak: float) -> FloatArray:
    """The weights of `hub`; all entries are positive, ``leak`` being the share that goes elsewhere."""
    weights = np.full((n, n), leak / n)
    weights[2:, 0] = weights[0, 1] = weights[1, 1] = 1
    return weights


def ring(rng: Generator) -> Pair:
    """A ring, each node keeping a share of its own."""
    n = int(rng.integers(3, 10))
    forward = np.roll(np.eye(n), 1, axis=0)
    pull, push = (np.diag(rng.uniform(0.1, 9, n)) + forward * rng.uniform(0.1, 9, n) for _ in range(2))
    return Pair(pull, push, "ring")


def near_reducible(rng: Generator) -> Pair:
    """Two groups that hardly speak to each other."""
    n, part = int(rng.integers(4, 9)), 2

    def weights() -> FloatArray:
        inner = rng.uniform(0.1, 1, (n, n))
        inner[:part, part:] *= 10.0 ** rng.uniform(-2, -1)
        inner[part:, :part] *= 10.0 ** rng.uniform(-2, -1)
        return inner

    return Pair(weights(), weights(), "near reducible")


def weighted_topology(rng: Generator) -> Pair:
    """The paper's: integers 1..9 on a topology, A and B from the same matrix."""
    name, build = TOPOLOGIES[int(rng.integers(len(TOPOLOGIES)))]
    mixing = Mixing.random_integer(build(rng), seed=int(rng.integers(2**31)))
    return Pair(np.asarray(mixing.pull), np.asarray(mixing.push), name)


TOPOLOGIES: list[tuple[str, Callable[[Generator], Any]]] = [
    ("exponential", lambda rng: topologies.exponential(int(rng.choice([4, 8, 16])))),
    ("chordal ring", lambda rng: topologies.chordal_ring(int(rng.choice([4, 8, 16])))),
    ("grid", lambda rng: topologies.grid(int(rng.choice([4, 9, 16])))),
    ("random", lambda rng: topologies.random(int(rng.choice([4, 8, 12])), seed=int(rng.integers(2**31)))),
    ("random digraph", lambda rng: topologies.random_digraph(8, seed=int(rng.integers(2**31)))),
]
FAMILIES: tuple[Callable[[Generator], Pair], ...] = (
    two_nodes, dense, near_average, hub, ring, near_reducible, weighted_topology,
)  # fmt: skip


# ---- search


@dataclass(frozen=True)
class Found:
    """The worst that a search met: the largest score, where, and among how many."""

    ratio: float
    pair: Pair
    tried: int

    @property
    def place(self) -> str:
        """Where it was, in words."""
        return f"{self.pair.family}, n = {self.pair.nodes}"


def pairs(rng: Generator, count: int, families: Sequence[Callable[[Generator], Pair]] = FAMILIES) -> Iterator[Pair]:
    """So many pairs, family after family."""
    for number in range(count):
        yield families[number % len(families)](rng)


def worst(
    score: Callable[[Pair], float],
    rng: Generator,
    effort: int,
    *,
    families: Sequence[Callable[[Generator], Pair]] = FAMILIES,
    also: Sequence[Pair] = (),
) -> Found:
    """Look for the pair with the largest score: ``effort`` pairs of the families and those in ``also``, then half as many
    steps uphill from the worst, each a random change of all weights that is kept if it makes things worse."""
    found: Found | None = None
    climbs, tried = effort // 2, 0

    def met(pair: Pair) -> Found:
        """The pair, if it is the worst so far; otherwise what was."""
        ratio = score(pair)
        ratio = inf if isnan(ratio) else ratio  # what cannot be computed must not pass for harmless
        return Found(ratio, pair, tried) if found is None or ratio > found.ratio else replace(found, tried=tried)

    for pair in [*also, *pairs(rng, effort, families)]:
        tried += 1
        found = met(pair)
    if found is None:
        raise PerronError(f"A search needs at least one pair to try; got effort={effort}. Ask for more.")
    for climb in range(climbs):
        tried += 1
        found = met(found.pair.changed(rng, 0.5 * (1 - climb / climbs) + 0.01))
    return found

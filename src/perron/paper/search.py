"""Search for counterexamples among pairs of mixing matrices: structured and random families, then hill climbing."""

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
from perron.paper.claim import Evidence, conclude, within
from perron.theory.theorem import LARGEST_POWER, MixingConstants, block_bound

Generator = np.random.Generator
SHORT = 1e-13  # powers of a matrix are computed until they are this close to their limit
LONGEST = 2**12  # but no further


class Pair:
    """A row-stochastic A and a column-stochastic B, made from any two matrices of positive weights, with their metrics."""

    def __init__(self, pull: FloatArray, push: FloatArray, family: str) -> None:
        self.family, self.nodes = family, len(pull)
        self.A: FloatArray = pull / pull.sum(axis=1, keepdims=True)
        self.B: FloatArray = push / push.sum(axis=0)

    @classmethod
    def of(cls, mixing: Mixing, family: str) -> Pair:
        """Return the pair of a `Mixing`."""
        return cls(np.asarray(mixing.pull), np.asarray(mixing.push), family)

    @cached_property
    def pi_A(self) -> FloatArray:
        return spectral.perron(self.A)

    @cached_property
    def pi_B(self) -> FloatArray:
        return spectral.perron(self.B)

    @property
    def c(self) -> float:
        return self.nodes * float(self.pi_A @ self.pi_B)

    @cached_property
    def A_powers(self) -> FloatArray:
        """A^i - A_inf, i = 0, 1, ..., until they vanish."""
        return _deviations(self.A, np.outer(np.ones(self.nodes), self.pi_A))

    @cached_property
    def B_powers(self) -> FloatArray:
        """B^i - B_inf, i = 0, 1, ..., until they vanish."""
        return _deviations(self.B, np.outer(self.pi_B, np.ones(self.nodes)))

    @cached_property
    def A_norms(self) -> FloatArray:
        return norms(self.A_powers)

    @cached_property
    def B_norms(self) -> FloatArray:
        return norms(self.B_powers)

    @cached_property
    def s_A(self) -> float:
        return spectral.mixing_sum(self.A).value

    @cached_property
    def s_B(self) -> float:
        return spectral.mixing_sum(self.B).value

    @cached_property
    def mixing(self) -> Mixing:
        return Mixing(pull=self.A, push=self.B, name=self.family)

    @property
    def least_block(self) -> float:
        """C-tilde."""
        return block_bound(self.nodes, self.c, self.s_A, self.s_B)

    @cached_property
    def constants(self) -> MixingConstants:
        """The constants of Theorem 1 for blocks of C-tilde steps, as `MixingConstants.of` computes them."""
        power = min(ceil(self.least_block), LARGEST_POWER)
        sums = (spectral.mixing_sum(matrix, power=power).value for matrix in (self.A, self.B))
        return MixingConstants(self.nodes, self.c, self.s_A, self.s_B, *sums)

    def steps_B(self) -> FloatArray:
        """Return delta_0 = I - B_inf and delta_j = B^j - B^(j-1)."""
        powers = self.B_powers
        return np.concatenate([powers[:1], powers[1:] - powers[:-1]])

    def changed(self, rng: Generator, scale: float) -> Pair:
        """Return another pair nearby, with the same graphs."""
        pull, push = (m * np.exp(scale * rng.standard_normal(m.shape)) for m in (self.A, self.B))
        return Pair(pull, push, self.family.removesuffix(", climbed") + ", climbed")

    def data(self) -> dict[str, Any]:
        """Return the matrices as plain data."""
        return {"A": self.A.tolist(), "B": self.B.tolist()}


def _deviations(matrix: FloatArray, limit: FloatArray) -> FloatArray:
    """matrix^i - limit for i = 0, 1, ..., by doubling: E_{i+k} = E_k E_i for i, k >= 1."""
    first = matrix - limit
    later = first[None]
    while len(later) < LONGEST and np.abs(later[-1]).max() > SHORT:
        later = np.concatenate([later, later[-1] @ later])
    return np.concatenate([(np.eye(len(matrix)) - limit)[None], later])


def norms(stack: FloatArray) -> FloatArray:
    """Return the spectral norms of a stack of matrices."""
    largest = np.linalg.eigvalsh(stack @ stack.transpose(0, 2, 1))[:, -1]
    return np.sqrt(np.maximum(largest, 0))


# ---- families


def average(n: int) -> Pair:
    """A = B = 11^T/n, for which s_A = s_B = c = 1."""
    return Pair(np.ones((n, n)), np.ones((n, n)), "11^T/n")


def two_nodes(rng: Generator) -> Pair:
    """Two nodes; the second eigenvalue is often negative, and each matrix may be near to reducible or to periodic."""

    def weights() -> FloatArray:
        stay = rng.beta(0.5, 0.5, size=2) * 0.96 + 0.02
        return np.array([[stay[0], 1 - stay[0]], [1 - stay[1], stay[1]]])

    return Pair(weights(), weights().T, "2 nodes")


def dense(rng: Generator) -> Pair:
    """All edges, with weights from nearly equal to very unequal."""
    n, spread = int(rng.integers(2, 9)), rng.choice([0.3, 1.0, 2.5])
    return Pair(np.exp(spread * rng.standard_normal((n, n))), np.exp(spread * rng.standard_normal((n, n))), "dense")


def near_average(rng: Generator) -> Pair:
    """Close to 11^T/n, where many of the bounds are nearly attained."""
    n, spread = int(rng.integers(2, 9)), 10.0 ** rng.uniform(-3, -0.5)
    pull, push = (np.exp(spread * rng.standard_normal((n, n))) for _ in range(2))
    return Pair(pull, push, "near 11^T/n")


def hub(rng: Generator) -> Pair:
    """Nodes 2.. hear node 0, node 0 hears node 1, node 1 hears (nearly) itself alone: one step goes far from the limit."""
    n = int(rng.integers(4, 13))
    return Pair(hub_weights(n, 10.0 ** rng.uniform(-4, -1)), hub_weights(n, 10.0 ** rng.uniform(-4, -1)).T, "hub")


def hub_weights(n: int, leak: float) -> FloatArray:
    """Return the weights of `hub`; all entries are positive, ``leak`` being the share of the other edges."""
    weights = np.full((n, n), leak / n)
    weights[2:, 0] = weights[0, 1] = weights[1, 1] = 1
    return weights


def ring(rng: Generator) -> Pair:
    """A ring with self-loops."""
    n = int(rng.integers(3, 10))
    forward = np.roll(np.eye(n), 1, axis=0)
    pull, push = (np.diag(rng.uniform(0.1, 9, n)) + forward * rng.uniform(0.1, 9, n) for _ in range(2))
    return Pair(pull, push, "ring")


def near_reducible(rng: Generator) -> Pair:
    """Two groups with small weights between them."""
    n, part = int(rng.integers(4, 9)), 2

    def weights() -> FloatArray:
        inner = rng.uniform(0.1, 1, (n, n))
        inner[:part, part:] *= 10.0 ** rng.uniform(-2, -1)
        inner[part:, :part] *= 10.0 ** rng.uniform(-2, -1)
        return inner

    return Pair(weights(), weights(), "near reducible")


def weighted_topology(rng: Generator) -> Pair:
    """The paper's networks: integers 1..9 on a topology, A and B from the same matrix."""
    name, build = TOPOLOGIES[int(rng.integers(len(TOPOLOGIES)))]
    return Pair.of(Mixing.random_integer(build(rng), seed=int(rng.integers(2**31))), name)


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
class SearchResult:
    """The largest score of a search, the pair that has it, and the number of pairs tried."""

    ratio: float
    pair: Pair
    tried: int

    @property
    def place(self) -> str:
        """The family and size of the pair."""
        return f"{self.pair.family}, n = {self.pair.nodes}"


def pairs(rng: Generator, count: int, families: Sequence[Callable[[Generator], Pair]] = FAMILIES) -> Iterator[Pair]:
    """Draw ``count`` pairs from the families in turn."""
    for number in range(count):
        yield families[number % len(families)](rng)


def worst(
    score: Callable[[Pair], float],
    rng: Generator,
    effort: int,
    *,
    families: Sequence[Callable[[Generator], Pair]] = FAMILIES,
    also: Sequence[Pair] = (),
) -> SearchResult:
    """Search for the pair with the largest score.

    Tries ``effort`` pairs of the families and those in ``also``, then climbs from the worst of them for half as many steps. Each
    step is a random change of all weights that is kept if it raises the score.
    """
    result: SearchResult | None = None
    climbs, tried = effort // 2, 0

    def updated(pair: Pair) -> SearchResult:
        ratio = score(pair)
        ratio = inf if isnan(ratio) else ratio  # a score that cannot be computed must not pass
        if result is None or ratio > result.ratio:
            return SearchResult(ratio, pair, tried)
        return replace(result, tried=tried)

    for pair in [*also, *pairs(rng, effort, families)]:
        tried += 1
        result = updated(pair)
    if result is None:
        raise PerronError(f"A search needs at least one pair to try; got effort={effort}. Ask for more.")
    for climb in range(climbs):
        tried += 1
        result = updated(result.pair.changed(rng, 0.5 * (1 - climb / climbs) + 0.01))
    return result


def check_inequality(
    score: Callable[..., float],
    rng: Generator,
    effort: int,
    *,
    version: tuple[Any, ...] = (),
    repaired: tuple[Any, ...] | None = None,
    repair: str = "",
    also: tuple[Pair, ...] = (),
    families: Sequence[Callable[[Generator], Pair]] = FAMILIES,
) -> Evidence:
    """Check left side <= right side by searching for the largest ratio; likewise for the repaired version.

    Args:
        score: ``(pair, *parameters)`` to left over right side.
        version, repaired: the parameters of the printed version and of the repaired one, if there is one.
    """
    found = worst(lambda pair: score(pair, *version), rng, effort, also=also, families=families)
    text = f"largest lhs/rhs {found.ratio:.4g} ({found.place}) of {found.tried} pairs"
    figures, passed = {"worst": found.ratio, "tried": float(found.tried)}, None
    if repaired is not None:
        # The repaired version is also tried on the printed version's worst pair.
        again = (*also, found.pair)
        mended = worst(lambda pair: score(pair, *repaired), rng, effort, also=again, families=families)
        figures["worst repaired"], passed = mended.ratio, within(mended.ratio)
        text += f"; with {repair}: {mended.ratio:.3g}"
    counterexample = found.pair.data() | {"lhs/rhs": found.ratio}
    return conclude(text, figures, counterexample, printed=within(found.ratio), repaired=passed)

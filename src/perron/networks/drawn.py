"""Networks with random matrices that differ in each step.

Draws are keyed by seed and step: step t has the same matrices in every trial, in the simulator and in every process, and a
resumed run needs no saved state. Products of independent matrices A_t with mean E[A] tend to 1 phi^T with a random phi whose mean
is the Perron vector of E[A]; so metrics and default steps use the mean matrices, `Mixing.expected`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from hashlib import sha256
from typing import Any, Literal, NoReturn

import numpy as np
from scipy.sparse import csr_array

from perron._typing import IntArray, check_whole
from perron.errors import MixingError, brief
from perron.networks.graph import Graph
from perron.networks.mixing import Mixing, Side
from perron.networks.stochastic import (
    Matrix,
    check_sizes,
    check_stochastic,
    freeze,
    normalize_columns,
    normalize_rows,
    to_csr,
    to_dense,
    worst_asymmetry,
    worst_sum,
)

Pair = dict[Side, Matrix]  # the matrices of a step
Draw = Callable[[int, np.random.Generator], Any]
EXAMPLES = 256  # draws that mean matrices are estimated from
FIRST = 16  # draws that are looked at for properties which all draws share


class DrawnMixing(Mixing):
    """A network whose matrices are a function of the step and of random numbers.

    The result is accepted wherever a `Mixing` is, unless one fixed matrix is needed, as by exact theory.

    Args:
        draw: ``draw(step, random)`` returns the network of a step: a pair (pull, push) of matrices, a `Mixing`, or a `Graph`,
            which gets uniform weights. ``random`` is a NumPy generator that is seeded with ``(seed, step)``. Every
            matrix needs a positive diagonal.
        seed: of the draws.
        connected: required connectivity of the mean matrices, as in `Mixing`.
        name: for tables and errors.

    Example:
        >>> from perron.networks import topologies
        >>> ring, complete = topologies.ring(5), topologies.complete(5)
        >>> mixing = DrawnMixing(lambda step, random: complete if random.random() < 0.1 else ring)
        >>> mixing
        <Mixing of 5 nodes: random in each step>
        >>> [int((mixing.pull_at(step) > 0).sum()) for step in range(8)]
        [10, 10, 25, 10, 10, 10, 10, 25]
    """

    def __init__(
        self,
        draw: Draw,
        *,
        seed: int = 0,
        connected: Literal["strongly", "rooted"] = "strongly",
        name: str = "",
    ) -> None:
        if not callable(draw):
            raise MixingError(f"draw is a function of (step, random); got {brief(draw)}.")
        self._prepare(lambda step, random: _checked(step, draw(step, random)), seed, name)
        self._expect(self._estimated(connected))

    @classmethod
    def trusted(
        cls, draw: Callable[[int, np.random.Generator], Pair], seed: int, name: str, expected: Mixing | None
    ) -> Mixing:
        """The network of a sampler, whose draws need no check; without ``expected``, the mean is estimated."""
        made = cls.__new__(cls)
        made._prepare(draw, seed, name)
        made._expect(made._estimated("rooted") if expected is None else expected)
        return made

    def _prepare(self, draw: Callable[[int, np.random.Generator], Pair], seed: int, name: str) -> None:
        self._draw, self.seed, self.name = draw, check_whole("The seed of a network", seed), name
        self._last: tuple[int, Pair] = (-1, {})
        self._link_counts = {}

    def _expect(self, expected: Mixing) -> None:
        self._expected, self.nodes, self.labels = expected, expected.nodes, expected.labels

    def at(self, side: Side, step: int) -> Matrix:
        if not (self.has_pull if side == "pull" else self.has_push):
            self.expected.at(side, step)  # raises the error
        if self._last[0] != step:
            self._last = (step, self.draw(step))
        return self._last[1][side]

    def draw(self, step: int) -> Pair:
        """Return the matrices of a step by side."""
        return self._draw(step, np.random.default_rng([self.seed, step]))

    def repeated(self, rounds: int, expected: Mixing) -> Mixing:
        """Return the network of the products of ``rounds`` draws."""

        def product(step: int, _: np.random.Generator) -> Pair:
            found = self.draw(step * rounds)
            for number in range(1, rounds):
                found = {side: matrix @ found[side] for side, matrix in self.draw(step * rounds + number).items()}
            return found

        return DrawnMixing.trusted(product, self.seed, f"{self.name}, {rounds} rounds", expected)

    def index(self, side: Side, step: int) -> int:  # noqa: ARG002
        return step

    def link_count(self, side: Side, step: int) -> int:
        self._link_counts.clear()  # steps do not repeat
        return super().link_count(side, step)

    @property
    def expected(self) -> Mixing:
        return self._expected

    @property
    def sequences(self) -> NoReturn:
        raise MixingError(
            f"{self!r} has no fixed matrices, which this needs. Use the mean matrices, mixing.expected, or a sequence of graphs."
        )

    @property
    def has_pull(self) -> bool:
        return self.expected.has_pull

    @property
    def has_push(self) -> bool:
        return self.expected.has_push

    @property
    def period(self) -> int:
        return 0

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the mean and of the first draws."""
        digest = sha256(self.expected.fingerprint.encode())
        for matrix in self._first:
            digest.update(to_dense(matrix).tobytes())
        return digest.hexdigest()[:12]

    @cached_property
    def is_doubly_stochastic(self) -> bool:
        """Whether the mean matrices and the first draws are both row- and column-stochastic."""
        return self.expected.is_doubly_stochastic and not any(map(worst_sum, self._first))

    @cached_property
    def is_symmetric(self) -> bool:
        """Whether the mean matrices and the first draws are symmetric."""
        return self.expected.is_symmetric and not any(map(worst_asymmetry, self._first))

    def check_self_loops(self) -> None:
        if any((matrix.diagonal() == 0).any() for matrix in self._first):
            raise MixingError(
                f"{self!r}: some nodes have no self-loop in some steps, and this needs one at every node."
            )

    @property
    def _first(self) -> list[Matrix]:
        return [matrix for step in range(FIRST) for matrix in self.draw(step).values()]

    def _constant(self, side: Side) -> Matrix:
        raise MixingError(
            f"{side} is drawn at random in each step: ask for {side}_at(step), or for the mean, mixing.expected.{side}."
        )

    def _union_graph(self, side: Side) -> Graph:
        return self.expected.pull_graph if side == "pull" else self.expected.push_graph

    def _roots(self, side: str) -> IntArray:
        return self.expected._roots(side)

    def _estimated(self, connected: Literal["strongly", "rooted"]) -> Mixing:
        """The network of the averages of the first draws."""
        totals: dict[str, Any] = {}
        for step in range(EXAMPLES):
            for side, matrix in self.draw(step).items():
                totals[side] = totals[side] + csr_array(matrix) if side in totals else csr_array(matrix)
        return Mixing(**{side: total / EXAMPLES for side, total in totals.items()}, connected=connected)

    def __repr__(self) -> str:
        return f"<Mixing of {self.nodes} nodes: {', '.join(filter(None, [self.name, 'random in each step']))}>"


def _checked(step: int, found: Any) -> Pair:
    """The matrices that a function returned for a step, or an error that tells what is wrong with them."""
    if isinstance(found, Graph):
        weights = found.adjacency()
        found = (normalize_rows(weights), normalize_columns(weights))
    elif isinstance(found, Mixing):
        found = tuple(found.at(side, step) if there else None for side, there in _sides(found))
    if not isinstance(found, tuple) or len(found) != 2 or all(matrix is None for matrix in found):
        raise MixingError(
            f"step {step}: a network is drawn as a pair (pull, push) of matrices, a Mixing or a Graph; got {brief(found)}."
        )
    pulls, pushes = ([] if matrix is None else [to_csr(matrix)] for matrix in found)
    check_sizes(pulls, pushes)
    check_stochastic(pulls, pushes)
    pair: Pair = {}
    for side, matrices in (("pull", pulls), ("push", pushes)):
        for matrix in matrices:
            if not (diagonal := matrix.diagonal()).all():
                raise MixingError(
                    f"{side}, step {step}: a matrix that is drawn needs a positive diagonal; node "
                    f"{np.flatnonzero(diagonal == 0)[0]} has 0. Use graph.with_self_loops()."
                )
            pair[side] = freeze(matrix)  # type: ignore[index]
    return pair


def _sides(mixing: Mixing) -> list[tuple[Side, bool]]:
    return [("pull", mixing.has_pull), ("push", mixing.has_push)]

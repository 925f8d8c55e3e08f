"""Several exchanges in a step: the network whose matrices are products of as many of another's."""

from __future__ import annotations

from functools import reduce
from math import lcm
from typing import Literal

from perron.errors import MixingError
from perron.networks.drawn import DrawnMixing
from perron.networks.mixing import Mixing
from perron.networks.stochastic import Matrix, to_dense


def repeat(mixing: Mixing, rounds: int) -> Mixing:
    """Return the network of ``rounds`` exchanges in a step: A^rounds and B^rounds, or products of consecutive matrices in turn.

    What one step over this network does equals ``rounds`` exchanges over the given one, so its eigenvalues are powers.

    >>> from perron import Mixing, topologies
    >>> ring = Mixing.uniform(topologies.ring(4))
    >>> repeat(ring, 2).pull[0].tolist()
    [0.25, 0.0, 0.25, 0.5]
    """
    if rounds < 1:
        raise MixingError(f"A step has at least one exchange; got rounds={rounds}.")
    if rounds == 1:
        return mixing

    if isinstance(mixing, DrawnMixing):
        return mixing.repeated(rounds, repeat(mixing.expected, rounds))

    def products(matrices: tuple[Matrix, ...]) -> list[Matrix]:
        steps = lcm(len(matrices), rounds) // rounds if matrices else 0
        dense = [to_dense(matrix) for matrix in matrices]
        turns = ([dense[(step * rounds + turn) % len(dense)] for turn in range(rounds)] for step in range(steps))
        return [reduce(lambda product, matrix: matrix @ product, turn) for turn in turns]

    pull, push = (products(matrices) or None for matrices in mixing.sequences)
    connected: Literal["strongly", "rooted"] = "strongly" if mixing.is_strongly_connected else "rooted"
    return Mixing(pull, push, name=f"{mixing.name}, {rounds} rounds", connected=connected, labels=mixing.labels)

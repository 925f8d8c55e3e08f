"""What a step of an algorithm costs, measured on one simulated step: bytes, exchanges, and which overlap the gradient."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import torch
from torch import Tensor

from perron.algorithms.base import Algorithm, Query, advance, zero_answer
from perron.algorithms.codecs import Wire, wire_sizes
from perron.algorithms.moves import Moving
from perron.algorithms.node import SIDES, Side
from perron.algorithms.wrappers import Recording, ring_all_reduce
from perron.errors import PerronError
from perron.networks import topologies
from perron.networks.facts import Network
from perron.networks.mixing import Mixing
from perron.simulation.node import SimulatedNode

DRAWS = 64  # steps over which links are counted where they never repeat
PROBE_NODES, PROBE_DIM = 5, 9  # no two lengths of vectors coincide


class Traits(NamedTuple):
    """What one step of an algorithm does, for tables.

    Attributes:
        sends: what travels along an edge, in vectors of length d and n and scalars, as ``2 d + 1``.
        overlap: the state variables whose exchange overlaps the gradient, as ``x, y``; ``-`` for none.
        effective: the effective step as a multiple of lr: ``c``, ``n`` or ``1``, divided by the gain of momentum; with local
            steps a multiple of these, as ``4 c``.
    """

    sends: str
    overlap: str
    effective: str

    @property
    def effective_step(self) -> str:
        """The effective step with lr, as ``c lr``, ``4 c lr`` or ``n lr / 0.8``."""
        unit, divided, gain = self.effective.partition(" / ")
        return ("lr" if unit == "1" else f"{unit} lr") + divided + gain


def gradients_per_step(algorithm: Algorithm) -> int:
    """Return how many gradients of a node a step takes, the number of local steps; where it differs, it is refused."""
    counts = getattr(algorithm, "local_steps", 1)
    if isinstance(counts, tuple) and len(set(counts)) == 1:
        counts = counts[0]
    if not isinstance(counts, int):
        raise PerronError(
            f"{algorithm.about.title} takes different numbers of gradients in its steps, or on its nodes. Count steps instead."
        )
    return counts


def measure_traits(algorithm: Algorithm) -> Traits:
    """Record one step on a small network and read off what it does."""
    counts = getattr(algorithm, "local_steps", 1)
    network = _probe(algorithm, len(counts) if isinstance(counts, tuple) else PROBE_NODES)
    node = Recording(SimulatedNode(network.mixing, samples=_one_sample(network)))
    state = algorithm.init(torch.zeros(network.nodes, PROBE_DIM, dtype=torch.float64), node)
    overlap: list[str] = []
    gradients = 0

    def gradient(point: Tensor) -> Tensor:
        nonlocal gradients
        gradients += 1
        names = {id(value): name for name, value in state._asdict().items()}
        overlap.extend(names[id(one.sent)] for one in node.exchanges if not one.waited and id(one.sent) in names)
        return torch.zeros_like(point)

    def query(asked: Query) -> Tensor:
        gradient(asked.point)
        return zero_answer(asked)

    for node.step in range(2):  # the second step: at first, several variables are the same tensor
        node.exchanges.clear()
        overlap.clear()
        gradients = 0
        state = advance(algorithm, state, node, 0.0, gradient, query)
    lengths = Counter(one.sent.shape[-1] for one in node.exchanges if one.verb != "mean")
    units = {1: "1", network.nodes: "n", PROBE_DIM: "d"}
    sends = [
        f"{lengths[size]} {unit}" if lengths[size] > 1 else unit
        for size, unit in reversed(units.items())
        if lengths[size]
    ]
    names = ", ".join(dict.fromkeys(overlap))  # local steps ask for several gradients
    return Traits(" + ".join(sends) or "all-reduce of d", names or "-", _effective(algorithm, network, gradients))


def _effective(algorithm: Algorithm, network: Network, gradients: int) -> str:
    factor = algorithm.effective_step(network)
    gain = algorithm.move.gain if isinstance(algorithm, Moving) else 1.0
    over = "" if gain == 1 else f" / {1 / gain:.3g}"
    units = {"1": 1.0}
    if algorithm.about.matrices != "A B":
        units["n"] = float(network.nodes)
    if network.mixing.has_pull and network.mixing.has_push:
        units["c"] = network.alignment
    for unit, value in units.items():
        if abs(factor / gain / value - 1) < 1e-9:
            return unit + over
    if gradients > 1:  # local steps
        weighted = isinstance(algorithm, Moving) and algorithm.tracks and algorithm.move.scale_dependent
        unit = "1" if weighted or algorithm.about.matrices == "-" else "c"
        many = f"{factor / gain / units[unit]:.3g}"
        return (many if unit == "1" else f"{many} {unit}") + over
    unit = {"A B": "c", "A": "n"}[algorithm.about.matrices]
    return f"{unit} / {units[unit] / factor:.3g}"


def _probe(algorithm: Algorithm, nodes: int) -> Network:
    """A small network of the kind that an algorithm needs."""
    graph = topologies.ring(nodes)
    matrices = algorithm.about.matrices
    if matrices == "R C":
        return Network(Mixing.spanning_trees(graph))
    return Network(
        Mixing.metropolis(graph.symmetric()) if matrices.startswith("W") else Mixing.random_integer(graph, seed=0)
    )


def bytes_per_step(algorithm: Algorithm, network: Network, *, dim: int, wire: int | Wire, number: int = 4) -> float:
    """Return the bytes sent over all links in one step; for a time-varying network, the mean over its period.

    Args:
        algorithm, network: what is run, and where.
        dim: length of the model vector.
        wire: bytes of a number, or how vectors are quantized, see `perron.algorithms.codecs`.
        number: bytes of the numbers that are not quantized, if others are.

    Returns:
        The number of bytes; averages over all nodes count as ring all-reduces, whose messages do not travel along the links.
    """
    inner = SimulatedNode(network.mixing, samples=_one_sample(network))
    probe = network.nodes + 5  # no other vector has this length
    state = algorithm.init(torch.zeros(network.nodes, probe, dtype=torch.float64), inner)
    node = Recording(inner)
    advance(algorithm, state, node, 0.0, torch.zeros_like, zero_answer)
    vector, number = wire_sizes(wire, dim, number)
    times: dict[str, float] = {side: _links(network.mixing, side) for side in SIDES}
    times["mean"] = ring_all_reduce(network.nodes)
    full = dim * number  # averages are not quantized
    sent = 0.0
    for one in node.exchanges:
        whole = full if one.verb == "mean" else vector
        sent += times[one.verb] * (whole if one.sent.shape[-1] == probe else one.sent.shape[-1] * number)
    return sent


def _one_sample(network: Network) -> Tensor:
    return torch.ones(network.nodes, dtype=torch.int64)


def _links(mixing: Mixing, side: Side) -> float:
    """Mean number of links per step: over the period, or over some of the steps that never repeat."""
    if not (mixing.has_pull if side == "pull" else mixing.has_push):
        return 0.0
    steps = mixing.period or DRAWS
    return sum(mixing.link_count(side, step) for step in range(steps)) / steps

"""What a step of an algorithm costs, measured on one simulated step: bytes, exchanges, and which overlap the gradient."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import torch
from torch import Tensor

from perron.algorithms.base import Algorithm, Query, advance
from perron.algorithms.moves import Moving
from perron.algorithms.node import Side
from perron.algorithms.wrappers import Counting, Recording
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
        effective: the effective step as a multiple of lr: ``c``, ``n`` or ``1``, divided by the gain of momentum.
    """

    sends: str
    overlap: str
    effective: str

    @property
    def effective_step(self) -> str:
        """The effective step with lr, as ``c lr`` or ``n lr / 0.8``."""
        unit, divided, gain = self.effective.partition(" / ")
        return ("lr" if unit == "1" else f"{unit} lr") + divided + gain


def measure_traits(algorithm: Algorithm) -> Traits:
    """Record one step on a small network and read off what it does."""
    network = _probe(algorithm)
    node = Recording(SimulatedNode(network.mixing, samples=_one_sample(network)))
    state = algorithm.init(torch.zeros(PROBE_NODES, PROBE_DIM, dtype=torch.float64), node)
    overlap: list[str] = []

    def gradient(point: Tensor) -> Tensor:
        names = {id(value): name for name, value in state._asdict().items()}
        overlap.extend(names[id(one.sent)] for one in node.exchanges if not one.waited and id(one.sent) in names)
        return torch.zeros_like(point)

    def query(asked: Query) -> Tensor:
        gradient(asked.point)
        return zero_answer(asked)

    for node.step in range(2):  # the second step: at first, several variables are the same tensor
        node.exchanges.clear()
        overlap.clear()
        state = advance(algorithm, state, node, 0.0, gradient, query)
    lengths = Counter(one.sent.shape[-1] for one in node.exchanges if one.verb != "mean")
    units = {PROBE_DIM: "d", PROBE_NODES: "n", 1: "1"}
    sends = [f"{lengths[size]} {unit}" if lengths[size] > 1 else unit for size, unit in units.items() if lengths[size]]
    names = ", ".join(dict.fromkeys(overlap))  # local steps ask for several gradients
    return Traits(" + ".join(sends) or "all-reduce of d", names or "-", _effective(algorithm, network))


def _effective(algorithm: Algorithm, network: Network) -> str:
    factor = algorithm.effective_step(network)
    gain = algorithm.move.gain if isinstance(algorithm, Moving) else 1.0
    units = {"1": 1.0, "n": float(network.nodes)}
    if network.mixing.has_pull and network.mixing.has_push:
        units["c"] = network.alignment
    for unit, value in units.items():
        if abs(factor / gain / value - 1) < 1e-9:
            return unit if gain == 1 else f"{unit} / {1 / gain:.3g}"
    unit = {"A B": "c", "A": "n"}[algorithm.about.matrices]
    return f"{unit} / {units[unit] / factor:.3g}"


def _probe(algorithm: Algorithm) -> Network:
    """A small network of the kind that an algorithm needs."""
    graph = topologies.ring(PROBE_NODES)
    matrices = algorithm.about.matrices
    if matrices == "R C":
        return Network(Mixing.spanning_trees(graph))
    return Network(
        Mixing.metropolis(graph.symmetric()) if matrices.startswith("W") else Mixing.random_integer(graph, seed=0)
    )


def bytes_per_step(algorithm: Algorithm, network: Network, *, dim: int, wire: int) -> float | None:
    """Return the bytes sent over all links in one step; for a time-varying network, the mean over its period.

    Args:
        algorithm, network: what is run, and where.
        dim: length of the model vector.
        wire: bytes per number on the wire.

    Returns:
        The number of bytes, or None for methods with a server, whose messages do not travel along the links of the network.
    """
    if algorithm.about.matrices == "-":
        return None
    dims = (network.nodes + 5, network.nodes + 6)  # what is sent is affine in d; no other vector has these lengths
    edges: dict[Side, float] = {"pull": _links(network.mixing, "pull"), "push": _links(network.mixing, "push")}
    totals = []
    for d in dims:
        inner = SimulatedNode(network.mixing, samples=_one_sample(network))
        state = algorithm.init(torch.zeros(network.nodes, d, dtype=torch.float64), inner)
        node = Counting(inner, wire=wire)
        advance(algorithm, state, node, 0.0, torch.zeros_like, zero_answer)
        totals.append(sum(node.bytes[side] * edges[side] for side in edges))
    return totals[0] + (totals[1] - totals[0]) * (dim - dims[0])


def _one_sample(network: Network) -> Tensor:
    return torch.ones(network.nodes, dtype=torch.int64)


def zero_answer(query: Query) -> Tensor:
    """Return gradients that are zero."""
    zero = torch.zeros_like(query.point)
    return zero if query.samples is None else zero.unsqueeze(-2).expand(*query.samples.shape, -1)


def _links(mixing: Mixing, side: Side) -> float:
    """Mean number of links per step: over the period, or over some of the steps that never repeat."""
    if not (mixing.has_pull if side == "pull" else mixing.has_push):
        return 0.0
    steps = mixing.period or DRAWS
    return sum(mixing.link_count(side, step) for step in range(steps)) / steps

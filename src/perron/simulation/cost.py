"""Bytes that a step of an algorithm sends, counted in one simulated step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from scipy.sparse import csr_array

from perron.algorithms.base import Algorithm, advance
from perron.algorithms.node import Counting, Side
from perron.networks.facts import Network
from perron.networks.stochastic import Matrix
from perron.simulation.node import SimulatedNode


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
    pulls, pushes = network.mixing.sequences
    edges: dict[Side, float] = {"pull": _links(pulls), "push": _links(pushes)}
    totals = []
    for d in dims:
        node = Counting(SimulatedNode(network.mixing), wire=wire)
        state = algorithm.init(torch.zeros(network.nodes, d, dtype=torch.float64), node)
        node.bytes = {"pull": 0, "push": 0}
        advance(algorithm, state, node, 0.0, torch.zeros_like)
        totals.append(sum(node.bytes[side] * edges[side] for side in edges))
    return totals[0] + (totals[1] - totals[0]) * (dim - dims[0])


def _links(matrices: Sequence[Matrix]) -> float:
    """Mean number of links per step over the period."""
    counts = [csr_array(matrix).count_nonzero() - (matrix.diagonal() > 0).sum() for matrix in matrices]
    return sum(map(float, counts)) / len(counts) if counts else 0.0

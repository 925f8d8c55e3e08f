"""Going on after members were lost or have joined."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from perron.algorithms.base import Algorithm
from perron.errors import PerronError
from perron.networks.builder import NetworkLike, build_network
from perron.networks.facts import Network
from perron.networks.graph import Graph
from perron.networks.mixing import Mixing
from perron.networks.restrict import restrict

FALLBACKS = ("one_peer_exponential", "complete")

log = logging.getLogger("perron")


def rebuild_network(
    graph: NetworkLike,
    members: Sequence[int],
    algorithm: Algorithm | None = None,
    *,
    weights: str = "uniform",
    seed: int = 0,
) -> Mixing:
    """Return a network for the nodes that are members now.

    A topology's name or a function makes one of the new size. A fixed `Graph` or `Mixing` is restricted to the members, see
    `restrict`. Where that is impossible (a hypercube of five nodes) or the algorithm refuses the result, the one-peer
    exponential graph is used instead, or else the complete graph.
    """
    if len(members) == 1:
        return Mixing(pull=np.ones((1, 1)), push=np.ones((1, 1)))

    def resized() -> Mixing:
        if isinstance(graph, str) or (callable(graph) and not isinstance(graph, Graph | Mixing)):
            return build_network(graph, len(members), weights=weights, seed=seed)
        return restrict(build_network(graph, 0, weights=weights, seed=seed), members)

    makers: list[Callable[[], Mixing]] = [resized, *(partial(build_network, name, len(members)) for name in FALLBACKS)]
    for make in makers:
        try:
            found = make()
            if algorithm is not None:
                algorithm.check(Network(found))
            return found
        except (PerronError, np.linalg.LinAlgError) as error:
            log.warning("The network cannot be rebuilt for %d nodes, another is used instead: %s", len(members), error)
    raise PerronError(f"No network for the {len(members)} remaining nodes suits the algorithm.")

"""Networks for so many processes as there are: from what a user may say, and again when some of them are lost."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from inspect import signature
from typing import Any

import numpy as np

from perron._registry import named
from perron.algorithms.base import Algorithm
from perron.errors import PerronError
from perron.networks import topologies
from perron.networks.facts import Network
from perron.networks.graph import Graph
from perron.networks.mixing import RULES, Mixing

Wiring = str | Graph | Iterable[Graph] | Mixing | Callable[[int], Any]

FALLBACKS = ("one_peer_exponential", "complete")

log = logging.getLogger("perron")


def network(graph: Wiring, nodes: int, *, weights: str = "uniform", seed: int = 0) -> Mixing:
    """A network for so many nodes.

    Args:
        graph: the name of a topology, a `Graph`, a sequence of them for one that varies in time, a `Mixing`, or a function that
            makes one of these for a number of nodes.
        nodes: how many.
        weights: the weight rule for a graph.
        seed: of random topologies and weights.
    """
    if callable(graph) and not isinstance(graph, Graph | Mixing):
        graph = graph(nodes)
    if isinstance(graph, Mixing):
        return graph
    rule = named(weights, RULES, "weight rule")
    if isinstance(graph, str):
        family = named(graph, topologies.NAMES, "topology")
        built = family(nodes, **({"seed": seed} if "seed" in signature(family).parameters else {}))
    else:
        built = graph if isinstance(graph, Graph) else tuple(graph)  # type: ignore[arg-type]
    return rule(built, **({"seed": seed} if "seed" in signature(rule).parameters else {}))


def rewired(
    graph: Wiring,
    members: Sequence[int],
    algorithm: Algorithm | None = None,
    *,
    weights: str = "uniform",
    seed: int = 0,
) -> Mixing:
    """A network for those nodes that are there now.

    A topology's name or a function makes one of the new size. Of a fixed `Graph` or `Mixing`, what went through lost nodes goes
    directly: see `among`. Where that cannot be done (a hypercube of five nodes), or the algorithm refuses it, the one-peer
    exponential graph stands in, or else the complete one.
    """
    if len(members) == 1:
        return Mixing(pull=np.ones((1, 1)), push=np.ones((1, 1)))

    def made() -> Mixing:
        if isinstance(graph, str) or (callable(graph) and not isinstance(graph, Graph | Mixing)):
            return network(graph, len(members), weights=weights, seed=seed)
        return among(network(graph, 0, weights=weights, seed=seed), members)

    makers: list[Callable[[], Mixing]] = [made, *(partial(network, name, len(members)) for name in FALLBACKS)]
    for make in makers:
        try:
            found = make()
            if algorithm is not None:
                algorithm.check(Network(found))
            return found
        except (PerronError, np.linalg.LinAlgError) as error:
            log.warning("The network cannot be rebuilt for %d nodes, another is used instead: %s", len(members), error)
    raise PerronError(f"No network for the {len(members)} nodes that are left suits the algorithm.")


def among(mixing: Mixing, kept: Sequence[int]) -> Mixing:
    """The network between some of its nodes when the others are gone: what went through these goes directly.

        A' = A[k, k] + A[k, g] (I - A[g, g])^-1 A[g, k]          (k kept, g gone; the same for B)

    the stochastic complement [Meyer 1989]: a walk on the network, watched only while it is at kept nodes. It is row-stochastic if
    A is (B': column-stochastic), strongly connected if A is, and its Perron vector is that of A on the kept nodes, scaled.

    >>> sorted(among(Mixing.uniform(topologies.ring(4)), [0, 1, 3]).pull_graph.edges.tolist())
    [[0, 1], [1, 2], [2, 0]]
    """
    if list(kept) == list(range(mixing.nodes)):
        return mixing
    if outside := [node for node in kept if node >= mixing.nodes]:
        raise PerronError(f"The network has {mixing.nodes} nodes; there is no node {outside[0]}.")
    if mixing.period > 1:
        raise PerronError(
            "A network that varies in time cannot be restricted to some nodes; give a function n -> network."
        )
    gone = [node for node in range(mixing.nodes) if node not in set(kept)]

    def complement(matrices: Sequence[Any], axis: int) -> Any:
        if not matrices:
            return None
        full = matrices[0].toarray() if hasattr(matrices[0], "toarray") else np.asarray(matrices[0])
        through = np.linalg.solve(np.eye(len(gone)) - full[np.ix_(gone, gone)], full[np.ix_(gone, kept)])
        found = full[np.ix_(kept, kept)] + full[np.ix_(kept, gone)] @ through
        return found / found.sum(axis, keepdims=True)  # only rounding

    pulls, pushes = mixing.sequences
    return Mixing(pull=complement(pulls, 1), push=complement(pushes, 0))

"""Samplers: networks with random matrices that are drawn from the links or weights of another network.

See `perron.networks.drawn` for what such networks are; each sampler takes a `Mixing` and a seed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from scipy.sparse import csr_array

from perron._registry import public_dir
from perron._typing import FloatArray, IntArray
from perron.errors import MixingError
from perron.networks.drawn import DrawnMixing, Pair
from perron.networks.graph import Graph
from perron.networks.mixing import Mixing, Side
from perron.networks.stochastic import freeze, to_csr, to_dense


def pairwise(mixing: Mixing, *, seed: int = 0) -> Mixing:
    """Random pairwise gossip (Boyd et al. 2006): in each step, two linked nodes take their average and all others wait.

    W_t = I - (e_i - e_j)(e_i - e_j)^T / 2 with a link {i, j} that is drawn uniformly; it is symmetric and doubly stochastic. The
    links are those of the given network, which must be undirected; its weights do not matter. The mean is I - L / (2 m), with the
    Laplacian L of the graph and its m links.
    """
    graph = _undirected(mixing, "pairwise")
    links = graph.edges[graph.edges[:, 0] < graph.edges[:, 1]]

    def draw(_: int, random: np.random.Generator) -> Pair:
        return _averaging(mixing.nodes, links[random.integers(len(links), size=1)])

    share = np.zeros((mixing.nodes, mixing.nodes))
    share[graph.edges[:, 0], graph.edges[:, 1]] = 1 / (2 * len(links))
    np.fill_diagonal(share, 1 - share.sum(1))
    return DrawnMixing.trusted(draw, seed, _name(mixing, "random pairs"), Mixing(share, share, labels=mixing.labels))


def matching(mixing: Mixing, *, seed: int = 0) -> Mixing:
    """Random matchings: in each step, disjoint pairs of linked nodes take their average, as many as fit.

    Links are tried in a random order, and each is used whose two nodes are still free. Undirected networks only, as `pairwise`.
    """
    graph = _undirected(mixing, "matching")
    links = graph.edges[graph.edges[:, 0] < graph.edges[:, 1]]

    def draw(_: int, random: np.random.Generator) -> Pair:
        free, pairs = np.ones(mixing.nodes, dtype=bool), []
        for i, j in links[random.permutation(len(links))]:
            if free[i] and free[j]:
                free[[i, j]] = False
                pairs.append((i, j))
        return _averaging(mixing.nodes, np.array(pairs))

    made = DrawnMixing.trusted(draw, seed, _name(mixing, "random matchings"), None)
    made.labels = mixing.labels
    return made


def activation(mixing: Mixing, *, probability: float = 0.5, seed: int = 0) -> Mixing:
    """Nodes that sleep: in each step a node is awake with the given probability, and a link works if both its nodes are.

    The weight of a link that does not work stays with the receiver in A_t and with the sender in B_t. So rows and columns
    still sum to one, and a node that sleeps keeps its values. It still computes gradients.
    """
    _check_probability("activation", probability, zero=False)
    plan = _Switched(mixing, "activation")

    def draw(_: int, random: np.random.Generator) -> Pair:
        awake = random.random(mixing.nodes) < probability
        return plan.matrices(awake[plan.sources] & awake[plan.targets])

    expected = plan.matrices(np.full(len(plan.sources), probability**2))
    return plan.drawn(draw, seed, f"nodes awake with probability {probability:g}", expected)


def link_failures(mixing: Mixing, *, probability: Any = 0.1, seed: int = 0) -> Mixing:
    """Links that fail: in each step, each link fails on its own with the given probability.

    A link carries pulls and pushes, and fails for both. The weight of a link that fails stays with the receiver in A_t and with
    the sender in B_t, so that rows and columns still sum to one: both ends know that it failed. (Links that lose messages
    without the sender knowing are the options loss, delay and repeats of `simulate`.)

    Args:
        probability: one for all links, or a matrix whose entry ``[i, j]`` is that of the link from node j to node i.
    """
    plan = _Switched(mixing, "link_failures")
    if np.ndim(probability) == 2 or hasattr(probability, "toarray"):
        table = to_dense(to_csr(probability))
        if table.shape != (mixing.nodes, mixing.nodes):
            raise MixingError(
                f"link_failures takes one probability, or a matrix of {mixing.nodes} x {mixing.nodes}; got {table.shape}."
            )
        chances, text = table[plan.targets, plan.sources], "links fail, each with its own probability"
    else:
        chances, text = np.full(len(plan.sources), probability), f"links fail with probability {probability}"
    for chance in np.unique(chances):
        _check_probability("link_failures", chance, zero=True)

    def draw(_: int, random: np.random.Generator) -> Pair:
        return plan.matrices(random.random(len(chances)) >= chances)

    return plan.drawn(draw, seed, text, plan.matrices(1 - chances))


def spanning_trees(mixing: Mixing, *, root: int | None = None, seed: int = 0) -> Mixing:
    """Random pairs of spanning trees: in each step, models flow down one from the root and gradients up the other to it.

    Both trees are uniformly distributed among the spanning trees of the given graphs (Wilson 1996), drawn independently. The
    default root is the first node that can be one.
    """
    roots = mixing.common_roots
    if not len(roots) or (root is not None and root not in roots):
        raise MixingError(f"spanning_trees needs a root that reaches all nodes and that all reach; got root={root}.")
    top, n = int(roots[0] if root is None else root), mixing.nodes
    inputs = _neighbors(mixing.pull_graph.edges, n)
    outputs = _neighbors(mixing.push_graph.edges[:, ::-1], n)

    def draw(_: int, random: np.random.Generator) -> Pair:
        above = [_tree(inputs, top, random), _tree(outputs, top, random)]
        pull, push = np.zeros((n, n)), np.zeros((n, n))
        pull[np.arange(n), above[0]] = 1
        push[above[1], np.arange(n)] = 1
        return {"pull": pull, "push": push}

    return DrawnMixing.trusted(draw, seed, _name(mixing, f"random spanning trees with root {top}"), None)


SAMPLERS: dict[str, Callable[..., Mixing]] = {
    one.__name__: one for one in (pairwise, matching, activation, link_failures, spanning_trees)
}


class _Switched:
    """The weights of a network whose links may be switched off."""

    def __init__(self, mixing: Mixing, what: str) -> None:
        if mixing.varies:
            raise MixingError(f"{what} needs a network with fixed weights; {mixing!r} varies in time.")
        self.mixing, n = mixing, mixing.nodes
        graphs = [mixing.pull_graph] * mixing.has_pull + [mixing.push_graph] * mixing.has_push
        names = np.unique(np.concatenate([graph.edges[:, 0] * n + graph.edges[:, 1] for graph in graphs]))
        self.sources, self.targets = names // n, names % n
        self._weights: dict[Side, tuple[FloatArray, FloatArray]] = {}
        for side, matrix in zip(("pull", "push"), mixing.sequences, strict=True):
            if matrix:
                links = np.asarray(csr_array(matrix[0])[self.targets, self.sources]).ravel()
                self._weights[side] = (links, matrix[0].diagonal())  # type: ignore[index]

    def matrices(self, works: Any) -> Pair:
        """A and B with the weight of each link times ``works``; the receiver keeps the rest in A, the sender in B."""
        found: Pair = {}
        node = np.arange(self.mixing.nodes)
        for side, (links, own) in self._weights.items():
            kept = self.targets if side == "pull" else self.sources
            diagonal = own + np.bincount(kept, links * (1 - works), minlength=len(node))
            entries = (np.r_[links * works, diagonal], (np.r_[self.targets, node], np.r_[self.sources, node]))
            found[side] = freeze(to_csr(csr_array(entries, shape=(len(node), len(node)))))
        return found

    def drawn(self, draw: Callable[[int, np.random.Generator], Pair], seed: int, text: str, expected: Pair) -> Mixing:
        connected: Literal["strongly", "rooted"] = "strongly" if self.mixing.is_strongly_connected else "rooted"
        mean = Mixing(expected.get("pull"), expected.get("push"), connected=connected, labels=self.mixing.labels)
        return DrawnMixing.trusted(draw, seed, _name(self.mixing, text), mean)


def _undirected(mixing: Mixing, what: str) -> Graph:
    graph = mixing.pull_graph if mixing.has_pull else mixing.push_graph
    if not graph.is_symmetric:
        raise MixingError(f"{what} needs an undirected graph: two nodes exchange values. Use graph.symmetric().")
    return graph


def _averaging(nodes: int, pairs: IntArray) -> Pair:
    """W in which each of the disjoint pairs takes its average."""
    W = np.eye(nodes)
    i, j = pairs[:, 0], pairs[:, 1]
    W[i, i] = W[j, j] = W[i, j] = W[j, i] = 0.5
    return {"pull": W, "push": W}


def _neighbors(edges: IntArray, nodes: int) -> list[IntArray]:
    """For each node the sources of its incoming edges."""
    apart = edges[edges[:, 0] != edges[:, 1]]
    return [apart[apart[:, 1] == node, 0] for node in range(nodes)]


def _tree(choices: list[IntArray], root: int, random: np.random.Generator) -> IntArray:
    """The parents in a uniformly distributed spanning tree: random walks to the tree so far, without their loops."""
    parent, done = np.full(len(choices), root), np.zeros(len(choices), dtype=bool)
    done[root] = True
    for start in range(len(choices)):
        node = start
        while not done[node]:  # a node that is visited again forgets where it went before, which erases loops
            parent[node] = choices[node][random.integers(len(choices[node]))]
            node = parent[node]
        node = start
        while not done[node]:
            done[node] = True
            node = parent[node]
    return parent


def _check_probability(what: str, value: Any, *, zero: bool) -> None:
    if isinstance(value, str) or not ((0 <= value < 1) if zero else (0 < value <= 1)):
        bounds = "at least 0 and below 1" if zero else "above 0 and at most 1"
        raise MixingError(f"{what} needs a probability {bounds}; got {value!r}.")


def _name(mixing: Mixing, text: str) -> str:
    return ", ".join(filter(None, [mixing.name, text]))


__dir__ = public_dir(__name__)

"""The two matrices with which a network mixes: pull = A (row-stochastic) and push = B (column-stochastic).

``[i, j]`` is the weight that node i gives to what it hears from node j, in both. A row of A sums to one: the listener
shares out its attention. A column of B sums to one: the speaker shares out its mass, so that none is lost. A `Mixing`
is checked once, where it is born, and trusted ever after.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from hashlib import sha256
from typing import Any, Literal

import numpy as np
from scipy.sparse import csr_array, diags_array, issparse
from scipy.sparse.csgraph import shortest_path

from perron._typing import IntArray, check_whole
from perron.errors import GraphError, MixingError, brief, listed
from perron.networks.balancing import balance
from perron.networks.graph import Graph
from perron.networks.stochastic import (
    Matrix,
    as_csr,
    check_entries,
    check_stochastic,
    columns_to_one,
    rows_to_one,
    skewed,
    stored,
    uneven,
)

Graphs = Graph | Sequence[Graph]
Side = Literal["pull", "push"]


class Mixing:
    """The weights with which nodes mix what they hear, checked.

    Args:
        pull: A, row-stochastic, n x n: an array, a scipy sparse matrix or a tensor; or a sequence of them that
            repeats in time, A_t = pull[t mod len(pull)]. May be left out where only push-only methods are run.
        push: B, column-stochastic, likewise. Its graph may differ from that of A.
        connected: what is asked of the two graphs. ``"strongly"``, the paper's assumption: each strongly connected.
            ``"rooted"``, enough for Push-Pull: some node reaches all others along A and is reached by all along B.
        name: how it is called in tables and errors.

    Every matrix needs a positive diagonal entry (in time-varying sequences, a positive diagonal), or mixing would go
    round in circles; in a sequence the union of the graphs has to be connected.

    Raises:
        MixingError: naming the row, column, node or edge at fault and what was found.

    Example:
        >>> Mixing(pull=[[0.5, 0.5], [0.25, 0.75]], push=[[0.5, 0.25], [0.5, 0.75]])
        <Mixing of 2 nodes: dense>
        >>> Mixing(pull=[[0.5, 0.5], [0.25, 0.75]], push=[[0.5, 0.5], [0.25, 0.75]])
        Traceback (most recent call last):
            ...
        perron.errors.MixingError: push: column 0 sums to 0.75, must be 1 within 1e-09. Its rows do sum to one: both \
matrices are row-stochastic, which lets the nodes agree, but on a wrong point. Divide each column by its sum instead.
    """

    def __init__(
        self,
        pull: Any = None,
        push: Any = None,
        *,
        connected: Literal["strongly", "rooted"] = "strongly",
        name: str = "",
    ) -> None:
        if pull is None and push is None:
            raise MixingError(
                "A Mixing needs a pull matrix (row-stochastic), a push matrix (column-stochastic) or both."
            )
        if connected not in ("strongly", "rooted"):
            raise MixingError(f"connected is 'strongly' or 'rooted'; got {connected!r}.")
        pulls, pushes = _as_sequence(pull), _as_sequence(push)
        self.nodes = _common_size(pulls, pushes)
        check_stochastic(pulls, pushes)
        self._pulls = tuple(stored(matrix) for matrix in pulls)
        self._pushes = tuple(stored(matrix) for matrix in pushes)
        self.name = name
        self._check_connected(connected)
        self._check_loops()

    # ---- the matrices

    @property
    def pull(self) -> Matrix:
        """A, where it does not vary in time."""
        return self._fixed("pull", self._pulls)

    @property
    def push(self) -> Matrix:
        """B, where it does not vary in time."""
        return self._fixed("push", self._pushes)

    def pull_at(self, step: int) -> Matrix:
        """A_t: the pull matrix of a step."""
        self._check_has("pull", self._pulls)
        return self._pulls[step % len(self._pulls)]

    def push_at(self, step: int) -> Matrix:
        """B_t: the push matrix of a step."""
        self._check_has("push", self._pushes)
        return self._pushes[step % len(self._pushes)]

    @property
    def sequences(self) -> tuple[tuple[Matrix, ...], tuple[Matrix, ...]]:
        """All pull matrices and all push matrices of a period."""
        return self._pulls, self._pushes

    @property
    def has_pull(self) -> bool:
        """Whether there is a row-stochastic matrix."""
        return bool(self._pulls)

    @property
    def has_push(self) -> bool:
        """Whether there is a column-stochastic matrix."""
        return bool(self._pushes)

    @property
    def period(self) -> int:
        """After how many steps the matrices repeat; 1 if they never change."""
        return int(np.lcm(len(self._pulls) or 1, len(self._pushes) or 1))

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the entries of all matrices: equal for equal networks, in every process."""
        digest = sha256()
        for matrix in (*self._pulls, *self._pushes):
            digest.update((matrix.toarray() if issparse(matrix) else matrix).tobytes())
        return digest.hexdigest()[:12]

    @cached_property
    def pull_graph(self) -> Graph:
        """Who pulls from whom (over a period, if it varies)."""
        self._check_has("pull", self._pulls)
        return _union_graph(self._pulls, f"pull graph of {self.name or 'the mixing'}")

    @cached_property
    def push_graph(self) -> Graph:
        """Who pushes to whom (over a period, if it varies)."""
        self._check_has("push", self._pushes)
        return _union_graph(self._pushes, f"push graph of {self.name or 'the mixing'}")

    # ---- what an algorithm may ask for

    @cached_property
    def is_strongly_connected(self) -> bool:
        """Whether all its graphs are strongly connected (over a period, if they vary)."""
        return all(graph.is_strongly_connected for graph in self._graphs())

    @cached_property
    def common_roots(self) -> IntArray:
        """The nodes that reach all others by pulling and are reached by all by pushing."""
        roots = np.arange(self.nodes)
        if self.has_pull:
            roots = np.intersect1d(roots, self.pull_graph.roots())
        if self.has_push:
            roots = np.intersect1d(roots, self.push_graph.reverse().roots())
        return roots

    @cached_property
    def is_doubly_stochastic(self) -> bool:
        """Whether all its matrices are both row- and column-stochastic."""
        return not any(uneven(matrix) for matrix in self._pulls + self._pushes)

    @cached_property
    def is_symmetric(self) -> bool:
        """Whether all its matrices are symmetric."""
        return not any(skewed(matrix) for matrix in self._pulls + self._pushes)

    def check_self_loops(self) -> None:
        """Raise a `MixingError` unless every node keeps a share of its own value, as pull-only methods need."""
        for side, matrices in (("pull", self._pulls), ("push", self._pushes)):
            for matrix in matrices:
                missing = np.flatnonzero(matrix.diagonal() == 0)
                if len(missing):
                    raise MixingError(
                        f"{side}: nodes {{{listed(missing)}}} have no self-loop (zero on the diagonal), and this needs "
                        "one at every node: a pull-only method divides by it. Use graph.with_self_loops()."
                    )

    # ---- weight rules

    @classmethod
    def uniform(cls, graph: Graphs, push_graph: Graphs | None = None) -> Mixing:
        """Equal weights: each node averages what it hears; each node splits what it has into equal parts.

        A[i, j] = 1 / (number of nodes that i hears), B[i, j] = 1 / (number of nodes that hear j), itself counted if it
        has a self-loop. Doubly stochastic on regular graphs.
        """
        return cls._from_rule(graph, push_graph, lambda graph: graph.adjacency(), "uniform weights")

    @classmethod
    def normalized(
        cls, weights: Any, *, connected: Literal["strongly", "rooted"] = "strongly", name: str = ""
    ) -> Mixing:
        """Own weights: pull is the given matrix with each row, push the same with each column, divided by its sum."""
        matrix = as_csr(weights)
        check_entries("weights", matrix)
        return cls(rows_to_one(matrix), columns_to_one(matrix), connected=connected, name=name or "own weights")

    @classmethod
    def lazy(cls, graph: Graphs, push_graph: Graphs | None = None, *, keep: float = 0.5) -> Mixing:
        """Lazy weights: keep a given share, and treat the rest as `uniform` does among the other nodes."""
        if not 0 < keep < 1:
            raise MixingError(f"lazy weights keep a share between 0 and 1; got {keep}.")

        def pull(graph: Graph) -> csr_array:
            return _with_share(rows_to_one(_links(graph)), keep, axis=1)

        def push(graph: Graph) -> csr_array:
            return _with_share(columns_to_one(_links(graph)), keep, axis=0)

        pulls, pushes = _both(graph, push_graph)
        name = f"{_name(graph)}, lazy weights (keep {keep:g})"
        return cls([pull(g) for g in pulls], [push(g) for g in pushes], name=name)

    @classmethod
    def random_integer(
        cls,
        graph: Graphs,
        push_graph: Graphs | None = None,
        *,
        low: int = 1,
        high: int = 9,
        seed: int = 0,
        shared: bool = True,
    ) -> Mixing:
        """The paper's weights: random integers low .. high on all edges and self-loops, normalised.

        With ``shared``, A and B are the row- and the column-normalisation of ONE integer matrix, as in the paper;
        otherwise (and where the two graphs differ) of independent ones.

        >>> Mixing.random_integer(Graph(2, [(0, 1), (1, 0)]), seed=0).pull.round(3).tolist()
        [[0.571, 0.429], [0.625, 0.375]]
        """
        if not 1 <= check_whole("low", low) <= check_whole("high", high):
            raise MixingError(f"random_integer needs 1 <= low <= high; got low={low}, high={high}.")
        check_whole("The seed of random_integer", seed)
        rng = np.random.default_rng(seed)

        def integers(graph: Graph) -> csr_array:
            pattern = graph.adjacency()
            pattern.data = rng.integers(low, high, endpoint=True, size=pattern.nnz).astype(np.float64)
            return pattern

        rule = f"random integer weights {low}..{high}, seed {seed}"
        if push_graph is None and shared:
            return cls._from_rule(graph, None, integers, rule)
        pulls, pushes = _both(graph, push_graph)
        return cls(
            [rows_to_one(integers(g)) for g in pulls],
            [columns_to_one(integers(g)) for g in pushes],
            name=f"{_name(graph)}, {rule}, independent",
        )

    @classmethod
    def metropolis(cls, graph: Graph) -> Mixing:
        """Metropolis weights of an undirected graph: pull = push = W, symmetric and doubly stochastic.

        W[i, j] = 1 / (1 + max(degree i, degree j)) on the links, the rest of each row on the diagonal.
        """
        edge = _one_graph(graph, "metropolis").one_way_edge()
        if edge is not None:
            raise MixingError(
                f"Metropolis weights need an undirected graph; {graph.name} has the edge {edge} but not its reverse. "
                "Use graph.symmetric(), or Mixing.balanced(graph) for doubly stochastic weights on a digraph."
            )
        source, target = graph.edges.T
        weight = 1.0 / (1 + np.maximum(graph.in_degrees[source], graph.in_degrees[target]))
        links = csr_array((weight, (target, source)), shape=(graph.nodes, graph.nodes))
        W = csr_array(links + diags_array(1 - links.sum(axis=1)))
        return cls(W, W, name=f"{graph.name}, Metropolis weights")

    @classmethod
    def balanced(cls, graph: Graph) -> Mixing:
        """Doubly stochastic weights on a digraph (Sinkhorn balancing of its 0-1 matrix): pull = push = W.

        They exist on every strongly connected graph with all self-loops, and in general where each edge lies on a
        collection of disjoint cycles through all nodes; otherwise the error names an edge that does not.
        """
        W = balance(_one_graph(graph, "balanced"))
        return cls(W, W, name=f"{graph.name}, balanced weights")

    @classmethod
    def spanning_trees(cls, graph: Graph, push_graph: Graph | None = None, *, root: int | None = None) -> Mixing:
        """Spanning-tree pair: models flow down a tree from the root, gradients flow up a tree to it (STPP, BTPP).

        pull[i, parent of i in the downward tree] = 1, push[parent of i in the upward tree, i] = 1, and the root keeps
        its own. Both trees are breadth-first, so that pull^t and push^t reach their limits exactly after as many steps
        as the trees are deep. Without ``root``, the one with the smallest sum of the two depths (for more than 2,000
        nodes: the first possible one).
        """
        upward = (push_graph or _one_graph(graph, "spanning_trees")).reverse()
        if upward.nodes != graph.nodes:
            raise MixingError(f"The two graphs need as many nodes; got {graph.nodes} and {upward.nodes}.")
        roots = np.intersect1d(graph.roots(), upward.roots())
        if root is None:
            if not len(roots):
                raise MixingError(_no_common_root(graph, push_graph or graph))
            root = _central(graph, upward, roots) if graph.nodes <= 2000 else int(roots[0])
        node = np.arange(graph.nodes)
        one, shape = np.ones(graph.nodes), (graph.nodes, graph.nodes)
        pull = csr_array((one, (node, graph.tree(root).parent)), shape=shape)
        push = csr_array((one, (upward.tree(root).parent, node)), shape=shape)
        return cls(pull, push, connected="rooted", name=f"{graph.name}, spanning trees with root {root}")

    @classmethod
    def _from_rule(
        cls, graph: Graphs, push_graph: Graphs | None, weights: Callable[[Graph], csr_array], rule: str
    ) -> Mixing:
        """A and B as the row- and column-normalisation of ``weights(graph)``: of the same matrix on the same graph."""
        pulls = [weights(graph) for graph in _listed_graphs(graph)]
        pushes = pulls if push_graph is None else [weights(graph) for graph in _listed_graphs(push_graph)]
        return cls(
            [rows_to_one(m) for m in pulls],
            [columns_to_one(m) for m in pushes],
            name=f"{_name(graph)}, {rule}",
        )

    # ---- checks

    def _graphs(self) -> list[Graph]:
        return ([self.pull_graph] if self.has_pull else []) + ([self.push_graph] if self.has_push else [])

    def _check_connected(self, connected: str) -> None:
        if connected == "strongly":
            for graph in self._graphs():
                try:
                    graph.check_strongly_connected()
                except GraphError as error:
                    hint = "" if not len(self.common_roots) else (
                        f" Or pass connected='rooted': nodes {{{listed(self.common_roots)}}} are common roots, "
                        "which is enough for Push-Pull."
                    )  # fmt: skip
                    raise MixingError(f"{error}{hint}") from None
        elif not len(self.common_roots):
            raise MixingError(_no_common_root(*self._graphs()))

    def _check_loops(self) -> None:
        """Aperiodic: over time the values settle instead of going round in circles."""
        for side, matrices in (("pull", self._pulls), ("push", self._pushes)):
            for matrix in matrices:
                diagonal = matrix.diagonal()
                if len(matrices) > 1 and (diagonal == 0).any():
                    raise MixingError(
                        f"{side}: a matrix of a time-varying sequence needs a positive diagonal; node "
                        f"{np.flatnonzero(diagonal == 0)[0]} has 0. Use graph.with_self_loops()."
                    )
                roots = self.pull_graph.roots() if side == "pull" else self.push_graph.reverse().roots()
                if not diagonal[roots].any():
                    who = (
                        "diagonal entry"
                        if len(roots) == self.nodes
                        else f"diagonal entry among the roots {{{listed(roots)}}}"
                    )
                    raise MixingError(
                        f"{side}: no positive {who}. The theory asks for one, lest the values go round in circles and never "
                        "settle. Give at least one node a self-loop, such as graph.with_self_loops() does."
                    )

    def _fixed(self, side: Side, matrices: tuple[Matrix, ...]) -> Matrix:
        self._check_has(side, matrices)
        if len(matrices) > 1:
            raise MixingError(f"{side} varies in time (period {len(matrices)}): ask for {side}_at(step).")
        return matrices[0]

    def _check_has(self, side: Side, matrices: tuple[Matrix, ...]) -> None:
        if not matrices:
            kind = "row-stochastic" if side == "pull" else "column-stochastic"
            raise MixingError(f"This network has no {side} matrix. Pass {side}=, a {kind} matrix, to Mixing.")

    def __repr__(self) -> str:
        kind = "sparse" if issparse((self._pulls or self._pushes)[0]) else "dense"
        varying = f", period {self.period}" if self.period > 1 else ""
        return f"<Mixing of {self.nodes} nodes: {', '.join(filter(None, [self.name, kind]))}{varying}>"


# ---- checks of single matrices


def _as_sequence(matrices: Any) -> list[csr_array]:
    if matrices is None:
        return []
    try:
        several = isinstance(matrices, list | tuple) and len(matrices) > 0 and np.ndim(matrices[0]) != 1
    except ValueError:  # not even a matrix of equally long rows; as_csr will say so
        several = True
    return [as_csr(matrix) for matrix in (matrices if several else [matrices])]


def _common_size(pulls: list[csr_array], pushes: list[csr_array]) -> int:
    shapes = [("pull", m.shape) for m in pulls] + [("push", m.shape) for m in pushes]
    for side, (rows, columns) in shapes:
        if rows != columns or not rows:
            raise MixingError(
                f"{side} must be a square matrix, a row and a column for each node; got {rows} x {columns}."
            )
    first = shapes[0][1][0]
    for side, (rows, _) in shapes:
        if rows != first:
            raise MixingError(f"All matrices need as many nodes; got {first} in {shapes[0][0]} but {rows} in {side}.")
    return int(first)


def _no_common_root(pull: Graph, push: Graph | None = None) -> str:
    push = push or pull
    down, up = pull.roots(), push.reverse().roots()
    return (
        "The network has no common root: no node reaches all others along pull and is reached by all along push. "
        f"Nodes that reach all others along pull: {{{listed(down) or 'none'}}}; nodes that all others reach along "
        f"push: {{{listed(up) or 'none'}}}. Add edges until the two share a node."
    )


def _union_graph(matrices: tuple[Matrix, ...], name: str) -> Graph:
    return Graph.from_matrix(sum(csr_array(matrix) for matrix in matrices), name=name)


# ---- pieces of the weight rules


def _listed_graphs(graph: Graphs) -> list[Graph]:
    graphs = [graph] if isinstance(graph, Graph) else list(graph)
    if not graphs or not all(isinstance(one, Graph) for one in graphs):
        raise MixingError(f"Weights go on a Graph or a sequence of them; got {brief(graph)}.")
    return graphs


def _one_graph(graph: Graphs, rule: str) -> Graph:
    if not isinstance(graph, Graph):
        raise MixingError(
            f"{rule} weights go on one graph, not on a time-varying sequence; use uniform, lazy or random_integer."
        )
    return graph


def _both(graph: Graphs, push_graph: Graphs | None) -> tuple[list[Graph], list[Graph]]:
    return _listed_graphs(graph), _listed_graphs(graph if push_graph is None else push_graph)


def _name(graph: Graphs) -> str:
    return graph.name if isinstance(graph, Graph) else graph[0].name.split(" +")[0]


def _links(graph: Graph) -> csr_array:
    source, target = graph.edges.T
    return csr_array((np.ones(len(source)), (target, source)), shape=(graph.nodes, graph.nodes))


def _with_share(matrix: csr_array, keep: float, axis: int) -> csr_array:
    """keep I + (1 - keep) matrix; a node that the matrix leaves idle keeps all."""
    idle = matrix.sum(axis=axis) == 0
    return csr_array(diags_array(np.where(idle, 1.0, keep)) + (1 - keep) * matrix)


def _central(down: Graph, up: Graph, roots: IntArray) -> int:
    """The root with the smallest sum of the depths of its two breadth-first trees."""
    depth = [shortest_path(_links(g).T, unweighted=True, indices=roots).max(axis=1) for g in (down, up)]
    return int(roots[np.argmin(depth[0] + depth[1])])


RULES: dict[str, Callable[..., Mixing]] = {
    "random_integer": Mixing.random_integer,
    "uniform": Mixing.uniform,
    "lazy": Mixing.lazy,
    "metropolis": Mixing.metropolis,
    "balanced": Mixing.balanced,
    "spanning_trees": Mixing.spanning_trees,
}

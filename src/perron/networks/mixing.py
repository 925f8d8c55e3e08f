"""The two mixing matrices of a network: pull = A (row-stochastic) and push = B (column-stochastic).

In both, ``[i, j]`` is the weight that node i gives to the value it receives from node j. A row of A sums to one: a receiver takes
a weighted average. A column of B sums to one: a sender splits its value, so that the total over all nodes is conserved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Literal

import numpy as np
from scipy.sparse import csr_array, issparse

from perron._typing import IntArray, check_whole
from perron.errors import MixingError, listed
from perron.networks._checks import check_labels
from perron.networks._weights import (
    Graphs,
    add_diagonal,
    as_graphs,
    as_single,
    balance,
    check_aperiodic,
    check_connected,
    choose_root,
    common_nodes,
    links,
    metropolis,
    tree_matrices,
)
from perron.networks.graph import Graph
from perron.networks.layout import to_html
from perron.networks.stochastic import (
    Matrix,
    as_sequence,
    check_entries,
    check_sizes,
    check_stochastic,
    count_links,
    fingerprint,
    freeze,
    normalize_columns,
    normalize_rows,
    same_pattern,
    to_csr,
    worst_asymmetry,
    worst_sum,
)

Side = Literal["pull", "push"]


class Mixing:
    """The weights with which nodes mix the values they receive. They are checked at construction and never change.

    Args:
        pull: A, row-stochastic, n x n: an array, a scipy sparse matrix or a tensor; or a sequence of them that
            repeats in time, A_t = pull[t mod len(pull)]. May be omitted for push-only methods. Sums of single precision are
            corrected to those of double precision, with a warning.
        push: B, column-stochastic, likewise. Its graph may differ from that of A.
        connected: the required connectivity. ``"strongly"``, the paper's assumption: both graphs are strongly connected.
            ``"rooted"``, sufficient for Push-Pull: some node reaches all others along A and is reached by all along B.
        name: for tables and errors.
        labels: names of the nodes; weight rules take those of the graph.

    Every matrix needs a positive diagonal entry (in time-varying sequences, a positive diagonal), otherwise its powers may not
    converge; in a sequence the union of the graphs has to be connected.

    Raises:
        MixingError: with the row, column, node or edge at fault.

    Example:
        >>> Mixing(pull=[[0.5, 0.5], [0.25, 0.75]], push=[[0.5, 0.25], [0.5, 0.75]])
        <Mixing of 2 nodes: dense>
        >>> Mixing(pull=[[0.5, 0.5], [0.25, 0.75]], push=[[0.5, 0.5], [0.25, 0.75]])
        Traceback (most recent call last):
            ...
        perron.errors.MixingError: push: column 0 sums to 0.75, must be 1 within 1e-09. Its rows do sum to one: both \
matrices are row-stochastic, which lets the nodes agree, but on a wrong point. Divide each column by its sum instead.
    """

    labels: tuple[str, ...] | None = None

    def __init__(
        self,
        pull: Any = None,
        push: Any = None,
        *,
        connected: Literal["strongly", "rooted"] = "strongly",
        name: str = "",
        labels: Sequence[str] | None = None,
    ) -> None:
        if pull is None and push is None:
            raise MixingError(
                "A Mixing needs a pull matrix (row-stochastic), a push matrix (column-stochastic) or both."
            )
        if connected not in ("strongly", "rooted"):
            raise MixingError(f"connected is 'strongly' or 'rooted'; got {connected!r}.")
        pulls, pushes = as_sequence(pull, axis=1), as_sequence(push, axis=0)
        self.nodes = check_sizes(pulls, pushes)
        check_stochastic(pulls, pushes)
        self._matrices = {"pull": tuple(map(freeze, pulls)), "push": tuple(map(freeze, pushes))}
        self._link_counts: dict[tuple[Side, int], int] = {}
        self.name = name
        self.labels = check_labels(labels, self.nodes)
        roots = {side: self._roots(side) for side in self._matrices}
        check_connected(connected, roots, self._graphs())
        check_aperiodic(self._matrices, roots)

    # ---- the matrices

    @property
    def pull(self) -> Matrix:
        """A, if it does not vary in time."""
        return self._constant("pull")

    @property
    def push(self) -> Matrix:
        """B, if it does not vary in time."""
        return self._constant("push")

    def pull_at(self, step: int) -> Matrix:
        """Return A_t, the pull matrix of a step."""
        return self.at("pull", step)

    def push_at(self, step: int) -> Matrix:
        """Return B_t, the push matrix of a step."""
        return self.at("push", step)

    def at(self, side: Side, step: int) -> Matrix:
        """Return A_t or B_t."""
        return self._existing(side)[self.index(side, step)]

    def index(self, side: Side, step: int) -> int:
        """Return a number that is equal for steps with the same matrix, for caches."""
        return step % len(self._existing(side))

    def link_count(self, side: Side, step: int) -> int:
        """Return the number of links, self-loops aside, along which messages of a step travel."""
        key = (side, self.index(side, step))
        if key not in self._link_counts:
            self._link_counts[key] = count_links(self.at(side, step))
        return self._link_counts[key]

    @property
    def sequences(self) -> tuple[tuple[Matrix, ...], tuple[Matrix, ...]]:
        """All pull matrices and all push matrices of a period."""
        return self._matrices["pull"], self._matrices["push"]

    @property
    def has_pull(self) -> bool:
        """Whether there is a row-stochastic matrix."""
        return bool(self._matrices["pull"])

    @property
    def has_push(self) -> bool:
        """Whether there is a column-stochastic matrix."""
        return bool(self._matrices["push"])

    @property
    def period(self) -> int:
        """The number of steps after which the matrices repeat: 1 if they are constant, 0 if they never do."""
        return int(np.lcm.reduce([len(matrices) or 1 for matrices in self.sequences]))

    @property
    def varies(self) -> bool:
        """Whether the matrices differ between steps."""
        return self.period != 1

    @property
    def expected(self) -> Mixing:
        """The network of the mean matrices, where matrices are drawn at random; otherwise itself."""
        return self

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the entries of all matrices: equal for equal networks, in every process."""
        return fingerprint([*self.sequences[0], *self.sequences[1]])

    @cached_property
    def pull_graph(self) -> Graph:
        """The graph of A (the union over a period, if it varies)."""
        return self._union_graph("pull")

    @cached_property
    def push_graph(self) -> Graph:
        """The graph of B (the union over a period, if it varies)."""
        return self._union_graph("push")

    # ---- properties that algorithms require

    @cached_property
    def is_strongly_connected(self) -> bool:
        """Whether all its graphs are strongly connected (over a period, if they vary)."""
        return all(graph.is_strongly_connected for graph in self._graphs())

    @cached_property
    def common_roots(self) -> IntArray:
        """The nodes that reach all others along A and are reached by all along B."""
        return common_nodes({side: self._roots(side) for side in self._matrices})

    @cached_property
    def is_doubly_stochastic(self) -> bool:
        """Whether all its matrices are both row- and column-stochastic."""
        return not any(worst_sum(matrix) for matrices in self.sequences for matrix in matrices)

    @cached_property
    def is_symmetric(self) -> bool:
        """Whether all its matrices are symmetric."""
        return not any(worst_asymmetry(matrix) for matrices in self.sequences for matrix in matrices)

    def check_self_loops(self) -> None:
        """Raise a `MixingError` unless every node has a self-loop, as pull-only methods require."""
        for side, matrices in self._matrices.items():
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
        """Equal weights: a receiver takes the mean of its inputs, and a sender splits its value into equal parts.

        A[i, j] = 1 / in-degree of i and B[i, j] = 1 / out-degree of j, where a self-loop counts. Doubly stochastic on regular
        graphs.
        """
        return cls._from_rule(graph, push_graph, lambda graph: graph.adjacency(), "uniform weights")

    @classmethod
    def from_weights(
        cls,
        weights: Any,
        *,
        connected: Literal["strongly", "rooted"] = "strongly",
        name: str = "",
        labels: Sequence[str] | None = None,
    ) -> Mixing:
        """Own weights: pull is the given matrix with each row, push the same with each column, divided by its sum."""
        matrix = to_csr(weights)
        check_entries("weights", matrix)
        sides = normalize_rows(matrix), normalize_columns(matrix)
        return cls(*sides, connected=connected, name=name or "own weights", labels=labels)

    normalized = from_weights  # its name in version 0.1

    @classmethod
    def lazy(cls, graph: Graphs, push_graph: Graphs | None = None, *, keep: float = 0.5) -> Mixing:
        """Lazy weights: ``keep`` on the diagonal, the rest as `uniform` on the links to other nodes."""
        if not 0 < keep < 1:
            raise MixingError(f"lazy weights keep a share between 0 and 1; got {keep}.")
        return cls._from_rule(graph, push_graph, links, f"lazy weights (keep {keep:g})", keep=keep)

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
        """The paper's weights: random integers low .. high on all edges and self-loops, normalized.

        With ``shared``, A and B are the row- and the column-normalization of ONE integer matrix, as in the paper;
        otherwise (and where the two graphs differ) of independent ones.

        >>> Mixing.random_integer(Graph(2, [(0, 1), (1, 0)]), seed=0).pull.round(3).tolist()
        [[0.571, 0.429], [0.625, 0.375]]
        """
        if not 1 <= check_whole("low", low) <= check_whole("high", high):
            raise MixingError(f"random_integer needs 1 <= low <= high; got low={low}, high={high}.")
        rng = np.random.default_rng(check_whole("The seed of random_integer", seed))

        def integers(graph: Graph) -> csr_array:
            pattern = graph.adjacency()
            pattern.data = rng.integers(low, high, endpoint=True, size=pattern.nnz).astype(np.float64)
            return pattern

        shared = shared and push_graph is None
        rule = f"random integer weights {low}..{high}, seed {seed}" + ("" if shared else ", independent")
        return cls._from_rule(graph, graph if push_graph is None and not shared else push_graph, integers, rule)

    @classmethod
    def metropolis(cls, graph: Graph) -> Mixing:
        """Metropolis weights of an undirected graph: pull = push = W, symmetric and doubly stochastic.

        W[i, j] = 1 / (1 + max(degree i, degree j)) on the links, the rest of each row on the diagonal.
        """
        graph = as_single(graph, "metropolis")
        W = metropolis(graph)
        return cls(W, W, name=f"{graph.name}, Metropolis weights", labels=graph.labels)

    @classmethod
    def balanced(cls, graph: Graph) -> Mixing:
        """Doubly stochastic weights on a digraph (Sinkhorn balancing of its 0-1 matrix): pull = push = W.

        They exist on every strongly connected graph with all self-loops, and in general if every edge lies on a
        collection of disjoint cycles through all nodes; otherwise the error contains an edge that does not.
        """
        graph = as_single(graph, "balanced")
        W = balance(graph)
        return cls(W, W, name=f"{graph.name}, balanced weights", labels=graph.labels)

    @classmethod
    def spanning_trees(cls, graph: Graph, push_graph: Graph | None = None, *, root: int | None = None) -> Mixing:
        """A pair of spanning trees: models flow down one from the root, gradients flow up the other to it (STPP, BTPP).

        pull[i, parent of i in the downward tree] = 1, push[parent of i in the upward tree, i] = 1, and the root has a self-loop
        in both. Both trees are breadth-first, so that pull^t and push^t are equal to their limits after as many steps as the
        trees are deep. The default root minimizes the sum of the two depths (above 2,000 nodes: the first possible root).
        """
        graph = as_single(graph, "spanning_trees")
        upward = (graph if push_graph is None else as_single(push_graph, "spanning_trees")).reverse()
        if upward.nodes != graph.nodes:
            raise MixingError(f"The two graphs need as many nodes; got {graph.nodes} and {upward.nodes}.")
        root = choose_root(graph, upward) if root is None else root
        name = f"{graph.name}, spanning trees with root {root}"
        return cls(*tree_matrices(graph, upward, root), connected="rooted", name=name, labels=graph.labels)

    @classmethod
    def _from_rule(
        cls,
        graph: Graphs,
        push_graph: Graphs | None,
        weights: Callable[[Graph], csr_array],
        rule: str,
        *,
        keep: float = 0.0,
    ) -> Mixing:
        """Normalize the rows of ``weights(graph)`` and the columns of ``weights(push_graph)``, by default of the same matrix."""
        graphs = as_graphs(graph)
        pulls = [weights(graph) for graph in graphs]
        push_graphs = [] if push_graph is None else as_graphs(push_graph)
        pushes = [weights(graph) for graph in push_graphs] or pulls
        labels = {one.labels for one in (*graphs, *push_graphs) if one.labels is not None}
        name = graphs[0].name if len(graphs) == 1 else graphs[0].name.split(" +")[0]
        return cls(
            [add_diagonal(normalize_rows(matrix), keep, axis=1) for matrix in pulls],
            [add_diagonal(normalize_columns(matrix), keep, axis=0) for matrix in pushes],
            name=f"{name}, {rule}",
            labels=labels.pop() if len(labels) == 1 else None,
        )

    # ---- private

    def _existing(self, side: Side) -> tuple[Matrix, ...]:
        if not self._matrices[side]:
            kind = "row-stochastic" if side == "pull" else "column-stochastic"
            raise MixingError(f"This network has no {side} matrix. Pass {side}=, a {kind} matrix, to Mixing.")
        return self._matrices[side]

    def _constant(self, side: Side) -> Matrix:
        matrices = self._existing(side)
        if len(matrices) > 1:
            raise MixingError(f"{side} varies in time (period {len(matrices)}): ask for {side}_at(step).")
        return matrices[0]

    def _union_graph(self, side: Side) -> Graph:
        matrices, name = self._existing(side), f"{side} graph of {self.name or 'the mixing'}"
        if side == "push" and self.has_pull and same_pattern(matrices, self._matrices["pull"]):
            return self.pull_graph.renamed(name)
        union = matrices[0] if len(matrices) == 1 else sum(csr_array(matrix) for matrix in matrices)
        return Graph.from_matrix(union, name=name, labels=self.labels)

    def _graphs(self) -> list[Graph]:
        return ([self.pull_graph] if self.has_pull else []) + ([self.push_graph] if self.has_push else [])

    def _roots(self, side: str) -> IntArray:
        """Return the nodes that reach all others along A, or that all others reach along B; all nodes without that matrix."""
        if not self._matrices[side]:
            return np.arange(self.nodes)
        return self.pull_graph.roots() if side == "pull" else self.push_graph.sinks()

    def __repr__(self) -> str:
        kind = "sparse" if issparse((self.sequences[0] or self.sequences[1])[0]) else "dense"
        varying = f", period {self.period}" if self.period > 1 else ""
        return f"<Mixing of {self.nodes} nodes: {', '.join(filter(None, [self.name, kind]))}{varying}>"

    _repr_html_ = to_html  # for notebooks


RULES: dict[str, Callable[..., Mixing]] = {
    "random_integer": Mixing.random_integer,
    "uniform": Mixing.uniform,
    "lazy": Mixing.lazy,
    "metropolis": Mixing.metropolis,
    "balanced": Mixing.balanced,
    "spanning_trees": Mixing.spanning_trees,
}

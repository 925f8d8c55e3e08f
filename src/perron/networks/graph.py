"""Directed graphs: nodes, edges, connectivity, spanning trees, conversion from and to networkx.

One convention holds everywhere in perron. An edge ``(source, target)`` carries messages from ``source`` to ``target``. In a
matrix, ``[i, j]`` is the weight of node ``j`` at node ``i``: row = receiver, column = sender. Edge ``(j, i)`` is ``[i, j]``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csr_array, issparse
from scipy.sparse.csgraph import breadth_first_order, connected_components

from perron._typing import FloatArray, IntArray
from perron.errors import GraphError, brief, listed

if TYPE_CHECKING:
    import networkx as nx


MAX_NODES = 10_000_000
MAX_EDGES = 100_000_000
BYTES_PER_NODE = 200  # a node with about ten edges, in a graph and its two mixing matrices


class Tree(NamedTuple):
    """A spanning tree with the parent and the depth of each node (``parent[root] = root``)."""

    root: int
    parent: IntArray
    depth: IntArray


class Graph:
    """A directed graph. It never changes.

    ``edges`` are the links between different nodes, ``self_loops`` the nodes that give weight to their own value when they mix.
    Links cost messages; self-loops decide whether mixing converges.

    Args:
        nodes: the number of nodes, which are 0 .. nodes-1.
        edges: pairs ``(source, target)``. A pair ``(i, i)`` is a self-loop; repeated pairs count once.
        self_loops: whether every node has one (the paper's convention), or only those among ``edges``.
        name: for tables and errors.
        note: a remark on its construction, such as the number of draws of a random graph.
        labels: names of the nodes.
        positions: positions of the nodes in drawings, ``(nodes, 2)``.

    Example:
        >>> graph = Graph(3, [(0, 1), (1, 2), (2, 0)])
        >>> graph.sources(1), graph.targets(1)
        (array([0]), array([2]))
        >>> graph.is_strongly_connected
        True
    """

    def __init__(
        self,
        nodes: int,
        edges: Iterable[tuple[int, int]] | ArrayLike = (),
        *,
        self_loops: bool = True,
        name: str = "",
        note: str = "",
        labels: Sequence[str] | None = None,
        positions: ArrayLike | None = None,
    ) -> None:
        self.nodes = check_nodes(nodes)
        pairs = _to_pairs(edges, self.nodes)
        loop = pairs[:, 0] == pairs[:, 1]
        has_loop = np.full(self.nodes, bool(self_loops))
        has_loop[pairs[loop, 0]] = True
        self.self_loops: IntArray = _frozen(np.flatnonzero(has_loop))
        pairs = pairs[~loop]
        # Entry [target, source]; building the matrix sorts the edges and merges repeated ones.
        shape = (self.nodes, self.nodes)
        ones = np.ones(len(pairs), dtype=np.int8)
        self._links = csr_array((ones, (pairs[:, 1], pairs[:, 0])), shape=shape)
        self._links.sum_duplicates()
        self._links.data[:] = 1
        self.name = name or f"graph on {self.nodes} nodes"
        self.note = note
        self.labels = _check_labels(labels, self.nodes)
        self.positions = _to_positions(positions, self.nodes)

    @cached_property
    def edges(self) -> IntArray:
        """The links between different nodes, as rows ``(source, target)`` sorted by target, then source."""
        links = self._links.tocoo()
        return _frozen(np.stack([links.col, links.row], axis=1).astype(np.int64))

    def sources(self, node: int) -> IntArray:
        """Return the other nodes from which ``node`` receives."""
        return _neighbors(self._links, self.check_node(node))

    def targets(self, node: int) -> IntArray:
        """Return the other nodes to which ``node`` sends."""
        return _neighbors(self._by_source, self.check_node(node))

    @property
    def in_degrees(self) -> IntArray:
        """The number of other nodes from which each node receives."""
        return np.diff(self._links.indptr).astype(np.int64)

    @property
    def out_degrees(self) -> IntArray:
        """The number of other nodes to which each node sends."""
        return np.diff(self._by_source.indptr).astype(np.int64)

    @cached_property
    def _by_source(self) -> csr_array:
        """The links with entry [source, target]."""
        return self._links.T.tocsr()

    def adjacency(self) -> csr_array:
        """Return the 0-1 matrix with ``[i, j] = 1`` where i receives from j, with self-loops on the diagonal."""
        ones, loops = np.ones(len(self.self_loops)), self.self_loops
        return csr_array(self._links + csr_array((ones, (loops, loops)), shape=self._links.shape), dtype=np.float64)

    @property
    def has_all_self_loops(self) -> bool:
        """Whether every node has a self-loop."""
        return len(self.self_loops) == self.nodes

    @cached_property
    def is_symmetric(self) -> bool:
        """Whether every link goes both ways (an undirected graph)."""
        return self.one_way_edge() is None

    def one_way_edge(self) -> tuple[int, int] | None:
        """Return the first link ``(source, target)`` without its reverse, or None if the graph is undirected."""
        one_way = csr_array(self._links > self._by_source).tocoo()
        return (int(one_way.col[0]), int(one_way.row[0])) if one_way.nnz else None

    def label(self, node: int) -> str:
        """Return the label of a node, or its number."""
        return self.labels[node] if self.labels else str(node)

    # ---- other graphs from it

    def reverse(self) -> Graph:
        """Return the graph with all edges reversed."""
        return self._with_edges(self.edges[:, ::-1], name=f"reverse of {self.name}")

    def symmetric(self) -> Graph:
        """Return the undirected graph, in which every link goes both ways."""
        return self._with_edges(np.concatenate([self.edges, self.edges[:, ::-1]]), name=f"undirected {self.name}")

    def with_self_loops(self) -> Graph:
        """Return the graph with a self-loop at every node."""
        return self._with_edges(self.edges, name=self.name, self_loops=True)

    def _with_edges(self, edges: IntArray, *, name: str, self_loops: bool = False) -> Graph:
        loops = np.stack([self.self_loops, self.self_loops], axis=1)
        return Graph(
            self.nodes, np.concatenate([edges, loops]), self_loops=self_loops, name=name, labels=self.labels,
            positions=self.positions,
        )  # fmt: skip

    # ---- connectivity

    @cached_property
    def components(self) -> IntArray:
        """The strongly connected component of each node, as a number."""
        _, component = connected_components(self._links, directed=True, connection="strong")
        return _frozen(component.astype(np.int64))

    @property
    def is_strongly_connected(self) -> bool:
        """Whether a directed path leads from every node to every other."""
        return int(self.components.max()) == 0

    def check_strongly_connected(self) -> None:
        """Raise a `GraphError` with nodes that cannot reach others, unless the graph is strongly connected."""
        if self.is_strongly_connected:
            return
        count = int(self.components.max()) + 1
        sources, sinks = self._open_components()
        # Nothing leads out of a sink nor into a source: an edge from a sink to a source is missing.
        sink, source = next((sink, source) for sink in sinks for source in sources if sink != source)
        ends, starts = np.flatnonzero(self.components == sink), np.flatnonzero(self.components == source)
        shown = [f"{{{self._format(np.flatnonzero(self.components == number))}}}" for number in range(min(count, 6))]
        groups = ", ".join(shown) + (f", ... ({count - 6} more)" if count > 6 else "")
        end, start = self.label(ends[0]), self.label(starts[0])
        raise GraphError(
            f"{self.name} is not strongly connected: it falls into {count} strongly connected components, {groups}. "
            f"Nodes {{{self._format(ends)}}} cannot reach nodes {{{self._format(starts)}}}, for example {end} cannot reach "
            f"{start}. Add an edge from the former to the latter, such as ({end}, {start})."
        )

    def roots(self) -> IntArray:
        """Return the nodes from which every node can be reached: the possible roots of a spanning tree.

        The nodes that every node can reach are ``graph.reverse().roots()``.
        """
        sources, _ = self._open_components()
        return np.flatnonzero(self.components == sources[0]) if len(sources) == 1 else np.empty(0, dtype=np.int64)

    def _open_components(self) -> tuple[IntArray, IntArray]:
        """Return the components without incoming edges, and those without outgoing edges."""
        source, target = self.components[self.edges].T
        crossing = source != target
        every = np.arange(int(self.components.max()) + 1)
        return np.setdiff1d(every, target[crossing]), np.setdiff1d(every, source[crossing])

    def tree(self, root: int) -> Tree:
        """Return the breadth-first spanning tree along which messages flow from ``root`` to every node.

        The tree along which messages flow from every node to ``root`` is ``graph.reverse().tree(root)``.
        """
        root = self.check_node(root)
        order, parent = breadth_first_order(self._by_source, root, directed=True)
        if len(order) < self.nodes:
            unreached = np.setdiff1d(np.arange(self.nodes), order)
            raise GraphError(
                f"{self.name} has no spanning tree from root {self.label(root)}: no path leads from there to nodes "
                f"{{{self._format(unreached)}}}. Roots that reach every node: {{{self._format(self.roots()) or 'none'}}}."
            )
        parent = parent.astype(np.int64)
        parent[root] = root
        depth = np.zeros(self.nodes, dtype=np.int64)
        for node in order[1:]:
            depth[node] = depth[parent[node]] + 1
        return Tree(root, _frozen(parent), _frozen(depth))

    def _format(self, nodes: IntArray) -> str:
        return listed([self.label(int(node)) for node in nodes])

    def check_node(self, node: int) -> int:
        """Return the node if it exists, otherwise raise a `GraphError`."""
        if not isinstance(node, int | np.integer) or not 0 <= node < self.nodes:
            raise GraphError(f"{self.name} has nodes 0 .. {self.nodes - 1}; got node {node}.")
        return int(node)

    # ---- conversion

    @classmethod
    def from_matrix(cls, matrix: Any, *, name: str = "", labels: Sequence[str] | None = None) -> Graph:
        """Return the graph of a weight matrix: i receives from j where ``matrix[i, j]`` is not zero."""
        shape = matrix.shape if issparse(matrix) else np.shape(matrix)
        if len(shape) != 2 or shape[0] != shape[1]:
            raise GraphError(f"A graph needs a square matrix; got shape {shape}.")
        entries = csr_array(matrix != 0 if issparse(matrix) else np.asarray(matrix) != 0).tocoo()
        pairs = np.stack([entries.col, entries.row], axis=1)
        return cls(shape[0], pairs, self_loops=False, name=name, labels=labels)

    @classmethod
    def from_networkx(cls, graph: nx.Graph[Any], *, self_loops: bool = True, name: str = "") -> Graph:
        """Convert a networkx graph, in its node order; an undirected link becomes an edge each way."""
        number = {node: i for i, node in enumerate(graph.nodes)}
        pairs = [(number[source], number[target]) for source, target in graph.edges()]
        if not graph.is_directed():
            pairs += [(target, source) for source, target in pairs]
        plain = all(node == i for i, node in enumerate(graph.nodes))
        labels = None if plain else [str(node) for node in graph.nodes]
        return cls(len(number), pairs, self_loops=self_loops, name=name or str(graph.name), labels=labels)

    def to_networkx(self) -> nx.DiGraph[Any]:
        """Convert to networkx, with self-loops; labels become the node attribute ``label``."""
        import networkx as nx

        graph: nx.DiGraph[Any] = nx.DiGraph(name=self.name)
        graph.add_nodes_from(range(self.nodes))
        graph.add_edges_from(self.edges.tolist())
        graph.add_edges_from((node, node) for node in self.self_loops.tolist())
        if self.labels:
            nx.set_node_attributes(graph, dict(enumerate(self.labels)), "label")
        return graph

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Graph)
            and self.nodes == other.nodes
            and self.labels == other.labels
            and np.array_equal(self.self_loops, other.self_loops)
            and np.array_equal(self.edges, other.edges)
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<Graph {self.name}: {self.nodes} nodes, {self._links.nnz} edges, {len(self.self_loops)} self-loops>"


def check_nodes(nodes: int) -> int:
    """Return the number of nodes if it is valid and fits into memory, otherwise raise an error."""
    if isinstance(nodes, bool) or not isinstance(nodes, int | np.integer) or nodes < 1:
        raise GraphError(f"A graph needs a whole number of nodes, at least 1; got {nodes!r}.")
    if nodes > MAX_NODES:
        gigabytes = nodes * BYTES_PER_NODE / 1e9
        raise GraphError(
            f"{nodes:,} nodes would need about {gigabytes:,.0f} GB; perron takes at most {MAX_NODES:,} nodes."
        )
    return int(nodes)


def check_edges(family: str, expected: float, remedy: str) -> None:
    """Raise an error, before a graph is built, if it would not fit into memory."""
    if expected > MAX_EDGES:
        raise GraphError(
            f"{family} would have about {expected:,.0f} edges, {expected * 40 / 1e9:,.0f} GB with its two matrices; at most "
            f"{MAX_EDGES:,} are built. Choose {remedy}."
        )


def _to_pairs(edges: Iterable[tuple[int, int]] | ArrayLike, nodes: int) -> IntArray:
    try:
        raw = np.asarray(edges if isinstance(edges, np.ndarray) else list(edges))  # type: ignore[arg-type]
    except (ValueError, TypeError):
        raise GraphError(f"Edges are pairs of whole numbers (source, target); got {brief(edges)}.") from None
    if raw.size == 0:
        return np.empty((0, 2), dtype=np.int64)
    if raw.ndim != 2 or raw.shape[1] != 2 or not np.issubdtype(raw.dtype, np.integer):
        raise GraphError(f"Edges are pairs of whole numbers (source, target); got shape {raw.shape}, type {raw.dtype}.")
    wrong = np.flatnonzero(((raw < 0) | (raw >= nodes)).any(axis=1))
    if len(wrong):
        source, target = raw[wrong[0]]
        raise GraphError(f"Edge ({source}, {target}) leaves the nodes 0 .. {nodes - 1}.")
    return raw.astype(np.int64, copy=False)


def _check_labels(labels: Sequence[str] | None, nodes: int) -> tuple[str, ...] | None:
    if labels is None:
        return None
    if len(labels) != nodes or len(set(labels)) != nodes:
        raise GraphError(
            f"{nodes} nodes need {nodes} different labels; got {len(labels)}, {len(set(labels))} different."
        )
    for label in labels:
        if not label or not str(label).isprintable() or str(label) != str(label).strip():
            raise GraphError(f"A label is printable text without blanks around it; got {brief(label)}.")
    return tuple(str(label) for label in labels)


def _to_positions(positions: ArrayLike | None, nodes: int) -> FloatArray | None:
    if positions is None:
        return None
    try:
        where = np.array(positions, dtype=np.float64)
    except (ValueError, TypeError):
        where = np.empty(0)
    if where.shape != (nodes, 2) or not np.isfinite(where).all():
        raise GraphError(f"Positions are a finite ({nodes}, 2) array; got shape {where.shape}.")
    return _frozen(where)


def _neighbors(matrix: csr_array, row: int) -> IntArray:
    return matrix.indices[matrix.indptr[row] : matrix.indptr[row + 1]].astype(np.int64)


def _frozen(array: Any) -> Any:
    array.flags.writeable = False
    return array

"""Who hears whom: nodes, directed edges, connectivity, spanning trees, networkx in and out.

One convention holds everywhere in perron. An edge ``(source, target)`` carries messages from ``source`` to
``target``. In a matrix, ``[i, j]`` belongs to what node ``i`` takes from node ``j``: row = listener, column =
speaker, so edge ``(j, i)`` is entry ``[i, j]``.
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
    """A spanning tree: ``parent[i]`` is the node through which node i hangs on ``root`` (``parent[root] = root``)."""

    root: int
    parent: IntArray
    depth: IntArray


class Graph:
    """A directed graph of who hears whom.

    ``edges`` are the links between different nodes, ``self_loops`` the nodes that keep a share of their own value
    when they mix. Both matter: links cost messages, self-loops decide whether mixing converges. A graph never
    changes after it is made.

    Args:
        nodes: how many nodes; they are numbered 0 .. nodes-1.
        edges: pairs ``(source, target)``. A pair ``(i, i)`` is a self-loop; repeated pairs count once.
        self_loops: ``True``, every node has one (the paper's convention); ``False``, only those among ``edges``.
        name: how the graph is called in tables and errors.
        note: a remark on how it came about, such as how often a random graph was drawn anew.
        labels: the user's names of the nodes.
        positions: where to draw the nodes, ``(nodes, 2)``.

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
        pairs = _checked_pairs(edges, self.nodes)
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
        self.labels = _checked_labels(labels, self.nodes)
        self.positions = _checked_positions(positions, self.nodes)

    # ---- what it consists of

    @cached_property
    def edges(self) -> IntArray:
        """The links between different nodes, as rows ``(source, target)`` sorted by target, then source."""
        links = self._links.tocoo()
        return _frozen(np.stack([links.col, links.row], axis=1).astype(np.int64))

    def sources(self, node: int) -> IntArray:
        """The other nodes that ``node`` hears."""
        return _neighbors(self._links, self._checked_node(node))

    def targets(self, node: int) -> IntArray:
        """The other nodes that hear ``node``."""
        return _neighbors(self._speaks, self._checked_node(node))

    @property
    def in_degrees(self) -> IntArray:
        """How many other nodes each node hears."""
        return np.diff(self._links.indptr).astype(np.int64)

    @property
    def out_degrees(self) -> IntArray:
        """How many other nodes hear each node."""
        return np.diff(self._speaks.indptr).astype(np.int64)

    @cached_property
    def _speaks(self) -> csr_array:
        """The links by speaker: entry [source, target]."""
        return self._links.T.tocsr()

    def adjacency(self) -> csr_array:
        """The 0-1 matrix with ``[i, j] = 1`` where i hears j, self-loops on the diagonal."""
        return csr_array(self._links + self._loops(), dtype=np.float64)

    def _loops(self) -> csr_array:
        return csr_array((np.ones(len(self.self_loops)), (self.self_loops, self.self_loops)), shape=self._links.shape)

    @property
    def has_all_self_loops(self) -> bool:
        """Whether every node keeps a share of its own value."""
        return len(self.self_loops) == self.nodes

    @cached_property
    def is_symmetric(self) -> bool:
        """Whether every link goes both ways (an undirected graph)."""
        return self.one_way_edge() is None

    def one_way_edge(self) -> tuple[int, int] | None:
        """The first link ``(source, target)`` without its reverse, or None if the graph is undirected."""
        lonely = csr_array(self._links > self._speaks).tocoo()
        return (int(lonely.col[0]), int(lonely.row[0])) if lonely.nnz else None

    def label(self, node: int) -> str:
        """The user's name of a node, or its number."""
        return self.labels[node] if self.labels else str(node)

    # ---- other graphs from it

    def reverse(self) -> Graph:
        """The graph with every edge turned round."""
        return self._changed(self.edges[:, ::-1], name=f"reverse of {self.name}")

    def symmetric(self) -> Graph:
        """The undirected graph: every link goes both ways."""
        return self._changed(np.concatenate([self.edges, self.edges[:, ::-1]]), name=f"undirected {self.name}")

    def with_self_loops(self) -> Graph:
        """The graph in which every node keeps a share of its own value."""
        return self._changed(self.edges, name=self.name, self_loops=True)

    def _changed(self, edges: IntArray, *, name: str, self_loops: bool = False) -> Graph:
        loops = np.stack([self.self_loops, self.self_loops], axis=1)
        return Graph(
            self.nodes, np.concatenate([edges, loops]), self_loops=self_loops, name=name, labels=self.labels,
            positions=self.positions,
        )  # fmt: skip

    # ---- connectivity

    @cached_property
    def components(self) -> IntArray:
        """For each node the number of its strongly connected component."""
        _, component = connected_components(self._links, directed=True, connection="strong")
        return _frozen(component.astype(np.int64))

    @property
    def is_strongly_connected(self) -> bool:
        """Whether a directed path leads from every node to every other."""
        return int(self.components.max()) == 0

    def check_strongly_connected(self) -> None:
        """Raise a `GraphError` that says which nodes cannot reach which, unless the graph is strongly connected."""
        if self.is_strongly_connected:
            return
        count = int(self.components.max()) + 1
        deaf, mute = self._open_components()
        # Nothing leads out of a mute component nor into a deaf one: an edge between them is what is missing.
        sink, source = next((sink, source) for sink in mute for source in deaf if sink != source)
        unheard, unreached = (
            np.flatnonzero(self.components == sink),
            np.flatnonzero(self.components == source),
        )
        shown = [f"{{{self._named(np.flatnonzero(self.components == one))}}}" for one in range(min(count, 6))]
        groups = ", ".join(shown) + (f", ... ({count - 6} more)" if count > 6 else "")
        raise GraphError(
            f"{self.name} is not strongly connected: it falls into {count} strongly connected components, {groups}. "
            f"Nodes {{{self._named(unheard)}}} cannot reach nodes {{{self._named(unreached)}}}, for example "
            f"{self.label(unheard[0])} cannot reach {self.label(unreached[0])}. Add an edge from the former to the "
            f"latter, such as ({self.label(unheard[0])}, {self.label(unreached[0])})."
        )

    def roots(self) -> IntArray:
        """The nodes from which every node can be reached: the possible roots of a spanning tree.

        For the nodes that every node can reach, ask ``graph.reverse().roots()``.
        """
        deaf, _ = self._open_components()
        return np.flatnonzero(self.components == deaf[0]) if len(deaf) == 1 else np.empty(0, dtype=np.int64)

    def _open_components(self) -> tuple[IntArray, IntArray]:
        """The components that hear no other component, and those that no other component hears."""
        source, target = self.components[self.edges].T
        crossing = source != target
        everyone = np.arange(int(self.components.max()) + 1)
        return np.setdiff1d(everyone, target[crossing]), np.setdiff1d(everyone, source[crossing])

    def tree(self, root: int) -> Tree:
        """The breadth-first spanning tree along which messages flow from ``root`` to every node.

        For the tree along which messages flow from every node to ``root``, ask ``graph.reverse().tree(root)``.
        """
        root = self._checked_node(root)
        order, parent = breadth_first_order(self._speaks, root, directed=True)
        if len(order) < self.nodes:
            lost = np.setdiff1d(np.arange(self.nodes), order)
            raise GraphError(
                f"{self.name} has no spanning tree from root {self.label(root)}: no path leads from there to nodes "
                f"{{{self._named(lost)}}}. Roots that reach every node: {{{self._named(self.roots()) or 'none'}}}."
            )
        parent = parent.astype(np.int64)
        parent[root] = root
        depth = np.zeros(self.nodes, dtype=np.int64)
        for node in order[1:]:
            depth[node] = depth[parent[node]] + 1
        return Tree(root, _frozen(parent), _frozen(depth))

    def _named(self, nodes: IntArray) -> str:
        return listed([self.label(int(node)) for node in nodes])

    def _checked_node(self, node: int) -> int:
        if not isinstance(node, int | np.integer) or not 0 <= node < self.nodes:
            raise GraphError(f"{self.name} has nodes 0 .. {self.nodes - 1}; got node {node}.")
        return int(node)

    # ---- to and from elsewhere

    @classmethod
    def from_matrix(cls, matrix: Any, *, name: str = "", labels: Sequence[str] | None = None) -> Graph:
        """The underlying graph of a weight matrix: i hears j where ``matrix[i, j]`` is not zero."""
        shape = matrix.shape if issparse(matrix) else np.shape(matrix)
        if len(shape) != 2 or shape[0] != shape[1]:
            raise GraphError(f"A graph needs a square matrix; got shape {shape}.")
        sparse = csr_array(matrix != 0 if issparse(matrix) else np.asarray(matrix) != 0)
        rows = shape[0]
        entries = sparse.tocoo()
        pairs = np.stack([entries.col, entries.row], axis=1)
        return cls(rows, pairs, self_loops=False, name=name, labels=labels)

    @classmethod
    def from_networkx(cls, graph: nx.Graph[Any], *, self_loops: bool = True, name: str = "") -> Graph:
        """The graph of a networkx graph, in its node order; an undirected link becomes an edge each way."""
        number = {node: i for i, node in enumerate(graph.nodes)}
        pairs = [(number[source], number[target]) for source, target in graph.edges()]
        if not graph.is_directed():
            pairs += [(target, source) for source, target in pairs]
        plain = all(node == i for i, node in enumerate(graph.nodes))
        labels = None if plain else [str(node) for node in graph.nodes]
        return cls(len(number), pairs, self_loops=self_loops, name=name or str(graph.name), labels=labels)

    def to_networkx(self) -> nx.DiGraph[Any]:
        """The same graph in networkx, self-loops included; labels become the node attribute ``label``."""
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
    """The number of nodes, if it is one that a machine can hold."""
    if isinstance(nodes, bool) or not isinstance(nodes, int | np.integer) or nodes < 1:
        raise GraphError(f"A graph needs a whole number of nodes, at least 1; got {nodes!r}.")
    if nodes > MAX_NODES:
        gigabytes = nodes * BYTES_PER_NODE / 1e9
        raise GraphError(
            f"{nodes:,} nodes would need about {gigabytes:,.0f} GB; perron takes at most {MAX_NODES:,} nodes."
        )
    return int(nodes)


def check_edges(family: str, expected: float, remedy: str) -> None:
    """Refuse a graph that would not fit into memory, before it is built."""
    if expected > MAX_EDGES:
        raise GraphError(
            f"{family} would have about {expected:,.0f} edges, {expected * 40 / 1e9:,.0f} GB with its two matrices; at most "
            f"{MAX_EDGES:,} are built. Choose {remedy}."
        )


def _checked_pairs(edges: Iterable[tuple[int, int]] | ArrayLike, nodes: int) -> IntArray:
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


def _checked_labels(labels: Sequence[str] | None, nodes: int) -> tuple[str, ...] | None:
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


def _checked_positions(positions: ArrayLike | None, nodes: int) -> FloatArray | None:
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

"""Directed graphs: nodes, edges, connectivity, spanning trees, conversion from and to networkx.

One convention holds everywhere in perron. An edge ``(source, target)`` carries messages from ``source`` to ``target``. In a
matrix, ``[i, j]`` is the weight of node ``j`` at node ``i``: row = receiver, column = sender. Edge ``(j, i)`` is ``[i, j]``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csr_array, issparse

from perron._typing import IntArray
from perron.errors import GraphError, brief, listed
from perron.networks._adjacency import reaches_all, without_diagonal
from perron.networks._checks import check_labels, check_nodes, to_pairs, to_positions
from perron.networks.layout import to_svg

if TYPE_CHECKING:
    import networkx as nx

FEW_EDGES = 5000  # up to which a search in Python takes less time than the import of SciPy's graph routines


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
        edges: pairs ``(source, target)``. A pair ``(i, i)`` is a self-loop; repeated pairs count once, which the note tells.
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
        pairs = to_pairs(edges, self.nodes)
        # Entry [target, source]; building the matrix sorts the edges and merges repeated ones.
        pattern = csr_array((np.ones(len(pairs), np.int8), (pairs[:, 1], pairs[:, 0])), shape=(self.nodes, self.nodes))
        pattern.sum_duplicates()
        self._links, loops = without_diagonal(pattern)
        self._links.data[:] = 1
        has_loop = np.full(self.nodes, bool(self_loops))
        has_loop[loops] = True
        self.self_loops: IntArray = _frozen(np.flatnonzero(has_loop))
        self.name = name or f"graph on {self.nodes} nodes"
        merged = len(pairs) - self._links.nnz - len(loops)
        plural = "1 parallel edge was" if merged == 1 else f"{merged:,} parallel edges were"
        self.note = "; ".join(filter(None, [note, f"{plural} merged" if merged else ""]))
        self.labels = check_labels(labels, self.nodes)
        where = to_positions(positions, self.nodes)
        self.positions = None if where is None else _frozen(where)

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
        return self._with_links(self._by_source, self.self_loops, name=f"reverse of {self.name}")

    def symmetric(self) -> Graph:
        """Return the undirected graph, in which every link goes both ways."""
        both = np.unique(np.concatenate([self.edges, self.edges[:, ::-1]]), axis=0)
        return self._with_edges(both, name=f"undirected {self.name}")

    def subgraph(self, nodes: Sequence[int] | IntArray) -> Graph:
        """Return the graph of some nodes, in their order, and the edges between them."""
        kept = np.array([self.check_node(node) for node in nodes], dtype=np.int64)
        if len(np.unique(kept)) != len(kept):
            raise GraphError(f"A subgraph has each of its nodes once; got {brief(list(nodes))}.")
        number = np.full(self.nodes, -1)
        number[kept] = np.arange(len(kept))
        loops = np.stack([self.self_loops, self.self_loops], axis=1)
        edges = number[np.concatenate([self.edges, loops])]
        return Graph(
            len(kept), edges[(edges >= 0).all(axis=1)], self_loops=False, name=f"{len(kept)} nodes of {self.name}",
            labels=[self.labels[node] for node in kept] if self.labels else None,
            positions=None if self.positions is None else self.positions[kept],
        )  # fmt: skip

    def largest_component(self) -> Graph:
        """Return the graph of the largest strongly connected component."""
        return self.subgraph(np.flatnonzero(self.components == np.bincount(self.components).argmax()))

    def with_self_loops(self) -> Graph:
        """Return the graph with a self-loop at every node."""
        return self._with_edges(self.edges, name=self.name, self_loops=True)

    def _with_links(self, links: csr_array, self_loops: IntArray, *, name: str) -> Graph:
        """Return a graph of the same nodes with these links, a sorted 0-1 matrix with entry [target, source]."""
        other = Graph.__new__(Graph)
        other.nodes, other.name, other.note, other.labels = self.nodes, name, "", self.labels
        other.positions, other.self_loops, other._links = self.positions, self_loops, links
        return other

    def renamed(self, name: str) -> Graph:
        """Return the same graph with another name."""
        other = copy(self)
        other.name = name
        return other

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
        if len(self._links.indices) <= FEW_EDGES and reaches_all(self._links) and reaches_all(self._by_source):
            return _frozen(np.zeros(self.nodes, dtype=np.int64))
        from scipy.sparse.csgraph import connected_components

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
            f"{start}. Add an edge from the former to the latter, such as ({end}, {start}).{self._remedies()}"
        )

    def _remedies(self) -> str:
        """What would make the graph strongly connected."""
        sizes = np.bincount(self.components)
        said = ""
        if not (self._links.multiply(self._by_source)).nnz:
            both = self.symmetric()
            kept = (
                ""
                if both.is_strongly_connected
                else f", of which {np.bincount(both.components).max()} are then connected"
            )
            said += f" No edge has its reverse: if links go both ways, use graph.symmetric() or --undirected{kept}."
        if sizes.max() > 1:
            said += f" graph.largest_component() or --largest-component keeps {sizes.max()} of {self.nodes} nodes."
        return said

    def roots(self) -> IntArray:
        """Return the nodes from which every node can be reached: the possible roots of a spanning tree."""
        return self._only(self._open_components()[0])

    def sinks(self) -> IntArray:
        """Return the nodes that every node can reach: the roots of the reverse graph."""
        return self._only(self._open_components()[1])

    def _only(self, components: IntArray) -> IntArray:
        """The nodes of a component that is the only one of its kind; none if there are several."""
        several = len(components) > 1
        return np.empty(0, dtype=np.int64) if several else np.flatnonzero(self.components == components[0])

    def _open_components(self) -> tuple[IntArray, IntArray]:
        """Return the components without incoming edges, and those without outgoing edges."""
        every = np.arange(int(self.components.max()) + 1)
        if len(every) == 1:
            return every, every
        links = self._links.tocoo()
        source, target = self.components[links.col], self.components[links.row]
        crossing = source != target
        return np.setdiff1d(every, target[crossing]), np.setdiff1d(every, source[crossing])

    def tree(self, root: int) -> Tree:
        """Return the breadth-first spanning tree along which messages flow from ``root`` to every node.

        The tree along which messages flow from every node to ``root`` is ``graph.reverse().tree(root)``.
        """
        from scipy.sparse.csgraph import breadth_first_order

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
    def from_matrix(cls, matrix: Any, *, name: str = "", note: str = "", labels: Sequence[str] | None = None) -> Graph:
        """Return the graph of a weight matrix: i receives from j where ``matrix[i, j]`` is not zero."""
        shape = matrix.shape if issparse(matrix) else np.shape(matrix)
        if len(shape) != 2 or shape[0] != shape[1]:
            raise GraphError(f"A graph needs a square matrix; got shape {shape}.")
        entries = csr_array(matrix != 0 if issparse(matrix) else np.asarray(matrix) != 0)
        entries.sum_duplicates()
        links, loops = without_diagonal(csr_array(entries, dtype=np.int8))
        empty = cls(shape[0], self_loops=False, name=name, labels=labels)
        graph = empty._with_links(links, _frozen(loops), name=empty.name)
        graph.note = note
        return graph

    @classmethod
    def from_networkx(cls, graph: nx.Graph[Any], *, self_loops: bool = True, name: str = "") -> Graph:
        """Convert a networkx graph, in its node order; an undirected link becomes an edge each way."""
        number = {node: i for i, node in enumerate(graph.nodes)}
        pairs = [(number[source], number[target]) for source, target in graph.edges()]
        if not graph.is_directed():
            pairs += [(target, source) for source, target in pairs if source != target]
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

    def _repr_svg_(self) -> str | None:
        """A drawing for notebooks; None if the graph is too large for one."""
        return to_svg(self)


def as_graph(value: Any) -> Any:
    """Convert a networkx graph, a scipy sparse matrix or a square array to a `Graph`; anything else is returned as it is."""
    if callable(getattr(value, "is_directed", None)):
        return Graph.from_networkx(value)
    if issparse(value) or (isinstance(value, np.ndarray) and value.ndim == 2):
        return Graph.from_matrix(value)
    return value


def _neighbors(matrix: csr_array, row: int) -> IntArray:
    return matrix.indices[matrix.indptr[row] : matrix.indptr[row + 1]].astype(np.int64)


def _frozen(array: Any) -> Any:
    array.flags.writeable = False
    return array

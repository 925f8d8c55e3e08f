"""Graphs: what they consist of, what is connected, and what is refused."""

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from strategies import digraphs

from perron import Graph, GraphError


def test_an_edge_goes_from_source_to_target():
    graph = Graph(3, [(0, 1), (0, 2), (1, 2)])
    assert graph.sources(2).tolist() == [0, 1]
    assert graph.targets(0).tolist() == [1, 2]
    assert graph.sources(0).tolist() == []
    assert graph.adjacency().toarray().tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]  # [listener, speaker]
    assert graph.in_degrees.tolist() == [0, 1, 2]
    assert graph.out_degrees.tolist() == [2, 1, 0]


def test_self_loops_are_kept_apart_from_edges():
    graph = Graph(3, [(0, 0), (0, 1), (0, 1)], self_loops=False)
    assert graph.edges.tolist() == [[0, 1]]
    assert graph.self_loops.tolist() == [0]
    assert not graph.has_all_self_loops
    assert graph.with_self_loops().has_all_self_loops
    assert graph.with_self_loops().edges.tolist() == [[0, 1]]


def test_a_graph_cannot_be_changed():
    graph = Graph(3, [(0, 1)])
    with pytest.raises(ValueError, match="read-only"):
        graph.edges[0, 0] = 2


@given(digraphs(self_loops=None))
def test_connectivity_agrees_with_networkx(graph):
    assert graph.is_strongly_connected
    assert nx.is_strongly_connected(graph.to_networkx())
    assert Graph.from_networkx(graph.to_networkx(), self_loops=False) == graph
    assert graph.reverse().reverse() == graph
    assert graph.symmetric().is_symmetric


def test_the_error_names_who_cannot_reach_whom():
    graph = Graph(5, [(0, 1), (1, 0), (1, 2), (2, 3), (3, 2), (3, 4)], labels=["a", "b", "c", "d", "e"], name="net")
    with pytest.raises(
        GraphError, match=r"3 strongly connected components, \{.*\}. Nodes \{e\} cannot reach nodes \{a, b\}"
    ):
        graph.check_strongly_connected()
    remedied = Graph(5, [*graph.edges.tolist(), (4, 0)])
    remedied.check_strongly_connected()


@pytest.mark.parametrize("edges", [[], [(0, 1)], [(0, 1), (1, 0)], [(0, 1), (2, 1)]])
def test_the_error_is_true_for_every_kind_of_disconnection(edges):
    graph = Graph(3, edges)
    with pytest.raises(GraphError, match="cannot reach") as caught:
        graph.check_strongly_connected()
    source, target = str(caught.value).split("such as (")[1].split(")")[0].split(", ")
    assert not nx.has_path(graph.to_networkx(), int(source), int(target))


def test_roots_reach_everybody():
    graph = Graph(4, [(0, 1), (1, 0), (1, 2), (2, 3)])
    assert graph.roots().tolist() == [0, 1]
    assert graph.reverse().roots().tolist() == [3]
    assert Graph(3, [(0, 1)]).roots().tolist() == []


@given(digraphs())
def test_trees_are_breadth_first(graph):
    tree = graph.tree(1)
    distance = nx.single_source_shortest_path_length(graph.to_networkx(), 1)
    assert tree.depth.tolist() == [distance[i] for i in range(graph.nodes)]
    for node in range(graph.nodes):
        assert node == 1 or tree.parent[node] in graph.sources(node)


def test_a_tree_needs_a_root():
    with pytest.raises(
        GraphError, match=r"no path leads from there to nodes \{0\}.*Roots that reach every node: \{0\}"
    ):
        Graph(2, [(0, 1)]).tree(1)


def test_networkx_names_become_labels():
    graph = Graph.from_networkx(nx.DiGraph([("paris", "rome"), ("rome", "paris")]))
    assert graph.labels == ("paris", "rome")
    assert graph.to_networkx().nodes[0]["label"] == "paris"
    undirected = Graph.from_networkx(nx.path_graph(3))
    assert undirected.labels is None
    assert undirected.is_symmetric


@pytest.mark.parametrize(
    ("nodes", "edges", "options", "message"),
    [
        (0, [], {}, "at least 1; got 0"),
        (2.5, [], {}, "whole number of nodes"),
        (True, [], {}, "whole number of nodes"),
        (10**9, [], {}, "1,000,000,000 nodes would need about 200 GB"),
        (3, [(0, 3)], {}, r"Edge \(0, 3\) leaves the nodes 0 .. 2"),
        (3, [(-1, 0)], {}, r"Edge \(-1, 0\) leaves"),
        (3, [(0.5, 1)], {}, "whole numbers"),
        (3, [(0, 1, 2)], {}, "pairs"),
        (2, [], {"labels": ["a"]}, "need 2 different labels"),
        (2, [], {"labels": ["a", "a"]}, "need 2 different labels"),
        (2, [], {"labels": ["a", "b\n"]}, "printable"),
        (2, [], {"positions": [[0, 0]]}, r"\(2, 2\) array"),
    ],
)
def test_what_is_no_graph_is_refused(nodes, edges, options, message):
    with pytest.raises(GraphError, match=message):
        Graph(nodes, edges, **options)


def test_a_node_that_is_not_there():
    with pytest.raises(GraphError, match=r"nodes 0 .. 2; got node 3"):
        Graph(3).sources(3)


def test_no_edges_needs_no_array():
    assert Graph(1).is_strongly_connected
    assert Graph(2, np.empty((0, 2))).edges.shape == (0, 2)

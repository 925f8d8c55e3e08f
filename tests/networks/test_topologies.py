"""Topologies: each has the property that its docstring states, at every size for which it makes sense."""

from math import ceil, log2

import networkx as nx
import numpy as np
import pytest

from perron import Graph, GraphError, Mixing
from perron.networks import released as authors
from perron.networks import topologies

SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 16, 24, 25, 64)
SQUARES = (1, 4, 9, 16, 25, 64)
POWERS = (1, 2, 4, 8, 16, 64)
DEFINED = {
    "grid": SQUARES, "undirected_grid": SQUARES, "torus": SQUARES, "hypercube": POWERS,
    "nearest_neighbor": (1, 4, 5, 6, 7, 8, 9, 12, 13, 16, 24, 25, 64),
}  # fmt: skip
UNDIRECTED = {
    "random",
    "geometric",
    "nearest_neighbor",
    "undirected_grid",
    "complete",
    "star",
    "path",
    "hypercube",
    "tree",
}


@pytest.mark.parametrize("name", topologies.NAMES)
def test_defined_where_it_makes_sense_and_strongly_connected(name):
    for n in SIZES:
        if n not in DEFINED.get(name, SIZES):
            with pytest.raises(GraphError, match=rf"got n={n}"):
                topologies.NAMES[name](n)
            continue
        graph = topologies.NAMES[name](n)
        union = graph if isinstance(graph, Graph) else Graph(n, np.concatenate([g.edges for g in graph]))
        assert union.nodes == n
        assert union.is_strongly_connected
        assert union.has_all_self_loops
        if name in UNDIRECTED:
            assert union.is_symmetric


def test_exponential():
    for n in (4, 8, 9, 12, 16, 25):
        graph = topologies.exponential(n)
        assert set(graph.in_degrees) == set(graph.out_degrees) == {ceil(log2(n))}
        assert all(((t - s) % n).bit_count() == 1 for s, t in graph.edges.tolist())


def test_ring():
    for n in (2, 5, 16):
        assert topologies.ring(n).edges.tolist() == sorted([[i, (i + 1) % n] for i in range(n)], key=lambda e: e[1])


@pytest.mark.parametrize(("n", "rows"), [(4, None), (9, None), (25, None), (6, 2), (6, 3), (10, 5), (20, 4), (35, 5)])
def test_grid_is_an_orientation_of_the_grid(n, rows):
    graph = topologies.grid(n, rows=rows)
    undirected = topologies.undirected_grid(n, rows=rows)
    rows = rows or round(n**0.5)
    assert nx.is_isomorphic(undirected.to_networkx().to_undirected(), _with_loops(nx.grid_2d_graph(rows, n // rows)))
    assert graph.symmetric() == undirected
    assert len(graph.edges) * 2 == len(undirected.edges)  # every link one way


def _with_loops(graph):
    graph.add_edges_from((node, node) for node in list(graph.nodes))
    return graph


def test_a_path_has_no_strongly_connected_orientation():
    with pytest.raises(GraphError, match=r"Use path\(3\) or ring\(3\)"):
        topologies.grid(3, rows=1)


def test_geometric_and_nearest_neighbor_follow_their_points():
    graph = topologies.geometric(20, radius=0.4, seed=7)
    distance = np.linalg.norm(graph.positions[:, None] - graph.positions[None], axis=2)
    assert np.array_equal(graph.adjacency().toarray() == 1, distance <= 0.4)
    graph = topologies.nearest_neighbor(20, neighbors=4, seed=7)
    distance = np.linalg.norm(graph.positions[:, None] - graph.positions[None], axis=2)
    nearest = np.zeros((20, 20), dtype=bool)
    np.put_along_axis(nearest, np.argsort(distance, axis=1)[:, :5], True, axis=1)
    assert np.array_equal(graph.adjacency().toarray() == 1, nearest | nearest.T)


def test_random_families_have_the_stated_edge_probability():
    pairs = 60 * 59
    for family, links in ((topologies.random, 0.5), (topologies.random_digraph, 1.0)):
        share = [len(family(60, probability=0.3, seed=s).edges) / pairs for s in range(30)]
        standard_error = (0.3 * 0.7 / (pairs * links * 30)) ** 0.5
        assert abs(np.mean(share) - 0.3) < 4 * standard_error


def test_random_pairs_are_equally_likely():
    seen = sum(topologies.random(5, probability=0.5, seed=s).adjacency().toarray() for s in range(600))
    off = seen[~np.eye(5, dtype=bool)]
    assert off.min() > 0.8 * off.mean()
    assert np.array_equal(seen, seen.T)


def test_random_k_out_has_k_targets_each():
    for k in (3, 7):
        assert set(topologies.random_k_out(40, k=k, seed=1).out_degrees) == {k}


def test_random_families_depend_on_the_seed_alone_and_say_how_often_they_drew():
    notes = set()
    for seed in range(30):
        graph = topologies.random(8, seed=seed)
        assert graph == topologies.random(8, seed=seed)
        notes.add(graph.note)
    assert "" in notes
    assert "drawn 2 times until strongly connected" in notes
    assert topologies.random(8, seed=0) != topologies.random(8, seed=1)


def test_a_hopeless_random_family_gives_the_remedy():
    with pytest.raises(GraphError, match=r"none of 1000 draws.*probability above ln\(n\)/n = 0.15"):
        topologies.random(20, probability=0.01)


def test_one_peer_exponential_averages_exactly_in_one_period():
    graphs = topologies.one_peer_exponential(8)
    assert all(set(graph.out_degrees) == {1} for graph in graphs)
    mixing = Mixing.uniform(graphs)
    product = mixing.pull_at(2) @ mixing.pull_at(1) @ mixing.pull_at(0)
    assert np.allclose(product, 1 / 8, atol=1e-15)


@pytest.mark.parametrize("family", [topologies.de_bruijn, topologies.kautz])
@pytest.mark.parametrize("n", [5, 8, 12, 27, 50])
@pytest.mark.parametrize("degree", [2, 3])
def test_small_diameter(family, n, degree):
    diameter = nx.diameter(family(n, degree=degree).to_networkx())
    assert diameter <= ceil(np.log(n) / np.log(degree) - 1e-12)


def test_vertex_transitive_families_are_doubly_stochastic_with_uniform_weights():
    for graph in (
        topologies.torus(12, rows=3),
        topologies.equitopo(13, degree=4, seed=2),
        topologies.hypercube(8),
    ):
        assert Mixing.uniform(graph).is_doubly_stochastic


def test_tree_and_star():
    tree = topologies.tree(7, branching=2).to_networkx().to_undirected()
    tree.remove_edges_from([(i, i) for i in range(7)])
    assert nx.is_tree(tree)
    assert sorted(tree.neighbors(1)) == [0, 3, 4]
    assert topologies.star(5).targets(0).tolist() == [1, 2, 3, 4]
    assert topologies.star(5).sources(3).tolist() == [0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: topologies.grid(5), r"square number of nodes; got n=5 \(nearest: 4, 9\)"),
        (lambda: topologies.grid(10, rows=3), "divides n; got n=10, rows=3"),
        (lambda: topologies.hypercube(12), r"power of two; got n=12 \(nearest: 8, 16\)"),
        (lambda: topologies.random(5, probability=0), r"probability in \(0, 1\]; got 0"),
        (lambda: topologies.random(5, probability=float("nan")), "probability"),
        (lambda: topologies.random(5, seed=-1), "whole number, at least 0; got -1"),
        (lambda: topologies.geometric(5, radius=-1), "positive radius"),
        (lambda: topologies.nearest_neighbor(3), "1 <= neighbors < n; got n=3, neighbors=3"),
        (lambda: topologies.random_k_out(4, k=4), "1 <= k < n"),
        (lambda: topologies.tree(4, branching=0), "branching needs a whole number, at least 1; got 0"),
        (lambda: topologies.equitopo(8, degree=8), "1 <= degree < n"),
        (lambda: topologies.ring(0), "at least 1"),
    ],
)
def test_bad_arguments_are_refused(call, message):
    with pytest.raises(GraphError, match=message):
        call()


# ---- the authors' released networks, against a literal twin of their description


def literal(name: str, n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Loops in the order in which the released generators draw."""
    stream, listens = np.random.RandomState(seed), np.eye(n)
    draw = stream.randint
    if name == "exponential":
        weights = draw(1, 3, size=(n, n)) * np.array(
            [[((j - i) % n).bit_count() <= 1 for j in range(n)] for i in range(n)]
        )
        return weights / weights.sum(1, keepdims=True), weights / weights.sum(0)
    if name in ("geometric", "nearest_neighbor"):
        points = stream.rand(n, 2) * 10
    for i in range(n):
        if name == "ring":
            listens[i, (i + 1) % n] = 1
        if name == "nearest_neighbor":
            for j in np.argsort(np.linalg.norm(points - points[i], axis=1))[1:4]:
                listens[i, j] = listens[j, i] = 1
        for j in range(i + 1, n):
            side = round(n**0.5)
            near = name == "geometric" and np.linalg.norm(points[i] - points[j]) <= 5
            lucky = name == "random" and stream.rand() < 1 / 3
            beside = name == "grid" and (j == i + side or (j == i + 1 and j % side))
            if near or lucky or beside:
                listens[i, j] = listens[j, i] = 1
    if name == "ring":
        listens[0, n // 4] = listens[n // 2, 3 * n // 4] = 1
    weights = np.zeros((n, n))
    rows, columns = np.where(listens == 1)
    high = 2 if name in ("grid", "ring") else 3
    count = len(rows)
    weights[rows, columns] = (
        stream.choice([1, 2, 3], size=count) if name == "geometric" else draw(1, high + 1, size=count)
    )
    return weights / weights.sum(1, keepdims=True), weights / weights.sum(0)


@pytest.mark.parametrize("name", authors.NAMES)
def test_the_authors_networks_come_out_entry_for_entry(name):
    for n in (9, 16, 25):
        for seed in (42, 7):
            pull, push = literal(name, n, seed)
            try:
                mixing = authors.NAMES[name](n, seed=seed)
            except ValueError as error:
                assert "not strongly connected" in str(error)
                assert not Graph.from_matrix(pull).is_strongly_connected
                continue
            assert np.array_equal(mixing.pull, pull)
            assert np.array_equal(mixing.push, push)


def test_the_authors_disconnected_networks_are_refused():
    for name, n in (("random", 4), ("geometric", 6), ("geometric", 8)):
        with pytest.raises(ValueError, match="not strongly connected"):
            authors.NAMES[name](n)
    with pytest.raises(GraphError, match="n >= 6"):
        authors.geometric(4)
    with pytest.raises(GraphError, match="n >= 4"):
        authors.nearest_neighbor(3)

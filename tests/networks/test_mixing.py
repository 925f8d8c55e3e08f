"""Mixing matrices: the convention, the weight rules, and every way in which they can be wrong."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array, issparse
from strategies import digraphs, mixings

from perron import Graph, Mixing, MixingError
from perron.networks import topologies

A = np.array([[0.5, 0.5, 0.0], [0.0, 0.75, 0.25], [1.0, 0.0, 0.0]])  # row-stochastic
B = np.array([[0.5, 0.0, 1.0], [0.5, 0.75, 0.0], [0.0, 0.25, 0.0]])  # column-stochastic


def test_entry_i_j_is_what_i_takes_from_j():
    """The convention, on three nodes where nothing is symmetric: 0 -> 1 -> 2 -> 0, and 0 -> 2."""
    graph = Graph(3, [(0, 1), (1, 2), (2, 0), (0, 2)])
    mixing = Mixing.uniform(graph)
    third, half = 1 / 3, 1 / 2
    assert np.allclose(mixing.pull, [[half, 0, half], [half, half, 0], [third, third, third]])
    assert np.allclose(mixing.push, [[third, 0, half], [third, half, 0], [third, half, half]])
    model = np.array([10.0, 20.0, 30.0])
    assert (mixing.pull @ model)[1] == 15.0  # node 1 hears node 0, not node 2
    assert mixing.pull_graph == mixing.push_graph == graph


@pytest.mark.slow
@given(mixings(self_loops=None))
@settings(max_examples=1000)
def test_rows_and_columns_sum_to_one(mixing):
    assert np.allclose(mixing.pull.sum(axis=1), 1, rtol=0, atol=1e-14)
    assert np.allclose(mixing.push.sum(axis=0), 1, rtol=0, atol=1e-14)
    assert (mixing.pull >= 0).all()
    assert (mixing.push >= 0).all()


@given(digraphs(), st.sampled_from(["uniform", "lazy", "random_integer", "balanced"]))
def test_every_rule_uses_exactly_the_edges_of_its_graph(graph, rule):
    mixing = getattr(Mixing, rule)(graph)
    assert mixing.pull_graph == mixing.push_graph == graph
    assert mixing.is_strongly_connected
    assert mixing.is_doubly_stochastic or rule != "balanced"


def test_random_integers_are_the_stated_ones_and_shared():
    graph = topologies.complete(40)
    mixing = Mixing.random_integer(graph, seed=3)
    # A = diag(1/row sums) M and B = M diag(1/column sums) of one integer matrix M.
    scale = mixing.pull / mixing.push
    assert np.linalg.matrix_rank(scale, tol=1e-9) == 1
    M = np.array([row / np.min(row) for row in mixing.pull])
    values, counts = np.unique(np.round(M, 9), return_counts=True)
    assert values.tolist() == list(range(1, 10))
    assert abs(counts / 1600 - 1 / 9).max() < 4 * (1 / 9 * 8 / 9 / 1600) ** 0.5
    independent = Mixing.random_integer(graph, seed=3, shared=False)
    assert np.linalg.matrix_rank(independent.pull / independent.push) > 1
    assert np.array_equal(Mixing.random_integer(graph, seed=3).pull, mixing.pull)
    assert not np.array_equal(Mixing.random_integer(graph, seed=4).pull, mixing.pull)


def test_two_graphs():
    down, up = topologies.ring(5), topologies.ring(5).reverse()
    for rule in (Mixing.uniform, Mixing.lazy, Mixing.random_integer):
        mixing = rule(down, up)
        assert mixing.pull_graph == down
        assert mixing.push_graph == up


def test_lazy_keeps_its_share():
    mixing = Mixing.lazy(topologies.star(5), keep=0.3)
    assert np.allclose(np.diag(mixing.pull), 0.3)
    assert np.allclose(np.diag(mixing.push), 0.3)
    assert np.allclose(Mixing.lazy(topologies.ring(1)).pull, 1)


def test_metropolis():
    graph = topologies.star(4)
    W = Mixing.metropolis(graph).pull
    assert np.allclose(W[0], [0.25, 0.25, 0.25, 0.25])
    assert np.allclose(W[1], [0.25, 0.75, 0, 0])
    mixing = Mixing.metropolis(topologies.random(20, seed=1))
    assert mixing.is_doubly_stochastic
    assert mixing.is_symmetric
    with pytest.raises(MixingError, match=r"has the edge \(2, 0\) but not its reverse"):
        Mixing.metropolis(topologies.ring(3))


def test_balancing_agrees_with_plain_sinkhorn():
    graph = topologies.random_digraph(12, seed=5)
    W = graph.adjacency().toarray()
    for _ in range(20_000):
        W /= W.sum(axis=0)
        W /= W.sum(axis=1, keepdims=True)
    assert np.allclose(Mixing.balanced(graph).pull, W, atol=1e-12)


@pytest.mark.parametrize("name", ["path", "grid", "tree", "star", "kautz"])
def test_balancing_hard_graphs(name):
    mixing = Mixing.balanced(topologies.NAMES[name](64))
    assert np.abs(mixing.pull.sum(axis=0) - 1).max() < 1e-12
    assert np.abs(mixing.pull.sum(axis=1) - 1).max() < 1e-12


def test_balancing_where_it_does_not_exist():
    with pytest.raises(MixingError, match="cannot be covered by disjoint cycles"):
        Mixing.balanced(Graph(4, [(0, 1), (0, 2), (1, 3), (2, 3), (3, 0), (0, 0)], self_loops=False))
    with pytest.raises(MixingError, match=r"edge \(1, 0\) lies on no collection of disjoint cycles"):
        Mixing.balanced(Graph(3, [(0, 1), (1, 2), (2, 0), (1, 0)], self_loops=False))


def test_spanning_trees_reach_their_limit_in_as_many_steps_as_they_are_deep():
    graph = topologies.random_digraph(15, probability=0.15, seed=2)
    mixing = Mixing.spanning_trees(graph, root=4)
    depth = max(graph.tree(4).depth.max(), graph.reverse().tree(4).depth.max())
    root = np.eye(15)[4]
    assert np.array_equal(np.linalg.matrix_power(mixing.pull, depth), np.outer(np.ones(15), root))
    assert np.array_equal(np.linalg.matrix_power(mixing.push, depth), np.outer(root, np.ones(15)))
    assert not np.array_equal(
        np.linalg.matrix_power(mixing.pull, graph.tree(4).depth.max() - 1), np.outer(np.ones(15), root)
    )
    assert mixing.common_roots.tolist() == [4]
    assert not mixing.is_strongly_connected
    assert (mixing.pull <= graph.adjacency().toarray()).all()
    assert (mixing.push <= graph.adjacency().toarray()).all()


def test_the_root_of_spanning_trees_is_central():
    graph = topologies.path(9)
    assert Mixing.spanning_trees(graph).common_roots.tolist() == [4]
    R = Mixing.spanning_trees(topologies.tree(7), root=0).pull
    assert [int(np.flatnonzero(row)[0]) for row in R] == [0, 0, 0, 1, 1, 2, 2]  # BTPP: parent(i) = (i-1) // 2
    one_way = Graph(3, [(0, 1), (1, 2)])
    with pytest.raises(MixingError, match="no common root"):
        Mixing.spanning_trees(one_way)
    assert Mixing.spanning_trees(one_way, one_way.reverse()).common_roots.tolist() == [0]


def test_time_varying():
    mixing = Mixing.uniform(topologies.one_peer_exponential(8))
    assert mixing.period == 3
    assert np.array_equal(mixing.pull_at(4), mixing.pull_at(1))
    assert not np.array_equal(mixing.pull_at(0), mixing.pull_at(1))
    assert mixing.pull_graph == topologies.exponential(8)
    with pytest.raises(MixingError, match=r"pull varies in time \(period 3\): ask for pull_at"):
        _ = mixing.pull
    apart = [Graph(4, [(0, 1), (1, 0)]), Graph(4, [(2, 3), (3, 2)])]
    with pytest.raises(MixingError, match="not strongly connected"):
        Mixing.uniform(apart)
    with pytest.raises(MixingError, match="positive diagonal; node 2 has 0"):
        Mixing(pull=[A, np.roll(np.eye(3), 1, axis=0)], push=[B, B])


def test_dense_or_sparse_by_density():
    assert isinstance(Mixing.uniform(topologies.ring(64)).pull, np.ndarray)
    assert issparse(Mixing.uniform(topologies.ring(400)).pull)
    assert isinstance(Mixing.uniform(topologies.complete(300)).pull, np.ndarray)
    for mixing in (Mixing.uniform(topologies.ring(8)), Mixing.uniform(topologies.ring(400))):
        values = mixing.pull if isinstance(mixing.pull, np.ndarray) else mixing.pull.data
        with pytest.raises(ValueError, match="read-only"):
            values[0] = 2


def test_own_matrices_of_any_kind():
    for kind in (np.array, list, csr_array, torch.tensor):
        mixing = Mixing(pull=kind(A), push=kind(B))
        assert np.array_equal(mixing.pull, A)
        assert np.array_equal(mixing.push, B)
    weights = [[1, 3], [2, 2]]
    own = Mixing.normalized(weights)
    assert np.allclose(own.pull, [[0.25, 0.75], [0.5, 0.5]])
    assert np.allclose(own.push, [[1 / 3, 0.6], [2 / 3, 0.4]])


def test_one_side_alone():
    pull_only = Mixing(pull=A)
    assert pull_only.has_pull
    assert not pull_only.has_push
    with pytest.raises(MixingError, match=r"no push matrix. Pass push=, a column-stochastic matrix"):
        _ = pull_only.push
    with pytest.raises(MixingError, match="or both"):
        Mixing()


def changed(matrix, row, column, value):
    copy = matrix.copy()
    copy[row, column] = value
    return copy


CYCLE = np.roll(np.eye(3), 1, axis=0)


@pytest.mark.parametrize(
    ("pull", "push", "message"),
    [
        (A[:2], B, "pull must be a square matrix.*got 2 x 3"),
        (A, B[:, :2], "push must be a square matrix.*got 3 x 2"),
        (A, np.eye(2), "got 3 in pull but 2 in push"),
        (A[0], B, "n x n array"),
        ("abc", B, "n x n array"),
        (
            changed(A, 1, 2, np.nan),
            B,
            r"pull: entry \[1, 2\] = nan is not finite; node 1 takes it from node 2",
        ),
        (A, changed(B, 2, 1, np.inf), r"push: entry \[2, 1\] = inf is not finite"),
        (changed(A, 0, 2, -0.1), B, r"pull: entry \[0, 2\] = -0.1 is negative"),
        (
            changed(A, 1, 1, 0.65),
            B,
            r"pull: row 1 sums to 0.9, must be 1 within 1e-09. Divide each row by its sum",
        ),
        (A, changed(B, 0, 2, 1.01), "push: column 2 sums to 1.01, must be 1"),
        (A, changed(B, 0, 2, 1 + 1e-8), "push: column 2 sums to 1.00000001"),
        (B, A, "the two are swapped"),
        (A, A, "both matrices are row-stochastic, which lets the nodes agree, but on a wrong point"),
        (B, B, "both matrices are column-stochastic, which keeps the nodes from agreeing"),
        (CYCLE, B, "pull: no positive diagonal entry"),
        (A, CYCLE, "push: no positive diagonal entry"),
        (np.eye(3), B, "pull graph.*not strongly connected: it falls into 3.*cannot reach"),
        (
            [[1, 0, 0], [0.5, 0.5, 0], [0.5, 0, 0.5]],
            B,
            r"nodes \{0\} are common roots, which is enough for Push-Pull",
        ),
    ],
)
def test_every_wrong_matrix_is_refused_with_its_own_error(pull, push, message):
    with pytest.raises(MixingError, match=message):
        Mixing(pull=pull, push=push)


def test_rooted_networks():
    pull = [[1, 0, 0], [0.5, 0.5, 0], [0.5, 0, 0.5]]  # all hear 0
    assert Mixing(pull=pull, push=B, connected="rooted").common_roots.tolist() == [0]
    push = [[0.5, 0, 0], [0.5, 1, 0.5], [0, 0, 0.5]]  # all end at 1
    with pytest.raises(MixingError, match=r"along pull: \{0\}; nodes that all others reach along push: \{1\}"):
        Mixing(pull=pull, push=push, connected="rooted")
    aside = [[0, 0, 1], [0, 0.5, 0.5], [1, 0, 0]]  # the only self-loop is off the root component {0, 2}
    with pytest.raises(MixingError, match="no positive diagonal entry among the roots"):
        Mixing(pull=aside, push=B, connected="rooted")
    with pytest.raises(MixingError, match="'strongly' or 'rooted'; got 'weakly'"):
        Mixing(pull=pull, connected="weakly")


def test_missing_self_loops_are_named():
    Mixing.uniform(topologies.ring(4)).check_self_loops()
    with pytest.raises(MixingError, match=r"pull: nodes \{2\} have no self-loop"):
        Mixing(pull=A, push=B).check_self_loops()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda g: Mixing.lazy(g, keep=1.0), "between 0 and 1; got 1"),
        (lambda g: Mixing.random_integer(g, low=0), "1 <= low <= high"),
        (lambda g: Mixing.spanning_trees(g, topologies.ring(5)), "as many nodes; got 4 and 5"),
        (lambda _: Mixing.normalized([[1, -1], [1, 1]]), "is negative"),
        (lambda _: Mixing.uniform(Graph(3, [(0, 1)])), "not strongly connected"),
    ],
)
def test_bad_rules_are_refused(call, message):
    with pytest.raises(MixingError, match=message):
        call(topologies.ring(4))


def test_what_was_checked_is_its_own():
    own = Mixing.uniform(topologies.ring(300)).pull.copy()
    mixing = Mixing(pull=own)
    own.data[0] = 0.9
    assert np.allclose(mixing.pull.sum(axis=1), 1)
    untidy = csr_array((np.array([0.5, 0.25, 0.25, 1.0]), np.array([0, 1, 1, 0]), np.array([0, 3, 4])), shape=(2, 2))
    Mixing(pull=untidy)
    assert untidy.nnz == 4


def test_idle_nodes_of_a_time_varying_network_keep_what_they_have():
    pairs = [Graph(3, [(0, 1), (1, 0)]), Graph(3, [(1, 2), (2, 1)])]
    mixing = Mixing.lazy(pairs, keep=0.25)
    assert mixing.pull_at(0)[2].tolist() == [0, 0, 1]
    assert np.allclose(mixing.pull_at(0)[0], [0.25, 0.75, 0])
    with pytest.raises(MixingError, match="one graph, not on a time-varying sequence"):
        Mixing.metropolis(pairs)
    with pytest.raises(MixingError, match="a Graph or a sequence of them"):
        Mixing.uniform([])


def test_self_loops_count_where_each_side_has_its_roots():
    """Valid: the pull graph settles through the self-loop of node 1, a root of it, though node 0 is the common root."""
    pull, push = [[0, 1, 0], [0.5, 0.25, 0.25], [0, 1, 0]], [[1, 0.5, 0.5], [0, 0.5, 0], [0, 0, 0.5]]
    mixing = Mixing(pull=pull, push=push, connected="rooted")
    assert mixing.common_roots.tolist() == [0]
    power = np.linalg.matrix_power(mixing.pull, 400)
    assert np.allclose(power, power[0])


def test_balancing_a_pattern_that_falls_apart_as_a_bipartite_graph():
    pattern = np.array([[0, 1, 1, 1], [1, 0, 0, 0], [0, 0, 1, 1], [0, 1, 1, 1]])
    W = Mixing.balanced(Graph.from_matrix(pattern)).pull
    assert np.allclose(W.sum(axis=0), 1, atol=1e-12)
    assert np.allclose(W.sum(axis=1), 1, atol=1e-12)
    assert ((W > 0) == (pattern > 0)).all()


def test_the_central_root_minds_both_directions():
    """The smallest sum of both depths, also where the smallest depth of one tree lies at another root."""
    telling = 0
    for seed in range(40):
        graph = topologies.random_digraph(8, probability=0.2, seed=seed)
        down = np.array([graph.tree(r).depth.max() for r in range(8)])
        up = np.array([graph.reverse().tree(r).depth.max() for r in range(8)])
        root = int(Mixing.spanning_trees(graph).common_roots[0])
        assert down[root] + up[root] == (down + up).min()
        telling += (down + up)[np.argmin(down)] > (down + up).min()
    assert telling > 5


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (np.array([[1j, 0], [0, 1]]), "real weights"),
        ([[[1.0], [1.0, 2.0]]], "n x n array"),
        ([[1.0, 0.5], [0.25, 0.5]], "pull: row 0 sums to 1.5"),
    ],
)
def test_odd_matrices(matrix, message):
    with pytest.raises(MixingError, match=message):
        Mixing(pull=matrix)
    gradient = torch.tensor([[0.5, 0.5], [0.5, 0.5]], requires_grad=True)
    assert Mixing(pull=gradient).nodes == 2
    with pytest.raises(MixingError, match=r"it is row-stochastic. Divide each column"):
        Mixing(push=[[0.5, 0.5], [0.25, 0.75]])

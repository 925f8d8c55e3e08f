"""What large networks rest on: matrices without their diagonal, one pattern for both sides, hashes without dense copies."""

from hashlib import sha256

import numpy as np
import pytest
import torch
from scipy.sparse import coo_array, csr_array, random_array

from perron import Mixing
from perron.networks import stochastic, topologies
from perron.networks._adjacency import without_diagonal
from perron.networks.graph import Graph
from perron.simulation.node import SimulatedNode

NODES = 300


def random_matrix(seed: int, density: float = 0.05) -> csr_array:
    found = csr_array(random_array((NODES, NODES), density=density, rng=np.random.default_rng(seed)))
    found.sum_duplicates()
    return found


@pytest.mark.parametrize("density", [0.0, 0.01, 0.3])
def test_the_diagonal_is_left_out(density):
    matrix = random_matrix(1, density)
    links, loops = without_diagonal(matrix)
    dense = matrix.toarray()
    assert loops.tolist() == np.flatnonzero(dense.diagonal()).tolist()
    np.fill_diagonal(dense, 0)
    assert (links.toarray() == dense).all()
    assert links.has_canonical_format
    assert links.indices.dtype == links.indptr.dtype == np.int32


def test_a_graph_of_a_matrix_is_that_of_its_entries():
    matrix = random_matrix(2)
    entries = coo_array(matrix)
    pairs = np.stack([entries.col, entries.row], 1)
    expected = Graph(NODES, pairs, self_loops=False)
    zeros = csr_array((np.zeros(1), ([3], [4])), shape=matrix.shape)  # stored, but no link
    for given in (matrix, matrix.T.tocsr().T, matrix.toarray(), csr_array(matrix + zeros), coo_array(matrix)):
        found = Graph.from_matrix(given)
        assert found == expected
        assert found.adjacency().toarray().tolist() == (matrix.toarray() != 0).tolist()


def test_sinks_are_the_roots_of_the_reverse_graph():
    for graph in (
        Graph(5, [(0, 1), (1, 2), (2, 1), (3, 2), (2, 4)]),
        Graph(4, [(0, 1), (1, 2), (2, 0), (2, 3)]),
        topologies.ring(4),
    ):
        reverse = Graph(graph.nodes, graph.edges[:, ::-1])
        assert graph.reverse() == reverse
        assert graph.sinks().tolist() == reverse.roots().tolist()
        assert graph.roots().tolist() == reverse.sinks().tolist()


def test_equal_patterns_share_a_graph_and_others_do_not():
    ring, exponential = topologies.ring(NODES), topologies.exponential(NODES)
    same, other = Mixing.random_integer(exponential, seed=0), Mixing.uniform(exponential, ring)
    assert same.pull_graph == same.push_graph == exponential
    assert same.push_graph.name.startswith("push graph")
    assert same.pull_graph.name.startswith("pull graph")
    assert other.push_graph == ring
    assert other.pull_graph == exponential


def test_columns_are_divided_by_their_sums():
    matrix = random_matrix(3)
    found, sums = stochastic.normalize_columns(matrix).toarray(), matrix.toarray().sum(0)
    np.testing.assert_allclose(found, matrix.toarray() / np.where(sums > 0, sums, 1), rtol=1e-14)


def test_the_hash_of_a_sparse_matrix_is_that_of_the_dense_one(monkeypatch):
    mixing = Mixing.random_integer(topologies.exponential(NODES), seed=0)
    digest = sha256()
    for matrix in (mixing.pull, mixing.push):
        digest.update(matrix.toarray().tobytes())
    assert mixing.fingerprint == digest.hexdigest()[:12]
    monkeypatch.setattr(stochastic, "HASH_DENSE_UP_TO", 100)
    each = {Mixing.random_integer(topologies.exponential(NODES), seed=seed).fingerprint for seed in (0, 0, 1)}
    assert len(each) == 2
    assert mixing.fingerprint not in each


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_sparse_products_have_indices_of_32_bits(dtype):
    mixing = Mixing.random_integer(topologies.exponential(NODES), seed=0)
    node = SimulatedNode(mixing, trials=2, dtype=dtype)
    assert mixing.pull.indices.dtype == np.int32
    assert node.tensor(mixing.pull).crow_indices().dtype == torch.int32
    x = torch.randn(2, NODES, 3, dtype=dtype, generator=torch.Generator().manual_seed(0))
    expected = torch.from_numpy(mixing.push.toarray()).to(dtype) @ x
    torch.testing.assert_close(node.push(x).wait(), expected)

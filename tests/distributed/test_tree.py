"""Collective operations along a tree, and networks without some pairs."""

import threading
from datetime import timedelta

import numpy as np
import pytest
import torch
import torch.distributed as dist

from perron import Mixing
from perron.algorithms import PushPull
from perron.distributed.elastic.recovery import rebuild_network
from perron.distributed.elastic.tree import Tree
from perron.networks import topologies
from perron.networks.restrict import avoid

BROKEN = {frozenset(pair) for pair in [(0, 1), (0, 2), (2, 4), (1, 3)]}  # of five ranks; the others are connected


def in_every_rank(size, broken, call):
    """Run a function with a tree in a thread for each rank, over gloo; return the results by rank."""
    store, results = dist.HashStore(), [None] * size

    def run(rank):
        group = dist.ProcessGroupGloo(store, rank, size, timedelta(seconds=60))

        def post(transfers):
            used = {frozenset((rank, one.peer)) for one in transfers}
            assert not used & broken
            return [(group.send if one.sent else group.recv)([one.tensor], one.peer, one.tag) for one in transfers]

        results[rank] = call(Tree(post, rank, size, broken), rank)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_collectives_equal_those_over_all_pairs():
    limit = timedelta(seconds=60)

    def call(tree, rank):
        total, most, sent = (torch.tensor([rank, 1.0 - rank]) for _ in range(3))
        rows = [torch.empty(2) for _ in range(5)]
        tree.all_reduce(total, dist.ReduceOp.SUM).wait(limit)
        tree.all_reduce(most, dist.ReduceOp.MAX).wait(limit)
        tree.all_gather(rows, torch.tensor([rank, 10.0 * rank])).wait(limit)
        tree.broadcast(sent, 3).wait(limit)
        return total.tolist(), most.tolist(), torch.stack(rows).tolist(), sent.tolist()

    expected = ([10.0, -5.0], [4.0, 1.0], [[float(rank), 10.0 * rank] for rank in range(5)], [3.0, -2.0])
    assert in_every_rank(5, BROKEN, call) == [expected] * 5


@pytest.mark.parametrize("graph", ["ring", "one_peer_exponential", "exponential", "complete"])
def test_networks_without_broken_pairs(graph):
    network = rebuild_network(graph, range(5), PushPull(), broken=BROKEN)
    for matrices in network.sequences:
        for matrix in matrices:
            dense = np.asarray(matrix.todense() if hasattr(matrix, "todense") else matrix)
            assert all(dense[tuple(pair)] == dense[tuple(pair)[::-1]] == 0 for pair in BROKEN)


def test_sums_and_symmetry_stay():
    mixing = avoid(Mixing.random_integer(topologies.complete(4), seed=1), [(0, 2)])
    assert np.asarray(mixing.pull).sum(1) == pytest.approx(1)
    assert np.asarray(mixing.push).sum(0) == pytest.approx(1)
    symmetric = np.asarray(avoid(Mixing.uniform(topologies.complete(4)), [(0, 2)]).pull)
    assert symmetric.tolist() == symmetric.T.tolist()

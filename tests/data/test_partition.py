"""Samples are dealt out in full, as the rules promise, and the same way again for the same seed."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from perron import PerronError
from perron.data import partition
from perron.data.datasets import digits

LABELS = digits().labels
MANY = torch.arange(200_000) % 10


@pytest.mark.parametrize("rule", partition.PARTITIONS)
@pytest.mark.parametrize("nodes", [1, 3, 16, 100])
def test_every_sample_is_dealt_out_once(rule, nodes):
    parts = partition.deal(LABELS, nodes, partition=rule, seed=4)
    assert len(parts) == nodes
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(len(LABELS)))
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 10  # about N/n each: no farther off than rounding the ten classes
    again = partition.deal(LABELS, nodes, partition=rule, seed=4)
    assert all(torch.equal(one, other) for one, other in zip(parts, again, strict=True))
    if nodes > 1 and rule != "sorted":  # which has nothing random
        other = partition.deal(LABELS, nodes, partition=rule, seed=5)
        assert not all(torch.equal(one, two) for one, two in zip(parts, other, strict=True))


def test_iid_shares_are_those_of_the_whole():
    counts = partition.table(MANY, partition.iid(MANY, 10))
    assert np.abs(counts - 2000).max() < 5 * np.sqrt(2000)


def test_dirichlet_keeps_what_sets_nodes_apart():
    """Odds ratios are those of the proportions that were drawn, though rows and columns have their sums."""
    nodes, classes = 6, 10
    drawn = np.random.default_rng(3).dirichlet(np.full(classes, 5.0), size=nodes)
    counts = partition.table(MANY, partition.dirichlet(MANY, nodes, concentration=5.0, seed=3))
    assert (counts.sum(0) == 20_000).all()
    assert np.abs(counts.sum(1) - len(MANY) / nodes).max() <= classes

    def odds(table):
        return table[:, :, None] / table[:, None, :] / (table[:1, :, None] / table[:1, None, :])

    assert np.allclose(np.log(odds(counts.astype(float))), np.log(odds(drawn)), atol=0.05)


def test_dirichlet_is_heterogeneous_as_its_concentration_says():
    def largest_share(concentration):
        counts = partition.table(MANY, partition.dirichlet(MANY, 16, concentration=concentration, seed=0))
        return float((counts.max(1) / counts.sum(1)).mean())

    few, paper, even = (largest_share(value) for value in (0.05, 0.9, 1000.0))
    assert few > 0.6
    assert 0.2 < paper < 0.5
    assert even < 0.13


@given(
    st.integers(1, 12), st.integers(1, 8), st.floats(0.05, 50.0), st.integers(0, 1000), st.integers(12, 400)
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_dirichlet_loses_nothing_whatever_it_is_given(nodes, classes, concentration, seed, samples):
    labels = torch.from_numpy(np.random.default_rng(seed).integers(classes, size=samples))
    parts = partition.dirichlet(labels, nodes, concentration=concentration, seed=seed)
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(samples))


def test_by_label_and_by_shard():
    labels = partition.table(MANY, partition.by_label(MANY, 10))
    assert (np.count_nonzero(labels, axis=1) == 1).all()
    shards = partition.table(MANY, partition.by_shard(MANY, 20, shards=2))
    assert np.count_nonzero(shards, axis=1).max() <= 2


def test_what_cannot_be_dealt_out_is_refused():
    with pytest.raises(PerronError, match="3 samples cannot be dealt out to 4 nodes"):
        partition.iid(torch.arange(3), 4)
    with pytest.raises(PerronError, match="concentration > 0; got 0"):
        partition.dirichlet(LABELS, 4, concentration=0)
    with pytest.raises(PerronError, match="4 x 1000 pieces"):
        partition.by_shard(LABELS, 4, shards=1000)
    with pytest.raises(PerronError, match="no partition 'dirichle'; did you mean 'dirichlet'"):
        partition.deal(LABELS, 4, partition="dirichle")

import networkx as nx
import numpy as np
import pytest

from perron.clock import maxplus
from perron.clock.maxplus import max_cycle_mean
from perron.errors import PerronError

NONE = -np.inf


def random_weights(seed, n, density, scale=1.0):
    random = np.random.default_rng(seed)
    return np.where(random.random((n, n)) < density, scale * random.normal(size=(n, n)), NONE)


def mean_of(weights, cycle):
    return np.mean([weights[j, i] for i, j in zip(cycle, cycle[1:] + cycle[:1], strict=True)])


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("limit", [0, 100], ids=["policy iteration", "Karp"])
def test_it_is_the_largest_mean_of_all_simple_cycles(seed, limit, monkeypatch):
    monkeypatch.setattr(maxplus, "KARP_UP_TO", limit)
    weights = random_weights(seed, n=4 + seed % 5, density=0.15 + 0.04 * seed)
    graph = nx.DiGraph([(j, i) for i, j in np.argwhere(weights > NONE).tolist()])
    cycles = list(nx.simple_cycles(graph))
    mean, cycle = max_cycle_mean(weights)
    if not cycles:
        assert (mean, cycle) == (NONE, [])
        return
    assert mean == pytest.approx(max(mean_of(weights, one) for one in cycles), abs=1e-14)
    assert mean_of(weights, cycle) == pytest.approx(mean, abs=1e-15)
    assert len(set(cycle)) == len(cycle)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_policy_iteration_finds_what_karp_finds(seed, scale, monkeypatch):
    weights = random_weights(seed, 120, [0.01, 0.03, 0.1, 0.3, 0.7, 1.0][seed], scale)
    by_policies = max_cycle_mean(weights)
    monkeypatch.setattr(maxplus, "KARP_UP_TO", 1000)
    by_walks = max_cycle_mean(weights)
    assert by_policies[0] == pytest.approx(by_walks[0], rel=1e-12, abs=1e-12 * scale)
    assert mean_of(weights, by_policies[1]) == pytest.approx(mean_of(weights, by_walks[1]), rel=1e-12)


@pytest.mark.parametrize("n", [90, 150])
def test_ties_everywhere_and_one_long_cycle(n):
    ring = np.full((n, n), NONE)
    ring[(np.arange(n) + 1) % n, np.arange(n)] = np.arange(n, dtype=float)
    mean, cycle = max_cycle_mean(ring)
    assert mean == (n - 1) / 2
    assert cycle == list(range(n))
    assert max_cycle_mean(np.full((n, n), 2.5))[0] == 2.5


def test_only_cycles_count_and_the_best_component_wins():
    path = np.full((3, 3), NONE)
    path[1, 0] = path[2, 1] = 100.0
    assert max_cycle_mean(path) == (NONE, [])
    path[0, 0] = -7.0
    assert max_cycle_mean(path) == (-7.0, [0])
    two = np.full((5, 5), NONE)
    two[1, 0], two[0, 1] = 1.0, 2.0
    two[3, 2], two[4, 3], two[2, 4] = 3.0, 3.0, 0.0
    two[2, 0] = 1000.0  # from one to the other
    assert max_cycle_mean(two) == (2.0, [2, 3, 4])


def test_large_matrices_are_fast_enough_to_finish():
    weights = np.random.default_rng(0).random((1500, 1500))
    mean, cycle = max_cycle_mean(weights)
    assert mean_of(weights, cycle) == pytest.approx(mean)
    assert mean >= max(weights.diagonal().max(), ((weights + weights.T) / 2).max())


@pytest.mark.parametrize("wrong", [np.zeros(3), np.zeros((2, 3)), np.array([[np.nan]]), np.array([[np.inf]])])
def test_other_matrices_are_refused(wrong):
    with pytest.raises(PerronError, match=r"shape|finite"):
        max_cycle_mean(wrong)

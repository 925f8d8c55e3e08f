"""Spectral metrics: closed forms, the definitions computed literally, and the paper's claims where they hold."""

from fractions import Fraction
from math import cos, inf, log, pi, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import digraphs, mixings, random_mixing

from perron import Graph, Mixing, Network, SpectralError
from perron.networks import _eigen as eigen
from perron.networks import spectral, topologies
from perron.networks._eigen import DENSE_UP_TO


def left_eigenvector(row_stochastic):
    values, vectors = np.linalg.eig(row_stochastic.T)
    vector = vectors[:, np.argmin(np.abs(values - 1))].real
    return vector / vector.sum()


def literal_norms(row_stochastic, terms=3000):
    """||A^i - A_inf|| for i = 0, 1, ..., with A_inf from the eigenvector that LAPACK finds."""
    limit = np.outer(np.ones(len(row_stochastic)), left_eigenvector(row_stochastic))
    power, norms = np.eye(len(row_stochastic)), []
    for _ in range(terms):
        norms.append(np.linalg.norm(power - limit, 2))
        power = row_stochastic @ power
    return np.array(norms)


# ---- definitions


@pytest.mark.slow
@given(mixings(self_loops=None))
@settings(max_examples=1000)
def test_perron_vectors_are_positive_eigenvectors_and_c_is_within_its_bounds(mixing):
    a, b = spectral.perron(mixing.pull), spectral.perron(mixing.push)
    assert (a > 0).all()
    assert (b > 0).all()
    assert np.allclose([a.sum(), b.sum()], 1, atol=1e-14)
    assert np.allclose(a @ mixing.pull, a, rtol=0, atol=1e-14)
    assert np.allclose(mixing.push @ b, b, rtol=0, atol=1e-14)
    n, c = mixing.nodes, spectral.alignment(mixing)
    slack = 1e-12
    assert n * max(a.min(), b.min()) * (1 - slack) <= c <= n * min(a.max(), b.max()) * (1 + slack)


@pytest.mark.slow
@given(mixings(max_nodes=8))
@settings(max_examples=200)
def test_proposition_2(mixing):
    """1 <= s <= M^2 (1 + ln(kappa)/2) / (1 - beta), for both matrices, where all nodes have self-loops."""
    for matrix in (mixing.pull, mixing.push):
        s = spectral.mixing_sum(matrix)
        beta, kappa = spectral.contraction(matrix), spectral.skewness(matrix)
        assert 0 <= beta < 1
        assert 1 - 1e-12 <= s.value
        assert s.value <= (s.peak**2 * (1 + log(kappa) / 2) / (1 - beta)) * (1 + 1e-9)
        assert s.peak <= sqrt(2 * mixing.nodes)


@pytest.mark.parametrize("seed", range(6))
def test_all_metrics_equal_their_definitions(seed):
    mixing = random_mixing(9, seed)
    for matrix, rows in ((mixing.pull, mixing.pull), (mixing.push, mixing.push.T)):
        norms = literal_norms(rows)
        s = spectral.mixing_sum(matrix)
        assert s.value == pytest.approx(max(norms.sum(), (norms**2).sum()), rel=1e-8)
        assert s.tail < 1e-8 * s.value
        assert s.peak == pytest.approx(norms.max(), rel=1e-12)
        assert not s.is_bound
        w = spectral.perron(matrix)
        assert np.allclose(w, left_eigenvector(rows), rtol=1e-9)
        assert spectral.decay_rate(matrix) == pytest.approx(np.sort(np.abs(np.linalg.eigvals(rows)))[-2], rel=1e-9)
        # In the paper's own form, for B with B_inf = pi 1^T and Pi^-1/2 (B - B_inf) Pi^1/2.
        if matrix is mixing.push:
            weighted = np.diag(w**-0.5) @ (matrix - np.outer(w, np.ones(9))) @ np.diag(w**0.5)
        else:
            weighted = np.diag(w**0.5) @ (matrix - np.outer(np.ones(9), w)) @ np.diag(w**-0.5)
        assert spectral.contraction(matrix) == pytest.approx(np.linalg.norm(weighted, 2), rel=1e-10)
    assert spectral.alignment(mixing) == pytest.approx(9 * spectral.perron(mixing.pull) @ spectral.perron(mixing.push))


@pytest.mark.parametrize("power", [2, 3, 7])
def test_s_of_a_power(power):
    matrix = random_mixing(7, 1).pull
    norms = literal_norms(np.linalg.matrix_power(matrix, power))
    assert spectral.mixing_sum(matrix, power=power).value == pytest.approx(max(norms.sum(), (norms**2).sum()), rel=1e-8)


@given(digraphs(max_nodes=8), st.integers(0, 1000))
@settings(max_examples=60)
def test_s_of_powers_falls_to_its_limit(graph, seed):
    """s_{B^m} <= s_B, and it tends to ||I - B_inf||^2 = n ||pi||^2 (errata 7e)."""
    push = Mixing.random_integer(graph, seed=seed).push
    s = [spectral.mixing_sum(push, power=m).value for m in (1, 2, 4, 5000)]
    assert all(later <= s[0] * (1 + 1e-8) for later in s)
    assert s[-1] == pytest.approx(graph.nodes * np.sum(spectral.perron(push) ** 2), rel=1e-3)


# ---- closed forms


@pytest.mark.parametrize("n", [2, 5, 16])
def test_complete_graph(n):
    metrics = spectral.describe(Mixing.uniform(topologies.complete(n)))
    assert metrics.c == pytest.approx(1)
    for m in (metrics.pull, metrics.push):
        assert np.allclose(m.perron, 1 / n)
        assert m.rho_2 == pytest.approx(0, abs=1e-12)
        assert m.beta == pytest.approx(0, abs=1e-12)
        assert m.kappa == pytest.approx(1)
        assert m.s == pytest.approx(1)  # only ||I - 11^T/n|| = 1 is left
        assert m.peak == pytest.approx(1)


@pytest.mark.parametrize("n", [3, 8, 25, 64])
def test_uniform_ring(n):
    """Eigenvalues (1 + w^k)/2 of a normal matrix, so ||A^i - A_inf|| = cos(pi/n)^i and s is a geometric series."""
    matrix = Mixing.uniform(topologies.ring(n)).pull
    rho = cos(pi / n)
    assert spectral.decay_rate(matrix) == pytest.approx(rho, rel=1e-12)
    assert spectral.contraction(matrix) == pytest.approx(rho, rel=1e-12)
    assert spectral.mixing_sum(matrix).value == pytest.approx(1 / (1 - rho), rel=1e-8)


def test_two_nodes():
    """[[1-p, p], [q, 1-q]] has pi = (q, p)/(p+q) and the second eigenvalue 1-p-q, here negative."""
    p, q = 0.9, 0.7
    matrix = np.array([[1 - p, p], [q, 1 - q]])
    assert np.allclose(spectral.perron(matrix), [q / (p + q), p / (p + q)])
    assert spectral.decay_rate(matrix) == pytest.approx(p + q - 1)
    assert spectral.skewness(matrix) == pytest.approx(p / q)


def test_perron_vector_of_a_very_skewed_chain_is_accurate_in_every_entry():
    """A birth-death chain has pi in closed form; here its entries span 60 orders of magnitude."""
    n, up, down = 31, 1e-3, 0.1
    matrix = np.diag(np.full(n - 1, up), 1) + np.diag(np.full(n - 1, down), -1)
    matrix += np.diag(1 - matrix.sum(axis=1))
    exact = (up / down) ** np.arange(n)
    assert np.allclose(spectral.perron(matrix) / (exact / exact.sum()), 1, rtol=1e-10)


@pytest.mark.parametrize(
    ("first", "second"), [(1e-2, 1e-3), (1e-6, 0.0), (1e-9, 1e-8), (1 - 1e-8, 1 - 1e-7), (0.0, 1e-12)]
)
def test_s_of_two_nodes_that_are_nearly_periodic_or_hardly_mix(first, second):
    """A^i - A_inf = (1-p-q)^i (I - A_inf): a geometric series, of which up to 1e12 terms matter."""
    p, q = 1 - Fraction(first), 1 - Fraction(second)
    rho = abs(1 - p - q)
    start = sqrt(2 * float(p**2 + q**2)) / float(p + q)  # ||I - A_inf||
    s = spectral.mixing_sum([[float(1 - p), float(p)], [float(q), float(1 - q)]])
    assert s.value == pytest.approx(
        max(start / float(1 - rho), start**2 / float(1 - rho**2)), rel=1e-9 + 1e-15 / float(1 - rho)
    )
    assert not s.is_bound


@pytest.mark.parametrize("n", [3, 8, 40])
@pytest.mark.parametrize("stay", [1e-4, 1e-9])
def test_s_of_a_nearly_periodic_ring_is_bounded_tightly(n, stay):
    """Normal, so that s is a geometric series of rho; too many of its terms matter, and doubling bounds them."""
    matrix = (1 - stay) * np.roll(np.eye(n), 1, axis=1) + stay * np.eye(n)
    # 1 - rho^2 with rho^2 = (1-p)^2 + p^2 + 2 p (1-p) cos(2 pi/n)
    gap = 2 * stay * (1 - stay) * (1 - cos(2 * pi / n))
    exact = (1 + sqrt(1 - gap)) / gap
    s = spectral.mixing_sum(matrix)
    assert s.is_bound or n == 3
    assert exact * (1 - 1e-6) <= s.value <= 1.01 * exact


def test_the_bound_by_doubling_holds_where_powers_first_grow():
    """A nearly periodic ring with one self-loop, against the sum of all terms, without the limit on their number."""
    matrix = np.roll(np.eye(6), 1, axis=1)
    matrix[0, 0], matrix[0, 1] = 0.01, 0.99
    w = spectral.perron(matrix)
    exact, step, deviation, norms = spectral.mixing_sum(matrix), matrix - w, np.eye(6) - w, []
    for _ in range(50):
        norms.append(np.linalg.norm(deviation, 2))
        last, deviation = deviation, step @ deviation
    bound = eigen._bounded_by_doubling(np.array(norms), step, last)
    assert not exact.is_bound
    assert exact.value <= bound.value <= 1.1 * exact.value
    assert bound.peak == pytest.approx(exact.peak, rel=1e-9)


def test_one_node():
    metrics = spectral.describe(Mixing.uniform(topologies.ring(1)))
    assert (metrics.c, metrics.pull.s, metrics.pull.rho_2, metrics.pull.kappa) == (1, 0, 0, 1)


# ---- where the paper is too optimistic (its errata)


def test_beta_can_be_one_without_all_self_loops():
    """A 3-ring with one self-loop satisfies the paper's assumptions, yet beta = 1; s is finite (errata 7d)."""
    graph = Graph(3, [(0, 1), (1, 2), (2, 0), (0, 0)], self_loops=False)
    matrix = Mixing.uniform(graph).pull
    assert spectral.contraction(matrix) == pytest.approx(1, abs=1e-12)
    assert spectral.mixing_sum(matrix).value == pytest.approx(4.43, abs=0.01)
    assert spectral.decay_rate(matrix) < 1


def test_the_peak_can_exceed_sqrt_n():
    """All listen to a hub, the hub to node 1, node 1 to itself: M tends to sqrt(2(n-2)) = 4 > sqrt(10) (errata 7c)."""
    n, small = 10, 1e-3
    pattern = np.zeros((n, n))
    pattern[2:, 0] = pattern[0, 1] = pattern[1, 1] = 1
    matrix = (1 - small) * pattern + small / n
    assert spectral.peak_deviation(matrix) == pytest.approx(4, abs=0.01)
    assert sqrt(n) < spectral.peak_deviation(matrix) <= sqrt(2 * n)


def test_norm_of_i_minus_limit_is_at_least_one():
    """||I - A_inf|| = sqrt(n) ||pi|| (errata 7b)."""
    matrix = random_mixing(8, 3).pull
    w = spectral.perron(matrix)
    assert np.linalg.norm(np.eye(8) - np.outer(np.ones(8), w), 2) == pytest.approx(sqrt(8) * np.linalg.norm(w))


# ---- unusual networks


def test_trees_follow_their_root():
    mixing = Mixing.spanning_trees(topologies.tree(16), root=0)
    metrics = spectral.describe(mixing)
    assert np.array_equal(metrics.pull.perron, np.eye(16)[0])
    assert metrics.c == 16
    assert metrics.pull.kappa == metrics.pull.beta == inf
    assert metrics.pull.rho_2 == pytest.approx(0, abs=1e-12)
    assert metrics.to_dict()["pull"]["kappa"] is None
    assert any("rooted at node 0" in line for line in metrics.advice())
    assert metrics.pull.s == pytest.approx(45.7, abs=0.05)  # algorithms.md, card 20


def test_the_least_return_of_a_rooted_network_is_that_of_its_roots():
    """Nodes 0 and 1 form the root component of A; node 2 only receives, has Perron weight zero, and does not count."""
    A = np.array([[0.1, 0.9, 0.0], [0.6, 0.4, 0.0], [0.2, 0.3, 0.5]])
    rooted = Network(Mixing(A, A.T, connected="rooted"))
    alone = Network(Mixing(A[:2, :2], A[:2, :2].T))
    np.testing.assert_allclose(rooted.pull_perron, [0.4, 0.6, 0.0])
    assert rooted.least_return == pytest.approx(0.1 / 0.4)
    assert alone.least_return == pytest.approx(0.1 / 0.4)


def test_time_varying_networks_are_described_by_their_product():
    metrics = spectral.describe(Mixing.uniform(topologies.one_peer_exponential(16)))
    assert metrics.period == 4
    assert metrics.pull.s == pytest.approx(1)
    assert metrics.pull.rho_2 == pytest.approx(0, abs=1e-12)
    with pytest.raises(SpectralError, match="at most 600 nodes; got 1024"):
        spectral.describe(Mixing.uniform(topologies.one_peer_exponential(1024)))


def test_one_sided_networks():
    metrics = spectral.describe(Mixing(pull=[[0.5, 0.5], [0.5, 0.5]]))
    assert metrics.push is None
    assert metrics.c is None
    assert "pull (A)" in str(metrics)


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        ([[0.5, 0.4], [0.5, 0.5]], "Neither the rows nor the columns"),
        ([[1.0, 0.0]], "square"),
        ([[2.0, -1.0], [0.0, 1.0]], "not negative"),
        (np.eye(2), "no unique Perron vector"),
    ],
)
def test_what_is_not_stochastic_is_refused(matrix, message):
    with pytest.raises(SpectralError, match=message):
        spectral.perron(matrix)


def test_power_must_be_positive():
    with pytest.raises(SpectralError, match="power >= 1"):
        spectral.mixing_sum(np.eye(1), power=0)


# ---- large graphs: the sparse paths against the dense ones

LARGE = {
    "exponential": topologies.exponential(700),
    "random_k_out": topologies.random_k_out(700, seed=1),
    "ring": topologies.ring(700),
    "grid": topologies.grid(729),
    "undirected_grid": topologies.undirected_grid(729),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_sparse_methods_agree_with_dense_ones(name):
    assert LARGE[name].nodes > DENSE_UP_TO
    mixing = Mixing.random_integer(LARGE[name], seed=2)
    for matrix, rows in ((mixing.pull, mixing.pull.toarray()), (mixing.push, mixing.push.toarray().T)):
        w = spectral.perron(matrix)
        exact = eigen.reduce_states(rows)
        assert np.allclose(w / exact, 1, rtol=1e-8)
        assert spectral.decay_rate(matrix) == pytest.approx(np.sort(np.abs(np.linalg.eigvals(rows)))[-2], rel=1e-6)
        assert spectral.contraction(matrix) == pytest.approx(eigen.weighted_norm(rows, exact), rel=1e-7)


@pytest.mark.slow
def test_the_bound_on_s_is_one_and_is_labelled():
    for name in ("exponential", "random_k_out"):
        mixing = Mixing.random_integer(LARGE[name], seed=2)
        bound = spectral.mixing_sum(mixing.pull)
        rows = mixing.pull.toarray()
        true = eigen.summed_norms(rows, spectral.perron(mixing.pull), 1, 1e-6)
        assert bound.is_bound
        assert true.value <= bound.value <= 10 * true.value
        assert true.peak <= bound.peak
        assert "<= " in str(spectral.describe(mixing))


@pytest.mark.parametrize(
    ("graph", "beta", "kappa", "s"),
    [
        (topologies.exponential(16), 0.698, 2.85, 3.0),
        (topologies.ring(16), 0.9895, 6.0, 47.9),
        (topologies.chordal_ring(16), 0.9835, 9.35, 25.6),
        (topologies.undirected_grid(16), 0.891, 8.4, 9.85),
    ],
)
def test_medians_agree_with_an_earlier_independent_measurement(graph, beta, kappa, s):
    """Medians over weightings 1..9 from the errata's table (its means of A and B, 30 weightings)."""
    matrices = [Mixing.random_integer(graph, seed=seed).pull for seed in range(60)]
    assert np.median([spectral.contraction(m) for m in matrices]) == pytest.approx(beta, rel=0.03)
    assert np.median([spectral.skewness(m) for m in matrices]) == pytest.approx(kappa, rel=0.25)
    assert np.median([spectral.mixing_sum(m).value for m in matrices]) == pytest.approx(s, rel=0.1)


# ---- hard cases


def birth_death(matrix):
    """The Perron vector of a path's row-stochastic matrix, in closed form, by logarithms."""
    ratio = np.log(np.diag(matrix, 1)) - np.log(np.diag(matrix, -1))
    log_weight = np.concatenate([[0], np.cumsum(ratio)])
    weight = np.exp(log_weight - log_weight.max())
    return weight / weight.sum()


def test_large_skewed_networks_are_accurate_or_refused():
    matrix = Mixing.random_integer(topologies.path(900), seed=3).pull
    assert np.allclose(spectral.perron(matrix) / birth_death(matrix.toarray()), 1, rtol=1e-9)
    with pytest.raises(SpectralError, match="cannot be found accurately in double precision"):
        spectral.perron(Mixing.random_integer(topologies.path(5000), seed=5).pull)


def test_decay_rate_of_large_networks_without_self_loops_finds_eigenvalues_near_minus_one():
    n = 800
    ways = [(i, (i + 1) % n) for i in range(n)] + [((i + 1) % n, i) for i in range(n)]
    matrix = Mixing.uniform(Graph(n, [*ways, (0, 0)], self_loops=False)).pull
    exact = np.sort(np.abs(np.linalg.eigvals(matrix.toarray())))[-2]
    assert 1 - spectral.decay_rate(matrix) == pytest.approx(1 - exact, rel=1e-3)


@pytest.mark.parametrize("name", ["ring", "tree"])
def test_decay_rate_of_large_spanning_trees_is_zero(name):
    mixing = Mixing.spanning_trees(topologies.NAMES[name](700))
    assert spectral.decay_rate(mixing.pull) == spectral.decay_rate(mixing.push) == 0


def test_decay_rate_of_a_large_rooted_network_is_that_of_its_components():
    """A root component with rho_2 = cos(pi/650), and a second component whose own eigenvalue 0.9 dominates nothing."""
    ring = Mixing.uniform(topologies.ring(650)).pull.toarray()
    matrix = np.zeros((652, 652))
    matrix[:650, :650] = ring
    matrix[650:, 650:] = [[0.5, 0.499999], [0.499999, 0.5]]
    matrix[650:, 0] = 1e-6
    assert spectral.decay_rate(matrix) == pytest.approx(max(cos(pi / 650), 0.999999), rel=1e-9)


@pytest.mark.slow
def test_a_network_too_slow_for_s_is_still_described():
    slow = spectral.describe(Mixing.lazy(topologies.exponential(60), keep=0.9999))
    assert slow.pull.s_is_bound
    assert slow.c == pytest.approx(1)
    rho = spectral.decay_rate(Mixing.lazy(topologies.exponential(60), keep=0.9999).pull)
    assert slow.pull.s >= 1 / (1 - rho)


def test_skewed_beyond_double_precision_is_not_called_rooted():
    n, up, down = 200, 1e-3, 0.1
    matrix = np.diag(np.full(n - 1, up), 1) + np.diag(np.full(n - 1, down), -1)
    matrix += np.diag(1 - matrix.sum(axis=1))
    metrics = spectral.describe(Mixing(pull=matrix))
    assert metrics.pull.kappa == inf
    assert any("beyond double precision" in line for line in metrics.advice())
    assert not any("rooted" in line for line in metrics.advice())


def test_products_over_a_period_are_taken_in_the_order_of_time():
    first, second = random_mixing(5, 1), random_mixing(5, 2)
    mixing = Mixing([first.pull, second.pull], [first.push, second.push])
    assert np.allclose(spectral.period_product(mixing, "pull"), second.pull @ first.pull)
    assert np.allclose(spectral.period_product(mixing, "push"), second.push @ first.push)


def test_the_bound_on_s_holds_on_skewed_networks():
    """sqrt(kappa) matters: without it the bound would fail here."""
    for seed in range(20):
        matrix = random_mixing(6, seed, high=1000).pull
        w = spectral.perron(matrix)
        bound = eigen.bounded_sum(w, spectral.contraction(matrix))
        assert spectral.mixing_sum(matrix).value <= bound.value * (1 + 1e-9)


def test_advice_is_given_where_it_is_due_only():
    assert spectral.describe(Mixing.uniform(topologies.exponential(16))).advice() == []
    slow = spectral.describe(Mixing.uniform(topologies.ring(64))).advice()
    assert all("mixes slowly" in line for line in slow)
    assert len(slow) == 2

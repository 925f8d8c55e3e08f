"""Spectral radii by reduction, modes and Arnoldi's method, against all eigenvalues of the whole dense recursion."""

import numpy as np
import pytest
import torch

from perron import ALGORITHMS, Mixing, Network, theory, topologies
from perron.problems import Quadratic
from perron.theory import rate_curve
from perron.theory.levels import closed_loop, period_matrix, spectral_radius
from perron.theory.rate_curve import HessianRates
from perron.theory.recursion import unit_recursion

RANDOM = Mixing.random_integer(topologies.random_digraph(7, probability=0.4, seed=0), seed=1)
VARYING = Mixing.uniform(topologies.one_peer_exponential(8))
NETWORKS = {
    "push_pull": RANDOM,
    "push_pull_atc": VARYING,
    "local_push_pull": RANDOM,  # several gradients in a step, which depend on each other
    "push_diging": RANDOM,
    "frost": Mixing.lazy(topologies.random_digraph(7, probability=0.4, seed=0)),
    "exact_diffusion": Mixing.metropolis(topologies.undirected_grid(9)),
}


def dense_rate(linear, lr, curvature):
    """The definition: the largest eigenvalue of the product of a period's matrices on all reachable states."""
    steps, _ = closed_loop(linear, lr * curvature)
    return spectral_radius(period_matrix(steps)) ** (1 / len(steps))


def hessians(nodes, dim, seed=0):
    return Quadratic.random(nodes, dim, strong_convexity=0.2, seed=seed).hessians.double()


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("lr", [0.003, 0.1, 0.6])
def test_rates_are_those_of_the_dense_recursion(name, lr):
    algorithm, mixing = ALGORITHMS[name], NETWORKS[name]
    linear = unit_recursion(algorithm, Network(mixing))
    unequal, shared = hessians(mixing.nodes, 3), torch.tensor([0.2, 0.7, 1.0], dtype=torch.float64)
    for curvature in (unequal, shared):
        assert theory.rate(algorithm, mixing, lr, curvature) == pytest.approx(
            dense_rate(linear, lr, curvature), rel=1e-9
        )


@pytest.mark.parametrize("name", NETWORKS)
def test_arnoldi_finds_the_same_rates_and_the_same_answers(name, monkeypatch):
    """Every attempt, on matrices that are small enough to know all eigenvalues."""
    linear = unit_recursion(ALGORITHMS[name], Network(NETWORKS[name]))
    curvature = hessians(linear.nodes, 12, seed=3)
    monkeypatch.setattr(rate_curve, "DENSE_UP_TO", 0)
    for affordable in (0, 800):
        monkeypatch.setattr(rate_curve, "AFFORDABLE", affordable)
        rates = HessianRates(linear, curvature)
        for lr in np.geomspace(1e-3, 2, 8):
            exact = dense_rate(linear, lr, curvature)
            assert rates(lr) == pytest.approx(exact, rel=1e-9)
            assert rates.contracts(lr, 1 - 1e-12) == (exact < 1 - 1e-12)


@pytest.mark.parametrize("name", ["push_pull", "exact_diffusion"])
def test_the_stable_interval_ends_where_the_dense_recursion_stops_contracting(name):
    mixing = NETWORKS[name]
    linear = unit_recursion(ALGORITHMS[name], Network(mixing))
    curvature = hessians(mixing.nodes, 16, seed=1)
    stable = theory.stable_lr(ALGORITHMS[name], mixing, curvature)
    assert HessianRates(linear, curvature).rows > rate_curve.DENSE_UP_TO
    assert stable.lower == 0
    assert dense_rate(linear, stable.upper, curvature) < 1 < dense_rate(linear, 1.0002 * stable.upper, curvature)


def test_a_hundred_coordinates():
    """3,100 unknowns. With Hessians that commute the recursion falls apart into a small one for each coordinate."""
    mixing = Mixing.random_integer(topologies.exponential(16), seed=0)
    diagonals = torch.as_tensor(np.random.default_rng(0).uniform(0.2, 1, (16, 100)))
    turn = torch.linalg.qr(torch.as_tensor(np.random.default_rng(1).standard_normal((100, 100))))[0]
    whole = turn @ torch.diag_embed(diagonals) @ turn.T
    linear = unit_recursion(ALGORITHMS["push_pull"], Network(mixing))
    parts = [dense_rate(linear, 0.3, diagonals[:, k, None, None]) for k in range(100)]
    assert theory.rate(ALGORITHMS["push_pull"], mixing, 0.3, whole) == pytest.approx(max(parts), rel=1e-9)

"""The effective step of AdamW: against trackers simulated in NumPy, and against levels of runs."""

import numpy as np
import pytest
import torch

from perron import SGP, AdamW, CentralizedSGD, Mixing, PushPull, simulate, topologies
from perron.errors import PerronError
from perron.networks.facts import Network
from perron.problems import Logistic, Quadratic
from perron.studies.statistics import level
from perron.theory import effective_step, noise_floor

MOVE = AdamW(betas=(0.9, 0.99), weight_decay=0.0)  # which soon forgets the large gradients of the start


@pytest.mark.parametrize("order", ["cta", "pu", "atc"])
@pytest.mark.parametrize("topology", ["exponential", "ring"])
def test_directions_have_the_predicted_deviation(order, topology):
    """y of many independent trials, from noise alone, by the recursion as it is written."""
    n, trials, s = 6, 20_000, 0.3
    network = Network(Mixing.random_integer(getattr(topologies, topology)(n), seed=3))
    B, random = np.asarray(network.mixing.push), np.random.default_rng(0)
    y, g, w = np.zeros((n, trials)), np.zeros((n, trials)), np.ones(n)
    for _ in range(80):
        new = s * random.standard_normal((n, trials))
        y, g, w = (B @ (y + new - g) if order == "atc" else B @ y + new - g), new, B @ w
    deviation = (y / w[:, None]).std(axis=1)
    problem = Quadratic.random(n, dim=4, noise_std=2 * s)  # s in each coordinate
    found = effective_step(PushPull(order=order, move=MOVE), network, problem)
    assert found == pytest.approx(float((network.pull_perron / deviation).sum()), rel=0.01)


@pytest.mark.parametrize(
    "algorithm", [PushPull(move=MOVE), PushPull(order="atc", move=MOVE), CentralizedSGD(move=MOVE)]
)
def test_runs_settle_at_the_floor_of_this_step(algorithm):
    mixing = Mixing.random_integer(topologies.exponential(8), seed=42)
    problem = Quadratic.random(8, strong_convexity=0.4, noise_std=1.0)
    step = effective_step(algorithm, Network(mixing), problem)
    lr = 0.04 / step
    history = simulate(
        problem, algorithm, mixing, steps=2000, lr=lr, every=10, trials=30, metrics=["grad_norm_sq"], progress=False
    )
    found = level(history.steps, history["grad_norm_sq"])
    assert found.mean == pytest.approx(noise_floor(problem, 0.04), rel=0.1)


def test_other_moves_have_the_effective_step_of_their_algorithm():
    network = Network(Mixing.random_integer(topologies.ring(4), seed=0))
    problem = Quadratic.random(4, noise_std=1.0)
    assert effective_step(PushPull(), network, problem) == PushPull().effective_step(network)


@pytest.mark.parametrize(
    ("algorithm", "problem", "message"),
    [
        (SGP(move=MOVE), Quadratic.random(4, noise_std=1.0), "only Push-Pull on one graph"),
        (PushPull(move=MOVE), Quadratic.random(4), "zero or not known"),
        (
            PushPull(move=MOVE),
            Logistic.synthetic(4, samples=400, dim=3, batch=10, compiled=False),
            "one deviation|not known",
        ),
    ],
)
def test_what_is_not_known_is_refused(algorithm, problem, message):
    network = Network(Mixing.random_integer(topologies.ring(4), seed=0))
    with pytest.raises(PerronError, match=message):
        effective_step(algorithm, network, problem)


def test_the_noise_of_one_node_is_that_of_a_problem_in_any_basis():
    uneven = Quadratic(torch.ones(2, 3).double(), torch.zeros(2, 3).double(), noise_std=1.0)
    network = Network(Mixing.uniform(topologies.ring(2)))
    assert effective_step(CentralizedSGD(move=MOVE), network, uneven) == pytest.approx((2 * 3) ** 0.5)

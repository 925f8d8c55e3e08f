"""Steps to an accuracy: equal to the rates of theory, and to steps of the simulator; seconds are steps times cycle time."""

from math import inf, log

import numpy as np
import pytest
import torch

from perron import ALGORITHMS, Mixing, Network, simulate, theory
from perron.clock import Clock, Machines
from perron.errors import PerronError
from perron.networks import topologies
from perron.problems import Quadratic
from perron.theory.rate_curve import MODES_FROM, RateCurve
from perron.theory.recursion import recursion
from perron.theory.time_to_accuracy import curvatures_of, steps_to_accuracy, time_to_accuracy

GRAPH = topologies.random_digraph(6, probability=0.4, seed=3)
DIRECTED = Mixing.random_integer(GRAPH, seed=1)
SYMMETRIC = Mixing.metropolis(GRAPH.symmetric())
EXACT = [
    name
    for name, one in ALGORITHMS.items()
    if one.about.family != "gossip" and one.about.exact and not one.about.samples
]


def network_for(name: str, graph=GRAPH) -> Mixing:
    kind = ALGORITHMS[name].about.matrices
    if kind.startswith("W"):
        return Mixing.metropolis(graph.symmetric())
    return Mixing.spanning_trees(graph) if kind == "R C" else Mixing.random_integer(graph, seed=1)


def steps_at(rates: list[float], curvatures: tuple[float, ...], share: float) -> float:
    """The steps until each part of |grad f|^2 has fallen far enough; at the start it is as the square of its curvature."""
    parts = [h**2 / sum(one**2 for one in curvatures) for h in curvatures]
    if max(rates) >= 1:
        return inf
    return max(log(share / part) / (2 * log(rate)) for rate, part in zip(rates, parts, strict=True))


@pytest.mark.parametrize("name", EXACT)
def test_the_curve_is_the_rate_of_theory(name):
    mixing = network_for(name)
    curve = RateCurve(recursion(ALGORITHMS[name], mixing), mixing)
    for lr, curvature in ((0.05, 1.0), (0.3, 0.2), (1.2, 0.02)):
        expected = theory.rate(ALGORITHMS[name], mixing, lr, curvature)
        assert curve(lr * curvature) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    "name", ["push_pull", "push_pull_pu", "push_pull_atc", "exact_diffusion", "extra", "centralized"]
)
@pytest.mark.parametrize("graph", [topologies.ring, topologies.exponential], ids=["ring", "exponential"])
def test_taken_apart_it_is_the_same(name, graph):
    graph = graph(MODES_FROM)
    mixing = Mixing.metropolis(graph.symmetric()) if name in ("exact_diffusion", "extra") else Mixing.uniform(graph)
    linear = recursion(ALGORITHMS[name], mixing)
    apart, whole = RateCurve(linear, mixing), RateCurve(linear)
    assert max(len(system[0][0].shape) for system in apart._systems) == 3
    for product in (0.003, 0.05, 0.4, 1.1):
        assert apart(product) == pytest.approx(whole(product), rel=1e-9)


def test_networks_that_vary_have_the_rate_of_a_period():
    mixing = Mixing.uniform(topologies.one_peer_exponential(6))
    algorithm = ALGORITHMS["push_pull"]
    found = steps_to_accuracy(algorithm, mixing)
    assert found.rate == pytest.approx(theory.rate(algorithm, mixing, found.lr, torch.tensor(curvatures_of(1.0, 50.0))))


@pytest.mark.parametrize(
    ("name", "mixing"), [("push_pull", DIRECTED), ("push_pull_pu", DIRECTED), ("extra", SYMMETRIC)]
)
def test_no_lr_of_a_fine_grid_is_better(name, mixing):
    algorithm, curvatures = ALGORITHMS[name], curvatures_of(7.0, 30)
    found = steps_to_accuracy(algorithm, mixing, condition=30, smoothness=7.0)
    grid = np.geomspace(0.02, 3, 120) / 7 / algorithm.effective_step(Network(mixing))
    steps = [steps_at([theory.rate(algorithm, mixing, lr, h) for h in curvatures], curvatures, 1e-8) for lr in grid]
    assert found.steps == pytest.approx(min(steps), rel=0.03)
    assert found.rate == pytest.approx(theory.rate(algorithm, mixing, found.lr, torch.tensor(curvatures)))


def test_a_guess_changes_nothing():
    found = steps_to_accuracy(ALGORITHMS["push_pull"], DIRECTED)
    for guess in (found.lr, found.lr / 3, found.lr * 3):
        near = steps_to_accuracy(ALGORITHMS["push_pull"], DIRECTED, guess=guess)
        assert near.steps == pytest.approx(found.steps, rel=0.03)


def test_all_reduce_takes_the_steps_of_gradient_descent():
    found = steps_to_accuracy(ALGORITHMS["centralized"], SYMMETRIC, condition=50)
    curvatures = curvatures_of(1.0, 50.0)
    steps = [steps_at([abs(1 - lr * h) for h in curvatures], curvatures, 1e-8) for lr in np.linspace(0.5, 1.99, 500)]
    assert found.steps == pytest.approx(min(steps), rel=0.01)
    assert found.rate == pytest.approx(1 - found.lr / 50)  # the slowest direction


@pytest.mark.parametrize("name", ["push_pull", "push_pull_pu", "push_pull_atc", "exact_diffusion", "extra"])
def test_steps_are_those_of_the_simulator(name):
    """From a start that is equally far in all directions, to 15 %: disagreement among nodes at the start is not predicted."""
    mixing = network_for(name)
    centers = 3 + 0.1 * np.random.default_rng(0).standard_normal((6, 3))
    problem = Quadratic(np.tile(curvatures_of(1.0, 20.0), (6, 1)), centers)
    found = steps_to_accuracy(ALGORITHMS[name], mixing, 1e-12, condition=20)
    history = simulate(
        problem, ALGORITHMS[name], mixing, steps=int(2 * found.steps), lr=found.lr, every=1, metrics=["grad_norm_sq"]
    )
    errors = history["grad_norm_sq"].mean(-1)
    assert int(np.argmax(np.asarray(errors <= 1e-12 * errors[0]))) == pytest.approx(found.steps, rel=0.15)


def test_with_noise_half_of_the_goal_is_the_stationary_level():
    algorithm, noise = ALGORITHMS["push_pull"], 0.5
    found = steps_to_accuracy(algorithm, DIRECTED, 1e-3, condition=10, noise_var=noise**2, start=2.0)
    problem = Quadratic(np.tile(curvatures_of(1.0, 10.0), (6, 1)), np.zeros((6, 3)), noise_std=noise)
    level = theory.stationary(problem, algorithm, DIRECTED, found.lr).grad_norm_sq
    assert found.level == pytest.approx(level)
    assert 0.97e-3 <= level <= 1e-3
    curvatures = curvatures_of(1.0, 10.0)
    rates = [theory.rate(algorithm, DIRECTED, found.lr, h) for h in curvatures]
    assert found.steps == pytest.approx(steps_at(rates, curvatures, 0.5e-3))
    assert found.steps > steps_to_accuracy(algorithm, DIRECTED, 1e-3, condition=10).steps


def test_seconds_are_steps_times_cycle_time():
    clock = Clock(Machines(latency=0.05, rate=1e6), compute=0.1, size=1e5, protocol="eager")
    algorithm, mixing = ALGORITHMS["push_pull"], Mixing.uniform(topologies.ring(5))
    found = time_to_accuracy(algorithm, mixing, clock, 1e-6)
    assert found.cycle.seconds == pytest.approx(0.25)
    assert found.seconds == pytest.approx(0.25 * found.found.steps)
    assert clock.cycle_time(algorithm, mixing, trace=False).seconds == pytest.approx(0.25)
    assert not clock.cycle_time(algorithm, mixing, trace=False).critical


def test_what_cannot_be_answered():
    with pytest.raises(PerronError, match="biased"):
        steps_to_accuracy(ALGORITHMS["dsgd"], SYMMETRIC)
    with pytest.raises(PerronError, match="between 0 and 1"):
        steps_to_accuracy(ALGORITHMS["push_pull"], DIRECTED, 2.0)
    with pytest.raises(PerronError, match="at least 1"):
        steps_to_accuracy(ALGORITHMS["push_pull"], DIRECTED, condition=0.5)
    with pytest.raises(PerronError, match="noise_var"):
        steps_to_accuracy(ALGORITHMS["push_pull"], DIRECTED, noise_var=-1.0)
    with pytest.raises(PerronError, match="asks for no gradients"):
        RateCurve(recursion(ALGORITHMS["push_sum"], DIRECTED))
    assert theory.TimeToAccuracy(Clock(size=1).cycle_time(ALGORITHMS["push_pull"], DIRECTED), None).seconds == inf

"""Links that lose, delay, repeat and reorder messages, in the simulator: Robust Push-Pull is exact, plain Push-Pull warns."""

import pytest

from perron import Mixing, PushPull, RobustPushPull, Simulation, simulate
from perron.algorithms.unreliable import Links
from perron.networks import topologies
from perron.problems import Quadratic

SEEDS = 5


def exactness(links, steps):
    """The error after the last step, and the largest violation of the invariant at any step, over all seeds."""
    problem = Quadratic.random(16, 5, seed=1)
    mixing = Mixing.random_integer(topologies.random_digraph(16, seed=1), seed=0)
    algorithm = RobustPushPull()
    simulation = Simulation(problem=problem, algorithm=algorithm, mixing=mixing, trials=SEEDS, **vars(links))
    invariant = 0.0
    for now in simulation.iterates(steps):
        (value,) = algorithm.conserved(now.state, simulation.network).values()
        invariant = max(invariant, float(value.abs().max()))
    return float((now.state.x - problem.optimum).abs().max()), invariant


def test_f07_lost_messages(row, trials):
    losses = (0.0, 0.1, 0.3, 0.5)
    found = {loss: exactness(Links(loss=loss), 4000) for loss in losses}
    assert max(max(pair) for pair in found.values()) <= 1e-10, found
    problem = Quadratic.random(16, 5, seed=1)
    mixing = Mixing.random_integer(topologies.random_digraph(16, seed=1), seed=0)
    with pytest.warns(match="keeps no guarantee"):
        plain = simulate(problem, PushPull(), mixing, steps=4000, loss=0.1, metrics=["distance_max"])
    wrong = plain["distance_max"][-1].max()
    assert wrong > 1e-2
    told = ", ".join(f"{loss:.0%}: {error:.0e} and {off:.0e}" for loss, (error, off) in found.items())
    row.measured(f"error and invariant at {told}; plain warns, and is off by {wrong:.1g} at 10%", trials=4 * SEEDS)


def test_f08_late_and_repeated_messages(row, trials):
    steps = {
        Links(delay=1): 4000,
        Links(delay=5): 4000,
        Links(delay=20): 10_000,
        Links(loss=0.3, delay=5, repeats=0.2): 6000,
        Links(loss=0.3, delay=20, repeats=0.2): 14_000,
    }
    found = {links: exactness(links, many) for links, many in steps.items()}
    assert max(max(pair) for pair in found.values()) <= 1e-10, found
    told = "; ".join(f"{links}: {error:.0e} and {off:.0e}" for links, (error, off) in found.items())
    row.measured(f"error and invariant where links {told}", trials=len(found) * SEEDS)

"""Random compute times: draws, seconds per step with their errors, and what is not known."""

import numpy as np
import pytest

from perron import ALGORITHMS, Mixing
from perron.clock import Clock, Compute, Machines
from perron.networks import topologies
from perron.random import COMPUTE, Keyed

RING = Mixing.uniform(topologies.ring(6))


def test_blocks_of_draws_are_those_of_each_draw():
    one = Compute("lognormal(0.02, 0.5)")
    sampler, keyed = one.sampler(5, seed=3, trials=[0, 4]), Keyed(3, trials=[0, 4], nodes=5, stream=COMPUTE)
    for draw in (0, 1, 7000, 3):
        assert (sampler(draw) == one.parts[0].transform(keyed.uniform(draw)[..., 0]).numpy()).all()
    mixed = Compute(["exponential(0.1)", 0.2]).sampler(2, seed=0, trials=range(3))
    assert (mixed(5)[:, 1] == 0.2).all()
    assert len(np.unique(mixed(5)[:, 0])) == 3


def test_means_are_a_lower_bound():
    clock = Clock(
        Machines(0.01, 1e7),
        compute=["exponential(0.1)", 0.05, 0.05, 0.05, 0.05, "stragglers(0.05, 0.1, 0.5)"],
        size=1e5,
    )
    averaged = clock.changed(compute=clock.times.averaged)
    assert not averaged.random
    assert averaged.times.parts == pytest.approx([0.1, 0.05, 0.05, 0.05, 0.05, 0.1])
    for name in ("push_pull", "push_pull_atc", "centralized"):
        found = clock.cycle_time(ALGORITHMS[name], RING)
        assert found.seconds > averaged.cycle_time(ALGORITHMS[name], RING).seconds
        assert 0 < found.standard_error < 0.02 * found.seconds


def test_the_standard_error_is_that_of_repetitions():
    """Seconds from other draws differ as much as the standard error says."""
    algorithm, found = ALGORITHMS["push_pull_atc"], []
    for base in np.linspace(0.1, 0.100001, 12):  # other draws are other seeds, which cycle_time does not have
        clock = Clock(Machines(0.01, 1e7), compute=f"exponential({base:.9f})", size=1e5)
        timer = clock.start(algorithm, RING, seed=int(base * 1e9) % 1000, trials=range(64))
        for step in range(200):
            timer.advance(step)
        half = timer.seconds.copy()
        for step in range(200, 400):
            timer.advance(step)
        found.append(float((timer.seconds - half).mean() / 200))
    error = Clock(Machines(0.01, 1e7), compute="exponential(0.1)", size=1e5).cycle_time(algorithm, RING).standard_error
    assert 0.4 < np.std(found, ddof=1) / error < 2.5


def test_in_words():
    found = Clock(Machines(0.01), compute="exponential(0.1)", size=1).cycle_time(ALGORITHMS["push_pull"], RING)
    assert found.describe() == "the critical cycle is not known for random compute times"
    average = Clock(Machines(0.01), compute=0.1, size=1).cycle_time(ALGORITHMS["centralized"], RING)
    assert average.describe() == "all nodes wait for the average"

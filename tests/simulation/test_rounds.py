"""Several exchanges in a step are a step over the network of their products."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sampled import SampledQuadratic as Quadratic
from strategies import milder, network_for

from perron import ALGORITHMS, AdamW, Mixing, PushPull, Simulation, simulate, theory
from perron.algorithms.moves import Moving
from perron.errors import MixingError, PerronError
from perron.networks import topologies
from perron.networks.repeat import repeat
from perron.simulation import _blockwise

pytestmark = pytest.mark.filterwarnings("ignore:.*(disagreement grows|mixes slowly|weights that do not change)")
VARYING = Mixing.random_integer(
    [topologies.ring(6), topologies.exponential(6), topologies.random_digraph(6, seed=2)], seed=1
)
NAMES = [name for name, one in ALGORITHMS.items() if not one.about.robust and name != "normalized_extra_push"]


def models(mixing, algorithm, **options):
    problem = Quadratic.random(6, 3, noise_std=0.3, seed=1)
    options |= {"start": torch.arange(18.0).view(6, 3) / 10}
    one = Simulation(problem=problem, algorithm=algorithm, mixing=mixing, lr=0.005, trials=2, **options)
    return torch.stack([now.state.x for now in one.iterates(20)])


@pytest.mark.parametrize("rounds", [2, 3, 4])
@pytest.mark.parametrize("name", NAMES)
def test_rounds_are_the_network_of_products(name, rounds):
    algorithm = milder(ALGORITHMS[name], outer_lr=0.1)
    fixed = network_for(algorithm, topologies.random_digraph(6, seed=2))
    for mixing in [fixed, VARYING] if algorithm.about.matrices in ("A B", "B") else [fixed]:
        try:
            ours = models(mixing, algorithm, rounds=rounds)
        except MixingError:  # too much momentum for the product, in both
            with pytest.raises(MixingError):
                models(repeat(mixing, rounds), algorithm)
            continue
        assert torch.allclose(ours, models(repeat(mixing, rounds), algorithm), rtol=1e-11, atol=1e-11)
        assert algorithm.about.matrices == "-" or not torch.allclose(ours, models(mixing, algorithm))


def test_products_are_taken_in_the_order_of_the_steps():
    first, second, third = (np.asarray(VARYING.pull_at(step)) for step in range(3))
    two = repeat(VARYING, 2)
    assert two.period == 3
    assert np.allclose(two.pull_at(0), second @ first)
    assert np.allclose(two.pull_at(1), first @ third)
    assert repeat(VARYING, 3).period == 1
    assert repeat(VARYING, 1) is VARYING


def test_theory_and_the_check_see_the_product():
    ring = Mixing.random_integer(topologies.ring(8), seed=0)
    one, three = (theory.stable_lr(PushPull(order="pu"), repeat(ring, rounds), 1.0).upper for rounds in (1, 3))
    assert three > 2 * one
    problem = Quadratic.random(8, 3, seed=1)
    with pytest.warns(UserWarning, match="mixes slowly"):
        Simulation(problem=problem, algorithm=PushPull(move=AdamW()), mixing=ring)
    Simulation(problem=problem, algorithm=PushPull(move=AdamW()), mixing=ring, rounds=12)  # warnings are errors


def test_every_exchange_is_counted():
    problem, mixing = Quadratic.random(6, 3, seed=1), Mixing.random_integer(topologies.exponential(6), seed=0)
    sent = [
        simulate(problem, PushPull(), mixing, steps=5, lr=0.01, rounds=rounds, metrics=["bytes_sent"], progress=False)
        for rounds in (1, 3)
    ]
    assert float(sent[1]["bytes_sent"][-1].mean()) == 3 * float(sent[0]["bytes_sent"][-1].mean()) > 0


def test_large_models(monkeypatch):
    plain = models(VARYING, PushPull(), rounds=2)
    monkeypatch.setattr(_blockwise, "LARGE", 0)
    assert torch.allclose(models(VARYING, PushPull(), rounds=2)[-1], plain[-1], rtol=1e-12)


def test_what_is_refused():
    with pytest.raises(PerronError, match="reliable links in full precision"):
        models(VARYING, PushPull(), rounds=2, wire="bf16")
    with pytest.raises(MixingError, match="at least one exchange; got rounds=0"):
        models(VARYING, PushPull(), rounds=0)
    with pytest.raises(PerronError, match="single messages take one exchange"):
        models(Mixing.random_integer(topologies.ring(6), seed=0), ALGORITHMS["robust_push_pull"], rounds=2)


def test_moves_take_rounds():
    for name, one in ALGORITHMS.items():
        if isinstance(one, Moving) and one.about.matrices == "A B":
            algorithm = replace(one, move=AdamW())
            ours = models(VARYING, algorithm, rounds=2)
            assert torch.allclose(ours, models(repeat(VARYING, 2), algorithm), rtol=1e-11, atol=1e-11), name

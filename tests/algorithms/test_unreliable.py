"""Links that lose, delay, repeat and reorder messages, and the algorithm for them."""

import numpy as np
import pytest
import torch
from twins import robust_push_pull

from perron import Mixing, MixingError, PerronError, PushPull, PushSum, RobustPushPull, Simulation, simulate, theory
from perron.algorithms.unreliable import Links, Unreliable
from perron.networks import topologies
from perron.problems import Quadratic
from perron.random import LOSSES, NOISE, Keyed
from perron.simulation.node import SimulatedNode
from perron.simulation.simulator import Running

MIXING = Mixing.random_integer(topologies.random_digraph(8, probability=0.3, seed=3), seed=0)
TWO = Mixing(
    pull=MIXING.pull, push=Mixing.random_integer(topologies.exponential(8), seed=3).push
)  # models and trackers go other ways
BAD = {"loss": 0.3, "delay": 4, "repeats": 0.3}


def fates(links, seed, step, side, n):
    """By listener and sender, the steps at which the copies of a message sent in a step arrive."""
    found = {}
    for i in range(n):
        for j in range(n):
            chance = Keyed(seed, nodes=[j * n + i], stream=LOSSES).uniform(2 * step + (side == "push"), 5)[0].tolist()
            lost, lag, twice, lost_too, lag_too = chance
            copies = [(lost, lag)] + [(lost_too, lag_too)] * (twice < links.repeats)
            found[i, j] = [step + int(lag * (links.delay + 1)) for lost, lag in copies if lost >= links.loss]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("links", [Links(loss=0.4), Links(delay=3), Links(**BAD)], ids=str)
@pytest.mark.parametrize("mixing", [MIXING, TWO], ids=["one graph", "two graphs"])
def test_robust_push_pull_equals_packets_one_by_one(links, mixing):
    n, steps, seed, lr = 8, 30, 7, 0.05
    problem = Quadratic.random(n, 3, noise_std=0.3, seed=2)
    start = torch.as_tensor(np.random.default_rng(0).standard_normal((n, 3)))
    options = {"loss": links.loss, "delay": links.delay, "repeats": links.repeats, "seed": seed, "start": start}
    simulation = Simulation(problem=problem, algorithm=RobustPushPull(), mixing=mixing, lr=lr, **options)
    ours = [now.state.x[0].numpy() for now in simulation.iterates(steps)][1:]
    sent = {(side, k): fates(links, seed, k, side, n) for side in ("pull", "push") for k in range(steps)}
    noise, draws = Keyed(seed, nodes=n, stream=NOISE), iter(range(steps + 1))

    def hears(k, side, i, j):  # the newest first, which makes the others come too late
        return [number for number in range(k, -1, -1) for at in sent[side, number][i, j] if at == k]

    def oracle(x):
        return problem.grad(torch.as_tensor(x), next(draws), noise).numpy()

    theirs = robust_push_pull({"A": mixing.pull, "B": mixing.push}, oracle, start.numpy(), lr, hears)
    for mine, twin in zip(ours, theirs, strict=False):
        assert np.abs(mine - twin).max() <= 1e-12


def test_on_reliable_links_it_is_push_pull():
    problem = Quadratic.random(8, 3, noise_std=0.5, seed=1)
    options = {"problem": problem, "mixing": TWO, "lr": 0.05, "trials": 2}
    for one, other in zip(
        Simulation(algorithm=RobustPushPull(), **options).iterates(300),
        Simulation(algorithm=PushPull(), **options).iterates(300),
        strict=True,
    ):
        assert torch.allclose(one.state.x, other.state.x, rtol=0, atol=1e-11)
    plain, robust = (theory.stationary(problem, one, MIXING, 0.05) for one in (PushPull(), RobustPushPull()))
    assert plain == robust


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_rounding_loses_no_mass_however_large_sums_get(dtype):
    """Sums of some thousands cannot take up trackers of 1e-14 (1e-5): what they leave is kept, so that nothing drifts."""
    problem, algorithm = Quadratic.random(8, 3, heterogeneity=5.0, seed=1), RobustPushPull()
    start = torch.full((8, 3), 1000.0)
    simulation = Simulation(problem=problem, algorithm=algorithm, mixing=MIXING, lr=0.1, start=start, dtype=dtype)
    steps = {}
    for now in simulation.iterates(8000):
        if now.step in (2000, 8000):
            (off,) = algorithm.conserved(now.state, simulation.network).values()
            error = (now.state.x - problem.optimum.to(dtype)).abs().max()
            steps[now.step] = float(off.abs().max()), float(error)
    small = 1e3 * torch.finfo(dtype).eps * 100
    assert all(max(pair) < small for pair in steps.values()), steps
    assert steps[8000][1] < 3 * steps[2000][1] + small / 100, steps


@pytest.mark.parametrize("mixing", [MIXING, TWO], ids=["one graph", "two graphs"])
def test_mass_and_what_is_under_way_make_up_the_gradients_at_every_step(mixing):
    problem, algorithm = Quadratic.random(8, 3, noise_std=1.0, seed=1), RobustPushPull()
    simulation = Simulation(problem=problem, algorithm=algorithm, mixing=mixing, lr=0.05, trials=2, **BAD)
    away = 0.0
    for now in simulation.iterates(300):
        (value,) = algorithm.conserved(now.state, simulation.network).values()
        assert value.abs().max() <= 1e-11
        away = max(away, float((now.state.y - now.state.grad).sum(-2).abs().max()))
    assert away > 1  # much of it is under way at times


@pytest.mark.slow
def test_a_node_that_falls_back_to_an_old_state_harms_nothing():
    """Its part of the invariant holds by itself, so the whole does: others have used sums that it has yet to reach again."""
    problem, algorithm = Quadratic.random(8, 3, seed=1), RobustPushPull()
    simulation = Simulation(problem=problem, algorithm=algorithm, mixing=MIXING, lr=0.1, **BAD)
    running, old = Running(simulation), None
    targets = torch.nonzero(torch.tensor(MIXING.push).fill_diagonal_(0))[:, 0]
    listens = torch.nonzero(torch.tensor(MIXING.pull).fill_diagonal_(0))[:, 0]
    for step in range(6000):
        running.advance()
        if step == 60:
            old = running.state
        if step == 100:
            rows = {"models": listens == 3, "totals": targets == 3}
            for name, value in running.state._asdict().items():
                which = rows.get(name, torch.arange(8) == 3)
                value[:, which] = getattr(old, name)[:, which]
        (value,) = algorithm.conserved(running.state, simulation.network).values()
        assert value.abs().max() <= 1e-11
    assert (running.state.x - problem.optimum).abs().max() <= 1e-10


def test_robust_push_pull_refuses_what_it_cannot_do():
    with pytest.raises(MixingError, match="weights that do not change"):
        Simulation(
            problem=Quadratic.random(8),
            algorithm=RobustPushPull(),
            mixing=Mixing.uniform(topologies.one_peer_exponential(8)),
            lr=0.1,
        )
    with pytest.raises(PerronError, match="full precision"):
        simulate(Quadratic.random(8), RobustPushPull(), MIXING, lr=0.1, steps=1, wire="bf16")


# ---- plain exchanges


def test_lossy_links_keep_rows_but_lose_mass():
    node = Unreliable(SimulatedNode(MIXING, trials=400), Links(loss=0.3))
    ones = torch.ones(400, 8, 1, dtype=torch.float64)
    assert torch.allclose(node.pull(ones).wait(), ones)  # the listener makes up for what it misses
    kept = node.push(ones).wait().sum(-2).mean()
    off_diagonal = 1 - float(np.diag(MIXING.push).mean())
    assert float(kept) / 8 == pytest.approx(1 - 0.3 * off_diagonal, abs=0.01)


def test_late_mass_comes_in_the_end_and_repeated_mass_twice():
    inner = SimulatedNode(MIXING, trials=300)
    off_diagonal = 1 - float(np.diag(MIXING.push).mean())
    for links, expected in ((Links(delay=4), off_diagonal), (Links(delay=4, repeats=0.5), 1.5 * off_diagonal)):
        node, came = Unreliable(inner, links), []
        for step in range(6):
            inner.step = step
            y = torch.full(
                (300, 8, 1), float(step == 0), dtype=torch.float64
            )  # something is sent in the first step only
            came.append(float((node.push(y).wait() - inner.links("push").self_weight * y).sum(-2).mean()) / 8)
        assert came[:5] == pytest.approx([expected / 5] * 5, abs=0.02)
        assert came[5] == 0


def test_models_that_overtake_and_reliable_ones():
    inner = SimulatedNode(MIXING)
    node = Unreliable(inner, Links(delay=3))
    latest = before = inner.links("pull").broadcast(torch.full((8, 1), -1.0, dtype=torch.float64))
    seen = []
    for step in range(40):
        inner.step = step
        latest = node.links("pull").latest(torch.full((8, 1), float(step), dtype=torch.float64), latest).wait()
        assert (latest >= before).all()  # never an older one
        assert (latest >= step - 3).all()
        seen.append(step - latest[:, 0])
        before = latest
    assert len(torch.unique(torch.cat(seen))) == 4
    plain = Unreliable(inner, Links())
    x = torch.randn(8, 2, dtype=torch.float64)
    assert torch.allclose(plain.push(x).wait(), inner.push(x).wait())
    assert torch.allclose(plain.pull(x).wait(), inner.pull(x).wait())


def test_a_push_and_its_weight_share_their_fate():
    """Push-sum sends both in one message: their ratio stays between the values that were averaged."""
    problem = Quadratic.random(8, 1, seed=1)
    start = torch.linspace(1, 2, 8, dtype=torch.float64)[:, None]
    with pytest.warns(match="keeps no guarantee"):
        simulation = Simulation(problem=problem, algorithm=PushSum(), mixing=MIXING, lr=0.1, start=start, loss=0.3)
    for now in simulation.iterates(40):
        assert 1 - 1e-9 <= now.state.x.min() <= now.state.x.max() <= 2 + 1e-9


def test_plain_algorithms_warn_and_are_wrong():
    problem = Quadratic.random(8, 3, seed=1)
    with pytest.warns(match=r"Links lose 10% of their messages: .* keeps no guarantee\. RobustPushPull does"):
        history = simulate(problem, PushPull(), MIXING, lr=0.05, steps=2000, loss=0.1, metrics=["distance_max"])
    assert history["distance_max"][-1] > 1e-2
    history = simulate(problem, RobustPushPull(), MIXING, lr=0.05, steps=2000, loss=0.1, metrics=["distance_max"])
    assert history["distance_max"][-1] < 1e-9


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"loss": 1.0}, "loss is a probability"),
        ({"repeats": -0.1}, "repeats is a probability"),
        ({"delay": -1}, "delay is a whole number"),
        ({"delay": 1.5}, "delay is a whole number"),
        ({"loss": 2}, "got 2"),
    ],
)
def test_what_links_cannot_be(options, words):
    with pytest.raises(PerronError, match=words):
        Links(**options)


# ---- resuming, and large models


def test_messages_under_way_are_resumed(tmp_path, monkeypatch):
    problem = Quadratic.random(8, 3, noise_std=0.5, seed=1)
    options = {"lr": 0.05, "steps": 60, "metrics": ["distance_max"], "trials": 2, "every": 1} | BAD
    whole = simulate(problem, RobustPushPull(), MIXING, **options)
    monkeypatch.setattr("perron.monitor.progress.INTERVAL", 0.0)

    class Stop(BaseException):
        pass

    def stop(step, _values):
        if step == 33:
            raise Stop

    path = tmp_path / "run"
    with pytest.raises(Stop):
        simulate(problem, RobustPushPull(), MIXING, checkpoint=path, save_every=0, progress=stop, **options)
    resumed = simulate(problem, RobustPushPull(), MIXING, checkpoint=path, **options)
    assert np.array_equal(whole["distance_max"], resumed["distance_max"])
    with pytest.raises(PerronError, match="differs in links"):
        simulate(problem, RobustPushPull(), MIXING, checkpoint=path, **options | {"delay": 5})
    with pytest.raises(PerronError, match="differs in links"):
        simulate(problem, RobustPushPull(), MIXING, checkpoint=path, **options | {"loss": BAD["loss"] + 0.001})


def test_links_of_networks_that_vary():
    """With another number of them in each step: what comes is weighed by the links of its step, or nobody's."""
    varying = Mixing(*zip(*(mixing_of(graph) for graph in (topologies.ring(8), topologies.complete(8))), strict=True))
    problem = Quadratic.random(8, 3, seed=1)
    with pytest.warns(match="keeps no guarantee"):
        simulation = Simulation(problem=problem, algorithm=PushPull(), mixing=varying, lr=0.05, loss=0.3)
    for now in simulation.iterates(20):
        assert torch.isfinite(now.state.x).all()
    plain = Simulation(problem=problem, algorithm=PushPull(), mixing=varying, lr=0.05)
    with pytest.warns(match="keeps no guarantee"):
        other = Simulation(problem=problem, algorithm=PushPull(), mixing=varying, lr=0.05, repeats=1e-12)
    for one, two in zip(plain.iterates(20), other.iterates(20), strict=True):
        assert torch.allclose(one.state.x, two.state.x, rtol=0, atol=1e-12)
    with pytest.raises(PerronError, match=r"varies in time: a late message"):
        Simulation(problem=problem, algorithm=PushPull(), mixing=varying, lr=0.05, delay=1)


def mixing_of(graph):
    mixing = Mixing.uniform(graph)
    return mixing.pull, mixing.push


def test_sparse_networks():
    dense, sparse = MIXING, Mixing.random_integer(topologies.random_digraph(8, probability=0.3, seed=3), seed=0)
    pair = []
    for mixing, limit in ((dense, 2**20), (sparse, 0)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("perron.simulation.node.DENSE", limit)
            problem = Quadratic.random(8, 3, noise_std=0.5, seed=1)
            simulation = Simulation(
                problem=problem, algorithm=RobustPushPull(), mixing=mixing, lr=0.05, trials=2, **BAD
            )
            *_, now = simulation.iterates(20)
            pair.append(now.state.x)
    assert torch.allclose(*pair, rtol=0, atol=1e-12)

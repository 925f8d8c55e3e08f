"""The simulator: random numbers, nodes and their wrappers, metrics, histories."""

import gc
import weakref

import numpy as np
import pytest
import torch
from scipy import stats

import perron
from perron import (
    ADDOPT,
    DSGD,
    CentralizedSGD,
    Graph,
    History,
    Mixing,
    Network,
    PerronError,
    Problem,
    PushPull,
    Simulation,
    simulate,
)
from perron import schedules as schedule
from perron.algorithms.wrappers import Counting
from perron.networks import topologies  # fmt: skip
from perron.problems import LocalLoss, Quadratic
from perron.random import Keyed
from perron.simulation import metrics
from perron.simulation.history import recorded
from perron.simulation.node import SimulatedNode

MIXING = Mixing.random_integer(topologies.exponential(8), seed=1)
PROBLEM = Quadratic.random(8, 3, noise_std=0.5, seed=1)


# ---- random numbers by key


def test_numbers_depend_on_their_key_alone():
    everybody = Keyed(3, trials=4, nodes=6)
    for draw in (0, 1, 1000, 5, 1):
        for trial, node in ((0, 0), (3, 5), (1, 2)):
            alone = Keyed(3, trials=[trial], nodes=None, node=node)
            assert torch.equal(everybody.normal(draw, 7)[trial, node], alone.normal(draw, 7)[0])
    assert everybody.uniform(2).shape == (4, 6, 1)
    assert Keyed(3, nodes=6).normal(0, 5).shape == (6, 5)
    assert not torch.equal(everybody.normal(0, 5), Keyed(4, trials=4, nodes=6).normal(0, 5))
    assert not torch.equal(everybody.normal(0, 5), Keyed(3, trials=4, nodes=6, stream=1).normal(0, 5))


def test_it_is_splitmix64():
    """The published test vector: the first outputs of the generator with state 1234567."""
    keyed = Keyed(0)
    keyed._keys = torch.tensor([1234567])
    known = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]
    uniform = keyed.uniform(0, 5)[0]
    assert np.allclose(uniform.numpy(), (np.array([k >> 11 for k in known]) + 0.5) * 2.0**-53, rtol=0, atol=0)


def test_numbers_are_uniform_normal_and_independent():
    keyed = Keyed(11, trials=50, nodes=20)
    uniform = torch.stack([keyed.uniform(t, 10) for t in range(10)])
    assert stats.kstest(uniform.flatten().numpy(), "uniform").pvalue > 1e-3
    normal = torch.stack([keyed.normal(t, 10) for t in range(10)])  # (draw, trial, node, coordinate)
    assert stats.kstest(normal.flatten().numpy(), "norm").pvalue > 1e-3
    for axis in range(4):
        moved = normal.movedim(axis, 0)
        correlation = (moved[1:] * moved[:-1]).mean() * moved[1:].numel() ** 0.5
        assert abs(correlation) < 4
    integers = keyed.integers(0, 10, high=7)
    assert set(integers.flatten().tolist()) == set(range(7))


# ---- nodes


def test_dense_and_sparse_networks_mix_alike():
    graph = topologies.random_k_out(300, k=6, seed=1)
    sparse = Mixing.random_integer(graph, seed=1)
    dense = torch.as_tensor(sparse.pull.toarray())
    for shape, trials in (((300, 4), None), ((5, 300, 4), 5), ((1, 300, 4), 1)):
        x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        mixed = SimulatedNode(sparse, trials=trials).pull(x).wait()
        assert torch.allclose(mixed, dense @ x, atol=1e-14)


def test_time_varying_networks_use_the_matrix_of_the_step():
    mixing = Mixing.random_integer(topologies.one_peer_exponential(8), seed=1)
    x = torch.arange(24.0, dtype=torch.float64).view(8, 3)
    node = SimulatedNode(mixing)
    for step in range(7):
        node.step = step
        assert torch.allclose(node.push(x).wait(), torch.as_tensor(np.array(mixing.push_at(step))) @ x)
    problem = Quadratic.random(8, 3, seed=1)
    history = simulate(problem, PushPull(), mixing, lr=0.1, steps=3000, metrics=["distance_max"])
    assert history["distance_max"][-1] < 1e-10


def test_counting():
    *_, now = Simulation(problem=PROBLEM, algorithm=PushPull(), mixing=MIXING, lr=0.1, trials=3).iterates(5)
    assert now.traffic[:2] == (5, 5)
    assert now.traffic[2:4] == (5 * 3 * 8, 5 * 3 * 8)
    edges = len(MIXING.pull_graph.edges)
    assert metrics.messages(now).tolist() == [2 * 5 * edges] * 3
    assert metrics.bytes_sent(now).tolist() == [2 * 5 * edges * 24] * 3
    *_, now = Simulation(problem=PROBLEM, algorithm=ADDOPT(), mixing=MIXING, lr=0.1, wire="bf16").iterates(4)
    # Models, trackers, and weights, which are in full precision.
    assert now.traffic[2:4] == (0, 4 * (3 * 2 + 8) + 4 * (3 * 2 + 8) + 4 * 8)


def test_one_peer_messages_are_counted_by_step():
    mixing = Mixing.uniform(topologies.one_peer_exponential(8))
    *_, now = Simulation(problem=PROBLEM, algorithm=DSGD(), mixing=mixing, lr=0.1).iterates(6)
    assert metrics.messages(now).tolist() == [6 * 8]
    ring, both = topologies.ring(8), topologies.exponential(8)  # graphs in turn that share edges
    mixing = Mixing.uniform([ring, both])
    *_, now = Simulation(problem=PROBLEM, algorithm=DSGD(), mixing=mixing, lr=0.1).iterates(5)
    assert metrics.messages(now).tolist() == [3 * len(ring.edges) + 2 * len(both.edges)]


# ---- metrics


def test_metrics_equal_their_definitions():
    simulation = Simulation(problem=PROBLEM, algorithm=PushPull(), mixing=MIXING, lr=0.1, trials=2, seed=4)
    now = list(simulation.iterates(30))[-1]
    x, network = now.state.x, Network(MIXING)
    hat = torch.einsum("i,tid->td", torch.as_tensor(network.pull_perron), x)

    def full(points):  # grad f at (trials, d), node by node
        return torch.stack([(PROBLEM.hessians[i] @ (points - PROBLEM.centers[i]).T).T for i in range(8)]).mean(0)

    def value(points):
        apart = points[:, None] - PROBLEM.centers
        return torch.einsum("tid,ide,tie->t", apart, PROBLEM.hessians, apart) / 16

    y_bar = now.state.grad.mean(1)
    local = torch.stack([PROBLEM.hessians[i] @ (x[:, i] - PROBLEM.centers[i]).T for i in range(8)]).mean(0).T
    share = torch.as_tensor(8 * network.push_perron)
    expected = {
        "grad_norm_sq": full(hat).square().sum(-1),
        "grad_norm_sq_mean": full(x.mean(1)).square().sum(-1),
        "grad_norm_sq_local": local.square().sum(-1),
        "loss": value(hat),
        "distance_sq": (hat - PROBLEM.optimum).square().sum(-1),
        "distance_sq_local": (x - PROBLEM.optimum).square().sum(-1).mean(-1),
        "distance_max": (x - PROBLEM.optimum).square().sum(-1).amax(-1).sqrt(),
        "consensus_error_sq": (x - hat[:, None]).square().sum(-1).mean(-1),
        "tracking_error_sq": (now.state.y - share[:, None] * y_bar[:, None]).square().sum(-1).mean(-1),
    }
    for name, numbers in expected.items():
        assert torch.allclose(metrics.METRICS[name](now), numbers, rtol=1e-10), name


@pytest.mark.parametrize("m", [1, 4, 50])
def test_block_sums_of_the_residual(m):
    simulation = Simulation(problem=PROBLEM, algorithm=PushPull(), mixing=MIXING, lr=0.1, trials=2)
    eps = torch.stack([metrics.residual(now) for now in simulation.iterates(200)][1:])  # (200, trials, d)
    history = simulate(
        PROBLEM,
        PushPull(),
        MIXING,
        lr=0.1,
        trials=2,
        steps=200,
        every=m,
        metrics=[metrics.ResidualBlocks(m), "residual_sq"],
    )
    blocks = eps.view(200 // m, m, 2, 3).sum(1).square().sum(-1) / m
    assert np.allclose(history[f"residual_block_sq_{m}"][1:], blocks.numpy())
    assert np.isnan(history[f"residual_block_sq_{m}"][0]).all()


def test_residuals_cancel_within_blocks():
    """The paper's insight: single residuals persist, but their block sums stay bounded, so that (1/m)|sum|^2 falls."""
    mixing = Mixing.random_integer(topologies.chordal_ring(16), seed=2)
    problem = Quadratic.random(16, 3, noise_std=1.0, heterogeneity=0, seed=1)
    blocks = [metrics.ResidualBlocks(m) for m in (1, 20, 200)]
    history = simulate(problem, PushPull(), mixing, lr=0.02, trials=40, steps=3000, every=200, metrics=blocks)
    levels = [history[f"residual_block_sq_{m}"][3:].mean() for m in (1, 20, 200)]
    assert levels[0] > 2 * levels[1] > 10 * levels[2]


def test_what_cannot_be_measured_is_refused():
    class NoOptimum(Problem):
        nodes, dim = 8, 3

        def local_grads(self, x):
            return x

        def loss(self, x):
            return x.square().sum(-1) / 2

    with pytest.raises(PerronError, match="no gradient tracker"):
        simulate(PROBLEM, CentralizedSGD(), MIXING, lr=0.1, steps=1, metrics=["tracking_error_sq"])
    with pytest.raises(PerronError, match="optimum of this problem is not known"):
        simulate(NoOptimum(), PushPull(), MIXING, lr=0.1, steps=1, metrics=["distance_sq"])
    with pytest.raises(PerronError, match="no metric 'gradnorm'; did you mean 'grad_norm_sq'"):
        simulate(PROBLEM, PushPull(), MIXING, lr=0.1, steps=1, metrics=["gradnorm"])
    with pytest.raises(PerronError, match="pass lr="):
        simulate(NoOptimum(), PushPull(), MIXING, steps=1)


# ---- runs and histories


def test_runs_are_reproducible_and_share_random_numbers_between_algorithms():
    def noise(algorithm, **options):
        simulation = Simulation(problem=PROBLEM, algorithm=algorithm, mixing=MIXING, lr=0.05, seed=2, **options)
        return [now.grads[0] - PROBLEM.local_grads(now.previous.x) for now in simulation.iterates(3) if now.step]

    for one, other in zip(noise(PushPull()), noise(ADDOPT()), strict=True):
        assert torch.allclose(one, other, atol=1e-14)
    first, again = (simulate(PROBLEM, PushPull(), MIXING, lr=0.05, steps=50, trials=3, seed=1) for _ in range(2))
    assert np.array_equal(first["grad_norm_sq"], again["grad_norm_sq"])
    other = simulate(PROBLEM, PushPull(), MIXING, lr=0.05, steps=50, trials=3, seed=2)
    assert not np.array_equal(first["grad_norm_sq"], other["grad_norm_sq"])


def test_float32():
    history = simulate(PROBLEM, PushPull(), MIXING, lr=0.05, steps=300, dtype=torch.float32, trials=5)
    exact = simulate(PROBLEM, PushPull(), MIXING, lr=0.05, steps=300, trials=5)
    assert np.allclose(history["grad_norm_sq"][-1], exact["grad_norm_sq"][-1], rtol=1e-2)
    assert not np.array_equal(history["grad_norm_sq"][-1], exact["grad_norm_sq"][-1])


def test_schedules_and_per_node_steps():
    problem = Quadratic.random(8, 3, seed=1)
    for lr in (schedule.power(0.2), torch.full((8, 1), 0.1, dtype=torch.float64), schedule.warmup(0.1, 50)):
        history = simulate(problem, PushPull(), MIXING, lr=lr, steps=500, metrics=["distance_sq"])
        assert history["distance_sq"][-1] < history["distance_sq"][0]
    seen = [
        now.lr
        for now in Simulation(problem=problem, algorithm=PushPull(), mixing=MIXING, lr=lambda t: 1 / (t + 10)).iterates(
            3
        )
    ]
    assert seen == [0.0, 1 / 10, 1 / 11, 1 / 12]
    for bad in (lambda: schedule.power(-1), lambda: schedule.cosine(1, steps=0)):
        with pytest.raises(ValueError, match="needs"):
            bad()
    with pytest.raises(PerronError, match="a number or a schedule"):
        schedule.warmup(torch.ones(3), 4)


def test_history_is_a_tidy_table(tmp_path):
    history = simulate(
        PROBLEM, PushPull(), MIXING, lr=0.05, steps=100, every=20, trials=[3, 7], metrics=["loss", "distance_sq"]
    )
    assert history.steps.tolist() == [0, 20, 40, 60, 80, 100]
    frame = history.frame()
    assert list(frame.columns) == [
        "step",
        "trial",
        "loss",
        "distance_sq",
        "gradients",
        "bytes",
        "algorithm",
        "network",
        "nodes",
        "lr",
        "seed",
        "steps",
    ]
    assert len(frame) == 12
    row = frame[(frame.step == 40) & (frame.trial == 7)]
    assert row.loss.item() == history["loss"][2, 1]
    assert row.lr.item() == 0.05
    mean, error = history.tail("loss", 0.5)
    late = history["loss"][3:].mean(axis=0)
    assert mean == pytest.approx(late.mean())
    assert error == pytest.approx(late.std(ddof=1) / 2**0.5)
    assert history.plot("loss", tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(PerronError, match="has no 'speed'; it has: loss, distance_sq"):
        history.mean("speed")


def test_when_to_measure():
    assert recorded(10, 4) == {0, 4, 8, 10}
    assert recorded(0, None) == {0}
    assert len(recorded(100_000, None)) == 201
    log = sorted(recorded(1000, "log"))
    assert log[0] == 0
    assert log[-1] == 1000
    assert log[1:6] == [1, 2, 3, 4, 5]
    with pytest.raises(PerronError, match="every is a whole number"):
        recorded(10, 0)


def test_ctrl_c_keeps_what_was_measured():
    def interrupt(now):
        if now.step == 30:
            raise KeyboardInterrupt
        return torch.zeros(1)

    history = simulate(PROBLEM, PushPull(), MIXING, lr=0.05, steps=100, every=10, metrics=["loss", interrupt])
    assert history.interrupted
    assert history.steps.tolist() == [0, 10, 20]
    assert history["loss"].shape == history["interrupt"].shape == (3, 1)
    assert not simulate(PROBLEM, PushPull(), MIXING, lr=0.05, steps=10).interrupted


def test_divergence_ends_the_run_with_a_warning():
    with pytest.warns(UserWarning, match="diverged by step .*: lr is too large"):
        history = simulate(PROBLEM, PushPull(), MIXING, lr=50.0, steps=10_000, every=100)
    assert history.steps[-1] < 10_000


def test_bad_runs_are_refused():
    with pytest.raises(PerronError, match="8 nodes but the network 4"):
        simulate(PROBLEM, PushPull(), Mixing.uniform(topologies.ring(4)), lr=0.1, steps=1)
    with pytest.raises(PerronError, match="at least one trial; got trials=0"):
        simulate(PROBLEM, PushPull(), MIXING, lr=0.1, steps=1, trials=0)
    with pytest.raises(PerronError, match=r"start has shape \(5, 3\); it must fit .* = \(1, 8, 3\)"):
        simulate(PROBLEM, PushPull(), MIXING, lr=0.1, steps=1, start=torch.zeros(5, 3))
    with pytest.raises(PerronError, match="steps >= 0"):
        simulate(PROBLEM, PushPull(), MIXING, lr=0.1, steps=-1)


@pytest.mark.parametrize("make", [
    lambda: Quadratic(torch.ones(3, 2, 1), torch.ones(3, 2)), lambda: Quadratic.random(3, noise_std=-1),
    lambda: Quadratic.random(3, strong_convexity=2.0),
])  # fmt: skip
def test_bad_quadratics_are_refused(make):
    with pytest.raises(ValueError, match="needs"):
        make()


def test_the_dials_of_quadratics():
    problem = Quadratic.random(6, 4, smoothness=3.0, strong_convexity=0.5, heterogeneity=0, noise_std=2.0, seed=1)
    assert problem.smoothness == pytest.approx(3.0)
    assert torch.allclose(problem.optimum, problem.centers[0])
    assert problem.full_grad(problem.optimum).abs().max() < 1e-13
    random = Keyed(0, trials=3000, nodes=6)
    noise = problem.grad(torch.zeros(3000, 6, 4, dtype=torch.float64), 0, random) - problem.local_grads(
        torch.zeros(3000, 6, 4, dtype=torch.float64)
    )
    assert float(noise.square().sum(-1).mean()) == pytest.approx(4.0, rel=0.03)
    diagonal = Quadratic.random(6, 4, diagonal=True, seed=1)
    full = Quadratic(diagonal.hessians.diag_embed(), diagonal.centers)
    x = torch.randn(2, 6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(diagonal.local_grads(x), full.local_grads(x))
    assert torch.allclose(diagonal.loss(x[:, 0]), full.loss(x[:, 0]))
    assert torch.allclose(diagonal.optimum, full.optimum)
    assert torch.allclose(full.local_grads(x)[1], full.local_grads(x[1]))


def test_a_loss_and_its_gradient_agree():
    x = torch.randn(4, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    problem = Quadratic.random(6, 4, seed=1)
    (slope,) = torch.autograd.grad(problem.loss(x), x)
    assert torch.allclose(slope, problem.full_grad(x.detach()))


def test_a_graph_of_one_node_and_large_sparse_networks_run():
    alone = simulate(
        Quadratic.random(1, 3), PushPull(), Mixing.uniform(Graph(1)), lr=0.5, steps=50, metrics=["distance_sq"]
    )
    assert alone["distance_sq"][-1] < alone["distance_sq"][0]
    n = 20_000
    mixing = Mixing.random_integer(topologies.exponential(n), seed=0)
    problem = Quadratic.random(n, 3, diagonal=True, seed=0)
    history = simulate(problem, PushPull(), mixing, lr=0.1, steps=150, every=150, metrics=["grad_norm_sq_mean"])
    assert history["grad_norm_sq_mean"][-1] < 1e-4 * history["grad_norm_sq_mean"][0]


def test_wrappers_pass_everything_on():
    inner = SimulatedNode(MIXING, trials=2)
    node = Counting(inner)
    assert torch.equal(node.uniform(), inner.uniform())
    assert torch.equal(node.unit, torch.eye(8, dtype=torch.float64))
    share = torch.as_tensor(8 * Network(MIXING).push_perron)
    assert torch.allclose(node.links("push").share[:, 0], share)
    assert torch.equal(node.links("pull").self_weight, inner.links("pull").self_weight)
    x = torch.ones(2, 8, 3, dtype=torch.float64)
    assert torch.equal(node.mean(x).wait(), x)


def test_histories_need_no_simulation():
    history = History(np.array([0, 1]), {"a": np.array([[1.0], [2.0]])}, np.array([0]))
    assert np.isnan(history.standard_error("a")).all()
    assert history.tail("a", 0.5)[0] == 2.0


def test_a_local_loss_is_differentiated_for_every_node():
    quadratic = Quadratic.random(8, 3, seed=1)

    def loss(x, hessian, center):
        return (x - center) @ hessian @ (x - center) / 2

    problem = LocalLoss(loss, [quadratic.hessians, quadratic.centers], dim=3)
    x = torch.randn(4, 8, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(problem.local_grads(x), quadratic.local_grads(x))
    assert torch.allclose(problem.loss(x[:, 0]), quadratic.loss(x[:, 0]))
    assert torch.allclose(problem.full_grad(x[:, 0]), quadratic.full_grad(x[:, 0]))
    one, other = (simulate(p, PushPull(), MIXING, lr=0.1, steps=20) for p in (problem, quadratic))
    assert np.allclose(one["grad_norm_sq"], other["grad_norm_sq"])


def test_minibatches_of_a_local_loss_are_unbiased_and_reproducible():
    random = torch.Generator().manual_seed(0)
    features, targets = (torch.randn(*shape, generator=random, dtype=torch.float64) for shape in ((8, 50, 3), (8, 50)))

    def squares(x, features, targets):
        return (features @ x - targets).square().mean() / 2

    problem = LocalLoss(squares, [features, targets], dim=3, batch=5)
    x = torch.ones(4000, 8, 3, dtype=torch.float64)
    drawn = problem.grad(x, 3, Keyed(1, trials=4000, nodes=8))
    exact = problem.local_grads(x[:1])
    error = drawn.std(0) / 4000**0.5
    assert ((drawn.mean(0) - exact[0]).abs() < 5 * error).all()
    alone = problem.grad(x[:1], 3, Keyed(1, trials=[77], nodes=8))
    assert torch.allclose(alone[0], drawn[77])
    single = problem.to(dtype=torch.float32, device="cpu")
    assert single.local_grads(x[:1].float()).dtype == torch.float32
    for bad in (lambda: LocalLoss(squares, [], dim=3), lambda: LocalLoss(squares, [features, targets[:4]], dim=3),
                lambda: LocalLoss(squares, [features, targets], dim=3, batch=0)):  # fmt: skip
        with pytest.raises(ValueError, match="needs"):
            bad()


@pytest.mark.parametrize("options", [{}, {"wire": "int8"}, {"loss": 0.2, "delay": 2}, {"rounds": 2}], ids=str)
def test_old_states_are_freed_at_once(options):
    """No reference cycle keeps the vectors of past steps until Python's garbage collector runs."""
    algorithm = perron.RobustPushPull() if "loss" in options else perron.PushPull(move=perron.AdamW())
    run = perron.Simulation(
        problem=perron.problems.Quadratic.random(8, 300, seed=1), algorithm=algorithm, lr=0.01, **options,
        mixing=perron.Mixing.uniform(perron.topologies.exponential(8)),
    )  # fmt: skip
    past = []
    gc.collect()
    gc.disable()
    try:
        for now in run.iterates(12):
            past.append(weakref.ref(now.state.x))
        assert sum(one() is not None for one in past) <= 3
    finally:
        gc.enable()

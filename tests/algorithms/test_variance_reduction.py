"""Algorithms that choose samples: draws, queries, tables that are overwritten, minibatches, resuming, and what is refused."""

import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from sampled import SampledQuadratic
from strategies import network_for
from twins import variance_reduced

from perron import (  # fmt: skip
    ADDOPT,
    ALGORITHMS,
    DSGD,
    FOCUS,
    FROST,
    SAGA,
    SVRG,
    AdamW,
    Mixing,
    Network,
    PerronError,
    PushPull,
    PushSum,
    Query,
    Simulation,
    simulate,
    theory,
)
from perron.advise import advise
from perron.algorithms.base import advance
from perron.networks import topologies
from perron.problems import LinearModel, LocalLoss, Logistic, Quadratic
from perron.simulation.cost import bytes_per_step
from perron.simulation.node import SimulatedNode

GRAPH = topologies.random_digraph(6, probability=0.4, seed=3)
MIXING = Mixing.random_integer(GRAPH, seed=1)
REDUCED = [name for name, one in ALGORITHMS.items() if one.about.samples]


def problem_of(nodes=6, dim=4):
    return SampledQuadratic.random(nodes, dim, seed=2)


def states(algorithm, steps, problem=None, mixing=MIXING, lr=0.05, **options):
    simulation = Simulation(problem=problem or problem_of(), algorithm=algorithm, mixing=mixing, lr=lr, **options)
    return [now.state._replace(**{name: getattr(now.state, name).clone() for name in algorithm.overwritten})
            for now in simulation.iterates(steps)]  # fmt: skip


# ---- samples and their gradients


def test_samples_are_drawn_uniformly_over_different_numbers_of_them():
    counts = torch.tensor([1, 3, 7])
    node = SimulatedNode(Mixing.uniform(topologies.ring(3)), seed=4, samples=counts)
    drawn = []
    for node.step in range(500):
        drawn.append(torch.cat([node.samples.draw(8), node.samples.draw(2, number=1)], -1))
    for i, count in enumerate(counts.tolist()):
        found = Counter(torch.cat(drawn, -1)[i].tolist())
        assert set(found) == set(range(count))
        expected = 5000 / count
        chi_square = sum((seen - expected) ** 2 for seen in found.values()) / expected
        assert chi_square <= count - 1 + 5 * np.sqrt(2 * count)
    node.step = 3
    first, second = node.samples.draw(8), node.samples.draw(8, number=1)
    assert torch.equal(first, node.samples.draw(8))
    assert not torch.equal(first, second)


@pytest.mark.parametrize("kind", ["logistic", "compiled", "loss"])
def test_gradients_of_samples_have_the_exact_gradient_as_their_mean(kind):
    """And each is the exact gradient of a problem that has this sample only."""
    random = np.random.default_rng(1)
    features, labels = torch.as_tensor(random.standard_normal((3 * 5, 4))), torch.tensor([1.0, -1.0, 1.0] * 5)

    def make(h, y):
        if kind != "loss":
            return Logistic(h, y, nodes=3, batch=1, compiled=kind == "compiled", regularization=0.1)
        parts = [h.view(3, -1, 4), y.view(3, -1)]
        return LocalLoss(lambda x, h, y: torch.log1p(torch.exp(-y * (h @ x))).mean() + x @ x, parts, dim=4, batch=1)

    problem = make(features, labels)
    assert problem.sample_counts.tolist() == [5, 5, 5]
    points = torch.as_tensor(random.standard_normal((2, 3, 4)))
    every = torch.arange(5).expand(2, 3, 5)
    each = problem.sample_grads(points, every)
    precise = 1e-6 if kind == "compiled" else 1e-13
    assert torch.allclose(each.mean(-2), problem.local_grads(points), rtol=0, atol=precise)
    rows, tags = features.view(3, 5, 4), labels.view(3, 5)
    for l in range(5):  # noqa: E741
        single = make(rows[:, l].contiguous(), tags[:, l].contiguous())
        assert torch.allclose(each[..., l, :], single.local_grads(points), rtol=0, atol=precise)
    picked = problem.sample_grads(points, torch.tensor([[4, 0]]).expand(2, 3, 2))
    assert torch.equal(picked, each[..., [4, 0], :])
    node = problem.of_node(1)
    assert node.sample_counts.tolist() == [5]
    assert torch.allclose(node.sample_grads(points[:, 1:2], every[:, 1:2]), each[:, 1:2], rtol=0, atol=1e-14)


# ---- the estimates


@pytest.mark.parametrize("push", [False, True])
def test_svrg_equals_its_twin_over_several_periods(push):
    problem, start = problem_of(), torch.as_tensor(np.random.default_rng(0).standard_normal((6, 4)))
    algorithm = SVRG(method=ADDOPT() if push else PushPull(), period=7)
    ours = states(algorithm, 40, start=start)
    node = SimulatedNode(MIXING, samples=problem.sample_counts, trials=[0])

    def drawn(k):
        node.step = k
        return node.samples.draw(1)[0, :, 0].tolist()

    def grad(i, s, x):
        points = torch.as_tensor(np.tile(x, (6, 1)))
        return problem.sample_grads(points, torch.full((6, 1), s))[i, 0].numpy()

    net = {"A": MIXING.pull, "B": MIXING.push, "m": problem.sample_counts.tolist(), "drawn": drawn, "sample_grad": grad}
    twin = variance_reduced(net, None, start.numpy(), 0.05, kind="svrg", push=push, period=7)
    for state, theirs in zip(ours[1:], twin, strict=False):
        assert np.abs(state.x[0].numpy() - theirs).max() <= 1e-12


@pytest.mark.parametrize("batch", [1, 4])
def test_estimates_are_unbiased_and_the_table_holds_the_last_gradients(batch):
    """Over all draws of one step, the mean of g is the exact gradient; with 4 of 3 to 6 samples, some are drawn twice."""
    problem = problem_of()
    trials = 4000
    before = states(SAGA(batch=batch), 3)[-1]
    wide = type(before)(*(value.expand(trials, *value.shape[1:]).clone() for value in before))
    node = SimulatedNode(MIXING, samples=problem.sample_counts, trials=trials, seed=1)
    node.step = 3
    estimates = SAGA(batch=batch).estimate(wide.x, wide, node, 0)
    query = next(estimates)
    assert query.samples.shape == (trials, 6, batch)
    table = wide.table.clone()
    with pytest.raises(StopIteration) as done:
        estimates.send(problem.answer(query))
    estimate, memory = done.value.value
    exact, spread = problem.local_grads(before.x)[0], estimate.std(0)
    assert bool(((estimate.mean(0) - exact).abs() <= 5 * spread / np.sqrt(trials) + 1e-12).all())
    assert bool((spread > 1e-3).any())
    for trial in (0, 1, 2):
        for i in range(6):
            expected = table[trial, i].clone()
            for s in query.samples[trial, i].tolist():
                expected[s] = problem.sample_grads(before.x, torch.full((1, 6, 1), s))[0, i, 0]
            assert torch.allclose(memory["table"][trial, i], expected, rtol=0, atol=1e-14)
    assert torch.allclose(memory["table_sum"], memory["table"].sum(-2), rtol=0, atol=1e-13)


@pytest.mark.parametrize(
    "algorithm",
    [SAGA(batch=3), SAGA(method=FROST()), SAGA(method=FOCUS(local_steps=3, participation=0.5)), SVRG(period=20, batch=2),
     SVRG(method=PushPull(order="atc"), period=40)],
    ids=lambda one: one.about.title,
)  # fmt: skip
def test_any_exact_method_is_exact_with_single_samples(algorithm):
    problem, network = problem_of(), Network(MIXING)
    lr = 0.1 / algorithm.effective_step(network)
    history = simulate(
        problem, algorithm, MIXING, lr=lr, steps=1500, metrics=["distance_max", "grad_norm_sq"], progress=False
    )
    assert history["distance_max"][-1, 0] < 1e-9
    plain = simulate(
        SampledQuadratic.random(6, 4, seed=2, noise_std=1.0), algorithm.method, MIXING, lr=lr, steps=1500,
        metrics=["distance_max"], progress=False,
    )  # fmt: skip
    assert plain["distance_max"][-1, 0] > 1e-3


@pytest.mark.parametrize("kind", [SAGA, SVRG])
def test_the_gradients_of_one_step_draw_their_own_samples(kind):
    problem, algorithm = problem_of(), kind(method=FOCUS(local_steps=3), batch=5)
    node = SimulatedNode(MIXING, samples=problem.sample_counts)
    state, drawn = algorithm.init(torch.zeros(6, 4, dtype=torch.float64), node), []

    def query(asked):
        if node.step:
            drawn.append(asked.samples)
        return problem.answer(asked)

    for node.step in (0, 1):
        state = advance(algorithm, state, node, 0.01, None, query)
    first, *others = drawn if kind is SAGA else drawn[::2]
    assert len(others) == 2
    assert not any(torch.equal(first, other) for other in others)
    if kind is SVRG:  # the same samples at both points
        assert all(torch.equal(new, old) for new, old in zip(drawn[::2], drawn[1::2], strict=True))


def test_biased_methods_stay_biased():
    about = SAGA(method=DSGD()).about
    assert not about.exact
    assert about.title == f"{DSGD().about.title} with SAGA"
    assert SAGA(method=PushPull(move=AdamW())).about.title.endswith("with SAGA")


@pytest.mark.slow
@pytest.mark.skipif(not Path(os.environ.get("PERRON_DATA", ""), "libsvm", "a9a.gz").is_file(), reason="a9a is not here")
def test_single_samples_of_a9a_converge_linearly():
    """To 1e-10 in 18 passes over the data, where Push-Pull with the same step stays far above."""
    problem = LinearModel.from_data(64, kind="logistic", data="a9a", l2=0.01, batch=1)
    mixing = Mixing.uniform(topologies.exponential(64))
    options = {"lr": 0.1 / Network(mixing).alignment, "every": 1000, "metrics": ["grad_norm_sq", "epochs"]}
    ours = simulate(problem, SAGA(), mixing, steps=9000, progress=False, **options)
    errors = ours["grad_norm_sq"][:, 0]
    assert errors[9] < 1e-10
    assert errors[3] > 30 * errors[6] > 900 * errors[9]
    assert ours["epochs"][-1, 0] == pytest.approx((32561 + 8999 * 64) / 32561)
    plain = simulate(problem, PushPull(), mixing, steps=3000, progress=False, **options)
    assert plain["grad_norm_sq"][1:, 0].mean() > 1e-5


# ---- in the simulator


@pytest.mark.parametrize("name", REDUCED)
def test_resumes_bit_for_bit_with_table_and_epochs(name, tmp_path, monkeypatch):
    algorithm, problem = ALGORITHMS[name], problem_of()
    mixing = network_for(algorithm, GRAPH)
    options = {"lr": 0.02, "trials": 2, "metrics": ["distance_sq", "epochs"], "every": 5, "progress": False}
    whole = simulate(problem, algorithm, mixing, steps=40, **options)
    file = tmp_path / "run.ckpt"
    simulate(problem, algorithm, mixing, steps=15, checkpoint=file, **options)
    resumed = simulate(problem, algorithm, mixing, steps=40, checkpoint=file, **options)
    for metric in ("distance_sq", "epochs"):
        assert np.array_equal(whole[metric], resumed[metric])
    assert whole["distance_sq"][-1, 0] != whole["distance_sq"][-1, 1]


def test_epochs_count_every_gradient_of_a_sample():
    problem = problem_of()
    total = int(problem.sample_counts.sum())
    assert total == 25  # 3 + 4 + 5 + 6 + 3 + 4

    def evaluated(algorithm, steps, problem=problem):
        found = simulate(problem, algorithm, MIXING, lr=0.01, steps=steps, metrics=["epochs"], progress=False)
        return found["epochs"][-1, 0] * int(problem.sample_counts.sum())

    assert evaluated(SAGA(), 10) == pytest.approx(total + 9 * 6)
    assert evaluated(SAGA(batch=2), 10) == pytest.approx(total + 9 * 6 * 2)
    assert evaluated(SVRG(period=4), 10) == pytest.approx(3 * total + 7 * 6 * 2)
    assert evaluated(PushPull(), 10) == pytest.approx(10 * total)  # its gradients are exact, or noisy sums of all
    features, labels = torch.randn(60, 2, generator=torch.Generator().manual_seed(0)), torch.ones(60)
    logistic = Logistic(features, labels, nodes=6, batch=3, compiled=False)
    assert evaluated(PushPull(), 10, logistic) == pytest.approx(10 * 6 * 3)


def test_single_precision_and_large_models(monkeypatch):
    double, single = (states(SAGA(), 50, dtype=dtype)[-1] for dtype in (torch.float64, torch.float32))
    assert single.table.dtype == single.x.dtype == torch.float32
    assert torch.allclose(single.x.double(), double.x, rtol=0, atol=1e-4)
    monkeypatch.setattr("perron.simulation._blockwise.LARGE", 0)  # for which states are in place; not these
    assert torch.equal(states(SAGA(), 50)[-1].x, double.x)


def test_steps_do_not_copy_the_table():
    simulation = Simulation(problem=problem_of(), algorithm=SAGA(), mixing=MIXING, lr=0.01)
    tables = {now.state.table.data_ptr() for now in simulation.iterates(6) if now.step}
    assert len(tables) == 1
    assert SAGA.overwritten == ("table",)


def test_lost_messages_and_quantization_leave_the_draws_alone():
    """Samples come from the node within the wrappers."""
    plain = states(SAGA(), 1)[-1]
    for options in ({"wire": "bf16"}, {"loss": 0.3}):
        if "loss" in options:
            with pytest.warns(match="keeps no guarantee"):
                other = states(SAGA(), 1, **options)[-1]
        else:
            other = states(SAGA(), 1, **options)[-1]
        assert torch.equal(other.table, plain.table)


# ---- costs, and what is refused


def test_costs_are_those_of_the_method():
    network = Network(MIXING)
    for kind in (SAGA, SVRG):
        for method in (PushPull(), ADDOPT()):
            ours, plain = (bytes_per_step(one, network, dim=100, wire=8) for one in (kind(method=method), method))
            assert ours == plain
            assert kind(method=method).default_lr(network, 2.0) == method.default_lr(network, 2.0)
            assert kind(method=method).effective_step(network) == method.effective_step(network)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: SAGA(batch=0), "SAGA draws 1 sample or more in a step; got batch=0"),
        (lambda: SVRG(period=0), "SVRG needs a period of 1 step or more; got period=0"),
        (lambda: SAGA(method=PushSum()), "SAGA needs a method that asks for stochastic gradients.*got Push-sum"),
        (lambda: SVRG(method=SAGA()), "SVRG needs a method that asks for stochastic gradients.*got AB-SAGA"),
        (lambda: simulate(Quadratic.random(6), SVRG(), MIXING, lr=0.1, steps=1), "on a problem that is a sum over samples"),
        (lambda: simulate(Quadratic.random(6), "ab_saga", MIXING, lr=0.1, steps=1), "on a problem that is a sum over samples"),
        (lambda: theory.rate(SAGA(), MIXING, 0.1, 1.0), "Optimizers, theory and advice need an algorithm that takes any"),
        (lambda: theory.stationary(problem_of(), SVRG(), MIXING, 0.1), "chosen samples, which are not available here"),
        (lambda: advise(MIXING, algorithms=["ab_saga"]), "chosen samples, which are not available here"),
        (lambda: simulate(Quadratic.random(6), PushPull(), MIXING, lr=0.1, steps=1, metrics=["epochs"]),
         "Quadratic is no sum over samples; leave out the metric epochs"),
        (lambda: Quadratic.random(6).answer(Query(torch.zeros(6, 4), torch.zeros(6, 1).long())), "has no single samples"),
        (lambda: simulate(problem_of(), SAGA(), MIXING, lr=0.1, steps=1, start=np.full((6, 4), 1.7e308)),
         "gradients of nodes .* at their initial models are not finite"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused(make, words):
    with pytest.raises(PerronError, match=words):
        make()

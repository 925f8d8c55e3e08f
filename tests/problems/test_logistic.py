"""Logistic regression: the compiled sums against plain torch, torch against derivatives, noise against enumeration."""

from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

import perron
from perron.errors import PerronError
from perron.problems import Logistic, Quadratic, logistic
from perron.problems import _kernels as kernels
from perron.random import Keyed
from perron.theory import noise_floor


def data(count, dim, seed=0, dtype=torch.float32):
    random = torch.Generator().manual_seed(seed)
    features = torch.randn(count, dim, generator=random, dtype=torch.float64).to(dtype)
    return features, torch.randint(0, 2, (count,), generator=random) * 2.0 - 1


def twins(nodes, share, dim, batch=None):
    """The same problem with compiled sums and with plain torch."""
    features, labels = data(nodes * share, dim)
    options = {"nodes": nodes, "batch": batch, "regularization": 0.03}
    return Logistic(features, labels, compiled=True, **options), Logistic(features, labels, compiled=False, **options)


@given(
    nodes=st.integers(1, 4),
    share=st.integers(1, 1200),
    dim=st.sampled_from([1, 3, 4, 5, 7, 10, 13]),
    trials=st.integers(1, 3),
    draw=st.integers(0, 10**6),
    chosen=st.floats(0, 1),
)
def test_compiled_sums_equal_plain_torch(nodes, share, dim, trials, draw, chosen):
    batch = max(1, round(chosen * share))
    fast, slow = twins(nodes, share, dim, batch)
    x = torch.randn(trials, nodes, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(draw))
    random = Keyed(draw, trials=trials, nodes=nodes)
    torch.testing.assert_close(fast.local_grads(x), slow.local_grads(x), rtol=0, atol=1e-6)
    torch.testing.assert_close(fast.grad(x, draw, random), slow.grad(x, draw, random), rtol=0, atol=1e-6)


def test_full_gradient_is_accurate_to_1e_7():
    fast, slow = twins(4, 20_000, 10)
    x = torch.randn(20, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(fast.full_grad(x), slow.full_grad(x), rtol=0, atol=1e-7)


def test_compiled_sums_survive_huge_arguments():
    fast, slow = twins(1, 600, 5)
    for size in (1e2, 1e4, 1e6):
        x = size * torch.ones(1, 1, 5, dtype=torch.float64)
        torch.testing.assert_close(fast.local_grads(x), slow.local_grads(x), rtol=0, atol=1e-6)


def test_gradient_and_hessian_are_derivatives_of_the_loss():
    features, labels = data(300, 4, dtype=torch.float64)
    problem = Logistic(features, labels, nodes=3, regularization=0.2, compiled=False)
    for x in torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2)):
        derivative = torch.func.grad(problem.loss)(x)
        torch.testing.assert_close(problem.full_grad(x), derivative)
        torch.testing.assert_close(problem.hessian(x), torch.autograd.functional.hessian(problem.loss, x))
    by_hand = np.log1p(np.exp(-labels.numpy() * (features.numpy() @ x.numpy()))).mean()
    by_hand += 0.2 * (x.numpy() ** 2 / (1 + x.numpy() ** 2)).sum()
    assert float(problem.loss(x)) == pytest.approx(by_hand)


def test_local_gradients_belong_to_their_nodes():
    features, labels = data(40, 3, dtype=torch.float64)
    both = Logistic(features, labels, nodes=2, compiled=False)
    x = torch.randn(2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    for node, part in enumerate((slice(0, 20), slice(20, 40))):
        alone = Logistic(features[part], labels[part], nodes=1, compiled=False)
        torch.testing.assert_close(both.local_grads(x)[node], alone.full_grad(x[node]))


def test_noise_covariance_equals_that_of_all_minibatches():
    features, labels = data(14, 3, dtype=torch.float64)
    problem = Logistic(features, labels, nodes=2, batch=3, compiled=False)
    x = torch.tensor([0.3, -1.0, 0.5], dtype=torch.float64)
    expected = torch.zeros(3, 3, dtype=torch.float64)
    for node in range(2):
        single = -torch.sigmoid(-(problem.rows[node] @ x))[:, None] * problem.rows[node]
        means = torch.stack([single[list(batch)].mean(0) for batch in combinations(range(7), 3)])
        expected += torch.cov(means.mT, correction=0) / 2
    torch.testing.assert_close(problem.noise_covariance(x), expected)


def test_every_minibatch_is_drawn_and_unbiased():
    fast, slow = twins(1, 6, 2, batch=2)
    x = torch.tensor([[[1.0, -1.0]]], dtype=torch.float64)
    random, exact = Keyed(0, trials=1, nodes=1), slow.local_grads(x)
    grads = torch.stack([fast.grad(x, draw, random) for draw in range(20_000)])
    spread = slow.noise_covariance(x[0, 0]).diagonal().sqrt() / 20_000**0.5
    assert ((grads.mean(0) - exact).abs()[0, 0] < 4 * spread).all()


def test_distinct_numbers_are_distinct_uniform_and_the_same_everywhere():
    random = Keyed(5, trials=3, nodes=4)
    counts = np.zeros(10)
    for draw in range(2_000):
        drawn = random.distinct(draw, 4, 10)
        assert drawn.shape == (3, 4, 4)
        assert all(len(set(row)) == 4 for row in drawn.reshape(-1, 4).tolist())
        counts += np.bincount(drawn.flatten().numpy(), minlength=10)
    assert chisquare(counts).pvalue > 1e-4
    assert (random.distinct(7, 10, 10).sort(-1).values == torch.arange(10)).all()
    one = Keyed(5, trials=[2], node=3)
    rows, seen = np.empty(4, np.int64), np.zeros(10, np.bool_)
    for draw in (0, 1, 999):
        expected = random.distinct(draw, 4, 10)[2, 3].tolist()
        assert one.distinct(draw, 4, 10)[0].tolist() == expected
        kernels.distinct(random.keys[2, 3], draw, 10, rows, seen)
        assert rows.tolist() == expected
        assert not seen.any()
    with pytest.raises(ValueError, match="1 to 3 distinct"):
        random.distinct(0, 4, 3)


def test_pairs_are_uniform_too():
    random = Keyed(1, trials=1, nodes=1)
    pairs = [tuple(sorted(random.distinct(draw, 2, 5)[0, 0].tolist())) for draw in range(20_000)]
    assert chisquare([pairs.count(pair) for pair in combinations(range(5), 2)]).pvalue > 1e-4


def test_trials_do_not_depend_on_their_batch():
    problem = Logistic.synthetic(4, samples=4000, batch=100)
    mixing = perron.Mixing.random_integer(perron.topologies.exponential(4), seed=0)
    many = perron.simulate(problem, perron.PushPull(), mixing, lr=0.3, steps=30, trials=4, seed=9)
    one = perron.simulate(problem, perron.PushPull(), mixing, lr=0.3, steps=30, trials=[2], seed=9)
    np.testing.assert_allclose(one["grad_norm_sq"][:, 0], many["grad_norm_sq"][:, 2], rtol=1e-12)


def test_optimum_is_stationary_and_a_minimum():
    problem = Logistic.synthetic(2, samples=6000)
    assert float(problem._exact_grad(problem.optimum).norm()) < 1e-9
    assert float(torch.linalg.eigvalsh(problem.hessian(problem.optimum)).min()) > 0
    with_far_start = Logistic.synthetic(2, samples=6000, regularization=1.0)  # strongly nonconvex
    assert float(with_far_start._exact_grad(with_far_start.optimum).norm()) < 1e-9


def test_smoothness_bounds_the_curvature():
    problem = Logistic.synthetic(3, samples=900)
    for x in torch.randn(5, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(0)):
        assert float(torch.linalg.eigvalsh(problem.hessian(x)).abs().max()) <= problem.smoothness


def test_synthetic_data_are_the_authors():
    np.random.seed(42)
    target = np.random.normal(0, 1, (1, 5))
    features = np.random.normal(0, 1, (60, 5))
    z = np.random.uniform(0, 1, (60, 1))
    labels = [1 if 1 / z[i, 0] > 1 + np.exp(-features[i] @ target[0]) else -1 for i in range(60)]
    problem = Logistic.synthetic(4, samples=60, dim=5, batch=3)
    expected = (features * np.array(labels)[:, None]).reshape(4, 15, 5)
    np.testing.assert_allclose(problem.rows, expected, rtol=1e-6)
    np.random.seed(42)
    apart = np.random.normal(0, 1, (4, 5))
    starts = {"equal": 0 * apart, "authors": 0.01 * apart, "text": target + 10 * apart}
    for start, where in starts.items():
        there = Logistic.synthetic(4, samples=60, dim=5, batch=3, start=start).start()
        np.testing.assert_allclose(there, where)


def test_without_numba_all_works(monkeypatch):
    monkeypatch.setattr(logistic, "find_spec", lambda name: None)
    problem = Logistic.synthetic(2, samples=200, batch=10)
    assert not problem.compiled
    with pytest.raises(PerronError, match=r"perron\[fast\]"):
        Logistic.synthetic(2, samples=200, batch=10, compiled=True)
    mixing = perron.Mixing.uniform(perron.topologies.complete(2))
    slow = perron.simulate(problem, perron.PushPull(), mixing, lr=0.5, steps=50, trials=2)
    monkeypatch.undo()
    fast = perron.simulate(
        Logistic.synthetic(2, samples=200, batch=10), perron.PushPull(), mixing, lr=0.5, steps=50, trials=2
    )
    np.testing.assert_allclose(slow["grad_norm_sq"], fast["grad_norm_sq"], rtol=1e-4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nodes": 7}, "leave out 6 of them"),
        ({"nodes": 0}, "1 <= nodes"),
        ({"nodes": 30}, "1 <= nodes"),
        ({"batch": 11}, "1 to 10 samples"),
        ({"batch": 0}, "1 to 10 samples"),
        ({"regularization": -1.0}, "regularization >= 0"),
        ({"labels": torch.zeros(20)}, r"2 \* labels - 1"),
        ({"features": torch.full((20, 3), torch.nan)}, "finite"),
        ({"features": torch.zeros(20, 3, dtype=torch.int64)}, "int64"),
        ({"features": torch.zeros(19, 3)}, r"\(19, 3\)"),
    ],
)
def test_bad_input_is_refused(change, message):
    features, labels = data(20, 3)
    options = {"features": features, "labels": labels, "nodes": 2, "batch": 4} | change
    with pytest.raises(PerronError, match=message):
        Logistic(**options)


def test_synthetic_refuses_an_unknown_start():
    with pytest.raises(PerronError, match="equal, authors, text"):
        Logistic.synthetic(2, samples=200, batch=10, start="far")
    with pytest.raises(PerronError, match="dim >= 1"):
        Logistic.synthetic(2, samples=200, dim=0)


def test_noise_floor_is_the_small_step_limit_of_the_exact_one():
    problem = Quadratic.random(5, dim=4, noise_std=0.7, seed=1)
    values = torch.linalg.eigvalsh(problem.hessians.mean(0)).numpy()
    for step, tolerance in ((1e-1, 0.06), (1e-3, 6e-4)):
        # The covariance of x-hat is diagonal where H is: step v / (h (2 - step h)), v = sigma^2 / (d n).
        exact = (step * 0.7**2 / 4 / 5 * values / (2 - step * values)).sum()
        assert noise_floor(problem, step) == pytest.approx(exact, rel=tolerance)


def test_noise_floor_says_what_it_lacks():
    loss = perron.problems.LocalLoss(lambda x, a: ((x - a) ** 2).sum(), [torch.zeros(2, 3)], dim=3)
    with pytest.raises(PerronError, match="optimum"):
        noise_floor(loss, 0.1)
    loss.optimum = torch.zeros(3)
    with pytest.raises(PerronError, match="noise_covariance"):
        noise_floor(loss, 0.1)


@pytest.mark.parametrize(("name", "n"), [("exponential", 4), ("ring", 8)])
def test_push_pull_settles_at_the_predicted_floor(name, n):
    problem = Logistic.synthetic(n, samples=14_400, batch=100)
    mixing = perron.networks.released.NAMES[name](n)
    lr = 0.2
    history = perron.simulate(problem, perron.PushPull(), mixing, lr=lr, steps=3000, every=10, trials=20, seed=1)
    found = perron.studies.statistics.level(history.steps, history["grad_norm_sq"])
    predicted = noise_floor(problem, lr * perron.Network(mixing).alignment)
    assert found.stationary
    assert abs(found.mean - predicted) < 0.05 * predicted + 3 * found.error
    assert found.error < 0.05 * predicted

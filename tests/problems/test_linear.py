"""Linear models on data, against loops over single samples, closed forms and scipy."""

import itertools
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.optimize
import torch

import perron
from perron.algorithms import ALGORITHMS, SAGA, Proximal, PushPull, RobustPushPull
from perron.data import partition
from perron.errors import PerronError
from perron.problems import LinearModel, _optimum
from perron.random import Keyed

SIZES = [5, 2, 4, 4]  # shares, unequal
COUNT, WIDTH, CLASSES = sum(SIZES), 3, 4
RANDOM = np.random.default_rng(0)
FEATURES = RANDOM.standard_normal((COUNT, WIDTH))
ORDER = RANDOM.permutation(COUNT)
PARTS = [torch.from_numpy(part) for part in np.split(ORDER, np.cumsum(SIZES)[:-1])]
TARGETS = {
    "logistic": np.where(RANDOM.random(COUNT) < 0.5, 2, 7),  # two classes of any name
    "squared": RANDOM.standard_normal(COUNT),
    "softmax": np.array(["a", "b", "c", "d"])[RANDOM.permutation(np.arange(COUNT) % CLASSES)],
}
WEIGHTS = {"l2": 0.3, "l1": 0.0, "nonconvex": 0.2}
LOSSES = list(TARGETS)
needs_libsvm = pytest.mark.skipif(
    not Path(os.environ.get("PERRON_DATA", ""), "libsvm", "a9a.gz").is_file(), reason="a9a and w8a are not here"
)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))


def made(loss, **options):
    return LinearModel(FEATURES, TARGETS[loss], PARTS, loss=loss, **WEIGHTS | options)


def sample_loss(loss, x, number):
    """phi of one sample, written down once more."""
    h, target = torch.from_numpy(FEATURES[number]), TARGETS[loss][number]
    if loss == "softmax":
        scores = h @ x.view(WIDTH, CLASSES)
        return -torch.log_softmax(scores, -1)["abcd".index(target)]
    if loss == "squared":
        return (h @ x - target) ** 2 / 2
    return torch.log1p(torch.exp((1 if target == 2 else -1) * (h @ x)))


def regularizer(x, l2=WEIGHTS["l2"], l1=WEIGHTS["l1"], nonconvex=WEIGHTS["nonconvex"]):
    return l2 / 2 * (x**2).sum() + l1 * x.abs().sum() + nonconvex * (x**2 / (1 + x**2)).sum()


def node_loss(loss, x, node, **weights):
    return len(SIZES) / COUNT * sum(sample_loss(loss, x, k) for k in PARTS[node]) + regularizer(x, **weights)


def points(problem, *shape):
    return torch.from_numpy(np.random.default_rng(1).standard_normal((*shape, problem.dim)))


@pytest.mark.parametrize("l1", [0.0, 0.1])
@pytest.mark.parametrize("loss", LOSSES)
def test_losses_and_gradients_of_loops(loss, l1):
    problem, n = made(loss, l1=l1), len(SIZES)
    assert problem.sample_counts.tolist() == SIZES
    x = points(problem, 2, n)
    found = problem.local_grads(x)
    for trial, node in itertools.product(range(2), range(n)):
        own = x[trial, node].clone().requires_grad_()
        (grad,) = torch.autograd.grad(node_loss(loss, own, node), own)  # without l1
        torch.testing.assert_close(found[trial, node], grad, rtol=1e-12, atol=1e-13)
    for one in x[:, 0]:
        whole = sum(sample_loss(loss, one, k) for k in range(COUNT)) / COUNT + regularizer(one, l1=l1)
        torch.testing.assert_close(problem.loss(one), whole, rtol=1e-13, atol=0)
        each = torch.stack([problem.of_node(node).loss(one) for node in range(n)])
        torch.testing.assert_close(each.mean(), whole, rtol=1e-13, atol=0)
        torch.testing.assert_close(each[1], node_loss(loss, one, 1, l1=l1), rtol=1e-13, atol=0)
        own = one.clone().requires_grad_()
        (grad,) = torch.autograd.grad(problem.loss(own), own)  # with l1: differentiable where no coordinate is zero
        torch.testing.assert_close(problem.full_grad(one), grad, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(problem.loss(x), torch.stack([problem.loss(row) for row in x]))


@pytest.mark.parametrize("loss", LOSSES)
def test_hessians(loss):
    problem = made(loss)
    x = points(problem)
    each = problem.local_hessians(x)
    for node in range(len(SIZES)):
        expected = torch.autograd.functional.hessian(lambda z, node=node: node_loss(loss, z, node), x)
        torch.testing.assert_close(each[node], expected, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(problem.hessian(x), each.mean(0))
    v = points(problem, len(SIZES))
    torch.testing.assert_close(problem.hessian_products(x)(v), (each @ v.unsqueeze(-1)).squeeze(-1))


@pytest.mark.parametrize("loss", LOSSES)
def test_minibatches_are_means_of_single_samples(loss):
    problem, n = made(loss, batch=2), len(SIZES)
    x, random = points(problem, 3, n), Keyed(5, trials=3, nodes=n)
    everything = [problem.of_node(i).sample_grads(x[:, i : i + 1], torch.arange(m)[None]) for i, m in enumerate(SIZES)]
    for node, single in enumerate(everything):
        torch.testing.assert_close(single.mean(-2)[:, 0], problem.local_grads(x)[:, node])
    picks = random.distinct(7, 2, problem.sample_counts[:, None])
    grads = problem.grad(x, 7, random)
    for trial, node in itertools.product(range(3), range(n)):
        one, two = picks[trial, node].tolist()
        assert one != two
        expected = (everything[node][trial, 0, one] + everything[node][trial, 0, two]) / 2
        torch.testing.assert_close(grads[trial, node], expected)
        alone = problem.of_node(node).grad(
            x[trial : trial + 1, node : node + 1], 7, Keyed(5, trials=[trial], nodes=[node])
        )
        torch.testing.assert_close(alone[0, 0], grads[trial, node])
    # The covariance of all possible minibatches.
    common = points(problem)
    found = problem.noise_covariances(common)
    for node, many in enumerate(SIZES):
        single = problem.of_node(node).sample_grads(common[None], torch.arange(many)[None])[0].numpy()
        means = np.array([single[list(pair)].mean(0) for pair in itertools.combinations(range(many), 2)])
        expected = np.cov(means.T, bias=True) if len(means) > 1 else np.zeros((problem.dim, problem.dim))
        np.testing.assert_allclose(found[node], expected, atol=1e-13)


def test_minibatches_take_all_samples_equally_often():
    highs = torch.tensor([[2], [5], [9]])
    drawn = torch.cat([Keyed(3, trials=40, nodes=3).distinct(draw, 2, highs) for draw in range(200)])
    for node, many in enumerate([2, 5, 9]):
        counts = torch.bincount(drawn[:, node].flatten(), minlength=many)
        assert len(counts) == many
        assert (counts / counts.sum() * many - 1).abs().max() < 0.1
    assert torch.equal(
        Keyed(3, trials=2, nodes=3).distinct(1, 2, 9)[:, 2], Keyed(3, trials=2, nodes=3).distinct(1, 2, highs)[:, 2]
    )


def test_constants():
    for loss, bound in (("logistic", 0.25), ("squared", 1.0), ("softmax", 0.5)):
        problem = made(loss, nonconvex=0.0)
        largest = max(len(SIZES) / COUNT * bound * np.linalg.norm(FEATURES[part.numpy()], 2) ** 2 for part in PARTS)
        assert problem.smoothness == pytest.approx(largest + WEIGHTS["l2"], rel=1e-12)
        hessians = problem.local_hessians(torch.zeros(problem.dim, dtype=torch.float64))
        at_zero = float(torch.linalg.eigvalsh(hessians).max())
        # The bound is attained: at zero by logistic, everywhere by squares; softmax only comes near it.
        assert at_zero <= problem.smoothness * (1 + 1e-12)
        assert loss == "softmax" or at_zero == pytest.approx(problem.smoothness, rel=1e-12)
        for node in range(len(SIZES)):
            assert problem.of_node(node).smoothness == problem.smoothness
    least = np.linalg.svd(FEATURES)[1][-1] ** 2 / COUNT
    assert made("squared", nonconvex=0.0).strong_convexity == pytest.approx(least + WEIGHTS["l2"])
    assert made("squared", l2=0.0, nonconvex=0.0).strong_convexity == pytest.approx(least)
    assert made("logistic").strong_convexity == pytest.approx(WEIGHTS["l2"] - WEIGHTS["nonconvex"] / 2)
    assert made("logistic", l2=0.1).strong_convexity is None
    assert made("squared").smoothness == pytest.approx(made("squared", nonconvex=0.0).smoothness + 0.4)
    doubled = LinearModel(np.hstack([FEATURES, FEATURES]), TARGETS["squared"], PARTS, loss="squared")
    assert doubled.strong_convexity is None


def test_ridge_has_a_closed_form():
    problem = made("squared", nonconvex=0.0)
    gram = FEATURES.T @ FEATURES / COUNT + WEIGHTS["l2"] * np.eye(WIDTH)
    expected = np.linalg.solve(gram, FEATURES.T @ TARGETS["squared"] / COUNT)
    np.testing.assert_allclose(problem.optimum, expected, rtol=1e-13)


@pytest.mark.parametrize("loss", ["logistic", "softmax"])
def test_the_optimum_of_scipy(loss):
    problem = made(loss, nonconvex=0.0)

    def value(x):
        x = torch.tensor(x).requires_grad_()
        total = sum(sample_loss(loss, x, k) for k in range(COUNT)) / COUNT + regularizer(x, nonconvex=0.0)
        (grad,) = torch.autograd.grad(total, x)
        return float(total.detach()), grad.numpy()

    found = scipy.optimize.minimize(value, np.zeros(problem.dim), jac=True, method="BFGS", options={"gtol": 1e-9})
    np.testing.assert_allclose(problem.optimum, found.x, atol=1e-7)
    assert np.linalg.norm(value(problem.optimum.numpy())[1]) < 1e-14


def test_lasso_satisfies_the_conditions_of_a_minimum():
    random = np.random.default_rng(2)
    features = random.standard_normal((60, 8)) @ random.standard_normal((8, 8))  # correlated
    targets = features @ np.array([1.0, -2, 0, 0, 0.5, 0, 0, 0]) + 0.1 * random.standard_normal(60)
    problem = LinearModel(features, targets, partition.iid(torch.arange(60), 4), loss="squared", l1=0.7)
    x = problem.optimum.numpy()
    slope = features.T @ (features @ x - targets) / 60
    support = np.flatnonzero(x)
    assert 0 < len(support) < 8
    np.testing.assert_allclose(slope[support], -0.7 * np.sign(x[support]), atol=1e-12)
    assert (np.abs(slope) < 0.7 + 1e-12).all()
    assert float(problem.full_grad(problem.optimum).norm()) < 1e-13
    # Proximal gradient descent, from the textbook, reaches the same point.
    step, z = 1 / np.linalg.norm(features, 2) ** 2 * 60, np.zeros(8)
    for _ in range(30_000):
        z = z - step * features.T @ (features @ z - targets) / 60
        z = np.sign(z) * np.maximum(np.abs(z) - 0.7 * step, 0)
    np.testing.assert_allclose(x, z, atol=1e-9)
    away = problem.optimum.clone()
    away[support[0]] += 0.1
    assert float(problem.full_grad(away).norm()) > 1e-3
    assert problem.loss(away) > problem.loss(problem.optimum)


def test_an_optimum_is_found_once(monkeypatch):
    first = made("logistic").optimum
    monkeypatch.setattr(_optimum, "minimize", lambda problem: pytest.fail("it was found before"))
    # In other parts, of another precision, for one node: the same samples and weights, and the same bits.
    other = LinearModel(FEATURES, TARGETS["logistic"], [np.arange(4), np.arange(4, COUNT)], **WEIGHTS)
    single = made("logistic").to(dtype=torch.float32, device="cpu")
    for problem in (other, single, made("logistic").of_node(2), single.of_node(1)):
        assert torch.equal(problem.optimum, first)
    monkeypatch.undo()


def test_an_optimum_belongs_to_its_problem(tmp_path):
    found = [made("logistic").optimum, made("logistic", l2=0.4).optimum, made("squared").optimum]
    assert len({tuple(x.tolist()) for x in found}) == 3
    files = sorted((tmp_path / ".cache" / "perron" / "optima").iterdir())
    assert len(files) == 3
    files[0].write_bytes(files[0].read_bytes()[:-5])  # damaged: found again
    assert torch.equal(made("logistic").optimum, found[0])
    for number, x in enumerate([made("logistic", l2=0.4).optimum, made("squared").optimum]):
        assert torch.equal(x, found[number + 1])


def test_an_optimum_where_nothing_can_be_kept(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    assert made("squared").optimum.shape == (WIDTH,)


def test_without_a_minimum():
    problem = LinearModel([[1.0], [2.0], [-1.0]], [1, 1, -1], [[0, 1], [2]])  # separable
    with pytest.raises(PerronError, match=r"no minimum.*l2 > 0"):
        _ = problem.optimum
    several = LinearModel([[1.0, 1.0], [2.0, 2.0]], [1.0, 2.5], [[0], [1]], loss="squared")
    np.testing.assert_allclose(several.optimum, [0.6, 0.6], rtol=1e-12)  # the shortest of them


def test_push_pull_finds_the_optimum():
    problem = made("softmax", nonconvex=0.0)
    mixing = perron.Mixing.random_integer(perron.topologies.exponential(4), seed=0)
    history = perron.simulate(
        problem, perron.PushPull(), mixing, lr=0.3, steps=600, metrics=["distance_sq", "suboptimality", "grad_norm_sq"]
    )
    assert history.mean("distance_sq")[0] == pytest.approx(float(problem.optimum.square().sum()))
    zero = torch.zeros(problem.dim, dtype=torch.float64)
    assert history.mean("suboptimality")[0] == pytest.approx(float(problem.loss(zero) - problem.loss(problem.optimum)))
    assert history.mean("distance_sq")[-1] < 1e-24
    assert abs(history.mean("suboptimality")[-1]) < 1e-15


def lasso(nodes=6):
    return LinearModel.from_data(nodes, kind="lasso", data="synthetic", samples=300, dim=10, l1=0.1, partition="sorted")


@pytest.mark.parametrize("name", ["push_pull_atc", "push_pull_pu", "next", "aug_dgm", "push_diging"])
def test_proximal_methods_find_the_lasso(name):
    problem, algorithm = lasso(), replace(ALGORITHMS[name], move=Proximal())
    assert 0 < int((problem.optimum == 0).sum()) < problem.dim
    mixing = (
        perron.Mixing.metropolis(perron.topologies.undirected_grid(6, rows=2))
        if algorithm.about.matrices.startswith("W")
        else perron.Mixing.random_integer(perron.topologies.exponential(6), seed=0)
    )
    metrics = ["distance_max", "suboptimality", "grad_norm_sq"]
    history = perron.simulate(problem, algorithm, mixing, lr=0.05, steps=1500, every=1500, metrics=metrics)
    assert history.mean("distance_max")[-1] < 1e-12
    assert abs(history.mean("suboptimality")[-1]) < 1e-14


def test_the_proximal_recursion_of_numpy():
    """x+ = A (x + S(x - lr y / w) - x), y = B (y + g - g_prev), w = B (w + 1 - 1_prev), written down once more."""
    problem, lr = lasso(), 0.05
    mixing = perron.Mixing.random_integer(perron.topologies.exponential(6), seed=0)
    pull, push = (
        np.asarray(matrix.todense() if hasattr(matrix, "todense") else matrix) for matrix in (mixing.pull, mixing.push)
    )
    algorithm = PushPull(order="atc", move=Proximal())
    simulation = perron.Simulation(problem=problem, algorithm=algorithm, mixing=mixing, lr=lr)
    x = y = before = np.zeros((6, 10))
    w = one = np.zeros((6, 1))
    for step, now in enumerate(simulation.iterates(30)):
        np.testing.assert_allclose(now.state.x[0].numpy(), x, rtol=1e-9, atol=1e-13, err_msg=f"step {step}")
        grad = problem.local_grads(torch.from_numpy(x)[None])[0].numpy()
        y, before = push @ (y + grad - before), grad
        w, one = push @ (w + 1 - one), np.ones((6, 1))
        z = x - lr * y / w
        x = pull @ (np.sign(z) * np.maximum(np.abs(z) - lr * 0.1, 0))


def test_saga_with_a_proximal_move():
    problem = lasso()
    algorithm = SAGA(method=PushPull(order="atc", move=Proximal()))
    mixing = perron.Mixing.random_integer(perron.topologies.exponential(6), seed=0)
    history = perron.simulate(problem, algorithm, mixing, lr=0.005, steps=6000, every=3000, metrics=["distance_sq"])
    first, middle, last = history.mean("distance_sq")
    assert last < 1e-3 * middle < 1e-6 * first


def test_l1_is_not_ignored():
    mixing = perron.Mixing.random_integer(perron.topologies.exponential(6), seed=0)
    for algorithm in (PushPull(), SAGA(), PushPull(order="atc", move=Proximal(l1=0.2)), RobustPushPull()):
        with pytest.raises(PerronError, match=r"would ignore l1 \|x\|_1 with l1 = 0\.1.*move=Proximal"):
            perron.Simulation(problem=lasso(), algorithm=algorithm, mixing=mixing)
    with pytest.raises(PerronError, match="not quadratic"):
        perron.theory.noise_floor(lasso(), 0.1)


def test_test_sets():
    test = np.array([[1.0, 2, 3], [-1, 0, 1]])
    problem = made("softmax", test=(test, ["b", "d"]))
    x = points(problem, 2)
    losses, right = problem.scores(x, torch.ones(4))
    for row, one in enumerate(x):
        scores = torch.from_numpy(test) @ one.view(WIDTH, CLASSES)
        torch.testing.assert_close(losses[row], torch.nn.functional.cross_entropy(scores, torch.tensor([1, 3])))
        assert float(right[row]) == float((scores.argmax(1) == torch.tensor([1, 3])).double().mean())
    problem = made("logistic", test=(test, [7, 2]))
    x = torch.tensor([1.0, 0, 0], dtype=torch.float64)
    assert problem.scores(x, torch.ones(4))[1] == 1  # 7 is the class +1
    assert problem.scores(-x, torch.ones(4))[1] == 0
    assert torch.isnan(made("squared", test=(test, [7, 2])).scores(x, torch.ones(4))[1])
    with pytest.raises(PerronError, match="no test set"):
        made("squared").scores(x, torch.ones(4))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"targets": np.arange(COUNT) % 3}, "two classes; the labels are 0, 1, 2"),
        ({"targets": np.ones(COUNT)}, "two classes"),
        ({"targets": np.ones(COUNT), "loss": "softmax"}, "all labels are 1.0"),
        ({"targets": FEATURES[:, 0], "loss": "softmax"}, "look like numbers"),
        ({"targets": TARGETS["softmax"], "loss": "squared"}, "needs numbers as targets; got a, b, c, d"),
        ({"targets": np.ones((COUNT, 2))}, "Targets are a vector"),
        ({"features": np.where(FEATURES > 1, np.nan, FEATURES)}, r"features holds nan at \["),
        ({"features": FEATURES[:-1]}, r"got \(14, 3\) and 15 targets"),
        ({"parts": PARTS[:-1]}, "each of the 15 samples exactly once; got 11 numbers"),
        ({"parts": [*PARTS, PARTS[0]]}, "got 20 numbers, 15 of them different"),
        ({"parts": [*PARTS, []]}, "Every node needs a sample"),
        ({"batch": 3}, "1 to 2 samples.*got batch=3.*smaller batch"),
        ({"batch": 0}, "1 to 2 samples"),
        ({"l2": -1.0}, "l2 is the weight of a regularizer.*got -1.0"),
        ({"l1": float("nan")}, "l1 is the weight"),
        ({"loss": "hinge"}, "no loss 'hinge'"),
        ({"test": (FEATURES[:, :2], TARGETS["logistic"])}, r"features \(M, 3\)"),
        ({"test": (FEATURES, np.full(COUNT, 9))}, "test set has labels 9"),
    ],
)
def test_mistakes(options, message):
    given = {"features": FEATURES, "targets": TARGETS["logistic"], "parts": PARTS} | options
    with pytest.raises(PerronError, match=message):
        LinearModel(given.pop("features"), given.pop("targets"), given.pop("parts"), **given)
    with pytest.raises(PerronError, match=r"samples 0 \.\. m_i - 1"):
        made("logistic").sample_grads(torch.zeros(4, 3, dtype=torch.float64), torch.tensor([[0], [2], [0], [0]]))
    with pytest.raises(PerronError, match="Quadratic has no single samples"):
        perron.problems.Quadratic.random(4).sample_grads(torch.zeros(4, 5), torch.zeros(4, 1, dtype=torch.int64))


# ---- from_data


@pytest.mark.parametrize("kind", ["logistic", "ridge", "softmax", "lasso"])
@pytest.mark.parametrize("rule", partition.PARTITIONS)
def test_every_partition_of_every_kind(kind, rule):
    l1 = {"l1": 0.01} if kind == "lasso" else {}
    problem = LinearModel.from_data(7, kind=kind, data="synthetic", samples=200, dim=4, partition=rule, l2=0.1, **l1)
    whole = LinearModel.from_data(1, kind=kind, data="synthetic", samples=200, dim=4, l2=0.1, **l1)
    assert sorted(problem.order.tolist()) == list(range(200))  # nothing is dropped
    assert problem.sample_counts.tolist() != [200 // 7] * 7
    x = points(problem)
    torch.testing.assert_close(problem.loss(x), whole.loss(x), rtol=1e-13, atol=0)
    torch.testing.assert_close(problem.full_grad(x), whole.full_grad(x), rtol=1e-11, atol=1e-13)
    if rule in ("sorted", "by_label"):  # nodes differ in their targets, as far as they can
        targets = problem.targets.argmax(1) if kind == "softmax" else problem.targets[:, 0]
        means = torch.stack([part.double().mean() for part in targets.split(problem.sample_counts.tolist())])
        assert (means.diff() >= 0).all()
        assert means[-1] > means[0]


def test_files_and_options(tmp_path):
    random = np.random.default_rng(3)
    rows = [
        f"{random.normal():.6f},{10 * random.normal() + 3:.6f},{('ill', 'well')[number % 2]},{'rome' if number < 7 else 'oslo'}"
        for number in range(20)
    ]
    path, test = tmp_path / "data.csv", tmp_path / "test.csv"
    path.write_text("\n".join(["a,b,state,site", *rows]))
    test.write_text("\n".join(["a,b,state,site", *rows[:4]]))
    problem = LinearModel.from_data(
        2,
        data=str(path),
        test=f"file:{test}",
        target="state",
        partition="column:site",
        scale="standard",
        intercept=True,
    )
    assert problem.sample_counts.tolist() == [13, 7]  # oslo, rome
    assert problem.classes.tolist() == ["ill", "well"]
    back = problem.rows[problem.order.argsort()]
    torch.testing.assert_close(back[:, 2], torch.ones(20, dtype=torch.float64))
    torch.testing.assert_close(back[:, :2].mean(0), torch.zeros(2, dtype=torch.float64), rtol=0, atol=1e-14)
    torch.testing.assert_close(back[:, :2].square().mean(0), torch.ones(2, dtype=torch.float64))
    torch.testing.assert_close(problem.test[0], back[:4])  # scaled as the training samples
    for options, message in [
        ({"nodes": 3, "partition": "column:site"}, r"belong to 2 nodes \(oslo, rome\).*set nodes = 2"),
        ({"partition": "column:town"}, "no column of data.csv 'town'"),
        ({"kind": "ridge"}, "needs numbers as targets; got ill, well"),
        ({"kind": "svm"}, "no kind of linear model 'svm'"),
        ({"kind": "lasso"}, "lasso needs l1 > 0"),
        ({"kind": "ridge", "l1": 0.1}, 'kind = "lasso"'),
        ({"samples": 21}, "20 training samples; got samples=21"),
        ({"dim": 3}, "dim is an option of data = 'synthetic'"),
        ({"scale": "minmax"}, "no scale 'minmax'"),
        ({"data": "digits"}, "options of files; got data = 'digits'"),
        ({"data": "a8a"}, "did you mean 'w8a'"),
        ({"data": "synthetic", "partition": "random", "target": None}, "no partition 'random'"),
    ]:
        given = {"nodes": 2, "data": str(path), "target": "state", "partition": "column:site"} | options
        with pytest.raises(PerronError, match=message):
            LinearModel.from_data(**given)


def test_a_test_set_with_fewer_features(tmp_path):
    (tmp_path / "d.libsvm").write_text("1 1:3 2:4\n-1 1:1\n1 3:2\n")
    (tmp_path / "t.libsvm").write_text("1 1:1\n-1 2:2\n")
    problem = LinearModel.from_data(1, data=str(tmp_path / "d.libsvm"), test=str(tmp_path / "t.libsvm"), scale="rows")
    assert problem.test[0].tolist() == [[1, 0, 0], [0, 1, 0]]
    assert problem.rows[problem.order.argsort()].tolist() == [[0.6, 0.8, 0], [1, 0, 0], [0, 0, 1]]


@needs_libsvm
@pytest.mark.parametrize(("name", "samples", "count"), [("a9a", None, 32_561), ("w8a", 10_000, 10_000)])
def test_real_data_on_seven_nodes(name, samples, count):
    problem = LinearModel.from_data(7, data=name, samples=samples, l2=1e-3, batch=16)
    assert sorted(problem.order.tolist()) == list(range(count))  # nothing is dropped
    assert int(problem.sample_counts.max() - problem.sample_counts.min()) == 1
    table = perron.data.load_table(name)[0]
    features, labels = table.features[:samples].numpy(), np.asarray(table.targets[:samples])

    def grad(x):
        return -features.T @ (labels / (1 + np.exp(labels * (features @ x)))) / count + 1e-3 * x

    x = problem.optimum.numpy()
    assert np.linalg.norm(grad(x)) < 1e-14 * np.linalg.norm(grad(0 * x))
    np.testing.assert_allclose(problem.full_grad(problem.optimum + 0.1), grad(x + 0.1), rtol=1e-10)
    if name == "a9a":
        assert float(problem.scores(problem.optimum, torch.ones(7))[1]) == pytest.approx(0.85, abs=0.002)

"""Estimated constants against closed forms, whole Hessians, and all samples one by one."""

from copy import deepcopy
from math import isclose

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, jacrev, vmap
from torch.nn.functional import cross_entropy, mse_loss

from perron import PerronError, Problem
from perron.data import datasets as data
from perron.data import models
from perron.data.partition import deal
from perron.problems import LocalLoss, Logistic, Neural, Quadratic
from perron.random import Keyed
from perron.theory import constants as estimate
from perron.theory.constants import Constants, estimate_model
from perron.theory.constants import estimate as estimated

DIGITS = data.digits()
PIXELS = DIGITS.images.double().flatten(1)
PIXELS = (PIXELS - PIXELS.mean()) / PIXELS.std(correction=0)
LABELS = DIGITS.labels.long()


def near(value, truth, error, times=3):
    return abs(value - truth) <= times * error


def net(dtype=torch.float32, width=6, inputs=64):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, 10)).to(dtype)


def small(nodes=3, samples=360, **options):
    """A network with tanh (twice differentiable) on the digits, in double precision."""
    images = DIGITS._replace(images=DIGITS.images[:samples].flatten(1), labels=DIGITS.labels[:samples])
    images = images._replace(test_images=DIGITS.test_images.flatten(1))
    parts = deal(images.labels, nodes, partition="dirichlet", concentration=0.5)
    return Neural(net(torch.float64), images, parts, **{"batch": 8} | options)


def of_samples(model, point, inputs, targets):
    """The gradients of single samples, ``(samples, d)``."""
    names, shapes = zip(*((name, param.shape) for name, param in model.named_parameters()), strict=True)

    def loss(x, one, target):
        parts = x.split([shape.numel() for shape in shapes])
        params = {name: part.view(shape) for name, part, shape in zip(names, parts, shapes, strict=True)}
        return cross_entropy(functional_call(model, params, one[None]), target[None])

    return vmap(grad(loss), in_dims=(None, 0, 0))(point, inputs, targets)


def whole_hessian(model, point, inputs, targets):
    names, shapes = zip(*((name, param.shape) for name, param in model.named_parameters()), strict=True)

    def loss(x):
        parts = x.split([shape.numel() for shape in shapes])
        params = {name: part.view(shape) for name, part, shape in zip(names, parts, shapes, strict=True)}
        return cross_entropy(functional_call(model, params, inputs), targets)

    return jacrev(jacrev(loss))(point)


# ---- problems whose constants are known


@pytest.mark.parametrize(("dim", "diagonal"), [(1, False), (5, False), (5, True), (90, False), (90, True)])
def test_everything_of_a_quadratic(dim, diagonal):
    """Whole Hessians up to 64 coordinates, Lanczos beyond."""
    problem = Quadratic.random(6, dim=dim, smoothness=4.0, strong_convexity=0.5, noise_std=1.5, diagonal=diagonal)
    x = torch.randn(dim, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = estimated(problem, x, draws=100)
    hessians = problem.local_hessians(x)
    each = (hessians @ (x - problem.centers).unsqueeze(-1)).squeeze(-1)
    average = torch.linalg.eigvalsh(hessians.mean(0))
    assert (found.dim, found.nodes) == (dim, 6)
    assert isclose(found.smoothness, 4.0, rel_tol=2e-3)
    assert isclose(found.smoothness_average, float(average.max()), rel_tol=2e-3)
    assert near(found.smallest_curvature, float(average.min()), 4e-3, 1)
    assert near(found.noise_var, 1.5**2, found.noise_var_error)
    assert isclose(found.noise_var_error, 1.5**2 * (2 / (dim * 6 * 99)) ** 0.5, rel_tol=0.4)  # of normal numbers
    assert isclose(found.heterogeneity, float((each - each.mean(0)).square().sum(-1).mean()))
    assert isclose(found.grad_norm_sq, float(each.mean(0).square().sum()))
    gap = (x - problem.optimum) @ hessians.mean(0) @ (x - problem.optimum) / 2
    assert isclose(found.gap, float(gap), rel_tol=1e-9)
    assert (found.heterogeneity_error, found.grad_norm_sq_error, found.gap_error) == (None, None, None)
    assert (found.known_smoothness, found.known_noise_var) == (problem.smoothness, 1.5**2)
    assert found.known_strong_convexity == problem.strong_convexity
    assert found.noise_scale is None  # there are no batches
    at_optimum = estimated(problem, problem.optimum)
    assert 0 <= at_optimum.gap < 1e-12


def test_from_minibatches_nothing_is_biased():
    """Without exact gradients, over many seeds: the mean is the truth, and the standard error is the scatter."""
    problem = Quadratic.random(4, dim=3, heterogeneity=0.3, noise_std=2.0)
    truth = estimated(problem)
    runs = [estimated(problem, draws=6, seed=seed, exact=False) for seed in range(150)]
    for name, exact in (
        ("heterogeneity", truth.heterogeneity),
        ("grad_norm_sq", truth.grad_norm_sq),
        ("noise_var", 4.0),
    ):
        values = np.array([getattr(run, name) for run in runs])
        errors = np.array([getattr(run, f"{name}_error") for run in runs])
        assert near(values.mean(), exact, values.std() / 150**0.5), name
        assert 0.8 < np.sqrt((errors**2).mean()) / values.std() < 1.4, name
    assert runs[0].noise_var == estimated(problem, draws=6, exact=False).noise_var  # by key, so the same again


def test_without_noise_there_is_none():
    found = estimated(Quadratic.random(3, dim=2))
    assert (found.noise_var, found.noise_var_error) == (0.0, 0.0)
    flat = LocalLoss(lambda x, shift: (x * shift).sum() + 5, [torch.ones(2, 70)], dim=70)  # Lanczos on a zero matrix
    found = estimated(flat)
    assert (found.smoothness, found.smallest_curvature, found.noise_var) == (0.0, 0.0, 0.0)
    round_one = Quadratic(2 * torch.ones(2, 70, dtype=torch.float64), torch.zeros(2, 70, dtype=torch.float64))
    assert isclose(estimated(round_one).smallest_curvature, 2.0)  # H - L I is zero but for rounding


@pytest.mark.parametrize("compiled", [False, True])
def test_logistic(compiled):
    """Hessians and covariances of each node against derivatives and against draws, compiled or not."""
    pytest.importorskip("numba")
    random = torch.Generator().manual_seed(2)
    features = torch.randn(120, 4, generator=random) * torch.tensor([1.0, 2.0, 0.5, 1.0])
    labels = torch.randint(0, 2, (120,), generator=random) * 2.0 - 1
    problem = Logistic(features, labels, nodes=3, batch=5, regularization=0.2, compiled=compiled)
    x = torch.tensor([0.3, -1.0, 0.5, 2.0], dtype=torch.float64)
    hessians, covariances = problem.local_hessians(x), problem.noise_covariances(x)
    product = problem.hessian_products(x)
    v = torch.randn(3, 4, generator=random, dtype=torch.float64)
    for node in range(3):
        loss = problem.of_node(node).loss
        torch.testing.assert_close(hessians[node], torch.autograd.functional.hessian(loss, x))
        torch.testing.assert_close(product(v)[node], hessians[node] @ v[node])
    torch.testing.assert_close(hessians.mean(0), problem.hessian(x))
    torch.testing.assert_close(covariances.mean(0), problem.noise_covariance(x))
    trials, points = 4000, x.expand(4000, 3, 4).contiguous()
    grads = problem.grad(points, 0, Keyed(0, trials=trials, nodes=3))
    for node in range(3):
        sampled = torch.cov(grads[:, node].mT)
        assert (sampled - covariances[node]).norm() < 0.1 * covariances[node].norm()
        torch.testing.assert_close(covariances[node], problem.of_node(node).noise_covariances(x)[0])
    found = estimated(problem, x, draws=200)
    assert isclose(found.smoothness, float(torch.linalg.eigvalsh(hessians).abs().max()), rel_tol=1e-9)
    assert found.smoothness <= found.known_smoothness
    assert isclose(found.known_noise_var, float(covariances.mean(0).trace()))
    assert near(found.noise_var, found.known_noise_var, found.noise_var_error)
    assert isclose(found.gap, float(problem.loss(x) - problem.loss(problem.optimum)), rel_tol=1e-9)
    assert isclose(found.noise_scale, found.noise_var * 5 / float(problem.full_grad(x).square().sum()), rel_tol=1e-6)


# ---- Hessians of any problem


class Cut(Quadratic):
    """Gradients that torch differentiates to zero, without an error."""

    def local_grads(self, x):
        return super().local_grads(x.detach())


class Foreign(Quadratic):
    """Gradients made outside of torch, in float32."""

    def local_grads(self, x):
        return super().local_grads(torch.from_numpy(x.numpy()).float().double()).float().double()


@pytest.mark.parametrize(("kind", "close"), [(Quadratic, 1e-12), (Cut, 1e-8), (Foreign, 1e-2)])
def test_local_hessians_without_a_formula(kind, close):
    made = Quadratic.random(3, dim=4, seed=5)
    x = torch.randn(4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = Problem.local_hessians(kind(made.hessians, made.centers), x)
    torch.testing.assert_close(found, made.hessians, rtol=0, atol=close)


def test_local_hessians_of_any_loss_and_of_a_network():
    random = torch.Generator().manual_seed(0)
    features, x = torch.randn(2, 30, 3, generator=random), torch.randn(3, generator=random, dtype=torch.float64)

    def loss(x, features):
        return (features @ x).tanh().square().mean() + x.prod()

    found = LocalLoss(loss, [features], dim=3, batch=4).local_hessians(x)
    for node in range(2):
        expected = torch.autograd.functional.hessian(lambda x, node=node: loss(x, features[node].double()), x)
        torch.testing.assert_close(found[node], expected)

    network = Neural(
        net(torch.float64, width=2, inputs=2),
        data.Images(PIXELS[:90, 20:22], LABELS[:90], PIXELS[:9, 20:22], LABELS[:9]),
        [torch.arange(50), torch.arange(50, 90)],
        batch=8,
        weight_decay=0.1,
    )
    x = network.start()[0]
    found = network.local_hessians(x)
    for node, part in enumerate(network.parts):
        inputs = next(network._chunks(network.data.images, network.data.labels, part))[0]
        whole = whole_hessian(network.model, x, inputs, LABELS[part]) + 0.1 * torch.eye(len(x))
        torch.testing.assert_close(found[node], whole)
    # With the network's own differences of gradients as a second opinion.
    torch.testing.assert_close(Problem.hessian_products(network, x)(x.expand(2, -1)), found @ x, rtol=0, atol=1e-6)


# ---- networks


@pytest.mark.slow
def test_a_network_against_whole_hessians_and_all_samples():
    problem = small()
    x, model = problem.start()[0], net(torch.float64)
    found = estimated(problem, draws=150, samples=None, tolerance=1e-4)
    noise, grads, hessians = 0.0, [], []
    for part in problem.parts:
        inputs, targets = next(problem._chunks(problem.data.images, problem.data.labels, part))
        single, many = of_samples(model, x, inputs, targets), len(part)
        # 8 of a node's samples, without replacement
        noise += float(single.var(0).sum()) / 8 * (1 - 8 / many) / 3
        grads.append(single.mean(0))
        hessians.append(whole_hessian(model, x, inputs, targets))
    average = torch.linalg.eigvalsh(torch.stack(hessians).mean(0))
    local = max(float(torch.linalg.eigvalsh(one).abs().max()) for one in hessians)
    assert isclose(found.smoothness, local, rel_tol=1e-3)
    assert isclose(found.smoothness_average, float(average.abs().max()), rel_tol=1e-3)
    assert near(found.smallest_curvature, float(average.min()), 1e-3 * float(average.max()), 1)
    assert near(found.noise_var, noise, found.noise_var_error)
    each = torch.stack(grads)
    assert isclose(found.heterogeneity, float((each - each.mean(0)).square().sum(-1).mean()), rel_tol=1e-9)
    assert isclose(found.gap, float(problem.loss(x)), rel_tol=1e-6)
    assert "assumed" in found.how["gap"]
    assert estimated(problem, lower_bound=1.0, samples=20).gap == found.gap - 1.0
    single = problem.to(dtype=torch.float32, device="cpu")
    assert isclose(estimated(single, draws=3, samples=None).smoothness, local, rel_tol=1e-2)
    sampled = estimated(problem, draws=60, exact=False, samples=20)
    assert near(sampled.heterogeneity, found.heterogeneity, sampled.heterogeneity_error)
    assert sampled.smoothness != found.smoothness


def test_a_network_with_batchnorm_keeps_what_it_remembers():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 10))
    problem = Neural(model, DIGITS, [torch.arange(30), torch.arange(30, 60)], batch=8)
    found = estimated(problem, draws=4, samples=10, tolerance=0.1)
    assert not problem.memory
    assert found.heterogeneity_error is not None  # gradients are those of training, all of them
    problem.grad(problem.start(), 0, Keyed(0, nodes=2))
    before = {name: value.clone() for name, value in problem.memory.items()}
    assert before
    estimated(problem, draws=3, samples=10, tolerance=0.1)
    assert all(torch.equal(value, problem.memory[name]) for name, value in before.items())


@pytest.mark.slow
def test_a_model_and_all_batches_of_an_epoch():
    """Batches of one epoch, in random order: the variance of single samples over the batch size, without bias."""
    model, size, count, few = net(torch.float64), 20, 60, 10
    order = torch.randperm(size * count, generator=torch.Generator().manual_seed(0))
    inputs, targets = PIXELS[order], LABELS[order]
    batches = list(zip(inputs.split(size), targets.split(size), strict=True))
    found = estimate_model(model, cross_entropy, iter(batches), draws=count, curvature_batches=few, tolerance=1e-4)
    x = torch.cat([param.detach().flatten() for param in model.parameters()])
    single, some = of_samples(model, x, inputs, targets), slice(size * few)
    whole = torch.linalg.eigvalsh(whole_hessian(model, x, inputs[some], targets[some]))
    assert (found.batch, found.nodes, found.dim, found.heterogeneity) == (size, 1, len(x), None)
    assert near(found.noise_var, float(single.var(0).sum()) / size, found.noise_var_error)
    assert near(found.grad_norm_sq, float(single.mean(0).square().sum()), found.grad_norm_sq_error)
    assert isclose(found.smoothness, float(whole.abs().max()), rel_tol=1e-3)
    assert near(found.smallest_curvature, float(whole.min()), 1e-3 * float(whole.max()), 1)
    assert isclose(found.gap, float(cross_entropy(model(inputs), targets).detach()), rel_tol=1e-9)
    assert isclose(found.noise_scale, float(single.var(0).sum() / single.mean(0).square().sum()), rel_tol=0.2)
    single_precision = [(one.float(), target) for one, target in batches]
    again = estimate_model(net(), cross_entropy, single_precision, draws=count, curvature_batches=few)
    for name in ("smoothness", "noise_var", "gap", "grad_norm_sq"):
        assert isclose(getattr(again, name), getattr(found, name), rel_tol=5e-3), name


def test_a_model_node_by_node_is_the_problem():
    """The same batches, through the simulator's problem and without it."""
    problem = small(batch=None, evaluate=None)
    model = net(torch.float64)
    chunks = [next(problem._chunks(problem.data.images, problem.data.labels, part)) for part in problem.parts]
    whole = [[pair] * 3 for pair in chunks]  # the same batch three times: no noise
    found = estimate_model(model, cross_entropy, whole, by_node=True, curvature_batches=1)
    truth = estimated(problem, samples=None, draws=3)
    assert found.noise_var == truth.noise_var == 0.0
    assert found.heterogeneity_error < 1e-9
    for name in ("smoothness", "smoothness_average", "heterogeneity", "grad_norm_sq", "gap"):
        assert isclose(getattr(found, name), getattr(truth, name), rel_tol=2e-3), name
    assert near(found.smallest_curvature, truth.smallest_curvature, 2e-3 * truth.smoothness, 1)


def test_the_model_is_left_as_it_was():
    """Parameters, gradients, buffers, modes and the generator, with BatchNorm and dropout; the result is the same again."""
    torch.manual_seed(3)
    model = nn.Sequential(models.convnet(1, 8, width=2), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 10))
    model[2].eval()
    model[3].bias.requires_grad_(False)
    model[3].weight.grad = torch.ones_like(model[3].weight)
    images = DIGITS.images[:40].float() / 255
    batches = list(zip(images.split(8), LABELS[:40].split(8), strict=True))
    before, modes = deepcopy(model.state_dict()), [part.training for part in model.modules()]
    versions, pointers = [p._version for p in model.parameters()], [p.data_ptr() for p in model.parameters()]
    state = torch.get_rng_state()
    for training in (True, False):
        model[2].train(training)
        modes[[*model.modules()].index(model[2])] = training
        found = estimate_model(model, cross_entropy, batches, curvature_batches=2, tolerance=0.01)
        assert found == estimate_model(model, cross_entropy, batches, curvature_batches=2, tolerance=0.01)
    assert found.dim == sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert torch.equal(torch.get_rng_state(), state)
    assert [part.training for part in model.modules()] == modes
    assert [p._version for p in model.parameters()] == versions
    assert [p.data_ptr() for p in model.parameters()] == pointers
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    grads = [name for name, param in model.named_parameters() if param.grad is not None]
    assert grads == ["3.weight"]
    assert (model[3].weight.grad == 1).all()
    with pytest.raises(PerronError, match="The loss is nan on batch 1"):
        estimate_model(model, cross_entropy, [batches[0], (batches[1][0] * torch.nan, batches[1][1]), batches[2]])
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


class _Once(torch.autograd.Function):
    """x^2, whose second derivative torch does not know."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, above):
        return 2 * ctx.saved_tensors[0] * above


class Once(nn.Module):
    def forward(self, x):
        return _Once.apply(x)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 24)

    def forward(self, x):
        q, k, v = self.inner(x.view(-1, 1, 8, 8)).chunk(3, -1)
        return nn.functional.scaled_dot_product_attention(q, k, v).flatten(1).mean(1, keepdim=True)


def test_operations_without_a_second_derivative():
    """Central differences take their place; the fast kernels of attention are left aside for the plain one."""
    inputs, targets = PIXELS[:60], PIXELS[60:120, 20:21]
    batches = list(zip(inputs.split(20), targets.split(20), strict=True))
    torch.manual_seed(0)
    first, last = nn.Linear(64, 3).double(), nn.Linear(3, 1).double()

    class Square(nn.Module):
        def forward(self, x):
            return x * x

    plain = estimate_model(nn.Sequential(first, Square(), last), mse_loss, batches)
    other = estimate_model(nn.Sequential(first, Once(), last), mse_loss, batches)
    assert "central differences" in other.how["smoothness"]
    assert isclose(plain.smoothness, other.smoothness, rel_tol=1e-3)
    assert estimate_model(Attention().double(), mse_loss, batches).how["smoothness"].startswith("Lanczos on Hessian")


# ---- what is said


def test_the_table():
    found = estimated(Quadratic.random(3, dim=2, noise_std=1.0))
    rows = {row["constant"]: row for row in found.rows()}
    assert rows["smoothness"]["value"] == found.smoothness
    assert rows["noise_var"]["known"] == 1.0
    assert rows["noise_var"]["error"] == found.noise_var_error
    lines = str(found).splitlines()
    assert lines[0] == "2 parameters, 3 nodes"
    assert len(lines) == len(rows) + 2
    assert "variance of 16 stochastic gradients of each node" in str(found)
    few = Constants(dim=3, nodes=2, smoothness=1.0, noise_var=2.0, heterogeneity=None, gap=3.0)
    assert few.noise_scale is None
    assert "heterogeneity" in str(few)
    assert estimate.Constants is Constants
    told = Constants(
        dim=3, nodes=2, smoothness=1.0, noise_var=2.0, heterogeneity=0.0, gap=3.0, batch=4, grad_norm_sq=0.5
    )
    assert told.noise_scale == 16.0


def test_errors_say_what_and_the_remedy(monkeypatch):
    problem = Quadratic.random(3, dim=2)
    with pytest.raises(PerronError, match=r"of shape \(2,\); got \(3, 2\)\. Of points of all nodes, take the mean"):
        estimated(problem, problem.start())
    with pytest.raises(PerronError, match="draws >= 3; got 2"):
        estimated(problem, draws=2)
    with pytest.raises(PerronError, match="tolerance lies between 0 and 1; got 2"):
        estimated(problem, tolerance=2)
    with pytest.raises(PerronError, match="point x is not finite: 2 of 2 numbers"):
        estimated(problem, torch.full((2,), torch.nan))
    with pytest.raises(PerronError, match="lies below its lower bound 100; pass a lower_bound"):
        estimated(problem, lower_bound=100.0)
    steep = LocalLoss(lambda x, shift: (x + shift).exp().exp().sum(), [torch.zeros(2, 1)], dim=1)
    with pytest.raises(PerronError, match=r"gradient is not finite.*Check the data"):
        estimated(steep, torch.tensor([100.0], dtype=torch.float64))

    model, pair = nn.Linear(2, 1), (torch.ones(4, 2), torch.ones(4, 1))
    for batches in ([], iter([]), [pair, pair]):
        with pytest.raises(
            PerronError, match=r"at least 3 batches of each node; got [02]\. Pass smaller batches, or a list"
        ):
            estimate_model(model, mse_loss, batches)
    with pytest.raises(PerronError, match=r"A batch is a pair \(inputs, targets\); batch 0 is Tensor"):
        estimate_model(model, mse_loss, [torch.ones(4, 2)] * 3)
    with pytest.raises(PerronError, match="batch 0 is 3 parts"):
        estimate_model(model, mse_loss, [(*pair, 1)] * 3)
    with pytest.raises(PerronError, match="If batches are given node by node, pass by_node=True"):
        estimate_model(model, mse_loss, [[pair, pair]] * 3)
    with pytest.raises(PerronError, match=r"got 4, 5\. Leave out the last one of an epoch \(drop_last=True"):
        estimate_model(model, mse_loss, [pair, pair, (torch.ones(5, 2), torch.ones(5, 1))])
    with pytest.raises(PerronError, match=r"equally many batches; got 3, 4\. Pass draws=3"):
        estimate_model(model, mse_loss, [[pair] * 3, [pair] * 4], by_node=True)
    with pytest.raises(PerronError, match=r"one number, the mean over the samples; got the shape \(4, 1\)"):
        estimate_model(model, lambda made, wanted: (made - wanted) ** 2, [pair] * 3)
    with pytest.raises(PerronError, match="one number, the mean over the samples; got float"):
        estimate_model(model, lambda made, wanted: 1.0, [pair] * 3)
    with pytest.raises(PerronError, match="curvature_batches must be at least 1; got 0"):
        estimate_model(model, mse_loss, [pair] * 3, curvature_batches=0)
    with pytest.raises(PerronError, match="None of the parameters of Flatten requires a gradient"):
        estimate_model(nn.Flatten(), mse_loss, [pair] * 3)
    mixed = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1).double())
    with pytest.raises(PerronError, match=r"one floating type and one device; got .*float32 on cpu, .*float64 on cpu"):
        estimate_model(mixed, mse_loss, [pair] * 3)
    noisy = [(torch.randn(30, 70, generator=torch.Generator().manual_seed(n)), torch.ones(30, 1)) for n in range(3)]
    monkeypatch.setattr("perron.theory.curvature.RESTARTS", 1)
    with pytest.raises(PerronError, match="Lanczos did not settle on the largest curvature to 1e-06 in 1 restarts"):
        estimate_model(nn.Linear(70, 1), mse_loss, noisy, tolerance=1e-6)


def test_badly_scaled_data_and_bad_bounds():
    gen = torch.Generator().manual_seed(0)
    features = torch.randn(60, 3, generator=gen).double() * torch.tensor([1, 5, 0.1]).double()
    labels = torch.sign(torch.randn(60, generator=gen)).double()
    problem = Logistic(features, labels, nodes=3, compiled=False)
    assert problem.full_grad(problem.optimum).norm() < 1e-9
    assert estimate.estimate(problem).gap > 0
    for bound in (float("nan"), float("inf"), "low"):
        with pytest.raises(PerronError, match="lower_bound is a finite number"):
            estimate.estimate(problem, lower_bound=bound)
    with pytest.raises(PerronError, match="at least 1; got 0"):
        estimate.estimate(problem, samples=0)
    model = torch.nn.Linear(80, 2).bfloat16()
    batches = [(torch.randn(8, 80).bfloat16(), torch.randint(0, 2, (8,))) for _ in range(4)]
    assert estimate.estimate_model(model, torch.nn.functional.cross_entropy, batches).smoothness > 0

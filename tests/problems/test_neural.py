"""Networks as problems: the same numbers as plain modules, whichever way they are computed, interrupted or not."""

import os
import signal
import subprocess
import sys
import time
from copy import deepcopy

import numpy as np
import pandas as pd
import pytest
import torch
from strategies import network_for
from torch import nn
from torch.nn.functional import cross_entropy

from perron import ALGORITHMS, FOCUS, ConstrainedPushPull, Mixing, Network, PerronError, PushPull, Simulation, simulate
from perron import schedules as schedule
from perron._modules import vector
from perron._storage import tensorfile as saved
from perron.data import datasets as data
from perron.data import models, partition
from perron.data.augment import PRESETS
from perron.data.datasets import Images
from perron.networks import topologies  # fmt: skip
from perron.problems import Neural, Quadratic
from perron.problems._stacked import Stacked
from perron.random import NOISE, Keyed
from perron.simulation import metrics
from perron.simulation.running import Running
from perron.studies import conclusions
from perron.studies.job import execute
from perron.studies.runner import Outcome, run_study
from perron.studies.spec import load

DIGITS = data.digits()
DIGITS = DIGITS._replace(labels=DIGITS.labels.long(), test_labels=DIGITS.test_labels.long())
MIXING = Mixing.random_integer(topologies.exponential(4), seed=1)


def small(nodes=4, **options):
    return Neural.images(nodes, **{"model": "mlp", "width": 16, "depth": 2, "batch": 8} | options)


def models_after(problem, steps, *, algorithm=None, mixing=MIXING, **options):
    options = {"lr": 0.1, "problem": problem, "algorithm": algorithm or PushPull(), "mixing": mixing} | options
    for now in Simulation(**options).iterates(steps):
        last = now
    return last


# ---- the same as plain modules


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "dtype", "close", "steps"),
    [
        ("mlp", torch.float32, 1e-6, 5),  # later, rounding switches a ReLU on or off; when, depends on the processor
        ("mlp", torch.float64, 1e-12, 20),
        ("resnet18", torch.float64, 1e-10, 4),  # so unstable on small batches that rounding is soon seen
    ],
)
def test_replay_by_plain_modules(model, dtype, close, steps):
    """Push-Pull on four ordinary modules, each with its own optimizer-like arithmetic, on the same batches."""
    options = {"width": 1024} if model == "mlp" else {"width": 4}  # the first is the paper's network but for the input
    problem = Neural.images(4, model=model, batch=8, partition="dirichlet", **options)
    last = models_after(problem, steps, dtype=dtype, lr=0.05)

    torch.manual_seed(0)
    shape = tuple(DIGITS.images.shape[1:])
    built = {"hidden": (1024, 1024)} if model == "mlp" else {"width": 4}
    modules = [models.build(model, shape, 10, **built).to(dtype)]
    for _ in range(3):
        modules.append(models.build(model, shape, 10, **built).to(dtype))
        modules[-1].load_state_dict(modules[0].state_dict())
    a, b = (torch.tensor(matrices[0], dtype=dtype) for matrices in MIXING.sequences)
    trackers = [[torch.zeros_like(p) for p in module.parameters()] for module in modules]
    before = [[torch.zeros_like(p) for p in module.parameters()] for module in modules]
    pixels = DIGITS.images.double()
    normal = ((pixels - pixels.mean()) / pixels.std(correction=0)).to(dtype)
    sampler, random = problem.to(dtype=dtype, device="cpu"), Keyed(0, trials=1, nodes=4, stream=NOISE)
    for step in range(steps):
        batches = sampler.batches(step, random)[0]
        grads = []
        for module, batch in zip(modules, batches, strict=True):
            module.zero_grad()
            cross_entropy(module(normal[batch]), DIGITS.labels[batch]).backward()
            grads.append([p.grad.clone() for p in module.parameters()])
        with torch.no_grad():
            count = len(grads[0])
            trackers = [
                [sum(b[i, j] * trackers[j][k] for j in range(4)) + grads[i][k] - before[i][k] for k in range(count)]
                for i in range(4)
            ]
            x = [[p.clone() for p in module.parameters()] for module in modules]
            for i, module in enumerate(modules):
                for k, p in enumerate(module.parameters()):
                    p.copy_(sum(a[i, j] * x[j][k] for j in range(4)) - 0.05 * trackers[i][k])
        before = grads
    for i, module in enumerate(modules):
        assert torch.allclose(last.state.x[0, i], vector(module), rtol=0, atol=close)
    if model == "resnet18":  # every node has its own statistics
        for name, buffer in modules[2].named_buffers():
            assert torch.allclose(last.problem.memory[name][2], buffer, rtol=close, atol=close)
        assert int(last.problem.memory["0.1.num_batches_tracked"][2]) == steps


def test_parameter_counts_of_the_paper():
    assert len(vector(models.build("mlp", (1, 28, 28), 10))) == 1_863_690
    assert len(vector(models.build("resnet18", (3, 32, 32), 10))) == 11_173_962


def test_batched_products_equal_the_loop(monkeypatch):
    problem = small(partition="by_label")
    assert problem._stacked is not None
    batched = models_after(problem, 5, dtype=torch.float64, trials=2)
    monkeypatch.setattr(Stacked, "of", lambda _model, _inputs: None)
    looped = models_after(problem, 5, dtype=torch.float64, trials=2)
    assert looped.problem._stacked is None
    for one, other in zip(batched.state, looped.state, strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-13)
    assert torch.allclose(batched.problem.batch_losses, looped.problem.batch_losses)


def test_what_can_be_batched():
    def can(*layers, inputs=2):
        return Stacked.of(nn.Sequential(*layers), inputs) is not None

    linear, relu = nn.Linear(4, 4), nn.ReLU()
    assert can(nn.Flatten(), linear, relu, nn.Linear(4, 2, bias=False), inputs=4)
    assert can(linear, relu)
    assert not can(linear, relu, inputs=3)  # a sequence for each sample
    assert not can(linear, relu, linear)  # one layer twice
    assert not can(linear, nn.Dropout(0.5))
    assert not can(linear, nn.BatchNorm1d(4))
    frozen = nn.Linear(4, 4).requires_grad_(False)
    assert not can(frozen, relu, nn.Linear(4, 2))
    tied = nn.Linear(4, 4)
    tied.weight = linear.weight
    assert not can(linear, relu, tied)
    assert not can(nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), relu)
    assert not can(nn.utils.spectral_norm(nn.Linear(4, 4)), relu)  # weights that are computed from others
    hooked = nn.Linear(4, 4)
    hooked.register_forward_hook(lambda _module, _inputs, output: output * 2)
    assert not can(hooked, relu)


def test_layers_without_bias_and_other_activations():
    first, last = nn.Linear(64, 12, bias=False), nn.Linear(12, 10)
    model = nn.Sequential(nn.Flatten(), first, nn.Tanh(), nn.Linear(12, 12), nn.GELU(), last)
    problem = Neural(model, DIGITS, partition.iid(DIGITS.labels, 4), batch=8).to(dtype=torch.float64, device="cpu")
    x = torch.randn(1, 4, problem.dim, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) / 5
    random = Keyed(0, trials=1, nodes=4)
    made, batches = problem.grad(x, 3, random), problem.batches(3, random)[0]
    for node, batch in enumerate(batches):
        twin = deepcopy(model).double()
        nn.utils.vector_to_parameters(x[0, node], twin.parameters())
        loss = cross_entropy(twin(problem._normal(DIGITS.images[batch])), DIGITS.labels[batch])
        loss.backward()
        assert torch.allclose(made[0, node], torch.cat([p.grad.reshape(-1) for p in twin.parameters()]), atol=1e-14)


def test_frozen_parameters_do_not_move():
    torch.manual_seed(1)
    model = models.build("convnet", (1, 8, 8), 10, width=4)
    model[0].requires_grad_(False)
    problem = Neural(model, DIGITS, partition.iid(DIGITS.labels, 4), batch=8)
    assert problem.dim == sum(p.numel() for p in model.parameters() if p.requires_grad)
    last = models_after(problem, 3)
    assert torch.equal(last.problem.model[0].weight, model[0].weight)
    assert not torch.equal(last.state.x[0, 0], vector(model))


def test_dropout_is_drawn_by_key():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 10))
    problem = Neural(model, DIGITS, partition.iid(DIGITS.labels, 4), batch=8)
    torch.manual_seed(3)
    one = models_after(problem, 4).state.x
    drawn = torch.rand(1)
    torch.manual_seed(3)
    assert torch.equal(torch.rand(1), drawn)  # the global generator was left alone
    torch.manual_seed(4)
    assert torch.equal(models_after(problem, 4).state.x, one)
    assert not torch.equal(models_after(problem, 4, seed=1).state.x, one)


# ---- real data, where it is


@pytest.mark.slow
@pytest.mark.skipif(data.find("mnist") is None, reason="MNIST is not on this machine")
def test_the_papers_network_learns_mnist():
    problem = Neural.images(4, data="mnist", batch=16, evaluate=1000)
    history = simulate(
        problem, PushPull(order="pu"), MIXING, lr=0.1, steps=60, every=60, metrics=["loss_mean", "test_accuracy"]
    )
    assert problem.dim == 1_863_690
    assert history["test_accuracy"][0] < 0.2
    assert history["test_accuracy"][-1] > 0.75
    assert history["loss_mean"][-1] < 0.9


@pytest.mark.skipif(data.find("cifar10") is None, reason="CIFAR-10 is not on this machine")
def test_resnet_starts_to_learn_cifar10():
    problem = Neural.images(4, data="cifar10", model="resnet18", width=4, batch=16, augment="authors", evaluate=500)
    history = simulate(problem, PushPull(order="pu"), MIXING, lr=0.1, steps=40, every=40, metrics=["loss_mean"])
    assert history["loss_mean"][-1] < history["loss_mean"][0] - 0.1


# ---- in place


@pytest.mark.parametrize("dim", [5, 8])  # 8: as many as there are nodes
@pytest.mark.parametrize("name", [*(name for name, one in ALGORITHMS.items() if not one.about.samples), "focus_local"])
def test_blocks_give_the_same_numbers(name, dim, monkeypatch):
    """Every algorithm, in place and two coordinates at a time, against the whole vectors at once."""
    algorithm = FOCUS(local_steps=3, participation=0.5) if name == "focus_local" else ALGORITHMS[name]
    problem = Quadratic.random(8, dim, noise_std=0.3, seed=2)
    start = torch.randn(8, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    mixing = network_for(algorithm, topologies.exponential(8))
    options = {"algorithm": algorithm, "mixing": mixing, "lr": 0.01, "trials": 2, "start": start}
    whole = models_after(problem, 7, **options)
    monkeypatch.setattr("perron.simulation._blockwise.LARGE", 0)
    monkeypatch.setattr("perron.simulation._blockwise.NUMBERS", 2 * 8 * 2)
    monkeypatch.setattr("perron.simulation._blockwise.NARROWEST", 1)
    running = Running(Simulation(problem=problem, **options))
    assert running.blockwise is not None
    assert len(running.blockwise.blocks) == (dim + 1) // 2
    blocked = models_after(problem, 7, **options)
    for field in whole.state._fields:
        one, other = getattr(whole.state, field), getattr(blocked.state, field)
        assert torch.allclose(one, other, rtol=1e-12, atol=1e-14), field
    assert whole.traffic == blocked.traffic


@pytest.mark.parametrize(
    "project", [lambda x: x / x.norm(dim=-1, keepdim=True).clamp_min(1), lambda x: x[..., :5] + 0 * x]
)
def test_coordinates_that_depend_on_each_other_stay_together(project, monkeypatch):
    """A projection onto a ball, and one that insists on the length of the model."""
    problem = Quadratic.random(4, 5, seed=2)
    algorithm = ConstrainedPushPull(project=project)
    whole = models_after(problem, 7, algorithm=algorithm)
    monkeypatch.setattr("perron.simulation._blockwise.LARGE", 0)
    monkeypatch.setattr("perron.simulation._blockwise.NUMBERS", 2 * 8 * 2)
    monkeypatch.setattr("perron.simulation._blockwise.NARROWEST", 1)
    blocked = models_after(problem, 7, algorithm=algorithm)
    assert torch.equal(whole.state.x, blocked.state.x)


def test_losses_and_rounding_in_place(monkeypatch):
    problem = Quadratic.random(4, 6, noise_std=0.3, seed=2)
    for options in ({"loss": 0.2}, {"wire": "int8"}):
        with pytest.warns(match="lose") if "loss" in options else pytest.MonkeyPatch.context():
            whole = models_after(problem, 9, **options)
            with monkeypatch.context() as patch:
                patch.setattr("perron.simulation._blockwise.LARGE", 0)
                blocked = models_after(problem, 9, **options)
        assert torch.equal(whole.state.x, blocked.state.x)


def test_residuals_of_large_models_are_measured(monkeypatch):
    problem = Quadratic.random(8, 5, noise_std=0.3, seed=2)
    options = {"mixing": Mixing.random_integer(topologies.exponential(8), seed=1), "lr": 0.02, "steps": 12, "every": 3}
    metrics = ["residual_sq", "residual_block_sq_4"]
    whole = simulate(problem, PushPull(), **options, metrics=metrics)
    monkeypatch.setattr("perron.simulation._blockwise.LARGE", 0)
    blocked = simulate(problem, PushPull(), **options, metrics=metrics)
    for name in metrics:
        assert np.allclose(whole[name], blocked[name], rtol=1e-9, equal_nan=True)


# ---- samples


@pytest.mark.parametrize("batch", [7, 32])
def test_epochs_go_through_every_sample_once(batch):
    problem = small(3, batch=batch, samples=200, partition="iid")
    random = Keyed(5, trials=2, nodes=3)
    sizes = [len(part) for part in problem.parts]
    drawn = torch.cat([problem.batches(draw, random) for draw in range(40)], -1)  # (2, 3, 40 * batch)
    for trial in range(2):
        for node, size in enumerate(sizes):
            for epoch in range(drawn.shape[-1] // size):
                seen = drawn[trial, node, epoch * size : (epoch + 1) * size]
                assert torch.equal(seen.sort().values, problem.parts[node].sort().values)
    first, second = drawn[0, 0, : sizes[0]], drawn[0, 0, sizes[0] : 2 * sizes[0]]
    assert not torch.equal(first, second)  # in another order each time
    for node in range(3):
        alone, random = problem.of_node(node), Keyed(5, trials=2, nodes=[node])
        for draw in (0, 39, 20):  # whoever asks, in whatever order
            there = drawn[:, node : node + 1, draw * batch : (draw + 1) * batch]
            assert torch.equal(alone.batches(draw, random), there)


def test_nodes_with_unequal_numbers_of_samples():
    parts = [torch.arange(3), torch.arange(3, 100), torch.arange(100, 110)]
    problem = Neural(models.build("mlp", (1, 8, 8), 10, hidden=(4,)), DIGITS, parts, batch=5)
    random = Keyed(0, nodes=3)
    drawn = torch.cat([problem.batches(draw, random) for draw in range(60)], -1)
    for node, part in enumerate(parts):
        counts = torch.bincount(drawn[node], minlength=110)[part]
        assert counts.max() - counts.min() <= 1
        assert counts.sum() == 300
    again = Neural(problem.model, DIGITS, parts, batch=5, sampling="replacement")
    drawn = torch.cat([again.batches(draw, random) for draw in range(200)], -1)
    assert set(drawn[0].tolist()) == {0, 1, 2}
    assert torch.bincount(drawn[0]).min() > 270  # 333 expected, of 1000


def test_minibatches_are_normalised_and_augmented():
    problem = small(2, batch=500, samples=1000, augment="standard", partition="iid")
    seen = []
    problem._stacked.grad = lambda _p, inputs, targets, _l, _o: seen.append(inputs) or torch.zeros(len(targets))
    problem.grad(torch.zeros(1, 2, problem.dim), 0, Keyed(0, trials=1, nodes=2))
    plain = problem._normal(problem._inputs(problem.data.images, problem.batches(0, Keyed(0, trials=1, nodes=2))))
    assert plain.shape == (1, 2, 500, 1, 8, 8)
    assert abs(float(plain.mean())) < 1e-3
    assert abs(float(plain.std()) - 1) < 1e-3
    assert seen[0].shape == (2, 500, 1, 8, 8)
    same = (seen[0] == plain[0]).flatten(2).all(-1).float().mean()
    assert same < 0.1  # moved, or mirrored


# ---- what is measured


def test_metrics_against_plain_evaluation():
    """BatchNorm: the averaged model has averaged statistics, is in eval mode, and each node has its own."""
    torch.manual_seed(0)
    problem = Neural.images(4, model="resnet18", width=4, batch=16, samples=400)
    now = models_after(problem, 12, lr=0.05)
    share = np.asarray(Network(MIXING).pull_perron)

    def plain(x, weights):
        model = models.build("resnet18", (1, 8, 8), 10, width=4)
        nn.utils.vector_to_parameters(x, model.parameters())
        weights = torch.as_tensor(weights, dtype=torch.float64)
        stats = {name: value.double() for name, value in now.problem.memory.items()}
        for name, buffer in model.named_buffers():
            if name.endswith("tracked"):
                continue
            mean = torch.tensordot(weights, stats[name], 1)
            if name.endswith("running_var"):
                means = stats[name.replace("running_var", "running_mean")]
                mean = torch.tensordot(weights, stats[name] + means**2, 1) - torch.tensordot(weights, means, 1) ** 2
            buffer.copy_(mean)
        model.eval()
        with torch.no_grad():
            outputs = model(now.problem._normal(DIGITS.test_images))
            return cross_entropy(outputs, DIGITS.test_labels), (outputs.argmax(1) == DIGITS.test_labels).double().mean()

    x = now.state.x[0]
    loss, right = plain(x.mean(0), np.full(4, 0.25))
    assert torch.allclose(metrics.test_loss(now), loss.double(), atol=1e-5)
    assert torch.allclose(metrics.test_accuracy(now), right)
    loss, right = plain(torch.as_tensor(share, dtype=x.dtype) @ x, share)
    assert torch.allclose(metrics.test_loss_weighted(now), loss.double(), atol=1e-5)
    assert torch.allclose(metrics.test_accuracy_weighted(now), right)
    each = [plain(x[i], np.eye(4)[i]) for i in range(4)]
    assert torch.allclose(metrics.test_accuracy_local(now), torch.stack([r for _, r in each]).mean())
    assert torch.allclose(metrics.test_accuracy_worst(now), torch.stack([r for _, r in each]).min())
    assert torch.allclose(metrics.test_loss_worst(now), torch.stack([v.double() for v, _ in each]).max(), atol=1e-5)
    grads = now.grads[0][0].mean(0)
    assert torch.allclose(metrics.grad_norm_batch(now)[0], grads.norm() / np.sqrt(problem.dim))


def test_training_loss_is_a_mean_over_nodes_of_means_over_samples():
    parts = [torch.arange(5), torch.arange(5, 300)]  # so unequal that it matters
    model = models.build("mlp", (1, 8, 8), 10, hidden=(8,))
    problem = Neural(model, DIGITS, parts, batch=4)
    inputs = problem._normal(DIGITS.images)
    with torch.no_grad():
        wanted = sum(cross_entropy(model(inputs[part]), DIGITS.labels[part]) for part in parts) / 2
    assert torch.allclose(problem.loss(vector(model)), wanted.double(), atol=1e-6)
    everything = Neural(model, DIGITS, parts, evaluate=10_000)
    assert torch.allclose(everything.loss(vector(model)), wanted.double(), atol=1e-6)
    some = Neural(model, DIGITS, [torch.arange(700), torch.arange(700, 1400)], evaluate=100)
    exact = Neural(model, DIGITS, [torch.arange(700), torch.arange(700, 1400)])
    near, true = some.loss(vector(model)), exact.loss(vector(model))
    assert near != true
    assert abs(float(near - true)) < 0.1


def test_exact_gradients_are_derivatives_of_the_loss():
    problem = small(2, batch=None, width=6, depth=1, samples=300).to(dtype=torch.float64, device="cpu")
    x = problem.start().double()[:1].clone()
    full = problem.full_grad(x)[0]
    direction = torch.randn(problem.dim, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    up, down = (float(problem.loss(x[0] + sign * 1e-7 * direction)) for sign in (1, -1))
    assert np.isclose(float(full @ direction), (up - down) / 2e-7, rtol=1e-4)
    assert torch.equal(problem.grad(x.expand(1, 2, -1), 0, None), problem.local_grads(x.expand(1, 2, -1)))


def test_batch_loss_is_the_mean_since_it_was_recorded():
    seen = [float(now.problem.batch_losses.mean()) for now in _iterates(small(), 6) if now.step]
    history = simulate(small(), PushPull(), MIXING, lr=0.1, steps=6, every=3, metrics=["batch_loss"])
    assert np.isnan(history["batch_loss"][0])
    assert np.allclose(history["batch_loss"][1:, 0], [np.mean(seen[:3]), np.mean(seen[3:])])
    with pytest.raises(PerronError, match="Quadratic does not tell the losses"):
        simulate(Quadratic.random(4), PushPull(), MIXING, lr=0.1, steps=2, metrics=["batch_loss"])


def _iterates(problem, steps):
    return Simulation(problem=problem, algorithm=PushPull(), mixing=MIXING, lr=0.1).iterates(steps)


# ---- bad input


def test_what_makes_no_sense_is_refused():
    model, parts = models.build("mlp", (1, 8, 8), 10, hidden=(4,)), [torch.arange(5), torch.arange(5, 9)]
    with pytest.raises(PerronError, match="Every node needs a sample; got parts of"):
        Neural(model, DIGITS, [torch.arange(0), torch.arange(3)])
    with pytest.raises(PerronError, match=r"samples 0 \.\. 1500, but there are 1500"):
        Neural(model, DIGITS, [torch.tensor([0, 1500])])
    with pytest.raises(PerronError, match="batch is the number of samples"):
        Neural(model, DIGITS, parts, batch=0)
    with pytest.raises(PerronError, match="sampling is 'epochs' or 'replacement'; got 'random'"):
        Neural(model, DIGITS, parts, sampling="random")
    with pytest.raises(PerronError, match="1500 training inputs but 9 targets"):
        Neural(model, DIGITS._replace(labels=DIGITS.labels[:9]), parts)
    with pytest.raises(PerronError, match="The model has 4 outputs, but labels go up to 9"):
        Neural(models.build("mlp", (1, 8, 8), 4, hidden=(4,)), DIGITS, parts)
    with pytest.raises(PerronError, match=r"Model and loss do not go with inputs \(2, 1, 8, 8\)"):
        Neural(nn.Linear(5, 10), DIGITS, parts)
    with pytest.raises(PerronError, match="must be one number, the mean over the samples"):
        Neural(model, DIGITS, parts, loss=lambda outputs, labels: (outputs[:, 0] - labels) ** 2)
    with pytest.raises(PerronError, match=r"start has the shape \(3,\)"):
        Neural(model, DIGITS, parts, start=torch.zeros(3))
    with pytest.raises(PerronError, match="leave out augment, or set batch"):
        Neural(model, DIGITS, parts, batch=None, augment=PRESETS["standard"])
    with pytest.raises(PerronError, match="no start 'comon'; did you mean 'common'"):
        Neural.images(4, start="comon")
    with pytest.raises(PerronError, match="None of the parameters of Sequential"):
        Neural(nn.Sequential(nn.Flatten()), DIGITS, parts)
    with pytest.raises(PerronError, match="digits has 1,500 training images; got samples=2000"):
        Neural.images(4, samples=2000)
    with pytest.raises(PerronError, match="The device 'gpu' is not available"):
        simulate(small(), PushPull(), MIXING, lr=0.1, steps=1, device="gpu")
    with pytest.raises(PerronError, match="no test set"):
        simulate(Quadratic.random(4), PushPull(), MIXING, lr=0.1, steps=1, metrics=["test_accuracy"])


@pytest.mark.slow
def test_regression_with_numbers_for_targets():
    random = torch.Generator().manual_seed(0)
    inputs = torch.randn(90, 5, generator=random)
    targets = inputs @ torch.arange(5.0)[:, None]
    images = Images(inputs[:60], targets[:60], inputs[60:], targets[60:])
    problem = Neural(nn.Linear(5, 1), images, partition.iid(torch.arange(60), 4), batch=10, loss=nn.functional.mse_loss)
    history = simulate(
        problem, PushPull(), MIXING, lr=0.05, steps=300, metrics=["loss_mean", "test_loss", "test_accuracy"]
    )
    assert history["test_loss"][-1] < 1e-3 * history["test_loss"][0]
    assert np.isnan(history["test_accuracy"]).all()


def test_parts_of_a_model_may_stay_in_eval_mode():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 10))
    model[1].eval()
    last = models_after(Neural(model, DIGITS, partition.iid(DIGITS.labels, 4), batch=8), 3)
    assert torch.equal(last.problem.memory["1.running_mean"], torch.zeros(4, 4))
    model[1].train()
    last = models_after(Neural(model, DIGITS, partition.iid(DIGITS.labels, 4), batch=8), 3)
    assert last.problem.memory["1.running_mean"].abs().min() > 0


class Noisy(nn.Linear):
    """Dropout that is no module of its own, and a buffer that comes later if wanted."""

    late = False

    def forward(self, x):
        if self.late:
            self.register_buffer("seen", x.detach().mean())
        return super().forward(nn.functional.dropout(x.flatten(1), 0.5, training=self.training))


def test_randomness_within_a_model_is_drawn_by_key_and_late_buffers_are_refused():
    problem = Neural(Noisy(64, 10), DIGITS, partition.iid(DIGITS.labels, 4), batch=8)
    torch.manual_seed(1)
    one = models_after(problem, 3).state.x
    torch.manual_seed(2)
    assert torch.equal(models_after(problem, 3).state.x, one)
    problem.model.late = True
    with pytest.raises(PerronError, match="made buffers while it ran: seen"):
        models_after(problem, 1)


class Own(Neural):
    """A subclass stays what it is."""

    def loss(self, x):
        return torch.full(x.shape[:-1], 42.0, dtype=torch.float64)


def test_subclasses_stay_what_they_are():
    problem = Own(models.build("mlp", (1, 8, 8), 10, hidden=(4,)), DIGITS, partition.iid(DIGITS.labels, 4))
    assert metrics.loss_mean(models_after(problem, 1)) == 42.0


def test_starts_are_common_unless_told_otherwise():
    common, own = small().start(), small(start="own").start()
    assert torch.equal(common[0], common[3])
    assert not torch.equal(own[0], own[1])
    assert torch.equal(own[0], common[0])
    torch.manual_seed(7)
    before = torch.rand(1)
    torch.manual_seed(7)
    small(seed=5)
    assert torch.equal(torch.rand(1), before)  # the global generator was left alone


# ---- interrupted and resumed


class Stop(BaseException):
    """Ends a run from outside."""


@pytest.mark.slow
def test_resuming_is_bit_for_bit(tmp_path, monkeypatch):
    """With BatchNorm, augmentation, epochs in the middle, running means of metrics: everything goes on as if nothing happened."""
    measured = ["batch_loss", "loss_mean", "test_accuracy", "messages", "bytes_sent"]
    problem = Neural.images(4, model="resnet18", width=4, batch=16, samples=300, augment="standard")
    options = {"lr": 0.05, "steps": 12, "every": 4, "metrics": measured, "trials": 2, "seed": 3}
    whole = simulate(problem, PushPull(), MIXING, checkpoint=tmp_path / "whole", **options)

    def stop(step, _values):
        if step == 7:
            raise Stop

    monkeypatch.setattr("perron.monitor.progress.INTERVAL", 0.0)
    with pytest.raises(Stop):
        simulate(problem, PushPull(), MIXING, checkpoint=tmp_path / "part", save_every=0, progress=stop, **options)
    resumed = simulate(problem, PushPull(), MIXING, checkpoint=tmp_path / "part", **options)
    for metric in measured:
        assert np.array_equal(whole[metric], resumed[metric], equal_nan=True), metric
    (tensors, facts), (again, same) = saved.read(tmp_path / "whole"), saved.read(tmp_path / "part")
    assert min(facts.pop("seconds"), same.pop("seconds")) > 0  # how long it took is all that may differ
    assert facts == same
    assert saved.digest(tensors.values()) == saved.digest(again.values())  # states, buffers, everything
    assert tensors.keys() == again.keys()
    longer = simulate(problem, PushPull(), MIXING, checkpoint=tmp_path / "part", **options | {"steps": 14})
    assert longer.steps.tolist() == [0, 4, 8, 12, 14]


def test_a_checkpoint_of_another_run_is_refused_and_a_damaged_one_is_not_used(tmp_path):
    path, options = tmp_path / "run", {"lr": 0.1, "steps": 3, "metrics": ["loss_mean"]}
    first = simulate(small(), PushPull(), MIXING, checkpoint=path, **options)
    with pytest.raises(PerronError, match="saved by another run: it differs in problem, seed"):
        simulate(small(batch=4), PushPull(), MIXING, checkpoint=path, seed=1, **options)
    for other in ({"partition": "iid"}, {"seed": 7}, {"augment": "standard"}, {"weight_decay": 0.1}):
        with pytest.raises(PerronError, match="differs in problem"):
            simulate(small(**other), PushPull(), MIXING, checkpoint=path, **options)
    with pytest.raises(PerronError, match="differs in start"):
        simulate(small(), PushPull(), MIXING, checkpoint=path, start=torch.zeros(4, small().dim), **options)
    with pytest.raises(PerronError, match="differs in lr"):
        simulate(small(), PushPull(), MIXING, checkpoint=path, **options | {"lr": schedule.power(0.1)})
    with pytest.raises(PerronError, match="is at step 3 already; ask for more steps than 2"):
        simulate(small(), PushPull(), MIXING, checkpoint=path, **options | {"steps": 2})
    with pytest.raises(PerronError, match="make the directory"):
        simulate(small(), PushPull(), MIXING, checkpoint=tmp_path / "none" / "run", **options)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)
    with pytest.warns(match="is damaged.*The run starts from the beginning"):
        again = simulate(small(), PushPull(), MIXING, checkpoint=path, **options)
    assert np.array_equal(first["loss_mean"], again["loss_mean"])


STUDY = """
conclusion = "training"
topologies = ["exponential"]
nodes = [4]
lr = 0.05
steps = 40
every = 10
trials = 1
save_every = 0.1
metrics = ["loss_mean", "test_accuracy", "batch_loss"]
[problem]
kind = "images"
model = "resnet18"
width = 4
batch = 16
augment = "standard"
"""


@pytest.mark.processes
def test_a_study_that_was_killed_goes_on_where_it_was(tmp_path):
    """kill -9 of the whole process group in the middle of a run; the table is the uninterrupted one, byte for byte."""
    study = tmp_path / "small.toml"
    study.write_text(STUDY)
    command = [sys.executable, "-m", "perron", "study", "run", str(study), "--out"]
    subprocess.run([*command, str(tmp_path / "whole")], check=True, capture_output=True)
    part = tmp_path / "part"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    killed = subprocess.Popen([*command, str(part)], start_new_session=True, **quiet)
    deadline = time.monotonic() + 600
    while not list(part.glob("runs/*.partial")):
        assert time.monotonic() < deadline
        assert killed.poll() is None
        time.sleep(0.02)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    assert not list(part.glob("runs/*.parquet"))
    subprocess.run([*command, str(part)], check=True, capture_output=True)
    one, other = ((tmp_path / name / "results.parquet").read_bytes() for name in ("whole", "part"))
    assert one == other
    assert not list(part.glob("runs/*.partial"))


# ---- the conclusion of a study


@pytest.mark.slow
def test_training_as_a_conclusion(tmp_path):
    """Curves, ends and steps to a loss against the table itself; a run that diverged is named; the partition is drawn."""
    change = {
        "nodes": [1, 4],
        "topologies": ["exponential", "ring"],
        "lr": {"default": 0.1, "ring": 1e4},
        "steps": 60,
        "every": 5,
        "trials": 2,
        "problem.batch": 16,
        "losses": [1.0, 1e-9],
    }
    study = load("digits", change)
    tables = [execute(run)[0] for run in study.runs]
    outcome = Outcome(study, tmp_path, pd.concat(tables, ignore_index=True), 1.0)
    found = conclusions.conclude(outcome)
    by_nodes = ["loss-by-nodes", "accuracy-by-nodes"]
    assert list(found.figures) == ["loss", "accuracy", "batch-gradient", *by_nodes, "partition"]
    table = outcome.table
    mine = table[(table.topology == "exponential") & (table.nodes == 4)]
    last = mine[mine.step == 60]
    row = next(row for row in found.summary["ends"] if (row["topology"], row["nodes"]) == ("exponential", 4))
    assert np.isclose(row["test_accuracy"], last.test_accuracy.mean())
    assert np.isclose(row["loss_mean_error"], last.loss_mean.std() / np.sqrt(2))
    below = mine.groupby("step").loss_mean.mean() <= 1.0
    when = next(
        row for row in found.summary["times"] if (row["topology"], row["nodes"], row["loss"]) == ("exponential", 4, 1.0)
    )
    assert when["steps"] == below[~below].index.max() + 5
    said = " ".join(found.sentences)
    assert "Diverged with this step: Push-Pull (AB, SAB) on ring(1), Push-Pull (AB, SAB) on ring(4)" in said
    best = table[table.step == table.step.max()].groupby(["topology", "nodes"]).test_accuracy.mean().max()
    assert f"{best:.2%} of the test set" in said
    assert "means over 2 runs" in said
    cells = found.tables["After 60 steps"]
    assert "accuracy" in cells.columns
    assert "1e-09" not in found.tables["Steps to a training loss"].columns
    paths = conclusions.write(outcome, found)
    assert all(path.stat().st_size > 100 for path in paths)
    assert "nan" not in (tmp_path / "report.md").read_text()


@pytest.mark.slow
def test_progress_tells_step_loss_and_accuracy(tmp_path):
    """On a terminal's side: the news of a run under way."""
    study = load("digits", {"nodes": 4, "topologies": "exponential", "lr": 0.05, "steps": 400, "every": 5, "trials": 1})
    heard = []
    run_study(study, tmp_path / "out", news=heard.append)
    assert any("push_pull on exponential(4)" in line and "of 400, loss" in line for line in heard), heard
    assert all("test accuracy" in line and line.endswith("%") for line in heard)

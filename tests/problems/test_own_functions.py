"""`LocalLoss`: gradients recorded from torch, and gradients given as functions of arrays."""

import numpy as np
import pytest
import torch
from torch.func import grad, vmap
from torch.nn.functional import cross_entropy, huber_loss, softplus

import perron
from perron.errors import PerronError
from perron.problems import LocalLoss, _traced
from perron.problems._traced import Traced
from perron.random import Keyed
from perron.simulation.simulator import Simulation

NODES, SAMPLES, DIM, TRIALS = 4, 12, 3, 5
RANDOM = torch.Generator().manual_seed(0)
FEATURES = torch.randn(NODES, SAMPLES, DIM, generator=RANDOM, dtype=torch.float64)
TARGETS = torch.randn(NODES, SAMPLES, generator=RANDOM, dtype=torch.float64).sign()
CLASSES = torch.randint(3, (NODES, SAMPLES), generator=RANDOM)
POINTS = torch.randn(TRIALS, NODES, DIM, generator=RANDOM, dtype=torch.float64)
SHIFT = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)


def logistic(x, h, y):
    return softplus(-y * (h @ x)).mean() + 0.05 * (x @ x)


def own_loss(x, h, y):
    return np.mean(np.log1p(np.exp(-y * (h @ x)))) + 0.05 * (x @ x)


def own_gradient(x, h, y):
    return ((-y / (1 + np.exp(y * (h @ x)))) @ h) / len(y) + 0.1 * x


def in_place(x, h, y):
    z = h @ x
    z.sub_(y)
    return z.square().mean()


def with_branches(x, h, y):
    z = h @ x
    return torch.where(z > 0, z.square(), -z).mean() + (x - SHIFT).abs().sum() + torch.cumsum(x, 0)[1:].prod() + y.sum()


def softmax(x, h, labels):
    return cross_entropy(torch.stack([h * x, h - x, h * h @ x.diag()], -1).sum(1), labels)


def huber(x, h, y):
    return huber_loss(h @ x, y) + torch.linalg.vector_norm(x, 4)


LOSSES = {
    "logistic": (logistic, TARGETS), "in place": (in_place, TARGETS), "with branches": (with_branches, TARGETS),
    "softmax": (softmax, CLASSES), "huber": (huber, TARGETS),
}  # fmt: skip


def one_by_one(loss, x, *data):
    """The gradients by autograd, a node and a trial at a time."""
    found = torch.empty_like(x)
    for trial in range(len(x)):
        for node in range(x.shape[1]):
            at = x[trial, node].clone().requires_grad_()
            (found[trial, node],) = torch.autograd.grad(loss(at, *(part[node] for part in data)), at)
    return found


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_are_those_of_autograd_node_by_node(name):
    loss, targets = LOSSES[name]
    problem = LocalLoss(loss, [FEATURES, targets], dim=DIM)
    for x in (POINTS, POINTS / 3, POINTS.transpose(0, 1).contiguous().transpose(0, 1)):
        torch.testing.assert_close(problem.local_grads(x), one_by_one(loss, x, FEATURES, targets))
    torch.testing.assert_close(problem.local_grads(POINTS[0]), problem.local_grads(POINTS)[0])
    each = torch.stack(
        [torch.stack([loss(x, h, y) for h, y in zip(FEATURES, targets, strict=True)]) for x in POINTS[0]]
    )
    torch.testing.assert_close(problem.loss(POINTS[0]), each.mean(1))


def test_parts_of_many_trials_are_all_trials(monkeypatch):
    problem = LocalLoss(logistic, [FEATURES, TARGETS], dim=DIM)
    whole, losses = problem.local_grads(POINTS), problem.loss(POINTS[:, 0])
    monkeypatch.setattr("perron.problems._one_node.NUMBERS", 2 * FEATURES.numel())  # two trials at a time
    torch.testing.assert_close(problem.local_grads(POINTS), whole)
    torch.testing.assert_close(problem.loss(POINTS[:, 0]), losses)


def test_single_precision_and_one_node_are_recorded_for_themselves():
    problem = LocalLoss(logistic, [FEATURES, TARGETS], dim=DIM)
    expected = problem.local_grads(POINTS)
    single = problem.to(dtype=torch.float32, device="cpu")
    found = single.local_grads(POINTS.float())
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)
    for node in range(NODES):
        torch.testing.assert_close(problem.of_node(node).local_grads(POINTS[:, [node]]), expected[:, [node]])


def test_a_recorded_function_runs_without_calling_it_again():
    calls = []

    def loss(x, h, y):
        calls.append(1)
        return logistic(x, h, y)

    problem = LocalLoss(loss, [FEATURES, TARGETS], dim=DIM)
    first = problem.local_grads(POINTS)
    count = len(calls)
    for _ in range(10):
        torch.testing.assert_close(problem.local_grads(POINTS), first, rtol=0, atol=0)
    assert len(calls) == count > 0


def test_what_cannot_be_recorded_is_called_as_it_is(monkeypatch):
    function = vmap(grad(logistic))
    expected = function(POINTS[0], FEATURES, TARGETS)

    def refuses(*_):
        raise RuntimeError("no")

    monkeypatch.setattr(_traced, "make_fx", refuses)
    torch.testing.assert_close(Traced(function)(POINTS[0], FEATURES, TARGETS), expected, rtol=0, atol=0)


def test_a_record_that_returns_something_else_is_not_used():
    """Functions that change between calls are not for recording; those that are seen to change are called each time."""
    calls = []

    def counting(x, shift):
        calls.append(1)
        return x * shift + len(calls)

    traced = Traced(counting)
    traced(POINTS[0], SHIFT)
    before = len(calls)
    torch.testing.assert_close(traced(POINTS[0], SHIFT), POINTS[0] * SHIFT + before + 1)


def test_records_are_not_differentiated():
    traced = Traced(lambda x, shift: (x * shift).square())
    traced(POINTS[0], SHIFT)
    found = vmap(grad(lambda x: traced(x, SHIFT).sum()))(POINTS[0])
    torch.testing.assert_close(found, 2 * POINTS[0] * SHIFT.square())
    x = POINTS[0].clone().requires_grad_()
    traced(x, SHIFT).sum().backward()
    torch.testing.assert_close(x.grad, 2 * POINTS[0] * SHIFT.square())


def functions(kind):
    """Loss and gradient in NumPy or numba."""
    if kind == "numpy":
        return own_loss, own_gradient
    numba = pytest.importorskip("numba")
    return numba.njit(own_loss), numba.njit(own_gradient)


@pytest.mark.parametrize("kind", ["numpy", "numba"])
@pytest.mark.parametrize("batch", [None, 2])
def test_own_gradients_are_those_of_torch(kind, batch):
    loss, gradient = functions(kind)
    own = LocalLoss(loss, [FEATURES, TARGETS], dim=DIM, batch=batch, gradient=gradient)
    by_torch = LocalLoss(logistic, [FEATURES, TARGETS], dim=DIM, batch=batch)
    torch.testing.assert_close(own.local_grads(POINTS), by_torch.local_grads(POINTS))
    torch.testing.assert_close(own.loss(POINTS[0]), by_torch.loss(POINTS[0]))
    random = Keyed(0, trials=TRIALS, nodes=NODES)
    torch.testing.assert_close(own.grad(POINTS, 3, random), by_torch.grad(POINTS, 3, random))
    torch.testing.assert_close(own.hessian(POINTS[0, 0]), by_torch.hessian(POINTS[0, 0]), rtol=1e-4, atol=1e-6)
    if batch:
        samples = random.integers(0, 2, SAMPLES)
        torch.testing.assert_close(own.sample_grads(POINTS, samples), by_torch.sample_grads(POINTS, samples))
    single = own.to(dtype=torch.float32, device="cpu").of_node(1)
    found = single.local_grads(POINTS[:, [1]].float())
    torch.testing.assert_close(found, by_torch.local_grads(POINTS)[:, [1]].float(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["numpy", "numba"])
def test_a_run_with_own_gradients_is_that_of_torch(kind):
    loss, gradient = functions(kind)
    mixing = perron.Mixing.random_integer(perron.topologies.exponential(NODES), seed=0)
    settings = {"algorithm": perron.PushPull(), "mixing": mixing, "lr": 0.1, "trials": 3}
    ends = []
    for problem in (
        LocalLoss(loss, [FEATURES, TARGETS], dim=DIM, batch=2, gradient=gradient),
        LocalLoss(logistic, [FEATURES, TARGETS], dim=DIM, batch=2),
    ):
        *_, last = Simulation(problem=problem, **settings).iterates(20)
        ends.append(last.state.x)
    torch.testing.assert_close(*ends)


def test_gradients_of_the_wrong_shape_are_refused():
    with pytest.raises(PerronError, match=r"The gradient of a node has the shape \(3,\) of a model; got \(12,\)"):
        LocalLoss(own_loss, [FEATURES, TARGETS], dim=DIM, gradient=lambda x, h, y: h @ x - y)
    with pytest.raises(
        PerronError, match=r"The gradient cannot be computed at a model \(3,\) with the data \(12, 3\), \(12,\)"
    ):
        LocalLoss(own_loss, [FEATURES, TARGETS], dim=DIM, gradient=lambda x, h, y: h.T @ x - y)
    with pytest.raises(PerronError, match=r"The loss of a node is one number, a number; got \(12,\)"):
        LocalLoss(lambda x, h, y: h @ x - y, [FEATURES, TARGETS], dim=DIM, gradient=own_gradient)

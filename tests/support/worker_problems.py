"""Subclasses of the problems of the package, and one process of the tests of them. Started by test_subclasses.py."""

import torch
from processes import run_group

import perron
from perron import distributed
from perron.problems import LinearModel, LocalLoss, Logistic, Neural, Problem, Quadratic

SHIFT = 100.0


class Shifted:
    """Adds a multiple of a node's row of ``shift`` to its stochastic gradients, and knows its optimum."""

    per_node = ("shift",)

    def shifted(self):
        self.shift = SHIFT * (1 + torch.arange(self.nodes, dtype=torch.float64))[:, None]
        self.optimum = torch.full((self.dim,), 7.0, dtype=torch.float64)
        return self

    def grad(self, x, draw, random):
        grad = super().grad(x, draw, random) + self.shift
        assert grad.dtype == x.dtype, f"{type(self).__name__} computes in {grad.dtype}, not {x.dtype}"
        return grad

    def grad_into(self, x, draw, random, out):
        return Problem.grad_into(self, x, draw, random, out)


class ShiftedQuadratic(Shifted, Quadratic):
    pass


class ShiftedLocalLoss(Shifted, LocalLoss):
    pass


class ShiftedLogistic(Shifted, Logistic):
    pass


class ShiftedLinearModel(Shifted, LinearModel):
    pass


class ShiftedNeural(Shifted, Neural):
    def grad(self, x, draw, random):
        return Neural.grad_into(self, x, draw, random, torch.empty_like(x)) + self.shift.to(x.dtype)


class OwnProblem(Shifted, Problem):
    """f_i(x) = |x - b_i|^2 / 2, with nothing but what the interface asks for."""

    per_node = ("centers",)

    def __init__(self, centers):
        self.nodes, self.dim, self.centers = *centers.shape, centers

    def local_grads(self, x):
        return x - self.centers

    def loss(self, x):
        return (x.unsqueeze(-2) - self.centers).square().sum(-1).mean(-1) / 2


def squares(x, features, targets):
    return (features @ x - targets).square().mean() / 2


def make_problems(n):
    random = torch.Generator().manual_seed(0)
    features = torch.randn(n, 6, 3, generator=random, dtype=torch.float64)
    targets = features.sum(-1)
    flat, labels = features.reshape(-1, 3), torch.where(targets.reshape(-1) > 0, 1.0, -1.0)
    unequal = torch.arange(6 * n).tensor_split([6 * node + 2 for node in range(1, n)])  # 8, 6, ..., 6, 4 samples
    classes = torch.arange(6 * n) % 3
    made = [
        ShiftedQuadratic.random(n, dim=3, noise_std=0.1),
        ShiftedLocalLoss(squares, [features, targets], dim=3, batch=2),
        ShiftedLogistic(flat, labels, nodes=n, batch=2),
        ShiftedLogistic(flat, labels, nodes=n, batch=2, compiled=False),
        ShiftedLinearModel(flat, labels, unequal, batch=3, l2=0.1),
        ShiftedLinearModel(flat, classes, unequal, loss="softmax", batch=2),
        ShiftedNeural.images(n, data="digits", samples=64, width=4, depth=1, batch=4),
        OwnProblem(targets),
    ]
    return [problem.shifted() for problem in made]


def check_iterates_are_those_of_the_simulator():
    rank, n = torch.distributed.get_rank(), torch.distributed.get_world_size()
    mixing = perron.Mixing.random_integer(perron.topologies.exponential(n), seed=0)
    for problem in make_problems(n):
        for dtype, error in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
            simulation = perron.Simulation(
                problem=problem, algorithm=perron.PushPull(), mixing=mixing, lr=0.01, dtype=dtype
            )
            *_, snapshot = simulation.iterates(5)
            *_, state = distributed.iterates(problem, perron.PushPull(), mixing, steps=5, lr=0.01, dtype=dtype)
            assert state.x.abs().max() > 1, "the shift was lost"
            torch.testing.assert_close(state.x, snapshot.state.x[0, rank], rtol=error, atol=error)


def check_proximal_iterates_are_those_of_the_simulator():
    rank, n = torch.distributed.get_rank(), torch.distributed.get_world_size()
    mixing = perron.Mixing.random_integer(perron.topologies.exponential(n), seed=0)
    problem = LinearModel.from_data(
        n, kind="lasso", data="synthetic", samples=50, dim=6, l1=0.2, batch=5, partition="sorted"
    )
    algorithm = perron.PushPull(order="atc", move=perron.algorithms.Proximal())
    simulation = perron.Simulation(problem=problem, algorithm=algorithm, mixing=mixing, lr=0.1)
    *_, snapshot = simulation.iterates(20)
    *_, state = distributed.iterates(problem, algorithm, mixing, steps=20, lr=0.1)
    torch.testing.assert_close(state.x, snapshot.state.x[0, rank], rtol=1e-12, atol=1e-14)
    assert 0 < int((snapshot.average.abs() > 1e-3).sum()) < 6, "l1 made no coordinate small, or all of them"


if __name__ == "__main__":
    run_group(globals())

"""Mistakes as researchers make them: each is accepted where its meaning is clear, or refused with what to do."""

import networkx as nx
import numpy as np
import pytest
import torch

import perron
from perron.errors import PerronError
from perron.networks import build_network
from perron.problems import LocalLoss, Logistic, Quadratic

N = 4
QUADRATIC = Quadratic.random(N, 3, noise_std=0.1)
RING = perron.topologies.ring(N)
MIXING = perron.Mixing.uniform(RING)
HESSIANS, CENTERS = QUADRATIC.hessians, QUADRATIC.centers
RANDOM = torch.Generator().manual_seed(0)
FEATURES, TARGETS = torch.randn(N, 10, 3, generator=RANDOM), torch.randn(N, 10, generator=RANDOM)
ROWS, SIGNS = FEATURES.reshape(-1, 3), TARGETS.reshape(-1).sign()


def squares(x, features, targets):
    return (features @ x - targets).square().mean()


def run(problem=QUADRATIC, algorithm=None, mixing=MIXING, **options):
    algorithm = perron.PushPull() if algorithm is None else algorithm
    return perron.simulate(problem, algorithm, mixing, **({"lr": 0.05, "steps": 5} | options))


def with_nan(values):
    values = values.clone()
    values.view(-1)[1] = torch.nan
    return values


class Odd(Quadratic):
    """Its gradient is not finite at node 2, for no reason in the data."""

    def local_grads(self, x):
        return super().local_grads(x) / torch.tensor([1.0, 1, 0, 1], dtype=x.dtype)[:, None]


SAME = {  # accepted, with the result of the plain call
    "name of an algorithm": lambda: run(algorithm="push_pull"),
    "graph as mixing": lambda: run(mixing=RING),
    "networkx graph as mixing": lambda: run(mixing=nx.cycle_graph(N, create_using=nx.DiGraph)),
    "name of a topology as mixing": lambda: run(mixing="ring"),
    "steps = 5.0": lambda: run(steps=5.0),
    "lr of numpy": lambda: run(lr=np.float64(0.05)),
    "lr for each node, of numpy": lambda: run(lr=np.full((N, 1), 0.05)),
    "one metric": lambda: run(metrics="grad_norm_sq"),
    "name of a precision": lambda: run(dtype="float64"),
    "start of numpy": lambda: run(start=np.zeros((N, 3))),
    "trials as a range": lambda: run(trials=range(1)),
    "hessians of numpy": lambda: run(Quadratic(HESSIANS.numpy(), CENTERS.numpy(), noise_std=0.1)),
    "hessians as lists": lambda: run(Quadratic(HESSIANS.tolist(), CENTERS.tolist(), noise_std=0.1)),
}


@pytest.mark.parametrize("name", SAME)
def test_what_is_clear_is_accepted(name):
    np.testing.assert_allclose(SAME[name]()["grad_norm_sq"], run()["grad_norm_sq"], rtol=1e-6)


def test_arrays_and_lists_are_data():
    for make, pair in (
        (lambda a, b: LocalLoss(squares, [a, b], dim=3), (FEATURES, TARGETS)),
        (lambda a, b: Logistic(a, b, nodes=N), (ROWS, SIGNS)),
        (Quadratic, (HESSIANS, CENTERS)),
    ):
        x = torch.ones(N, 3, dtype=torch.float64)
        expected = make(*pair).local_grads(x)
        for convert in (torch.Tensor.numpy, torch.Tensor.tolist):
            torch.testing.assert_close(make(*map(convert, pair)).local_grads(x), expected, rtol=1e-5, atol=1e-6)
    whole = Quadratic(torch.ones(2, 3, dtype=torch.int64), [[1, 2, 3], [3, 2, 1]])
    assert whole.optimum.tolist() == [2, 2, 2]


REFUSED = {
    "lr as text": (lambda: run(lr="0.1"), "lr is a number that is not negative.*got '0.1'"),
    "negative lr": (lambda: run(lr=-0.1), r"lr is a number that is not negative.*got -0\.1"),
    "lr that is not a number": (lambda: run(lr=float("nan")), "got nan"),
    "infinite lr": (lambda: run(lr=float("inf")), "got inf"),
    "negative lr of one node": (lambda: run(lr=torch.tensor([[1.0], [1], [-1], [1]])), "lr is a number"),
    "lr = True": (lambda: run(lr=True), "lr is a number"),
    "negative steps": (lambda: run(steps=-1), "steps >= 0; got -1"),
    "half a step": (lambda: run(steps=0.5), "steps is a whole number; got 0.5"),
    "steps as text": (lambda: run(steps="10"), "steps is a whole number; got '10'"),
    "class of an algorithm": (lambda: run(algorithm=perron.PushPull), "got the class PushPull: make an instance"),
    "algorithm with a typo": (lambda: run(algorithm="push_pul"), "did you mean 'push_pull'"),
    "class of a problem": (lambda: run(Quadratic), "got the class Quadratic: make an instance"),
    "problem and algorithm swapped": (lambda: run(perron.PushPull(), QUADRATIC), "problem is an instance of perron.Problem"),
    "matrix as mixing": (lambda: run(mixing=MIXING.pull), r"use Mixing\(pull=A, push=B\)"),
    "sparse matrix as mixing": (lambda: run(mixing=RING.adjacency()), "Mixing.from_weights"),
    "topology with a typo": (lambda: run(mixing="rign"), "did you mean 'ring'"),
    "other numbers of nodes": (lambda: run(mixing="ring", problem=Quadratic.random(5), start=np.zeros((4, 5))), "start"),
    "network of other size": (lambda: run(mixing=perron.topologies.ring(5)), "4 nodes but the network 5"),
    "no trial": (lambda: run(trials=0), "at least one trial"),
    "one trial and a half": (lambda: run(trials=1.5), "trials is a whole number; got 1.5"),
    "seed": (lambda: run(seed=0.5), "seed is a whole number; got 0.5"),
    "metric with a typo": (lambda: run(metrics="grad_norm"), "did you mean 'grad_norm_sq'"),
    "precision with a typo": (lambda: run(dtype="float31"), "did you mean 'float3"),
    "whole precision": (lambda: run(dtype=torch.int64), "dtype is a floating precision"),
    "start of another shape": (lambda: run(start=torch.zeros(3, 4)), r"it must fit .* = \(1, 4, 3\)"),
    "start that is not finite": (lambda: run(start=torch.full((N, 3), torch.nan)), "start holds numbers that are not finite"),
    "start as text": (lambda: run(start="zero"), "start is an array"),
    "no records": (lambda: run(every=0), "every is a whole number of steps"),
    "all messages lost": (lambda: run(loss=1.0), r"loss is a probability in \[0, 1\)"),
    "unknown option": (lambda: run(trial=3), "no option of simulate 'trial'; did you mean 'trials'"),
    "no exchange": (lambda: run(rounds=0), "at least one exchange"),
    "NaN in hessians": (lambda: Quadratic(with_nan(HESSIANS), CENTERS), r"hessians holds nan at \[0, 0, 1\]"),
    "asymmetric hessians": (lambda: Quadratic(HESSIANS.triu(), CENTERS), r"\(H \+ H.T\) / 2"),
    "centers of one node": (lambda: Quadratic(HESSIANS, CENTERS[0]), r"centers \(n, d\)"),
    "words as hessians": (lambda: Quadratic("a", CENTERS), "hessians is an array of numbers"),
    "NaN in data": (lambda: LocalLoss(squares, [FEATURES, with_nan(TARGETS)], dim=3), r"data\[1\] .* holds nan at \[0, 1\]"),
    "batch larger than the share": (lambda: LocalLoss(squares, [FEATURES, TARGETS], dim=3, batch=11), "10 samples; got batch=11"),
    "wrong dim": (lambda: LocalLoss(squares, [FEATURES, TARGETS], dim=4), r"at a model \(4,\) with the data \(10, 3\)"),
    "a loss for each sample": (lambda: LocalLoss(lambda x, a, b: a @ x - b, [FEATURES, TARGETS], dim=3), r"one number.*\(10,\)"),
    "different numbers of nodes": (lambda: LocalLoss(squares, [FEATURES, TARGETS[:2]], dim=3), "the same number of nodes"),
    "labels 0 and 1": (lambda: Logistic(ROWS, SIGNS.clamp(0, 1), nodes=N), r"pass 2 \* labels - 1"),
    "samples that cannot be dealt": (lambda: Logistic(ROWS[:-1], SIGNS[:-1], nodes=N), "leave out 3 of them"),
    "batch larger than a share": (lambda: Logistic(ROWS, SIGNS, nodes=N, batch=11), "1 to 10 samples.*got batch=11"),
    "NaN in features": (lambda: Logistic(with_nan(ROWS), SIGNS, nodes=N), "features holds nan"),
    "gradients that are not finite": (lambda: run(Odd(HESSIANS, CENTERS)), r"nodes \{2\} at their initial models are not finite"),
    "edges of floats": (lambda: perron.Graph(3, [(0.0, 1.0)]), "pairs of whole numbers"),
    "edges from 1 on": (lambda: perron.Graph(3, [(1, 2), (2, 3), (3, 1)]), r"\(2, 3\) leaves the nodes 0 .. 2"),
    "rows that do not sum to one": (lambda: perron.Mixing(pull=[[0.5, 0.4], [0.5, 0.5]]), "row 0 sums to 0.9"),
    "weight rule with a typo": (lambda: build_network("ring", 4, weights="unifrom"), "did you mean 'uniform'"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_others_are_refused_with_what_to_do(name):
    wrong, message = REFUSED[name]
    with pytest.raises(PerronError, match=message) as caught:
        wrong()
    assert len(str(caught.value)) < 1000

"""Subclasses of problems keep what they override, in every precision, alone and in processes."""

import pytest
import torch
from processes import checks_of, run_checks
from worker_problems import SHIFT, OwnProblem, make_problems

import perron
from perron.errors import PerronError
from perron.problems import Problem
from perron.random import Keyed

NAMES = [f"{type(problem).__name__}-{number}" for number, problem in enumerate(make_problems(2))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("number", range(len(NAMES)), ids=NAMES)
def test_overrides_and_attributes_are_kept(number, dtype):
    problem = make_problems(4)[number]
    moved = problem.to(dtype=dtype, device="cpu")
    assert type(moved) is type(problem)
    torch.testing.assert_close(moved.optimum, problem.optimum)
    x, random = torch.zeros(1, 4, problem.dim, dtype=dtype), Keyed(0, trials=1, nodes=4)
    grads = moved.grad(x, 3, random)
    shift = SHIFT * torch.arange(1, 5)
    assert ((grads[0].double().mean(1) - shift).abs() < 20).all()
    for node in range(4):
        for part in (moved.of_node(node), problem.of_node(node).to(dtype=dtype, device="cpu")):
            assert type(part) is type(problem)
            assert part.nodes == 1
            torch.testing.assert_close(part.optimum, problem.optimum)
            mine = part.grad(x[:, :1], 3, Keyed(0, trials=1, nodes=[node]))
            torch.testing.assert_close(mine[:, 0], grads[:, node])
    assert (problem.nodes, problem.shift.dtype) == (4, torch.float64), "the original changed"


def test_every_public_problem_has_such_a_subclass():
    bases = {base for problem in make_problems(2) for base in type(problem).__mro__}
    public = [getattr(perron.problems, name) for name in dir(perron.problems)]
    assert {kind for kind in public if isinstance(kind, type) and issubclass(kind, Problem)} <= bases


def test_rows_that_may_belong_to_nodes_are_not_guessed():
    class Weighted(OwnProblem):
        pass

    problem = Weighted(torch.zeros(3, 2, dtype=torch.float64))
    problem.weights = torch.ones(3)
    with pytest.raises(PerronError, match=r"Weighted\.weights has 3 rows.*per_node.*shared"):
        problem.of_node(1)
    Weighted.per_node = ("weights",)
    assert problem.of_node(1).weights.shape == (1,)
    assert problem.of_node(1).centers.shape == (1, 2)
    Weighted.per_node, Weighted.shared = (), ("weights",)
    assert problem.of_node(1).weights.shape == (3,)


def test_modules_and_nested_tensors_are_moved():
    problem = OwnProblem(torch.zeros(3, 2, dtype=torch.float64))
    problem.parts = {"a": [torch.ones(1, dtype=torch.float64)], "indices": torch.arange(5)}
    problem.model = torch.nn.Linear(2, 2)
    moved = problem.to(dtype=torch.float32, device="cpu")
    assert moved.parts["a"][0].dtype == torch.float32
    assert moved.parts["indices"] is problem.parts["indices"]
    assert moved.model is problem.model, "it has this precision already"
    assert problem.to(dtype=torch.float64, device="cpu").model.weight.dtype == torch.float64
    assert problem.model.weight.dtype == torch.float32, "the original changed"
    assert moved.to(dtype=torch.float32, device="cpu") is moved


@pytest.mark.processes
def test_in_processes(tmp_path):
    found = run_checks("worker_problems.py", 3, tmp_path, checks_of("worker_problems.py"))
    assert list(found.values()) == ["", ""], found

"""Machines as nodes, with several workers each: DistributedDataParallel within a machine, a decentralized algorithm between."""

import numpy as np
import pytest
import torch
from processes import launched
from worker_two_levels import CASES, DIM, MACHINES, MIXING, SEED, STEPS, WORK, WORKERS

from perron import ALGORITHMS, Problem, Simulation
from perron.random import NOISE, Keyed


class Machines(Problem):
    """A machine's gradient is the mean of its workers'."""

    nodes, dim = MACHINES, DIM

    def local_grads(self, x):
        return WORK.local_grads(x.repeat_interleave(WORKERS, -2)).unflatten(-2, (MACHINES, WORKERS)).mean(-2)

    def grad(self, x, draw, random):  # noqa: ARG002 - it is the workers that draw
        workers = Keyed(SEED, trials=1, nodes=MACHINES * WORKERS, stream=NOISE)  # each draws its own noise
        return WORK.grad(x.repeat_interleave(WORKERS, -2), draw, workers).unflatten(-2, (MACHINES, WORKERS)).mean(-2)

    def loss(self, x):
        return WORK.loss(x)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The models of every worker after each step, and the average in the end: ``(workers, steps + 2, d)`` for each case."""
    folder = tmp_path_factory.mktemp("two_levels")
    for _, error, code in launched("worker_two_levels.py", MACHINES * WORKERS, folder):
        assert code == 0, error
        assert "gradients were changed" not in error, "DDP changes them after backward, which is no clipping"
    files = [np.load(folder / f"{rank}.npz") for rank in range(MACHINES * WORKERS)]
    return {name: np.stack([file[name] for file in files]) for name in CASES}


@pytest.mark.xdist_group("two_levels")
@pytest.mark.parametrize("name", CASES)
def test_workers_of_a_machine_stay_equal_and_machines_are_the_simulators_nodes(trained, name):
    machines = trained[name].reshape(MACHINES, WORKERS, STEPS + 2, DIM)
    assert (machines == machines[:, :1]).all()  # to the last bit
    assert (machines[0, 0, STEPS] != machines[1, 0, STEPS]).any() or name.startswith("focus")  # each has its own
    simulation = Simulation(problem=Machines(), algorithm=ALGORITHMS[name], mixing=MIXING, lr=CASES[name], seed=SEED)
    theirs = torch.stack([now.state.x[0] for now in simulation.iterates(STEPS)], 1).numpy()
    np.testing.assert_allclose(machines[:, 0, :-1], theirs, rtol=0, atol=1e-12)
    np.testing.assert_allclose(machines[:, 0, -1], np.stack([theirs[:, -1].mean(0)] * MACHINES), rtol=0, atol=1e-12)

"""The same training in the simulator and in processes: the same models and the same accuracies, evaluation by evaluation."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import worker_same_curve
from processes import launched

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the processes have put what they saw."""
    place = tmp_path_factory.mktemp("same_curve")
    for _, error, code in launched("worker_same_curve.py", worker_same_curve.NODES, place):
        assert code == 0, error
    return place


@pytest.mark.xdist_group("same_curve")
@pytest.mark.parametrize("case", worker_same_curve.CASES)
def test_a_network_trained_in_processes_is_the_simulated_one(case, folder):
    models, averages, accuracies = worker_same_curve.simulated(case)
    number = list(worker_same_curve.CASES).index(case)
    for rank in range(worker_same_curve.NODES):
        found = np.load(folder / f"{number}-{rank}.npz")
        np.testing.assert_allclose(found["arr_0"], models[:, rank], rtol=0, atol=1e-9)
        np.testing.assert_allclose(found["arr_1"], averages, rtol=0, atol=1e-9)
        np.testing.assert_array_equal(found["arr_2"], accuracies)
    assert accuracies[-1] > 0.8  # it has learnt something
    assert len(np.unique(accuracies)) > 1


@pytest.mark.xdist_group("same_curve")
def test_a_gpt_trained_by_adamw_in_processes_has_the_simulated_losses(folder):
    losses = worker_same_curve.gpt_simulated(folder / "play")
    for rank in range(worker_same_curve.NODES):
        np.testing.assert_allclose(np.load(folder / f"gpt-{rank}.npy"), losses, rtol=0, atol=1e-9)
    assert losses[-1] < losses[0] - 0.5  # it has learnt something


def test_the_example_prints_the_same_figures_simulated():
    environment = os.environ | {"PERRON_DATA": "", "OMP_NUM_THREADS": "1"}
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"]
    said = []
    for command in ([*torchrun, EXAMPLES / "train_mnist.py"], [EXAMPLES / "simulate_mnist.py", "--nodes", "3"]):
        arguments = [sys.executable, *map(str, command), "--steps", "60"]
        done = subprocess.run(arguments, capture_output=True, text=True, check=False, env=environment)
        assert done.returncode == 0, done.stderr
        said.append(done.stdout.splitlines())
    assert len(said[0]) == 10
    assert said[0] == said[1]

"""The self-test: a simulation compared with a closed form, and a training with two processes compared with the simulator."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from perron.doctor.check import Check, Verdict

if TYPE_CHECKING:
    from perron.networks.mixing import Mixing
    from perron.problems.quadratic import Quadratic

LR = 0.1  # of both tests
STEPS = 40  # of the training
SIMULATED = 1500  # steps of the simulation
TOLERANCE = 1e-12  # of iterates of size one
TIMEOUT = 120.0  # seconds for the training, which takes a few
REPORT = "Please report this, with the output of perron doctor --json."


def check_simulation() -> Iterator[Check]:
    """Push-Pull on a digraph of five nodes with unequal weights, without noise: the optimum is known."""
    import torch

    from perron.algorithms import PushPull
    from perron.networks import topologies
    from perron.networks.mixing import Mixing
    from perron.problems.quadratic import Quadratic
    from perron.simulation.simulator import Simulation

    began = time.monotonic()
    problem = Quadratic.random(5, 3, strong_convexity=0.5, seed=0)
    mixing = Mixing.random_integer(topologies.random_digraph(5, seed=1), seed=1)
    simulation = Simulation(problem=problem, algorithm=PushPull(), mixing=mixing, lr=LR, compiled=False)
    *_, last = simulation.iterates(SIMULATED)
    hessian, offset = problem.hessians.mean(0), (problem.hessians @ problem.centers[..., None]).mean(0)
    optimum = torch.linalg.solve(hessian, offset)[:, 0]
    error = float((last.state.x - optimum).abs().max())
    found = f"Push-Pull, 5 nodes: {error:.1e} from the optimum, {time.monotonic() - began:.1f} s"
    yield _judge("test: simulation", found, error)


def check_training() -> Iterator[Check]:
    """Push-Pull in two processes, by `perron launch`: each step's models are those of the simulator."""
    import numpy as np

    from perron.algorithms import PushPull
    from perron.simulation.simulator import Simulation

    name, began = "test: two processes", time.monotonic()
    script = Path(__file__).with_name("trainee.py")
    with tempfile.TemporaryDirectory(prefix="perron-") as folder:
        command = [sys.executable, "-P", "-m", "perron", "launch", "--nodes", "2", str(script), folder]
        try:
            done = subprocess.run(  # noqa: S603 - our own program
                command, capture_output=True, text=True, timeout=TIMEOUT, check=False, stdin=subprocess.DEVNULL
            )
        except subprocess.TimeoutExpired:
            remedy = "Try again when the machine is less busy; allow connections within it (firewall, sandbox)."
            yield Check(name, f"not done within {TIMEOUT:.0f} s", Verdict.PROBLEM, remedy)
            return
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            yield Check(name, f"exit code {done.returncode}: {last[:300]}", Verdict.PROBLEM, REPORT)
            return
        trained = np.stack([np.load(Path(folder) / f"{rank}.npy") for rank in range(2)], axis=1)
    problem, mixing = two_nodes()
    simulation = Simulation(problem=problem, algorithm=PushPull(), mixing=mixing, lr=LR, compiled=False)
    simulated = np.stack([now.state.x[0].numpy() for now in simulation.iterates(STEPS)])
    error = float(np.abs(trained - simulated).max())
    found = f"{STEPS} steps: {error:.1e} from the simulator's, {time.monotonic() - began:.1f} s"
    yield _judge(name, found, error)


def two_nodes() -> tuple[Quadratic, Mixing]:
    """Return the problem and the network of the training."""
    from perron.networks import topologies
    from perron.networks.mixing import Mixing
    from perron.problems.quadratic import Quadratic

    return Quadratic.random(2, 3, seed=0), Mixing.random_integer(topologies.ring(2), seed=0)


def _judge(name: str, found: str, error: float) -> Check:
    """Return the check of an error that is rounding only if all is well; NaN is not."""
    return Check(name, found) if error <= TOLERANCE else Check(name, found, Verdict.PROBLEM, REPORT)

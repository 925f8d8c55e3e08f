"""Local steps on heterogeneous quadratics: what is left of the error, and bytes for each gradient.

    .venv/bin/python benchmarks/local_steps.py

Eight nodes, directed exponential graph with random integer weights, no noise, lr H L = 0.4 in all rounds but the last ones. For
H = 1, 4, 16, 64 local steps: the largest error of a node after at most 3000 rounds of tracked local steps (LocalPushPull, exact
for any H) and of tracked pseudo-gradients (PushPullDiLoCo); the bias of local SGD with an all-reduce by its closed form,
sum_i (I - (I - lr H_i)^H) (x - b_i) = 0; and how far PushPullDiLoCo is from that. Bytes are per parameter and gradient, along
each edge, in float32; a ring all-reduce counts twice the model. The last rows have lr = 0.1: the bias grows with lr H.
"""

import time

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from perron import LocalPushPull, Mixing, Network, PushPullDiLoCo, Simulation
from perron.networks import topologies
from perron.problems import Quadratic
from perron.simulation.cost import bytes_per_step

NODES, DIM, ROUNDS = 8, 5, 3000
MIXING = Mixing.random_integer(topologies.exponential(NODES), seed=0)
PROBLEM = Quadratic.random(NODES, DIM, seed=1)


def local_sgd(lr: float, steps: int) -> np.ndarray:
    """Where local SGD with an all-reduce ends."""
    one, centers = np.eye(DIM), PROBLEM.centers.numpy()
    curvatures = np.stack([one - np.linalg.matrix_power(one - lr * h, steps) for h in PROBLEM.hessians.numpy()])
    return np.linalg.solve(curvatures.sum(0), np.einsum("nij,nj->i", curvatures, centers))


def end(algorithm: LocalPushPull | PushPullDiLoCo, lr: float) -> np.ndarray:
    """The models after the last round; stops early once they rest."""
    before = torch.full((NODES, DIM), torch.inf, dtype=torch.float64)
    for now in Simulation(problem=PROBLEM, algorithm=algorithm, mixing=MIXING, lr=lr).iterates(ROUNDS):
        if now.step % 50 == 0:
            if torch.equal(now.state.x[0], before):
                break
            before = now.state.x[0]
    return now.state.x[0].numpy()


def bytes_per_gradient(algorithm: LocalPushPull | PushPullDiLoCo, steps: int) -> float:
    """Along an edge, for each parameter."""
    dim = 10**6
    sent = bytes_per_step(algorithm, Network(MIXING), dim=dim, wire=4) or 0.0
    return sent / MIXING.link_count("pull", 0) / dim / steps


def main() -> None:
    torch.set_num_threads(1)
    start = time.time()
    table = Table(
        "H", "lr", "LocalPushPull: error", "PushPullDiLoCo: error", "local SGD: bias", "DiLoCo to local SGD", "bytes of all three"
    )  # fmt: skip
    optimum = PROBLEM.optimum.numpy()
    for steps, lr in ((1, 0.4), (4, 0.1), (16, 0.025), (64, 0.00625), (16, 0.1), (64, 0.1)):
        tracked, diloco = LocalPushPull(local_steps=steps), PushPullDiLoCo(local_steps=steps)
        biased, ours = local_sgd(lr, steps), end(diloco, lr)
        errors = [np.abs(point - optimum).max() for point in (end(tracked, lr), ours, biased)] + [
            np.abs(ours - biased).max()
        ]
        sent = [bytes_per_gradient(one, steps) for one in (tracked, diloco)] + [8 / steps]
        table.add_row(
            str(steps), f"{lr:g}", *(f"{one:.1e}" for one in errors), " / ".join(f"{one:.3g}" for one in sent)
        )
    console = Console()
    console.print(table)
    console.print(f"{time.time() - start:.0f} s")


if __name__ == "__main__":
    main()

"""One process of the test of two levels: torch's DDP within machines, perron between. Started by test_two_levels.py."""

import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from perron import ALGORITHMS, Mixing
from perron.distributed.optimizer import Decentralized
from perron.networks import topologies
from perron.problems import Quadratic
from perron.random import NOISE, Keyed

MACHINES, WORKERS, DIM, STEPS, SEED = 2, 2, 3, 12, 3
WORK = Quadratic.random(MACHINES * WORKERS, DIM, noise_std=0.3, seed=2)  # of each worker
MIXING = Mixing.random_integer(topologies.complete(MACHINES), seed=1)
CASES = {"push_pull": 0.05, "push_pull_atc": 0.05, "frost": 0.02, "abn": 0.05, "focus_sampled": 0.02}  # and their steps


class Model(nn.Module):
    """The loss of a worker at the vector x, which is in two parameters."""

    def __init__(self, rank):
        super().__init__()
        self.first = nn.Parameter(torch.full((1, 2), float(rank), dtype=torch.float64))  # all are to start as rank 0
        self.second = nn.Parameter(torch.full((1,), float(rank), dtype=torch.float64))
        self.hessian, self.center = WORK.hessians[rank], WORK.centers[rank]

    def forward(self, noise):
        x = torch.cat([self.first.reshape(-1), self.second])
        return (x - self.center) @ self.hessian @ (x - self.center) / 2 + noise @ x


def trained(name, lr, rank, within, across):
    """This worker's copies of its machine's model, after each step."""
    model = Model(rank)
    parallel = DistributedDataParallel(model, process_group=within)
    optimizer = Decentralized(model, ALGORITHMS[name], MIXING, lr=lr, seed=SEED, group=across)
    random, draw = Keyed(SEED, node=rank, stream=NOISE), 0
    seen = [optimizer.algorithm_state.x]
    while optimizer.steps < STEPS:
        optimizer.zero_grad()
        parallel(WORK.noise_std / DIM**0.5 * random.normal(draw, DIM)).backward()
        optimizer.step()
        draw += 1
        if optimizer.steps == len(seen):
            seen.append(optimizer.algorithm_state.x)
    with optimizer.averaged_model():
        seen.append(torch.cat([model.first.detach().reshape(-1), model.second.detach()]))
    optimizer.close()
    return torch.stack(seen).numpy()


if __name__ == "__main__":
    rank, size, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size)
    machines = [dist.new_group(range(first, first + WORKERS)) for first in range(0, size, WORKERS)]
    peers = [dist.new_group(range(first, size, WORKERS)) for first in range(WORKERS)]
    groups = machines[rank // WORKERS], peers[rank % WORKERS]
    np.savez(folder / f"{rank}.npz", **{name: trained(name, lr, rank, *groups) for name, lr in CASES.items()})
    dist.destroy_process_group()

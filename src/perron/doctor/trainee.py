"""A training of two nodes, for the self-test: a script that `perron launch` runs in each of them.

It leaves the iterates of its node, ``(steps + 1, dim)``, in ``RANK.npy`` of the folder that is its argument.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch

import perron
from perron.doctor.self_test import LR, STEPS, two_nodes


def train(folder: Path) -> None:
    """Minimize the quadratics of the self-test from zero, as any PyTorch script would."""
    torch.set_num_threads(1)
    problem, mixing = two_nodes()
    rank, _ = perron.init(backend="gloo")
    hessian, center = problem.hessians[rank], problem.centers[rank]
    x = torch.nn.Parameter(torch.zeros_like(center))
    optimizer = perron.Decentralized([x], perron.PushPull(), mixing, lr=LR)
    iterates = [x.detach().clone()]
    for _ in range(STEPS):
        optimizer.zero_grad()
        apart = x - center
        (apart @ hessian @ apart / 2).backward()
        optimizer.step()
        iterates.append(optimizer.algorithm_state.x.clone())
    optimizer.close()
    np.save(folder / f"{rank}.npy", torch.stack(iterates).numpy())
    perron.shutdown()


if __name__ == "__main__":
    train(Path(sys.argv[1]))

"""One process of the test of asynchronous nodes, of which the last is slow. Started by test_distributed.py."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from perron import Mixing, RobustPushPull, distributed
from perron.algorithms.base import advance
from perron.distributed.asynchronous import AsynchronousNode
from perron.distributed.node import DistributedNode
from perron.distributed.optimizer import Decentralized
from perron.networks import topologies
from perron.problems import Quadratic
from perron.random import NOISE, Keyed

LR, STEPS = 0.1, 400


class Pause:
    """A pause in every step: of a slow node 0.01 s, or 8 times as long as the rest of its step where the machine is busy."""

    def __init__(self, *, slow):
        self.slow, self.ended = slow, time.monotonic()

    def __call__(self):
        worked = time.monotonic() - self.ended
        time.sleep(min(max(0.01, 8 * worked), 0.2) if self.slow else 0.0005)
        self.ended = time.monotonic()


def problem_and_network(n):
    return Quadratic.random(n, 3, seed=2), Mixing.random_integer(topologies.random_digraph(n, seed=1), seed=1)


def optimize(rank, size, folder, *, dying=False):
    """The optimizer on a regression of which every node has a part."""
    slow, done = rank == size - 1, folder / "done"
    features = torch.randn(size, 20, 4, generator=torch.Generator().manual_seed(0))
    targets = features.sum(-1) + torch.randn(size, 20, generator=torch.Generator().manual_seed(1))
    model = torch.nn.Linear(4, 1, bias=False)
    optimizer = Decentralized(model, RobustPushPull(), "exponential", lr=0.05, asynchronous=True)
    pause = Pause(slow=slow)
    while optimizer.steps < STEPS if slow else not done.exists():
        optimizer.zero_grad()
        (model(features[rank])[:, 0] - targets[rank]).square().mean().backward()
        pause()
        optimizer.step()
        if dying and rank == 1 and optimizer.steps == 50:
            os.kill(os.getpid(), signal.SIGKILL)
    done.touch()
    with optimizer.averaged_model():
        best = torch.linalg.lstsq(features.reshape(-1, 4), targets.reshape(-1, 1)).solution[:, 0]
        error = float((model.weight[0] - best).abs().max())
    optimizer.close()
    return {"steps": optimizer.steps, "error": error}


if __name__ == "__main__":
    rank, size, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    slow, done = rank == size - 1, folder / "done"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size)
    if sys.argv[4] in ("optimizer", "dying"):
        found = optimize(rank, size, folder, dying=sys.argv[4] == "dying")
        (folder / f"{rank}.json").write_text(json.dumps(found))
        distributed.close()
        sys.exit()
    kind = {"asynchronous": AsynchronousNode, "waiting": DistributedNode}[sys.argv[4]]
    problem, mixing = problem_and_network(size)
    node, algorithm = kind(mixing), RobustPushPull()
    mine, noise = problem.of_node(rank), Keyed(0, trials=[0], nodes=[rank], stream=NOISE)
    state = algorithm.init(problem.start()[rank].double(), node)
    dist.barrier()

    def gradient(point):
        pause()
        return mine.grad(point.view(1, 1, -1), node.step, noise).view(-1)

    start, pause = time.monotonic(), Pause(slow=slow)
    # Those who wait for each other have to agree on a number of steps; those who do not go on until the slowest has made its own.
    while node.step < STEPS if slow or kind is DistributedNode else not done.exists():
        state = advance(algorithm, state, node, LR, gradient)
        node.step += 1
    done.touch()
    took = time.monotonic() - start
    node.close()
    found = {name: value.tolist() for name, value in state._asdict().items()}
    (folder / f"{rank}.json").write_text(json.dumps({"steps": node.step, "seconds": took} | found))
    distributed.close()

"""A neural network on the bundled digits, simulated or in one process for each node. Started by test_same_curve.py."""

import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from perron import ALGORITHMS, Simulation
from perron.data import datasets as data
from perron.distributed import optimizer as optim
from perron.networks.builder import build_network
from perron.problems import LocalLoss
from perron.random import NOISE, Keyed

NODES, BATCH, STEPS, EVERY, SEED = 4, 16, 120, 20, 5
CASES = {  # algorithm, graph, lr
    "one peer in a step": ("push_pull", "one_peer_exponential", 0.3),
    "a digraph": ("push_pull", "random_digraph", 0.2),
    "pull only": ("frost", "ring", 0.05),
    "gradients ahead of the model": ("abn", "exponential", 0.2),
    "several gradients in a step": ("focus_sampled", "ring", 0.08),
}
DIGITS = data.digits()
IMAGES = torch.stack([DIGITS.images[node::NODES] for node in range(NODES)]).double() / 255  # each has its own
LABELS = torch.stack([DIGITS.labels[node::NODES] for node in range(NODES)]).long()
TEST = DIGITS.test_images.double() / 255


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10)).double()


def flat(model):
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()


def accuracy(model):
    with torch.no_grad():
        return float((model(TEST).argmax(1) == DIGITS.test_labels).double().mean())


def trained(case, rank):
    """At each evaluation: this node's model, the averaged model, and the accuracy of the latter."""
    algorithm, graph, lr = CASES[case]
    model = network()
    optimizer = optim.Decentralized(model, ALGORITHMS[algorithm], graph, lr=lr, seed=SEED)
    draws, draw = Keyed(SEED, node=rank, stream=NOISE), 0
    own, averaged, right = [], [], []
    for stop in range(EVERY, STEPS + 1, EVERY):
        while optimizer.steps < stop:
            batch = draws.integers(draw, BATCH, IMAGES.shape[1])
            optimizer.zero_grad()
            cross_entropy(model(IMAGES[rank][batch]), LABELS[rank][batch]).backward()
            optimizer.step()
            draw += 1
        own.append(optimizer.algorithm_state.x)
        with optimizer.averaged_model():
            averaged.append(flat(model))
            right.append(accuracy(model))
    optimizer.close()
    return torch.stack(own).numpy(), torch.stack(averaged).numpy(), np.array(right)


def simulated(case):
    """The same for all nodes: their models ``(evaluations, n, d)``, the averaged ones, and the accuracies."""
    algorithm, graph, lr = CASES[case]
    model, names = network(), dict(network().named_parameters())

    def loss(x, images, labels):
        parts = x.split([value.numel() for value in names.values()])
        weights = {name: part.view_as(names[name]) for name, part in zip(names, parts, strict=True)}
        return cross_entropy(functional_call(model, weights, images), labels)

    start = flat(model)
    simulation = Simulation(
        problem=LocalLoss(loss, [IMAGES, LABELS], dim=len(start), batch=BATCH), algorithm=ALGORITHMS[algorithm],
        mixing=build_network(graph, NODES, seed=SEED), lr=lr, seed=SEED, start=start.expand(NODES, -1),
    )  # fmt: skip
    own, right = [], []
    for now in simulation.iterates(STEPS):
        if now.step and now.step % EVERY == 0:
            own.append(now.state.x[0])
            nn.utils.vector_to_parameters(own[-1].mean(0), model.parameters())
            right.append(accuracy(model))
    models = torch.stack(own)
    return models.numpy(), models.mean(1).numpy(), np.array(right)


if __name__ == "__main__":
    rank, size, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size)
    for number, case in enumerate(CASES):
        np.savez(folder / f"{number}-{rank}.npz", *trained(case, rank))
    dist.destroy_process_group()

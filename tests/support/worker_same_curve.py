"""A network on the bundled digits, and a GPT on a play, simulated or in processes. Started by test_same_curve.py."""

import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from perron import ALGORITHMS, AdamW, PushPull, Simulation, simulate
from perron.data import datasets as data
from perron.distributed import optimizer as optim
from perron.networks.builder import build_network
from perron.problems import LocalLoss, language_model
from perron.random import NOISE, Keyed
from perron.schedules import cosine, warmup

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


GPT_STEPS, GPT_EVERY, GPT_RATE = 40, 8, warmup(cosine(0.01, steps=40), 5)


def play(folder):
    """A GPT for a play of eight roles, each of which repeats words of its own."""
    random = torch.Generator().manual_seed(0)
    words = ["the", "king", "is", "dead", "long", "live", "a", "queen", "who", "speaks", "no", "more"]
    folder.mkdir(exist_ok=True)
    speeches = []
    for number in range(200):
        role = number % 8
        chosen = torch.randint(4, (8,), generator=random).tolist()
        speeches.append(f"ROLE {role}:\n" + " ".join(words[role % 4 * 2 + place] for place in chosen) + ".\n\n")
    (folder / "tinyshakespeare.txt").write_text("".join(speeches))
    problem = language_model(NODES, folder=str(folder), context=16, width=32, depth=1, batch=3)
    return problem.to(dtype=torch.float64, device="cpu")


def gpt_trained(rank, folder):
    """The averaged model's validation losses: minibatches by hand, torch's AdamW and scheduler."""
    problem, loss = play(folder / f"play-{rank}"), cross_entropy
    model, data, mine = problem.model, problem.data, problem.parts[rank]
    optimizer = optim.Decentralized(
        model, PushPull(order="atc"), "exponential", seed=SEED,
        inner=lambda groups: torch.optim.AdamW(groups, lr=1.0, weight_decay=0.01),
    )  # fmt: skip
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, GPT_RATE)
    draws, losses = Keyed(SEED, node=rank, stream=NOISE), []
    while optimizer.steps < GPT_STEPS:
        chosen = mine[(draws.uniform(optimizer.steps, 3) * len(mine)).long()]
        optimizer.zero_grad()
        loss(model(data.images[chosen]), data.labels[chosen]).backward()
        optimizer.step()
        schedule.step()
        if optimizer.steps % GPT_EVERY == 0:
            with optimizer.averaged_model(), torch.no_grad():
                losses.append(float(loss(model(data.test_images), data.test_labels)))
    optimizer.close()
    return np.array(losses)


def gpt_simulated(folder):
    """The same by the simulator, with perron's own AdamW."""
    history = simulate(
        play(folder), PushPull(order="atc", move=AdamW(weight_decay=0.01)), build_network("exponential", NODES, seed=SEED),
        steps=GPT_STEPS, lr=GPT_RATE, every=GPT_EVERY, metrics=["test_loss"], seed=SEED, dtype=torch.float64, progress=False,
    )  # fmt: skip
    return history["test_loss"][1:, 0]


if __name__ == "__main__":
    rank, size, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size)
    for number, case in enumerate(CASES):
        np.savez(folder / f"{number}-{rank}.npz", *trained(case, rank))
    np.save(folder / f"gpt-{rank}.npy", gpt_trained(rank, folder))
    dist.destroy_process_group()

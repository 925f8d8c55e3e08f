"""Train a network on MNIST with one process for each node; plain PyTorch but for a few lines.

    torchrun --standalone --nproc-per-node 4 examples/train_mnist.py --data DIRECTORY-OF-THE-IDX-FILES

Without MNIST it trains on the small digits that come with perron. The same training in the simulator, all nodes in one
process, from the same start and on the same batches, prints the same figures:

    python examples/train_mnist.py --simulate 4 --data DIRECTORY-OF-THE-IDX-FILES

And it survives nodes that die:

    perron launch --nodes 5 --elastic --restarts 3 examples/train_mnist.py --data DIRECTORY-OF-THE-IDX-FILES
"""

import argparse

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import perron
from perron.keyed import NOISE, Keyed

parser = argparse.ArgumentParser()
parser.add_argument("--data", help="where the four MNIST files are (default: $PERRON_DATA/mnist)")
parser.add_argument("--graph", default="one_peer_exponential")
parser.add_argument("--algorithm", default="push_pull")
parser.add_argument("--lr", type=float, default=0.3)
parser.add_argument("--steps", type=int, help="default: 2000 for MNIST, 400 for the digits")
parser.add_argument("--batch", type=int, default=64, help="of each node")
parser.add_argument("--simulate", type=int, metavar="NODES", help="so many nodes in this process")
options = parser.parse_args()

torch.set_default_dtype(torch.float64)  # for figures that can be compared; float32 is faster
torch.manual_seed(0)
name = "mnist" if options.data or perron.data.find("mnist") else "digits"
data = perron.data.load(name, options.data)
steps = options.steps or (2000 if name == "mnist" else 400)
every, side = max(1, steps // 10), data.images.shape[-1]
algorithm = perron.ALGORITHMS[options.algorithm]
model = nn.Sequential(
    nn.Flatten(), nn.Linear(side**2, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10)
)


def samples(node: int, nodes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The images and labels of one node: its own, and as many as every other's."""
    mine = slice(node, len(data.labels) // nodes * nodes, nodes)
    return data.images[mine] / 255.0, data.labels[mine].long()


def tell(step: int) -> None:
    with torch.no_grad():
        right = (model(data.test_images / 255.0).argmax(1) == data.test_labels).double().mean()
    print(f"{name}, step {step}: averaged model {right:.2%} of the test images right", flush=True)


def train() -> None:
    rank, size = perron.distributed.init()
    torch.set_num_threads(1)
    images, labels = samples(rank, size)
    draws, draw = Keyed(0, node=rank, stream=NOISE), 0  # random numbers by seed and node, as the simulator draws them
    optimizer = perron.optim.Decentralized(model, algorithm, options.graph, lr=options.lr)
    told = 0
    while optimizer.steps < steps:
        batch = draws.integers(draw, options.batch, len(images))
        optimizer.zero_grad()
        cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()
        draw += 1
        if optimizer.steps % every == 0 and optimizer.steps > told:  # a step may take several gradients
            told = optimizer.steps
            with optimizer.averaged_model():
                if optimizer.node.number == 0:
                    tell(optimizer.steps)
    optimizer.close()
    perron.distributed.close()


def simulate(nodes: int) -> None:
    parameters = dict(model.named_parameters())
    start = nn.utils.parameters_to_vector(parameters.values()).detach()

    def loss(x: torch.Tensor, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:  # of one node
        parts = x.split([value.numel() for value in parameters.values()])
        weights = {key: part.view_as(parameters[key]) for key, part in zip(parameters, parts, strict=True)}
        return cross_entropy(torch.func.functional_call(model, weights, images), labels)

    stacked = [torch.stack(part) for part in zip(*(samples(node, nodes) for node in range(nodes)), strict=True)]
    problem = perron.problems.LocalLoss(loss, stacked, dim=len(start), batch=options.batch)
    mixing = perron.wiring.network(options.graph, nodes)
    run = perron.Simulation(
        problem=problem, algorithm=algorithm, mixing=mixing, lr=options.lr, start=start.expand(nodes, -1)
    )
    for now in run.iterates(steps):
        if now.step and now.step % every == 0:
            nn.utils.vector_to_parameters(now.state.x[0].mean(0), parameters.values())
            tell(now.step)


if options.simulate:
    simulate(options.simulate)
else:
    train()

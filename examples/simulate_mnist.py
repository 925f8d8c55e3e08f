"""The training of examples/train_mnist.py in the simulator: all nodes in one process, and the same figures.

    python examples/simulate_mnist.py --nodes 4 --data DIRECTORY-OF-THE-IDX-FILES

Same start, same samples for each node, same batches (random numbers come by seed and node), so that it prints the same lines.
"""

import argparse

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import perron

parser = argparse.ArgumentParser()
parser.add_argument("--nodes", type=int, default=4)
parser.add_argument("--data", help="where the four MNIST files are (default: $PERRON_DATA/mnist)")
parser.add_argument("--graph", default="one_peer_exponential")
parser.add_argument("--algorithm", default="push_pull")
parser.add_argument("--lr", type=float, default=0.3)
parser.add_argument("--steps", type=int, default=2000)
parser.add_argument("--batch", type=int, default=64, help="of each node")
options = parser.parse_args()

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
name = "mnist" if options.data or perron.data.find("mnist") else "digits"
data = perron.data.load(name, options.data)
side, each = data.images.shape[-1], len(data.labels) // options.nodes
model = nn.Sequential(
    nn.Flatten(), nn.Linear(side**2, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10)
)
parameters = dict(model.named_parameters())
start = nn.utils.parameters_to_vector(parameters.values()).detach()


def loss(x: Tensor, images: Tensor, labels: Tensor) -> Tensor:
    """Of one node with the model x, one flat vector."""
    parts = x.split([value.numel() for value in parameters.values()])
    weights = {key: part.view_as(parameters[key]) for key, part in zip(parameters, parts, strict=True)}
    return cross_entropy(torch.func.functional_call(model, weights, images), labels)


first = options.nodes * each  # node i has the samples i, i + n, i + 2 n, ...
images = torch.stack([data.images[node : first : options.nodes] for node in range(options.nodes)]) / 255.0
labels = torch.stack([data.labels[node : first : options.nodes] for node in range(options.nodes)]).long()
simulation = perron.Simulation(
    problem=perron.problems.LocalLoss(loss, [images, labels], dim=len(start), batch=options.batch),
    algorithm=perron.ALGORITHMS[options.algorithm],
    mixing=perron.wiring.network(options.graph, options.nodes),
    lr=options.lr,
    start=start.expand(options.nodes, -1),
)
for now in simulation.iterates(options.steps):
    if now.step and now.step % (options.steps // 10) == 0:
        nn.utils.vector_to_parameters(now.state.x[0].mean(0), parameters.values())
        with torch.no_grad():
            right = (model(data.test_images / 255.0).argmax(1) == data.test_labels).double().mean()
        print(f"{name}, step {now.step}: averaged model {right:.2%} of the test images right", flush=True)

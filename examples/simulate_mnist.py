"""The training of examples/train_mnist.py in the simulator: all nodes in one process, and the same figures.

    python examples/simulate_mnist.py --nodes 4 --data DIRECTORY-OF-THE-IDX-FILES

Same start, same samples for each node, same batches (random numbers come by seed and node), so that it prints the same lines.
"""

import argparse

import torch
from torch import nn

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
side = data.images.shape[-1]
model = nn.Sequential(
    nn.Flatten(), nn.Linear(side**2, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10)
)
first = options.nodes * (len(data.labels) // options.nodes)  # node i has the samples i, i + n, i + 2 n, ...
problem = perron.problems.Neural(
    model,
    data._replace(images=data.images / 255.0, test_images=data.test_images / 255.0),
    [torch.arange(node, first, options.nodes) for node in range(options.nodes)],
    batch=options.batch,
    sampling="replacement",
)
simulation = perron.Simulation(
    problem=problem,
    algorithm=perron.ALGORITHMS[options.algorithm],
    mixing=perron.networks.build_network(options.graph, options.nodes),
    lr=options.lr,
)
with torch.no_grad():
    for now in simulation.iterates(options.steps):
        if now.step and now.step % (options.steps // 10) == 0:
            right = perron.metrics.test_accuracy(now)[0]
            print(f"{name}, step {now.step}: averaged model {right:.2%} of the test images right", flush=True)

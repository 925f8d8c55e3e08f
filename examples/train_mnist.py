"""Train a network on MNIST with one process for each node; plain PyTorch but for a few lines.

    torchrun --standalone --nproc-per-node 4 examples/train_mnist.py --data DIRECTORY-OF-THE-IDX-FILES

Without MNIST it trains on the small digits that come with perron. It survives nodes that die, if started with

    perron launch --nodes 5 --elastic --restarts 3 examples/train_mnist.py --data DIRECTORY-OF-THE-IDX-FILES

The same training in the simulator, all nodes in one process: examples/simulate_mnist.py.
"""

import argparse

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import perron
from perron.random import NOISE, Keyed

parser = argparse.ArgumentParser()
parser.add_argument("--data", help="where the four MNIST files are (default: $PERRON_DATA/mnist)")
parser.add_argument("--graph", default="one_peer_exponential")
parser.add_argument("--algorithm", default="push_pull")
parser.add_argument("--lr", type=float, default=0.3)
parser.add_argument("--steps", type=int, default=2000)
parser.add_argument("--batch", type=int, default=64, help="of each node")
parser.add_argument("--log", metavar="DIR", help="write progress records there: perron watch DIR")
parser.add_argument("--tensorboard", action="store_true", help="also write events for TensorBoard, in DIR/tensorboard")
options = parser.parse_args()

torch.set_default_dtype(torch.float64)  # for figures that can be compared with the simulator's; float32 is faster
torch.set_num_threads(1)
torch.manual_seed(0)
rank, size = perron.init()
name = "mnist" if options.data or perron.data.find("mnist") else "digits"
data = perron.data.load(name, options.data)
mine = slice(rank, len(data.labels) // size * size, size)  # every node has its own samples, and as many as the others
images, labels = data.images[mine] / 255.0, data.labels[mine].long()
side = images.shape[-1]
model = nn.Sequential(
    nn.Flatten(), nn.Linear(side**2, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10)
)
optimizer = perron.Decentralized(model, perron.ALGORITHMS[options.algorithm], options.graph, lr=options.lr)
log = perron.Log(options.log, steps=options.steps, tensorboard=options.tensorboard) if options.log else None
draws, draw, evaluated = Keyed(0, node=rank, stream=NOISE), 0, 0  # random numbers by seed and node, as the simulator's
while optimizer.steps < options.steps:
    batch = draws.integers(draw, options.batch, len(images))
    optimizer.zero_grad()
    loss = cross_entropy(model(images[batch]), labels[batch])
    loss.backward()
    optimizer.step()
    draw += 1
    if log:
        log(optimizer.steps, loss=loss)
    if (
        optimizer.steps % (options.steps // 10) == 0 and optimizer.steps > evaluated
    ):  # a step may take several gradients
        evaluated = optimizer.steps
        with optimizer.averaged_model(), torch.no_grad():
            if optimizer.node.number == 0:
                right = (model(data.test_images / 255.0).argmax(1) == data.test_labels).double().mean()
                print(f"{name}, step {evaluated}: averaged model {right:.2%} of the test images right", flush=True)
                if log:
                    log(evaluated, test_accuracy=right)
optimizer.close()
if log:
    log.close()
perron.shutdown()

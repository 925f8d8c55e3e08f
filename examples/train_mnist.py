"""Train a network on MNIST with one process for each node; plain PyTorch but for three lines.

    torchrun --standalone --nproc-per-node 4 examples/train_mnist.py --data DIRECTORY-OF-THE-IDX-FILES

Without MNIST it trains on the small digits that come with perron.
"""

import argparse
import time

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import perron

parser = argparse.ArgumentParser()
parser.add_argument("--data", help="where the four MNIST files are (default: $PERRON_DATA/mnist)")
parser.add_argument("--graph", default="one_peer_exponential")
parser.add_argument("--algorithm", default="push_pull")
parser.add_argument("--lr", type=float, default=0.3)
parser.add_argument("--epochs", type=int, help="default: 10 for MNIST, 40 for the digits")
parser.add_argument("--batch", type=int, default=64, help="of each node")
options = parser.parse_args()

rank, size = perron.distributed.init()
torch.set_num_threads(1)
torch.manual_seed(0)
name = "mnist" if perron.data.find("mnist", options.data) else "digits"
data = perron.data.load(name, options.data)
images, labels = data.images[rank::size] / 255.0, data.labels[rank::size].long()  # every node has its own samples
side = images.shape[-1]
model = nn.Sequential(
    nn.Flatten(), nn.Linear(side**2, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10)
)
optimizer = perron.optim.Decentralized(model, perron.ALGORITHMS[options.algorithm], options.graph, lr=options.lr)
order = torch.Generator().manual_seed(rank)
started = time.monotonic()
for epoch in range(options.epochs or (10 if name == "mnist" else 40)):
    batches = torch.randperm(len(images), generator=order).split(options.batch)
    with optimizer.join(len(batches)):
        for batch in batches:
            optimizer.zero_grad()
            cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
    with optimizer.averaged_model(), torch.no_grad():
        right = (model(data.test_images / 255.0).argmax(1) == data.test_labels).float().mean()
    if rank == 0:
        print(
            f"{name}, epoch {epoch + 1}, {time.monotonic() - started:.0f} s: averaged model {right:.2%} of the test images right"
        )
optimizer.close()

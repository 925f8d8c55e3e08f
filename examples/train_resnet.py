"""Train a ResNet on CIFAR-10 with one process for each node: BatchNorm, augmentation, weight decay, a cosine schedule.

    torchrun --standalone --nproc-per-node 4 examples/train_resnet.py --data DIRECTORY-OF-CIFAR-10

Without CIFAR-10 it trains on the small digits that come with perron. The default is ResNet-18 at an eighth of its width, which
a laptop trains in minutes; ``--width 64`` is the full one.
"""

import argparse
import time

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import cross_entropy

import perron

parser = argparse.ArgumentParser()
parser.add_argument("--data", help="where CIFAR-10's data_batch_1.bin etc. are (default: $PERRON_DATA/cifar10)")
parser.add_argument("--graph", default="one_peer_exponential")
parser.add_argument("--algorithm", default="push_pull_atc", help="push_pull hides its messages, but bears less noise")
parser.add_argument("--wire", choices=["bf16"], help="bf16: messages of half the size")
parser.add_argument("--width", type=int, default=8, help="channels of the first stage")
parser.add_argument("--lr", type=float, default=0.15)
parser.add_argument("--steps", type=int, help="default: 1000 for CIFAR-10, 150 for the digits")
parser.add_argument("--batch", type=int, default=32, help="of each node")
options = parser.parse_args()


def prepared(images: Tensor) -> Tensor:
    return (images / 255.0 - 0.5) / 0.25


rank, size = perron.init()
torch.set_num_threads(1)
name = "cifar10" if options.data or perron.data.find("cifar10") else "digits"
data = perron.data.load(name, options.data)
images, labels = data.images[rank::size], data.labels[rank::size].long()  # every node has its own samples
test_images, test_labels = data.test_images[rank::size], data.test_labels[rank::size]  # and tests a part
torch.manual_seed(rank)  # of batches and augmentation; the optimizer starts all nodes from rank 0's model
model = perron.data.models.build("resnet18", images.shape[1:], classes=10, width=options.width)
flip = name == "cifar10"  # digits have no mirror image
augment = perron.data.augment.Augmentation(crop=images.shape[2] // 8, flip=flip)
steps = options.steps or (1000 if name == "cifar10" else 150)
optimizer = perron.Decentralized(
    model, perron.ALGORITHMS[options.algorithm], options.graph, lr=options.lr, weight_decay=5e-4, wire=options.wire
)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
started, every = time.monotonic(), max(1, steps // 5)
for stop in range(every, steps + 1, every):
    while optimizer.steps < stop:  # as many steps on every node
        batch = torch.randint(len(images), (options.batch,))
        optimizer.zero_grad()
        changed = augment(prepared(images[batch]), torch.rand(options.batch, augment.numbers))
        cross_entropy(model(changed), labels[batch]).backward()
        optimizer.step()
        scheduler.step()
    model.eval()
    with optimizer.averaged_model(), torch.no_grad():  # averages BatchNorm's statistics, too
        predictions = torch.cat([model(prepared(part)).argmax(1) for part in test_images.split(500)])
    model.train()
    right = (predictions == test_labels).sum()
    dist.all_reduce(right)
    if rank == 0:
        share, seconds = right / len(data.test_labels), time.monotonic() - started
        print(
            f"{name}, step {stop}: averaged model {share:.2%} of the test images right  ({seconds:.0f} s)", flush=True
        )
optimizer.close()
perron.shutdown()

"""Train a ResNet on CIFAR-10 with one process for each node: BatchNorm, augmentation, weight decay, a cosine schedule.

    torchrun --standalone --nproc-per-node 4 examples/train_resnet.py --data DIRECTORY-OF-CIFAR-10

Without CIFAR-10 it trains on the small digits that come with perron. The default is ResNet-18 at an eighth of its width, which
a laptop trains in minutes; ``--width 64`` is the full one.
"""

import argparse
import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad, relu

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


class Block(nn.Module):
    """Two convolutions, and a way around them."""

    def __init__(self, channels: int, wider: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(channels, wider, 3, stride, 1, bias=False), nn.BatchNorm2d(wider))
        self.second = nn.Sequential(nn.Conv2d(wider, wider, 3, 1, 1, bias=False), nn.BatchNorm2d(wider))
        around = nn.Sequential(nn.Conv2d(channels, wider, 1, stride, bias=False), nn.BatchNorm2d(wider))
        self.around = around if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return relu(self.second(relu(self.first(x))) + self.around(x))


def resnet18(channels: int, width: int) -> nn.Sequential:
    layers = [nn.Conv2d(channels, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(), Block(width, width, 1)]
    for stage in range(3):
        wide = width * 2**stage
        layers += [Block(wide, wide, 1), Block(wide, 2 * wide, 2)]
    return nn.Sequential(
        *layers, Block(8 * width, 8 * width, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * width, 10)
    )


def prepared(images: Tensor) -> Tensor:
    return (images / 255.0 - 0.5) / 0.25


def augmented(images: Tensor, mirrored: bool) -> Tensor:
    """Each image moved by up to an eighth of its size, and half of them mirrored."""
    count, _, side, _ = images.shape
    if mirrored:
        images = torch.where(torch.rand(count, 1, 1, 1) < 0.5, images.flip(-1), images)
    margin, each = side // 8, torch.arange(count)[:, None, None]
    rows, columns = torch.randint(2 * margin + 1, (2, count, 1)) + torch.arange(side)
    return pad(images, [margin] * 4)[each, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


rank, size = perron.distributed.init()
torch.set_num_threads(1)
name = "cifar10" if options.data or perron.data.find("cifar10") else "digits"
data = perron.data.load(name, options.data)
images, labels = data.images[rank::size], data.labels[rank::size].long()  # every node has its own samples
test_images, test_labels = data.test_images[rank::size], data.test_labels[rank::size]  # and tests a part
torch.manual_seed(rank)  # of batches and augmentation; the optimizer starts all nodes from rank 0's model
model = resnet18(images.shape[1], options.width)
steps = options.steps or (1000 if name == "cifar10" else 150)
optimizer = perron.optim.Decentralized(
    model, perron.ALGORITHMS[options.algorithm], options.graph, lr=options.lr, weight_decay=5e-4, wire=options.wire
)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
started, every = time.monotonic(), max(1, steps // 5)
for stop in range(every, steps + 1, every):
    while optimizer.steps < stop:  # as many steps on every node
        batch = torch.randint(len(images), (options.batch,))
        optimizer.zero_grad()
        cross_entropy(model(augmented(prepared(images[batch]), name == "cifar10")), labels[batch]).backward()
        optimizer.step()
        scheduler.step()
    model.eval()
    with optimizer.averaged_model(), torch.no_grad():  # averages BatchNorm's statistics, too
        said = torch.cat([model(prepared(part)).argmax(1) for part in test_images.split(500)])
    model.train()
    right = (said == test_labels).sum()
    dist.all_reduce(right)
    if rank == 0:
        share, seconds = right / len(data.test_labels), time.monotonic() - started
        print(
            f"{name}, step {stop}: averaged model {share:.2%} of the test images right  ({seconds:.0f} s)", flush=True
        )
optimizer.close()
perron.distributed.close()

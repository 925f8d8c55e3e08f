"""Two levels: a decentralized algorithm between machines, PyTorch's DistributedDataParallel among the workers of each.

    torchrun --standalone --nproc-per-node 4 examples/train_two_levels.py --machines 2

Here four processes on one computer play two machines with two workers each. On two real machines with two GPUs each, it is
started on both of them with

    torchrun --nnodes 2 --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint FIRST:29500 examples/train_two_levels.py

Within a machine, where links are fast, all workers average their gradients in every step. Between machines, where they are
slow, a machine only talks to its neighbours in the graph. All workers of a machine hold the same model, bit for bit.
"""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import perron

parser = argparse.ArgumentParser()
parser.add_argument("--data", help="where the four MNIST files are (default: the digits that come with perron)")
parser.add_argument("--machines", type=int, default=2)
parser.add_argument("--graph", default="one_peer_exponential", help="of the machines")
parser.add_argument("--lr", type=float, default=0.3)
parser.add_argument("--steps", type=int, default=400)
parser.add_argument("--batch", type=int, default=32, help="of each worker")
options = parser.parse_args()

rank, size = perron.init()
if size % options.machines:
    raise SystemExit(f"{size} processes are not {options.machines} machines with as many workers each.")
workers = size // options.machines
machine, worker = divmod(rank, workers)  # torchrun numbers the processes machine by machine

# The two kinds of groups. Every process makes ALL of them, in the same order, also those that it is not in. With 2 x 2:
# ranks 0 and 1 are the first machine, 2 and 3 the second; 0 and 2 are the first workers of both, 1 and 3 the second ones.
within = [dist.new_group(range(first, first + workers)) for first in range(0, size, workers)]
across = [dist.new_group(range(first, size, workers)) for first in range(workers)]

name = "mnist" if options.data else "digits"
data = perron.data.load(name, options.data)
images, labels = data.images[rank::size] / 255.0, data.labels[rank::size].long()  # every worker has its own samples
torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Flatten(), nn.Linear(images[0].numel(), 128), nn.ReLU(), nn.Linear(128, 10))

# DDP first: it copies the first worker's weights to the others of its machine, which the optimizer must not find changed
# behind its back. Then the optimizer, whose nodes are machines: its group has one process of each. So there is one copy of
# the algorithm for each worker of a machine; they receive the same gradients, and stay equal without communication.
parallel = DistributedDataParallel(model, process_group=within[machine])
optimizer = perron.Decentralized(model, perron.PushPull(), options.graph, lr=options.lr, group=across[worker])
draws = torch.Generator().manual_seed(rank)
started = time.monotonic()
every = max(1, options.steps // 10)
for stop in range(every, options.steps + 1, every):
    while optimizer.steps < stop:
        batch = torch.randint(len(images), (options.batch,), generator=draws)
        optimizer.zero_grad()
        cross_entropy(parallel(images[batch]), labels[batch]).backward()  # averages over the machine's workers
        optimizer.step()  # exchanges with other machines
    with optimizer.averaged_model(), torch.no_grad():  # over the machines
        right = (model(data.test_images / 255.0).argmax(1) == data.test_labels).float().mean()
    if rank == 0:
        seconds = time.monotonic() - started
        print(
            f"{name}, step {stop}: averaged model {right:.2%} of the test images right  ({seconds:.0f} s)", flush=True
        )
optimizer.close()
perron.shutdown()

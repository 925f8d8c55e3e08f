"""A loop with Hugging Face Accelerate; the lines marked (1) to (5) make it decentralized.

    torchrun --standalone --nproc-per-node 4 examples/client_accelerate.py --out results/accelerate

Started again with --resume, every node continues from its own state. docs/howto/clients.md explains it.
"""

import argparse
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import perron

parser = argparse.ArgumentParser()
parser.add_argument("--out", default="results/accelerate", help="with a folder for each node's state")
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--resume", action="store_true")
options = parser.parse_args()

torch.set_num_threads(1)
rank, size = perron.init(isolate=True)  # (1) join the other nodes; Accelerate sees one process
data = perron.data.load("digits")
mine = perron.data.partition.by_shard(data.labels, size)[rank]  # this node's own samples: few kinds of digits
train = TensorDataset(data.images[mine] / 255.0, data.labels[mine].long())
torch.manual_seed(rank)

accelerator = Accelerator(cpu=True, mixed_precision="bf16", gradient_accumulation_steps=2)
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = perron.Decentralized(model, lr=0.2, clip=1.0)  # (2) instead of SGD; no accelerator.clip_grad_norm_
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=12 * options.epochs)
loader = DataLoader(train, batch_size=16, shuffle=True, drop_last=True)
wrapped, prepared, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
folder = Path(options.out) / f"node-{rank}"  # (3) a folder for each node, and no accelerator.is_main_process for saving
if options.resume:
    accelerator.load_state(folder)
first = optimizer.steps // 12
for _ in range(first, options.epochs):
    for batch, (images, labels) in enumerate(loader):
        if batch == 24:  # every node takes 12 steps of two batches in an epoch, whatever it has
            break
        with accelerator.accumulate(wrapped):
            accelerator.backward(nn.functional.cross_entropy(wrapped(images), labels))
            prepared.step()
            schedule.step()
            prepared.zero_grad()
    accelerator.save_state(folder)
with optimizer.averaged_model(), torch.no_grad():  # the average of all nodes' models
    right = (model(data.test_images / 255.0).argmax(1) == data.test_labels).double().mean()
if rank == 0:
    print(f"step {optimizer.steps}: averaged model {right:.2%} of the test images right", flush=True)
optimizer.close()  # (4) wait for the last messages
perron.shutdown()  # (5)

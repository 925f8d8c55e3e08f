"""Train a character GPT of a million parameters on tiny-shakespeare with Push-Pull AdamW; every node has roles of its own.

    torchrun --standalone --nproc-per-node 8 examples/train_gpt.py --out results/gpt

The text comes by perron data fetch tinyshakespeare; perron watch results/gpt shows progress. Started again, it resumes.
"""

import argparse

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

import perron

parser = argparse.ArgumentParser()
parser.add_argument("--out", default="results/gpt", help="directory of progress records and checkpoints")
parser.add_argument("--steps", type=int, default=500)
parser.add_argument("--width", type=int, default=128, help="a multiple of 32")
parser.add_argument("--lr", type=float, default=2e-3, help="the largest, as for the batch of one node")
options = parser.parse_args()
BATCH, CONTEXT = 8, 64  # windows of each node in a step, and characters of a window

rank, size = perron.init()
torch.manual_seed(rank)  # of the batches; the optimizer starts all nodes from rank 0's model
play = perron.data.text.load("tinyshakespeare")
parts, validation = play.split(size)
mine = parts[rank].unfold(0, CONTEXT + 1, 1)  # all windows of this node's roles
held_out = validation.unfold(0, CONTEXT + 1, CONTEXT)[rank::size]  # every node evaluates a part
model = perron.data.models.GPT(len(play.vocabulary), context=CONTEXT, width=options.width)


def predict(windows):  # the loss of predicting each next character
    return cross_entropy(model(windows[:, :-1]), windows[:, 1:])


adamw = lambda groups: torch.optim.AdamW(groups, lr=options.lr, betas=(0.9, 0.99))  # noqa: E731
optimizer = perron.Decentralized(model, perron.PushPull(order="atc"), "exponential", inner=adamw, clip=1.0)
cycle = {"total_steps": options.steps, "pct_start": 0.15, "cycle_momentum": False}  # warm-up, then a cosine
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, options.lr, **cycle)
manager = perron.CheckpointManager(f"{options.out}/checkpoints", optimizer, every=100, schedule=schedule)
with perron.Log(options.out, steps=options.steps, optimizer=optimizer) as log:
    while optimizer.steps < options.steps:
        optimizer.zero_grad()
        (loss := predict(mine[torch.randint(len(mine), (BATCH,))])).backward()
        optimizer.step()
        schedule.step()
        log(optimizer.steps, loss=loss)
        manager()
        if optimizer.steps % max(1, options.steps // 10) == 0:
            with optimizer.averaged_model(), torch.no_grad():
                losses = torch.stack([predict(part) * len(part) for part in held_out.split(64)]).sum() / len(held_out)
            dist.all_reduce(losses)  # the parts have equal sizes, up to one window
            log(optimizer.steps, validation_loss=losses / size)
            if rank == 0:
                print(f"step {optimizer.steps}: averaged model, validation loss {losses / size:.4f}", flush=True)
optimizer.close()
perron.shutdown()

"""Train a character GPT of a million parameters on tiny-shakespeare with Push-Pull AdamW; every node has roles of its own.

    torchrun --standalone --nproc-per-node 8 examples/train_gpt.py --out results/gpt

The text comes by perron data fetch tinyshakespeare; perron watch results/gpt shows progress. Started again, it resumes.
"""

import argparse

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

import perron

parser = argparse.ArgumentParser()
parser.add_argument("--out", default="results/gpt", help="directory of progress records and checkpoints")
parser.add_argument("--steps", type=int, default=500)
parser.add_argument("--width", type=int, default=128, help="a multiple of 32")
parser.add_argument("--lr", type=float, default=2e-3, help="the largest, as for the batch of one node")
options = parser.parse_args()
BATCH, CONTEXT = 8, 64  # windows of each node in a step, and characters of a window


class Block(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.qkv, self.mix = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 3 * d)), nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (-1, 32)).transpose(1, 2).chunk(3, dim=1)  # heads of 32 coordinates
        x = x + self.mix(scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.mlp(x)


class GPT(nn.Module):
    def __init__(self, characters: int, d: int, layers: int = 5) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(characters, d), nn.Embedding(CONTEXT, d)
        self.rest = nn.Sequential(*(Block(d) for _ in range(layers)), nn.LayerNorm(d), nn.Linear(d, characters))

    def forward(self, windows: Tensor) -> Tensor:  # the loss of predicting each next character
        logits = self.rest(self.embed(windows[:, :-1]) + self.place.weight)
        return cross_entropy(logits.mT, windows[:, 1:])


rank, size = perron.init()
torch.manual_seed(rank)  # of the batches; the optimizer starts all nodes from rank 0's model
play = perron.data.text.load("tinyshakespeare")
parts, validation = play.split(size)
mine = parts[rank].unfold(0, CONTEXT + 1, 1)  # all windows of this node's roles
held_out = validation.unfold(0, CONTEXT + 1, CONTEXT)[rank::size]  # every node evaluates a part
model = GPT(len(play.vocabulary), options.width)
adamw = lambda groups: torch.optim.AdamW(groups, lr=options.lr, betas=(0.9, 0.99))  # noqa: E731
optimizer = perron.Decentralized(model, perron.PushPull(order="atc"), "exponential", inner=adamw, clip=1.0)
cycle = {"total_steps": options.steps, "pct_start": 0.15, "cycle_momentum": False}  # warm-up, then a cosine
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, options.lr, **cycle)
manager = perron.CheckpointManager(f"{options.out}/checkpoints", optimizer, every=100, schedule=schedule)
with perron.Log(options.out, steps=options.steps, optimizer=optimizer) as log:
    while optimizer.steps < options.steps:
        optimizer.zero_grad()
        (loss := model(mine[torch.randint(len(mine), (BATCH,))])).backward()
        optimizer.step()
        schedule.step()
        log(optimizer.steps, loss=loss)
        manager()
        if optimizer.steps % max(1, options.steps // 10) == 0:
            with optimizer.averaged_model(), torch.no_grad():
                losses = torch.stack([model(part) * len(part) for part in held_out.split(64)]).sum() / len(held_out)
            dist.all_reduce(losses)  # the parts have equal sizes, up to one window
            log(optimizer.steps, validation_loss=losses / size)
            if rank == 0:
                print(f"step {optimizer.steps}: averaged model, validation loss {losses / size:.4f}", flush=True)
optimizer.close()
perron.shutdown()

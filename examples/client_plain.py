"""A training loop as in nanoGPT, with accumulated gradients, bfloat16 and a schedule, made decentralized by the marked lines.

    torchrun --standalone --nproc-per-node 4 examples/client_plain.py --out results/plain

The text comes by perron data fetch tinyshakespeare. Started again with --resume, every node continues from its own file.
"""

import argparse
import math
from pathlib import Path

import torch
from torch import Tensor, nn

import perron

parser = argparse.ArgumentParser()
parser.add_argument("--out", default="results/plain", help="directory of checkpoints, with a file for each node")
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--resume", action="store_true")
options = parser.parse_args()
BATCH, CONTEXT, MICRO_STEPS, LR = 8, 32, 2, 3e-3


class GPT(nn.Module):
    def __init__(self, characters: int, d: int = 32) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(characters, d), nn.Embedding(CONTEXT, d)
        layer = nn.TransformerEncoderLayer(d, 4, 4 * d, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(d, characters)

    def forward(self, windows: Tensor) -> Tensor:  # the loss of predicting each next character
        mask = nn.Transformer.generate_square_subsequent_mask(CONTEXT)
        hidden = self.blocks(self.embed(windows[:, :-1]) + self.place.weight, mask=mask, is_causal=True)
        return nn.functional.cross_entropy(self.head(hidden).mT, windows[:, 1:])


def rate(step: int) -> float:  # warm-up, then a cosine
    return LR * min((step + 1) / 10, (1 + math.cos(math.pi * step / options.steps)) / 2)


rank, size = perron.init()  # (1) instead of init_process_group
torch.manual_seed(rank)  # of the batches
play = perron.data.text.load("tinyshakespeare")
parts, held_out = play.split(size)
windows = parts[rank].unfold(0, CONTEXT + 1, 1)  # of this node's own roles
model = GPT(len(play.vocabulary))  # not wrapped in DistributedDataParallel
adamw = lambda groups: torch.optim.AdamW(groups, lr=LR, betas=(0.9, 0.99))  # noqa: E731
optimizer = perron.Decentralized(model, perron.PushPull(order="atc"), inner=adamw, clip=1.0)  # (2) no clip_grad_norm_
path = Path(options.out) / f"node-{rank}.pt"  # (3) every node saves
if options.resume:
    saved = torch.load(path)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    torch.set_rng_state(saved["random"])
while optimizer.steps < options.steps:
    for group in optimizer.param_groups:
        group["lr"] = rate(optimizer.steps)
    for _ in range(MICRO_STEPS):
        batch = windows[torch.randint(len(windows), (BATCH,))]
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(batch)
        (loss / MICRO_STEPS).backward()
    optimizer.step()
    optimizer.zero_grad()
    if optimizer.steps % 30 == 0:
        path.parent.mkdir(parents=True, exist_ok=True)
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "random": torch.get_rng_state()}
        torch.save(state, path)
with optimizer.averaged_model(), torch.no_grad():  # the average of all nodes' models
    loss = model(held_out.unfold(0, CONTEXT + 1, CONTEXT)[:256])
if rank == 0:
    print(f"step {optimizer.steps}: averaged model, validation loss {loss:.4f}", flush=True)
optimizer.close()  # (4) wait for the last messages
perron.shutdown()  # (5) instead of destroy_process_group

"""A LightningModule, trained by Lightning's Trainer; the lines marked (1) to (5) make it decentralized.

    torchrun --standalone --nproc-per-node 4 examples/client_lightning.py --out results/lightning

Started again with --resume, every node continues from its own checkpoint. docs/howto/clients.md explains it.
"""

import argparse

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import perron

parser = argparse.ArgumentParser()
parser.add_argument("--out", default="results/lightning", help="directory of checkpoints, with a folder for each node")
parser.add_argument("--steps", type=int, default=120)
parser.add_argument("--resume", action="store_true")
options = parser.parse_args()


class Digits(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def training_step(self, batch, _):
        images, labels = batch
        loss = nn.functional.cross_entropy(self.net(images), labels)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        optimizer = perron.Decentralized(self, lr=0.2, clip=1.0)  # (2) instead of SGD; no gradient_clip_val
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=options.steps)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


torch.set_num_threads(1)
rank, size = perron.init(isolate=True)  # (1) join the other nodes; Lightning sees one process
data = perron.data.load("digits")
mine = perron.data.partition.by_shard(data.labels, size)[rank]  # this node's own samples: few kinds of digits
train = TensorDataset(data.images[mine] / 255.0, data.labels[mine].long())
loader = DataLoader(train, batch_size=16, shuffle=True, generator=torch.Generator().manual_seed(rank))

torch.manual_seed(0)
model = Digits()
folder = f"{options.out}/node-{rank}"  # (3) a folder for each node
trainer = lightning.Trainer(
    max_steps=options.steps, default_root_dir=folder, accelerator="cpu", logger=False, enable_model_summary=False,
    enable_progress_bar=False, callbacks=[ModelCheckpoint(folder, every_n_train_steps=60, save_last=True)],
)  # fmt: skip
trainer.fit(model, loader, ckpt_path=f"{folder}/last.ckpt" if options.resume else None)
optimizer = model.optimizers().optimizer
with optimizer.averaged_model(), torch.no_grad():  # the average of all nodes' models
    right = (model.net(data.test_images / 255.0).argmax(1) == data.test_labels).double().mean()
if rank == 0:
    print(f"step {optimizer.steps}: averaged model {right:.2%} of the test images right", flush=True)
optimizer.close()  # (4) wait for the last messages
perron.shutdown()  # (5)

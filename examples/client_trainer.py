"""A vision transformer of transformers, trained by transformers.Trainer; the lines marked (1) to (5) make it decentralized.

    torchrun --standalone --nproc-per-node 4 examples/client_trainer.py --out results/trainer

Started again with --resume, every node continues from its own checkpoint. docs/howto/clients.md explains it.
"""

import argparse

import torch
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

import perron

parser = argparse.ArgumentParser()
parser.add_argument("--out", default="results/trainer", help="directory of checkpoints, with a folder for each node")
parser.add_argument("--steps", type=int, default=150)
parser.add_argument("--resume", action="store_true")
options = parser.parse_args()

torch.set_num_threads(1)
rank, size = perron.init(isolate=True)  # (1) join the other nodes; the Trainer sees one process
data = perron.data.load("digits")
mine = perron.data.partition.dirichlet(data.labels, size, concentration=0.5)[rank]  # this node's own samples
images, labels = data.images / 255.0, data.labels.long()
train = [{"pixel_values": images[i], "labels": labels[i]} for i in mine.tolist()]

torch.manual_seed(0)
shape = {"image_size": 8, "patch_size": 2, "num_channels": 1, "hidden_size": 32, "intermediate_size": 64}
model = ViTForImageClassification(
    ViTConfig(**shape, num_hidden_layers=2, num_attention_heads=4, num_labels=10, attn_implementation="eager")
)
adamw = lambda groups: torch.optim.AdamW(groups, lr=3e-3)  # noqa: E731
optimizer = perron.Decentralized(model, perron.PushPull(order="atc"), inner=adamw, clip=1.0)  # (2) with AdamW inside
arguments = TrainingArguments(
    output_dir=f"{options.out}/node-{rank}", max_grad_norm=0.0,  # (3) a folder for each node; clip= clips instead
    max_steps=options.steps, per_device_train_batch_size=16, save_steps=50, logging_steps=50, warmup_steps=10,
    use_cpu=True, disable_tqdm=True, logging_strategy="no" if rank else "steps", report_to="none",
)  # fmt: skip
trainer = Trainer(model, arguments, train_dataset=train, optimizers=(optimizer, None))
trainer.train(resume_from_checkpoint=options.resume)
with optimizer.averaged_model(), torch.no_grad():  # the average of all nodes' models
    right = (model(data.test_images / 255.0).logits.argmax(1) == data.test_labels).double().mean()
if rank == 0:
    print(f"step {optimizer.steps}: averaged model {right:.2%} of the test images right", flush=True)
optimizer.close()  # (4) wait for the last messages
perron.shutdown()  # (5)

"""An ordinary PyTorch training loop with a DataLoader, made decentralized by the marked lines; seconds on the small digits.

    torchrun --standalone --nproc-per-node 4 examples/train_digits.py

The tutorial "Train your PyTorch model with torchrun" walks through it.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import perron

torch.set_num_threads(1)
torch.manual_seed(0)
rank, size = perron.init()  # (1) who am I, and how many are we?

data = perron.data.load("digits")
mine = slice(rank, None, size)  # (2) every node has its own samples: some have one more than others
train = TensorDataset(data.images[mine] / 255.0, data.labels[mine].long())
loader = DataLoader(train, batch_size=16, shuffle=True, generator=torch.Generator().manual_seed(rank))

model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = perron.Decentralized(model, perron.PushPull(), "exponential", lr=0.3)  # (3) instead of SGD
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20)

for epoch in range(20):
    with optimizer.join(len(loader)):  # (4) nodes with less data continue to exchange until the last one is done
        for images, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
    scheduler.step()

    if epoch % 5 == 4:
        with optimizer.averaged_model(), torch.no_grad():  # (5) evaluate the average of all nodes' models
            right = (model(data.test_images / 255.0).argmax(1) == data.test_labels).double().mean()
        if rank == 0:
            print(f"epoch {epoch + 1}: averaged model {right:.2%} of the test images right", flush=True)

optimizer.close()  # (6) the last messages arrive
perron.shutdown()

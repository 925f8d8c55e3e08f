"""One process that trains with receives posted ahead and ends in some way. Started by test_receive_ahead.py."""

import sys
import time

import torch
import torch.distributed as dist
from torch import nn

import perron

RANK, SIZE, FOLDER, END = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]

if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{FOLDER}/store", rank=RANK, world_size=SIZE)
    model = nn.Linear(300, 300)
    optimizer = perron.Decentralized(model, perron.PushPull(order="pu"), "ring", lr=0.01, receive_ahead=3)
    data = torch.randn(8, 300)
    started = time.monotonic()
    try:
        for step in range(8):
            if step == 6 and END == "exception" and RANK == 1:
                raise ValueError("of the user")
            if step == 6 and END == "early" and RANK == 1:
                optimizer.close()
                time.sleep(3)  # the connection stays open
                sys.exit()
            optimizer.zero_grad()
            model(data).square().mean().backward()
            optimizer.step()
        if END == "closed":
            optimizer.close()
        if END in ("closed", "destroyed"):
            dist.destroy_process_group()
    except perron.NetworkError as error:
        sys.stdout.write(f"{error}\n")
    sys.stdout.write(f"{time.monotonic() - started:.1f}\n")

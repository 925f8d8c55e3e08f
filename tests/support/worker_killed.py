"""One process of the tests of faults: trains, and one of the ranks dies or falls silent. Started by test_distributed.py."""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

import perron
from perron.distributed.optimizer import Decentralized

RANK, SIZE, FOLDER, FAULT, TIMEOUT = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4], float(sys.argv[5])

if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{FOLDER}/store", rank=RANK, world_size=SIZE)
    model = nn.Linear(300, 300)
    optimizer = Decentralized(model, perron.PushPull(), "ring", lr=0.01, timeout=TIMEOUT)
    data = torch.randn(8, 300)
    started = time.monotonic()
    try:
        for step in range(10_000):
            if step == 5:
                started = time.monotonic()
                if RANK == 1:
                    os.kill(os.getpid(), signal.SIGKILL if FAULT == "kill" else signal.SIGSTOP)
            optimizer.zero_grad()
            model(data).square().mean().backward()
            optimizer.step()
    except perron.NetworkError as error:
        sys.stdout.write(f"{time.monotonic() - started:.1f}|{error}\n")
        try:
            optimizer.step()
        except perron.NetworkError as again:
            assert again is error
        optimizer.close()  # at once
        sys.stdout.flush()
        os._exit(7)

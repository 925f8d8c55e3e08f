"""One of two processes that are given different things, field by field; what each says of it, and after how long."""

import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
import trainee  # noqa: F401 - so that torch's compiler is not imported
from torch import nn

import perron

NETWORK = perron.Mixing(pull=np.array([[0.6, 0.4], [0.5, 0.5]]), push=np.array([[0.6, 0.5], [0.4, 0.5]]))
FIELDS = {
    "the algorithm": {"algorithm": perron.ALGORITHMS["add_opt"]}, "an option of it": {"algorithm": perron.PushPull(order="atc")},
    "the network": {"graph": NETWORK}, "weights": {"weights": "metropolis"}, "seed": {"seed": 9}, "lr": {"lr": 0.5},
    "weight_decay": {"weight_decay": 0.1}, "wire": {"wire": "bf16"}, "broadcast": {"broadcast": False},
    "timeout": {"timeout": 61.0}, "nonfinite": {"nonfinite": "skip"}, "the parameters' shapes": {"width": 21},
    "the parameters' types": {"dtype": torch.float64},
    "the buffers": {"norm": True}, "the version of perron": {"perron": "9.9"}, "the version of torch": {"torch": "9.9"},
}  # fmt: skip


def made(*, algorithm=None, graph="ring", width=20, dtype=torch.float32, norm=False, **options):
    perron.__version__, torch.__version__ = options.pop("perron", VERSIONS[0]), options.pop("torch", VERSIONS[1])
    model = nn.Sequential(nn.Linear(width, 5), *[nn.BatchNorm1d(5, affine=False)] * norm).to(dtype)
    settings = {
        "lr": 0.1,
        "weights": "uniform",
        "seed": 0,
        "timeout": 60.0,
        "wire": None,
        "nonfinite": "raise",
        "broadcast": True,
    }
    perron.Decentralized(model, algorithm, graph, **settings | {"weight_decay": 0.0} | options)


if __name__ == "__main__":
    torch.set_num_threads(1)
    rank, _ = perron.init()
    VERSIONS = perron.__version__, torch.__version__
    found = {}
    for field, odd in FIELDS.items():
        began = time.monotonic()
        try:
            made(**odd if rank == 1 else {})
            found[field] = [0.0, "not refused"]
        except perron.PerronError as error:
            found[field] = [time.monotonic() - began, str(error)]
    Path(sys.argv[1], f"{rank}.json").write_text(json.dumps(found))
    perron.shutdown()

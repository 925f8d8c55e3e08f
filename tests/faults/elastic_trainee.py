"""One node of the tests of elastic trainings: f_i(x) = |x - i|^2 / 2 in single precision, started by elastic_trainings.py.

The training ends as users' scripts do: the averaged model is written to a file, then the optimizer is closed.

NAME.pid      of the process with this name
NAME.steps    a line for each step: how many are done, and the time
NODE.result   the name, the step, the averaged model, and the changes of membership
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch

import perron
from perron.distributed import checkpoint_inventory
from perron.distributed.elastic import membership


def die(*_args, **_options):
    os.kill(os.getpid(), signal.SIGKILL)


def arm_early(place):
    """Have this process die at a place near the beginning of the training."""
    if place == "in join":
        membership.join = die
    elif place == "before loading":
        perron.distributed.checkpoint.load = die
    elif place == "in loading":
        checkpoint_inventory.read_part = die


def arm(optimizer, place):
    """Have this process die at a place near the end of the training."""
    member = optimizer._recovery.membership
    if place == "in the average":
        optimizer.node.mean = die
    elif place == "in close":
        optimizer.node.close = die
    elif place == "in finish":
        member._leave = die  # after it has announced that it has finished


def main(folder, options):
    torch.set_num_threads(1)
    if options.get("dies", [None])[0] == int(os.environ["RANK"]) and os.environ.get("PERRON_NAME", "").endswith(".1"):
        arm_early(options["dies"][1])
    rank, _ = perron.init()
    name = os.environ.get("PERRON_NAME", f"{rank}.1")
    first = name.endswith(".1")
    (folder / f"{name}.pid").write_text(str(os.getpid()))
    x = torch.nn.Parameter(torch.zeros(3))
    optimizer = perron.Decentralized([x], lr=options.get("lr", 0.1), timeout=options.get("timeout", 10))
    manager = None
    if options.get("every"):
        manager = perron.CheckpointManager(folder / "checkpoints", optimizer, every=options["every"])
    began, place = optimizer.steps, options["dies"][1] if options.get("dies", [None])[0] == rank and first else ""
    with (folder / f"{name}.steps").open("a", buffering=1) as told:
        while optimizer.steps < options["steps"]:
            optimizer.zero_grad()
            (0.5 * (x - rank).square().sum()).backward()
            optimizer.step()
            told.write(json.dumps([optimizer.steps, time.monotonic()]) + "\n")
            if manager is not None:
                manager()
            if first and options.get("hungry", [])[:2] == [rank, optimizer.steps]:
                Path(options["hungry"][2]).write_text(str(os.getpid()))
                hoard = [bytearray(b"x" * 2**24) for _ in range(100)]  # 1.6 GB
                raise AssertionError(f"{len(hoard)} pieces fit")
            if options.get("fails") == [rank, optimizer.steps]:
                raise ZeroDivisionError("a bad\x1b[31m sample")
            time.sleep(options.get("pause", 0.005))
    if place:
        arm(optimizer, place)
    with optimizer.averaged_model():
        averaged = x.detach().tolist()
    changes = [str(change) for change in optimizer.changes]
    result = {"name": name, "began": began, "step": optimizer.steps, "x": averaged, "changes": changes}
    (folder / f"{rank}.result").write_text(json.dumps(result))
    if place == "after the average":
        die()
    optimizer.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))

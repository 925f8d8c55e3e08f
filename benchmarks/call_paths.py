"""Which modules of perron three calls go through: a gradient, a simulated step, and a study from its file to its page.

    python benchmarks/call_paths.py

The order is that of the first visit. CONTRIBUTING.md explains the paths.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

import perron

SOURCE = str(Path(perron.__file__).parent)
STUDY = """
title = "One run"
conclusion = "speedup"
topologies = ["ring"]
nodes = [2, 3]
lr = 0.2
steps = 160
every = 10
trials = 4
[problem]
kind = "quadratic"
dim = 3
noise_std = 0.5
"""


def visited(call: Callable[[], object]) -> list[str]:
    """The modules whose functions a call runs, in the order of the first visit; without imports and stubs."""
    found: dict[str, None] = {}

    def profile(frame, event, _argument):
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(SOURCE) and frame.f_code.co_name not in ("<module>", "__getattr__"):
            found[name[len(SOURCE) + 1 : -3]] = None

    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
    return list(found)


def gradient() -> list[str]:
    """One gradient through `Decentralized.step`, in one process."""
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29517"}
    perron.distributed.init()
    model = torch.nn.Linear(2, 1)
    optimizer = perron.optim.Decentralized(model, perron.PushPull(), perron.Mixing.uniform(perron.Graph(1)), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    optimizer.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    found = visited(optimizer.step)
    optimizer.close()
    perron.distributed.close()
    return found


def simulated_step() -> list[str]:
    """One step of the simulator, without measuring it."""
    problem = perron.problems.Quadratic.random(4, noise_std=0.1)
    mixing = perron.Mixing.random_integer(perron.topologies.exponential(4), seed=0)
    states = perron.Simulation(problem=problem, algorithm=perron.PushPull(), mixing=mixing, lr=0.1).iterates(5)
    for _ in range(3):
        next(states)
    return visited(lambda: next(states))


def study() -> list[str]:
    """A study from its file to its page, all runs in this process."""
    from perron.study import load  # its name in version 0.1, so that versions can be compared

    from perron import report

    try:
        from perron.studies.job import execute
    except ImportError:
        from perron.job import do as execute

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "one.toml"
        file.write_text(STUDY)

        def run() -> None:
            plan = load(file)
            for one in plan.runs:
                execute(one)
            outcome = perron.run_study(plan, Path(folder) / "out", workers=1)
            perron.conclude(outcome)
            report.write([outcome], Path(folder) / "page.html")

        run()  # imports
        shutil.rmtree(Path(folder) / "out")
        return visited(run)


if __name__ == "__main__":
    for title, path in (("gradient", gradient), ("simulated step", simulated_step), ("study", study)):
        modules = path()
        print(f"{title}, {len(modules)} modules:\n  " + "\n  ".join(modules))

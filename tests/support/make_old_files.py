"""Write small files with the code of earlier commits: tests/storage/old/COMMIT/KIND, read by tests/storage/test_old_files.py.

    .venv/bin/python tests/support/make_old_files.py [COMMIT ...]

Each commit of `COMMITS` is unpacked into a temporary directory, and this script is run again with its code, in the present
environment. What the same code computes next is written, too (``expected.json``), so that a test can resume and compare numbers.
"""

import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
from io import BytesIO
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TARGET = ROOT / "tests" / "storage" / "old"
COMMITS = {  # the first with a format, and the last before the next one
    "d37f7e2": ["networks"],  # the first files of networks
    "7541612": ["study"],  # the first study
    "900f450": ["training"],  # format 1, without runs
    "a51701b": ["training"],  # format 1
    "f7f993c": ["simulation"],  # the first simulations
    "3a03602": ["simulation"],  # with fingerprints
    "22fe3e2": ["records"],  # the first records of progress
    "fa85287": ["training", "simulation"],  # format 2; `.before`
    "1cdff33": ["study"],  # checksums of tables
    "307da43": ["training", "simulation"],  # the last of version 0.1
    "4eed667": ["training"],  # format 3
    "1c2bb83": ["simulation", "networks", "study", "records"],  # before files had format numbers
}
STUDY = """\
title = "Old"
conclusion = "comparison"
topologies = ["ring"]
nodes = [3]
algorithms = ["push_pull", "push_pull_atc"]
lr = 0.05
steps = 32
every = 2
trials = 1
[problem]
kind = "quadratic"
dim = 2
"""


def module(*names):
    """The first of these modules that there is; they have moved."""
    for name in names:
        if importlib.util.find_spec(name.rpartition(".")[0]) and importlib.util.find_spec(name):
            return importlib.import_module(name)
    raise ModuleNotFoundError(str(names))


# ---- what is written; tests resume with the same functions and the present code


def trainer():
    """A model, its optimizer, and a function that makes a step; needs a process group."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    torch.set_num_threads(1)  # the order of sums may depend on it
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    optimizer = module("perron.optim", "perron.distributed.optimizer").Decentralized(model, graph="ring", lr=0.05)

    def step():
        optimizer.zero_grad()
        (model(torch.randn(8, 3)) - 1).square().mean().backward()
        optimizer.step()

    return model, optimizer, step


def numbers(model):
    return [value.flatten().tolist() for value in model.state_dict().values()]


def training(folder):
    """Checkpoints of steps 2 and 4, and the model after step 7."""
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    save = module("perron.checkpoint", "perron.distributed.checkpoint").save
    model, optimizer, step = trainer()
    for epoch in range(2):
        step()
        step()
        save(folder, optimizer, notes={"epoch": epoch})
    for _ in range(3):
        step()
    dist.destroy_process_group()
    return numbers(model)


def simulate(steps, path=None):
    """A small simulation, kept in a file."""
    import numpy as np

    import perron

    problem = perron.problems.Quadratic.random(3, dim=2, noise_std=0.1, diagonal=True)
    mixing = perron.Mixing.uniform(perron.topologies.ring(3))
    kept = {} if path is None else {"checkpoint": path, "save_every": 0}
    history = perron.simulate(
        problem, perron.PushPull(), mixing, steps=steps, every=1, progress=False, lr=0.05, seed=3, **kept
    )
    return np.asarray(history.values["grad_norm_sq"]).tolist()


def simulation(folder):
    """The file after step 4, and the curve until step 8."""
    simulate(4, folder / "run.safetensors")
    return simulate(8)


def networks(folder):
    """A graph in every format, and a mixing; the expected values are their matrices."""
    import perron

    graph = perron.topologies.exponential(5)
    mixing = perron.Mixing.uniform(graph)
    files = module("perron.files", "perron.networks.files")
    for suffix in ("graphml", "edges", "csv", "npz"):
        files.write_graph(graph, folder / f"graph.{suffix}")
    files.write_mixing(mixing, folder / "mixing.npz")
    dense = [matrix.toarray() if hasattr(matrix, "toarray") else matrix for matrix in (mixing.pull, mixing.push)]
    return {"edges": graph.edges.tolist(), "pull": dense[0].tolist(), "push": dense[1].tolist()}


def study(folder):
    """The results of a study of two runs; the expected values are its table."""

    file = folder / "study.toml"
    file.write_text(STUDY)
    spec = module("perron.study", "perron.studies.spec")
    runner = module("perron.experiment", "perron.studies.runner")
    loaded = spec.load(file) if hasattr(spec, "load") else spec.Study.load(file)
    outcome = runner.run_study(loaded, folder / "table", workers=1)
    return {name: outcome.table[name].tolist() for name in ("step", "grad_norm_sq")}


def records(folder):
    """Records of a training; the expected value is the last one."""
    import perron

    with perron.Log(folder / "log", steps=4) as log:
        for step in range(1, 5):
            log(step, loss=1 / step)
    return [4, 0.25]


WRITERS = {one.__name__: one for one in (training, simulation, networks, study, records)}


def make(commit):
    """Write all files of a commit."""
    archive = subprocess.run(["git", "archive", commit, "src"], cwd=ROOT, capture_output=True, check=True).stdout
    with tempfile.TemporaryDirectory() as place:
        with tarfile.open(fileobj=BytesIO(archive)) as packed:
            packed.extractall(place, filter="data")
        for kind in COMMITS[commit]:
            shutil.rmtree(TARGET / commit / kind, ignore_errors=True)
            command = [sys.executable, "-W", "ignore", __file__, "--write", kind, str(TARGET / commit / kind)]
            subprocess.run(command, env=os.environ | {"PYTHONPATH": f"{place}/src"}, check=True)


def write(kind, folder):
    folder.mkdir(parents=True)
    expected = WRITERS[kind](folder)
    (folder / "expected.json").write_text(json.dumps(expected))
    for lock in [*folder.rglob("*.lock"), *folder.rglob("lock")]:
        lock.unlink()
    for path in folder.rglob("*.jsonl"):
        path.write_text(path.read_text().replace(socket.gethostname(), "host"))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--write"]:
        write(sys.argv[2], Path(sys.argv[3]))
    else:
        for name in sys.argv[1:] or COMMITS:
            make(name)

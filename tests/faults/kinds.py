"""Both kinds of checkpoints, as small as can be: each can be made, loaded and gone on with by the same words."""

import warnings
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

import perron
from perron._storage import tensorfile as saved
from perron.distributed import checkpoint
from perron.distributed.optimizer import Decentralized

NOTES = {"text": "é " * 1000}  # so that a header has some length


@contextmanager
def group():
    """A process group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def heard(action):
    """What a function returns, and what it warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = action()
    return found, " ".join(str(warning.message) for warning in caught)


class Training:
    """Checkpoints of a training of one node; needs `group`."""

    name = "training"

    def __init__(self, folder: Path, width: int = 4) -> None:
        torch.manual_seed(0)
        self.folder, self.model = Path(folder), nn.Linear(width, width)
        self.optimizer = Decentralized(self.model, graph="ring", lr=0.01)

    def save(self) -> int:
        """One step, and save it."""
        self.optimizer.zero_grad()
        self.model(torch.ones(self.model.in_features)).square().sum().backward()
        self.optimizer.step()
        checkpoint.save(self.folder, self.optimizer, notes=NOTES)
        return self.optimizer.steps

    def load(self) -> tuple[int, str]:
        """The step that it goes on from, 0 for none, and what was said."""
        found, said = heard(lambda: checkpoint.load(self.folder, self.optimizer))
        return 0 if found is None else found.step, said

    @property
    def newest(self) -> Path:
        """The file of the newest generation."""
        return sorted(self.folder.glob("*/step-*"))[-1] / "node-0.safetensors"


class Simulated:
    """The file of a simulation."""

    name = "simulation"

    def __init__(self, folder: Path, width: int = 4) -> None:
        self.folder, self.path, self.step = Path(folder), Path(folder) / "run.safetensors", 0
        mixing = perron.Mixing.uniform(perron.topologies.ring(2))
        self.what = (
            perron.problems.Quadratic.random(2, dim=width, noise_std=0.1, diagonal=True),
            perron.PushPull(),
            mixing,
        )

    def run(self, steps: int, progress=False):
        """Go on until so many steps; all are saved."""
        return perron.simulate(
            *self.what, steps=steps, every=1, progress=progress, checkpoint=self.path, save_every=0, seed=3
        )

    def save(self) -> int:
        """One step, and save it."""
        self.step += 1
        _, said = heard(lambda: self.run(self.step))
        if "Cannot write" in said:  # a run goes on without being saved, and says so
            raise perron.FileError(said)
        return self.step

    def load(self) -> tuple[int, str]:
        """The step that it goes on from, 0 for none, and what was said; what follows must be as if nothing had happened."""
        if not self.path.exists():
            return 0, ""
        at = 0
        with suppress(perron.FileError):
            at = int(saved.latest(self.path)[1]["step"])
        history, said = heard(lambda: self.run(max(self.step, at, 1)))
        assert np.isfinite(history.values["grad_norm_sq"]).all()
        return at, said

    @property
    def newest(self) -> Path:
        """The file of the newest generation."""
        return self.path


KINDS = {kind.name: kind for kind in (Training, Simulated)}

"""Saving a simulation while it runs, and resuming it.

Files have format 2. Those of format 1 have no number; they are read unless they lack the facts by which runs are compared.
"""

from __future__ import annotations

import json
import time
import warnings
from contextlib import AbstractContextManager
from hashlib import file_digest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from perron._storage import tensorfile
from perron._storage.atomic import keep_file
from perron._storage.lockfile import LOCK, exclusive_lock
from perron.errors import FileError, FormatError, PerronError
from perron.schedules import rate_at
from perron.simulation.history import Recorder

if TYPE_CHECKING:
    from perron.simulation.running import Running
    from perron.simulation.simulator import Simulation

FORMAT = 2
OPTIONAL = ("rounds", "clock")  # facts that a run may lack
COMPARED = (0, 1, 10, 100, 1000, 10_000)  # steps at which learning rates are compared


class RunCheckpoint:
    """The file in which a simulation is saved, and from which it resumes.

    Args:
        path: the file; it is replaced atomically, and the file before it is kept as FILE.before.
        interval: seconds between two saves; longer where saving takes more than a fiftieth of it; 0 saves at every step.
        simulation, metrics: what is run and measured; the file of another run is refused.
    """

    def __init__(self, path: str | Path, interval: float, simulation: Simulation, metrics: list[str]) -> None:
        self.path, self.interval, self.last = Path(path), interval, time.monotonic()
        self.began = self.last  # minus the seconds of the run before it was resumed
        self.intact = True  # whether the present file is worth keeping as FILE.before
        if not self.path.parent.is_dir() or self.path.is_dir():
            raise FileError(
                f"checkpoint={path} cannot be a file: make the directory {self.path.parent}, or choose another."
            )
        rates = [torch.as_tensor(rate_at(simulation.rate, step)).tolist() for step in COMPARED]
        facts = {
            "algorithm": simulation.algorithm.description, "network": simulation.mixing.fingerprint, "lr": rates,
            "problem": simulation.problem.fingerprint(), "trials": simulation.numbers, "seed": simulation.seed,
            "start": tensorfile.digest([simulation.first()]), "precision": str(simulation.precision),
            "links": vars(simulation.links), "wire": simulation.wire, "metrics": metrics,
        }  # fmt: skip
        if simulation.rounds > 1:  # earlier versions had one
            facts["rounds"] = simulation.rounds
        if simulation.clock is not None:
            facts["clock"] = simulation.clock.matched(simulation.mixing).fingerprint(simulation.mixing.nodes)
        self.facts = json.loads(json.dumps(facts))

    def lock(self) -> AbstractContextManager[None]:
        """Keep other processes from saving to this file."""
        busy = f"Another process keeps a run in {self.path}"
        return exclusive_lock(Path(f"{self.path}{LOCK}"), busy, "wait for it, end it, or choose another file")

    def load(self, running: Running, recorder: Recorder, steps: int) -> bool:
        """Resume from the file; return whether there was one."""
        if not self.path.exists():
            return False
        try:
            tensors, facts, damage = tensorfile.latest(self.path)
        except FileError as error:
            names = [_keep_damaged(path) for path in (self.path, tensorfile.before(self.path)) if path.is_file()]
            self.intact = False
            warnings.warn(f"{error} The run starts from the beginning. The file is kept as {names[0]}.", stacklevel=3)
            return False
        run = self._facts_of_run(facts)
        if damage:
            kept = _keep_damaged(self.path)
            self.intact = False
            older = tensorfile.before(self.path)
            warnings.warn(
                f"{damage} The run resumes from {older}, step {facts['step']}. The file is kept as {kept}.",
                stacklevel=3,
            )
        keys = [*self.facts, *(key for key in OPTIONAL if key in run and key not in self.facts)]
        if differ := [key for key in keys if run.get(key) != self.facts.get(key)]:
            raise PerronError(
                f"{self.path} was saved by another run: it differs in {', '.join(differ)}. Remove it, or choose another file."
            )
        if facts["step"] > steps:
            raise PerronError(
                f"{self.path} is at step {facts['step']} already; ask for more steps than {steps}, or choose another file."
            )
        running.restore(tensors, facts)
        recorder.restore(tensors)
        self.began -= facts.get("seconds", 0.0)
        return True

    def _facts_of_run(self, facts: dict[str, Any]) -> dict[str, Any]:
        """Return the facts by which runs are compared, in the form of the present format."""
        form, run = facts.get("format", 1), facts.get("run")
        if not isinstance(run, dict):
            raise FileError(f"{self.path} holds no run of perron.simulate. Remove it, or choose another file.")
        remedy = "Choose another file, or move it elsewhere"
        if form not in (1, FORMAT):
            raise FormatError(f"{self.path} has format {form}; this version of perron reads 1 and {FORMAT}. {remedy}.")
        if form == 1 and "start" not in run:
            raise FormatError(
                f"{self.path} has an early form of format 1, without what is needed to tell whether it is the same run. {remedy}."
            )
        if form == 1 and (run.get("links") == "are reliable" or run.get("loss") == 0):  # as they were called before
            run = run | {"links": {"loss": 0.0, "delay": 0, "repeats": 0.0}}
        return run

    def save(self, running: Running, recorder: Recorder, *, force: bool) -> None:
        """Save if the interval has passed, or if ``force``."""
        began = time.monotonic()
        if began - self.last < self.interval and not force:
            return
        tensors, facts = running.saved()
        facts |= {"format": FORMAT, "run": self.facts, "seconds": began - self.began}
        try:
            tensorfile.write(self.path, tensors | recorder.saved(), facts, keep=self.intact)
            self.intact = True
        except FileError as error:
            warnings.warn(f"{error} The run continues without being saved.", stacklevel=3)
        self.last = time.monotonic()
        if self.interval:
            self.interval = max(self.interval, 50 * (self.last - began))


def _keep_damaged(path: Path) -> Path:
    """Give a damaged file a second name, under which it stays when the run saves again."""
    with path.open("rb") as file:
        digest = file_digest(file, "sha256").hexdigest()[:8]
    return keep_file(path, Path(f"{path}.damaged-{digest}"))

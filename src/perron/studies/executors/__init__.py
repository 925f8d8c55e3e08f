"""Executors do the runs of a study: processes of this machine, a Ray cluster, or Slurm.

An executor is a subclass of `Executor` with one method. ``run(jobs, on_progress)`` does the jobs, the first ones first. It calls
``on_progress(place, report)`` when the job at that place in the list reports progress. It yields ``(place, None)`` when the job
is done and its files are written, or ``(place, reason)`` when it failed; in between it yields None, so that its caller can show
progress. A job that is killed, hangs (``job.timeout``) or raises an error fails alone. Closing the iterator, or an exception
within it such as Ctrl-C, stops all jobs. ``check()`` may refuse to work, before a study writes anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perron._registry import lookup, public_dir
from perron.errors import PerronError
from perron.studies.executors.base import Executor
from perron.studies.executors.local import Local, cores
from perron.studies.executors.ray import Ray
from perron.studies.executors.slurm import Slurm

__all__ = ["Executor", "Local", "Ray", "Slurm", "cores", "create"]


def create(
    on: str = "local", *, workers: int | None = None, address: str | None = None, slurm: Mapping[str, Any] | None = None
) -> Executor:
    """Create the executor of that name: local, ray or slurm."""
    lookup(on, dict.fromkeys(["local", "ray", "slurm"]), "executor")
    if address is not None and on != "ray":
        raise PerronError(f"--address is that of a Ray cluster: add --on ray; got --on {on}.")
    if slurm and on != "slurm":
        raise PerronError(f"--slurm has options of Slurm: add --on slurm; got --on {on}.")
    if on == "ray":
        return Ray(workers=workers, address=address)
    return Slurm(workers=workers, options=slurm or {}) if on == "slurm" else Local(workers=workers)


__dir__ = public_dir(__name__)

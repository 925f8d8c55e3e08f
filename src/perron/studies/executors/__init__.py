"""Who does the runs of a study: processes of this machine, a Ray cluster, or Slurm.

A pool has one method. ``run(jobs, told)`` does the jobs, the first ones first; it calls ``told(place, report)`` when it hears how
far a job is, and yields ``(place, None)`` when the job at that place in the list is done and its files are written, or ``(place,
sentence)`` when it failed. It yields None now and then, so that whoever listens can show how far all is. A job that is killed,
hangs (``job.timeout``) or raises an error is one that failed, and harms no other. Closing the iterator, or an exception within
it such as Ctrl-C, ends all that is under way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perron._registry import lookup
from perron.errors import PerronError
from perron.studies.executors.base import Pool
from perron.studies.executors.local import Local, cores
from perron.studies.executors.ray import Ray
from perron.studies.executors.slurm import Slurm

__all__ = ["Local", "Pool", "Ray", "Slurm", "chosen", "cores"]


def chosen(
    on: str = "local",
    *,
    workers: int | None = None,
    address: str | None = None,
    slurm: Mapping[str, Any] | None = None,
) -> Pool:
    """The pool of that name: local, ray or slurm."""
    lookup(on, dict.fromkeys(["local", "ray", "slurm"]), "pool")
    if address is not None and on != "ray":
        raise PerronError(f"--address is that of a Ray cluster: add --on ray; got --on {on}.")
    if slurm and on != "slurm":
        raise PerronError(f"--slurm has options of Slurm: add --on slurm; got --on {on}.")
    if on == "ray":
        return Ray(workers=workers, address=address)
    return Slurm(workers=workers, options=slurm or {}) if on == "slurm" else Local(workers=workers)

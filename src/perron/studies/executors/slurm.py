"""Slurm, through submitit: each run is a task of an array job.

The study's directory must be on a file system that all machines share. Submitted files and the output of jobs are in its folder
``slurm``; a job writes its results itself and, now and then, a file with its progress. All jobs of a study have a name made of
its directory, by which they are watched and cancelled. States come from ``squeue``, which every cluster has; many lack the
accounting database that ``sacct`` asks.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import redirect_stderr, suppress
from dataclasses import dataclass, field
from io import StringIO
from math import ceil
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from perron._registry import lookup
from perron._storage.atomic import make_own_directory, write_bytes
from perron.errors import PerronError
from perron.studies.executors.base import POLL_INTERVAL, Ends, Executor, OnProgress, Scheduler, require
from perron.studies.job import Job, Report, perform, prepare, write_result

START = "start-"  # the folders of starts
ARRAY = 1000  # tasks of one array job; Slurm allows 1001 by default
FILE_INTERVAL = 2.0  # seconds between two looks at the files, and between two reports of a job
STATE_INTERVAL = 10.0  # seconds between two questions to Slurm
GRACE = 60.0  # seconds that the last files of a job may take through the file system after the job has ended
STALL_TIMEOUT = 300.0  # seconds without a heartbeat after which a job assumes that the study is dead
OPTIONS = {  # of sbatch, and the full names of short ones
    **{
        name: name
        for name in (
            "partition", "account", "qos", "time", "mem", "mem_per_cpu", "constraint", "nodelist", "exclude", "cpus_per_task",
            "gpus_per_node", "gres", "exclusive", "comment", "mail_type", "mail_user", "setup",
        )
    },
    "cpus": "cpus_per_task",
    "gpus": "gpus_per_node",
}  # fmt: skip
FAILURES = {
    "TIMEOUT": "was stopped by Slurm at the end of its time, see --slurm time=MINUTES",
    "CANCELLED": "was cancelled in Slurm",
    "PREEMPTED": "was stopped by Slurm for the sake of other jobs",
    "OUT_OF_MEMORY": "needed more memory than Slurm gave it, see --slurm mem=...",
    "NODE_FAIL": "was on a machine that failed",
    "BOOT_FAIL": "was on a machine that did not start",
    "DEADLINE": "was stopped by Slurm at its deadline",
    "FAILED": "its process failed or was killed",
    "COMPLETED": "ended without results",
    "GONE": "is gone from Slurm's queue",
}


@dataclass(frozen=True, kw_only=True)
class Slurm(Executor):
    """Slurm with the given options of ``sbatch``, such as partition, time (minutes), cpus, mem, account."""

    workers: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key in self.options:
            lookup(key, OPTIONS, "option of --slurm")
        if not isinstance(self.options.get("time", 1), int):
            raise PerronError(f"--slurm time takes whole minutes, as time=90; got {self.options['time']!r}.")
        setup = self.options.get("setup", "")
        lines = setup if isinstance(setup, list) else [setup]
        if not all(isinstance(line, str) for line in lines):
            raise PerronError(f"--slurm setup takes lines of a shell, as 'setup=module load python'; got {setup!r}.")

    def check(self) -> None:
        require("submitit", "slurm")
        if shutil.which("sbatch") is None or shutil.which("squeue") is None:
            raise PerronError("--on slurm needs a machine from which jobs are submitted; there is no sbatch here.")

    def run(self, jobs: Sequence[Job], on_progress: OnProgress) -> Ends:
        """Do the jobs; see `perron.studies.executors`."""
        folder = jobs[0].target.parent.parent / "slurm"
        name = f"perron-{hashlib.sha256(str(folder).encode()).hexdigest()[:12]}"
        make_own_directory(folder)
        self._cancel(name)  # jobs of a study that was killed: no other process may run one in this directory
        for start in folder.glob(f"{START}*"):
            shutil.rmtree(start, ignore_errors=True)  # other machines may hold files open in it
        # A folder for each start: a job of an earlier one finds no heartbeat in its own, and ends.
        scheduler = _Scheduler(self, jobs, on_progress, Path(mkdtemp(prefix=START, dir=folder)), name)
        try:
            yield from scheduler.run(self.workers)
        except BaseException:
            self._cancel(name)
            raise

    # ---- commands of Slurm

    def _submit(self, folder: Path, name: str, tasks: Sequence[tuple[str, ...]], minutes: int) -> list[str]:
        """Submit an array job; return the ids of its tasks."""
        from submitit import SlurmExecutor

        executor = SlurmExecutor(folder=folder)
        given = {OPTIONS[key]: value for key, value in self.options.items()}
        if isinstance(setup := given.get("setup"), str):
            given["setup"] = setup.splitlines()
        limit = {"array_parallelism": self.workers or len(tasks)}  # submitit's own is 256
        executor.update_parameters(
            # A signal before the end would be sent at once to a job that may take a minute, and is of no use to us.
            **({"time": minutes, "cpus_per_task": 1} | given | limit | {"job_name": name, "signal_delay_s": 1})
        )
        try:
            with redirect_stderr(StringIO()):  # submitit prints the errors that it raises
                return [job.job_id for job in executor.map_array(_work, *zip(*tasks, strict=True))]
        except (RuntimeError, OSError) as error:
            raise PerronError(f"Slurm refused the jobs: {' '.join(str(error).split())[-300:]}") from None

    def _states(self, name: str) -> dict[str, str] | None:
        """Return the state of each job that Slurm knows; None if it does not answer."""
        command = ["squeue", "--noheader", "--array", "--states=all", f"--name={name}", "--format=%i %T"]
        try:
            text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout  # noqa: S603
        except (OSError, subprocess.SubprocessError):
            return None
        return dict(line.split(maxsplit=1) for line in text.splitlines() if " " in line)

    def _cancel(self, name: str, job: str | None = None) -> None:
        """Cancel a job, or all of that name."""
        command = ["scancel", f"--name={name}", *([job] if job else [])]
        with suppress(subprocess.TimeoutExpired):  # if Slurm does not answer, they end when the heartbeat stops
            subprocess.run(command, capture_output=True, check=False, timeout=60)  # noqa: S603


class _Scheduler(Scheduler):
    """The jobs of a study in Slurm, and their states."""

    def __init__(self, slurm: Slurm, jobs: Sequence[Job], on_progress: OnProgress, folder: Path, name: str) -> None:
        super().__init__(jobs, on_progress)
        self.slurm, self.folder, self.name = slurm, folder, name
        self.files = [folder / f"{job.target.name}.progress" for job in jobs]
        self.heartbeat = folder / "heartbeat"
        self.ids: list[str] = []  # of the jobs that are submitted
        self.open: set[int] = set()
        self.received: dict[int, bytes] = {}
        self.ended: dict[int, float] = {}  # the time at which Slurm first called a job ended

    def run(self, limit: int | None) -> Ends:
        write_bytes(self.heartbeat, b"")
        polled = asked = time.monotonic()
        while self.open or len(self.ids) < len(self.jobs):
            # Slurm limits how many tasks of one array run at a time, so with a limit there is one array at a time.
            while len(self.ids) < len(self.jobs) and not (limit and self.open):
                self._submit_next()
            time.sleep(POLL_INTERVAL)
            if time.monotonic() - polled > FILE_INTERVAL:
                polled = time.monotonic()
                write_bytes(self.heartbeat, b"")
                ends = list(self._read_files())
                if polled - asked > STATE_INTERVAL:
                    asked = polled
                    ends += self._ask_slurm()
                for place, reason in [*ends, *self._stop_overdue()]:
                    if place in self.open:
                        self.open.remove(place)
                        yield place, reason
            yield None

    def _submit_next(self) -> None:
        start = len(self.ids)
        places = range(start, min(start + ARRAY, len(self.jobs)))
        tasks = [(self.jobs[place].text, str(self.files[place]), str(self.heartbeat)) for place in places]
        minutes = ceil(self.jobs[start].timeout) + 1
        self.ids += self.slurm._submit(self.folder, self.name, tasks, minutes)
        self.open.update(places)

    def _read_files(self) -> Iterable[tuple[int, str | None]]:
        """Receive the reports that the jobs wrote; yield those that ended."""
        for place in sorted(self.open):
            try:
                text = self.files[place].read_bytes()
                message = json.loads(text)
            except (OSError, ValueError):
                continue
            if "ended" in message:
                if message["ended"] or self.jobs[place].target.with_suffix(".parquet").exists():
                    yield place, message["ended"]
            elif text != self.received.get(place):
                self.received[place] = text
                self.receive(place, text)

    def _ask_slurm(self) -> Iterable[tuple[int, str]]:
        """Yield the jobs that ended in Slurm without a report."""
        states = self.slurm._states(self.name)
        if states is None:
            return
        for place in sorted(self.open):
            state = states.get(self.ids[place], "GONE")
            if state == "PENDING":  # for the first time, or again after a preemption: its clock stops
                self.deadlines.pop(place, None)
            if state not in FAILURES:
                self.ended.pop(place, None)
            elif time.monotonic() - self.ended.setdefault(place, time.monotonic()) > GRACE:
                yield place, f"{FAILURES[state]} (job {self.ids[place]}: {state}; its output is in {self.folder})"

    def _stop_overdue(self) -> Iterable[tuple[int, str]]:
        for place in self.overdue(sorted(self.open)):
            self.slurm._cancel(self.name, self.ids[place])
            yield place, self.jobs[place].timed_out


def _work(text: str, progress_file: str, heartbeat: str) -> None:
    """Do a job on a machine of the cluster."""
    # submitit would let it continue when it is cancelled, and end it as an error a moment before its time is over.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    file, last = Path(progress_file), float("-inf")
    worker = {"machine": platform.node(), "process": os.getpid()}  # for debugging

    def on_progress(report: Report) -> None:
        nonlocal last
        if time.monotonic() - last > FILE_INTERVAL:
            last = time.monotonic()
            write_bytes(file, json.dumps(report._asdict() | worker).encode())
            if _is_stalled(file, Path(heartbeat)):
                sys.exit(1)

    prepare()
    on_progress(Report(0, 1, {}))  # from now on its time counts
    job = Job.read(text)
    reason = write_result(job.target, perform(job, on_progress))
    write_bytes(file, json.dumps({"ended": reason}).encode())


def _is_stalled(file: Path, heartbeat: Path) -> bool:
    """Return whether the study is dead. Both files are dated by the same file system, so that clocks may differ."""
    try:
        return file.stat().st_mtime - heartbeat.stat().st_mtime > STALL_TIMEOUT
    except FileNotFoundError:
        return True
    except OSError:  # a file system that does not answer now may do so later
        return False

"""Slurm, through submitit: each run a task of an array job.

The study's directory must be on a file system that all machines share. What is submitted, and what the jobs print, is in its
folder ``slurm``; a job writes its results itself, and beside them, now and then, how far it is. All jobs of a study bear a
name made of its directory, by which they are watched and cancelled. States come from ``squeue``, which every cluster has; the
accounting database that ``sacct`` asks is missing on many.
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
from perron._storage.atomic import write_bytes
from perron.errors import PerronError
from perron.studies.executors.base import POLL, Ends, Told, needed, overdue
from perron.studies.job import Job, Report, keep, perform, prepare

ARRAY = 1000  # tasks of one array job; Slurm allows 1001 if not told otherwise
LOOK = 2.0  # seconds between two looks at the files; and a job says how far it is as often
ASK = 10.0  # seconds between two questions to Slurm
GRACE = 60.0  # seconds that the last files of a job may take through the file system after the job has ended
SILENCE = 300.0  # seconds after which a job takes the study for dead
TAKEN = {  # options of sbatch, and how short ones are spelt there
    **dict.fromkeys(["partition", "account", "qos", "time", "mem", "mem_per_cpu", "constraint", "nodelist", "exclude"]),
    **dict.fromkeys(
        ["cpus_per_task", "gpus_per_node", "gres", "exclusive", "comment", "mail_type", "mail_user", "setup"]
    ),
    "cpus": "cpus_per_task",
    "gpus": "gpus_per_node",
}
SAID = {
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
class Slurm:
    """Slurm with the options of ``sbatch`` that are given, such as partition, time (minutes), cpus, mem, account."""

    workers: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key in self.options:
            lookup(key, TAKEN, "option of --slurm")
        if not isinstance(self.options.get("time", 1), int):
            raise PerronError(f"--slurm time takes whole minutes, as time=90; got {self.options['time']!r}.")
        setup = self.options.get("setup", [])
        if not isinstance(setup, str) and not (
            isinstance(setup, list) and all(isinstance(line, str) for line in setup)
        ):
            raise PerronError(f"--slurm setup takes lines of a shell, as 'setup=module load python'; got {setup!r}.")

    def run(self, jobs: Sequence[Job], told: Told) -> Ends:
        """Do the jobs; see `perron.studies.executors`."""
        needed("submitit", "slurm")
        folder = jobs[0].target.parent.parent / "slurm"
        name = f"perron-{hashlib.sha256(str(folder).encode()).hexdigest()[:12]}"
        self._check()
        self._cancel(name)  # what a study that was killed left: nobody else may run one in this directory
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)  # other machines may hold files open in it
        # A folder for each start: a job that an earlier one left finds no beat in its own, and ends.
        crew = _Crew(self, jobs, told, Path(mkdtemp(prefix="start-", dir=folder)), name)
        try:
            yield from crew.run(self.workers)
        except BaseException:
            self._cancel(name)
            raise

    # ---- the words of Slurm, and nothing else of it

    def _check(self) -> None:
        if shutil.which("sbatch") is None or shutil.which("squeue") is None:
            raise PerronError("--on slurm needs a machine from which jobs are submitted; there is no sbatch here.")

    def _submit(self, folder: Path, name: str, tasks: Sequence[tuple[str, ...]], minutes: int) -> list[str]:
        """Submit an array job; the names of its tasks."""
        from submitit import SlurmExecutor

        executor = SlurmExecutor(folder=folder)
        given = {TAKEN[key] or key: value for key, value in self.options.items()}
        if isinstance(setup := given.get("setup"), str):
            given["setup"] = setup.splitlines()
        limit = {"array_parallelism": self.workers or len(tasks)}  # submitit's own is 256
        executor.update_parameters(
            # The signal before the end would be sent at once to a job that may take a minute, and saves nothing for us.
            **({"time": minutes, "cpus_per_task": 1} | given | limit | {"job_name": name, "signal_delay_s": 1})
        )
        try:
            with redirect_stderr(StringIO()):  # submitit prints what it raises
                return [job.job_id for job in executor.map_array(_work, *zip(*tasks, strict=True))]
        except (RuntimeError, OSError) as error:
            raise PerronError(f"Slurm refused the jobs: {' '.join(str(error).split())[-300:]}") from None

    def _states(self, name: str) -> dict[str, str] | None:
        """The state of each job that Slurm knows; None if it does not answer."""
        command = ["squeue", "--noheader", "--array", "--states=all", f"--name={name}", "--format=%i %T"]
        try:
            said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout  # noqa: S603
        except (OSError, subprocess.SubprocessError):
            return None
        return dict(line.split(maxsplit=1) for line in said.splitlines() if " " in line)

    def _cancel(self, name: str, job: str | None = None) -> None:
        """Cancel a job, or all of that name."""
        command = ["scancel", f"--name={name}", *([job] if job else [])]
        with suppress(subprocess.TimeoutExpired):  # if Slurm does not answer, they end when they find us silent
            subprocess.run(command, capture_output=True, check=False, timeout=60)  # noqa: S603


class _Crew:
    """The jobs of a study in Slurm, and where each of them stands."""

    def __init__(self, slurm: Slurm, jobs: Sequence[Job], told: Told, folder: Path, name: str) -> None:
        self.slurm, self.jobs, self.told, self.folder, self.name = slurm, jobs, told, folder, name
        self.files = [folder / f"{job.target.name}.told" for job in jobs]
        self.beat = folder / "beat"
        self.ids: list[str] = []
        self.open: set[int] = set()
        self.heard: dict[int, bytes] = {}
        self.began: dict[int, float] = {}
        self.gone: dict[int, float] = {}  # since when Slurm says that it is over

    def _submit_next(self) -> None:
        start = len(self.ids)
        part = range(start, min(start + ARRAY, len(self.jobs)))
        tasks = [(self.jobs[place].text, str(self.files[place]), str(self.beat)) for place in part]
        minutes = ceil(self.jobs[start].timeout) + 1
        self.ids += self.slurm._submit(self.folder, self.name, tasks, minutes)
        self.open.update(part)

    def run(self, limit: int | None) -> Ends:
        write_bytes(self.beat, b"")
        looked = asked = time.monotonic()
        while self.open or len(self.ids) < len(self.jobs):
            # Slurm limits how many tasks of one array run at a time, so that with a limit there is one array at a time.
            while len(self.ids) < len(self.jobs) and not (limit and self.open):
                self._submit_next()
            time.sleep(POLL)
            if time.monotonic() - looked > LOOK:
                looked = time.monotonic()
                write_bytes(self.beat, b"")
                yield from self._over(self._look())
                if looked - asked > ASK:
                    asked = looked
                    yield from self._over(self._ask())
                yield from self._over(self._overdue())
            yield None

    def _over(self, ended: Iterable[tuple[int, str | None]]) -> Ends:
        for place, said in ended:
            self.open.discard(place)
            yield place, said

    def _look(self) -> Iterable[tuple[int, str | None]]:
        """What the jobs have written."""
        for place in sorted(self.open):
            try:
                text = self.files[place].read_bytes()
                news = json.loads(text)
            except (OSError, ValueError):
                continue
            if "ended" in news:
                if news["ended"] or self.jobs[place].target.with_suffix(".parquet").exists():
                    yield place, news["ended"]
            elif text != self.heard.get(place):
                self.heard[place] = text
                self.began.setdefault(place, time.monotonic())
                self.told(place, Report(news["step"], news["steps"], news["values"]))

    def _ask(self) -> Iterable[tuple[int, str]]:
        """What Slurm says of those that have not said that they ended."""
        states = self.slurm._states(self.name)
        if states is None:
            return
        for place in sorted(self.open):
            state = states.get(self.ids[place], "GONE")
            if state == "PENDING":  # for the first time, or again since it was preempted: its clock stands
                self.began.pop(place, None)
            if state not in SAID:
                self.gone.pop(place, None)
            elif time.monotonic() - self.gone.setdefault(place, time.monotonic()) > GRACE:
                yield place, f"{SAID[state]} (job {self.ids[place]}: {state}; what it printed is in {self.folder})"

    def _overdue(self) -> Iterable[tuple[int, str]]:
        for place in sorted(self.open & self.began.keys()):
            if time.monotonic() - self.began[place] > 60 * self.jobs[place].timeout:
                self.slurm._cancel(self.name, self.ids[place])
                yield place, overdue(self.jobs[place])


def _work(text: str, told: str, beat: str) -> None:
    """A job on a machine of the cluster."""
    # submitit would have it go on when it is cancelled, and end it as an error a moment before its time is over.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    file, last = Path(told), float("-inf")
    where = {"machine": platform.node(), "process": os.getpid()}  # for whoever looks after it

    def report(news: Report) -> None:
        nonlocal last
        if time.monotonic() - last > LOOK:
            last = time.monotonic()
            write_bytes(file, json.dumps(news._asdict() | where).encode())
            if _silent(file, Path(beat)):
                sys.exit(1)

    prepare()
    report(Report(0, 1, {}))  # from now on its time counts
    job = Job.read(text)
    said = keep(job.target, perform(job, report))
    write_bytes(file, json.dumps({"ended": said}).encode())


def _silent(file: Path, beat: Path) -> bool:
    """Whether the study is dead. Both files are dated by the same file system, so that clocks may differ."""
    try:
        return file.stat().st_mtime - beat.stat().st_mtime > SILENCE
    except FileNotFoundError:
        return True
    except OSError:  # a file system that does not answer now may do so later
        return False

"""Running a study: on all cores or many machines, one process for each run, resumable, into one flat table.

A study's directory holds

    runs/KEY.parquet   the table of one finished run, KEY a hash of all that decides its numbers (and of perron's own code)
    runs/KEY.json      its parameters, its duration, and warnings
    runs/KEY.partial   the checkpoint of a run, saved once a minute, from which it resumes bit for bit (and .before: the
                       checkpoint before that, in case of damage)
    runs/KEY.live      the progress of a run, for `perron watch` (`perron.monitor.records`)
    live.jsonl         the list of runs and failures, likewise; locked while a process runs the study
    results.parquet    all runs: a row for each run, recorded step and trial; each parameter a column
    manifest.json      version, commit, seeds, machine, duration, and how each run ended

Everything is written atomically, and a finished run is never repeated, so a study may be killed at any moment and run again.
Numbers depend on the seeds only; durations are in the JSON files, so the same study gives the same table.
"""

from __future__ import annotations

import io
import json
import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, Field, NonNegativeInt, ValidationError

from perron._storage.atomic import write_bytes
from perron._storage.lockfile import LOCK, exclusive_lock
from perron.errors import FileError, GraphError, PerronError
from perron.monitor.progress import format_values
from perron.monitor.records import LIVE, Records
from perron.monitor.status import PlannedRun, announce_study
from perron.networks.graph import check_nodes
from perron.studies.executors import Executor, Local, cores
from perron.studies.job import BEFORE, PARTIAL, Job, Report, cost, memory
from perron.studies.provenance import code, commit, versions
from perron.studies.run import Run
from perron.studies.spec import Study

if TYPE_CHECKING:
    import pandas as pd

TURN = 7.0  # seconds for which messages are about the same run
COLUMNS = ("run", "topology", "nodes", "weights", "algorithm", "lr", "step", "trial")  # of every table of results
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Manifest(BaseModel):
    """The content of manifest.json: how a study was run, on which machine, and how each run ended."""

    study: dict[str, Any]
    perron: str = ""
    commit: str | None = None
    code: str = ""
    seeds: list[int] = []
    machine: dict[str, str | int] = {}
    started: datetime | None = None
    seconds: Seconds
    core_seconds: Seconds = 0.0
    runs: dict[str, Seconds] = {}
    reused: NonNegativeInt
    failed: dict[str, str]
    warned: dict[str, str]
    sha256: str = ""  # of results.parquet


class RunFacts(BaseModel):
    """The content of the JSON file beside the table of a run."""

    seconds: Seconds
    warnings: list[str]
    sha256: str = ""  # of the table


@dataclass
class Outcome:
    """The results of a study; ``failed`` and ``warned`` have a message for each run that failed or gave warnings."""

    study: Study
    folder: Path
    table: Any  # a pandas table, of which the type checker knows too little
    seconds: float
    reused: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    warned: dict[str, str] = field(default_factory=dict)

    @property
    def finished(self) -> bool:
        """Whether all runs have results."""
        return not self.failed and self.done == len(self.study.runs)

    @property
    def done(self) -> int:
        """The number of runs that have results."""
        return 0 if self.table.empty else int(self.table["run"].nunique())


def run_study(
    study: Study,
    folder: str | Path,
    *,
    workers: int | None = None,
    executor: Executor | None = None,
    pool: Executor | None = None,
    progress: Callable[[float], None] | None = None,
    began: Callable[[int, int], None] | None = None,
    news: Callable[[str], None] | None = None,
) -> Outcome:
    """Do all runs that have no results yet, and write the table.

    Args:
        folder: the study's directory.
        workers: the number of processes; by default one for each core that this process may use.
        executor: does the runs, see `perron.studies.executors`; by default processes on this machine. ``pool`` is its old name.
        progress: called now and then with the share of the work that is done.
        began: called once with the number of runs and of those that are done already.
        news: called now and then with a line about a run in progress: its step, and the last measured values.

    A run that is killed, hangs or raises an error is named in ``Outcome.failed`` and does not affect the others. Ctrl-C stops;
    finished runs stay, and unfinished ones resume from their last checkpoint.
    """
    folder = Path(folder)
    started, clock = datetime.now(UTC), time.monotonic()
    executor = executor or pool or Local(workers=workers)
    local = isinstance(executor, Local)
    workers = getattr(executor, "workers", None) or (cores() if local else None)
    plan = [PlannedRun(_name(run), str(run), cost(run)) for run in study.runs]
    with _exclusive(folder), announce_study(folder, study.title or study.name, plan, workers=workers) as live:
        _remove_leftovers(folder, study)
        todo = [run for run in study.runs if _read(folder, run) is None]
        _check_size(todo, local=local)
        reused = len(study.runs) - len(todo)
        if began:
            began(len(study.runs), reused)
        failed: dict[str, str] = {}
        try:
            if todo:
                failed = _run_all(study, todo, folder, executor, progress, news, live)
        finally:  # whatever happens, finished runs are collected
            outcome = _collect(study, folder, time.monotonic() - clock, reused, failed, started)
        return outcome


def read_study(folder: str | Path) -> Outcome:
    """Read the results of a study from its directory, even if it is not complete."""
    folder = Path(folder)
    manifest = read_manifest(folder)
    try:
        study, table = Study.model_validate(manifest.study), _parquet(folder / "results.parquet", manifest.sha256)
    except (OSError, ValueError, KeyError) as error:
        raise _no_results(folder, str(error)) from None
    return Outcome(study, folder, table, manifest.seconds, manifest.reused, manifest.failed, manifest.warned)


def read_manifest(folder: Path) -> Manifest:
    """Read how the study in a directory was run."""
    try:
        return Manifest.model_validate_json((folder / "manifest.json").read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, ("manifest.json", *first["loc"])))
        raise _no_results(folder, f"{where}: {first['msg']}") from None
    except OSError as error:
        raise _no_results(folder, str(error)) from None


def _no_results(folder: Path, why: str) -> FileError:
    return FileError(
        f"{folder} holds no results of a study ({' '.join(why.split())[:200]}); perron study run makes them."
    )


# ---- running


class _Progress:
    """The progress of all runs; it writes the live files of those runs whose workers do not see the directory."""

    def __init__(self, jobs: list[Job]) -> None:
        self.jobs, self.work = jobs, [cost(job.run) for job in jobs]
        self.ended: set[int] = set()
        self.reports: dict[int, Report] = {}  # of the runs in progress
        self.records: dict[int, Records] = {}
        self.files = ExitStack()

    def receive(self, place: int, report: Report) -> None:
        """Take the report of a run."""
        if place in self.ended:
            return
        self.reports[place] = report
        if report.recorded or not report.values:
            return
        if place not in self.records:
            live = Records(self.jobs[place].target.with_suffix(LIVE), {})
            self.records[place] = self.files.enter_context(live)
        if report.step > (records := self.records[place]).last:
            records.steps = report.steps
            records(report.step, **report.values)

    def end(self, place: int, *, failed: bool) -> None:
        """Count a run as done."""
        self.ended.add(place)
        self.reports.pop(place, None)
        if records := self.records.pop(place, None):
            records.close(ended=not failed)

    def share(self) -> float:
        """Return the share of all work that is done."""
        shares = {place: report.share for place, report in self.reports.items()} | dict.fromkeys(self.ended, 1.0)
        return sum(work * shares.get(place, 0.0) for place, work in enumerate(self.work)) / sum(self.work)

    def line(self) -> str:
        """Return a line about a run in progress, each in turn; empty if there is none."""
        places = sorted(place for place, report in self.reports.items() if report.step)
        if not places:
            return ""
        place = places[int(time.monotonic() / TURN) % len(places)]
        report = self.reports[place]
        line = f"{self.jobs[place].run}: step {report.step} of {report.steps}"
        return ", ".join(filter(None, (line, format_values(report.values))))


def _run_all(
    study: Study,
    todo: list[Run],
    folder: Path,
    executor: Executor,
    progress: Callable[[float], None] | None,
    news: Callable[[str], None] | None,
    live: Records,
) -> dict[str, str]:
    """Let an executor do the runs; return the reasons of failures, by run."""
    queue = sorted(todo, key=cost, reverse=True)  # long ones first: the workers finish together
    options = (study.save_every, study.timeout, versions())
    jobs = [Job(run, (folder / "runs" / _name(run)).absolute(), *options) for run in queue]
    state, failed = _Progress(jobs), {}
    with state.files, closing(executor.run(jobs, state.receive)) as ends:
        for end in ends:
            if end is not None:
                place, reason = end
                run, target = jobs[place].run, jobs[place].target
                if reason is None and not target.with_suffix(".parquet").exists():
                    reason = "ended, but its results are not there"
                if reason is not None:
                    failed[run.key] = f"{run}: {reason}"
                    live.event(reason, run=target.name)
                state.end(place, failed=reason is not None)
            if progress:
                progress(state.share())
            if news and (line := state.line()):
                news(line)
    return {run.key: failed[run.key] for run in todo if run.key in failed}


def _check_size(runs: list[Run], *, local: bool) -> None:
    """Refuse runs that no memory holds, before anything is made; of runs on this machine, those that its memory does not hold."""
    have = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for run in runs:
        try:
            check_nodes(run.nodes)
        except GraphError as error:
            raise PerronError(f"{run}: {error}") from None
        if local and (need := memory(run)) > have:
            raise PerronError(
                f"{run}: it would need about {need / 1e9:,.0f} GB of memory, and this machine has {have / 1e9:,.0f} GB. Take "
                "fewer nodes, trials or dimensions, or another machine (--on)."
            )


# ---- files


@contextmanager
def _exclusive(folder: Path) -> Iterator[None]:
    """Refuse to run a study in a directory where another process runs one."""
    try:
        (folder / "runs").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"Cannot write to {folder}: {error.strerror}.") from None
    busy = f"Another process is running a study in {folder}"
    with exclusive_lock(folder / "lock", busy, "wait for it, or choose another --out"):
        yield


def _remove_leftovers(folder: Path, study: Study) -> None:
    """Remove files that no run will resume from, which can be gigabytes: those of other code or studies, and incomplete ones."""
    suffixes = (PARTIAL, LIVE, BEFORE, f"{PARTIAL}{LOCK}")
    kept = {f"{_name(run)}{suffix}" for run in study.runs for suffix in suffixes}
    for path in (folder / "runs").iterdir():
        if path.suffix == ".part" or (path.name.endswith(suffixes) and path.name not in kept):
            path.unlink(missing_ok=True)


def _name(run: Run) -> str:
    return f"{run.key}-{code()}"


def _read(folder: Path, run: Run) -> tuple[RunFacts, pd.DataFrame] | None:
    """Return the facts and the table of a finished run; None if a file is missing or damaged."""
    path = folder / "runs" / f"{_name(run)}.parquet"
    try:
        facts = RunFacts.model_validate_json(path.with_suffix(".json").read_bytes())
        return facts, _parquet(path, facts.sha256)
    except (OSError, ValueError):
        return None


def _parquet(path: Path, digest: str) -> pd.DataFrame:
    """Read a table, or raise a ValueError if it lacks columns or its SHA-256 is another one (any if empty: older tables)."""
    import pandas as pd

    content = path.read_bytes()
    if digest and digest != (own := sha256(content).hexdigest()):
        raise ValueError(f"{path.name} is damaged: its SHA-256 is {own[:16]}... instead of {digest[:16]}...")
    table = pd.read_parquet(io.BytesIO(content))
    lacking = sorted(set(COLUMNS) - set(table.columns))
    if lacking and len(table.columns):  # a study of which no run is finished has a table without columns
        raise ValueError(f"{path.name} has no column {', '.join(lacking)}")
    return table


def _collect(
    study: Study, folder: Path, seconds: float, reused: int, failed: dict[str, str], started: datetime
) -> Outcome:
    """Join the tables of all finished runs, and write the table and the manifest."""
    import numpy as np
    import pandas as pd
    import torch

    from perron import __version__

    found = {run.key: (run, *files) for run in study.runs if (files := _read(folder, run)) is not None}
    table = pd.concat([own for _, _, own in found.values()], ignore_index=True) if found else pd.DataFrame()
    warned = {key: f"{run}: {'; '.join(facts.warnings)}" for key, (run, facts, _) in found.items() if facts.warnings}
    outcome = Outcome(study, folder, table, seconds, reused, failed, warned)
    content = table.to_parquet(index=False)
    write_bytes(folder / "results.parquet", content)
    each = {key: facts.seconds for key, (_, facts, _) in found.items()}
    manifest = Manifest(
        study=study.model_dump(mode="json"),
        perron=__version__,
        commit=commit(),
        code=code(),
        seeds=study.seeds,
        machine={
            "system": platform.platform(),
            "processor": platform.machine(),
            "cores": cores(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
        },
        started=started,
        seconds=round(seconds, 1),
        core_seconds=round(sum(each.values()), 1),
        runs=each,
        reused=reused,
        failed=failed,
        warned=warned,
        sha256=sha256(content).hexdigest(),
    )
    fields = manifest.model_dump(mode="json") | {"started": started.isoformat(timespec="seconds")}
    write_bytes(folder / "manifest.json", (json.dumps(fields, indent=2) + "\n").encode())
    return outcome

"""Running a study: on all cores or many machines, one process for each run, resumable, into one flat table.

Besides the results (`perron.studies.results`), a study's directory holds

    runs/KEY-CODE.partial   the checkpoint of a run, saved once a minute, from which it resumes bit for bit (and .before: the
                            checkpoint before that, in case of damage)
    runs/KEY-CODE.live      the progress of a run, for `perron watch` (`perron.monitor.records`)
    live.jsonl              the list of runs and failures, likewise; locked while a process runs the study

Everything is written atomically, and a finished run is never repeated, so a study may be killed at any moment and run again.
Numbers depend on the seeds only; durations are in the JSON files, so the same study gives the same table. Results of other code
and of other studies in the same directory stay as they are.
"""

from __future__ import annotations

import os
import platform
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

from perron._storage.atomic import PART, make_own_directory
from perron._storage.lockfile import exclusive_lock
from perron.errors import FileError, GraphError, PerronError
from perron.monitor.progress import format_values
from perron.monitor.records import LIVE, Records
from perron.monitor.status import PlannedRun, announce_study
from perron.networks._checks import check_nodes
from perron.studies.executors import Executor, Local, cores
from perron.studies.job import PARTIAL, Job, Report, cost, memory
from perron.studies.provenance import code, commit, versions
from perron.studies.results import (
    RUN_FILE,
    RUNS,
    Manifest,
    Outcome,
    join_runs,
    read_run,
    read_study,
    replace_table,
    run_name,
    set_aside,
)
from perron.studies.run import Run
from perron.studies.spec import Study

__all__ = ["Outcome", "read_study", "run_study"]

TURN = 7.0  # seconds for which messages are about the same run
RUN_NAME = re.compile(r"[0-9a-f]{16}-\w{1,40}\.")  # the beginning of the names of a run's files


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
    notice: Callable[[str], None] | None = None,
) -> Outcome:
    """Do all runs that have no results yet, and write the table.

    Args:
        folder: the study's directory.
        workers: the number of processes; by default one for each core that this process may use.
        executor: does the runs, see `perron.studies.executors`; by default processes on this machine. ``pool`` is its old name.
        progress: called now and then with the share of the work that is done.
        began: called once with the number of runs and of those that are done already.
        news: called now and then with a line about a run in progress: its step, and the last measured values.
        notice: called with a sentence about results in the directory that are not used, and where a table is kept.

    A run that is killed, hangs or raises an error is named in ``Outcome.failed`` and does not affect the others. Ctrl-C stops;
    finished runs stay, and unfinished ones resume from their last checkpoint. A table that the new one does not contain, of other
    code or another study, is kept (`Outcome.kept`).
    """
    folder = Path(folder)
    if study.is_tuned:
        from perron.studies.tuner import tune

        options: dict[str, Any] = {
            "workers": workers,
            "executor": executor,
            "pool": pool,
            "news": news,
            "notice": notice,
        }
        tuning = tune(study, folder / "tuning", partial(run_study, **options))
        study = tuning.study
        if notice:
            notice(" ".join(tuning.conclusion.sentences))
    started, clock = datetime.now(UTC), time.monotonic()
    executor = executor or pool or Local(workers=workers)
    local = isinstance(executor, Local)
    workers = getattr(executor, "workers", None) or (cores() if local else None)
    plan = [PlannedRun(run_name(run), str(run), cost(run)) for run in study.runs]
    say = notice or (lambda _: None)
    executor.check()  # before anything is written
    with _exclusive(folder):
        todo = [run for run in study.runs if read_run(folder, run) is None]
        _check_size(todo, local=local)
        _prepare(folder, todo)
        reused, other = len(study.runs) - len(todo), _other_code(folder, todo)
        for sentence in _remarks(folder, study, other):
            say(sentence)
        with announce_study(folder, study.title or study.name, plan, workers=workers) as live:
            if began:
                began(len(study.runs), reused)
            failed: dict[str, str] = {}
            try:
                if todo:
                    failed = _run_all(study, todo, folder, executor, progress, news, live)
            finally:  # whatever happens, finished runs are collected
                outcome = _collect(study, folder, time.monotonic() - clock, reused, failed, started)
                if outcome.kept:
                    say(f"The table that was there before is kept; perron study show {outcome.kept} shows it.")
        outcome.other_code = other
        return outcome


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
    jobs = [Job(run, (folder / "runs" / run_name(run)).absolute(), *options) for run in queue]
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
    have = _machine_memory()
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


def _machine_memory() -> float:
    """Return the bytes of memory of this machine; infinity if the system does not tell, as on Windows."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError):
        return inf


# ---- files


@contextmanager
def _exclusive(folder: Path) -> Iterator[None]:
    """Refuse to run a study in a directory where another process runs one."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"Cannot write to {folder}: {error.strerror}.") from None
    busy = f"Another process is running a study in {folder}"
    with exclusive_lock(folder / "lock", busy, "wait for it, or choose another --out"):
        yield


def _prepare(folder: Path, todo: list[Run]) -> None:
    """Remove the temporary files of runs that were killed, and set aside results that cannot be read."""
    make_own_directory(folder / RUNS)
    for path in (folder / RUNS).iterdir():
        if (match := PART.fullmatch(path.name)) and RUN_NAME.match(match[1]):
            path.unlink(missing_ok=True)
    for run in todo:
        set_aside(folder / RUNS / f"{run_name(run)}.parquet")


def _other_code(folder: Path, todo: list[Run]) -> dict[str, int]:
    """Return how many of these runs have results of other code, by its hash."""
    keys = {run.key for run in todo}
    matches = [RUN_FILE.fullmatch(path.name) for path in (folder / RUNS).glob("*.parquet")]
    return dict(Counter(match[2] for match in matches if match and match[1] in keys and match[2] != code()))


def _remarks(folder: Path, study: Study, other: dict[str, int]) -> Iterator[str]:
    """Yield sentences about results and checkpoints in the directory that this study does not use."""
    for hashed, count in other.items():
        yield (
            f"{count} of {len(study.runs)} runs have results of other code ({hashed}), which are kept but not used; "
            f"perron study show {folder} --code {hashed} shows them."
        )
    own = {run_name(run) for run in study.runs}
    unfinished = [path for path in (folder / RUNS).glob(f"*{PARTIAL}") if path.name.removesuffix(PARTIAL) not in own]
    if unfinished:
        size = sum(path.stat().st_size for path in unfinished)
        yield (
            f"{folder / RUNS} has checkpoints of {len(unfinished)} unfinished runs of other code or other studies "
            f"({size / 1e6:,.1f} MB); this study does not use them."
        )


def _collect(
    study: Study, folder: Path, seconds: float, reused: int, failed: dict[str, str], started: datetime
) -> Outcome:
    """Join the tables of all finished runs, and write the table and the manifest."""
    import numpy as np
    import torch

    from perron import __version__

    table, each, warned = join_runs(folder, study)
    manifest = Manifest(
        study=study.fixed.model_dump(mode="json"),
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
    )
    written, kept = replace_table(folder, table, manifest)
    return Outcome(study, folder, table, seconds, reused, failed, warned, kept=kept, written=written, manifest=manifest)

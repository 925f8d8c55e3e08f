"""Running a study: on all cores or many machines, one process for each run, resumable, into one flat table.

A study's directory holds

    runs/KEY.parquet   the table of one finished run, KEY a hash of all that decides its numbers (and of perron's own code)
    runs/KEY.json      its parameters, its duration, and warnings
    runs/KEY.partial   a run under way, saved once a minute; the next time it goes on from there, bit for bit (and .before:
                       what was saved before that, in case of damage)
    runs/KEY.live      what it measures meanwhile, for who watches it (`perron.monitor.records`)
    live.jsonl         which runs there are and which failed, likewise; locked while a process is at work
    results.parquet    all runs: a row for each run, recorded step and trial; each parameter a column
    manifest.json      version, commit, seeds, machine, duration, and how each run ended

Everything is written atomically, and a finished run is never done again, so a study may be killed at any moment and run
again. Numbers depend on the seeds only; durations stand in the JSON files, so the same study gives the same table.
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
from perron.studies.executors import Local, Pool, cores
from perron.studies.job import BEFORE, PARTIAL, Job, Report, cost, memory
from perron.studies.provenance import code, commit, versions
from perron.studies.run import Run
from perron.studies.spec import Study

if TYPE_CHECKING:
    import pandas as pd

TURN = 7.0  # seconds for which one run is in the news

COLUMNS = ("run", "topology", "nodes", "weights", "algorithm", "lr", "step", "trial")  # of every table of results
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Manifest(BaseModel):
    """What manifest.json says: how a study was run, on which machine, and how each run ended."""

    study: dict[str, Any]
    perron: str = ""
    commit: str | None = None
    code: str = ""
    machine: dict[str, str | int] = {}
    started: datetime | None = None
    seconds: Seconds
    core_seconds: Seconds = 0.0
    runs: dict[str, Seconds] = {}
    reused: NonNegativeInt
    failed: dict[str, str]
    warned: dict[str, str]
    sha256: str = ""  # of results.parquet


class Said(BaseModel):
    """What a run says of itself, in the file beside its table."""

    seconds: Seconds
    warnings: list[str]
    sha256: str = ""  # of the table


@dataclass
class Outcome:
    """How a study ended; ``failed`` and ``warned`` say what happened to which run."""

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
        """How many runs have results."""
        return 0 if self.table.empty else int(self.table["run"].nunique())


def run_study(
    study: Study,
    folder: str | Path,
    *,
    workers: int | None = None,
    pool: Pool | None = None,
    progress: Callable[[float], None] | None = None,
    began: Callable[[int, int], None] | None = None,
    news: Callable[[str], None] | None = None,
) -> Outcome:
    """Do all runs that have no results yet, and write the table.

    Args:
        folder: the study's directory.
        workers: processes; by default as many as this process may use cores.
        pool: who does the runs, see `perron.studies.executors`; by default processes on this machine.
        progress: called now and then with the share of the work that is done.
        began: called once with the number of runs and of those that are done already.
        news: called now and then with a line about a run that is under way: its step, and what was measured last.

    A run that is killed, hangs or raises an error is named in ``Outcome.failed`` and harms no other. Ctrl-C stops; finished
    runs stay, and those under way are kept as of a minute ago, or longer where saving takes long.
    """
    folder = Path(folder)
    started, clock = datetime.now(UTC), time.monotonic()
    pool = pool or Local(workers=workers)
    workers = getattr(pool, "workers", None) or (cores() if isinstance(pool, Local) else None)
    plan = [PlannedRun(_name(run), str(run), cost(run)) for run in study.runs]
    with _alone(folder), announce_study(folder, study.title or study.name, plan, workers=workers) as live:
        _clear(folder, study)
        todo = [run for run in study.runs if _read(folder, run) is None]
        _check_size(todo, here=isinstance(pool, Local))
        if began:
            began(len(study.runs), len(study.runs) - len(todo))
        outcome = Outcome(study, folder, table=None, seconds=0.0, reused=len(study.runs) - len(todo))
        try:
            if todo:
                outcome.failed = _run_all(study, todo, folder, pool, progress, news, live)
        finally:  # whatever happens, what is finished is collected
            outcome.seconds, outcome.table = time.monotonic() - clock, _collected(study, folder)
            told = _told(study, folder)
            outcome.warned = {
                run.key: f"{run}: {'; '.join(told[run.key].warnings)}"
                for run in study.runs
                if run.key in told and told[run.key].warnings
            }
            content = outcome.table.to_parquet(index=False)
            write_bytes(folder / "results.parquet", content)
            manifest = _manifest(outcome, started, told) | {"sha256": sha256(content).hexdigest()}
            _write_json(folder / "manifest.json", manifest)
        return outcome


def read_study(folder: str | Path) -> Outcome:
    """The results that a study left in its directory, as far as it came."""
    folder = Path(folder)
    said = read_manifest(folder)
    try:
        study, table = Study.model_validate(said.study), _parquet(folder / "results.parquet", said.sha256)
    except (OSError, ValueError, KeyError) as error:
        raise _no_results(folder, str(error)) from None
    return Outcome(study, folder, table, said.seconds, said.reused, said.failed, said.warned)


def read_manifest(folder: Path) -> Manifest:
    """How the study in a directory was run."""
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


def _run_all(
    study: Study,
    todo: list[Run],
    folder: Path,
    pool: Pool,
    progress: Callable[[float], None] | None,
    news: Callable[[str], None] | None,
    live: Records,
) -> dict[str, str]:
    """Have a pool do the runs; what went wrong, by run."""
    queue = sorted(todo, key=cost, reverse=True)  # long ones first: the workers finish together
    files = [(folder / "runs" / _name(run)).absolute() for run in queue]
    made_with = versions()
    jobs = [
        Job(run, target, save_every=study.save_every, timeout=study.timeout, versions=made_with)
        for run, target in zip(queue, files, strict=True)
    ]
    work = [cost(run) for run in queue]
    shares = [0.0] * len(queue)
    reports: dict[int, Report] = {}  # of the runs under way
    records: dict[int, Records] = {}
    begun = time.time() - 1.0  # clocks of file systems are coarse
    failed: dict[str, str] = {}

    def told(place: int, report: Report) -> None:
        if shares[place] < 1.0:
            reports[place], shares[place] = report, report.share
            if report.values and (place in records or unseen(files[place])):
                if place not in records:
                    records[place] = open_records.enter_context(Records(files[place].with_suffix(LIVE), {}))
                if report.step > (written := records[place]).last:
                    written.steps = report.steps
                    written(report.step, **report.values)

    def unseen(target: Path) -> bool:
        """Whether a worker does not see the directory, and so writes no records; then we do."""
        try:
            fresh = target.with_suffix(LIVE).stat().st_mtime > begun
        except OSError:  # a worker removes it when its run is finished
            fresh = False
        return not fresh and not target.with_suffix(".parquet").exists()

    with ExitStack() as open_records, closing(pool.run(jobs, told)) as ends:
        for end in ends:
            if end is not None:
                place, said = end
                if said is None and not files[place].with_suffix(".parquet").exists():
                    said = "ended, but its results are not there"
                if said is not None:
                    failed[queue[place].key] = f"{queue[place]}: {said}"
                    live.event(said, run=files[place].name)
                reports.pop(place, None)
                if written := records.pop(place, None):
                    written.close(ended=said is None)
                shares[place] = 1.0
            if progress:
                progress(sum(weight * share for weight, share in zip(work, shares, strict=True)) / sum(work))
            if news and (under_way := [place for place, report in reports.items() if report.step]):
                place = sorted(under_way)[int(time.monotonic() / TURN) % len(under_way)]
                news(_news(queue[place], reports[place]))
    return {run.key: failed[run.key] for run in todo if run.key in failed}


def _check_size(runs: list[Run], *, here: bool) -> None:
    """Refuse what no memory holds, before anything is made; of runs on this machine, what its memory does not hold."""
    have = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for run in runs:
        try:
            check_nodes(run.nodes)
        except GraphError as error:
            raise PerronError(f"{run}: {error}") from None
        if here and (need := memory(run)) > have:
            raise PerronError(
                f"{run}: it would need about {need / 1e9:,.0f} GB of memory, and this machine has {have / 1e9:,.0f} GB. Take "
                "fewer nodes, trials or dimensions, or another machine (--on)."
            )


def _news(run: Run, report: Report) -> str:
    said = f"{run}: step {report.step} of {report.steps}"
    return f"{said}, {measured}" if (measured := format_values(report.values)) else said


# ---- files


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Nobody else runs a study in this directory meanwhile."""
    try:
        (folder / "runs").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"Cannot write to {folder}: {error.strerror}.") from None
    busy = f"Another process is running a study in {folder}"
    with exclusive_lock(folder / "lock", busy, "wait for it, or choose another --out"):
        yield


def _clear(folder: Path, study: Study) -> None:
    """Remove what nobody will go on with, which can be gigabytes: runs under way of other code or other studies, half files."""
    suffixes = (PARTIAL, LIVE, BEFORE, f"{PARTIAL}{LOCK}")
    kept = {f"{_name(run)}{suffix}" for run in study.runs for suffix in suffixes}
    for path in (folder / "runs").iterdir():
        if path.suffix == ".part" or (path.name.endswith(suffixes) and path.name not in kept):
            path.unlink(missing_ok=True)


def _name(run: Run) -> str:
    return f"{run.key}-{code()}"


def _read(folder: Path, run: Run) -> pd.DataFrame | None:
    """The table of a finished run; None if it or what it said of itself is not there or damaged."""
    path = folder / "runs" / f"{_name(run)}.parquet"
    try:
        return _parquet(path, said.sha256) if (said := _said(path.with_suffix(".json"))) else None
    except (OSError, ValueError):
        return None


def _said(path: Path) -> Said | None:
    """None if it is not there or damaged."""
    try:
        return Said.model_validate_json(path.read_bytes())
    except (OSError, ValueError):
        return None


def _parquet(path: Path, digest: str) -> pd.DataFrame:
    """A table with the SHA-256 that it should have (any if empty: older ones); a ValueError if it is not what it should be."""
    import pandas as pd

    content = path.read_bytes()
    if digest and digest != (own := sha256(content).hexdigest()):
        raise ValueError(f"{path.name} is damaged: its SHA-256 is {own[:16]}... instead of {digest[:16]}...")
    found = pd.read_parquet(io.BytesIO(content))
    lacking = sorted(set(COLUMNS) - set(found.columns))
    if lacking and len(found.columns):  # a study of which no run is finished has a table without columns
        raise ValueError(f"{path.name} has no column {', '.join(lacking)}")
    return found


def _collected(study: Study, folder: Path) -> pd.DataFrame:
    import pandas as pd

    tables = [table for run in study.runs if (table := _read(folder, run)) is not None]
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()


def _write_json(path: Path, content: Any) -> None:
    write_bytes(path, (json.dumps(content, indent=2) + "\n").encode())


def _told(study: Study, folder: Path) -> dict[str, Said]:
    """What each finished run said of itself."""
    found = {run.key: _said(folder / "runs" / f"{_name(run)}.json") for run in study.runs}
    return {key: said for key, said in found.items() if said is not None}


def _manifest(outcome: Outcome, started: datetime, told: dict[str, Said]) -> dict[str, Any]:
    import numpy as np
    import torch

    from perron import __version__

    seconds = {key: said.seconds for key, said in told.items()}
    return {
        "study": outcome.study.model_dump(mode="json"),
        "perron": __version__,
        "commit": commit(),
        "code": code(),
        "seeds": outcome.study.seeds,
        "machine": {
            "system": platform.platform(),
            "processor": platform.machine(),
            "cores": cores(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
        },
        "started": started.isoformat(timespec="seconds"),
        "seconds": round(outcome.seconds, 1),
        "core_seconds": round(sum(seconds.values()), 1),
        "runs": seconds,
        "reused": outcome.reused,
        "failed": outcome.failed,
        "warned": outcome.warned,
    }

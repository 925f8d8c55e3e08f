"""Running a study: on all cores, one process for each run, resumable, into one flat table.

A study's directory holds

    runs/KEY.parquet   the table of one finished run, KEY a hash of all that decides its numbers (and of perron's own code)
    runs/KEY.json      its parameters, its duration, and warnings
    runs/KEY.partial   a run under way, saved once a minute; the next time it goes on from there, bit for bit
    results.parquet    all runs: a row for each run, recorded step and trial; each parameter a column
    manifest.json      version, commit, seeds, machine, duration, and how each run ended

Everything is written atomically, and a finished run is never done again, so a study may be killed at any moment and run
again. Numbers depend on the seeds only; durations stand in the JSON files, so the same study gives the same table.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import platform
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from math import isnan, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout
from threadpoolctl import threadpool_limits

from perron.atomic import write_bytes
from perron.errors import FileError, PerronError
from perron.progress import spoken
from perron.run import Run
from perron.study import Study

if TYPE_CHECKING:
    import pandas as pd

# What only looks at results, or gets files, does not decide them.
LOOKERS = {
    "cli.py",
    "study_cli.py",
    "data_cli.py",
    "design_cli.py",
    "advise_cli.py",
    "paper_cli.py",
    "report_cli.py",
    "command.py",
    "arguments.py",
    "named.py",
    "plain.py",
    "fetch.py",
    "plots.py",
    "speedup.py",
    "conclusions",
    "report",
}
POLL = 0.25  # seconds between looks at the progress
TURN = 7.0  # seconds for which one run is in the news
TOLD = ("loss_mean", "grad_norm_sq", "test_accuracy")  # of a run under way, besides its step
FACTS = 3 + len(TOLD)
PARTIAL = ".partial"
_shared: Any = None  # in a worker: how far each run is
_parent = 0


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
        return not self.failed


def run_study(
    study: Study,
    folder: str | Path,
    *,
    workers: int | None = None,
    progress: Callable[[float], None] | None = None,
    began: Callable[[int, int], None] | None = None,
    news: Callable[[str], None] | None = None,
) -> Outcome:
    """Do all runs that have no results yet, and write the table.

    Args:
        folder: the study's directory.
        workers: processes; by default as many as this process may use cores.
        progress: called now and then with the share of the work that is done.
        began: called once with the number of runs and of those that are done already.
        news: called now and then with a line about a run that is under way: its step, and what was measured last.

    A run that is killed, hangs or raises an error is named in ``Outcome.failed`` and harms no other. Ctrl-C stops; finished
    runs stay, and those under way are kept as of a minute ago, or longer where saving takes long.
    """
    folder = Path(folder)
    started, clock = datetime.now(UTC), time.monotonic()
    with _alone(folder):
        _clear(folder, study)
        todo = [run for run in study.runs if _read(folder, run) is None]
        if began:
            began(len(study.runs), len(study.runs) - len(todo))
        outcome = Outcome(study, folder, table=None, seconds=0.0, reused=len(study.runs) - len(todo))
        try:
            if todo:
                outcome.failed = _run_all(study, todo, folder, workers or cores(), progress, news)
        finally:  # whatever happens, what is finished is collected
            outcome.seconds, outcome.table = time.monotonic() - clock, _collected(study, folder)
            told = _told(study, folder)
            outcome.warned = {
                run.key: f"{run}: {'; '.join(told[run.key]['warnings'])}"
                for run in study.runs
                if told.get(run.key, {}).get("warnings")
            }
            write_bytes(folder / "results.parquet", outcome.table.to_parquet(index=False))
            _write_json(folder / "manifest.json", _manifest(outcome, started, told))
        return outcome


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def read_study(folder: str | Path) -> Outcome:
    """The results that a study left in its directory, as far as it came."""
    folder = Path(folder)
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        study = Study.model_validate(manifest["study"])
        table = _parquet(folder / "results.parquet")
        return Outcome(study, folder, table, *(manifest[name] for name in ("seconds", "reused", "failed", "warned")))
    except (OSError, ValueError, KeyError) as error:
        why = " ".join(str(error).split())[:200]
        raise FileError(f"{folder} holds no results of a study ({why}); perron study run makes them.") from None


def do(
    run: Run,
    tell: Callable[[int, int, Mapping[str, float]], None] | None = None,
    kept: Path | None = None,
    save_every: float = 60.0,
) -> tuple[pd.DataFrame, list[str]]:
    """One run: its table, and the warnings it gave. It is kept in a file, if given, and goes on from it."""
    import torch

    from perron.network import Network
    from perron.simulation import simulate

    problem, algorithm, mixing = run.build()
    network = Network(mixing)
    lr, steps = run.rate(algorithm, network, problem.smoothness)
    with warnings.catch_warnings(record=True) as caught, torch.no_grad():
        warnings.simplefilter("always")
        history = simulate(
            problem,
            algorithm,
            mixing,
            steps=steps,
            lr=lr,
            every=run.every,
            metrics=run.metrics,
            final_metrics=run.final_metrics,
            trials=run.trials,
            seed=run.seed,
            dtype=getattr(torch, run.precision) if run.precision else None,
            device=run.device,
            progress=(lambda step, values: tell(step, steps, values)) if tell else False,
            checkpoint=kept,
            save_every=save_every,
        )
    if history.interrupted:
        raise KeyboardInterrupt  # half a run is none
    facts = _facts(network) | {"lr": lr, "steps": steps, "effective_step": lr * algorithm.effective_step(network)}
    facts["predicted"] = _predicted(problem, facts["effective_step"])
    table = history.frame().drop(columns=["algorithm", "network", "nodes", "lr", "seed"])
    measured = list(history.values)
    table = table.assign(**run.columns, **facts)
    first = [*run.columns, *facts]
    return table[[*first, "step", "trial", *measured]], [str(warning.message) for warning in caught]


def _facts(network: Any) -> dict[str, float]:
    """The network's numbers that theory speaks of."""
    both = network.mixing.has_pull and network.mixing.has_push
    return {
        "c": network.alignment if both else float("nan"),
        "s_A": network.pull_sum if network.mixing.has_pull else float("nan"),
        "s_B": network.push_sum if network.mixing.has_push else float("nan"),
    }


def _predicted(problem: Any, step: float) -> float:
    from perron.theory import noise_floor

    try:
        return noise_floor(problem, step)
    except PerronError:
        return float("nan")


# ---- the pool


def _run_all(
    study: Study,
    todo: list[Run],
    folder: Path,
    workers: int,
    progress: Callable[[float], None] | None,
    news: Callable[[str], None] | None,
) -> dict[str, str]:
    """Do the runs in a pool of processes; what went wrong, by run."""
    from pebble import ProcessPool

    context = multiprocessing.get_context("spawn")
    shared = context.RawArray("d", FACTS * len(todo))  # without a lock, which a killed worker would keep
    work = [cost(run) for run in todo]
    order = sorted(range(len(todo)), key=lambda i: -work[i])  # long ones first: the cores finish together
    places = {run.key: i for i, run in enumerate(todo)}
    failed: dict[str, str] = {}
    pool = ProcessPool(
        max_workers=min(workers, len(todo)), context=context, initializer=_begin, initargs=(shared, os.getpid())
    )
    try:
        futures: dict[Any, Run] = {}
        with _without_interrupts():
            for i in order:
                arguments = [todo[i], i, folder / "runs" / _name(todo[i]), study.save_every]
                futures[pool.schedule(_work, args=arguments, timeout=60 * study.timeout)] = todo[i]
        pending: set[Any] = set(futures)
        while pending:
            done, pending = wait(pending, timeout=POLL)
            for future in done:
                run = futures[future]
                if said := _ended(future, study.timeout):
                    failed[run.key] = f"{run}: {said}"
                shared[FACTS * places[run.key]] = 1.0
            shares = shared[::FACTS]
            if progress:
                progress(sum(weight * share for weight, share in zip(work, shares, strict=True)) / sum(work))
            if news and (under_way := [i for i, share in enumerate(shares) if 0 < share < 1]):
                turn = under_way[int(time.monotonic() / TURN) % len(under_way)]
                news(_news(todo[turn], shared[FACTS * turn : FACTS * (turn + 1)]))
        pool.close()  # type: ignore[no-untyped-call]
    finally:
        pool.stop()  # type: ignore[no-untyped-call]
        pool.join()
    return {run.key: failed[run.key] for run in todo if run.key in failed}


def _news(run: Run, facts: list[float]) -> str:
    _, step, steps, *values = facts
    measured = {name: value for name, value in zip(TOLD, values, strict=True) if not isnan(value)}
    said = f"{run}: step {step:.0f} of {steps:.0f}"
    return f"{said}, {spoken(measured)}" if measured else said


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Threads and processes that start within it never see Ctrl-C, which a terminal sends to all; this thread does afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def cost(run: Run) -> float:
    """How much work a run is, in gradients of one node."""
    longest = run.steps if run.horizon is None or isinstance(run.lr, str) else min(run.steps, run.horizon / run.lr)
    return run.nodes * run.trials * longest + 1


def _ended(future: Any, minutes: float) -> str | None:
    """What went wrong with a run, or None."""
    from pebble import ProcessExpired

    try:
        future.result()
    except TimeoutError:
        return f"took longer than timeout = {minutes:g} minutes and was stopped"
    except ProcessExpired as error:
        return f"its process was killed (exit code {error.exitcode})"
    except PerronError as error:
        return str(error)
    except MemoryError:
        return "ran out of memory"
    except Exception as error:  # whatever it is, the other runs go on and this one is named
        return f"{type(error).__name__}: {error}"
    return None


def _begin(shared: Any, parent: int) -> None:
    """What each worker does first."""
    global _shared, _parent
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then stops the workers
    _shared, _parent = shared, parent
    torch.set_num_threads(1)  # small tensors are faster on one thread, and the workers share the cores
    threadpool_limits(1)


def _work(run: Run, place: int, target: Path, save_every: float) -> None:
    """A run in a worker; its files are the target with a suffix."""

    def tell(step: int, steps: int, values: Mapping[str, float]) -> None:
        if os.getppid() != _parent:  # the study was killed: don't go on as an orphan
            sys.exit(1)
        facts = [step / max(steps, 1), step, steps, *(values.get(name, nan) for name in TOLD)]
        _shared[FACTS * place : FACTS * (place + 1)] = facts

    started, kept = time.perf_counter(), target.with_suffix(PARTIAL)
    table, warned = do(run, tell, kept, save_every)
    told = {"run": run.model_dump(mode="json"), "seconds": round(time.perf_counter() - started, 3), "warnings": warned}
    _write_json(target.with_suffix(".json"), told)
    write_bytes(target.with_suffix(".parquet"), table.to_parquet(index=False))  # last: now it is finished
    kept.unlink(missing_ok=True)


# ---- files


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Nobody else runs a study in this directory meanwhile."""
    try:
        (folder / "runs").mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / "lock", timeout=0)
        lock.acquire()
    except Timeout:
        raise PerronError(
            f"Another process is running a study in {folder}; wait for it, or choose another --out."
        ) from None
    except OSError as error:
        raise FileError(f"Cannot write to {folder}: {error.strerror}.") from None
    try:
        yield
    finally:
        lock.release()


def _clear(folder: Path, study: Study) -> None:
    """Remove what nobody will go on with, which can be gigabytes: runs under way of other code or other studies, half files."""
    kept = {f"{_name(run)}{PARTIAL}" for run in study.runs}
    for path in (folder / "runs").iterdir():
        if path.suffix == ".part" or (path.suffix == PARTIAL and path.name not in kept):
            path.unlink(missing_ok=True)


def _name(run: Run) -> str:
    return f"{run.key}-{code()}"


def _read(folder: Path, run: Run) -> pd.DataFrame | None:
    """The table of a finished run; None if it or what it said of itself is not there or damaged."""
    path = folder / "runs" / f"{_name(run)}.parquet"
    try:
        return _parquet(path) if _said(path.with_suffix(".json")) else None
    except (OSError, ValueError):
        return None


def _said(path: Path) -> dict[str, Any]:
    """What a run said of itself; empty if it is not there or damaged."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return found if {"seconds", "warnings"} <= set(found) else {}
    except (OSError, ValueError, TypeError):
        return {}


def _parquet(path: Path) -> pd.DataFrame:
    import pandas as pd

    return pd.read_parquet(path)


def _collected(study: Study, folder: Path) -> pd.DataFrame:
    import pandas as pd

    tables = [table for run in study.runs if (table := _read(folder, run)) is not None]
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()


def _write_json(path: Path, content: Any) -> None:
    write_bytes(path, (json.dumps(content, indent=2) + "\n").encode())


def _told(study: Study, folder: Path) -> dict[str, dict[str, Any]]:
    """What each finished run said of itself."""
    found = {run.key: _said(folder / "runs" / f"{_name(run)}.json") for run in study.runs}
    return {key: said for key, said in found.items() if said}


def _manifest(outcome: Outcome, started: datetime, told: dict[str, dict[str, Any]]) -> dict[str, Any]:
    import numpy as np
    import torch

    from perron import __version__

    seconds = {key: entry["seconds"] for key, entry in told.items()}
    return {
        "study": outcome.study.model_dump(mode="json"),
        "perron": __version__,
        "commit": _commit(),
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


@lru_cache
def code() -> str:
    """A hash of perron's own files that decide numbers: results of other code are not taken for results of this."""
    here = Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted(here.rglob("*.py")):
        if path.relative_to(here).parts[0] not in LOOKERS:
            digest.update(path.relative_to(here).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:8]


def _commit() -> str | None:
    """The commit of a checkout that perron is run from; with a plus if files were changed since."""
    here = Path(__file__).parent

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(here), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()  # noqa: S603

    try:
        return git("rev-parse", "--short=12", "HEAD") + ("+" if git("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return None

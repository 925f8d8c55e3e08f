"""Processes of this machine."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import wait
from dataclasses import dataclass
from math import isnan, nan
from typing import Any

from perron.studies.executors.base import POLL_INTERVAL, Ends, Executor, OnProgress, block_interrupts
from perron.studies.job import Job, Report, perform, prepare, write_result

REPORTED = ("loss_mean", "grad_norm_sq", "test_accuracy")  # metrics in a report, besides the step
WIDTH = 2 + len(REPORTED)
FORKED = [
    "perron.studies.run",
    "perron.simulation.simulator",
]  # imported once, by the process from which workers are forked
_shared: Any = None  # in a worker: the progress of each run


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True, kw_only=True)
class Local(Executor):
    """Processes of this machine; by default one for each core that this process may use."""

    workers: int | None = None

    def run(self, jobs: Sequence[Job], on_progress: OnProgress) -> Ends:
        """Do the jobs; see `perron.studies.executors`."""
        from pebble import ProcessPool

        context = _context()
        shared = context.RawArray("d", WIDTH * len(jobs))  # without a lock, which a killed worker would keep
        workers = min(self.workers or cores(), len(jobs))
        pool = ProcessPool(
            max_workers=workers, context=context, initializer=_start, initargs=(shared, dict(os.environ))
        )
        try:
            with block_interrupts():
                futures: dict[Any, int] = {
                    pool.schedule(_work, args=[job.text, place], timeout=60 * job.timeout): place
                    for place, job in enumerate(jobs)
                }
            pending: set[Any] = set(futures)
            while pending:
                done, pending = wait(pending, timeout=POLL_INTERVAL)
                for place in (futures[future] for future in pending):
                    step, steps, *values = shared[WIDTH * place : WIDTH * (place + 1)]
                    if steps:
                        measured = zip(REPORTED, values, strict=True)
                        known = {name: value for name, value in measured if not isnan(value)}
                        on_progress(place, Report(int(step), int(steps), known, recorded=True))
                for future in done:
                    yield futures[future], _end(future, jobs[futures[future]])
                yield None
            pool.close()  # type: ignore[no-untyped-call]
        finally:
            pool.stop()  # type: ignore[no-untyped-call]
            pool.join()


def _context() -> Any:
    """How workers start: on Linux from a fork server, which imports torch once for all of them."""
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(FORKED)
    return context


def _end(future: Any, job: Job) -> str | None:
    """Return the reason why a job failed, or None."""
    from pebble import ProcessExpired

    try:
        return future.result()
    except TimeoutError:
        return job.timed_out
    except ProcessExpired as error:
        return f"its process was killed (exit code {error.exitcode})"
    except Exception as error:  # such as a disk that is full
        return f"{type(error).__name__}: {error}"


def _start(shared: Any, environment: Mapping[str, str]) -> None:
    """Initialize a worker. The fork server has the environment of the first study of its process."""
    global _shared  # noqa: PLW0603

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then stops the workers
    os.environ.clear()
    os.environ.update(environment)
    _shared = shared
    prepare()


def _work(text: str, place: int) -> str | None:
    """Do a job in a worker; return the reason if it failed."""
    parent = multiprocessing.parent_process()

    def on_progress(report: Report) -> None:
        if parent is not None and not parent.is_alive():  # the study was killed: do not continue as an orphan
            sys.exit(1)
        values = (report.values.get(name, nan) for name in REPORTED)
        _shared[WIDTH * place : WIDTH * (place + 1)] = [report.step, report.steps, *values]

    job = Job.read(text)
    return write_result(job.target, perform(job, on_progress))

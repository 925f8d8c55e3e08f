"""Processes of this machine."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Sequence
from concurrent.futures import wait
from dataclasses import dataclass
from math import isnan, nan
from typing import Any

from perron.studies.executors.base import POLL, Ends, Told, overdue, without_interrupts
from perron.studies.job import Job, Report, keep, perform, prepare

TOLD = ("loss_mean", "grad_norm_sq", "test_accuracy")  # of a run under way, besides its step
WIDTH = 2 + len(TOLD)
_shared: Any = None  # in a worker: how far each run is
_parent = 0


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True, kw_only=True)
class Local:
    """Processes of this machine; by default as many as this process may use cores."""

    workers: int | None = None

    def run(self, jobs: Sequence[Job], told: Told) -> Ends:
        """Do the jobs; see `perron.studies.executors`."""
        from pebble import ProcessPool

        context = multiprocessing.get_context("spawn")
        shared = context.RawArray("d", WIDTH * len(jobs))  # without a lock, which a killed worker would keep
        workers = min(self.workers or cores(), len(jobs))
        pool = ProcessPool(max_workers=workers, context=context, initializer=_begin, initargs=(shared, os.getpid()))
        try:
            with without_interrupts():
                futures: dict[Any, int] = {
                    pool.schedule(_work, args=[job.text, place], timeout=60 * job.timeout): place
                    for place, job in enumerate(jobs)
                }
            pending: set[Any] = set(futures)
            while pending:
                done, pending = wait(pending, timeout=POLL)
                for place in (futures[future] for future in pending):
                    step, steps, *values = shared[WIDTH * place : WIDTH * (place + 1)]
                    if steps:
                        measured = {name: value for name, value in zip(TOLD, values, strict=True) if not isnan(value)}
                        told(place, Report(int(step), int(steps), measured))
                for future in done:
                    yield futures[future], _ended(future, jobs[futures[future]])
                yield None
            pool.close()  # type: ignore[no-untyped-call]
        finally:
            pool.stop()  # type: ignore[no-untyped-call]
            pool.join()


def _ended(future: Any, job: Job) -> str | None:
    """What went wrong with a job, or None."""
    from pebble import ProcessExpired

    try:
        return future.result()
    except TimeoutError:
        return overdue(job)
    except ProcessExpired as error:
        return f"its process was killed (exit code {error.exitcode})"
    except Exception as error:  # such as a disk that is full
        return f"{type(error).__name__}: {error}"


def _begin(shared: Any, parent: int) -> None:
    """What each worker does first."""
    global _shared, _parent

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then stops the workers
    _shared, _parent = shared, parent
    prepare()


def _work(text: str, place: int) -> str | None:
    """A job in a worker; what went wrong."""

    def report(news: Report) -> None:
        if os.getppid() != _parent:  # the study was killed: don't go on as an orphan
            sys.exit(1)
        facts = [news.step, news.steps, *(news.values.get(name, nan) for name in TOLD)]
        _shared[WIDTH * place : WIDTH * (place + 1)] = facts

    job = Job.read(text)
    return keep(job.target, perform(job, report))

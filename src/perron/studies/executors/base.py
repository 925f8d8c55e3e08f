"""What a pool is, and what all of them need."""

from __future__ import annotations

import signal
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Protocol

from perron.errors import PerronError
from perron.studies.job import Job, Report

POLL = 0.25  # seconds between two looks
Told = Callable[[int, Report], None]
Ends = Generator[tuple[int, str | None] | None, None, None]


class Pool(Protocol):
    """Somebody who does jobs; see `perron.studies.executors`."""

    def run(self, jobs: Sequence[Job], told: Told) -> Ends:
        """Do the jobs."""
        ...


def needed(library: str, extra: str) -> Any:
    """A library that only this pool needs."""
    try:
        return import_module(library)
    except ImportError:
        raise PerronError(f"--on {extra} needs {library}: pip install 'perron[{extra}]'") from None


def overdue(job: Job) -> str:
    """What is said of a job that hangs."""
    return f"took longer than timeout = {job.timeout:g} minutes and was stopped"


@contextmanager
def without_interrupts() -> Iterator[None]:
    """Threads and processes that start within it never see Ctrl-C, which a terminal sends to all; this thread does afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

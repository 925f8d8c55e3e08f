"""The interface of an executor, and helpers that several executors use."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Protocol

from perron.errors import PerronError
from perron.studies.job import Job, Report

POLL_INTERVAL = 0.25  # seconds
OnProgress = Callable[[int, Report], None]
Ends = Generator[tuple[int, str | None] | None, None, None]


class Executor(Protocol):
    """Does the jobs of a study; see `perron.studies.executors`."""

    def check(self) -> None:
        """Raise an error if this executor cannot work here, as without its library; called before anything is written."""
        return

    def run(self, jobs: Sequence[Job], on_progress: OnProgress) -> Ends:
        """Do the jobs."""
        ...


class Scheduler:
    """The jobs that an executor has sent to other machines: their reports, and their deadlines."""

    def __init__(self, jobs: Sequence[Job], on_progress: OnProgress) -> None:
        self.jobs, self.on_progress = jobs, on_progress
        self.deadlines: dict[int, float] = {}  # of the jobs that have started

    def receive(self, place: int, text: str | bytes) -> dict[str, Any]:
        """Pass a report on; the first one starts the job's clock. Return all that the worker sent."""
        message: dict[str, Any] = json.loads(text)
        self.deadlines.setdefault(place, time.monotonic() + 60 * self.jobs[place].timeout)
        self.on_progress(place, Report(*(message[name] for name in Report._fields)))
        return message

    def overdue(self, places: Sequence[int]) -> list[int]:
        """Return those jobs whose deadline has passed."""
        now = time.monotonic()
        return [place for place in places if self.deadlines.get(place, now) < now]


def require(library: str, extra: str) -> Any:
    """Import a library that only one executor needs."""
    try:
        return import_module(library)
    except ImportError:
        raise PerronError(f"--on {extra} needs {library}: pip install 'perron[{extra}]'") from None


@contextmanager
def block_interrupts() -> Iterator[None]:
    """Start threads and processes that never see Ctrl-C, which a terminal sends to all; this thread does afterwards."""
    if sys.platform == "win32":  # it has no signal masks; a worker ignores Ctrl-C once it has started
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

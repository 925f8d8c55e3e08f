"""How long a search may take: until its time is up, or the user interrupts it."""

from __future__ import annotations

import time
from math import inf, isfinite

from perron.errors import PerronError
from perron.monitor.progress import Bar


class TimeIsUpError(Exception):
    """The time of a search is up; the search that catches it takes the best so far."""


class Effort:
    """The time that a search has left, and its progress bar.

    A search calls `check` before each evaluation. When the time is up or an interrupt (Ctrl-C) was noted, it ends with the best
    that it has.

    Args:
        iterations: the most iterations of a minimisation, where the search makes some.
        seconds: the time; no limit if None.
        bar: a progress bar, which counts evaluations.
    """

    def __init__(self, iterations: int, seconds: float | None = None, bar: Bar | None = None) -> None:
        if seconds is not None and not (seconds > 0 and isfinite(seconds)):
            raise PerronError(f"seconds, the time that a search may take, is a positive number; got {seconds!r}.")
        self.deadline = inf if seconds is None else time.monotonic() + seconds
        self.iterations, self.bar, self.count, self.reason = iterations, bar, 0, ""

    @property
    def over(self) -> bool:
        """Whether the search was stopped before its end."""
        return bool(self.reason)

    @property
    def left(self) -> float | None:
        """Seconds that are left, at least a millisecond; None without a limit."""
        return None if self.deadline == inf else max(self.deadline - time.monotonic(), 1e-3)

    def share(self, part: float) -> Effort:
        """Return an effort with a part of the time that is left."""
        return Effort(self.iterations, None if self.left is None else part * self.left, self.bar)

    def interrupt(self) -> None:
        """Note an interrupt."""
        self.reason = "interrupted"

    def check(self) -> None:
        """Raise `TimeIsUpError` if the time is up."""
        if time.monotonic() > self.deadline:
            self.reason = "time is up"
            raise TimeIsUpError

    def advance(self, title: str) -> None:
        """Count an evaluation, and show it."""
        self.count += 1
        if self.bar is not None:
            self.bar.title = title
            self.bar.update(min(self.count, self.bar.total - 1))

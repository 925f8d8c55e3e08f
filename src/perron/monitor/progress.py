"""Progress of a run, on a terminal or to a callback; numbers and durations as short text."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import Timer
from typing import Any

OnProgress = Callable[[int, Mapping[str, float]], None]
INTERVAL = 0.5  # seconds between two updates
TITLES = {
    "loss": "loss",
    "loss_mean": "loss",
    "batch_loss": "batch loss",
    "test_accuracy": "test accuracy",
    "grad_norm_sq": "|grad|²",
}


def _tell(text: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"{text}\n")


@contextmanager
def waiting(text: str, tell: Callable[[str], object] = _tell, *, after: float = 2.0) -> Iterator[None]:
    """Tell what is being done, by default on a terminal, once it has taken ``after`` seconds."""
    timer = Timer(after, tell, [f"perron: {text} ..."])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class Bar:
    """A progress bar on standard error, for runs longer than a moment; or updates for a callback.

    Args:
        total: the number of steps.
        wanted: whether to show the bar (by default on a terminal), or a callback to call with the step and values instead.
        title: the text before the bar.
        log: called with every step that was measured and its values.
    """

    def __init__(
        self, total: int, wanted: bool | OnProgress | None, title: str, log: Callable[..., object] | None = None
    ) -> None:
        self.total, self.title, self.log = total, title, log
        self.callback = wanted if callable(wanted) else None
        self.wanted = sys.stderr.isatty() if wanted is None else wanted is True
        self.last = time.monotonic()
        self.values: Mapping[str, float] = {}
        self.progress: Any = None
        self.task: Any = None

    def __enter__(self) -> Bar:
        return self

    def update(self, step: int, values: Mapping[str, float] | None = None) -> None:
        """Show the step and the latest measured values, if the last update was some time ago."""
        if values is not None:
            self.values = values
            if self.log is not None:
                self.log(step, **values)
        if not (self.wanted or self.callback) or (time.monotonic() - self.last < INTERVAL and step < self.total):
            return
        self.last = time.monotonic()
        if self.callback is not None:
            self.callback(step, self.values)
            return
        if self.progress is None:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self.progress = Progress(*columns, console=Console(stderr=True), transient=True, speed_estimate_period=3600)
            self.progress.start()
            self.task = self.progress.add_task(self.title, total=self.total)
        text = f"{self.title} {format_values(self.values)}".strip()
        self.progress.update(self.task, completed=step, description=text)

    def __exit__(self, *_: object) -> None:
        if self.progress is not None:
            self.progress.stop()


def format_values(values: Mapping[str, float]) -> str:
    """Return the most telling of the measured values as text.

    >>> format_values({"loss": 0.1234, "test_accuracy": 0.9713, "messages": 12.0})
    'loss 0.1234, test accuracy 97.13%'
    """
    return ", ".join(format_value(name, value) for name, value in values.items() if name in TITLES)


def format_value(name: str, value: float | None) -> str:
    """Return a measured value with its name as text; None stands for a value that is not finite."""
    text = "not finite" if value is None else f"{value:.2%}" if "accuracy" in name else f"{value:.4g}"
    return f"{TITLES.get(name, name)} {text}"


def format_duration(seconds: float, *, decimals: int = 0) -> str:
    """Return a duration in its two largest units; ``decimals`` are those of seconds below a minute.

    >>> [format_duration(seconds) for seconds in (0.2, 59, 61, 3599, 7300, 200_000)]
    ['1 s', '59 s', '1 min 1 s', '59 min 59 s', '2 h 1 min', '2 d 7 h']
    """
    if round(seconds, decimals) < 60:
        return f"{max(seconds, 10.0**-decimals):.{decimals}f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours = minutes // 60
    if not hours:
        return f"{minutes} min {rest} s"
    return f"{hours} h {minutes % 60} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"

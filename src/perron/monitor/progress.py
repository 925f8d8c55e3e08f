"""How far a run is: a bar on a terminal, or whoever wants to be told."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

Tell = Callable[[int, Mapping[str, float]], None]
PATIENCE = 0.5  # seconds between two looks
SHOWN = {
    "loss": "loss",
    "loss_mean": "loss",
    "batch_loss": "batch loss",
    "test_accuracy": "test accuracy",
    "grad_norm_sq": "|grad|²",
}


class Bar:
    """A progress bar on standard error, for runs that take longer than a moment."""

    def __init__(
        self, total: int, wanted: bool | Tell | None, title: str, log: Callable[..., object] | None = None
    ) -> None:
        self.total, self.title, self.log = total, title, log
        self.tell = wanted if callable(wanted) else None
        self.wanted = sys.stderr.isatty() if wanted is None else wanted is True
        self.last = time.monotonic()
        self.values: Mapping[str, float] = {}
        self.progress: Any = None
        self.task: Any = None

    def __enter__(self) -> Bar:
        return self

    def at(self, step: int, values: Mapping[str, float] | None = None) -> None:
        """Show how far we are, with the values that were measured last, if there was no look at it for a moment."""
        if values is not None:
            self.values = values
            if self.log is not None:
                self.log(step, **values)
        if not (self.wanted or self.tell) or (time.monotonic() - self.last < PATIENCE and step < self.total):
            return
        self.last = time.monotonic()
        if self.tell is not None:
            self.tell(step, self.values)
            return
        if self.progress is None:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self.progress = Progress(*columns, console=Console(stderr=True), transient=True, speed_estimate_period=3600)
            self.progress.start()
            self.task = self.progress.add_task(self.title, total=self.total)
        self.progress.update(self.task, completed=step, description=f"{self.title} {spoken(self.values)}".strip())

    def __exit__(self, *_: object) -> None:
        if self.progress is not None:
            self.progress.stop()


def spoken(values: Mapping[str, float]) -> str:
    """The values that people look at, in a few words.

    >>> spoken({"loss": 0.1234, "test_accuracy": 0.9713, "messages": 12.0})
    'loss 0.1234, test accuracy 97.13%'
    """
    known = [(SHOWN[name], value, "accuracy" in name) for name, value in values.items() if name in SHOWN]
    return ", ".join(f"{name} {value:.2%}" if share else f"{name} {value:.4g}" for name, value, share in known)

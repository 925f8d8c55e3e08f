"""Curves for TensorBoard: of a training, and of a study's runs, in progress or finished."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

from perron.errors import PerronError
from perron.monitor.status import STUDY_FILE, StudyFolder

FOLDER = "tensorboard"
COMPLETE = ".complete"  # the suffix of a finished run's file
INTERVAL = 2.0  # seconds between two readings of the records


class ScalarWriter:
    """Writes scalars into a directory for TensorBoard: ``writer(step, loss=0.3)``.

    In a directory that has events already, the new ones replace the older ones from the first step written on.
    """

    def __init__(self, folder: Path, *, suffix: str = "") -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            message = "TensorBoard is not installed: pip install 'perron[tensorboard]' (or tensorboard)."
            raise PerronError(message) from None
        self._open: Any = lambda step: SummaryWriter(str(folder), purge_step=step, filename_suffix=suffix)
        self._writer: Any = None

    def __call__(self, step: int, /, **values: float) -> None:
        """Write values measured after a step."""
        if self._writer is None:
            self._writer = self._open(step)
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def flush(self) -> None:
        """Make the events visible to TensorBoard."""
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        """Write the remaining events."""
        if self._writer is not None:
            self._writer.close()


class StudyBoard:
    """Writes events of a study's runs: a directory for each in ``DIR/tensorboard``; each metric is a curve of means over trials.

    A run in progress has the values of its records. When it is finished, one file with the values of its table replaces them, so
    that the curves equal the table to the last bit of a float32.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._study = StudyFolder(self.folder)
        self._writers: dict[str, tuple[ScalarWriter, dict[str, int]]] = {}
        self._done: set[str] = set()
        self._next = 0.0
        ScalarWriter(self.folder)  # raises if TensorBoard is not installed, before hours of runs

    def update(self, *, now: bool = False) -> None:
        """Write the new values, if the interval is over or ``now``."""
        if time.monotonic() < self._next and not now:
            return
        self._study.refresh()
        for run in self._study.runs:
            slug = re.sub(r"[^\w.=+-]+", "-", run.label).strip("-")
            target = self.folder / FOLDER / f"{slug}-{run.name[:6]}"
            if run.name in self._study.active:
                self._follow(run.name, target)
            elif run.name in self._study.done and run.name not in self._done:
                self._complete(run.name, target)
                self._done.add(run.name)
        self._next = time.monotonic() + INTERVAL

    def close(self) -> None:
        """Write the remaining values."""
        if (self.folder / STUDY_FILE).exists():  # it does not if the study could not begin
            self.update(now=True)
        for writer, _ in self._writers.values():
            writer.close()

    def _follow(self, name: str, target: Path) -> None:
        """Write the values that a run in progress has recorded since the last call."""
        writer, written = self._writers.setdefault(name, (ScalarWriter(target), {}))
        new: dict[int, dict[str, float]] = {}
        for metric, curve in self._study.active[name].curves.items():
            for step, value in reversed(curve):
                if step <= written.get(metric, -1):
                    break
                if value is not None:
                    new.setdefault(step, {})[metric] = value
            written[metric] = curve[-1][0]
        for step in sorted(new):
            writer(step, **new[step])
        writer.flush()

    def _complete(self, name: str, target: Path) -> None:
        """Write the values of a finished run's table, in place of those of its records."""
        if name in self._writers:
            self._writers.pop(name)[0].close()
        written_at = self._study.table(name).stat().st_mtime
        old = list(target.glob("*"))
        if any(path.name.endswith(COMPLETE) and path.stat().st_mtime >= written_at for path in old):
            return
        part = target.with_name(f".{target.name}.part")
        curves = self._study.finished(name)
        writer = ScalarWriter(part, suffix=COMPLETE)
        for row, step in enumerate(curves.pop("step")):
            writer(int(step), **{metric: float(values[row]) for metric, values in curves.items()})
        writer.close()
        target.mkdir(parents=True, exist_ok=True)
        for path in part.iterdir():
            path.replace(target / path.name)
        part.rmdir()
        for path in old:
            path.unlink(missing_ok=True)

"""Append-only progress records (JSON lines) of a run or a training node, and their reader.

A process only ever appends whole lines, so that killing it costs the last line at most:

    {"began": 1760000000.0, "format": 1, "steps": 2000}     a process starts to write; a later one may continue the file
    {"time": 1760000001.5, "step": 40, "loss": 0.31}        values measured after that step
    {"time": 1760000002.0, "step": 62}                      progress without values
    {"time": 1760000003.0, "step": 62, "event": "..."}      an event
    {"ended": 1760000100.0, "step": 2000}                   the process came to its end

A step that occurs again, because a process resumed from a checkpoint, replaces what was recorded of it and of later steps. A
process that writes holds a lock on the file, which the system releases however the process ends.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import time
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from perron.errors import FileError, FormatError, PerronError

try:
    import fcntl
except ImportError:  # Windows
    HAS_LOCKS = False  # no file of records is ever locked: a reader cannot tell whether its process still runs
else:
    HAS_LOCKS = True

FORMAT = 1  # of the lines; a reader refuses higher ones. The first files had no number
WAITED = "waited"  # the curve of the seconds that a node spent waiting for others
SENT = "bytes_sent"  # the curve of the bytes that it sent
LIVE = ".live"  # the suffix of the records of a study's run
INTERVAL = 0.2  # seconds between two lines with the same names
SPARSITY = (
    5000  # the interval is at least the age of the process divided by this: lines grow with the logarithm of time
)
WINDOW = 60.0  # seconds over which a rate is measured
LARGEST = 2**53  # of steps and times: a float holds smaller ones exactly
LOCK_TIMEOUT = 0.2  # seconds to wait for a lock on the file
PREFIX = 64  # bytes that identify a file: they contain the time of its beginning

log = logging.getLogger("perron")


class Records:
    """A file of records to append to: ``records(step, loss=0.3)`` adds a line if one is due.

    If the file can no longer be written, it warns once and ignores further records: they must not stop a run.
    """

    def __init__(
        self, path: str | Path, about: Mapping[str, Any], *, steps: int | None = None, every: float = INTERVAL
    ) -> None:
        self.path, self.steps, self.every = Path(path), steps, every
        self.last = 0  # the latest step
        self._started = time.monotonic()
        self._written: dict[tuple[str, ...], float] = {}  # when these names were last written
        self._written_steps = steps
        self._file: BinaryIO | None = None
        try:
            self._file = _open_locked(self.path)
        except OSError as error:
            raise FileError(f"Cannot write {path}: {error.strerror}.") from None
        began = {"began": time.time(), "format": FORMAT, **about, "pid": os.getpid(), "host": socket.gethostname()}
        self._write(began | ({} if steps is None else {"steps": steps}))

    def __call__(self, step: int, /, **values: Any) -> dict[str, float]:
        """Record the step, and values measured after it; return the values written, none if no line is due."""
        self.last, now, names = step, time.monotonic(), tuple(values)
        interval = max(self.every, (now - self._started) / SPARSITY) if self.every else 0.0
        if now - self._written.get(names, -1e9) < interval and step != self.steps:
            return {}
        self._written[names] = now
        numbers = {name: _as_float(value, name) for name, value in values.items()}
        entry: dict[str, Any] = {"time": time.time(), "step": step}
        if self.steps != self._written_steps:
            self._written_steps = entry["steps"] = self.steps
        self._write(entry | {name: value if isfinite(value) else None for name, value in numbers.items()})
        return numbers

    def event(self, message: str, **about: str) -> None:
        """Record an event, and the things that it concerns."""
        self._write({"time": time.time(), "step": self.last, "event": message} | about)

    def __enter__(self) -> Records:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close(ended=kind is None)

    def close(self, *, ended: bool = True) -> None:
        """Record the end, unless ``ended`` is False, and release the file."""
        if ended:
            self._write({"ended": time.time(), "step": self.last})
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, entry: Mapping[str, Any]) -> None:
        if self._file is None:
            return
        try:
            self._file.write(json.dumps(entry).encode() + b"\n")  # unbuffered: one write, so that lines do not mix
        except OSError as error:
            with suppress(OSError):
                self._file.close()
            self._file = None
            log.warning("%s can no longer be written: %s. Further records are dropped.", self.path, error.strerror)


def _open_locked(path: Path) -> BinaryIO:
    """Open and lock a file to append lines to; complete the last line if a killed process left half of it."""
    file: BinaryIO = path.open("ab", buffering=0)
    deadline = time.monotonic() + LOCK_TIMEOUT
    while HAS_LOCKS:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # `is_locked` in another process holds it for a moment
            if time.monotonic() < deadline:
                time.sleep(LOCK_TIMEOUT / 20)
                continue
        except OSError:
            pass  # a file system without locks
        break  # after the timeout we write anyway: a suspended process may hold the lock
    if file.tell():
        with path.open("rb") as old:
            old.seek(-1, os.SEEK_END)
            if old.read(1) != b"\n":
                file.write(b"\n")
    return file


def _as_float(value: Any, name: str) -> float:
    try:
        return float(value.item() if hasattr(value, "item") else value)  # float() warns of tensors with a gradient
    except (TypeError, ValueError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise PerronError(
            f"log: {name} must be a number or a tensor with one element; got {type(value).__name__} ({reason})."
        ) from None


def is_locked(path: Path) -> bool:
    """Return whether a process holds the lock on a file of records."""
    if not HAS_LOCKS:
        return False
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


# ---- reading


class Event(NamedTuple):
    """An event: the step before it, its message, and the things that it concerns."""

    step: int
    message: str
    about: dict[str, Any]


@dataclass
class Track:
    """The content of a file of records: one run of a study, or one node of a training.

    Attributes:
        about: the description by the process that writes, or wrote last.
        step, steps: the latest step, and the number of steps if known.
        curves: for each name, the steps and values; a value that is not finite is None.
        events: the events.
        began, at, ended: times of the last beginning, of the last line, and of the end.
        damaged: how many lines could not be read.
    """

    about: dict[str, Any] = field(default_factory=dict)
    step: int = 0
    steps: int | None = None
    curves: dict[str, list[tuple[int, float | None]]] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    began: float | None = None
    at: float | None = None
    ended: float | None = None
    damaged: int = 0
    _marks: list[tuple[float, int]] = field(default_factory=list)  # times and steps since the last beginning

    def add(self, entry: Mapping[str, Any]) -> None:
        """Add a line. An invalid one changes nothing and raises a ValueError, TypeError, KeyError or OverflowError.

        One of a later format raises a `FormatError`.
        """
        values = dict(entry)
        steps = values.pop("steps", self.steps)
        steps = None if steps is None else int(_bounded(steps))
        if "began" in values:
            began = _bounded(values["began"])
            if (form := values.pop("format", FORMAT)) != FORMAT:
                raise FormatError(f"The records have format {form!r:.20}; this version of perron reads {FORMAT}.")
            self.about, self.began, self.at, self.ended, self._marks = values, began, began, None, []
            self.steps = steps
            return
        step, ended = int(_bounded(values.pop("step"))), "ended" in values
        at = _bounded(values.pop("ended" if ended else "time"))
        if ended:
            self.ended = at
        elif "event" in values:
            self.events.append(Event(step, str(values.pop("event")), values))
        else:
            curves = {name: None if value is None else float(value) for name, value in values.items()}
            # A process that resumes from a checkpoint repeats every curve, also those that it has not recorded yet.
            self._cut(step, curves if self._marks else self.curves)
            self._marks.append((at, step))
            for name, number in curves.items():
                finite = number is not None and isfinite(number)
                self.curves.setdefault(name, []).append((step, number if finite else None))
        self.at, self.step, self.steps = at, step, steps

    def _cut(self, step: int, names: Iterable[str]) -> None:
        """Drop the values of this step and later ones."""
        for name in [name for name in names if name in self.curves]:
            curve = self.curves[name]
            while curve and curve[-1][0] >= step:
                curve.pop()
            if not curve:
                del self.curves[name]

    @property
    def share(self) -> float:
        """The share of the steps that is done, from 0 to 1; 0 if their number is not known."""
        return min(1.0, self.step / self.steps) if self.steps else 0.0

    @property
    def last(self) -> dict[str, float | None]:
        """The latest value of each curve."""
        return {name: curve[-1][1] for name, curve in self.curves.items()}

    def rate(self, window: float = WINDOW) -> float | None:
        """Return the steps per second of the present process over the last ``window`` seconds; None if not known yet.

        If no step ended within the window, it begins at the last record of an earlier step.
        """
        if not self._marks:
            return None
        end, last = self._marks[-1]
        place = bisect_left(self._marks, (end - window, 0))
        while place and self._marks[place][1] >= last:  # as in a training that records epochs
            place -= 1
        begin, first = self._marks[place]
        return (last - first) / (end - begin) if end > begin and last > first else None

    @property
    def left(self) -> float | None:
        """Seconds to the end at the present rate; None if not known."""
        rate = self.rate()
        return None if rate is None or not self.steps else max(0, self.steps - self.step) / rate

    @property
    def work(self) -> tuple[float, float]:
        """The share of the steps that the present process has done, and its seconds."""
        if not self._marks or not self.steps:
            return 0.0, 0.0
        (begin, first), (end, last) = self._marks[0], self._marks[-1]
        return max(0, last - first) / self.steps, max(0.0, end - begin)  # a clock may be set back


def _bounded(value: Any) -> float:
    """Return a time or a number of steps, as a number that a float holds exactly."""
    if not 0 <= (number := float(value)) < LARGEST:
        raise ValueError(f"not a time or a number of steps: {value}")
    return number


class Tail:
    """Follows a file of records: each call of `poll` reads the lines added since the last one."""

    def __init__(self, path: Path) -> None:
        self.path, self.track = path, Track()
        self._prefix, self._offset = b"", 0

    def poll(self) -> Track:
        """Return the content of the file; the previous content if the file is gone."""
        try:
            with self.path.open("rb") as file:
                replaced = file.read(len(self._prefix)) != self._prefix
                if replaced or os.fstat(file.fileno()).st_size < self._offset:
                    self.track, self._prefix, self._offset = Track(), b"", 0
                file.seek(self._offset)
                lines, newline, _ = file.read().rpartition(b"\n")  # the last line may be half written
        except OSError:
            return self.track
        self._prefix = self._prefix or (lines + newline)[:PREFIX]
        self._offset += len(lines) + len(newline)
        for line in lines.splitlines():
            try:
                self.track.add(json.loads(line))
            except FormatError as error:
                raise FormatError(f"{self.path}: {error}") from None
            except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
                self.track.damaged += bool(line.strip())
        return self.track


def read(path: str | Path) -> Track:
    """Return the content of a file of records."""
    return Tail(Path(path)).poll()

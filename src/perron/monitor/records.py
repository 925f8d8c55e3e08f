"""What is under way, told to whoever looks: lines of JSON that a run or a training node appends, and the reader of them.

A file of records is only ever added to, a line at a time, so that a kill costs the last line at most:

    {"began": 1760000000.0, "node": 0, "steps": 2000}       a process began to write; another may go on in the same file
    {"time": 1760000001.5, "step": 40, "loss": 0.31}        what was measured after that step
    {"time": 1760000002.0, "step": 62}                      that it has come so far
    {"time": 1760000003.0, "step": 62, "event": "..."}      what happened, in words
    {"ended": 1760000100.0, "step": 2000}                   it ended by itself

A step that comes again, because a process went on from what was saved last, takes the place of all that was said of it and of
later steps. While a process writes, it holds a lock on the file, which the system releases whenever and however it ends.
"""

from __future__ import annotations

import fcntl
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

from perron.errors import FileError, PerronError

WAITED = "waited"  # the curve of the seconds that a node spent in waiting for others
LIVE = ".live"  # how the file of a study's run ends
PATIENCE = 0.2  # seconds between two lines that tell the same
SPARSE = 5000  # and at least the age of the process divided by this: lines grow with the logarithm of time only
WINDOW = 60.0  # seconds over which a rate is measured
MOST = 2**53  # steps and seconds that a float holds exactly; more are nonsense
LOCKING = 0.2  # seconds to wait for a lock that others hold
HEAD = 64  # bytes by which a file is known again: its time of beginning is in them

log = logging.getLogger("perron")


class Records:
    """A file of records that is added to; ``records(step, loss=0.3)`` adds a line if one is due.

    Where the file cannot be written any more, it says so once and goes on without: a run is worth more than looks at it.
    """

    def __init__(
        self, path: str | Path, about: Mapping[str, Any], *, steps: int | None = None, every: float = PATIENCE
    ) -> None:
        self.path, self.steps, self.every = Path(path), steps, every
        self._started = time.monotonic()
        self._told: dict[tuple[str, ...], float] = {}
        self._said: int | None = steps
        self.last = 0  # the step that it was told last
        self._file: BinaryIO | None = None
        try:
            self._file = _opened(self.path)
        except OSError as error:
            raise FileError(f"Cannot write {path}: {error.strerror}.") from None
        began = {"began": time.time(), **about, "pid": os.getpid(), "host": socket.gethostname()}
        self._write(began | ({} if steps is None else {"steps": steps}))

    def __call__(self, step: int, /, **values: Any) -> dict[str, float]:
        """Tell how far it is, and what was measured after that step; what was told of it, which is nothing if none was due."""
        self.last, now, names = step, time.monotonic(), tuple(values)
        patience = max(self.every, (now - self._started) / SPARSE) if self.every else 0.0
        if now - self._told.get(names, -1e9) < patience and step != self.steps:
            return {}
        self._told[names] = now
        told = {name: number(value, name) for name, value in values.items()}
        entry: dict[str, Any] = {"time": time.time(), "step": step}
        if self.steps != self._said:
            self._said = entry["steps"] = self.steps
        self._write(entry | {name: value if isfinite(value) else None for name, value in told.items()})
        return told

    def event(self, said: str, **about: str) -> None:
        """Tell what happened, and to whom."""
        self._write({"time": time.time(), "step": self.last, "event": said} | about)

    def __enter__(self) -> Records:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close(ended=kind is None)

    def close(self, *, ended: bool = True) -> None:
        """Say that it ended by itself, and release the file."""
        if self._file is not None and ended:
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
            log.warning("%s is not written any more: %s. It goes on without.", self.path, error.strerror)


def _opened(path: Path) -> BinaryIO:
    """A file to add lines to, with a lock on it that tells that we live; half a line of one who was killed is ended."""
    file: BinaryIO = path.open("ab", buffering=0)
    deadline = time.monotonic() + LOCKING
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # one who looks whether it is held holds it, for a moment
            if time.monotonic() < deadline:
                time.sleep(LOCKING / 20)
                continue
        except OSError:
            pass  # a file system without locks
        break  # if a stopped process holds it still, we write, but look as that one does
    if file.tell():
        with path.open("rb") as old:
            old.seek(-1, os.SEEK_END)
            if old.read(1) != b"\n":
                file.write(b"\n")
    return file


def number(value: Any, name: str) -> float:
    """A float of a number or of a tensor with one element."""
    try:
        return float(
            value.item() if hasattr(value, "item") else value
        )  # item: float() warns of tensors with a gradient
    except (TypeError, ValueError, RuntimeError) as error:
        why = str(error).partition("\n")[0]
        raise PerronError(
            f"log: {name} must be a number or a tensor with one element; got {type(value).__name__} ({why})."
        ) from None


def held(path: Path) -> bool:
    """Whether a process holds the lock on a file."""
    try:
        with path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            return False
    except OSError:
        return False


# ---- reading


class Event(NamedTuple):
    """What happened: after which step, in words, and to whom."""

    step: int
    said: str
    about: dict[str, Any]


@dataclass
class Track:
    """What a file of records says; one run of a study, or one node of a training.

    Attributes:
        about: what the process that writes, or wrote last, says of itself.
        step, steps: how far it is, of how many if known.
        curves: for each name, the steps and values; a value that is not finite is None.
        events: what happened.
        began, at, ended: times of the last beginning, of the last line, and of the end.
        damaged: lines that could not be read.
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
    _marks: list[tuple[float, int]] = field(default_factory=list)  # times and steps since it began last

    def take(self, entry: Mapping[str, Any]) -> None:
        """A line; a ValueError, TypeError, KeyError or OverflowError, and nothing of it is taken, if it makes no sense."""
        told = dict(entry)
        steps = told.pop("steps", self.steps)
        steps = None if steps is None else _count(steps)
        if "began" in told:
            began = _moment(told["began"])
            self.about, self.began, self.at, self.ended, self._marks = told, began, began, None, []
            self.steps = steps
            return
        step = _count(told.pop("step"))
        if "ended" in told:
            self.at = self.ended = _moment(told["ended"])
            self.step, self.steps = step, steps
            return
        at = _moment(told.pop("time"))
        if "event" in told:
            self.events.append(Event(step, str(told.pop("event")), told))
            self.at, self.step, self.steps = at, step, steps
            return
        values = {name: None if value is None else float(value) for name, value in told.items()}
        self.at, self.step, self.steps = at, step, steps
        # Who goes on from what was saved does it all again, also what it has not told yet.
        self._cut(step, self.curves if not self._marks else values)
        self._marks.append((at, step))
        for name, value in values.items():
            told_of = self.curves.setdefault(name, [])
            told_of.append((step, value if value is not None and isfinite(value) else None))

    def _cut(self, step: int, names: Iterable[str]) -> None:
        """Forget what was measured after this step and later ones."""
        for name in [name for name in names if name in self.curves]:
            curve = self.curves[name]
            while curve and curve[-1][0] >= step:
                curve.pop()
            if not curve:
                del self.curves[name]

    @property
    def share(self) -> float:
        """How much of it is done, from 0 to 1; 0 if nobody knows how many steps there will be."""
        return min(1.0, self.step / self.steps) if self.steps else 0.0

    @property
    def last(self) -> dict[str, float | None]:
        """What was measured last, by name."""
        return {name: curve[-1][1] for name, curve in self.curves.items()}

    def rate(self, window: float = WINDOW) -> float | None:
        """Steps per second, of the process that writes now, over the last seconds; None if it cannot be told yet.

        If it came no further within them, since it was last told to be at an earlier step.
        """
        if not self._marks:
            return None
        end, last = self._marks[-1]
        place = bisect_left(self._marks, (end - window, 0))
        while (
            place and self._marks[place][1] >= last
        ):  # no step within the window, as in a training that tells of epochs
            place -= 1
        begin, first = self._marks[place]
        return (last - first) / (end - begin) if end > begin and last > first else None

    @property
    def left(self) -> float | None:
        """Seconds to its end at the present rate, if they can be told."""
        rate = self.rate()
        return None if rate is None or not self.steps else max(0, self.steps - self.step) / rate

    @property
    def work(self) -> tuple[float, float]:
        """The share of it that the present process has done, and in how many seconds."""
        if not self._marks or not self.steps:
            return 0.0, 0.0
        (begin, first), (end, last) = self._marks[0], self._marks[-1]
        return max(0, last - first) / self.steps, max(0.0, end - begin)  # clocks are set back at times


def _count(value: Any) -> int:
    """A number of steps."""
    if not 0 <= (count := int(value)) < MOST:
        raise ValueError(f"no number of steps: {value}")
    return count


def _moment(value: Any) -> float:
    """A time in seconds."""
    if not 0 <= (seconds := float(value)) < MOST:
        raise ValueError(f"no time: {value}")
    return seconds


class Tail:
    """Follows a file of records: each look reads what was added since the last one."""

    def __init__(self, path: Path) -> None:
        self.path, self.track = path, Track()
        self._place = (b"", 0)  # how the file begins, how far it is read

    def look(self) -> Track:
        """What it says now; as before if the file is gone."""
        try:
            with self.path.open("rb") as file:
                head, offset = self._place
                if (
                    file.read(len(head)) != head or os.fstat(file.fileno()).st_size < offset
                ):  # another file, or a cut one
                    self.track, head, offset = Track(), b"", 0
                file.seek(offset)
                whole, newline, _ = file.read().rpartition(b"\n")  # the last line may be half written
                self._place = (head or (whole + newline)[:HEAD], offset + len(whole) + len(newline))
        except OSError:
            return self.track
        for line in whole.splitlines():
            try:
                self.track.take(json.loads(line))
            except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
                self.track.damaged += bool(line.strip())
        return self.track


def read(path: str | Path) -> Track:
    """What a file of records says."""
    return Tail(Path(path)).look()

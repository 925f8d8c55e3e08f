"""The progress of a study or a training, read from the files in its directory alone: the share that is done, the time left.

A study lists its runs and their work in ``live.jsonl``; each run appends to ``runs/NAME.live`` and leaves ``runs/NAME.json`` and
``runs/NAME.parquet`` when it is finished. A node of a training appends to ``node-K.jsonl`` (`perron.Log`). A process is alive if
it holds the lock on its file (see `perron.monitor.records`).
"""

from __future__ import annotations

import heapq
import json
import shlex
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from math import inf, isfinite
from pathlib import Path
from typing import Any, NamedTuple

from perron.errors import FileError
from perron.monitor.records import LIVE, WAITED, Records, Tail, Track, is_locked

STUDY_FILE = "live.jsonl"
NODE_FILES = "node-*.jsonl"
SLOW = 1.0  # seconds of waiting from which a slow node is reported


class PlannedRun(NamedTuple):
    """A run of a study: the name of its files, its description, its work."""

    name: str
    label: str
    cost: float


def announce_study(
    folder: Path, title: str, runs: Iterable[PlannedRun], *, workers: int | None, **about: Any
) -> Records:
    """Start the records of a study, in place of earlier ones; the caller adds failures as events about a run."""
    (folder / STUDY_FILE).unlink(missing_ok=True)
    ours = Path(sys.argv[0]).stem in ("perron", "__main__")
    command = {"command": shlex.join(["perron", *sys.argv[1:]])} if ours else {}  # which resumes it
    plan = {"title": title, "workers": workers, "runs": [list(run) for run in runs]}
    return Records(folder / STUDY_FILE, plan | command | about)


class StudyFolder:
    """A study's directory.

    Attributes:
        title, runs, workers, command: the study's description.
        running: whether a process works on it.
        done: the names of its finished runs, with the seconds of each.
        active: the records of runs in progress, by name; of a stopped study, of all that were begun.
        interrupted: of a running study, the records of runs that an earlier process began and that are still to be resumed.
        failed: the error of each failed run, by name.
        complete: whether each run is done or has failed.
        share: the share of the work that is done, from 0 to 1.
        began, at: times of the last start and of the last record.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.began: float | None = None
        self._records = Tail(folder / STUDY_FILE)

    def refresh(self) -> StudyFolder:
        """Read the new records."""
        self.running = is_locked(self._records.path)  # before reading: a process that has ended since has written all
        records = self._records.poll()
        if records.began is None:
            raise FileError(f"{self._records.path} holds no record of a study; perron study run writes it again.")
        if records.began != self.began:
            self._describe(records)
        self.began, self.ended = records.began, records.ended is not None
        self.failed = {str(event.about.get("run", "")): event.message for event in records.events}
        files = {path.name: path for path in (self.folder / "runs").glob("*")}
        begun: dict[str, Track] = {}
        for name in (run.name for run in self.runs if run.name not in self.done):
            if f"{name}.json" in files and f"{name}.parquet" in files:
                self.done[name] = _seconds(files[f"{name}.json"])
            elif name not in self.failed and (live := f"{name}{LIVE}") in files:
                begun[name] = self._tails.setdefault(name, Tail(files[live])).poll()
        self.at = max([records.at or records.began, *(track.at for track in begun.values() if track.at)])
        active = self._active(begun) if self.running else set(begun)
        self.active = {name: track for name, track in begun.items() if name in active}
        self.interrupted = {name: track for name, track in begun.items() if name not in active}
        self.complete = len(self.done) + len(self.failed) >= len(self.runs)
        shares = dict.fromkeys([*self.done, *self.failed], 1.0) | {name: track.share for name, track in begun.items()}
        total = sum(run.cost for run in self.runs)
        self.share = sum(run.cost * shares.get(run.name, 0.0) for run in self.runs) / total if total else 1.0
        return self

    def _describe(self, records: Track) -> None:
        """Read the study's description of itself."""
        about = records.about
        self.title, self.command = str(about.get("title", self.folder.name)), str(about.get("command", ""))
        try:
            workers = about.get("workers")
            self.workers = None if workers is None else max(1, int(workers))  # not known of a cluster
            self.runs = [PlannedRun(str(name), str(label), float(cost)) for name, label, cost in about["runs"]]
            if not all(0 <= run.cost < inf for run in self.runs):
                raise ValueError("work must be a finite number")
        except (KeyError, ValueError, TypeError, OverflowError):
            raise FileError(f"{self._records.path} is damaged; perron study run writes it again.") from None
        self.done: dict[str, float] = {}
        self._tails: dict[str, Tail] = {}

    def _active(self, begun: Mapping[str, Track]) -> set[str]:
        """Return the runs that a worker executes now, at most as many as there are workers.

        They have records since the study was last started (not every file system shows locks), or a locked file (the clock
        of another machine may be late). The other runs were left by an earlier process.
        """
        locked = {name: is_locked(self._tails[name].path) for name in begun}
        fresh = [name for name, track in begun.items() if locked[name] or (track.at or 0.0) >= (self.began or 0.0)]
        if self.workers is not None:
            fresh = sorted(fresh, key=lambda name: (locked[name], begun[name].at or 0.0))[-self.workers :]
        return set(fresh)

    @property
    def left(self) -> float | None:
        """Seconds to the end, or None if not known.

        Active runs continue at their own rate. The others follow, longest first, each on the next free worker, at the mean
        speed (work per second) of the runs that are done or begun.
        """
        cost = {run.name: run.cost for run in self.runs}
        begun = self.active | self.interrupted
        work = [(cost[name], seconds) for name, seconds in self.done.items() if seconds > 0]
        for name, track in begun.items():
            share, seconds = track.work
            work.append((share * cost[name], seconds))
        spent = sum(seconds for _, seconds in work)
        speed = sum(amount for amount, _ in work) / spent if spent else 0.0
        if not speed:
            return None
        active = self.active if self.running else {}
        rest = {name: cost[name] * (1 - (begun[name].share if name in begun else 0.0)) / speed for name in cost}
        waiting = [seconds for name, seconds in rest.items() if name not in {*self.done, *self.failed, *active}]
        going = [rest[name] if track.left is None else track.left for name, track in active.items()]
        return makespan(going, waiting, self.workers or max(1, len(going)))

    def table(self, name: str) -> Path:
        """Return the path of a finished run's table."""
        return self.folder / "runs" / f"{name}.parquet"

    def finished(self, name: str, metrics: Sequence[str] | None = None) -> dict[str, Any]:
        """Return a finished run's curves: arrays of the steps, and of the means over trials of each metric."""
        import numpy as np
        from pyarrow import ArrowException, parquet

        try:
            columns = parquet.read_schema(self.table(name)).names
            measured = columns[columns.index("trial") + 1 :]
            wanted = [metric for metric in measured if metrics is None or metric in metrics]
            table = parquet.read_table(self.table(name), columns=["step", *wanted])
            steps = np.unique(table["step"].to_numpy())
            means = {metric: table[metric].to_numpy().reshape(len(steps), -1).mean(axis=1) for metric in wanted}
        except (OSError, ValueError, TypeError, KeyError, ArrowException) as error:
            raise FileError(f"Cannot read {self.table(name)}: {' '.join(str(error).split())[:200]}.") from None
        return {"step": steps, **means}


def _seconds(path: Path) -> float:
    try:
        seconds = float(json.loads(path.read_text(encoding="utf-8"))["seconds"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return 0.0
    return seconds if isfinite(seconds) else 0.0


def makespan(going: Iterable[float], waiting: Iterable[float], workers: int) -> float:
    """Return the seconds until all jobs are done: ``going`` ones run, ``waiting`` ones start longest first on a free worker.

    >>> makespan([4.0, 1.0], [2.0, 2.0], workers=2)
    5.0
    """
    free = sorted(going)
    free = [0.0] * (workers - len(free)) + free
    for seconds in sorted(waiting, reverse=True):
        heapq.heapreplace(free, free[0] + seconds)
    return max(free, default=0.0)


class TrainingFolder:
    """A training's directory.

    Attributes:
        nodes: the records of each node, by its number.
        alive: the nodes whose processes are running; `running` if there are any.
        complete: whether some node came to its end, and none is running.
        began, at: times when the first of the running (or last) processes began, and of the last record.
        share: the share of the steps that the furthest node has done, from 0 to 1.
        left: seconds until the last node is done; None if not known.
        rate: steps per second, the mean over nodes; None if not known.
        events: the steps and messages of the events of all nodes, without repetitions.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.title = folder, folder.name
        self._tails: dict[int, Tail] = {}

    def refresh(self) -> TrainingFolder:
        """Read the new records."""
        for path in self.folder.glob(NODE_FILES):
            digits = path.stem.removeprefix("node-")
            if digits.isdecimal():
                self._tails.setdefault(int(digits), Tail(path))
        self.alive = {number for number, tail in self._tails.items() if is_locked(tail.path)}
        self.nodes = {number: tail.poll() for number, tail in sorted(self._tails.items())}
        tracks = self.nodes.values()
        if all(track.began is None for track in tracks):
            raise FileError(f"{self.folder / NODE_FILES} hold no records of perron.Log; there is nothing to show yet.")
        self.running = bool(self.alive)
        self.complete = not self.alive and any(track.ended is not None for track in tracks)
        self.at = max((track.at for track in tracks if track.at is not None), default=None)
        self.events = sorted({(event.step, event.message) for track in tracks for event in track.events})
        present = [self.nodes[number] for number in self.alive] or list(tracks)
        self.began = min((track.began for track in present if track.began is not None), default=None)
        self.share = max(track.share for track in present)
        times = [track.left for track in present if track.ended is None]
        self.left = max((seconds for seconds in times if seconds is not None), default=None)
        rates = [rate for track in present if (rate := track.rate()) is not None]
        self.rate = sum(rates) / len(rates) if rates else None
        return self

    @property
    def slow(self) -> str:
        """A message about the straggler, if there is one: the node that hardly waits, since all others wait for it."""
        waited = {
            number: track.curves[WAITED][-1][1] or 0.0 for number, track in self.nodes.items() if WAITED in track.curves
        }
        least, most = min(waited, default=0, key=lambda number: waited[number]), max(waited.values(), default=0.0)
        if most < SLOW or waited[least] > most / 2:
            return ""
        return f"node {least} is slow: it waited {waited[least]:.1f} s for others, they up to {most:.1f} s"


def open_folder(folder: str | Path) -> StudyFolder | TrainingFolder:
    """Return the study or training in a directory, or raise an error with a remedy."""
    folder = Path(folder)
    if not folder.is_dir():
        raise FileError(
            f"There is no directory {folder}; perron study run --out {folder}, or a training with perron.Log, makes it when it "
            "starts."
        )
    if (folder / STUDY_FILE).is_file():
        return StudyFolder(folder).refresh()
    if any(folder.glob(NODE_FILES)):
        return TrainingFolder(folder).refresh()
    if (folder / "manifest.json").is_file():
        raise FileError(f"{folder} holds a study without live records; perron study show {folder} shows its results.")
    inner = sorted(path.parent for pattern in (STUDY_FILE, NODE_FILES) for path in folder.glob(f"*/{pattern}"))
    hint = f" Perhaps you mean {', '.join(map(str, dict.fromkeys(inner)))}." if inner else ""
    raise FileError(
        f"{folder} holds no study and no training that can be watched: perron study run writes {STUDY_FILE}, "
        f"perron.Log writes {NODE_FILES}.{hint}"
    )


def seconds_since(then: float | None) -> float:
    """Return the seconds since a time; never negative, as the clocks of machines differ."""
    return 0.0 if then is None else max(0.0, time.time() - then)

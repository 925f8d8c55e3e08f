"""What is under way in a directory, read from its files alone: how far a study or a training is, and how long it will take.

A study says in ``live.jsonl`` which runs it stands for and how much work each is; each run under way appends to
``runs/NAME.live``, and a finished one leaves ``runs/NAME.json`` and ``runs/NAME.parquet``. A node of a training appends to
``node-K.jsonl`` (`perron.Log`). Whether somebody works there is told by the lock that a writer holds on its file
(see `perron.monitor.records`).
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
from perron.monitor.records import LIVE, WAITED, Records, Tail, Track, held

STUDY = "live.jsonl"
NODES = "node-*.jsonl"
CLEARLY = 1.0  # seconds of waiting that are worth a word


class Planned(NamedTuple):
    """A run of a study: the name of its files, what it is, how much work."""

    name: str
    label: str
    cost: float


def announced(folder: Path, title: str, runs: Iterable[Planned], *, workers: int | None, **about: Any) -> Records:
    """The file in which a study says what it does, in place of that of an earlier time; failures are events about a run."""
    (folder / STUDY).unlink(missing_ok=True)
    ours = Path(sys.argv[0]).stem in ("perron", "__main__")  # how a person would go on with it
    command = {"command": shlex.join(["perron", *sys.argv[1:]])} if ours else {}
    said = {"title": title, "workers": workers, "runs": [list(run) for run in runs]} | command | about
    return Records(folder / STUDY, said)


class StudyFolder:
    """A study's directory.

    Attributes:
        title, runs, workers, command: what it said of itself.
        running: whether a process works on it.
        done: the names of its finished runs, with the seconds each took.
        under_way: the records of runs that somebody works on, by name; of a study that was stopped, of all that were begun.
        halfway: of a study that goes on, the records of runs that an earlier process began, and that wait to be taken up.
        failed: what went wrong, by name.
        began, at: when it was started last, and when it last wrote something.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.title, self.command = folder.name, ""
        self.runs: list[Planned] = []
        self.workers: int | None = None  # not known of a cluster
        self.running, self.ended = False, False
        self.done: dict[str, float] = {}
        self.under_way: dict[str, Track] = {}
        self.halfway: dict[str, Track] = {}
        self.failed: dict[str, str] = {}
        self.began: float | None = None
        self.at: float | None = None
        self._said = Tail(folder / STUDY)
        self._tails: dict[str, Tail] = {}

    def look(self) -> StudyFolder:
        """Read what is new."""
        self.running = held(self._said.path)  # before the records: who has ended since then has written all
        said = self._said.look()
        if said.began is None:
            raise FileError(f"{self._said.path} says nothing of a study; perron study run writes it anew.")
        if said.began != self.began:
            self.began = said.began
            self.title = str(said.about.get("title", self.title))
            self.command = str(said.about.get("command", ""))
            try:
                workers = said.about.get("workers")
                self.workers = None if workers is None else max(1, int(workers))
                self.runs = [Planned(str(name), str(label), float(cost)) for name, label, cost in said.about["runs"]]
                if not all(0 <= run.cost < inf for run in self.runs):
                    raise ValueError("work that is no number")
            except (KeyError, ValueError, TypeError, OverflowError):
                raise FileError(f"{self._said.path} is damaged; perron study run writes it anew.") from None
            self.done, self._tails = {}, {}
        self.ended = said.ended is not None
        self.failed = {str(event.about.get("run", "")): event.said for event in said.events}
        present = {path.name: path for path in (self.folder / "runs").glob("*")}
        for run in self.runs:
            if run.name not in self.done and {f"{run.name}.json", f"{run.name}.parquet"} <= set(present):
                self.done[run.name] = _seconds(present[f"{run.name}.json"])
        begun: dict[str, Track] = {}
        for run in self.runs:
            if run.name not in self.done and run.name not in self.failed and f"{run.name}{LIVE}" in present:
                tail = self._tails.setdefault(run.name, Tail(present[f"{run.name}{LIVE}"]))
                begun[run.name] = tail.look()
        self.at = max([said.at or said.began, *(track.at for track in begun.values() if track.at)])
        going = self._going(begun) if self.running else set(begun)
        self.under_way = {name: track for name, track in begun.items() if name in going}
        self.halfway = {name: track for name, track in begun.items() if name not in going}
        return self

    def _going(self, begun: Mapping[str, Track]) -> set[str]:
        """The runs that somebody works on now, not more than there are workers: the others were left by an earlier process.

        They are those that wrote something since the study was started last (a lock is not seen on every file system), or
        whose file is held (the clock of another machine may be late).
        """
        began = self.began or 0.0
        fresh = {
            name: track.at or 0.0
            for name, track in begun.items()
            if (track.at or 0.0) >= began or held(self._tails[name].path)
        }
        if self.workers is not None and len(fresh) > self.workers:
            alive = {name: held(self._tails[name].path) for name in fresh}
            return set(sorted(fresh, key=lambda name: (alive[name], fresh[name]))[-self.workers :])
        return set(fresh)

    @property
    def complete(self) -> bool:
        """Whether each run is done or has failed."""
        return len(self.done) + len(self.failed) >= len(self.runs)

    @property
    def share(self) -> float:
        """How much of the work is done, from 0 to 1."""
        total = sum(run.cost for run in self.runs)
        shares = dict.fromkeys([*self.done, *self.failed], 1.0)
        shares |= {name: track.share for name, track in (self.under_way | self.halfway).items()}
        return sum(run.cost * shares.get(run.name, 0.0) for run in self.runs) / total if total else 1.0

    @property
    def left(self) -> float | None:
        """Seconds to the end, if they can be told.

        Runs under way go on at their own rate. The others, or what is left of them, most work first as they are started, follow
        on whichever worker is free first, at the mean speed (work over seconds) of those that are done or begun.
        """
        cost = {run.name: run.cost for run in self.runs}
        work = [(cost[name], seconds) for name, seconds in self.done.items() if seconds > 0]
        for name, track in (self.under_way | self.halfway).items():
            share, seconds = track.work
            work.append((share * cost[name], seconds))
        spent = sum(seconds for _, seconds in work)
        speed = sum(amount for amount, _ in work) / spent if spent else 0.0
        if not speed:
            return None
        at_work = self.under_way if self.running else {}
        begun = self.under_way | self.halfway
        waiting = [
            run.cost * (1 - (begun[run.name].share if run.name in begun else 0.0)) / speed
            for run in self.runs
            if run.name not in {*self.done, *self.failed, *at_work}
        ]
        going = [
            cost[name] * (1 - track.share) / speed if track.left is None else track.left
            for name, track in at_work.items()
        ]
        return makespan(going, waiting, self.workers or max(1, len(going)))

    def table(self, name: str) -> Path:
        """The file of a finished run's table."""
        return self.folder / "runs" / f"{name}.parquet"

    def finished(self, name: str, metrics: Sequence[str] | None = None) -> dict[str, Any]:
        """A finished run's curves: arrays of the steps and of the means over trials of each metric."""
        import numpy as np
        from pyarrow import ArrowException, parquet

        try:
            measured = parquet.read_schema(self.table(name)).names
            wanted = [
                metric for metric in measured[measured.index("trial") + 1 :] if metrics is None or metric in metrics
            ]
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
    """When all is done: what is going on ends in so many seconds each, and what waits is begun, longest first, by who is free.

    >>> makespan([4.0, 1.0], [2.0, 2.0], workers=2)
    5.0
    """
    free = sorted(going)
    free = [0.0] * (workers - len(free)) + free
    for seconds in sorted(waiting, reverse=True):
        heapq.heapreplace(free, free[0] + seconds)
    return max(free, default=0.0)


class TrainingFolder:
    """The directory of a training: the records of its nodes.

    Attributes:
        nodes: what each node says, by its number.
        alive: the nodes whose processes are there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.title = folder, folder.name
        self._tails: dict[int, Tail] = {}
        self.nodes: dict[int, Track] = {}
        self.alive: set[int] = set()

    def look(self) -> TrainingFolder:
        """Read what is new."""
        for path in self.folder.glob(NODES):
            digits = path.stem.removeprefix("node-")
            if digits.isdecimal():
                self._tails.setdefault(int(digits), Tail(path))
        self.alive = {number for number, tail in self._tails.items() if held(tail.path)}
        self.nodes = {number: tail.look() for number, tail in sorted(self._tails.items())}
        if all(track.began is None for track in self.nodes.values()):
            raise FileError(f"{self.folder / NODES} hold nothing that perron.Log wrote; there is nothing to show yet.")
        return self

    @property
    def running(self) -> bool:
        """Whether any node's process is there."""
        return bool(self.alive)

    @property
    def complete(self) -> bool:
        """Whether some node came to the end by itself, and none is still at work."""
        return not self.alive and any(track.ended is not None for track in self.nodes.values())

    @property
    def began(self) -> float | None:
        """When the first of those processes that are there, or were last, began."""
        return min((track.began for track in self._present() if track.began is not None), default=None)

    @property
    def at(self) -> float | None:
        """When something was written last."""
        return max((track.at for track in self.nodes.values() if track.at is not None), default=None)

    @property
    def share(self) -> float:
        """How much is done by the node that is furthest, from 0 to 1."""
        return max((track.share for track in self._present()), default=0.0)

    @property
    def left(self) -> float | None:
        """Seconds until the last node is done, if they can be told."""
        lefts = [track.left for track in self._present() if track.ended is None]
        known = [left for left in lefts if left is not None]
        return max(known) if known else None

    @property
    def rate(self) -> float | None:
        """Steps per second: the mean over nodes."""
        rates = [rate for track in self._present() if (rate := track.rate()) is not None]
        return sum(rates) / len(rates) if rates else None

    @property
    def events(self) -> list[tuple[int, str]]:
        """What happened, as told by any node: steps and words, each once."""
        return sorted({(event.step, event.said) for track in self.nodes.values() for event in track.events})

    @property
    def slow(self) -> str:
        """Which node the others wait for: the one that hardly waits itself, since all wait for it, directly or not."""
        ends = {
            number: track.curves[WAITED][-1][1] or 0.0 for number, track in self.nodes.items() if WAITED in track.curves
        }
        least, most = min(ends, default=0, key=lambda number: ends[number]), max(ends.values(), default=0.0)
        if most < CLEARLY or ends[least] > most / 2:
            return ""
        return f"node {least} is slow: it waited {ends[least]:.1f} s for others, they up to {most:.1f} s"

    def _present(self) -> list[Track]:
        return [track for number, track in self.nodes.items() if number in self.alive] or list(self.nodes.values())


def opened(folder: str | Path) -> StudyFolder | TrainingFolder:
    """What is in a directory; an error that says what to do if it is nothing that can be watched."""
    folder = Path(folder)
    if not folder.is_dir():
        raise FileError(
            f"There is no directory {folder}; perron study run --out {folder}, or a training with perron.Log, makes it when it "
            "starts."
        )
    if (folder / STUDY).is_file():
        return StudyFolder(folder).look()
    if any(folder.glob(NODES)):
        return TrainingFolder(folder).look()
    if (folder / "manifest.json").is_file():
        raise FileError(
            f"{folder} holds a study that left no live records; perron study show {folder} shows its results."
        )
    inner = sorted(path.parent for pattern in (STUDY, NODES) for path in folder.glob(f"*/{pattern}"))
    hint = f" Perhaps you mean {', '.join(map(str, dict.fromkeys(inner)))}." if inner else ""
    raise FileError(
        f"{folder} holds no study and no training that can be watched: perron study run writes {STUDY}, "
        f"perron.Log writes {NODES}.{hint}"
    )


def ago(then: float | None) -> float:
    """Seconds since a time; never negative, as clocks of machines differ."""
    return 0.0 if then is None else max(0.0, time.time() - then)

"""How a study or a training goes, as a picture for a terminal of any size, or as data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any
from unicodedata import category

from rich.console import Group
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from perron.errors import FileError, PerronError
from perron.monitor.curves import Curve, drawn
from perron.monitor.progress import SHOWN
from perron.monitor.records import Track
from perron.monitor.status import StudyFolder, TrainingFolder, ago

COLOURS = ("cyan", "yellow", "green", "magenta", "blue", "red", "bright_cyan", "bright_yellow")
FAINT = "bright_black"
FIRST = ("loss_mean", "loss", "grad_norm_sq", "batch_loss")  # which metric is drawn if none is asked for
FINISHED = 24  # of the finished runs, how many are drawn faintly
QUIET = 120.0  # seconds without a word from a process that lives after which that is said
HUGE = 1e300  # what has diverged so far is not drawn
SMALLEST = 6  # lines that a picture of curves needs


class Watch:
    """Looks at a directory, again and again.

    Args:
        folder: what `perron.monitor.status.opened` found.
        metric: which is drawn; by default a loss or the squared gradient norm.
    """

    def __init__(self, folder: StudyFolder | TrainingFolder, metric: str | None = None) -> None:
        self.folder, self.metric = folder, metric
        self._finished: dict[str, list[tuple[float, float]]] = {}
        if metric is not None and (known := self.metrics()) and metric not in known:
            raise PerronError(
                f"No metric {metric!r} is recorded in {folder.folder}; there are: {plain(', '.join(known))}."
            )

    def look(self) -> Watch:
        """Read what is new."""
        self.folder.look()
        return self

    def tracks(self) -> dict[str, Track]:
        """What is under way, by name: runs, or nodes."""
        if isinstance(self.folder, TrainingFolder):
            return {f"node {number}": track for number, track in self.folder.nodes.items()}
        names = shortened({run.name: run.label for run in self.folder.runs})
        return {
            names[run.name]: self.folder.under_way[run.name]
            for run in self.folder.runs
            if run.name in self.folder.under_way
        }

    def metrics(self) -> list[str]:
        """The names of what is measured."""
        found = dict.fromkeys(name for track in self.tracks().values() for name in track.curves)
        if not found and isinstance(self.folder, StudyFolder):
            for name in list(self.folder.done)[:1]:
                with suppress(FileError):  # damaged: the study will do it again
                    found = dict.fromkeys(list(self.folder.finished(name))[1:])
        return list(found)

    def chosen(self) -> str | None:
        """The metric that is drawn."""
        known = self.metrics()
        return self.metric or next((name for name in (*FIRST, *known) if name in known), None)

    def state(self) -> str:
        """Whether it is going on, how we know, and what to do if not."""
        folder, since = self.folder, spoken(ago(self.folder.at))
        if folder.running:
            quiet = f"; nothing was written for {since}" if ago(folder.at) > QUIET else ""
            return f"running{quiet}"
        if folder.complete:
            seen = f"; perron study show {folder.folder} shows the tables" if isinstance(folder, StudyFolder) else ""
            return f"ended {since} ago{seen}"
        goes_on = "the same command goes on"
        if isinstance(folder, StudyFolder):
            goes_on = f"{folder.command or 'the same perron study run'} goes on"
        return f"stopped {since} ago (no process holds the lock on its records); {goes_on}"

    def record(self) -> dict[str, Any]:
        """All of it as data, for programs."""
        folder, metric = self.folder, self.chosen()
        found: dict[str, Any] = {
            "title": folder.title, "kind": "study" if isinstance(folder, StudyFolder) else "training",
            "running": folder.running, "complete": folder.complete, "state": self.state(), "share": folder.share,
            "seconds_left": folder.left if folder.running else None, "seconds_since_record": ago(folder.at), "metric": metric,
            "tracks": {name: _facts(track) for name, track in self.tracks().items()},
        }  # fmt: skip
        if isinstance(folder, StudyFolder):
            labels = {run.name: run.label for run in folder.runs}
            failed = {labels.get(name, name): why for name, why in folder.failed.items()}
            return found | {
                "runs": len(folder.runs),
                "done": len(folder.done),
                "failed": failed,
                "workers": folder.workers,
            }
        return found | {
            "alive": sorted(folder.alive),
            "rate": folder.rate,
            "events": [list(one) for one in folder.events],
            "slow": folder.slow,
        }

    def frame(self, width: int, height: int) -> Group:
        """A picture of so many columns and lines at most."""
        metric, tracks = self.chosen(), self.tracks()
        head = [*self._head(width)]
        room = height - len(head) - 1
        shown = max(1, min(len(tracks), room - SMALLEST - 1 if room > SMALLEST + 2 else room))
        rows, more = self._rows(tracks, metric, shown, width), len(tracks) - shown
        body: list[Any] = [rows] if tracks else []
        if more > 0:
            body.append(_text(f"  and {more} more", style="dim"))
        room -= (shown if tracks else 0) + (more > 0)
        if metric is not None and room >= SMALLEST:
            body += drawn(self._curves(metric, tracks), width, room)
        return Group(*head, *body, _text(self._legend(metric), style="dim", no_wrap=True, overflow="ellipsis"))

    def _head(self, width: int) -> Iterable[Any]:
        folder = self.folder
        yield _text(folder.title, style="bold", no_wrap=True, overflow="ellipsis")
        so_far = f"{spoken(ago(folder.began))} so far, " if width >= 56 else ""
        left = "time left not known yet" if folder.left is None else f"about {spoken(folder.left)} left"
        said = f" {folder.share:4.0%}  {so_far}{left}" if folder.running else f" {folder.share:4.0%}"
        if isinstance(folder, StudyFolder) or any(track.steps for track in folder.nodes.values()):
            line = Table.grid()
            line.add_row(
                ProgressBar(total=1.0, completed=folder.share, width=max(8, width - len(said) - 1)), _text(said)
            )
            yield line
        if folder.running:
            yield _text(f"{self._counts()}; {self.state()}", no_wrap=True, overflow="ellipsis")
        else:
            yield _text(self._counts(), no_wrap=True, overflow="ellipsis")
            yield from _wrapped(self.state(), width, "bold green" if folder.complete else "bold yellow", lines=4)
        if isinstance(folder, StudyFolder):
            labels = {run.name: run.label for run in folder.runs}
            said_of = [f"failed: {labels.get(name, name)}: {why}" for name, why in folder.failed.items()]
        else:
            said_of = [said.partition(". ")[0] for _, said in folder.events] + [folder.slow] * bool(folder.slow)
        for said in said_of[-2:]:
            yield _text(
                said, style="red" if isinstance(folder, StudyFolder) else "yellow", no_wrap=True, overflow="ellipsis"
            )

    def _counts(self) -> str:
        folder = self.folder
        if isinstance(folder, TrainingFolder):
            step = max((track.step for track in folder.nodes.values()), default=0)
            steps = max((track.steps or 0 for track in folder.nodes.values()), default=0)
            rate = f", {folder.rate:.3g} steps/s" if folder.rate and folder.running else ""
            many = (
                f"{len(folder.alive)} of {len(folder.nodes)} nodes" if folder.running else f"{len(folder.nodes)} nodes"
            )
            return f"{many}, step {step:,}{f' of {steps:,}' if steps else ''}{rate}"
        waiting = len(folder.runs) - len(folder.done) - len(folder.failed) - len(folder.under_way)
        halfway = "under way" if folder.running else "half done"
        parts = {
            "done": len(folder.done),
            halfway: len(folder.under_way),
            "to come": waiting,
            "failed": len(folder.failed),
        }
        return f"{len(folder.runs)} runs: " + ", ".join(
            f"{count} {what}" for what, count in parts.items() if count or what == "done"
        )

    def _rows(self, tracks: Mapping[str, Track], metric: str | None, many: int, width: int) -> Table:
        """A line for each track: its colour, name, bar, step, last value, time left."""
        table = Table.grid(padding=(0, 1), expand=True)
        table.add_column(width=1)
        table.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
        for _ in range(4 if width >= 72 else 3):
            table.add_column(no_wrap=True, justify="right")
        for (name, track), colour in zip(list(tracks.items())[:many], _colours(), strict=False):
            bar = ProgressBar(total=1.0, completed=track.share, width=10, complete_style=colour) if track.steps else ""
            steps = f"{track.step:,}" if not track.steps or width < 72 else f"{track.step:,}/{track.steps:,}"
            value = "" if metric is None or metric not in track.curves else figure(metric, track.curves[metric][-1][1])
            cells = [bar, *map(_text, (steps, value, self._ending(name, track)))]
            table.add_row(_text("●", style=colour), _text(name), *(cells if width >= 72 else cells[1:]))
        return table

    def _ending(self, name: str, track: Track) -> str:
        """Of a track: how long it will take, or why it does not go on."""
        if isinstance(self.folder, TrainingFolder) and int(name.removeprefix("node ")) not in self.folder.alive:
            return "ended" if track.ended is not None else f"gone {spoken(ago(track.at))}"
        if not self.folder.running:
            return ""
        return "" if track.left is None else f"{spoken(track.left)} left"

    def _curves(self, metric: str, tracks: Mapping[str, Track]) -> list[Curve]:
        """Finished runs, faintly, and what is under way."""
        coloured = zip(tracks.values(), _colours(), strict=False)
        found = [Curve(_finite(track.curves.get(metric, ())), colour) for track, colour in coloured]
        return [*(Curve(points, FAINT) for points in self._past(metric)), *reversed(found)]

    def _past(self, metric: str) -> list[list[tuple[float, float]]]:
        if not isinstance(self.folder, StudyFolder):
            return []
        for name in list(self.folder.done)[-FINISHED:]:
            if name not in self._finished:
                with suppress(FileError):
                    curves = self.folder.finished(name, [metric])
                    self._finished[name] = _finite(zip(curves["step"].tolist(), curves.get(metric, ()), strict=False))
        return [points for name, points in self._finished.items() if name in self.folder.done]

    def _legend(self, metric: str | None) -> str:
        if metric is None:
            return "nothing measured yet"
        others = [name for name in self.metrics() if name != metric]
        faint = "; grey: finished runs" if isinstance(self.folder, StudyFolder) and self._finished else ""
        also = f"; --metric {' | '.join(others)}" if others else ""
        return f"{metric} over steps{faint}{'; q quits' if self.folder.running else ''}{also}"


def shortened(labels: Mapping[str, str]) -> dict[str, str]:
    """Names without what all have in common; those that would be the same then stay whole.

    >>> shortened({"a": "sgp on ring(4), uniform, seed 0", "b": "sgp on ring(8), uniform, seed 0"})
    {'a': 'sgp on ring(4)', 'b': 'sgp on ring(8)'}
    """
    parts = {key: label.split(", ") for key, label in labels.items()}
    common = set.intersection(*map(set, parts.values())) if len(parts) > 1 else set()
    short = {
        key: ", ".join(part for i, part in enumerate(found) if i == 0 or part not in common)
        for key, found in parts.items()
    }
    unique: dict[str, str] = {}
    for key, name in short.items():
        unique[key] = name if list(short.values()).count(name) == 1 else f"{labels[key]} ({key[:4]})"
    return unique


def spoken(seconds: float) -> str:
    """A duration in a word or two.

    >>> [spoken(seconds) for seconds in (0.2, 59, 61, 3599, 7300, 200_000)]
    ['1 s', '59 s', '1 min', '60 min', '2 h 2 min', '2 d 7 h']
    """
    if seconds < 99.5 and round(seconds) < 60:
        return f"{max(1, round(seconds))} s"
    if seconds < 3600:
        return f"{round(seconds / 60)} min"
    hours, rest = divmod(round(seconds / 60), 60)
    return f"{hours} h {rest} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def figure(metric: str, value: float | None) -> str:
    """A measured value with its name, in short."""
    if value is None:
        return f"{SHOWN.get(metric, metric)} not finite"
    return f"{SHOWN.get(metric, metric)} {f'{value:.2%}' if 'accuracy' in metric else f'{value:.3g}'}"


def _facts(track: Track) -> dict[str, Any]:
    return {
        "step": track.step, "steps": track.steps, "share": track.share, "rate": track.rate(), "seconds_left": track.left,
        "last": track.last, "ended": track.ended is not None, "damaged_lines": track.damaged,
    }  # fmt: skip


def _finite(points: Iterable[tuple[float, float | None]]) -> list[tuple[float, float]]:
    return [(step, value) for step, value in points if value is not None and abs(value) < HUGE]


def _colours() -> Sequence[str]:
    return COLOURS * 64


def plain(said: str) -> str:
    """Words without characters that steer a terminal: files may come from anywhere.

    >>> plain("a\\x1b[2J title\\x07 of\\ntwo lines")
    'a[2J title of two lines'
    """
    return "".join(" " if mark in "\t\n\r" else mark for mark in said if mark in "\t\n\r" or category(mark) != "Cc")


def _text(said: str, **look: Any) -> Text:
    """Words for the terminal; all that is shown comes through here."""
    return Text(plain(said), **look)


def _wrapped(said: str, width: int, style: str, lines: int) -> list[Text]:
    """Words in a few lines of text."""
    from textwrap import wrap

    return [_text(line, style=style) for line in wrap(said, width, break_on_hyphens=False)[:lines]]

"""The progress of a study or a training, as a frame for a terminal of any size, or as data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import cycle
from textwrap import wrap
from typing import Any

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from perron.errors import FileError, PerronError, strip_control
from perron.monitor.curves import Curve, draw_curves
from perron.monitor.progress import format_duration, format_value
from perron.monitor.records import Track
from perron.monitor.status import StudyFolder, TrainingFolder, seconds_since

COLORS = ("cyan", "yellow", "green", "magenta", "blue", "red", "bright_cyan", "bright_yellow")
FAINT = "bright_black"
PREFERRED = ("loss_mean", "loss", "grad_norm_sq", "batch_loss")  # the metric to draw by default
FINISHED = 24  # how many finished runs are drawn
QUIET = 120.0  # seconds without a record of a live process that are worth a remark
HUGE = 1e300  # values that are not drawn: the run has diverged
PICTURE = 6  # lines that the curves need
WIDE = 72  # columns from which rows have all details


class Dashboard:
    """A view of a directory; `refresh` reads new records.

    Args:
        folder: the study or training, from `perron.monitor.status.open_folder`.
        metric: the one to draw; by default a loss or the squared gradient norm.
    """

    def __init__(self, folder: StudyFolder | TrainingFolder, metric: str | None = None) -> None:
        self.folder, self._metric = folder, metric
        self._finished: dict[str, list[tuple[float, float]]] = {}
        if metric is not None and (known := self.metrics()) and metric not in known:
            names = strip_control(", ".join(known))
            raise PerronError(f"No metric {metric!r} is recorded in {folder.folder}; there are: {names}.")

    def refresh(self) -> Dashboard:
        """Read the new records."""
        self.folder.refresh()
        return self

    def tracks(self) -> dict[str, Track]:
        """Return the records of nodes, or of runs in progress, by name."""
        if isinstance(self.folder, TrainingFolder):
            return {f"node {number}": track for number, track in self.folder.nodes.items()}
        names = shorten_labels({run.name: run.label for run in self.folder.runs})
        return {short: self.folder.active[name] for name, short in names.items() if name in self.folder.active}

    def metrics(self) -> list[str]:
        """Return the names of the metrics."""
        names = list(dict.fromkeys(name for track in self.tracks().values() for name in track.curves))
        if not names and isinstance(self.folder, StudyFolder) and self.folder.done:
            with suppress(FileError):  # damaged: the study will repeat it
                names = list(self.folder.finished(next(iter(self.folder.done))))[1:]
        return names

    @property
    def metric(self) -> str | None:
        """The metric to draw."""
        known = self.metrics()
        return self._metric or next((name for name in (*PREFERRED, *known) if name in known), None)

    @property
    def state(self) -> str:
        """Whether it is running, the evidence, and how to resume it if not."""
        folder, ago = self.folder, format_duration(seconds_since(self.folder.at))
        study = isinstance(folder, StudyFolder)
        if folder.running:
            return "running" + (f"; no new record for {ago}" if seconds_since(folder.at) > QUIET else "")
        if folder.complete:
            return f"ended {ago} ago" + (f"; perron study show {folder.folder} shows the tables" if study else "")
        command = "the same perron study run" if study else "the same command"
        command = getattr(folder, "command", "") or command
        return f"stopped {ago} ago (no process holds the lock on its records); {command} resumes it"

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as data, for programs."""
        folder = self.folder
        fields: dict[str, Any] = {
            "title": folder.title, "kind": "study" if isinstance(folder, StudyFolder) else "training",
            "running": folder.running, "complete": folder.complete, "state": self.state, "share": folder.share,
            "seconds_left": folder.left if folder.running else None, "seconds_since_record": seconds_since(folder.at),
            "metric": self.metric,
            "tracks": {
                name: {
                    "step": track.step, "steps": track.steps, "share": track.share, "rate": track.rate(),
                    "seconds_left": track.left, "last": track.last, "ended": track.ended is not None,
                    "damaged_lines": track.damaged,
                }
                for name, track in self.tracks().items()
            },
        }  # fmt: skip
        if isinstance(folder, StudyFolder):
            counts = {"runs": len(folder.runs), "done": len(folder.done), "workers": folder.workers}
            return fields | counts | {"failed": self._failures(folder)}
        events = [list(event) for event in folder.events]
        return fields | {"alive": sorted(folder.alive), "rate": folder.rate, "events": events, "slow": folder.slow}

    @staticmethod
    def _failures(folder: StudyFolder) -> dict[str, str]:
        labels = {run.name: run.label for run in folder.runs}
        return {labels.get(name, name): error for name, error in folder.failed.items()}

    def render(self, width: int, height: int) -> Group:
        """Return a frame of at most ``width`` columns and ``height`` lines."""
        metric, tracks = self.metric, self.tracks()
        head = [*self._head(width)]
        room = height - len(head) - 1
        shown = max(1, min(len(tracks), room - PICTURE - 1 if room > PICTURE + 2 else room))
        body: list[RenderableType] = [self._rows(tracks, metric, shown, width)] if tracks else []
        if hidden := len(tracks) > shown:
            body.append(_text(f"  and {len(tracks) - shown} more", style="dim"))
        room -= (shown if tracks else 0) + hidden
        if metric is not None and room >= PICTURE:
            body += draw_curves(self._curves(metric, tracks), width, room)
        return Group(*head, *body, _line(self._legend(metric), style="dim"))

    def _head(self, width: int) -> Iterator[RenderableType]:
        folder = self.folder
        yield _line(folder.title, style="bold")
        text = f" {folder.share:4.0%}"
        if folder.running:
            so_far = f"{format_duration(seconds_since(folder.began))} so far, " if width >= 56 else ""
            left = "time left not known yet" if folder.left is None else f"about {format_duration(folder.left)} left"
            text += f"  {so_far}{left}"
        if isinstance(folder, StudyFolder) or any(track.steps for track in folder.nodes.values()):
            grid = Table.grid()
            bar = ProgressBar(total=1.0, completed=folder.share, width=max(8, width - len(text) - 1))
            grid.add_row(bar, _text(text))
            yield grid
        if folder.running:
            yield _line(f"{self.counts()}; {self.state}")
        else:
            yield _line(self.counts())
            style = "bold green" if folder.complete else "bold yellow"
            yield from (_text(line, style=style) for line in wrap(self.state, width, break_on_hyphens=False)[:4])
        for message in self.messages()[-2:]:
            yield _line(message, style="red" if isinstance(folder, StudyFolder) else "yellow")

    def messages(self) -> list[str]:
        """Return the failures of a study, or the events of a training."""
        folder = self.folder
        if isinstance(folder, StudyFolder):
            return [f"failed: {label}: {error}" for label, error in self._failures(folder).items()]
        return [message.partition(". ")[0] for _, message in folder.events] + [folder.slow] * bool(folder.slow)

    def counts(self) -> str:
        """Return how many runs or nodes there are, and how far they are."""
        folder = self.folder
        if isinstance(folder, TrainingFolder):
            step = max((track.step for track in folder.nodes.values()), default=0)
            steps = max((track.steps or 0 for track in folder.nodes.values()), default=0)
            rate = f", {folder.rate:.3g} steps/s" if folder.rate and folder.running else ""
            alive = f"{len(folder.alive)} of " if folder.running else ""
            return f"{alive}{len(folder.nodes)} nodes, step {step:,}{f' of {steps:,}' if steps else ''}{rate}"
        counts = {
            "done": len(folder.done),
            "in progress" if folder.running else "interrupted": len(folder.active),
            "to come": len(folder.runs) - len(folder.done) - len(folder.failed) - len(folder.active),
            "failed": len(folder.failed),
        }
        listed = ", ".join(f"{count} {state}" for state, count in counts.items() if count or state == "done")
        return f"{len(folder.runs)} runs: {listed}"

    def _rows(self, tracks: Mapping[str, Track], metric: str | None, count: int, width: int) -> Table:
        """Return a line for each track: its color, name, bar, step, last value, time left."""
        table = Table.grid(padding=(0, 1), expand=True)
        table.add_column(width=1)
        table.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
        for _ in range(4 if width >= WIDE else 3):
            table.add_column(no_wrap=True, justify="right")
        for (name, track), color in zip(list(tracks.items())[:count], cycle(COLORS), strict=False):
            bar = ProgressBar(total=1.0, completed=track.share, width=10, complete_style=color) if track.steps else ""
            steps = f"{track.step:,}/{track.steps:,}" if track.steps and width >= WIDE else f"{track.step:,}"
            value = format_value(metric, track.last[metric]) if metric is not None and metric in track.curves else ""
            cells = [bar, *map(_text, (steps, value, self.remark(name, track)))]
            table.add_row(_text("●", style=color), _text(name), *(cells if width >= WIDE else cells[1:]))
        return table

    def remark(self, name: str, track: Track) -> str:
        """Return the time that a track needs, or the reason why it does not advance."""
        if isinstance(self.folder, TrainingFolder) and int(name.removeprefix("node ")) not in self.folder.alive:
            return "ended" if track.ended is not None else f"gone {format_duration(seconds_since(track.at))}"
        return f"{format_duration(track.left)} left" if self.folder.running and track.left is not None else ""

    def _curves(self, metric: str, tracks: Mapping[str, Track]) -> list[Curve]:
        """Return the curves of finished runs, faint, and of the tracks."""
        colored = zip(tracks.values(), cycle(COLORS), strict=False)
        curves = [Curve(_finite(track.curves.get(metric, ())), color) for track, color in colored]
        return [*(Curve(points, FAINT) for points in self._finished_curves(metric)), *reversed(curves)]

    def _finished_curves(self, metric: str) -> list[list[tuple[float, float]]]:
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
        finished = "; gray: finished runs" if self._finished else ""
        also = f"; --metric {' | '.join(others)}" if others else ""
        return f"{metric} over steps{finished}{'; q quits' if self.folder.running else ''}{also}"


def shorten_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return labels without the parts that all have in common; labels that would become equal stay whole.

    >>> shorten_labels({"a": "sgp on ring(4), uniform, seed 0", "b": "sgp on ring(8), uniform, seed 0"})
    {'a': 'sgp on ring(4)', 'b': 'sgp on ring(8)'}
    """
    parts = {key: label.split(", ") for key, label in labels.items()}
    common = set.intersection(*map(set, parts.values())) if len(parts) > 1 else set()
    short = {
        key: ", ".join([first, *(part for part in rest if part not in common)]) for key, (first, *rest) in parts.items()
    }
    names = list(short.values())
    return {key: name if names.count(name) == 1 else f"{labels[key]} ({key[:4]})" for key, name in short.items()}


def _finite(points: Iterable[tuple[float, float | None]]) -> list[tuple[float, float]]:
    return [(step, value) for step, value in points if value is not None and abs(value) < HUGE]


def _text(text: str, **settings: Any) -> Text:
    """Return text for the terminal; all text of a frame is made here."""
    return Text(strip_control(text), **settings)


def _line(text: str, style: str = "") -> Text:
    """Return text that is cut to one line."""
    return _text(text, style=style, no_wrap=True, overflow="ellipsis")

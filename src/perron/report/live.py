"""The live page of a study or training: the data of `perron watch`, in the form of the report's curves, and its server."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from threading import Lock
from typing import Any

import numpy as np

from perron._storage.jsonable import to_json, to_jsonable
from perron.errors import FileError, PerronError
from perron.monitor.dashboard import FINISHED, HUGE, Dashboard, shorten_labels
from perron.monitor.progress import format_duration, format_value
from perron.monitor.records import Track
from perron.monitor.status import StudyFolder, seconds_since
from perron.report import Document, document, render
from perron.report.curves import MOST, metric_about, thinned
from perron.report.server import Answer, PageServer
from perron.studies.results import MANIFEST, read_study

FRESH = 1.0  # seconds for which all readers get the same data
ROWS = 200  # of the table
ACTIVE, DONE = 0, 1  # places in STATES
STATES = ["in progress", "finished"]
NOTHING: dict[str, Any] = {  # what is known before the records are read for the first time
    "running": False, "share": None, "chips": [], "alerts_title": "", "alerts": [], "curves": None, "report": False,
    "table": {"title": "", "columns": [], "rows": []},
}  # fmt: skip

Points = Mapping[str, Iterable[tuple[float, float | None]]]


class LivePage:
    """The live page of a directory, for several readers at once.

    Args:
        dashboard: the view of the directory; its metric is the first to choose.
    """

    def __init__(self, dashboard: Dashboard) -> None:
        self.dashboard = dashboard
        self._lock = Lock()
        self._data = NOTHING
        self._read = -FRESH
        self._labels: list[str] = []  # of the curves, in the order in which they were first seen: colors stay
        self._finished: dict[str, Points] = {}
        self._report: tuple[Any, Document] | None = None

    def document(self) -> Document:
        """Return the page, which then asks for `data`."""
        folder = self.dashboard.folder
        return render("live.html", folder.title, {"studies": [{"name": folder.title}]}, live=True)

    def data(self) -> dict[str, Any]:
        """Return how far the run is, and its curves."""
        with self._lock:
            if time.monotonic() - self._read >= FRESH:
                self._data = self._collect()
                self._read = time.monotonic()
            return self._data

    def report(self) -> Document:
        """Return the report about the results of a study."""
        with self._lock:
            folder = self.dashboard.folder.folder
            try:
                facts = (folder / MANIFEST).stat()
            except OSError:
                raise FileError(f"{folder} holds no results yet.") from None
            version = facts.st_mtime_ns, facts.st_size
            if self._report is None or self._report[0] != version:
                self._report = version, document([read_study(folder)])
            return self._report[1]

    def _collect(self) -> dict[str, Any]:
        try:
            self.dashboard.refresh()
        except PerronError as error:  # the directory was removed or damaged; the last numbers stay
            return self._data | {"state": "Not updated: the records cannot be read", "details": str(error)}
        dashboard, folder = self.dashboard, self.dashboard.folder
        study = isinstance(folder, StudyFolder)
        known = isinstance(folder, StudyFolder) or any(track.steps for track in folder.nodes.values())
        chips = [f"{folder.share:.0%}"] if known else []
        chips.append(dashboard.counts())
        if folder.running:
            chips.append(f"{format_duration(seconds_since(folder.began))} so far")
            chips.append(
                "time left not known yet" if folder.left is None else f"about {format_duration(folder.left)} left"
            )
        state = "Running" if folder.running else "Ended" if folder.complete else "Stopped"
        return to_jsonable(
            {
                "running": folder.running,
                "state": state,
                "details": dashboard.state if dashboard.state != "running" else "",
                "share": folder.share if known else None,
                "chips": chips,
                "alerts_title": "Failures" if study else "Events",
                "alerts": dashboard.messages(),
                "table": self._table(),
                "curves": self._curves(),
                "report": study and not folder.running and (folder.folder / MANIFEST).is_file(),
            },
            digits=6,
        )

    def _table(self) -> dict[str, Any]:
        """Return the rows of runs in progress or of nodes."""
        dashboard, metric = self.dashboard, self.dashboard.metric
        study, rows = isinstance(dashboard.folder, StudyFolder), []
        for name, track in list(dashboard.tracks().items())[:ROWS]:
            steps = f"{track.step:,}" + (f" of {track.steps:,}" if track.steps else "")
            value = format_value(metric, track.last[metric]) if metric is not None and metric in track.curves else ""
            rows.append([name, steps, value, dashboard.remark(name, track)])
        title = "Nodes" if not study else "Runs in progress" if dashboard.folder.running else "Interrupted runs"
        return {"title": title, "columns": ["run" if study else "node", "step", "last value", ""], "rows": rows}

    def _curves(self) -> dict[str, Any] | None:
        """Return the curves in the form of `perron.report.curves.curves`; None if nothing is measured yet."""
        dashboard = self.dashboard
        study = isinstance(dashboard.folder, StudyFolder)
        found = {name: (ACTIVE, _points(track)) for name, track in dashboard.tracks().items()}
        found = {name: one for name, one in found.items() if one[1]} | self._finished_runs()
        metrics = dict.fromkeys([dashboard.metric, *dashboard.metrics()])
        drawn = [name for name in metrics if name is not None and any(name in points for _, points in found.values())]
        if not drawn:
            return None
        self._labels = [name for name in self._labels if name in found]
        self._labels += [name for name in found if name not in self._labels]
        dimensions = [{"title": "runs" if study else "nodes", "values": self._labels}]
        dimensions += [{"title": "state", "values": STATES}] if study else []
        step_lists: list[list[float]] = []
        runs = [  # those in progress come first, and so have whole lines
            {
                "run": name,
                "at": [self._labels.index(name), state][: len(dimensions)],
                "values": _values(points, step_lists),
                "clock": None,
                "floor": None,
                "per_step": {},
            }
            for name, (state, points) in found.items()
        ]
        return {
            "metrics": [
                metric_about(name) | ({} if study else {"about": ""}) for name in drawn
            ],  # names of the user's own
            "dimensions": dimensions,
            "steps": step_lists,
            "runs": runs,
            "trials": 1,
            "color": 0,
            "panel": -1,
            "shown": [list(range(len(one["values"]))) for one in dimensions],
        }

    def _finished_runs(self) -> dict[str, tuple[int, Points]]:
        """Return the curves of the last runs that are finished, by their short labels."""
        folder = self.dashboard.folder
        if not isinstance(folder, StudyFolder):
            return {}
        labels, found = shorten_labels({run.name: run.label for run in folder.runs}), {}
        for name in list(folder.done)[-FINISHED:]:
            if name not in self._finished:
                with suppress(FileError):  # damaged: the study will repeat it
                    curves = folder.finished(name)
                    steps = curves.pop("step").tolist()
                    self._finished[name] = {
                        metric: _thin(list(zip(steps, means.tolist(), strict=True))) for metric, means in curves.items()
                    }
            if name in self._finished:
                found[labels[name]] = DONE, self._finished[name]
        return found


def serve(dashboard: Dashboard, port: int, tell: Callable[[str], object]) -> None:
    """Serve the live page until a KeyboardInterrupt; ``tell`` is called with its address."""
    with make_server(LivePage(dashboard), port) as server:
        tell(server.address)
        server.serve_forever(poll_interval=0.2)


def make_server(live: LivePage, port: int = 0) -> PageServer:
    """Return the server of the live page, its data, and the report."""

    def answer(page: Document) -> Answer:
        return Answer(page.text.encode(), "text/html", f"{page.policy}; frame-ancestors 'none'")

    page = answer(live.document())
    pages = {
        "": lambda: page,
        "data": lambda: Answer(to_json(live.data()).encode(), "application/json"),
        "report": lambda: answer(live.report()),
    }
    return PageServer(pages, port)


def _values(points: Points, lists: list[list[float]]) -> dict[str, Any]:
    """Return the values of each metric, and the place of its steps in the lists: metrics may be recorded at different steps."""
    values = {}
    for metric, curve in points.items():
        steps, numbers = map(list, zip(*curve, strict=True))
        if steps not in lists:
            lists.append(steps)
        values[metric] = {"steps": lists.index(steps), "mean": numbers}
    return values


def _points(track: Track) -> Points:
    return {name: _thin(curve) for name, curve in track.curves.items() if curve}


def _thin(curve: list[tuple[int, float | None]]) -> list[tuple[int, float | None]]:
    """Return the points that a screen can show, without values that no axis shows."""
    kept = thinned(np.arange(len(curve)), MOST)
    return [
        (step, None if value is None or not abs(value) < HUGE else value)
        for step, value in map(curve.__getitem__, kept)
    ]

"""Curves for TensorBoard: of a training while it goes, and of a study's runs, under way and finished."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

from perron.errors import PerronError
from perron.monitor.status import STUDY, StudyFolder

FOLDER = "tensorboard"
COMPLETE = ".complete"  # how the name of a finished run's file ends
PATIENCE = 2.0  # seconds between two looks at the records


class Board:
    """Writes scalars into a directory for TensorBoard: ``board(step, loss=0.3)``.

    It goes on in a directory that is there already: from the first step it is told, its values take the place of older ones.
    """

    def __init__(self, folder: Path, *, suffix: str = "") -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise PerronError(
                "TensorBoard is not installed: pip install 'perron[tensorboard]' (or tensorboard)."
            ) from None
        self._make: Any = lambda step: SummaryWriter(str(folder), purge_step=step, filename_suffix=suffix)
        self._writer: Any = None

    def __call__(self, step: int, /, **values: float) -> None:
        """Write what was measured after a step."""
        if self._writer is None:
            self._writer = self._make(step)
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def flush(self) -> None:
        """Let TensorBoard see it."""
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        """All is written."""
        if self._writer is not None:
            self._writer.close()


class StudyBoard:
    """Events of a study's runs: a directory for each, in ``DIR/tensorboard``; each metric a curve of its means over trials.

    A run under way is shown as far as its records tell. When it is finished, one file with all that its table says takes the
    place of that, so that the curves are the table's, to the last bit of a float32.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._study = StudyFolder(self.folder)
        self._boards: dict[str, tuple[Board, dict[str, int]]] = {}
        self._done: set[str] = set()
        self._next = 0.0
        Board(self.folder)  # whether there is TensorBoard is asked before hours of runs

    def update(self, *, now: bool = False) -> None:
        """Write what is new, if it is time."""
        if time.monotonic() < self._next and not now:
            return
        self._study.look()
        for name, place in self._places().items():
            if name in self._study.done:
                if name not in self._done:
                    self._complete(name, place)
                    self._done.add(name)
            elif name in self._study.under_way:
                self._follow(name, place)
        self._next = time.monotonic() + PATIENCE

    def close(self) -> None:
        """Write what is left."""
        if (self.folder / STUDY).exists():  # it is not if the study could not begin
            self.update(now=True)
        for board, _ in self._boards.values():
            board.close()

    def _places(self) -> dict[str, Path]:
        """Where each run's events go: readable, and one for each."""
        slugs = {run.name: re.sub(r"[^\w.=+-]+", "-", run.label).strip("-") for run in self._study.runs}
        return {name: self.folder / FOLDER / f"{slug}-{name[:6]}" for name, slug in slugs.items()}

    def _follow(self, name: str, place: Path) -> None:
        """What the records of a run under way say since the last look."""
        board, seen = self._boards.setdefault(name, (Board(place), {}))
        fresh: dict[int, dict[str, float]] = {}
        for metric, curve in self._study.under_way[name].curves.items():
            for step, value in reversed(curve):
                if step <= seen.get(metric, -1):
                    break
                if value is not None:
                    fresh.setdefault(step, {})[metric] = value
            seen[metric] = curve[-1][0]
        for step in sorted(fresh):
            board(step, **fresh[step])
        board.flush()

    def _complete(self, name: str, place: Path) -> None:
        """All that a finished run's table says, in place of what was written while it went."""
        if name in self._boards:
            self._boards.pop(name)[0].close()
        source = self._study.table(name)
        old = list(place.glob("*")) if place.is_dir() else []
        if any(one.name.endswith(COMPLETE) and one.stat().st_mtime >= source.stat().st_mtime for one in old):
            return
        part = place.with_name(f".{place.name}.part")
        curves = self._study.finished(name)
        board = Board(part, suffix=COMPLETE)
        for at, step in enumerate(curves.pop("step")):
            board(int(step), **{metric: float(values[at]) for metric, values in curves.items()})
        board.close()
        place.mkdir(parents=True, exist_ok=True)
        for path in part.iterdir():
            path.replace(place / path.name)
        part.rmdir()
        for path in old:
            path.unlink(missing_ok=True)

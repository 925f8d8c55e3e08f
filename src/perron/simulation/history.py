"""What a run measured: a table with a row for each recorded step and trial."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from perron._typing import FloatArray, IntArray
from perron.errors import PerronError
from perron.simulation.metrics import Metric, Snapshot, chosen

if TYPE_CHECKING:
    import pandas as pd

MOST = 10_000_000  # records of a run


@dataclass(frozen=True)
class History:
    """Measured numbers.

    Attributes:
        steps: the recorded steps, ``(records,)``.
        values: for each metric, ``(records, trials)``.
        trials: the numbers of the trials.
        about: what was run, in plain words and numbers.
        interrupted: whether the run was stopped before its end.
    """

    steps: IntArray
    values: Mapping[str, FloatArray]
    trials: IntArray
    about: Mapping[str, Any] = field(default_factory=dict)
    interrupted: bool = False

    def __getitem__(self, metric: str) -> FloatArray:
        """The values of a metric, ``(records, trials)``."""
        if metric not in self.values:
            raise PerronError(f"This history has no {metric!r}; it has: {', '.join(self.values)}.")
        return self.values[metric]

    def mean(self, metric: str) -> FloatArray:
        """The mean over trials, ``(records,)``."""
        return self[metric].mean(axis=1)

    def standard_error(self, metric: str) -> FloatArray:
        """The standard error of that mean; nan for a single trial."""
        trials = len(self.trials)
        return self[metric].std(axis=1, ddof=1) / np.sqrt(trials) if trials > 1 else np.full(len(self.steps), np.nan)

    def tail(self, metric: str, share: float = 0.5) -> tuple[float, float]:
        """Mean over the last share of the records, and its standard error over trials: a stationary level.

        Whether the run IS stationary by then is for the caller to know.
        """
        late = self[metric][int(len(self.steps) * (1 - share)) :].mean(axis=0)
        return float(late.mean()), float(late.std(ddof=1) / np.sqrt(len(late))) if len(late) > 1 else float("nan")

    def frame(self) -> pd.DataFrame:
        """A tidy table: columns step, trial, a column for each metric, and what was run."""
        import pandas as pd

        records, trials = len(self.steps), len(self.trials)
        table: dict[str, Any] = {"step": np.repeat(self.steps, trials), "trial": np.tile(self.trials, records)}
        table |= {name: value.ravel() for name, value in self.values.items()}
        return pd.DataFrame(table).assign(**self.about)

    def plot(self, metric: str, path: str | Path | None = None) -> Any:
        """The mean of a metric over the steps with a band of two standard errors; written to ``path`` if given."""
        from perron.plots import curves, save

        line = (self.steps, self.mean(metric), np.nan_to_num(self.standard_error(metric)))
        figure = curves({str(self.about.get("algorithm", metric)): line}, metric)
        return figure if path is None else save(figure, path)


class Recorder:
    """Measures a run at certain steps; some metrics only at the last of them, and nan before.

    What it has so far can be saved and taken up again.
    """

    def __init__(self, metrics: Sequence[str | Metric], due: set[int], final: Sequence[str | Metric] = ()) -> None:
        last = chosen(final)
        always = chosen(metrics)
        self.metrics, self.due = always | last, due
        self.final = set(last) - set(always)
        self.watchers: dict[str, Any] = {
            name: metric for name, metric in self.metrics.items() if getattr(metric, "every_step", False)
        }
        self.steps: list[int] = []
        self.rows: dict[str, list[FloatArray]] = {name: [] for name in self.metrics}

    def observe(self, now: Snapshot) -> dict[str, float] | None:
        """Look at a step; the means over trials of what was measured, if it was due."""
        for watcher in self.watchers.values():
            watcher.observe(now)
        if now.step not in self.due:
            return None
        unknown = np.full(now.state.x.shape[0], np.nan)
        found = {
            name: unknown if name in self.final and now.step < max(self.due) else metric(now).cpu().double().numpy()
            for name, metric in self.metrics.items()
        }
        for name, value in found.items():
            self.rows[name].append(value)
        self.steps.append(now.step)
        return {name: float(value.mean()) for name, value in found.items()}

    def history(self, trials: Sequence[int], about: Mapping[str, Any], *, interrupted: bool) -> History:
        """All that was measured."""
        many = len(self.steps)
        values = {name: np.array(value[:many]).reshape(many, -1) for name, value in self.rows.items()}
        return History(np.array(self.steps, dtype=np.int64), values, np.array(trials), about, interrupted)

    def saved(self) -> dict[str, Tensor]:
        """As tensors."""
        tensors = {f"row.{name}": torch.from_numpy(np.stack(rows)) for name, rows in self.rows.items() if rows}
        for name, watcher in self.watchers.items():
            tensors |= {f"watcher.{name}.{key}": torch.as_tensor(value) for key, value in _numbers(watcher).items()}
        return tensors | {"steps": torch.tensor(self.steps)}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from what was saved."""
        self.steps = tensors["steps"].tolist()
        for name in self.rows:
            self.rows[name] = list(tensors[f"row.{name}"].numpy()) if f"row.{name}" in tensors else []
        for name, watcher in self.watchers.items():
            for key, old in _numbers(watcher).items():
                new = tensors[f"watcher.{name}.{key}"]
                setattr(watcher, key, new if torch.is_tensor(old) else type(old)(new.item()))


def _numbers(watcher: Any) -> dict[str, Any]:
    """What a metric that sees every step has gathered: its attributes that are tensors or numbers."""
    return {
        key: value for key, value in vars(watcher).items() if torch.is_tensor(value) or isinstance(value, int | float)
    }


def recorded(steps: int, every: int | Literal["log"] | None) -> set[int]:
    """The steps at which to measure."""
    if steps >= 2**53:
        raise PerronError(f"steps is a number of steps that can be counted, below 2^53; got {steps}.")
    if every == "log":
        return {0, steps, *np.unique(np.geomspace(1, max(steps, 1), 200).round().astype(int)).tolist()}
    if every is not None and (not isinstance(every, int) or every < 1):
        raise PerronError(f"every is a whole number of steps, or 'log'; got {every!r}.")
    if every is not None and steps // every > MOST:
        raise PerronError(
            f"{steps:,} steps, measured every {every}, are {steps // every:,} records; at most {MOST:,} are kept. "
            f"Choose every = {-(-steps // MOST)} or more."
        )
    return {steps, *range(0, steps + 1, every or max(1, steps // 200))}

"""Results of a run: a table with one row per recorded step and trial."""

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
from perron.simulation.metrics import Metric, Snapshot, chosen, needs_previous

if TYPE_CHECKING:
    import pandas as pd

MOST = 10_000_000  # records of a run


@dataclass(frozen=True)
class History:
    """Results of a run.

    Attributes:
        steps: the recorded steps, ``(records,)``.
        values: for each metric, ``(records, trials)``.
        trials: the indices of the trials.
        about: the settings of the run.
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
        """Return the mean over the last share of the records and its standard error over trials.

        This is the stationary level if the run is stationary by then, which is not checked.
        """
        late = self[metric][int(len(self.steps) * (1 - share)) :].mean(axis=0)
        return float(late.mean()), float(late.std(ddof=1) / np.sqrt(len(late))) if len(late) > 1 else float("nan")

    def frame(self) -> pd.DataFrame:
        """Return a tidy table: step, trial, a column per metric, and the settings."""
        import pandas as pd

        records, trials = len(self.steps), len(self.trials)
        table: dict[str, Any] = {"step": np.repeat(self.steps, trials), "trial": np.tile(self.trials, records)}
        table |= {name: value.ravel() for name, value in self.values.items()}
        return pd.DataFrame(table).assign(**self.about)

    def plot(self, metric: str, path: str | Path | None = None) -> Any:
        """Plot the mean of a metric with a band of two standard errors; write it to ``path`` if given."""
        from perron.plots import curves, save

        line = (self.steps, self.mean(metric), np.nan_to_num(self.standard_error(metric)))
        figure = curves({str(self.about.get("algorithm", metric)): line}, metric)
        return figure if path is None else save(figure, path)


class Recorder:
    """Measures a run at given steps; it can be saved and resumed.

    Args:
        metrics: measured at each of the steps.
        due: the steps.
        final: metrics that are measured at the last step only; nan before.
    """

    def __init__(self, metrics: Sequence[str | Metric], due: set[int], final: Sequence[str | Metric] = ()) -> None:
        last = chosen(final)
        always = chosen(metrics)
        self.metrics, self.due = always | last, due
        self.final = set(last) - set(always)
        self.watchers: dict[str, Any] = {
            name: metric for name, metric in self.metrics.items() if getattr(metric, "every_step", False)
        }
        self.needs_previous = any(needs_previous(metric) for metric in self.metrics.values())
        self.steps: list[int] = []
        self.rows: dict[str, list[FloatArray]] = {name: [] for name in self.metrics}

    def observe(self, now: Snapshot) -> dict[str, float] | None:
        """Measure a step if it is due; return the means over trials, or None."""
        for watcher in self.watchers.values():
            watcher.observe(now)
        if now.step not in self.due:
            return None
        unknown = np.full(now.state.x.shape[0], np.nan)
        measured = {
            name: unknown if name in self.final and now.step < max(self.due) else metric(now).cpu().double().numpy()
            for name, metric in self.metrics.items()
        }
        for name, value in measured.items():
            self.rows[name].append(value)
        self.steps.append(now.step)
        return {name: float(value.mean()) for name, value in measured.items()}

    def history(self, trials: Sequence[int], about: Mapping[str, Any], *, interrupted: bool) -> History:
        """Return the results so far."""
        many = len(self.steps)
        values = {name: np.array(value[:many]).reshape(many, -1) for name, value in self.rows.items()}
        return History(np.array(self.steps, dtype=np.int64), values, np.array(trials), about, interrupted)

    def saved(self) -> dict[str, Tensor]:
        """Return the results so far as tensors."""
        tensors = {f"row.{name}": torch.from_numpy(np.stack(rows)) for name, rows in self.rows.items() if rows}
        for name, watcher in self.watchers.items():
            tensors |= {f"watcher.{name}.{key}": torch.as_tensor(value) for key, value in _numbers(watcher).items()}
        return tensors | {"steps": torch.tensor(self.steps)}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Resume from what was saved."""
        self.steps = tensors["steps"].tolist()
        for name in self.rows:
            self.rows[name] = list(tensors[f"row.{name}"].numpy()) if f"row.{name}" in tensors else []
        for name, watcher in self.watchers.items():
            for key, old in _numbers(watcher).items():
                new = tensors[f"watcher.{name}.{key}"]
                setattr(watcher, key, new if torch.is_tensor(old) else type(old)(new.item()))


def _numbers(watcher: Any) -> dict[str, Any]:
    """The state of a metric that observes every step: its tensors and numbers."""
    return {
        key: value for key, value in vars(watcher).items() if torch.is_tensor(value) or isinstance(value, int | float)
    }


def recorded(steps: int, every: int | Literal["log"] | None) -> set[int]:
    """Return the steps at which to measure."""
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

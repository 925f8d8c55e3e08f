"""What a run measured: a table with a row for each recorded step and trial."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from perron.errors import PerronError
from perron.graph import FloatArray, IntArray

if TYPE_CHECKING:
    import pandas as pd


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

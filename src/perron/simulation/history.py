"""Results of a run: a table with one row per recorded step and trial."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from perron._registry import lookup
from perron._storage import npz
from perron._storage.atomic import write_bytes
from perron._storage.jsonable import to_json
from perron._typing import FloatArray, IntArray
from perron.errors import FileError, PerronError
from perron.simulation.metrics import Metric, bytes_sent, chosen, is_budget, larger_is_better, needs_previous
from perron.simulation.snapshot import Snapshot

if TYPE_CHECKING:
    import pandas as pd

    from perron.simulation.simulator import Simulation

MOST = 10_000_000  # records of a run
FORMAT = 1  # of the file of a history
KINDS = ("values", "costs")
TIMES = {"seconds": "seconds", "first_seconds": "seconds_first"}  # of a snapshot, and of a history
SECONDS = "seconds"  # the column of a table
COSTS: dict[str, Callable[[Snapshot], float]] = {  # what a run has spent by a step
    "gradients": lambda now: float(now.gradients),
    "bytes": lambda now: float(bytes_sent(now)[0]),
}


@dataclass(frozen=True, repr=False)
class History:
    """Results of a run.

    Attributes:
        steps: the recorded steps, ``(records,)``.
        values: for each metric, ``(records, trials)``.
        trials: the indices of the trials.
        about: the settings of the run.
        interrupted: whether the run was stopped before its end.
        costs: what was spent by each record, ``(records,)``: ``gradients`` of each node, and ``bytes`` sent over all links.
        seconds, seconds_first: when the last and the first node had done the step, on the run's clock, ``(records, trials)``;
            None without a clock.
    """

    steps: IntArray
    values: Mapping[str, FloatArray]
    trials: IntArray
    about: Mapping[str, Any] = field(default_factory=dict)
    interrupted: bool = False
    costs: Mapping[str, FloatArray] = field(default_factory=dict)
    seconds: FloatArray | None = None
    seconds_first: FloatArray | None = None

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

    def time_to(self, metric: str, value: float) -> FloatArray:
        """Return the seconds of the first record of each trial with a metric as good as a value, ``(trials,)``; nan if none."""
        seconds, found = self._timed(), self[metric]
        with np.errstate(invalid="ignore"):
            good = found >= value if larger_is_better(metric) else found <= value
        first = good.argmax(axis=0) if len(good) else np.zeros(len(self.trials), dtype=int)
        picked = np.take_along_axis(seconds, first[None], axis=0)[0] if len(good) else np.empty(len(self.trials))
        return np.where(good.any(axis=0), picked, np.nan)

    def _timed(self) -> FloatArray:
        if self.seconds is None:
            raise PerronError("This run had no clock, so its seconds are not known: pass clock= to simulate.")
        return self.seconds

    def frame(self) -> pd.DataFrame:
        """Return a tidy table: step, trial, a column per metric and cost, and the settings."""
        import pandas as pd

        records, trials = len(self.steps), len(self.trials)
        table: dict[str, Any] = {"step": np.repeat(self.steps, trials), "trial": np.tile(self.trials, records)}
        table |= {name: value.ravel() for name, value in self.values.items()}
        table |= {name: np.repeat(value, trials) for name, value in self.costs.items()}
        table |= {} if self.seconds is None else {SECONDS: self.seconds.ravel()}
        settings: dict[str, Any] = {
            name: value for name, value in self.about.items() if name not in table and np.isscalar(value)
        }
        return pd.DataFrame(table).assign(**settings)

    def plot(self, metric: str, path: str | Path | None = None, *, x: str = "steps") -> Any:
        """Plot the mean of a metric with a band of two standard errors; write it to ``path`` if given.

        The axis ``x`` is steps, gradients, bytes, or with a clock seconds (their mean over trials).
        """
        from perron.plots import curves, save

        axes: dict[str, Any] = {"steps": self.steps} | dict(self.costs)
        if x == SECONDS or self.seconds is not None:
            axes[SECONDS] = self._timed().mean(axis=1)
        line = (lookup(x, axes, "x axis"), self.mean(metric), np.nan_to_num(self.standard_error(metric)))
        figure = curves({str(self.about.get("algorithm", metric)): line}, metric, x="step" if x == "steps" else x)
        return figure if path is None else save(figure, path)

    def save(self, path: str | Path) -> Path:
        """Write the results to an .npz file, from which `load` reads them."""
        path = Path(path)
        if path.suffix.lower() != ".npz":
            raise FileError(
                f"A history is written to an .npz file; got {path}. For other formats, write history.frame()."
            )
        header = {"format": FORMAT, "interrupted": self.interrupted, "about": self.about}
        header |= {"values": list(self.values), "costs": list(self.costs)}
        arrays = {f"{kind}_{k}": array for kind in KINDS for k, array in enumerate(getattr(self, kind).values())}
        arrays |= {"steps": self.steps, "trials": self.trials}
        arrays |= {name: value for name in TIMES.values() if (value := getattr(self, name)) is not None}
        return write_bytes(path, npz.pack({"perron_history": np.array(to_json(header))} | arrays))

    @classmethod
    def load(cls, path: str | Path) -> History:
        """Read the results that `save` wrote."""
        path = Path(path)
        arrays, header = npz.read_with_header(path, "history", FORMAT, "history.save(path)")
        try:
            values, costs = ({name: arrays[f"{kind}_{k}"] for k, name in enumerate(header[kind])} for kind in KINDS)
            times = [arrays.get(name) for name in TIMES.values()]  # None without a clock
            about, interrupted = header["about"], header["interrupted"]
            history = cls(arrays["steps"], values, arrays["trials"], about, interrupted, costs, *times)
        except (KeyError, TypeError, AttributeError) as error:
            raise FileError(f"{path} is damaged: {error!r}.") from None
        shape = (len(history.steps), len(history.trials))
        full = [*values.values(), *(each for each in times if each is not None)]
        if any(v.shape != shape for v in full) or any(c.shape != shape[:1] for c in costs.values()):
            raise FileError(f"{path} is damaged: its values do not have the shape (records, trials) = {shape}.")
        return history

    def _lasts(self) -> dict[str, str]:
        """The mean of each metric at the last record, as text."""
        return {name: f"{value[-1].mean():.3g}" for name, value in self.values.items() if len(value)}

    def __repr__(self) -> str:
        name, network = self.about.get("algorithm", "a run"), self.about.get("network")
        trials = "1 trial" if len(self.trials) == 1 else f"{len(self.trials)} trials"
        parts = [f"{self.steps[-1] if len(self.steps) else 0} steps", f"{len(self.steps)} records", trials]
        parts += ["interrupted"] if self.interrupted else []
        parts += [f"{metric} {value}" for metric, value in self._lasts().items()]
        return f"<History of {name}{f' on {network}' if network else ''}: {', '.join(parts)}>"

    def _repr_html_(self) -> str:
        """The settings, the last values and the curve of the first metric, for notebooks."""
        from perron.plots import html_table, to_svg

        rows = {str(name): str(value) for name, value in self.about.items() if value != {}} | {
            f"{name}, mean at the end": value for name, value in self._lasts().items()
        }
        picture = to_svg(self.plot(next(iter(self.values)))) if self.values and len(self.steps) > 1 else ""
        return f"<p>{escape(repr(self))}</p>{picture}{html_table(('', ''), rows.items())}"


class Recorder:
    """Measures a run at given steps; it can be saved and resumed.

    Args:
        metrics: measured at each of the steps.
        due: the steps.
        final: metrics that are measured at the last step only; nan before.
        until: values of metrics at which the run ends, see `simulate`; these metrics are measured as well.

    Attributes:
        reached: whether the last record has reached them.
    """

    def __init__(
        self,
        metrics: Sequence[str | Metric],
        due: set[int],
        final: Sequence[str | Metric] = (),
        until: Mapping[str, float] | None = None,
    ) -> None:
        last = chosen(final)
        always = chosen(metrics)
        self.until = until or {}
        always |= chosen([name for name in self.until if name not in always])
        self.metrics, self.due, self.end = always | last, due, max(due)
        self._ordered = sorted(due)
        self.final = set(last) - set(always)
        self.watchers: dict[str, Any] = {
            name: metric for name, metric in self.metrics.items() if getattr(metric, "every_step", False)
        }
        self.needs_previous = any(needs_previous(metric) for metric in self.metrics.values())
        self.steps: list[int] = []
        self.rows: dict[str, list[FloatArray]] = {name: [] for name in self.metrics}
        self.costs: dict[str, list[float]] = {name: [] for name in COSTS}
        self.times: dict[str, list[FloatArray]] = {}  # with a clock
        self.reached = False

    def next_due(self, step: int) -> int:
        """Return the first step after ``step`` at which to measure."""
        return self._ordered[bisect_right(self._ordered, step)]

    def observe(self, now: Snapshot) -> dict[str, float] | None:
        """Measure a step if it is due; return the means over trials, or None."""
        for watcher in self.watchers.values():
            watcher.observe(now)
        if now.step not in self.due:
            return None
        for name, metric in self.metrics.items():
            if name not in self.final:
                self.rows[name].append(metric(now).cpu().double().numpy())
        self.reached = self._reached()
        for name in [name for name in self.metrics if name in self.final]:
            due = self.reached or now.step == self.end
            value = self.metrics[name](now).cpu().double().numpy() if due else np.full(now.state.x.shape[0], np.nan)
            self.rows[name].append(value)
        for name, cost in COSTS.items():
            self.costs[name].append(cost(now))
        for name, kept in TIMES.items() if now.times is not None else ():
            self.times.setdefault(kept, []).append(getattr(now, name).numpy())
        self.steps.append(now.step)
        return {name: float(rows[-1].mean()) for name, rows in self.rows.items()}

    def _reached(self) -> bool:
        """Whether the last record has reached the values at which the run ends: all goals, or a limit."""
        means = {name: float(self.rows[name][-1].mean()) for name in self.until if self.rows[name]}
        done = {
            name: mean >= self.until[name] if larger_is_better(name) or is_budget(name) else mean <= self.until[name]
            for name, mean in means.items()
        }
        goals = [reached for name, reached in done.items() if not is_budget(name)]
        return (bool(goals) and all(goals)) or any(done[name] for name in done if is_budget(name))

    def history(self, trials: Sequence[int], about: Mapping[str, Any], *, interrupted: bool) -> History:
        """Return the results so far."""
        many = len(self.steps)
        values = {name: np.array(value[:many]).reshape(many, -1) for name, value in self.rows.items()}
        costs = {name: np.array(spent[:many], dtype=float) for name, spent in self.costs.items()}
        times = {name: np.array(rows[:many]).reshape(many, -1) for name, rows in self.times.items()}
        steps = np.array(self.steps, dtype=np.int64)
        return History(steps, values, np.array(trials), about, interrupted, costs, **times)

    def saved(self) -> dict[str, Tensor]:
        """Return the results so far as tensors."""
        tensors = {f"row.{name}": torch.from_numpy(np.stack(rows)) for name, rows in self.rows.items() if rows}
        for name, watcher in self.watchers.items():
            tensors |= {f"watcher.{name}.{key}": torch.as_tensor(value) for key, value in _numbers(watcher).items()}
        tensors |= {f"cost.{name}": torch.tensor(spent, dtype=torch.float64) for name, spent in self.costs.items()}
        tensors |= {f"time.{name}": torch.from_numpy(np.stack(rows)) for name, rows in self.times.items()}
        return tensors | {"steps": torch.tensor(self.steps)}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Resume from what was saved."""
        self.steps = tensors["steps"].tolist()
        for name in self.rows:
            self.rows[name] = list(tensors[f"row.{name}"].numpy()) if f"row.{name}" in tensors else []
        for name in self.costs:  # which files of earlier versions do not have
            spent = tensors.get(f"cost.{name}", torch.full((len(self.steps),), torch.nan))
            self.costs[name] = spent.tolist()
        self.times = {
            name: list(tensors[f"time.{name}"].numpy()) for name in TIMES.values() if f"time.{name}" in tensors
        }
        self.reached = self._reached()
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


def about_run(simulation: Simulation, steps: int, recorder: Recorder) -> dict[str, Any]:
    """Return the settings of a run."""
    rate = simulation.rate
    return {
        "algorithm": simulation.algorithm.about.title,
        "network": simulation.mixing.name,
        "nodes": simulation.mixing.nodes,
        "lr": rate if isinstance(rate, float | int) else "schedule" if callable(rate) else "per node",
        "seed": simulation.seed,
        "steps": steps,
        "until": dict(recorder.until),
    }

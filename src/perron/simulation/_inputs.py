"""What people pass to a simulation: names, classes, arrays and graphs are converted, or refused with what to pass instead."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from perron._registry import lookup
from perron.algorithms import ALGORITHMS
from perron.algorithms.base import Algorithm
from perron.clock import Clock, Machines
from perron.errors import PerronError, brief
from perron.networks.builder import build_network
from perron.networks.graph import Graph, as_graph
from perron.networks.mixing import Mixing
from perron.problems.base import Problem
from perron.schedules import LearningRate

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}


def check_problem(problem: Any) -> None:
    """Refuse what is no problem."""
    if not isinstance(problem, Problem):
        raise PerronError(
            f"problem is an instance of perron.Problem, as Quadratic.random(8); got {_described(problem)}."
        )


def as_algorithm(algorithm: Any) -> Algorithm:
    """Return an algorithm, also by its name."""
    if isinstance(algorithm, str):
        return lookup(algorithm, ALGORITHMS, "algorithm")
    if not isinstance(algorithm, Algorithm):
        raise PerronError(f"algorithm is an instance, as PushPull(), or a name; got {_described(algorithm)}.")
    return algorithm


def as_mixing(mixing: Any, nodes: int) -> Mixing:
    """Return a mixing; graphs and names of topologies get uniform weights."""
    if isinstance(mixing, Mixing):
        return mixing
    if isinstance(mixing, str | Graph) or callable(getattr(mixing, "is_directed", None)):
        return build_network(as_graph(mixing), nodes)
    raise PerronError(
        "mixing is a Mixing, a Graph or the name of a topology; of a matrix it is not known whether it is A or B: use "
        f"Mixing(pull=A, push=B), or Mixing.from_weights(W). Got {_described(mixing)}."
    )


def check_rate(lr: Any) -> LearningRate | None:
    """Refuse learning rates that are no numbers, not finite or negative."""
    if lr is None or (callable(lr) and not isinstance(lr, Tensor)):
        return lr
    if isinstance(lr, np.ndarray | np.generic):
        lr = torch.as_tensor(lr) if lr.ndim else float(lr)
    number = isinstance(lr, float | int | Tensor) and not isinstance(lr, bool)
    values = torch.as_tensor(lr, dtype=torch.float64) if number else torch.tensor(-1.0)
    if not bool(torch.isfinite(values).all()) or bool((values < 0).any()):
        raise PerronError(f"lr is a number that is not negative, a tensor of them or a schedule; got {lr!r:.80}.")
    return lr


def as_dtype(dtype: Any) -> torch.dtype | None:
    """Return a precision, also by its name."""
    if isinstance(dtype, str):
        return lookup(dtype.removeprefix("torch."), DTYPES, "precision")
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise PerronError(f"dtype is a floating precision, as torch.float32; got {dtype!r:.80}.")
    return dtype


def as_start(start: Any) -> Tensor | None:
    """Return initial models, which are finite."""
    if start is None:
        return None
    try:
        found = torch.as_tensor(start)
    except (TypeError, ValueError, RuntimeError):
        raise PerronError(f"start is an array (nodes, dim); got {brief(start)}.") from None
    if not bool(torch.isfinite(found).all()):
        raise PerronError("start holds numbers that are not finite.")
    return found


def as_count(what: str, value: Any) -> int:
    """Return a whole number; 1e3 is one."""
    whole = isinstance(value, float) and value.is_integer() and abs(value) < 2**53
    if isinstance(value, bool) or not (isinstance(value, int | np.integer) or whole):
        raise PerronError(f"{what} is a whole number; got {value!r:.80}.")
    return int(value)


def as_trials(trials: Any) -> int | Sequence[int]:
    """Return the number of trials, or their indices."""
    if isinstance(trials, Iterable) and not isinstance(trials, str):
        return [as_count("The index of a trial", trial) for trial in trials]
    return as_count("trials", trials)


def as_clock(clock: Any) -> Clock | None:
    """Return a clock, also of machines, a file of links or the name of a preset."""
    if isinstance(clock, str | Path | Machines):
        return Clock(clock)
    if clock is not None and not isinstance(clock, Clock):
        raise PerronError(
            f'clock is a perron.Clock, a file of links or the name of a preset, as "gaia"; got {_described(clock)}.'
        )
    return clock


def as_until(until: Any) -> dict[str, float]:
    """Return the values of metrics at which a run ends."""
    pairs = dict(until or {}) if until is None or isinstance(until, Mapping) else {"": until}
    for name, value in pairs.items():
        number = isinstance(value, int | float | np.number) and not isinstance(value, bool) and np.isfinite(value)
        if not isinstance(name, str) or not name or not number:
            raise PerronError(
                f'until is a table of metrics and values, as {{"grad_norm_sq": 1e-8}}; got {brief(until)}.'
            )
    return {name: float(value) for name, value in pairs.items()}


def check_options(given: Iterable[str], simulation: type) -> None:
    """Refuse options that do not exist."""
    known = {one.name: None for one in fields(simulation)}
    for name in given:
        lookup(name, known, "option of simulate")


def _described(value: Any) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}: make an instance of it"
    return f"{type(value).__name__} {brief(value)}"

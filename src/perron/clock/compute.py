"""How long a gradient takes: a number, one per node, or a distribution from which each node draws in each step."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from math import isfinite, sqrt
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from perron._typing import FloatArray, real_number
from perron.errors import FileError, PerronError, brief
from perron.random import BLOCK, COMPUTE, Keyed

KEPT = 32  # blocks of draws, of up to half a megabyte each

FORMS = (
    "0.1, exponential(MEAN), lognormal(MEAN, SIGMA), stragglers(BASE, CHANCE, MORE), or a .csv file of measured seconds"
)


class _Kind(NamedTuple):
    names: tuple[str, ...]
    transform: Callable[[Tensor, tuple[float, ...]], Tensor]  # of numbers uniform in (0, 1)
    mean: Callable[[tuple[float, ...]], float]


def _lognormal(u: Tensor, given: tuple[float, ...]) -> Tensor:
    mean, sigma = given
    return mean * torch.exp(sigma * torch.special.ndtri(u) - sigma**2 / 2)


KINDS = {
    "exponential": _Kind(("mean",), lambda u, given: -given[0] * torch.log(u), lambda given: given[0]),
    "lognormal": _Kind(("mean", "sigma"), _lognormal, lambda given: given[0]),
    "stragglers": _Kind(
        ("base", "chance", "more"),
        lambda u, given: given[0] + given[2] * (u < given[1]),
        lambda given: given[0] + given[1] * given[2],
    ),
}


class Distribution(NamedTuple):
    """A distribution of seconds.

    Attributes:
        kind: ``"exponential"``, ``"lognormal"``, ``"stragglers"`` (base seconds, and with some chance more of them), or
            ``"measured"`` (drawn with replacement from given seconds).
        values: its parameters in this order, or the measured seconds.
    """

    kind: str
    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """The mean."""
        return float(np.mean(self.values)) if self.kind == "measured" else KINDS[self.kind].mean(self.values)

    def transform(self, uniform: Tensor) -> Tensor:
        """Turn numbers uniform in (0, 1) into seconds."""
        if self.kind != "measured":
            return KINDS[self.kind].transform(uniform, self.values)
        table = torch.tensor(self.values, dtype=torch.float64)
        return table[(uniform * len(table)).long().clamp_(max=len(table) - 1)]

    def __str__(self) -> str:
        if self.kind == "measured":
            return f"{len(self.values)} measured times, mean {self.mean:.4g} s"
        return f"{self.kind}({', '.join(f'{value:g}' for value in self.values)})"


class Compute:
    """The seconds of a gradient on each node: ``0.1``, ``[0.1, 0.5]``, ``"exponential(0.1)"``, a list of these, or a file.

    Draws are keyed by node, step and trial, so that algorithms are compared under the same times.
    """

    def __init__(self, given: Any) -> None:
        self.given = given
        several = isinstance(given, Sequence | np.ndarray | Tensor) and not isinstance(given, str | Distribution)
        several = several and getattr(given, "ndim", 1) > 0
        parts = [_parse(one) for one in given] if several else [_parse(given)]
        if not parts:
            raise PerronError(f"compute is {FORMS}, or a list of them, one per node; got an empty list.")
        self.parts, self.nodes = parts, len(parts) if several else None

    @property
    def random(self) -> bool:
        """Whether times are drawn."""
        return any(isinstance(one, Distribution) for one in self.parts)

    @property
    def averaged(self) -> Compute:
        """Every distribution replaced by its mean; seconds per step are then never more, since they are convex in these times."""
        means = [one.mean if isinstance(one, Distribution) else one for one in self.parts]
        return Compute(means[0] if self.nodes is None else means)

    def means(self, nodes: int) -> FloatArray:
        """The mean seconds of each node, ``(n,)``."""
        means = np.array([one.mean if isinstance(one, Distribution) else one for one in self.parts])
        return np.broadcast_to(means, (nodes,)) if self.nodes is None else means

    def sampler(self, nodes: int, *, seed: int, trials: Sequence[int]) -> Callable[[int], FloatArray]:
        """Return a function of the number of a draw that returns seconds, ``(trials, n)``."""
        which, parts = tuple(trials), tuple(self.parts)
        many = BLOCK // max(1, len(which) * nodes)  # draws at a time
        if many <= 1:
            keyed = Keyed(seed, trials=which, nodes=nodes, stream=COMPUTE)
            return lambda draw: _seconds(parts, keyed.uniform(draw)[..., 0])
        current: tuple[int, FloatArray] = (-1, np.empty(0))

        def drawn(draw: int) -> FloatArray:
            nonlocal current
            if current[0] != draw // many:
                current = (draw // many, _block(parts, nodes, seed, which, draw // many, many))
            return current[1][draw % many]

        return drawn

    def __str__(self) -> str:
        texts = [str(one) if isinstance(one, Distribution) else f"{one:g}" for one in self.parts]
        return texts[0] if self.nodes is None else f"[{', '.join(texts)}]"


def _seconds(parts: tuple[float | Distribution, ...], uniform: Tensor) -> FloatArray:
    """Turn numbers uniform in (0, 1) into seconds, ``(..., n)``."""
    if len(parts) == 1:  # random, and of all nodes
        return parts[0].transform(uniform).numpy()  # type: ignore[union-attr]
    groups: dict[float | Distribution, list[int]] = {}
    for node, part in enumerate(parts):
        groups.setdefault(part, []).append(node)
    seconds = np.empty(uniform.shape)
    for part, which in groups.items():
        seconds[..., which] = part.transform(uniform[..., which]).numpy() if isinstance(part, Distribution) else part
    return seconds


@lru_cache(maxsize=KEPT)
def _block(
    parts: tuple[float | Distribution, ...], nodes: int, seed: int, trials: tuple[int, ...], number: int, many: int
) -> FloatArray:
    """Seconds of consecutive draws, ``(draws, trials, n)``; kept, since all candidates are compared under the same times."""
    uniform = Keyed(seed, trials=trials, nodes=nodes, stream=COMPUTE).uniform(number, many)
    seconds = _seconds(parts, uniform.permute(2, 0, 1))
    seconds.flags.writeable = False
    return seconds


def _parse(given: Any) -> float | Distribution:
    if isinstance(given, Distribution):
        return _checked(given, str(given))
    if isinstance(given, str):
        if found := re.fullmatch(r"\s*([a-z]+)\s*\(([^()]*)\)\s*", given):
            return _distribution(found[1], found[2], given)
        if given.lower().endswith(".csv"):
            return _measured(Path(given))
    try:  # also text, as options of the command line are
        seconds = float(given) if isinstance(given, str) else real_number(given)
    except ValueError:
        seconds = None
    if seconds is None:
        raise PerronError(f"compute is {FORMS}, or a list of them, one per node; got {brief(given)}.")
    if not (seconds >= 0 and isfinite(seconds)):
        raise PerronError(f"compute is a finite number of seconds that is not negative; got {brief(given)}.")
    return seconds


def _distribution(kind: str, inside: str, given: str) -> Distribution:
    if kind not in KINDS:
        raise PerronError(f"compute is {FORMS}; got {brief(given)}.")
    names = KINDS[kind].names
    try:
        values = tuple(float(part) for part in inside.split(","))
    except ValueError:
        values = ()
    if len(values) != len(names):
        raise PerronError(f"{kind} takes {len(names)} numbers, {kind}({', '.join(names)}); got {brief(given)}.")
    return _checked(Distribution(kind, values), given)


def _checked(one: Distribution, given: str) -> Distribution:
    good = all(value >= 0 and isfinite(value) for value in one.values) and bool(one.values)
    if not good or (one.kind == "stragglers" and one.values[1] > 1):
        raise PerronError(f"Times are finite and not negative, and a chance is at most 1; got {brief(given)}.")
    return Distribution(one.kind, tuple(float(value) for value in one.values))  # equal numbers have equal hashes


def _measured(path: Path) -> Distribution:
    """Seconds from a file, one in each line; a first line that is no number is a header."""
    try:
        rows = [row for row in csv.reader(path.read_text().splitlines()) if row and not row[0].startswith("#")]
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"Measured compute times: {path} cannot be read ({error}).") from None
    seconds = []
    for number, row in enumerate(rows):
        try:
            seconds.append(float(row[0]))
        except ValueError:
            if number:
                raise FileError(f"{path}: {row[0]!r} is not a number of seconds.") from None
        if seconds and not (seconds[-1] >= 0 and isfinite(seconds[-1])):
            raise FileError(f"{path}: seconds are finite and not negative; got {row[0]}.")
    if not seconds:
        raise FileError(f"{path} has no measured times: write one number of seconds in each line.")
    return Distribution("measured", tuple(seconds))


def standard_error(values: FloatArray) -> float:
    """The standard error of a mean; nan for one value."""
    return float(values.std(ddof=1) / sqrt(len(values))) if len(values) > 1 else float("nan")

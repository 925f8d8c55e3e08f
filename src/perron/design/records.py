"""Designed weights with their metrics before and after."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from perron._storage.jsonable import to_jsonable
from perron.networks import spectral
from perron.networks.mixing import Mixing

FIELDS = ("rho_2", "s", "kappa")  # of each matrix, in tables
GOALS = {
    "fastest": "the larger rho_2",
    "sum": "the larger s",
    "alignment": "residual E|eps|^2, relative",
    "level": "stationary level",
    "rate": "rate at the best step",
    "balanced": "the larger rho_2",
    "symmetric": "rho_2",
    "leaf": "vectors that the leaf sends",
}


@dataclass(frozen=True)
class Measurement:
    """A network's metrics, and the value of the goal: smaller is better."""

    network: spectral.NetworkMetrics
    value: float

    def cells(self) -> list[str]:
        """Return the value, the metrics of A and B, and c as text."""
        sides = [getattr(getattr(self.network, side), field, None) for field in FIELDS for side in ("pull", "push")]
        return ["-" if number is None else f"{number:.4g}" for number in (self.value, *sides, self.network.c)]


@dataclass(frozen=True)
class Design:
    """Designed weights.

    Attributes:
        goal: the goal.
        mixing: the weights.
        before: metrics of the weights at the start.
        after: metrics of ``mixing``.
        evaluations: the number of evaluations of an objective and its gradient.
        notes: remarks.
        interrupted: why the search ended before its time: "interrupted" or "time is up"; empty if it did not.
    """

    goal: str
    mixing: Mixing
    before: Measurement
    after: Measurement
    evaluations: int
    notes: tuple[str, ...] = ()
    interrupted: str = ""

    def rows(self) -> list[tuple[str, str, str]]:
        """Return ``(label, before, after)``, for tables."""
        sides = [f"{field} of {symbol}" for field in FIELDS for symbol in "AB"]
        return list(zip([GOALS[self.goal], *sides, "c"], self.before.cells(), self.after.cells(), strict=True))

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, for JSON."""
        facts = {"goal": self.goal, "value": GOALS[self.goal], "evaluations": self.evaluations, "notes": self.notes}
        facts |= {"interrupted": bool(self.interrupted)}
        sides = {"before": self.before, "after": self.after}
        return to_jsonable(facts | {k: m.network.to_dict() | {"value": m.value} for k, m in sides.items()})

    def __str__(self) -> str:
        table = [(f"goal: {self.goal}", "before", "after"), *self.rows()]
        width = [max(len(row[k]) for row in table) for k in range(3)]
        lines = [f"{a:<{width[0]}}  {b:>{width[1]}}  {c:>{width[2]}}" for a, b, c in table]
        return "\n".join([*lines, f"{self.evaluations} evaluations", *self.notes])

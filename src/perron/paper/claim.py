"""What a claim of the paper is, and what a check of it brings to light.

A check looks for a counterexample and says what it found. Nothing is proved by it: "holds" means that a search which could have
found a counterexample did not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from perron._storage.jsonable import to_jsonable

Verdict = Literal["holds", "false", "repaired"]
MEANING: dict[Verdict, str] = {
    "holds": "no counterexample found",
    "false": "a counterexample was found",
    "repaired": "a counterexample was found; none to the version with the repair that is named",
}
EFFORT = {"quick": 60, "full": 300}  # candidates in a search
SLACK = 1e-7  # by which a ratio may exceed one before it counts: sums are cut at a relative 1e-9


@dataclass(frozen=True)
class Evidence:
    """What a check found.

    Attributes:
        verdict: one of `MEANING`.
        text: the same in one line, with the numbers that matter.
        figures: numbers by name.
        counterexample: what refutes the claim, as plain data, if anything does.
    """

    verdict: Verdict
    text: str
    figures: Mapping[str, float] = field(default_factory=dict)
    counterexample: Mapping[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "verdict": self.verdict,
            "evidence": self.text,
            "figures": dict(self.figures),
            "counterexample": to_jsonable(self.counterexample, digits=6),
        }


Check = Callable[[np.random.Generator, int], Evidence]


@dataclass(frozen=True)
class Claim:
    """A statement of the paper and how it is checked.

    Attributes:
        key: its number in the list, as "7h".
        statement: what the paper says, in a line or two of plain text.
        where: the place in the paper.
        expected: the verdict that is known; the command fails where a check finds another.
        check: ``(rng, effort) -> Evidence``, effort being the number of candidates in a search.
        repair: what the repaired version says instead, if there is one.
    """

    key: str
    statement: str
    where: str
    expected: Verdict
    check: Check
    repair: str = ""


def judged(printed: bool, repaired: bool | None = None) -> Verdict:
    """The verdict, from whether the printed version survived its check, and whether the repaired one did, if there is one."""
    if printed:
        return "holds"
    return "repaired" if repaired else "false"


def within(ratio: float) -> bool:
    """Whether left over right side of an inequality is at most one, up to rounding. NaN is not."""
    return bool(ratio <= 1 + SLACK)

"""Claims of the paper, and the evidence of their checks.

A check searches for a counterexample and reports its result. It proves nothing: "holds" means that a search which could have
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
    """The result of a check.

    Attributes:
        verdict: one of `MEANING`.
        text: a summary in one line, with the main numbers.
        figures: numbers by name.
        counterexample: as plain data, if one was found.
    """

    verdict: Verdict
    text: str
    figures: Mapping[str, float] = field(default_factory=dict)
    counterexample: Mapping[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, for JSON."""
        facts = {"verdict": self.verdict, "evidence": self.text, "figures": self.figures}
        return to_jsonable(facts | {"counterexample": self.counterexample}, digits=6)


Check = Callable[[np.random.Generator, int], Evidence]


@dataclass(frozen=True)
class Claim:
    """A statement of the paper with its check.

    Attributes:
        key: its number in the list, as "7h".
        statement: the statement of the paper, in a line or two of plain text.
        where: the place in the paper.
        expected: the known verdict; the command fails where a check returns another.
        check: ``(rng, effort) -> Evidence``, effort being the number of candidates in a search.
        repair: the statement of the repaired version, if there is one.
    """

    key: str
    statement: str
    where: str
    expected: Verdict
    check: Check
    repair: str = ""


def conclude(
    text: str,
    figures: Mapping[str, float],
    counterexample: Mapping[str, Any] | None,
    *,
    printed: bool,
    repaired: bool | None = None,
) -> Evidence:
    """Return the evidence, from whether the printed version passed its check, and the repaired one, if there is one.

    The counterexample is dropped if the printed version passed.
    """
    if printed:
        return Evidence("holds", text, figures)
    return Evidence("repaired" if repaired else "false", text, figures, counterexample)


def within(ratio: float) -> bool:
    """Whether left over right side of an inequality is at most one, up to rounding. NaN is not."""
    return bool(ratio <= 1 + SLACK)

"""The paper's claims, each with a check that could refute it: ``perron paper check``.

A check is seeded by the given seed and the claim's own place in the list, so that it finds the same alone and among others.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from perron._registry import unknown
from perron._storage.jsonable import to_jsonable
from perron.errors import PerronError
from perron.paper import bounds, experiments, identities, noise, spectra
from perron.paper.claim import EFFORT, MEANING, Check, Claim, Evidence, Verdict

__all__ = ["CLAIMS", "EFFORT", "MEANING", "Check", "Claim", "Evidence", "Result", "Verdict", "checked", "chosen"]


def _order(claim: Claim) -> tuple[int, str]:
    number = re.match(r"\d+", claim.key)
    return (int(number.group()) if number else 0, claim.key)


CLAIMS: dict[str, Claim] = {
    claim.key: claim
    for claim in sorted(
        (one for module in (bounds, experiments, identities, noise, spectra) for one in module.CLAIMS), key=_order
    )
}


@dataclass(frozen=True)
class Result:
    """A claim and what its check found."""

    claim: Claim
    evidence: Evidence
    seconds: float

    @property
    def agrees(self) -> bool:
        """Whether the verdict is the expected one."""
        return self.evidence.verdict == self.claim.expected

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        claim = self.claim
        told = {"key": claim.key, "statement": claim.statement, "where": claim.where, "repair": claim.repair}
        return (
            told | {"expected": claim.expected, "agrees": self.agrees} | to_jsonable(self.evidence.to_dict(), digits=6)
        )


def chosen(keys: Sequence[str] = ()) -> list[Claim]:
    """The claims with these keys, all if there are none; "7" stands for 7a to 7l."""
    if not keys:
        return list(CLAIMS.values())
    found: dict[str, Claim] = {}
    for key in keys:
        matching = {
            name: claim
            for name, claim in CLAIMS.items()
            if name == key or re.fullmatch(rf"{re.escape(key)}[a-z]", name)
        }
        if not matching:
            raise unknown(key, CLAIMS, "claim")
        found |= matching
    return [claim for name, claim in CLAIMS.items() if name in found]


def checked(claim: Claim, *, seed: int = 0, effort: int = EFFORT["quick"]) -> Result:
    """Run the check of a claim; ``effort`` is the number of candidates in a search."""
    if seed < 0 or effort < 1:
        raise PerronError(f"A check needs a seed >= 0 and an effort >= 1; got seed={seed}, effort={effort}.")
    began = time.perf_counter()
    evidence = claim.check(np.random.default_rng([seed, list(CLAIMS).index(claim.key)]), effort)
    return Result(claim, evidence, time.perf_counter() - began)

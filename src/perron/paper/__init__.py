"""The paper's claims, each with a check that could refute it: ``perron paper check``.

A check is seeded by the given seed and the claim's place in the list, so that it gives the same result alone and among others.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from perron._registry import unknown
from perron.errors import PerronError
from perron.paper import appendix, bounds, constants, experiments, identities, noise, proof, spectra
from perron.paper.claim import EFFORT, MEANING, Check, Claim, Evidence, Verdict

__all__ = [
    "CLAIMS", "EFFORT", "MEANING", "Check", "CheckResult", "Claim", "Evidence", "Verdict", "check_claim", "select_claims",
]  # fmt: skip


def _order(claim: Claim) -> tuple[int, str]:
    number = re.match(r"\d+", claim.key)
    return (int(number.group()) if number else 0, claim.key)


_MODULES = (bounds, experiments, identities, noise, spectra, appendix, constants, proof)
CLAIMS: dict[str, Claim] = {
    claim.key: claim for claim in sorted((claim for module in _MODULES for claim in module.CLAIMS), key=_order)
}


@dataclass(frozen=True)
class CheckResult:
    """A claim with the evidence of its check."""

    claim: Claim
    evidence: Evidence
    seconds: float

    @property
    def agrees(self) -> bool:
        """Whether the verdict is the expected one."""
        return self.evidence.verdict == self.claim.expected

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, for JSON."""
        facts = {name: getattr(self.claim, name) for name in ("key", "statement", "where", "repair", "expected")}
        return facts | {"agrees": self.agrees} | self.evidence.to_dict()


def select_claims(keys: Sequence[str] = ()) -> list[Claim]:
    """Return the claims with these keys, or all if none are given; "7" stands for 7a to 7l."""
    selected: set[str] = set()
    for key in keys:
        matching = {name for name in CLAIMS if name == key or re.fullmatch(rf"{re.escape(key)}[a-z]", name)}
        if not matching:
            raise unknown(key, CLAIMS, "claim")
        selected |= matching
    return [claim for name, claim in CLAIMS.items() if name in selected or not keys]


def check_claim(claim: Claim, *, seed: int = 0, effort: int = EFFORT["quick"]) -> CheckResult:
    """Run the check of a claim; ``effort`` is the number of candidates in a search."""
    if seed < 0 or effort < 1:
        raise PerronError(f"A check needs a seed >= 0 and an effort >= 1; got seed={seed}, effort={effort}.")
    began = time.perf_counter()
    evidence = claim.check(np.random.default_rng([seed, list(CLAIMS).index(claim.key)]), effort)
    return CheckResult(claim, evidence, time.perf_counter() - began)

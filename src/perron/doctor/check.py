"""The record of one check."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Verdict(StrEnum):
    """What was found: all well, something optional is missing, or something necessary does not work."""

    OK = "ok"
    MISSING = "missing"
    PROBLEM = "problem"


class Check(NamedTuple):
    """A row of `perron doctor`: what was looked at, what was found, the verdict, and what to do if it is not ok."""

    name: str
    found: str
    verdict: Verdict = Verdict.OK
    remedy: str = ""

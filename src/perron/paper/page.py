"""The page "What holds in the paper", from the results of all checks; page.md is its template."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from perron.paper import MEANING, CheckResult
from perron.paper.practicality import HEADINGS, Practicality

TEMPLATE = Path(__file__).with_suffix(".md")


def page(
    results: Sequence[CheckResult], rows: Sequence[Practicality], *, seed: int, effort: str, weightings: int
) -> str:
    """Return the page as Markdown."""
    agree = sum(result.agrees for result in results)
    return TEMPLATE.read_text(encoding="utf-8").format(
        **MEANING,
        claims=_table(("", "the paper says", "where", "verdict", "evidence"), [_cells(result) for result in results]),
        agreement=f"{agree} of {len(results)} verdicts are the expected ones (seed {seed}, effort {effort}).",
        weightings=weightings,
        practice=_table(HEADINGS, [row.cells() for row in rows]),
    )


def _cells(result: CheckResult) -> list[str]:
    claim, evidence = result.claim, result.evidence
    verdict = f"**{evidence.verdict}**" + (f": {claim.repair}" if evidence.verdict == "repaired" else "")
    if not result.agrees:
        verdict += f" (expected: {claim.expected})"
    return [claim.key, claim.statement, claim.where, verdict, evidence.text]


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def line(cells: Sequence[str]) -> str:
        escaped = (cell.replace("|", r"\|") for cell in cells)  # bars are norms here, not ends of cells
        return f"| {' | '.join(escaped)} |"

    return "\n".join([line(headings), line(["---"] * len(headings)), *map(line, rows)])

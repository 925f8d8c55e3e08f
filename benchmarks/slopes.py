"""How often is a slope called linear speedup? Writes docs/theory/slopes.md, in less than a minute.

    .venv/bin/python benchmarks/slopes.py

Levels of known slope, with the noise of as many trials, go through `power_law` and `slope_verdict` as those of a study do.
"""

from pathlib import Path

import numpy as np

from perron.studies.statistics import BAND, COARSE, Fit, power_law, slope_verdict

PAGE = Path(__file__).parent.parent / "docs" / "theory" / "slopes.md"
NODES, TRIALS, REPEATS = (4, 8, 12, 16), 20, 1000
SLOPES = (-1.2, -1.1, -1.05, -1.0, -0.95, -0.9, -0.8, -0.5)
ERRORS = (0.01, 0.02, 0.03, 0.05, 0.1)  # relative standard errors of the levels


def drawn(slope: float, error: float, random: np.random.Generator, *, scatter: float = 0.0) -> Fit:
    """Return the fit of a study: levels n^slope, their trials gamma-distributed; ``scatter`` is between networks of its sizes."""
    n = np.array(NODES, float)
    means = n**slope * np.exp(scatter * random.standard_normal(len(n)))
    spread = error * TRIALS**0.5
    each = means * random.gamma(spread**-2, spread**2, (TRIALS, len(n)))
    return power_law(n, each.mean(axis=0), each.std(axis=0, ddof=1) / TRIALS**0.5, trials=TRIALS)


def before(fit: Fit) -> bool:
    """The rule of earlier versions: the estimate within 0.1, the interval no wider than 0.2 on either side."""
    return abs(fit.slope + 1) <= 0.1 and fit.high - fit.slope <= 0.2


def shares(slope: float, error: float, seed: int = 0, **options: float) -> dict[str, float]:
    """Return how often each verdict is given, and how often the rule of earlier versions claimed linear speedup."""
    random = np.random.default_rng([seed, round(1000 * -slope), round(1000 * error)])
    fits = [drawn(slope, error, random, **options) for _ in range(REPEATS)]
    verdicts = [slope_verdict(fit) for fit in fits]
    names = {"linear": "linear speedup", "coarse": COARSE, "not": "no linear speedup"}
    found = {name: verdicts.count(verdict) / REPEATS for name, verdict in names.items()}
    return found | {"before": sum(map(before, fits)) / REPEATS}


def table() -> str:
    head = ["true slope", *(f"error {error:.0%}" for error in ERRORS)]
    lines = [head, ["---"] * len(head)]
    for slope in SLOPES:
        cells = [shares(slope, error) for error in ERRORS]
        told = [f"{one['linear']:.1%} / {one['coarse']:.1%} / {one['not']:.1%} ({one['before']:.0%})" for one in cells]
        lines.append([f"{slope:g}", *told])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    text = f"""# How often is a slope called linear?

The [speedup test](../studies.md#the-speedup-test) claims linear speedup if the whole 95 % interval of the slope of log(level/c)
against log(n) lies within {BAND:g} of -1, an equivalence test. This page is written by `benchmarks/slopes.py`: {REPEATS:,}
made-up studies for each entry, with n = {", ".join(map(str, NODES))}, {TRIALS} trials and levels of a known slope, whose standard
errors are the given share of the level. An entry says how often linear speedup is **claimed / left open / denied**; in brackets,
how often earlier versions claimed it: where the estimate was within 0.1 of -1, and its interval at most 0.2 to either side.

{table()}

*Power* is in the row of slope -1: levels have to be known to about 2 % for a claim. *False positives* are in the rows of -1.1,
-0.9 and beyond: at the edges of the band a claim is made at most about once in forty times, where it was every other time.
"""
    PAGE.write_text(text)
    print(table())


if __name__ == "__main__":
    main()

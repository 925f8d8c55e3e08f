"""The residual that does not vanish, and its blocks, which do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from perron.algorithms import ALGORITHMS
from perron.plots import Chart, Line, Panel
from perron.simulation.metrics import BLOCKS
from perron.studies.conclusions import text
from perron.studies.conclusions.base import Conclusion, Row, Table, standard_error, variants
from perron.studies.statistics import Fit, Level, level, power_law, series

if TYPE_CHECKING:
    from perron.studies.results import Outcome
    from perron.studies.spec import Study

VANISHED = 1e-6  # of Push-Pull's residual: a residual below this share has died out
NORM = r"$\|\epsilon\|$"


def blocks(study: Study) -> str | None:
    """Require Push-Pull and residuals over blocks of several lengths."""
    if not any(choice.label == "push_pull" for choice in study.algorithms):
        return "push_pull among the algorithms"
    lengths = [int(name.removeprefix(BLOCKS)) for name in study.metrics if name.startswith(BLOCKS)]
    if len(lengths) < 2:
        return f"two or more metrics {BLOCKS}M, for blocks of M steps"
    if 2 * max(lengths) > study.steps:
        return f"blocks of at most half the run; got {max(lengths)} of {study.steps} steps"
    return None


def residual(outcome: Outcome) -> Conclusion:
    """|eps| over time, and |sum of eps over m steps|^2 / m against m: the paper's insight."""
    rows, others = [], []
    over_time: dict[str, list[Line]] = {}
    families: dict[str, list[Line]] = {}
    by_length: dict[str, list[Line]] = {}
    for variant, part in variants(outcome.table, but=("algorithm",)):
        for topology, same in part[part.nodes > 1].groupby("topology", sort=False):  # one node has no residual
            title, most = text.panel_title(variant, text.readable(topology)), same.nodes.max()
            for (algorithm, n), run in same.groupby(["algorithm", "nodes"], sort=False):
                steps, values = series(run, "residual_sq")
                x, y = steps[1:].astype(float), np.sqrt(values.mean(axis=1))[1:]
                if n == most:
                    line = Line(text.algorithm_title(algorithm), x, np.maximum(y, 1e-18))
                    families.setdefault(text.panel_title(variant, text.readable(topology), f"n = {n}"), []).append(line)
                if algorithm != "push_pull":
                    others.append((algorithm, float(values[-1].mean())))
                    continue
                over_time.setdefault(title, []).append(Line(f"n = {n}", x, y))
                row, line = _blocks(topology, int(n), run, level(steps, values))
                rows.append({"variant": text.describe(variant)} | row)
                by_length.setdefault(title, []).append(line)
    for lines in by_length.values():
        m = lines[0].x
        lines.append(Line("1 / m", m, m[0] / m, guide=True))
    return Conclusion(
        tables={"Push-Pull's residual": text.table([_cells(row) for row in rows])},
        sentences=_sentences(rows, others),
        figures={
            "residual": Chart(panels=_panels(over_time), x="step", y=NORM, legend="Push-Pull"),
            "families": Chart(panels=_panels(families), x="step", y=NORM),
            "blocks": Chart(
                panels=_panels(by_length),
                title="Push-Pull's residuals cancel: their sum over m steps, squared and divided by m",
                about="Relative to the shortest blocks. Independent residuals would stay at 1; dashed: falling as 1/m. Bars: two "
                "standard errors.",
                x="steps in a block, m", y="relative |sum of residuals|² / m", log_x=True, marks="points",
            ),
        },
        summary={"residuals": rows},
    )  # fmt: skip


def _panels(lines: dict[str, list[Line]]) -> list[Panel]:
    return [Panel(title, own) for title, own in lines.items()]


def _blocks(topology: str, n: int, run: Table, single: Level) -> tuple[Row, Line]:
    """Return the mean over blocks of each length, as a row and, relative to the shortest, as a line."""
    lengths = sorted(int(name.removeprefix(BLOCKS)) for name in run.columns if name.startswith(BLOCKS))
    means, errors = np.empty(len(lengths)), np.empty(len(lengths))
    for place, m in enumerate(lengths):
        steps, values = series(run, f"{BLOCKS}{m}")
        each = values[steps >= max(single.since, m)].mean(axis=0)
        means[place], errors[place] = each.mean(), standard_error(each)
    known = np.isfinite(means).all() and np.isfinite(errors).all()
    trials = int(run.trials.iloc[0])
    fit = power_law(lengths[-2:], means[-2:], errors[-2:], trials=trials) if known else Fit(np.nan, np.nan, np.nan)
    row = {
        "topology": topology, "nodes": n, "residual_sq": single.mean, "error": single.error, "stationary": single.stationary,
        "why": single.why, "blocks": dict(zip(map(str, lengths), means.tolist(), strict=True)),
        "slope": fit.slope, "low": fit.low, "high": fit.high,
    }  # fmt: skip
    y, spread = means / means[0], 2 * np.nan_to_num(errors / means[0])
    return row, Line(f"n = {n}", np.array(lengths, float), y, y - spread, y + spread)


def _cells(row: Row) -> dict[str, str]:
    shortest = next(iter(row["blocks"].values()))
    return (
        text.identity(row)
        | {"|eps|^2": text.with_error(row["residual_sq"], row["error"], ".2e")}
        | {"stationary": "yes" if row["stationary"] else f"no: {row['why']}"}
        | {f"m={m}": f"{value / shortest:.3g}" for m, value in row["blocks"].items()}
        | {"slope at the end": text.with_error(row["slope"], row["high"] - row["slope"], ".2f")}
    )


def _sentences(rows: list[Row], others: list[tuple[str, float]]) -> list[str]:
    steady = [row for row in rows if row["stationary"]]
    if not steady:
        return ["In no case is |eps|^2 stationary at the end of the run, so no conclusion is drawn about it."]
    sentences = [
        f"Push-Pull's residual does not vanish: in {len(steady)} of {len(rows)} cases |eps|^2 stays at a constant level to "
        "the end."
    ]
    least = min(row["residual_sq"] for row in steady)
    for family in ("push-only", "pull-only"):
        named = [(ALGORITHMS.get(algorithm.partition("(")[0]), value) for algorithm, value in others]
        last = [value for algorithm, value in named if algorithm and algorithm.about.family == family]
        if last and max(last) < VANISHED * least:
            sentences.append(f"That of the {family} methods has vanished by then.")
    known = [row for row in steady if np.isfinite(row["slope"])]
    if known and max(row["slope"] for row in known) < -0.5:
        lengths = list(known[0]["blocks"])
        left = [row["blocks"][lengths[-1]] / row["blocks"][lengths[0]] for row in known]
        slopes = [row["slope"] for row in known]
        sentences.append(
            f"But residuals cancel: from blocks of {lengths[0]} to blocks of {lengths[-1]} steps, |sum of eps|^2 / m falls to "
            f"{min(left):.2g} .. {max(left):.2g}, at the end as m^{min(slopes):.2f} .. m^{max(slopes):.2f}; independent "
            "residuals would not fall at all. That is how Push-Pull can have linear speedup although no single step looks like "
            "centralized SGD."
        )
    return sentences

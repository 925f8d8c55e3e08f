"""The residual that does not vanish, and its blocks, which do."""

from __future__ import annotations

from typing import Any

import numpy as np

from perron import plots
from perron.algorithms import ALGORITHMS
from perron.plots import Line
from perron.simulation.metrics import BLOCKS
from perron.studies.conclusions.base import (
    Conclusion,
    Table,
    file_name,
    spoken,
    strings,
    titled,
    told,
    variants,
    with_error,
)  # fmt: skip
from perron.studies.runner import Outcome
from perron.studies.statistics import Level, level, power_law, series

GONE = 1e-6  # of Push-Pull's residual: what is below has died out


def residual(outcome: Outcome) -> Conclusion:
    """|eps| over time, and |sum of eps over m steps|^2 / m against m: the paper's insight."""
    found, rows, others = Conclusion(), [], []
    for variant, part in variants(outcome.table, but=("algorithm",)):
        over_time: dict[str, list[Line]] = {}
        families: dict[str, list[Line]] = {}
        blocks: dict[str, list[Line]] = {}
        for topology, same in part[part.nodes > 1].groupby("topology", sort=False):  # one node has no residual
            for (algorithm, n), run in same.groupby(["algorithm", "nodes"], sort=False):
                steps, values = series(run, "residual_sq")
                line = Line(f"n = {n}", steps[1:].astype(float), np.sqrt(values.mean(axis=1))[1:])
                if n == same.nodes.max():
                    shown = Line(titled(algorithm), line.x, np.maximum(line.y, 1e-18))
                    families.setdefault(f"{spoken(topology)}, n = {n}", []).append(shown)
                if algorithm == "push_pull":
                    over_time.setdefault(spoken(topology), []).append(line)
                    row, dots = _blocks(topology, int(n), run, level(steps, values))
                    rows.append({"variant": told(variant)} | row)
                    blocks.setdefault(spoken(topology), []).append(dots)
                else:
                    others.append((algorithm, float(values[-1].mean())))
        for lines in blocks.values():
            m = lines[0].x
            lines.append(Line("1 / m", m, m[0] / m, guide=True))
        norm = r"$\|\epsilon\|$"
        found.figures[file_name("residual", variant)] = plots.panels(over_time, x="step", y=norm, legend="Push-Pull")
        found.figures[file_name("families", variant)] = plots.panels(families, x="step", y=norm)
        found.figures[file_name("blocks", variant)] = plots.panels(
            blocks, x="steps in a block, m", y=r"$\frac{1}{m}\|\sum\epsilon\|^2$, relative", log_x=True, points=True
        )
    found.tables["Push-Pull's residual"] = strings([_cells(row) for row in rows])
    found.summary["residuals"] = rows
    found.sentences = _sentences(rows, others)
    return found


def _blocks(topology: str, n: int, run: Table, single: Level) -> tuple[dict[str, Any], Line]:
    lengths = sorted(int(name.removeprefix(BLOCKS)) for name in run.columns if name.startswith(BLOCKS))
    means, errors = [], []
    for m in lengths:
        steps, values = series(run, f"{BLOCKS}{m}")
        each = values[steps >= max(single.since, m)].mean(axis=0)
        means.append(float(each.mean()))
        errors.append(float(each.std(ddof=1)) / np.sqrt(len(each)) if len(each) > 1 else np.nan)
    ratio, error = np.array(means) / means[0], np.array(errors) / means[0]
    known = bool(np.isfinite([*means, *errors]).all())
    slope = power_law(lengths[-2:], means[-2:], errors[-2:], trials=int(run.trials.iloc[0])) if known else None
    row = {
        "topology": topology, "nodes": n, "residual_sq": single.mean, "error": single.error, "stationary": single.stationary,
        "why": single.why, "blocks": dict(zip(map(str, lengths), means, strict=True)),
        "slope": slope.slope if slope else np.nan, "low": slope.low if slope else np.nan, "high": slope.high if slope else np.nan,
    }  # fmt: skip
    return row, Line(f"n = {n}", np.array(lengths, float), ratio, np.nan_to_num(error))


def _cells(row: dict[str, Any]) -> dict[str, str]:
    values = list(row["blocks"].values())
    return (
        ({"variant": row["variant"]} if row["variant"] else {})
        | {"topology": spoken(row["topology"]), "nodes": str(row["nodes"])}
        | {"|eps|^2": with_error(row["residual_sq"], row["error"], ".2e")}
        | {"stationary": "yes" if row["stationary"] else f"no: {row['why']}"}
        | {f"m={m}": f"{value / values[0]:.3g}" for m, value in row["blocks"].items()}
        | {"slope at the end": with_error(row["slope"], row["high"] - row["slope"], ".2f")}
    )


def _sentences(rows: list[dict[str, Any]], others: list[tuple[str, float]]) -> list[str]:
    said = []
    steady = [row for row in rows if row["stationary"]]
    if steady:
        said.append(
            f"Push-Pull's residual does not vanish: in {len(steady)} of {len(rows)} cases |eps|^2 stays at a constant level to "
            "the end."
        )
        least = min(row["residual_sq"] for row in steady)
        for family in ("push-only", "pull-only"):
            last = [
                value for algorithm, value in others if ALGORITHMS[algorithm.partition("(")[0]].about.family == family
            ]
            if last and max(last) < GONE * least:
                said.append(f"That of the {family} methods is gone by then.")
    else:
        said.append("In no case is |eps|^2 stationary at the end of the run, so nothing is said about it.")
    known = [row for row in steady if np.isfinite(row["slope"])]
    if known and max(row["slope"] for row in known) < -0.5:
        lengths = list(known[0]["blocks"])
        left = [row["blocks"][lengths[-1]] / row["blocks"][lengths[0]] for row in known]
        slopes = [row["slope"] for row in known]
        said.append(
            f"But residuals cancel: from blocks of {lengths[0]} to blocks of {lengths[-1]} steps, |sum of eps|^2 / m falls to "
            f"{min(left):.2g} .. {max(left):.2g}, at the end as m^{min(slopes):.2f} .. m^{max(slopes):.2f}; independent "
            "residuals would not fall at all. That is how Push-Pull can have linear speedup although no single step looks like "
            "centralized SGD."
        )
    return said

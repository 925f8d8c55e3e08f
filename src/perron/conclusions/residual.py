"""The residual that does not vanish, and its blocks, which do."""

from __future__ import annotations

from typing import Any

import numpy as np

from perron import plots
from perron.conclusions.conclusion import (
    Conclusion,
    Table,
    spoken,
    strings,
    titled,
)
from perron.experiment import Outcome
from perron.metrics import BLOCKS
from perron.plots import Line
from perron.speedup import Level, level, power_law, series


def residual(outcome: Outcome) -> Conclusion:
    """|eps| over time, and |sum of eps over m steps|^2 / m against m: the paper's insight."""
    found, rows = Conclusion(), []
    over_time: dict[str, list[Line]] = {}
    blocks: dict[str, list[Line]] = {}
    most = {topology: part.nodes.max() for topology, part in outcome.table.groupby("topology")}
    families: dict[str, list[Line]] = {}
    for (topology, algorithm, n), run in outcome.table.groupby(["topology", "algorithm", "nodes"], sort=False):
        steps, values = series(run, "residual_sq")
        curve = Line(f"n = {n}", steps[1:].astype(float), np.sqrt(values.mean(axis=1))[1:])
        if n == most[topology]:
            shown = Line(titled(algorithm), curve.x, np.maximum(curve.y, 1e-18))
            families.setdefault(f"{spoken(topology)}, n = {n}", []).append(shown)
        if algorithm != "push_pull":
            continue
        over_time.setdefault(spoken(topology), []).append(curve)
        row, line = _blocks(topology, int(n), run, level(steps, values))
        rows.append(row)
        blocks.setdefault(spoken(topology), []).append(line)
    for lines in blocks.values():
        m = lines[0].x
        lines.append(Line("1 / m", m, 1 / m, guide=True))
    norm = r"$\|\epsilon\|$"
    found.figures["residual"] = plots.panels(over_time, x="step", y=norm, legend="Push-Pull")
    found.figures["families"] = plots.panels(families, x="step", y=norm)
    found.figures["blocks"] = plots.panels(
        blocks, x="steps in a block, m", y=r"$\frac{1}{m}\|\sum\epsilon\|^2$ / value at m = 1", log_x=True, points=True
    )
    found.tables["Push-Pull's residual"] = strings([_residual_cells(row) for row in rows])
    found.summary["residuals"] = rows
    found.sentences = _residual_sentences(rows)
    return found


def _blocks(topology: str, n: int, run: Table, single: Level) -> tuple[dict[str, Any], Line]:
    lengths = sorted(int(name.removeprefix(BLOCKS)) for name in run.columns if name.startswith(BLOCKS))
    means, errors = [], []
    for m in lengths:
        steps, values = series(run, f"{BLOCKS}{m}")
        each = np.nanmean(values[steps >= max(single.since, m)], axis=0)
        means.append(float(each.mean()))
        errors.append(float(each.std(ddof=1)) / np.sqrt(len(each)))
    ratio, error = np.array(means) / means[0], np.array(errors) / means[0]
    tail = power_law(lengths[-2:], means[-2:], errors[-2:])
    row = {
        "topology": topology, "nodes": n, "residual_sq": single.mean, "error": single.error, "stationary": single.stationary,
        "blocks": dict(zip(map(str, lengths), means, strict=True)), "slope": tail.slope, "low": tail.low, "high": tail.high,
    }  # fmt: skip
    return row, Line(f"n = {n}", np.array(lengths, float), ratio, error)


def _residual_cells(row: dict[str, Any]) -> dict[str, str]:
    values = list(row["blocks"].values())
    return (
        {
            "topology": spoken(row["topology"]),
            "nodes": str(row["nodes"]),
            "|eps|^2": f"{row['residual_sq']:.2e} ± {row['error']:.0e}",
        }
        | {"stationary": "yes" if row["stationary"] else "no"}
        | {f"m={m}": f"{value / values[0]:.3g}" for m, value in row["blocks"].items()}
        | {"slope at the end": f"{row['slope']:.2f} [{row['low']:.2f}, {row['high']:.2f}]"}
    )


def _residual_sentences(rows: list[dict[str, Any]]) -> list[str]:
    lengths = list(rows[0]["blocks"])
    left = [row["blocks"][lengths[-1]] / row["blocks"][lengths[0]] for row in rows]
    slopes = [row["slope"] for row in rows]
    steady = sum(row["stationary"] for row in rows)
    return [
        f"Push-Pull's residual does not vanish: in {steady} of {len(rows)} cases |eps|^2 stays at a constant level to the end, "
        "while push-only methods have none and that of pull-only methods dies out.",
        f"But residuals cancel: summed over blocks of {lengths[-1]} steps, {min(left):.2g} to {max(left):.2g} of what "
        f"independent ones would leave remains, falling with the block's length as m^{min(slopes):.2f} to m^{max(slopes):.2f}. "
        "That is why Push-Pull has linear speedup although no single step looks like centralized SGD.",
    ]

"""Algorithms side by side."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from perron.plots import Chart, Line, Panel, Picture
from perron.studies.conclusions import text
from perron.studies.conclusions.base import (
    METRIC,
    SQUARED_NORM,
    Conclusion,
    Row,
    Table,
    by_algorithm,
    curve,
    standard_error,
    variants,
)
from perron.studies.statistics import Level, level, series

if TYPE_CHECKING:
    from perron.studies.results import Outcome

FAR = 10.0  # times the level of centralized SGD: a run that settles there has not converged


def comparison(outcome: Outcome) -> Conclusion:
    """Algorithms on the same panels, and their levels beside those of centralized SGD."""
    rows, panels = [], []
    for variant, part in variants(outcome.table, but=("algorithm", "weights")):
        for (topology, n), same in part.groupby(["topology", "nodes"], sort=False):
            lines, baseline = [], _baseline(same)
            for label, algorithm, run in by_algorithm(same):
                floor = float(run.predicted.iloc[0]) if algorithm == "centralized" else None
                lines.append(replace(curve(run, label, floor=floor), low=None, high=None))
                rows.append(
                    {"variant": text.describe(variant), "topology": topology, "nodes": int(n), "algorithm": label}
                    | _measured(run, baseline)
                    | {"baseline": algorithm == "centralized"}
                )
            panels.append(Panel(text.panel_title(variant, text.readable(topology), f"n = {n}"), lines))
    legend = "dashed: predicted floor of centralized SGD"
    figures: dict[str, Picture] = {
        "families": Chart(panels=panels, x="step", y=SQUARED_NORM, nested=True, legend=legend)
    }
    if (levels := _levels_chart(rows)).panels:
        figures["levels"] = levels
    equal = " at equal effective step" if outcome.study.equal_effective_step else ""
    return Conclusion(
        tables={f"Levels{equal}": text.table([_cells(row) for row in rows])},
        sentences=_sentences(rows, equal),
        figures=figures,
        summary={"levels": rows},
    )


def _baseline(table: Table) -> Level | None:
    """Return the level of centralized SGD, which does not depend on weights."""
    runs = table[table.algorithm == "centralized"]
    if runs.empty:
        return None
    found = level(*series(runs[runs.run == runs.run.iloc[0]], METRIC))
    return found if np.isfinite(found.mean) and found.mean > 0 else None


def _measured(run: Table, baseline: Level | None) -> Row:
    own, predicted = level(*series(run, METRIC)), float(run.predicted.iloc[0])
    ratio = own.mean / baseline.mean if baseline else np.nan
    error = np.nan
    if baseline and len(own.each) == len(baseline.each) > 2:
        # All algorithms see the same minibatches, so that their levels go up and down together.
        error = ratio * standard_error(own.each / own.mean - baseline.each / baseline.mean)
    return {
        "lr": float(run.lr.iloc[0]), "level": own.mean, "error": own.error, "stationary": own.stationary, "why": own.why,
        "predicted": predicted, "of_predicted": own.mean / predicted if predicted else np.nan, "ratio": ratio,
        "ratio_error": error,
    }  # fmt: skip


def _levels_chart(rows: list[Row]) -> Chart:
    """Return the levels relative to the predicted ones; the caption names those that are too far off to be drawn."""
    topologies = list(dict.fromkeys(row["topology"] for row in rows))
    algorithms = list(dict.fromkeys(row["algorithm"] for row in rows))
    known = [row for row in rows if row["predicted"] > 0]  # without noise there is no floor to compare with
    near = [row for row in known if 0 < row["of_predicted"] < FAR]
    panels = []
    for n, variant in dict.fromkeys((row["nodes"], row["variant"]) for row in near):
        lines = []
        for place, algorithm in enumerate(algorithms):
            key = (n, variant, algorithm)
            own = [row for row in near if (row["nodes"], row["variant"], row["algorithm"]) == key]
            beside = 0.5 * (place / max(len(algorithms) - 1, 1) - 0.5)  # so that equal levels stand side by side
            x = np.array([topologies.index(row["topology"]) + beside for row in own])
            y = np.array([row["of_predicted"] for row in own])
            spread = np.nan_to_num([2 * row["error"] / row["predicted"] for row in own])
            lines.append(Line(algorithm, x, y, y - spread, y + spread))
        panels.append(Panel(", ".join(filter(None, (f"n = {n}", variant))), lines))
    about = "1 is what theory predicts for centralized SGD with the same effective step. Bars: two standard errors."
    if far := [
        f"{row['algorithm']} on {text.readable(row['topology'])} ({row['of_predicted']:.2g} times)"
        for row in known
        if row not in near
    ]:
        about += f" Not drawn, as they did not get there: {'; '.join(far)}."
    if len(known) < len(rows):
        about += " Runs without noise, for which no floor is predicted, are left out."
    return Chart(
        panels=panels, title="Levels at the end, relative to the predicted floor of centralized SGD", about=about,
        x="topology", y="level / predicted", log_y=False, marks="dots", names=[text.readable(name) for name in topologies],
    )  # fmt: skip


def _cells(row: Row) -> dict[str, str]:
    def times(value: float, error: float = np.nan) -> str:
        return f"{value:,.0f}" if value >= FAR else text.with_error(value, error, ".4f")

    return text.identity(row) | {
        "lr": f"{row['lr']:.3g}",
        "level": text.with_error(row["level"], row["error"]),
        "/ predicted": times(row["of_predicted"]),
        "/ centralized": "" if row["baseline"] else times(row["ratio"], row["ratio_error"]),
        "stationary": "yes" if row["stationary"] else f"no: {row['why']}",
    }


def _sentences(rows: list[Row], equal: str) -> list[str]:
    if not any(np.isfinite(row["ratio"]) for row in rows):
        return ["There is no run of centralized SGD to compare with; add centralized to the algorithms."]
    sentences = []
    for label in dict.fromkeys(row["algorithm"] for row in rows if not row["baseline"]):
        settled, failed, unknown = [], [], []
        for row in [row for row in rows if row["algorithm"] == label]:
            where = f"{text.readable(row['topology'])}({row['nodes']})"
            if row["why"] == "diverged" or row["ratio"] >= FAR:
                failed.append(where)
            elif row["why"]:
                unknown.append(f"{where} ({row['why']})")
            elif row["ratio"] < FAR:
                settled.append(row["ratio"])
        parts = [f"{min(settled):.3f} to {max(settled):.3f}"] if settled else []
        parts += [f"fails with this step on {', '.join(failed)}"] if failed else []
        parts += [f"undecided on {', '.join(unknown)}"] if unknown else []
        sentences.append(f"{label} {'; '.join(parts)}")
    return [f"Levels relative to those of centralized SGD{equal}: {'. '.join(sentences)}."]

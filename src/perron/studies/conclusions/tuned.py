"""Which algorithm trains best in equal steps, each at the best learning rate of its grid?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from perron.plots import Chart, Line, Panel, Picture
from perron.studies.conclusions import text
from perron.studies.conclusions.base import Conclusion, Row, Table, by_algorithm, curve, standard_error, variants
from perron.studies.statistics import series

if TYPE_CHECKING:
    from perron.studies.results import Outcome

LOSS = "test_loss"
HIDDEN = ("run", "grid", "each")  # of a row, from the summary


def tuned(outcome: Outcome) -> Conclusion:
    """Test losses after the last step at the best lr, beside that of the best centralized method on the same minibatches.

    The lr of an algorithm is the one whose loss has the lowest mean over all trials. All algorithms see the same
    minibatches in the same trial, so that standard errors of differences are those of paired trials.
    """
    rows: list[Row] = []
    curves, grids = [], []
    for variant, part in variants(outcome.table, but=("algorithm", "weights", "lr_setting")):
        for (topology, n), same in part.groupby(["topology", "nodes"], sort=False):
            title = text.panel_title(variant, text.readable(topology), f"n = {n}")
            own = [_tuned(label, algorithm, runs) for label, algorithm, runs in by_algorithm(same)]
            central = min((row for row in own if row["centralized"]), key=lambda row: float(row["loss"]), default=None)
            identity = {"variant": text.describe(variant), "topology": topology, "nodes": int(n)}
            rows += [identity | row | _beside(row, central) for row in own]
            trained = [(row["run"][row["run"].step > 0], row["algorithm"]) for row in own]
            curves.append(Panel(title, [curve(run, label, metric=LOSS) for run, label in trained]))
            grids.append(Panel(title, [_grid(row) for row in own]))
    bars = "two standard errors over trials"
    figures: dict[str, Picture] = {}
    if outcome.table.step.nunique() > 2:
        figures["curves"] = Chart(
            panels=curves, title="Test loss of the averaged model, at the best lr", x="step", y="test loss", log_y=False,
            about=f"Without the start. Bands are {bars}.",
        )  # fmt: skip
    if max(row["rates"] for row in rows) > 1:
        figures["by-lr"] = Chart(
            panels=grids, title="Test loss after the last step, over the learning rate", about=f"Bars are {bars}.",
            x="learning rate", y="test loss", log_x=True, log_y=False, marks="points",
        )  # fmt: skip
    return Conclusion(
        tables={f"After {outcome.table.step.max():,} steps": text.table([_cells(row) for row in rows])},
        sentences=_sentences(rows, int(outcome.table.trials.max())),
        figures=figures,
        summary={"tuned": [{key: value for key, value in row.items() if key not in HIDDEN} for row in rows]},
    )


def _tuned(label: str, algorithm: str, runs: Table) -> Row:
    """Return an algorithm's losses at its best lr; those that are not finite are the worst."""
    grid = {float(run.lr.iloc[0]): (run, series(run, LOSS)[1][-1]) for _, run in runs.groupby("run", sort=False)}
    best = min(grid, key=lambda lr: float(np.nan_to_num(grid[lr][1].mean(), nan=np.inf)))
    run, each = grid[best]
    ends = (min(grid), max(grid)) if len(grid) > 1 else ()
    return {
        "algorithm": label, "centralized": algorithm.startswith("centralized"), "lr": best, "at_edge": best in ends,
        "loss": float(each.mean()), "error": standard_error(each), "rates": len(grid), "run": run, "each": each,
        "grid": {lr: losses for lr, (_, losses) in grid.items()},
    }  # fmt: skip


def _beside(row: Row, central: Row | None) -> Row:
    """Return by what share a loss is above that of the centralized method, with the error over paired trials."""
    if central is None or row is central:
        return {"excess": np.nan, "excess_error": np.nan}
    excess = row["each"] / central["each"] - 1
    return {"excess": float(excess.mean()), "excess_error": standard_error(excess)}


def _grid(row: Row) -> Line:
    known = {lr: losses for lr, losses in sorted(row["grid"].items()) if np.isfinite(losses).all()}
    y = np.array([losses.mean() for losses in known.values()])
    spread = 2 * np.nan_to_num([standard_error(losses) for losses in known.values()])
    return Line(row["algorithm"], np.array(list(known)), y, y - spread, y + spread)


def _cells(row: Row) -> dict[str, str]:
    return text.identity(row) | {
        "best lr": f"{row['lr']:g}" + (" (end of the grid)" if row["at_edge"] else ""),
        "test loss": text.with_error(row["loss"], row["error"], ".4f"),
        "above centralized": _percent(row),
    }


def _percent(row: Row) -> str:
    cell = text.with_error(100 * row["excess"], 100 * row["excess_error"], "+.2f").replace("± +", "± ")
    return f"{cell} %" if cell else ""


def _sentences(rows: list[Row], trials: int) -> list[str]:
    sentences = []
    if compared := [row for row in rows if np.isfinite(row["excess"])]:
        best = min(compared, key=lambda row: float(row["excess"]))
        sentences.append(
            f"Nearest to the best centralized method is {best['algorithm']}: its test loss is {_percent(best)} above."
        )
    over = "one trial" if trials == 1 else f"{trials} trials"
    if (most := max(row["rates"] for row in rows)) > 1:
        sentences.append(
            f"The best of up to {most} learning rates is the one with the lowest mean of this loss over {over}."
        )
    spread = " with standard errors; those of the last column are of paired trials" if trials > 1 else ""
    return [*sentences, f"Losses are those of the averaged model, means over {over}{spread}."]

"""What ``lr = "tune"`` means in a study file: the grid, the budget, and the names under which the results are kept."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from perron.studies._values import Many, Positive
from perron.studies.run import Run


class Tune(BaseModel):
    """How learning rates are found.

    Attributes:
        grid: the learning rates that every algorithm is run with; by default seven from 0.001 to 1.
        method: ``"grid"`` runs all of them to the end. ``"halving"`` runs all for a ninth of the steps, the best third of them
            for a third, and the best third of those to the end; it is the default for runs of 10,000 steps and more.
        budget: gradients of a node, one for each step, that an algorithm may spend on the grid; runs are shortened accordingly.
        trials: of each run, at most those of the study.
        extend: how often the grid may be extended by two values, for all algorithms alike, where a best one is at its edge.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    grid: Many[Positive] = Field(default_factory=lambda: [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0])
    method: Literal["grid", "halving"] | None = None
    budget: Annotated[int, Field(ge=1)] | None = None
    trials: Annotated[int, Field(ge=1)] = 3
    extend: Annotated[int, Field(ge=0)] = 3


def varying_options(*tables: Mapping[str, Any]) -> set[str]:
    """Return the options of a problem or of links that have several values in a study."""
    return {name for table in tables for name, value in table.items() if isinstance(value, list) and len(value) > 1}


def place_of(run: Run, varying: Collection[str]) -> str:
    """Return the name of all runs that share a learning rate: those that differ in seeds only."""
    options = [f"{name} {value}" for name, value in (run.problem | run.links).items() if name in varying]
    return ", ".join([f"{run.columns['algorithm']} on {run.columns['topology']}({run.nodes})", run.weights, *options])


def with_rate(run: Run, tuned: Mapping[str, float], varying: Collection[str]) -> Run:
    """Return a run with the learning rate that was found for it; as it is if there is none."""
    rate = tuned.get(place_of(run, varying)) if run.lr == "tune" else None
    return run if rate is None else run.model_copy(update={"lr": rate})

"""What a figure of curves shows: the table ``[figure]`` of a study file, and the options of `perron.compare`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from perron.studies._values import Many, Scalar, listed


class Figure(BaseModel):
    """What a figure of curves shows.

    Attributes:
        x: ``"steps"``, ``"gradients"`` (of a node), ``"bytes"`` (as sent, over all links), ``"seconds"`` (of runs with a clock),
            or any other measured column.
        y: a metric; the first one by default.
        log_x: whether the x axis is logarithmic.
        panels: the columns that have a panel for each of their values, as ``"topology"`` or ``["topology", "nodes"]``; ``[]`` for
            one panel. By default, all that differ between runs besides algorithms, learning rates and seeds.
        where: the runs to show, as ``{ topology = "ring", nodes = [8, 16] }``.
        target: a value of y. The best step is then the one that reaches it first; by default the value in ``until``, if any.
        columns: the width of the page that the figure fills: ``"one"`` column (3.5 in) or ``"two"`` (7.16 in).
        latex: whether LaTeX sets the text of the figure; it has to be installed.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    x: str = "steps"
    y: str | None = None
    log_x: bool = False
    panels: Annotated[list[str], BeforeValidator(listed)] | None = None
    where: dict[str, Many[Scalar]] = Field(default_factory=dict)
    target: Annotated[float, Field(allow_inf_nan=False)] | None = None
    columns: Literal["one", "two"] = "one"
    latex: bool = False

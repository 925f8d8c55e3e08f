"""Values in study files: one or a list, names or tables, tables by topology."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, Field

from perron._registry import validate
from perron.studies.run import Choice

Scalar = bool | int | float | str | None


def listed(value: Any) -> Any:
    """A value as a list, unless it is one."""
    return list(value) if isinstance(value, list | tuple) else [value]


def _chosen(value: Any) -> Any:
    """Names as tables; ``use`` is another word for the name of something of one's own."""
    tables = [{"name": entry} if isinstance(entry, str) else entry for entry in listed(value)]
    return [
        {"name": one["use"]} | {k: v for k, v in one.items() if k != "use"}
        if isinstance(one, dict) and "use" in one
        else one
        for one in tables
    ]


T = TypeVar("T")
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)] | Literal["default"]
Many = Annotated[list[T], BeforeValidator(listed), Field(min_length=1)]
Choices = Annotated[list[Choice], BeforeValidator(_chosen), Field(min_length=1)]


class Instead(BaseModel):
    """What an algorithm may have instead of the study's."""

    weights: str | None = None
    lr: Many[Rate] | None = None
    rounds: Annotated[int, Field(ge=1)] | None = None


def own_settings(algorithm: Choice) -> tuple[dict[str, Any], Instead]:
    """Return the hyper-parameters of an algorithm, and what it has instead of the study's."""
    options = algorithm.options
    given = {name: options.pop(name) for name in Instead.model_fields if name in options}
    return options, validate(Instead, given)


def combinations(options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return all combinations of options whose values may be lists."""
    return [dict(zip(options, values, strict=True)) for values in product(*map(listed, options.values()))]


def entry_at(table: Mapping[str, list[Any]], topology: str, weights: str) -> list[Any]:
    """Return the entry of a table by topology, or by topology and weights."""
    keys = (f"{topology}/{weights}", topology, "default")
    return next((table[key] for key in keys if key in table), [])

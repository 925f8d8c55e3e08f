"""Values in study files: one or a list, names or tables, tables by topology."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from itertools import product
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, Field

from perron._registry import validate
from perron.algorithms.codecs import Wire
from perron.errors import PerronError
from perron.studies.run import Choice

Scalar = bool | int | float | str | None


def listed(value: Any) -> Any:
    """A value as a list, unless it is one."""
    return list(value) if isinstance(value, list | tuple) else [value]


def _chosen(value: Any) -> Any:
    """Names as tables; ``use`` is another word for the name of something of one's own."""
    tables = [{"name": entry} if isinstance(entry, str) else entry for entry in listed(value)]
    return [
        {key: _named(entry) for key, entry in _named(one).items()} if isinstance(one, dict) else one for one in tables
    ]


def _named(value: Any) -> Any:
    if not isinstance(value, dict) or "use" not in value:
        return value
    return {"name": value["use"]} | {key: entry for key, entry in value.items() if key != "use"}


T = TypeVar("T")
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Rate = Positive | Literal["default"]
Many = Annotated[list[T], BeforeValidator(listed), Field(min_length=1)]
Choices = Annotated[list[Choice], BeforeValidator(_chosen), Field(min_length=1)]


class Instead(BaseModel):
    """What an algorithm may have instead of the study's."""

    weights: str | None = None
    lr: Many[Rate] | None = None
    rounds: Annotated[int, Field(ge=1)] | None = None
    wire: Wire | None = None


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


def parse(pairs: list[str], option: str = "--set") -> dict[str, Any]:
    """Parse ``key=value`` texts whose values are TOML or plain words."""
    changes = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            example = "lr=0.01 or problem.batch=50" if option == "--set" else "time=60"
            raise PerronError(f"{option} takes KEY=VALUE, as {example}; got {pair!r}.")
        try:
            changes[key.strip()] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            changes[key.strip()] = value.strip()
    return changes


def change(content: dict[str, Any], key: str, value: Any) -> None:
    """Set a key of a study file, as ``problem.batch``."""
    *tables, last = key.split(".")
    for table in tables:
        inner = content.setdefault(table, {})
        if not isinstance(inner, dict):
            raise PerronError(f"{key} cannot be set: {table} is {inner!r}, not a table.")
        content = inner
    content[last] = value

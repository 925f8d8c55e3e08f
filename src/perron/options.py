"""Names and options that people type: found, or refused with what there is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from functools import lru_cache
from inspect import Parameter, signature
from typing import Any, TypeVar, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from perron.errors import PerronError

T = TypeVar("T")


class UnknownNameError(PerronError, ValueError):
    """A name that is not known: pydantic collects it as a ValueError, everybody else sees a PerronError."""


def named(name: str, among: Mapping[str, T], kind: str) -> T:
    """What is called so, or an error with the nearest name that there is."""
    if name in among:
        return among[name]
    close = get_close_matches(name, among, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise UnknownNameError(f"there is no {kind} {name!r}; {hint}There are: {', '.join(among)}.")


@lru_cache
def options_of(function: Any, *, several: bool = False) -> type[BaseModel]:
    """A model of a function's options, made from its signature; with ``several``, each may be a list."""
    hints = get_type_hints(function)
    options: dict[str, Any] = {}
    for name, parameter in signature(function).parameters.items():
        if name in ("n", "nodes", "dtype") or parameter.kind is Parameter.VAR_KEYWORD:
            continue
        default = None if parameter.default is Parameter.empty else parameter.default
        hint: Any = hints[name]
        options[name] = (hint | list[hint] if several else hint, default)
    config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)
    return create_model(function.__name__, __config__=config, **options)


def checked(model: type[BaseModel], given: dict[str, Any]) -> BaseModel:
    """Options that fit a model; an unknown one is refused with those that there are."""
    for key in given:
        if key not in model.model_fields:
            close = get_close_matches(key, model.model_fields, n=1)
            hint = f"did you mean {close[0]!r}? " if close else ""
            raise UnknownNameError(
                f"there is no option {key!r}; {hint}There are: {', '.join(model.model_fields) or 'none'}."
            )
    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise UnknownNameError(told(error)) from None


def told(error: ValidationError, known: Iterable[str] = ()) -> str:
    """All that is wrong with what was given, each with its key."""
    told = []
    for problem in error.errors():
        key = ".".join(
            str(part)
            for part in problem["loc"]
            if part not in ("function-before[_listed()]", "function-before[_chosen()]")
        )
        said = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "extra_forbidden":
            close = get_close_matches(key, known, n=1)
            hint = f"did you mean {close[0]}? " if close else ""
            said = f"there is no such key; {hint}There are: {', '.join(known)}."
        elif problem["type"] != "value_error":
            said = f"{said[0].lower()}{said[1:]}; got {problem['input']!r}"
        told.append(f"{key}: {said}" if key else said)
    return "; ".join(told)

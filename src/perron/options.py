"""Names and options that people type: found, or refused with what there is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

from perron.errors import UnknownNameError

NAME = r"^[\w.-]*\w[\w.-]*$"  # of a study, and so of its files

if TYPE_CHECKING:  # imported where it is needed: it takes a while, and most commands do without
    from pydantic import BaseModel, ValidationError

T = TypeVar("T")
SHAPES = ("function-before[_listed()]", "function-before[_chosen()]")  # parts of an error's place that say nothing


def named(name: str, among: Mapping[str, T], kind: str) -> T:
    """What is called so, or an error with the nearest name that there is.

    >>> named("rign", {"ring": 1, "grid": 2}, "topology")
    Traceback (most recent call last):
    perron.errors.UnknownNameError: There is no topology 'rign'; did you mean 'ring'? There are: ring, grid.
    """
    if name in among:
        return among[name]
    raise unknown(name, among, kind)


def unknown(name: object, among: Iterable[str], kind: str) -> UnknownNameError:
    """The error about a name that does not exist, with the nearest that does."""
    from difflib import get_close_matches

    known = list(among)
    by_case = {one.lower().replace("-", "_"): one for one in known}
    close = get_close_matches(str(name).lower().replace("-", "_"), by_case, n=1)
    hint = f"; did you mean {by_case[close[0]]!r}?" if close else "."
    return UnknownNameError(f"There is no {kind} {name!r}{hint} There are: {', '.join(known) or 'none'}.")


@lru_cache
def options_of(function: Any, *, several: bool = False) -> type[BaseModel]:
    """A model of a function's options, made from its signature; with ``several``, each may be a list."""
    from inspect import Parameter, signature

    from pydantic import ConfigDict, create_model

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
    from pydantic import ValidationError

    for key in given:
        named(key, model.model_fields, "option")
    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise UnknownNameError(told(error)) from None


def told(error: ValidationError, known: Iterable[str] = ()) -> str:
    """All that is wrong with what was given, each with its key."""
    told = []
    for problem in error.errors():
        key = ".".join(str(part) for part in problem["loc"] if part not in SHAPES)
        said = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "extra_forbidden":
            key, said = "", str(unknown(key, known, "key"))
        elif problem["type"] == "literal_error" and isinstance(problem["input"], str):
            said = str(unknown(problem["input"], _choices(problem["ctx"]["expected"]), key))
        elif problem["type"] != "value_error":
            said = f"{said[0].lower()}{said[1:]}; got {problem['input']!r}"
        told.append(f"{key}: {said}" if key else said)
    return "; ".join(told)


def _choices(expected: str) -> list[str]:
    """The names in pydantic's ``'a', 'b' or 'c'``."""
    return expected.split("'")[1::2]

"""Names and options that people type: found, or refused with what there is."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

from perron.errors import UnknownNameError, brief

NAME = r"^[\w.-]*\w[\w.-]*$"  # of a study, and so of its files

if TYPE_CHECKING:  # imported where it is needed: it takes a while, and most commands do without
    from pydantic import BaseModel, ValidationError

T = TypeVar("T")
# Parts of an error's place that say which of several types was tried; parts of its text that say nothing.
SHAPES = re.compile(r"bool|int|float|str|none|constrained-\w+|(literal|list|dict|nullable|function-\w+|union)\[.*\]")
EXPECTED = re.compile(r"^Input should be |, unable to parse .*$")
WORDS = {"a valid dictionary or instance of Choice": "a name, or a table with a name"}


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
    """All that is wrong with what was given: each key, what it may be, and what it was."""
    at: dict[str, list[Any]] = {}
    for problem in error.errors():
        parts = [str(part) for part in problem["loc"] if not SHAPES.fullmatch(str(part))]
        key = ".".join(part if part.isprintable() else repr(part) for part in parts)
        at.setdefault(key, []).append(problem)  # a key that may be this or that has a problem with each
    return "; ".join(_said(key, problems, known) for key, problems in at.items())


def _said(key: str, problems: list[Any], known: Iterable[str]) -> str:
    """What is wrong with one key."""
    first = problems[0]
    if first["type"] == "extra_forbidden":
        return str(unknown(key, known, "key"))
    if first["type"] == "missing":
        said = "it is needed, and is not there"
    elif first["type"] == "value_error":
        said = first["msg"].removeprefix("Value error, ")
    elif first["type"] == "literal_error" and len(problems) == 1 and isinstance(first["input"], str):
        said = str(unknown(first["input"], _choices(first["ctx"]["expected"]), key))
    elif not first["msg"].startswith("Input should be "):
        said = f"{first['msg'][0].lower()}{first['msg'][1:]}; got {brief(first['input'])}"
    else:
        allowed = dict.fromkeys(EXPECTED.sub("", one["msg"]) for one in problems)
        said = f"input should be {' or '.join(WORDS.get(one, one) for one in allowed)}; got {brief(first['input'])}"
    return f"{key}: {said}" if key else said


def _choices(expected: str) -> list[str]:
    """The names in pydantic's ``'a', 'b' or 'c'``."""
    return expected.split("'")[1::2]

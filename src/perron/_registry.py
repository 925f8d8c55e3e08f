"""Look up names and validate options that users type; an unknown one is refused with a list of those that exist."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import is_dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

from perron.errors import UnknownNameError, brief

NAME = r"^[\w.-]*\w[\w.-]*$"  # of a study, and so of its files

if TYPE_CHECKING:  # imported where it is needed: it takes a while, and most commands do without
    from pydantic import BaseModel, ValidationError

T = TypeVar("T")
M = TypeVar("M", bound="BaseModel")
# Parts of an error's location that name the member of a union that pydantic tried, and parts of its text without information.
UNION_MEMBERS = re.compile(
    r"bool|int|float|str|none|constrained-\w+|(literal|list|dict|nullable|function-\w+|union)\[.*\]"
)
BOILERPLATE = re.compile(r"^Input should be |, unable to parse .*$")
WORDING = {"a valid dictionary or instance of Choice": "a name, or a table with a name"}


def public_dir(module: str) -> Callable[[], list[str]]:
    """Return the ``__dir__`` of a module: the constants, functions and classes that it defines, without what it imports."""

    def names() -> list[str]:
        own = vars(sys.modules[module])
        constants = {name for name in own if name.isupper() and len(name) > 1}  # not type variables
        defined = [
            name for name, value in own.items() if name in constants or getattr(value, "__module__", "") == module
        ]
        return sorted(name for name in own.get("__all__", defined) if not name.startswith("_"))

    return names


def lookup(name: str, among: Mapping[str, T], kind: str) -> T:
    """Return the entry with this name, or raise an error that suggests the nearest one.

    >>> lookup("rign", {"ring": 1, "grid": 2}, "topology")
    Traceback (most recent call last):
    perron.errors.UnknownNameError: There is no topology 'rign'; did you mean 'ring'? There are: ring, grid.
    """
    if name in among:
        return among[name]
    raise unknown(name, among, kind)


def unknown(name: object, among: Iterable[str], kind: str) -> UnknownNameError:
    """Return the error for a name that does not exist; it suggests the nearest one that does."""
    from difflib import get_close_matches

    known = list(among)
    by_case = {candidate.lower().replace("-", "_"): candidate for candidate in known}
    close = get_close_matches(str(name).lower().replace("-", "_"), by_case, n=1)
    hint = f"; did you mean {by_case[close[0]]!r}?" if close else "."
    return UnknownNameError(f"There is no {kind} {name!r}{hint} There are: {', '.join(known) or 'none'}.")


@lru_cache
def options_model(function: Any, *, several: bool = False) -> type[BaseModel]:
    """Return a pydantic model of a function's options, from its signature; with ``several``, each may be a list."""
    from inspect import Parameter, signature

    from pydantic import ConfigDict, create_model

    own_init = isinstance(function, type) and not is_dataclass(function)
    fixed = function.keywords if isinstance(function, partial) else {}
    hints = get_type_hints(function.__init__ if own_init else function.func if fixed else function)
    options: dict[str, Any] = {}
    for name, parameter in signature(function).parameters.items():
        if name in ("n", "nodes", "dtype", *fixed) or parameter.kind is Parameter.VAR_KEYWORD:
            continue
        default = ... if parameter.default is Parameter.empty else parameter.default
        hint: Any = hints.get(name, Any)
        options[name] = (hint | list[hint] if several else hint, default)
    config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)
    return create_model((function.func if fixed else function).__name__, __config__=config, **options)


def validate(model: type[M], options: dict[str, Any]) -> M:
    """Validate options against a model; an unknown option is refused with a list of those that exist."""
    from pydantic import ValidationError

    for key in options:
        lookup(key, model.model_fields, "option")
    try:
        return model.model_validate(options)
    except ValidationError as error:
        raise UnknownNameError(format_errors(error)) from None


def format_errors(error: ValidationError, known: Iterable[str] = ()) -> str:
    """Return all that a validation found, in one line: for each key what is allowed and what was given."""
    by_key: dict[str, list[Any]] = {}  # a key with a union type has an error for each of its members
    for details in error.errors():
        parts = [str(part) for part in details["loc"] if not UNION_MEMBERS.fullmatch(str(part))]
        key = ".".join(part if part.isprintable() else repr(part) for part in parts)
        by_key.setdefault(key, []).append(details)
    return "; ".join(_format_key(key, errors, known) for key, errors in by_key.items())


def _format_key(key: str, errors: list[Any], known: Iterable[str]) -> str:
    first = errors[0]
    if first["type"] == "extra_forbidden":
        return str(unknown(key, known, "key"))
    if first["type"] == "missing":
        text = "it is required, but missing"
    elif first["type"] == "value_error":
        text = first["msg"].removeprefix("Value error, ")
    elif first["type"] == "literal_error" and len(errors) == 1 and isinstance(first["input"], str):
        choices = first["ctx"]["expected"].split("'")[1::2]  # of pydantic's "'a', 'b' or 'c'"
        text = str(unknown(first["input"], choices, key))
    elif not first["msg"].startswith("Input should be "):
        text = f"{first['msg'][0].lower()}{first['msg'][1:]}; got {brief(first['input'])}"
    else:
        allowed = dict.fromkeys(BOILERPLATE.sub("", details["msg"]) for details in errors)
        wanted = " or ".join(WORDING.get(phrase, phrase) for phrase in allowed)
        text = f"input should be {wanted}; got {brief(first['input'])}"
    return f"{key}: {text}" if key else text

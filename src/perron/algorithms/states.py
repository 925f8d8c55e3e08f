"""States with fields of their own for a move or a memory: NamedTuples that are extended and shortened again."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from torch import Tensor


def extend(state: Any, fields: Mapping[str, Tensor]) -> Any:
    """Return a NamedTuple with more fields; itself if there are none."""
    kind: Any = type(state)
    return _extended(kind, tuple(fields))(*state, *fields.values()) if fields else state


@lru_cache
def _extended(kind: Callable[..., Any], names: tuple[str, ...]) -> Any:
    made = namedtuple(kind.__name__, kind._fields + names)  # type: ignore[attr-defined, misc]
    made.shorter = kind  # type: ignore[attr-defined]
    return made


def shortened(state: Any) -> Any:
    """Return a NamedTuple without the fields that `extend` added last."""
    kind = type(state).shorter
    return kind(*state[: len(kind._fields)])

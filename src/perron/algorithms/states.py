"""States with fields of their own for a move or a memory: NamedTuples that are extended and shortened again."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from perron.errors import PerronError


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


def saved_fields(state: Any, saved: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the saved tensors by the names of the fields of ``state``, or refuse those of another state.

    Files of earlier versions lack ``begun`` of late trackers, whose first step was then like all others: it is 1.
    """
    found = dict(saved)
    if "begun" in state._fields:
        found.setdefault("begun", torch.ones_like(state.begun))
    if found.keys() != set(state._fields):
        raise PerronError(
            f"The saved state has the fields {', '.join(saved)}, but the state of this algorithm has {', '.join(state._fields)}. "
            "It is of another algorithm, or of a version of perron that is not read: start without it, or use that version."
        )
    return {name: found[name] for name in state._fields}

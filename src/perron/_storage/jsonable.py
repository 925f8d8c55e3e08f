"""Values as JSON knows them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any


def plain(value: Any) -> Any:
    """Arrays as lists, paths as text, and what is not finite as null.

    >>> plain({"slope": float("nan"), 4: (1, 2.5)})
    {'slope': None, '4': [1, 2.5]}
    """
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if hasattr(value, "tolist"):  # NumPy's arrays and numbers
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if isinstance(value, Path):
        return str(value)
    return None if isinstance(value, float) and not isfinite(value) else value


def document(value: Any, indent: int | None = None) -> str:
    """A JSON document that every parser takes, with a newline at its end."""
    return json.dumps(plain(value), indent=indent, allow_nan=False) + "\n"

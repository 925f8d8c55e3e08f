"""Values that JSON can represent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any


def to_jsonable(value: Any, *, digits: int | None = None) -> Any:
    """Convert arrays to lists, paths to strings, and NaN and infinities to None, at any depth.

    Args:
        value: anything made of mappings, sequences, NumPy arrays, numbers, strings and paths.
        digits: significant digits of floats; all by default.

    >>> to_jsonable({"slope": float("nan"), 4: (1, 2.5)})
    {'slope': None, '4': [1, 2.5]}
    """
    if isinstance(value, Mapping):
        return {str(key): to_jsonable(entry, digits=digits) for key, entry in value.items()}
    if hasattr(value, "tolist"):  # NumPy's arrays and numbers
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [to_jsonable(entry, digits=digits) for entry in value]
    if isinstance(value, Path):
        return str(value)
    if not isinstance(value, float):
        return value
    if not isfinite(value):
        return None
    return value if digits is None else float(f"{value:.{digits}g}")


def to_json(value: Any, indent: int | None = None) -> str:
    """Return strict JSON (no NaN, no infinities) that ends with a newline."""
    return json.dumps(to_jsonable(value), indent=indent, allow_nan=False) + "\n"

"""Types and checks of arguments that all subpackages share."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from perron.errors import GraphError

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


def check_whole(what: str, value: object, *, low: int = 0) -> int:
    """Return the value if it is a whole number of at least ``low`` (a seed, a count, a node), otherwise raise an error."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < low or value >= 2**63:
        raise GraphError(f"{what} needs a whole number, at least {low}; got {value!r}.")
    return int(value)


def real_number(value: Any) -> float | None:
    """Return a number of Python, NumPy or PyTorch as a float, also an array without axes; None for all else, as True and "1"."""
    if not isinstance(value, int | float) and getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else -float("inf")


def whole_number(value: Any) -> int | None:
    """Return a whole number likewise; None for all else, as 1.0."""
    if not isinstance(value, int) and getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        value = value.item()
    return value if isinstance(value, int) and not isinstance(value, bool) else None

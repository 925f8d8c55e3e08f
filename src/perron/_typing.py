"""Types and checks of arguments that all subpackages share."""

from __future__ import annotations

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

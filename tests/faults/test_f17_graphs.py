"""A wrong graph is refused before anything runs."""

import numpy as np
import pytest

from perron import Mixing
from perron.errors import MixingError


def test_f17_sums_that_are_off(row):
    matrix = np.full((4, 4), 0.25)
    matrix[3, 0] = 0.15
    with pytest.raises(MixingError, match=r"row 3.*0\.9"):
        Mixing(pull=matrix, push=np.full((4, 4), 0.25))
    row.measured("row and sum named", trials=1)

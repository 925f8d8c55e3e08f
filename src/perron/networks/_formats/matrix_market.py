"""Matrix Market .mtx files."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import numpy as np
from scipy.sparse import csr_array

from perron.errors import FileError
from perron.networks._checks import check_nodes
from perron.networks._formats.base import WeightedNetwork


def parse_matrix_market(text: str, path: Path) -> WeightedNetwork:
    """Parse a square matrix; as in all matrices, entry (i, j) is the weight of node j at node i."""
    from scipy.io import mmread

    size = next((line.split() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("%")), [])
    if len(size) < 2 or not all(part.isdigit() for part in size[:2]) or size[0] != size[1]:
        raise FileError(f"{path}: a network is a square matrix; its line of sizes is {' '.join(size)!r:.60}.")
    check_nodes(int(size[0][:18]))
    try:
        matrix = csr_array(mmread(BytesIO(text.encode()), spmatrix=False))
    except (ValueError, OverflowError, TypeError, EOFError) as error:
        raise FileError(f"{path} is not a Matrix Market file that can be read: {error}.") from None
    if np.iscomplexobj(matrix.data):
        raise FileError(f"{path} holds complex numbers; weights are finite and not negative.")
    matrix = matrix.astype(np.float64)
    if not np.isfinite(matrix.data).all() or (matrix.data < 0).any():
        raise FileError(f"{path}: weights are finite and not negative; the smallest is {np.nanmin(matrix.data):g}.")
    return WeightedNetwork(
        matrix,
        notes=("entry (i, j) was read as an edge from j to i, as in all matrices; graph.reverse() turns it round",),
    )

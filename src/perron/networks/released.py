"""The networks that the paper's authors released, with the same matrices, where they differ from the paper's text.

Their generators draw from NumPy's legacy global stream; the same numbers are drawn here from a private one, so that A and B are
equal in every entry. Differences from the text: all six graphs are reversed; the ring has two chords; the grid is undirected;
weights are 1..2 (exponential, grid, ring) or 1..3 (random, geometric, nearest neighbor) instead of 1..9; A and B come from one
integer matrix. Random graphs are not redrawn if disconnected: with the authors' seed 42, random at n=4 and geometric at n=6 and 8
are not connected, which `Mixing` refuses.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from perron._registry import public_dir
from perron._typing import FloatArray, IntArray, check_whole
from perron.errors import GraphError
from perron.networks import topologies
from perron.networks._checks import check_edges, check_nodes
from perron.networks.graph import Graph
from perron.networks.mixing import Mixing

SEED = 42


def exponential(n: int, *, seed: int = SEED) -> Mixing:
    """Node i receives from i + 2^k (mod n), k = 0, 1, ...; weights 1..2."""
    draws = _stream(n, seed).randint(1, 3, size=(n, n))  # drawn for all entries, used on the edges
    pattern = topologies.exponential(n).reverse().adjacency().toarray()
    return _normalized(pattern * draws, "exponential")


def grid(n: int, *, seed: int = SEED) -> Mixing:
    """Undirected square grid; weights 1..2."""
    return _weighted(topologies.undirected_grid(n), _stream(n, seed), 2, "grid")


def ring(n: int, *, seed: int = SEED) -> Mixing:
    """Ring with the two chords of `topologies.chordal_ring`; weights 1..2."""
    return _weighted(topologies.chordal_ring(n), _stream(n, seed), 2, "ring")


def random(n: int, *, seed: int = SEED) -> Mixing:
    """Undirected random graph, each pair with probability 1/3; weights 1..3."""
    check_nodes(n)
    stream = _stream(n, seed)
    low, high = np.triu_indices(n, k=1)
    linked = stream.rand(len(low)) < 1 / 3
    return _weighted(_undirected(n, low[linked], high[linked]), stream, 3, "random")


def geometric(n: int, *, seed: int = SEED) -> Mixing:
    """Undirected geometric graph: points in a 10 x 10 square, linked within distance 5; weights 1..3; n >= 6."""
    if check_nodes(n) < 6:
        raise GraphError(f"The authors' geometric generator needs n >= 6; got n={n}.")
    stream = _stream(n, seed)
    points = stream.rand(n, 2) * 10
    from scipy.spatial.distance import cdist  # takes long to import

    low, high = np.nonzero(np.triu(cdist(points, points) <= 5, k=1))
    graph = _undirected(n, low, high, points)
    weights = graph.adjacency()
    weights.data = stream.choice([1, 2, 3], size=weights.nnz).astype(np.float64)
    return _normalized(weights.toarray(), "geometric")


def nearest_neighbor(n: int, *, seed: int = SEED) -> Mixing:
    """Undirected nearest-neighbor graph: points in a 10 x 10 square, each linked with its nearest 3; weights 1..3."""
    if check_nodes(n) < 4:
        raise GraphError(f"The authors' nearest-neighbor generator (3 neighbors) needs n >= 4; got n={n}.")
    stream = _stream(n, seed)
    points = stream.rand(n, 2) * 10
    from scipy.spatial.distance import cdist

    nearest = np.argsort(cdist(points, points), axis=1)[:, 1:4]
    graph = _undirected(n, np.repeat(np.arange(n), 3), nearest.ravel(), points)
    return _weighted(graph, stream, 3, "nearest_neighbor")


NAMES: dict[str, Callable[..., Mixing]] = {
    function.__name__: function for function in (exponential, grid, ring, random, geometric, nearest_neighbor)
}


def _stream(n: int, seed: int) -> np.random.RandomState:
    """Return NumPy's legacy generator, which the authors use. Their dense matrices must fit into memory."""
    check_edges("The authors' dense matrix", float(check_nodes(n)) ** 2, "the same topology from perron.topologies")
    if check_whole("The authors' seed", seed) >= 2**32:
        raise GraphError(f"NumPy's legacy generator takes seeds below 2^32; got {seed}.")
    return np.random.RandomState(seed)


def _undirected(n: int, low: IntArray, high: IntArray, positions: FloatArray | None = None) -> Graph:
    return Graph(n, np.stack([low, high], axis=1), positions=positions).symmetric()


def _weighted(graph: Graph, stream: np.random.RandomState, high: int, name: str) -> Mixing:
    """Draw integers 1..high for the entries of the 0-1 matrix, row by row."""
    weights = graph.adjacency()
    weights.data = stream.randint(1, high + 1, size=weights.nnz).astype(np.float64)
    return _normalized(weights.toarray(), name)


def _normalized(weights: FloatArray, name: str) -> Mixing:
    return Mixing.normalized(weights, name=f"the authors' {name}({len(weights)})")


__dir__ = public_dir(__name__)

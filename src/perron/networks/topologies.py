"""Topologies: functions of the number of nodes, each with its mathematical property in the docstring.

Every function returns a strongly connected `Graph` in which all nodes have self-loops; edges are ``(source, target)``. A random
family is drawn repeatedly, deterministically, until the graph is strongly connected; ``graph.note`` contains the number of draws.
The networks that the paper's authors released, which differ from the paper's text, are in `perron.networks.released`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, isqrt, log, log2, pi

import numpy as np

from perron._registry import public_dir
from perron._typing import FloatArray, IntArray, check_whole
from perron.errors import GraphError
from perron.networks._checks import check_edges, check_nodes
from perron.networks._patterns import both_ways, circulant, distinct, distinct_others, lattice_positions, tree_positions
from perron.networks.graph import Graph

MAX_DRAWS = 1000  # fewer for large graphs: at least 10, and about a million nodes in total


# ---- the three directed graphs of the paper


def ring(n: int) -> Graph:
    """Directed ring: node i sends to i+1. Every degree is 1, the diameter n-1: the slowest strongly connected graph.

    >>> ring(4).edges.tolist()
    [[3, 0], [0, 1], [1, 2], [2, 3]]
    """
    return _circulant(n, [1], name=f"ring({n})")


def exponential(n: int) -> Graph:
    """Directed exponential graph: node i sends to i+1, i+2, i+4, ... (mod n).

    Every in- and out-degree is ceil(log2 n); uniform weights are doubly stochastic.

    >>> exponential(8).targets(0).tolist()
    [1, 2, 4]
    """
    check_nodes(n)
    return _circulant(n, [2**k for k in range(ceil(log2(n)))], name=f"exponential({n})")


def grid(n: int, *, rows: int | None = None) -> Graph:
    """Directed grid: a strongly connected orientation of the rows x columns grid, every link one way.

    The boundary is a directed cycle; inner rows and columns have alternating directions. It needs at least 2 rows and 2 columns
    (or one node); without ``rows``, it is a square.

    >>> grid(9).nodes, len(grid(9).edges)
    (9, 12)
    """
    height, width = _sides(n, rows, "grid")
    if min(height, width) == 1 and n > 1:
        raise GraphError(
            f"grid(n, rows) needs at least 2 rows and 2 columns: a path has no strongly connected orientation; got "
            f"{height} x {width}. Use path({n}) or ring({n})."
        )
    node = np.arange(n).reshape(height, width)
    forward_rows = [node[r] if r != height - 1 and r % 2 == 0 else node[r, ::-1] for r in range(height)]
    forward_columns = [node[:, c] if c == width - 1 or c % 2 == 1 else node[::-1, c] for c in range(width)]
    edges = [np.stack([line[:-1], line[1:]], axis=1) for line in forward_rows + forward_columns]
    return Graph(n, np.concatenate(edges), name=f"grid({height}x{width})", positions=lattice_positions(height, width))


# ---- the three undirected graphs of the paper


def random(n: int, *, probability: float = 1 / 3, seed: int = 0) -> Graph:
    """Undirected random graph (Erdos-Renyi): each pair is linked with the given probability; connected.

    >>> random(16, seed=1).is_symmetric
    True
    """
    name = _check_density("random", n, probability)

    def draw(rng: np.random.Generator) -> tuple[IntArray, None]:
        # The number of links is binomial, and given it every set of pairs is equally likely.
        pairs = n * (n - 1) // 2
        chosen = rng.choice(pairs, rng.binomial(pairs, probability), replace=False, shuffle=False)
        # Pair number k is (low, high) with high the largest number whose high*(high-1)/2 <= k.
        high = ((1 + np.sqrt(1 + 8 * chosen.astype(np.float64))) / 2).astype(np.int64)
        high -= high * (high - 1) // 2 > chosen
        high += high * (high + 1) // 2 <= chosen
        return both_ways(chosen - high * (high - 1) // 2, high), None

    return _connected(n, name, seed, draw, f"a probability above ln(n)/n = {log(max(n, 2)) / n:.3g}")


def geometric(n: int, *, radius: float = 0.5, seed: int = 0) -> Graph:
    """Undirected geometric graph: n points in the unit square, linked if their distance is at most ``radius``; connected.

    >>> graph = geometric(16, seed=1)
    >>> graph.is_symmetric, graph.positions.shape
    (True, (16, 2))
    """
    if not radius > 0:
        raise GraphError(f"geometric(n, radius) needs a positive radius; got {radius}.")
    name = f"geometric({n}, radius={radius:.4g})"
    check_edges(name, check_nodes(n) * (n - 1.0) * min(1.0, pi * radius**2), "a smaller radius")

    def draw(rng: np.random.Generator) -> tuple[IntArray, FloatArray]:
        points = rng.random((n, 2))
        from scipy.spatial import KDTree  # takes long to import, and most topologies do without

        pairs = KDTree(points).query_pairs(radius, output_type="ndarray").astype(np.int64)
        return both_ways(pairs[:, 0], pairs[:, 1]), points

    remedy = f"a radius above sqrt(ln(n)/(pi n)) = {(log(max(n, 2)) / (pi * n)) ** 0.5:.3g}"
    return _connected(n, name, seed, draw, remedy)


def nearest_neighbor(n: int, *, neighbors: int = 3, seed: int = 0) -> Graph:
    """Undirected nearest-neighbor graph: n points in the unit square, each linked with its nearest ones; connected.

    Two points are linked if either is among the ``neighbors`` nearest of the other, so that this is the smallest possible degree.

    >>> int(nearest_neighbor(16, seed=1).in_degrees.min()) >= 3
    True
    """
    check_nodes(n)
    check_whole("neighbors", neighbors, low=1)
    if neighbors >= n > 1:
        raise GraphError(f"nearest_neighbor(n, neighbors) needs 1 <= neighbors < n; got n={n}, neighbors={neighbors}.")

    def draw(rng: np.random.Generator) -> tuple[IntArray, FloatArray]:
        points = rng.random((n, 2))
        if n == 1:
            return np.empty((0, 2), dtype=np.int64), points
        from scipy.spatial import KDTree

        _, nearest = KDTree(points).query(points, k=neighbors + 1)
        return distinct(both_ways(np.repeat(np.arange(n), neighbors), nearest[:, 1:].ravel())), points

    return _connected(n, f"nearest_neighbor({n}, neighbors={neighbors})", seed, draw, "more neighbors")


# ---- the authors' released graphs, where they differ from the text


def chordal_ring(n: int) -> Graph:
    """Directed ring with two shortcuts, n/4 -> 0 and 3n/4 -> n/2: the authors' "ring" (in its direction).

    In the authors' code node i receives from i+1. For n = 4 and 5 the shortcuts are ring edges.
    """
    check_nodes(n)
    node = np.arange(n)
    edges = np.stack([(node + 1) % n, node], axis=1)
    chords = np.array([(n // 4, 0), (3 * n // 4, n // 2)])
    return Graph(n, distinct(np.concatenate([edges, chords])), name=f"chordal_ring({n})")


def undirected_grid(n: int, *, rows: int | None = None) -> Graph:
    """Undirected rows x columns grid: the authors' "grid"; without ``rows``, a square."""
    height, width = _sides(n, rows, "undirected_grid")
    node = np.arange(n).reshape(height, width)
    low = np.concatenate([node[:, :-1].ravel(), node[:-1].ravel()])
    high = np.concatenate([node[:, 1:].ravel(), node[1:].ravel()])
    name, positions = f"undirected_grid({height}x{width})", lattice_positions(height, width)
    return Graph(n, both_ways(low, high), name=name, positions=positions)


# ---- more directed graphs


def torus(n: int, *, rows: int | None = None) -> Graph:
    """Directed torus: a grid with wrap-around, each node sends to its right and to its lower neighbor.

    Every in- and out-degree is 2 (less on a torus of one row or column); uniform weights are doubly stochastic.
    """
    height, width = _sides(n, rows, "torus")
    node = np.arange(n).reshape(height, width)
    right, below = np.roll(node, -1, axis=1), np.roll(node, -1, axis=0)
    sources, targets = np.tile(node.ravel(), 2), np.concatenate([right.ravel(), below.ravel()])
    name, positions = f"torus({height}x{width})", lattice_positions(height, width)
    return Graph(n, distinct(np.stack([sources, targets], axis=1)), name=name, positions=positions)


def de_bruijn(n: int, *, degree: int = 2) -> Graph:
    """Generalized de Bruijn digraph: node i sends to degree*i + r (mod n), r = 0 .. degree-1.

    Diameter at most ceil(log_degree n), the smallest known for this degree, for any n (Imase & Itoh 1981).
    """
    return _shift_register(n, degree, lambda i, r: degree * i + r, "de_bruijn")


def kautz(n: int, *, degree: int = 2) -> Graph:
    """Generalized Kautz digraph: node i sends to -degree*i - r (mod n), r = 1 .. degree.

    Diameter at most ceil(log_degree n), for any n, with fewer self-loops than de Bruijn (Imase & Itoh 1983).
    """
    return _shift_register(n, degree, lambda i, r: -degree * i - (r + 1), "kautz")


def random_digraph(n: int, *, probability: float = 1 / 3, seed: int = 0) -> Graph:
    """Random digraph: each ordered pair is an edge with the given probability; strongly connected."""
    name = _check_density("random_digraph", n, probability)

    def draw(rng: np.random.Generator) -> tuple[IntArray, None]:
        pairs = n * (n - 1)
        chosen = rng.choice(pairs, rng.binomial(pairs, probability), replace=False, shuffle=False)
        source, other = chosen // max(n - 1, 1), chosen % max(n - 1, 1)
        return np.stack([source, other + (other >= source)], axis=1), None

    return _connected(n, name, seed, draw, f"a probability above ln(n)/n = {log(max(n, 2)) / n:.3g}")


def random_k_out(n: int, *, k: int | None = None, seed: int = 0) -> Graph:
    """Random k-out digraph: each node sends to k others, drawn uniformly; strongly connected.

    Every out-degree is k; in-degrees vary, so that the Perron vectors are skewed. About n exp(-k) nodes of a draw have in-degree
    0, hence the default k = ceil(log2 n), for which few draws are rejected.

    >>> set(random_k_out(50, k=4).out_degrees.tolist())
    {4}
    """
    check_nodes(n)
    out = ceil(log2(n)) if k is None else check_whole("k", k)
    if not 0 <= out < n or (out == 0 and n > 1):
        raise GraphError(f"random_k_out(n, k) needs 1 <= k < n; got n={n}, k={k}.")

    def draw(rng: np.random.Generator) -> tuple[IntArray, None]:
        return np.stack([np.repeat(np.arange(n), out), distinct_others(n, out, rng).ravel()], axis=1), None

    return _connected(n, f"random_k_out({n}, k={out})", seed, draw, f"k above ln(n) = {log(n):.3g}")


def equitopo(n: int, *, degree: int | None = None, seed: int = 0) -> Graph:
    """Union of random circulants (D-EquiStatic): node i sends to i + s (mod n) for random shifts s.

    Uniform weights are doubly stochastic, and the mixing rate does not depend on n (Song et al. 2022). The default
    degree is ceil(log2 n), that of the exponential graph.
    """
    check_nodes(n)
    shifts = ceil(log2(n)) if degree is None else check_whole("degree", degree)
    if not 0 <= shifts < n or (shifts == 0 and n > 1):
        raise GraphError(f"equitopo(n, degree) needs 1 <= degree < n; got n={n}, degree={degree}.")

    def draw(rng: np.random.Generator) -> tuple[IntArray, None]:
        return circulant(n, 1 + rng.choice(n - 1, shifts, replace=False) if shifts else []), None

    return _connected(n, f"equitopo({n}, degree={shifts})", seed, draw, "a larger degree")


def one_peer_exponential(n: int) -> tuple[Graph, ...]:
    """One-peer exponential graphs, a sequence in time: at step t node i sends to i + 2^(t mod ceil(log2 n)) only.

    Every degree is 1; with uniform weights and n a power of two, one period averages exactly. A single graph of the
    sequence need not be connected: their union is the exponential graph.

    >>> [graph.targets(0).tolist() for graph in one_peer_exponential(8)]
    [[1], [2], [4]]
    """
    check_nodes(n)
    shifts = [2**k for k in range(ceil(log2(n)))] or [0]
    return tuple(_circulant(n, [shift], name=f"one_peer_exponential({n}) +{shift}") for shift in shifts)


# ---- more undirected graphs


def complete(n: int) -> Graph:
    """Complete graph: every node is linked with every other; uniform weights average exactly in one step."""
    check_edges(f"complete({n})", n * (check_nodes(n) - 1.0), "fewer nodes, or equitopo(n)")
    return _circulant(n, range(1, n), name=f"complete({n})")


def star(n: int) -> Graph:
    """Undirected star: node 0 is linked with all others. The diameter is 2, but node 0 has degree n-1."""
    leaves = np.arange(1, check_nodes(n))
    angles = 2 * pi * leaves / max(n - 1, 1)
    positions = np.concatenate([[[0.0, 0.0]], np.stack([np.cos(angles), np.sin(angles)], axis=1)])
    return Graph(n, both_ways(np.zeros_like(leaves), leaves), name=f"star({n})", positions=positions)


def path(n: int) -> Graph:
    """Undirected path 0 - 1 - ... - n-1: the slowest undirected graph."""
    node = np.arange(check_nodes(n))
    return Graph(
        n, both_ways(node[:-1], node[1:]), name=f"path({n})", positions=lattice_positions(1, n) if n <= 12 else None
    )


def hypercube(n: int) -> Graph:
    """Undirected hypercube on n = 2^k nodes: i and j are linked if their binary numbers differ in one digit."""
    check_nodes(n)
    if n & (n - 1):
        lower = 2 ** int(log2(n))
        raise GraphError(f"hypercube(n) needs a power of two; got n={n} (nearest: {lower}, {2 * lower}).")
    node = np.arange(n)
    pairs = [np.stack([node, node ^ (1 << k)], axis=1) for k in range(n.bit_length() - 1)]
    return Graph(n, np.concatenate([np.empty((0, 2), dtype=np.int64), *pairs]), name=f"hypercube({n})")


def tree(n: int, *, branching: int = 2) -> Graph:
    """Undirected B-ary tree with root 0: the parent of node i is (i-1) // branching (You & Pu's B-ary tree)."""
    check_nodes(n)
    check_whole("branching", branching, low=1)
    child = np.arange(1, n)
    edges = both_ways((child - 1) // branching, child)
    return Graph(n, edges, name=f"tree({n}, branching={branching})", positions=tree_positions(n, branching))


NAMES: dict[str, Callable[..., Graph | tuple[Graph, ...]]] = {
    function.__name__: function
    for function in (
        exponential, grid, ring, random, geometric, nearest_neighbor,  # the paper's six, in its order
        chordal_ring, undirected_grid,
        torus, de_bruijn, kautz, random_digraph, random_k_out, equitopo, one_peer_exponential,
        complete, star, path, hypercube, tree,
    )
}  # fmt: skip
PAPER = ("exponential", "grid", "ring", "random", "geometric", "nearest_neighbor")


# ---- shared by the above


def _circulant(n: int, shifts: Sequence[int] | range, *, name: str) -> Graph:
    return Graph(n, circulant(check_nodes(n), shifts), name=name)


def _shift_register(n: int, degree: int, target: Callable[[IntArray, IntArray], IntArray], family: str) -> Graph:
    check_nodes(n)
    check_whole("degree", degree, low=2)
    if degree >= max(n, 3):
        raise GraphError(f"{family}(n, degree) needs 2 <= degree < n; got n={n}, degree={degree}.")
    source, digit = np.repeat(np.arange(n), degree), np.tile(np.arange(degree), n)
    edges = distinct(np.stack([source, target(source, digit) % n], axis=1))
    return Graph(n, edges, name=f"{family}({n}, degree={degree})")


def _connected(
    n: int,
    name: str,
    seed: int,
    draw: Callable[[np.random.Generator], tuple[IntArray, FloatArray | None]],
    remedy: str,
) -> Graph:
    """Draw until the graph is strongly connected; draw k depends only on the seed and k."""
    name = f"{name.removesuffix(')')}, seed={seed})"
    check_whole(f"The seed of {name}", seed)
    draws = max(10, min(MAX_DRAWS, 1_000_000 // n))
    for attempt in range(draws):
        edges, positions = draw(np.random.default_rng([seed, attempt]))
        note = f"drawn {attempt + 1} times until strongly connected" if attempt else ""
        graph = Graph(n, edges, name=name, note=note, positions=positions)
        if graph.is_strongly_connected:
            return graph
    raise GraphError(f"{name}: none of {draws} draws was strongly connected. Choose {remedy}.")


def _sides(n: int, rows: int | None, family: str) -> tuple[int, int]:
    check_nodes(n)
    if rows is None:
        side = isqrt(n)
        if side * side != n:
            raise GraphError(
                f"{family}(n) needs a square number of nodes; got n={n} (nearest: {side**2}, {(side + 1) ** 2}). "
                f"For another shape say {family}(n, rows=...)."
            )
        return side, side
    if n % check_whole("rows", rows, low=1):
        raise GraphError(f"{family}(n, rows) needs a number of rows that divides n; got n={n}, rows={rows}.")
    return rows, n // rows


def _check_density(family: str, n: int, probability: float) -> str:
    """Check the arguments of a random graph, and return its name."""
    if not 0 < probability <= 1:
        raise GraphError(f"{family}(n, probability) needs a probability in (0, 1]; got {probability}.")
    name = f"{family}({n}, probability={probability:.4g})"
    check_edges(name, check_nodes(n) * (n - 1.0) * probability, "a smaller probability")
    return name


__dir__ = public_dir(__name__)

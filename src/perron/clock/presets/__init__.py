"""Machines by name: latencies and rates between regions and silos, from published figures.

The five underlays are networks of silos whose links have lengths; a message travels along the shortest path.
"""

from __future__ import annotations

import csv
from itertools import pairwise
from pathlib import Path

import numpy as np

from perron._registry import lookup, public_dir
from perron._typing import FloatArray
from perron.clock.files import read_machines
from perron.clock.machines import Machines
from perron.errors import PerronError

__all__ = ["describe", "load", "names", "paths"]
__dir__ = public_dir(__name__)

FOLDER = Path(__file__).parent
ABOUT = {
    "aws-10": "ten AWS regions, all pairs, measured delays and rates (Yuan et al. 2022, DT-FM)",
    "gaia": "eleven data centers around the world (Hsieh et al. 2017), all pairs, in km",
    "aws-na": "22 AWS locations in North America, all pairs, in km (Marfoq et al. 2020)",
    "geant": "Géant, 40 European research networks, 61 links, in km (Internet Topology Zoo, 2012)",
    "exodus": "Exodus, 79 routers in the USA, 147 links, in km (Rocketfuel)",
    "ebone": "Ebone, 87 routers in Europe, 161 links, in km (Rocketfuel)",
}
CORE = 1.25e8  # bytes per second of every link of an underlay, 1 Gbit/s
ACCESS = 1.25e9  # bytes per second of a node, 10 Gbit/s, where the figures say nothing


def names() -> list[str]:
    """Return the names of all presets."""
    return list(ABOUT)


def describe() -> dict[str, str]:
    """Return a line about each preset, by name."""
    return dict(ABOUT)


def load(name: str, *, route: bool = True, access: float | None = None, per_hop: bool = False) -> Machines:
    """Return the machines of a preset.

    Args:
        name: one of `names`.
        route: whether all pairs have a link: along the shortest path, with the latency of its length (0.0085 ms/km + 4 ms for the
            whole path) and the rate of 1 Gbit/s of each of its links. If not, the links of the underlay only, each with a latency
            of its own. ``aws-10`` has all pairs anyway.
        access: bytes per second that a node sends and receives; by default 10 Gbit/s, for ``aws-10`` no limit.
        per_hop: whether a path of k links has a k-th of their rate, as Marfoq et al. 2020 assume; if not, the rate of one.

    Example:
        >>> load("gaia")
        <Machines: gaia, 11 nodes, 110 links>
    """
    lookup(name, ABOUT, "preset of links")
    machines = read_machines(FOLDER / f"{name}.csv").changed(name=name)
    if name != "aws-10":
        limit = ACCESS if access is None else access
        machines = machines.changed(up=limit, down=limit)
        if not route:
            return machines.changed(name=f"{name}, underlay")
        length, hops = paths(name)
        rate = CORE / np.maximum(hops, 1) if per_hop else np.full_like(hops, CORE)
        return machines.changed(latency=8.5e-6 * length + 0.004, rate=rate)
    return machines if access is None else machines.changed(up=access, down=access)


def paths(name: str) -> tuple[FloatArray, FloatArray]:
    """Return the length in km and the number of links of the shortest path between any two nodes of an underlay."""
    import networkx as nx

    lookup(name, ABOUT, "preset of links")
    lines = (FOLDER / f"{name}.csv").read_text(encoding="utf-8").splitlines()
    rows = list(csv.reader(line for line in lines if not line.startswith("#")))
    if "distance_km" not in rows[0]:
        raise PerronError(f"{name} has no lengths of links, so no paths; all of its pairs have a link.")
    split = next(place for place, row in enumerate(rows) if row[0] == "node")
    order = {label: node for node, (label,) in enumerate(rows[split + 1 :])}
    graph: nx.Graph[int] = nx.Graph()
    graph.add_nodes_from(order.values())
    graph.add_weighted_edges_from((order[a], order[b], float(km)) for a, b, km, _ in rows[1:split])
    length, hops = np.zeros((len(order), len(order))), np.zeros((len(order), len(order)))
    for source, (_, found) in nx.all_pairs_dijkstra(graph):
        for target, path in found.items():  # of two equally short paths the one found last counts, in both directions
            km = sum(graph[a][b]["weight"] for a, b in pairwise(path))
            length[source, target] = length[target, source] = km
            hops[source, target] = hops[target, source] = len(path) - 1
    return length, hops

"""How building, checking and describing a network grows with its size, up to 100,000 nodes.

Prints a table of seconds per stage, the exponent of the growth in the number of edges, and the peak memory:

    .venv/bin/python benchmarks/large_graphs.py [largest n, default 100000]
"""

import resource
import sys
import time
from collections.abc import Callable

import numpy as np
from rich.console import Console
from rich.table import Table

from perron import Mixing
from perron.networks import spectral, topologies

STAGES = ("graph", "mixing", "perron A", "perron B", "rho_2", "beta", "s (bound)")


def seconds(action: Callable[[], object]) -> tuple[float, object]:
    start = time.perf_counter()
    result = action()
    return time.perf_counter() - start, result


def measure(family: str, nodes: int) -> tuple[list[float], Mixing, float]:
    times = []

    def timed(action: Callable[[], object]) -> object:
        spent, result = seconds(action)
        times.append(spent)
        return result

    graph = timed(lambda: topologies.NAMES[family](nodes))
    mixing = timed(lambda: Mixing.random_integer(graph, seed=0))
    a = timed(lambda: spectral.perron(mixing.pull))
    b = timed(lambda: spectral.perron(mixing.push))
    timed(lambda: spectral.decay_rate(mixing.pull))
    timed(lambda: spectral.contraction(mixing.pull))
    timed(lambda: spectral.mixing_sum(mixing.pull))
    return times, mixing, nodes * float(a @ b)


def main(largest: int) -> None:
    console = Console(width=120)
    for family in ("exponential", "random_k_out", "ring"):
        table = Table("nodes", "edges", *STAGES, "total", "c", title=f"{family}, weights 1..9: seconds")
        edges, totals = [], []
        for nodes in [n for n in (1000, 3000, 10_000, 30_000, 100_000) if n <= largest]:
            times, mixing, c = measure(family, nodes)
            edges.append(len(mixing.pull_graph.edges))
            totals.append(sum(times))
            cells = [f"{spent:.3f}" for spent in [*times, totals[-1]]]
            table.add_row(f"{nodes:,}", f"{edges[-1]:,}", *cells, f"{c:.4f}")
        console.print(table)
        if len(totals) > 1:
            exponent = np.polyfit(np.log(edges), np.log(totals), 1)[0]
            console.print(f"total seconds grow as edges^{exponent:.2f}")
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        console.print(f"peak memory of this process so far: {peak:.2f} GiB\n")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000)

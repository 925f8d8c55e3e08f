"""How building, checking, describing and simulating a network grows with its size, up to a million nodes.

    .venv/bin/python benchmarks/large_graphs.py [largest n, default 100000]      metrics of networks
    .venv/bin/python benchmarks/large_graphs.py --steps [largest n, default 1000000]

The first prints a table of seconds per stage, the exponent of the growth in the number of edges, and the peak memory. The second
simulates Push-Pull with 10 coordinates a node on the exponential graph, each size in a process of its own: seconds of processor
time of one thread for the graph, the mixing matrices with all their checks, and a step; the peak memory.
"""

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import perron
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


class Distances(perron.Problem):
    """f_i(x) = |x - t_i|^2 / 2, whose gradient costs less than anything else."""

    per_node = ("targets",)
    dim = 10

    def __init__(self, nodes: int, dtype: torch.dtype) -> None:
        self.nodes, self.dtype = nodes, dtype
        self.targets = torch.randn(nodes, self.dim, dtype=dtype, generator=torch.Generator().manual_seed(0))

    def local_grads(self, x: Tensor) -> Tensor:
        return x - self.targets

    def loss(self, x: Tensor) -> Tensor:
        return (x.unsqueeze(-2) - self.targets).square().sum(-1).mean(-1) / 2


def simulated(nodes: int, precision: str) -> dict[str, float]:
    """Build, check and simulate the exponential graph."""
    found: dict[str, float] = {}

    def timed(name: str, action: Callable[[], Any]) -> Any:
        start = time.process_time()
        result = action()
        found[name] = time.process_time() - start
        return result

    torch.set_num_threads(1)

    graph = timed("graph", lambda: topologies.exponential(nodes))
    mixing = timed("mixing", lambda: Mixing.random_integer(graph, seed=0))
    problem = Distances(nodes, getattr(torch, precision))
    simulation = perron.Simulation(problem=problem, algorithm=perron.PushPull(), mixing=mixing, lr=0.01)
    steps = max(10, 10**6 // nodes)
    states = simulation.iterates(steps + 5)
    for _ in range(5):  # the first steps need memory
        next(states)
    timed("step", lambda: [now.step for now in states])
    found |= {"step": found["step"] / steps, "edges": mixing.link_count("pull", 0)}
    return found | {"memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20}


def growth(largest: int) -> Table:
    table = Table("nodes", "edges", "precision", "graph", "mixing and checks", "step", "steps/s", "peak GiB",
                  title="Push-Pull on the exponential graph, 10 coordinates: seconds of processor time")  # fmt: skip
    for nodes in [n for n in (10**3, 10**4, 10**5, 10**6) if n <= largest]:
        for precision in ("float64", "float32"):
            command = [sys.executable, __file__, "--row", str(nodes), precision]
            row = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            cells = [f"{row['graph']:.3f}", f"{row['mixing']:.3f}", f"{row['step']:.5f}", f"{1 / row['step']:.1f}"]
            table.add_row(f"{nodes:,}", f"{row['edges']:,.0f}", precision, *cells, f"{row['memory']:.2f}")
    return table


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
    if "--row" in sys.argv:
        print(json.dumps(simulated(int(sys.argv[2]), sys.argv[3])))
    elif "--steps" in sys.argv:
        Console(width=120).print(growth(int(sys.argv[2]) if len(sys.argv) > 2 else 10**6))
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000)

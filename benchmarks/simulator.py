"""What the simulator costs: against hand-written loops on a small network, and per edge up to 100,000 nodes.

Prints ratios with the bar beside each:

    .venv/bin/python benchmarks/simulator.py [largest n, default 100000] [threads of torch, default 1]

The contenders take turns in short rounds, and a ratio is the median of the rounds' ratios, so that a busy machine slows
both alike. With one thread the small loops are timed by the thread's own clock: what others run matters little. With
more, which is torch's own default, threads wait for each other, the more so on a busy machine.
"""

import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from perron import Mixing, PushPull
from perron.algorithms.base import advance
from perron.networks import topologies
from perron.problems import Quadratic
from perron.problems.base import Problem
from perron.simulation.node import SimulatedNode
from perron.simulation.simulator import Simulation

NODES, DIM, TRIALS, LR = 16, 10, 20, 0.05
SIZES = (1000, 3000, 10_000, 30_000, 100_000)

Loop = Iterator[object]  # each item is the models after one more step, as an array or a tensor


class Fixed(Problem):
    """A problem whose gradient costs nothing."""

    def __init__(self, grad: Tensor) -> None:
        self.fixed = grad
        self.nodes, self.dim = grad.shape[-2:]

    def local_grads(self, x: Tensor) -> Tensor:  # noqa: ARG002
        return self.fixed

    def loss(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def grad(self, x: Tensor, draw: int, random: object) -> Tensor:  # noqa: ARG002
        return self.fixed


# ---- the loops


def simulated(problem: Problem, mixing: Mixing, trials: int = 1) -> Loop:
    """`Simulation.iterates`, the whole loop."""
    simulation = Simulation(problem=problem, algorithm=PushPull(), mixing=mixing, lr=LR, trials=trials)
    snapshots = simulation.iterates(sys.maxsize)
    next(snapshots)
    for now in snapshots:
        yield now.state.x


def advanced(grad: Tensor, mixing: Mixing) -> Loop:
    """`advance` alone: the generator and its handles."""
    algorithm, node = PushPull(), SimulatedNode(mixing, trials=TRIALS)
    state = algorithm.init(torch.zeros_like(grad), node)
    while True:
        state = advance(algorithm, state, node, LR, lambda _: grad)
        yield state.x


def products(grad: Tensor, mixing: Mixing) -> Loop:
    """The two matrix products and nothing else."""
    a, b = (torch.tensor(matrix).expand(TRIALS, NODES, NODES) for matrix in (mixing.pull, mixing.push))
    while True:
        torch.bmm(a, grad)
        yield torch.bmm(b, grad)


def torch_fixed(grad: Tensor, mixing: Mixing) -> Loop:
    """Push-Pull written by hand, for a fixed gradient."""
    a, b = (torch.tensor(matrix).expand(TRIALS, NODES, NODES) for matrix in (mixing.pull, mixing.push))
    x, y, previous = torch.zeros_like(grad), torch.zeros_like(grad), torch.zeros_like(grad)
    while True:
        y = torch.bmm(b, y) + grad - previous
        x = torch.bmm(a, x) - LR * y
        previous = grad
        yield x


def torch_quadratic(problem: Quadratic, mixing: Mixing) -> Loop:
    """Push-Pull written by hand in torch, one trial."""
    a, b, h, offsets = torch.tensor(mixing.pull), torch.tensor(mixing.push), problem.hessians, problem.offsets
    x, y, previous = torch.zeros_like(offsets), torch.zeros_like(offsets), torch.zeros_like(offsets)
    while True:
        grad = (h * x if problem.diagonal else (h @ x.unsqueeze(-1)).squeeze(-1)) - offsets
        y = b @ y + grad - previous
        x = a @ x - LR * y
        previous = grad
        yield x


def numpy_quadratic(problem: Quadratic, mixing: Mixing) -> Loop:
    """Push-Pull written by hand in NumPy (and SciPy, where the network is sparse), one trial."""
    a, b, h, offsets = mixing.pull, mixing.push, problem.hessians.numpy(), problem.offsets.numpy()
    x, y, previous = np.zeros_like(offsets), np.zeros_like(offsets), np.zeros_like(offsets)
    while True:
        grad = (h * x if problem.diagonal else (h @ x[:, :, None])[:, :, 0]) - offsets
        y = b @ y + grad - previous
        x = a @ x - LR * y
        previous = grad
        yield x


# ---- checking and timing


def agree(loops: Sequence[Loop], steps: int) -> float:
    """How far apart the loops are after some steps, relative to the largest entry; an error if beyond rounding."""
    for _ in range(steps):
        points = [np.asarray(next(loop)) for loop in loops]
    apart = max(float(np.abs(point - points[0]).max() / np.abs(points[0]).max()) for point in points)
    if not apart < 1e-12:
        raise AssertionError(f"The loops are {apart:.1e} apart after {steps} steps: there is nothing to time.")
    return apart


def run(loop: Loop, steps: int, clock: Callable[[], float]) -> float:
    start = clock()
    for _ in range(steps):
        next(loop)
    return (clock() - start) / steps


def interleaved(
    loops: dict[str, Loop], *, steps: int = 50, rounds: int = 200, clock: Callable[[], float] | None = None
) -> dict[str, np.ndarray]:
    """Seconds per step in each round."""
    clock = clock or (time.thread_time if torch.get_num_threads() == 1 else time.perf_counter)
    for loop in loops.values():
        run(loop, steps, clock)
    spent: dict[str, list[float]] = {name: [] for name in loops}
    for turn in range(rounds):
        for name in list(loops)[:: 1 if turn % 2 else -1]:
            spent[name].append(run(loops[name], steps, clock))
    return {name: np.array(times) for name, times in spent.items()}


# ---- the three parts


def held(good: bool) -> str:
    return "[green]held[/green]" if good else "[red]MISSED[/red]"


def overhead(mixing: Mixing) -> Table:
    grad = torch.from_numpy(np.random.default_rng(0).standard_normal((TRIALS, NODES, DIM)))

    def loops() -> dict[str, Loop]:
        return {
            "two bmm alone": products(grad, mixing),
            "by hand in torch": torch_fixed(grad, mixing),
            "advance": advanced(grad, mixing),
            "Simulation.iterates": simulated(Fixed(grad), mixing, TRIALS),
        }

    apart = agree(list(loops().values())[1:], 200)
    spent = interleaved(loops())
    table = Table(
        "loop", "us / step", "ratio to by hand", "bar", "", "us over by hand", "bar", "",
        title=f"Push-Pull, {TRIALS} trials, n={NODES}, d={DIM}, gradient for free (loops agree to {apart:.0e})",
    )  # fmt: skip
    hand = spent["by hand in torch"]
    for name, times in spent.items():
        row = [name, f"{statistics.median(times) * 1e6:.1f}", f"{(ratio := statistics.median(times / hand)):.2f}"]
        if name in ("advance", "Simulation.iterates"):
            extra = statistics.median(times - hand) * 1e6
            row += ["<= 2", held(ratio <= 2), f"{extra:.1f}", "< 15", held(extra < 15)]
        table.add_row(*row)
    return table


def against_numpy(mixing: Mixing) -> Table:
    table = Table(
        "hessians", "loop", "us / step and trial", "ratio to NumPy", "bar", "",
        title=f"Push-Pull on a Quadratic, n={NODES}, d={DIM}, NumPy one trial at a time",
    )  # fmt: skip
    apart = []
    for diagonal in (False, True):
        problem = Quadratic.random(NODES, DIM, diagonal=diagonal)
        contenders = {
            "NumPy, 1 trial": (lambda p: numpy_quadratic(p, mixing), 1, None),
            "torch by hand, 1 trial": (lambda p: torch_quadratic(p, mixing), 1, None),
            "perron, 1 trial": (lambda p: simulated(p, mixing), 1, 8),
            f"perron, {TRIALS} trials": (lambda p: simulated(p, mixing, TRIALS), TRIALS, 1 / 1.5),
        }
        apart.append(agree([make(problem) for make, _, _ in contenders.values()], 200))
        spent = interleaved({name: make(problem) for name, (make, _, _) in contenders.items()})
        table.add_section()
        for name, (_, trials, bar) in contenders.items():
            times = spent[name] / trials
            ratio = statistics.median(times / spent["NumPy, 1 trial"])
            cells = [f"<= {bar:.2g}", held(ratio <= bar)] if bar else []
            kind = "diagonal" if diagonal else "full"
            table.add_row(kind, name, f"{statistics.median(times) * 1e6:.1f}", f"{ratio:.2f}", *cells)
    table.caption = f"loops agree to {max(apart):.0e}"
    return table


def large(family: str, largest: int) -> tuple[Table, str]:
    edges, apart, loops = {}, {}, {}
    table = Table(
        "nodes", "edges", "ms / step", "steps / s", "bar", "", "ns / (edge d)", "apart",
        title=f"Push-Pull on a diagonal Quadratic, {family}, d={DIM}, one trial",
    )  # fmt: skip
    for nodes in sorted((n for n in SIZES if n <= largest), reverse=True):  # what does not fit fails at once
        mixing = Mixing.random_integer(topologies.NAMES[family](nodes), seed=0)
        problem = Quadratic.random(nodes, DIM, diagonal=True)
        edges[nodes] = len(mixing.pull_graph.edges)
        apart[nodes] = agree([simulated(problem, mixing), numpy_quadratic(problem, mixing)], 5)
        loops[str(nodes)] = simulated(problem, mixing)
    spent = interleaved(loops, steps=3, rounds=12, clock=time.perf_counter)
    typical = {nodes: statistics.median(spent[str(nodes)]) for nodes in sorted(edges)}
    for nodes, seconds in typical.items():
        row = [f"{nodes:,}", f"{edges[nodes]:,}", f"{seconds * 1e3:.2f}", f"{1 / seconds:.1f}"]
        row += [">= 5", held(1 / seconds >= 5)] if nodes == SIZES[-1] else ["", ""]
        table.add_row(*row, f"{seconds * 1e9 / edges[nodes] / DIM:.2f}", f"{apart[nodes]:.0e}")
    verdict = ""
    if len(typical) > 1:
        logs = np.log([edges[nodes] for nodes in typical])
        rounds = np.log(np.stack([spent[str(nodes)] for nodes in typical]))
        exponent = statistics.median(np.polyfit(logs, rounds, 1)[0])
        verdict = f"time per step grows as edges^{exponent:.2f}; bar: 0.8 to 1.2, {held(0.8 <= exponent <= 1.2)}\n"
    return table, verdict


def main(largest: int, threads: int) -> None:
    torch.set_num_threads(threads)
    console = Console(width=120)
    console.print(f"torch with {threads} thread{'s' * (threads > 1)}\n")
    small = Mixing.random_integer(topologies.exponential(NODES), seed=0)
    with torch.no_grad():
        console.print(overhead(small), "", against_numpy(small), "")
        for family in ("exponential", "random_k_out"):
            table, verdict = large(family, largest)
            console.print(table)
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
            console.print(f"{verdict}peak memory of this process so far: {peak:.2f} GiB; bar: < 2, {held(peak < 2)}\n")


if __name__ == "__main__":
    main(
        int(sys.argv[1]) if len(sys.argv) > 1 else SIZES[-1],
        int(sys.argv[2]) if len(sys.argv) > 2 else 1,
    )

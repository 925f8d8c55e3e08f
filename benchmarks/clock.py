"""The clock against real processes: seconds per step, predicted and measured. Nothing is fitted.

    .venv/bin/python benchmarks/clock.py links      # 5 nodes at 20 Mbit/s: slow uplink, link, machine; stragglers
    .venv/bin/python benchmarks/clock.py latency    # 5 nodes with 34 to 150 ms between them, receives 0, 1 and 2 steps ahead
    .venv/bin/python benchmarks/clock.py target     # seconds to a target on an asymmetric network, five candidates
    .venv/bin/python benchmarks/clock.py engine     # the rows of docs/engine/index.md, predicted
    .venv/bin/python benchmarks/clock.py page       # docs/engine/clock.md from the figures of all four
    ... --out FOLDER                                # for figures (JSON) and the page; else docs/engine

Nodes are processes with `perron.Decentralized`, each in a network namespace; the kernel shapes their uplinks, TCP is Reno, and
compute is a sleep. Predictions use the rates that were set (times 1448/1514, the share of payload in a full Ethernet frame), the
sleeps, and the sizes of messages. They need Linux, root, `ip` and `tc`.
"""

import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from links import NEXT, SLOW_NODE, Namespaces, avoiding, leaf, run_workers, shaped, table, unavailable, use_reno
from rich.console import Console
from rich.table import Table
from shaped import Latencies

from perron import ALGORITHMS, Clock, Machines, Mixing, Simulation, topologies
from perron._storage.atomic import write_bytes
from perron.clock.compute import Compute
from perron.design import fastest_graph
from perron.distributed.optimizer import Decentralized
from perron.problems import Quadratic as Problem

NODES, PARAMETERS, FAST, SLOWER = 5, 50_000, 20, 4  # Mbit/s
PAYLOAD = 1448 / 1514
MBIT = 1e6 / 8
BURST = "6kb"  # little: what passes at once after a pause is not part of a rate
WARM = 4  # steps before the first that counts
WINDOW = 6
LATENCY = np.array(
    [[0, 76, 34, 150, 120], [76, 0, 45, 90, 110], [34, 45, 0, 65, 100], [150, 90, 65, 0, 60], [120, 110, 100, 60, 0]]
)


@dataclass(frozen=True)
class Cell:
    """One setting, measured and predicted.

    Attributes:
        links: the setting: equal, slow uplink, slow link, slow machine, stragglers.
        name: of the algorithm with its network.
        algorithm: a name from `perron.ALGORITHMS`; ``centralized`` is an all-reduce.
        graph: see `mixing`.
        compute: seconds of a gradient, as `perron.clock.Compute` takes them.
        slow: see `links.shaped`.
        ahead: receives posted ahead.
        curved: whether gradients are those of a quadratic, whose models are kept; otherwise they are given.
        edges: of the graph ``own``: those of models and those of trackers.
    """

    links: str
    name: str
    algorithm: str = "push_pull"
    graph: str = "ring"
    compute: Any = 0.0
    slow: tuple[int, int | None] | None = None
    ahead: int = 0
    steps: int = 14
    parameters: int = PARAMETERS
    shape: bool = True
    curved: bool = False
    lr: float = 1e-6
    edges: list[list[list[int]]] = field(default_factory=list)


def mixing(cell: Cell, nodes: int) -> Mixing:
    """The network of a cell."""
    if cell.graph == "own":
        pull, push = (topologies.Graph(nodes, edges) for edges in cell.edges)
        return Mixing.metropolis(pull) if cell.algorithm == "exact_diffusion" else Mixing.uniform(pull, push)
    made: dict[str, Callable[[], Mixing]] = {
        "ring": lambda: Mixing.uniform(topologies.ring(nodes)),
        "exponential": lambda: Mixing.uniform(topologies.exponential(nodes)),
        "one-peer": lambda: Mixing.uniform(topologies.one_peer_exponential(nodes)),
        "both ways": lambda: Mixing.metropolis(topologies.ring(nodes).symmetric()),
        "around": lambda: avoiding(nodes),
        "leaf": lambda: leaf(nodes),
    }
    return made[cell.graph]()


# ---- a node


class Quadratic:
    """f_i(x) = 1/2 sum_k h_ik (x_k - b_ik)^2 with a few different coordinates, repeated up to the length of the model."""

    KINDS = 32

    def __init__(self, nodes: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        base = np.geomspace(0.02, 1, self.KINDS)
        self.curvature = base * rng.uniform(0.7, 1.3, (nodes, self.KINDS))
        self.optimum = rng.standard_normal((nodes, self.KINDS))

    def grad(self, node: int, x: torch.Tensor) -> torch.Tensor:
        many = -(-len(x) // self.KINDS)
        h, b = (
            torch.tensor(part[node], dtype=x.dtype).repeat(many)[: len(x)] for part in (self.curvature, self.optimum)
        )
        return h * (x - b)

    def gradient_norm_sq(self, x: np.ndarray) -> np.ndarray:
        """|grad f|^2 at models (..., kinds)."""
        return (((x[..., None, :] - self.optimum) * self.curvature).mean(-2) ** 2).sum(-1)


def work(folder: Path, rank: int, nodes: int) -> None:
    """Run all cells; write when each step ended."""
    torch.set_num_threads(1)
    cells = [Cell(**cell) for cell in json.loads((folder / "cells.json").read_text())]
    limit = timedelta(seconds=120)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=nodes, timeout=limit)
    found = []
    for number, cell in enumerate(cells):
        if cell.shape:
            shaped(rank, cell.slow, (FAST, SLOWER), burst=BURST)
        if rank == 0:
            print(f"{number + 1} of {len(cells)}: {cell.links}, {cell.name}", file=sys.stderr, flush=True)
        found.append(_run(cell, rank, nodes))
        time.sleep(0.5)  # for the queues of the kernel to empty
    (folder / f"{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def _run(cell: Cell, rank: int, nodes: int) -> dict[str, Any]:
    x = torch.nn.Parameter(torch.zeros(cell.parameters))
    given, problem = torch.randn(cell.parameters) * 1e-3, Quadratic(nodes)
    sleeps = _sleeps(cell, nodes)[:, rank]
    if cell.algorithm == "centralized":
        total = torch.empty_like(given)

        def step() -> None:
            total.copy_(x.grad)
            dist.all_reduce(total)
            with torch.no_grad():
                x.sub_(total, alpha=cell.lr / nodes)

        optimizer = None
    else:
        optimizer = Decentralized(
            [x], ALGORITHMS[cell.algorithm], mixing(cell, nodes), lr=cell.lr, timeout=120, group=dist.new_group(),
            receive_ahead=cell.ahead,
        )  # fmt: skip
        step = optimizer.step
    ends, models = [], []
    dist.barrier()
    start = time.perf_counter()
    for pause in sleeps.tolist():
        time.sleep(pause)
        x.grad = problem.grad(rank, x.detach()) if cell.curved else given.clone()
        step()
        ends.append(time.perf_counter())
        if cell.curved:
            models.append(x.detach()[: Quadratic.KINDS].double().tolist())
    if optimizer is not None:
        optimizer.close()
    dist.barrier()
    return {"start": start, "ends": ends, "models": models}


def _sleeps(cell: Cell, nodes: int) -> np.ndarray:
    """Seconds of each step and node: those that the clock draws."""
    compute = Compute(cell.compute)
    if not compute.random:
        return np.tile(compute.means(nodes), (cell.steps, 1))
    draw = compute.sampler(nodes, seed=0, trials=[0])
    return np.concatenate([draw(step) for step in range(cell.steps)])


# ---- the parent


def measured(cells: Sequence[Cell], spaces: Namespaces | Latencies, nodes: int = NODES) -> list[list[dict[str, Any]]]:
    """What every node of every cell wrote."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "cells.json").write_text(json.dumps([asdict(cell) for cell in cells]))
        run_workers(__file__, [name], nodes, spaces)
        files = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(nodes)]
    return [[file[place] for file in files] for place in range(len(cells))]


def per_step(ends: Sequence[float], cell: Cell) -> float:
    """Seconds per step from the times at which the last node ended its steps.

    With random compute the mean; otherwise the median of the means over WINDOW steps, since steps may differ in turns of two or
    three, and a busy machine may delay one.
    """
    if Compute(cell.compute).random:
        return float(ends[-1] - ends[WARM]) / (len(ends) - 1 - WARM)
    late = np.array(ends[WARM:])
    window = min(WINDOW, len(late) - 1)
    return float(np.median(late[window:] - late[:-window])) / window


def machines_of(cell: Cell, nodes: int, fast: float = FAST, slower: float = SLOWER) -> Machines:
    """The links as they were set."""
    up = np.full(nodes, fast * MBIT * PAYLOAD)
    rate = np.full((nodes, nodes), np.inf)
    if cell.slow is not None and cell.slow[1] is None:
        up[cell.slow[0]] = slower * MBIT * PAYLOAD
    elif cell.slow is not None:
        rate[cell.slow[1], cell.slow[0]] = slower * MBIT * PAYLOAD
    return Machines(rate=rate, up=up)


def timer_of(cell: Cell, machines: Machines, nodes: int, number: float = 4.0) -> Any:
    clock = Clock(machines, compute=cell.compute, ahead=cell.ahead)
    return clock.start(ALGORITHMS[cell.algorithm], mixing(cell, nodes), dim=cell.parameters, number=number)


def predicted_step(cell: Cell, machines: Machines, nodes: int, number: float = 4.0) -> float:
    """Seconds per step by the clock, over the same steps."""
    timer, ends = timer_of(cell, machines, nodes, number), []
    for step in range(cell.steps):
        timer.advance(step)
        ends.append(float(timer.seconds[0]))
    return per_step(ends, cell)


def compared(
    cells: Sequence[Cell], found: list[list[dict[str, Any]]], machines: Callable[[Cell], Machines]
) -> list[dict[str, Any]]:
    rows = []
    for cell, files in zip(cells, found, strict=True):
        real = per_step(np.array([one["ends"] for one in files]).max(0).tolist(), cell)
        model = predicted_step(cell, machines(cell), NODES)
        rows.append({"links": cell.links, "name": cell.name, "measured": real, "predicted": model})
    return rows


def links() -> dict[str, Any]:
    """Equal links, a slow uplink, a slow link, a slow machine, stragglers."""
    kinds = [
        ("ring cta", "push_pull", "ring"), ("ring pu", "push_pull_pu", "ring"), ("ring atc", "push_pull_atc", "ring"),
        ("exponential cta", "push_pull", "exponential"), ("exponential atc", "push_pull_atc", "exponential"),
        ("one-peer cta", "push_pull", "one-peer"), ("D-SGD, both ways", "dsgd", "both ways"),
        ("all-reduce", "centralized", "ring"),
    ]  # fmt: skip
    few = [kinds[0], kinds[2], kinds[3], kinds[7]]
    slow_machine = [0.1] * NODES
    slow_machine[SLOW_NODE] = 0.6
    cells = [Cell("equal, 0.25 s", *kind, compute=0.25) for kind in kinds]
    cells += [Cell("equal, no compute", *kind) for kind in few]
    cells += [Cell("slow uplink", *kind, compute=0.25, slow=(SLOW_NODE, None), steps=10) for kind in few]
    around = ("ring around it", "push_pull", "around")
    cells += [Cell("slow link", *kind, compute=0.25, slow=(SLOW_NODE, NEXT), steps=10) for kind in [*few, around]]
    cells += [Cell("slow machine", *kind, compute=slow_machine) for kind in few]
    cells += [Cell("stragglers", *kind, compute="stragglers(0.1, 0.2, 0.5)", steps=34) for kind in few]
    with Namespaces(NODES) as spaces:
        use_reno(spaces)
        found = measured(cells, spaces)
    return {"rows": compared(cells, found, lambda cell: machines_of(cell, NODES))}


def latency() -> dict[str, Any]:
    """Latencies of 34 to 150 ms, small messages."""
    kinds = [
        ("ring cta", "push_pull", "ring"), ("ring pu", "push_pull_pu", "ring"), ("ring atc", "push_pull_atc", "ring"),
        ("exponential cta", "push_pull", "exponential"), ("D-SGD, both ways", "dsgd", "both ways"),
    ]  # fmt: skip
    options: dict[str, Any] = {"compute": 0.1, "parameters": 1000, "shape": False, "steps": 18}
    cells = [Cell(f"{ahead} ahead", *kind, ahead=ahead, **options) for ahead in (0, 1, 2) for kind in kinds]
    cells.append(Cell("-", "all-reduce", "centralized", **options))
    with Latencies(NODES, latency_ms=LATENCY.tolist()) as spaces:
        found = measured(cells, spaces)
    return {"rows": compared(cells, found, lambda _: Machines(latency=LATENCY / 1e3))}


def target() -> dict[str, Any]:
    """Seconds to |grad f|^2 = 1e-4 of its start, where one direction of each pair is slow; also on the graph that is designed."""
    order = [0, 2, 4, 1, 3]
    rate = np.full((NODES, NODES), 2.0)  # Mbit/s
    for place in range(NODES):
        for ahead in (1, 2):
            rate[order[(place + ahead) % NODES], order[place]] = 20.0
    machines = Machines(latency=0.005, rate=rate * MBIT * 1448 / 1500)  # no Ethernet frame here: packets of 1500 bytes
    clock = Clock(machines, compute=0.05, size=4 * 20_000)
    problem = Quadratic(NODES)
    found = {
        kind: fastest_graph(clock, kind=kind, algorithms=names, tries=60, condition=50, target=1e-4, weights=False).best
        for kind, names in (("directed", None), ("undirected", ["exact_diffusion"]))
    }
    options: dict[str, Any] = {
        "compute": 0.05,
        "parameters": 20_000,
        "shape": False,
        "curved": True,
        "ahead": clock.ahead,
    }
    cells = [
        Cell("asymmetric", f"{ALGORITHMS[one.algorithm].about.title}, designed {kind}", one.algorithm, "own", **options,
             edges=[graph.edges.tolist() for graph in (one.mixing.pull_graph, one.mixing.push_graph)])
        for kind, one in found.items()
    ]  # fmt: skip
    cells += [
        Cell("asymmetric", "Push-Pull pu, exponential", "push_pull_pu", "exponential", **options),
        Cell("asymmetric", "exact diffusion, ring both ways", "exact_diffusion", "both ways", **options),
        Cell("asymmetric", "all-reduce", "centralized", "ring", **options),
    ]
    level = 1e-4 * float(problem.gradient_norm_sq(np.zeros(Quadratic.KINDS)))
    predictions = [_best_rate(cell, machines, problem, level) for cell in cells]
    cells = [replace(cell, lr=lr, steps=steps + 3) for cell, (_, steps, lr) in zip(cells, predictions, strict=True)]
    with Latencies(NODES, latency_ms=5, rate_mbit=rate.tolist()) as spaces:
        files = measured(cells, spaces)
    rows = []
    for cell, (seconds, steps, lr), nodes in zip(cells, predictions, files, strict=True):
        models = np.array([one["models"] for one in nodes]).mean(0)
        ends = np.array([one["ends"] for one in nodes]).max(0) - min(one["start"] for one in nodes)
        reached = int(np.flatnonzero(problem.gradient_norm_sq(models) <= level)[0])
        rows.append({"links": f"lr {lr:.2f}, {steps} steps", "name": cell.name, "measured": float(ends[reached]),
                     "predicted": seconds, "steps": reached + 1, "predicted steps": steps})  # fmt: skip
    return {"rows": rows}


def _best_rate(cell: Cell, machines: Machines, problem: Quadratic, level: float) -> tuple[float, int, float]:
    """Seconds, steps and lr of the simulated run that reaches the level first, over a grid of 16 learning rates."""
    runs = [(*_simulated(cell, machines, problem, level, lr), lr) for lr in np.geomspace(0.1, 2, 16).tolist()]
    return min(runs)


def _simulated(cell: Cell, machines: Machines, problem: Quadratic, level: float, lr: float) -> tuple[float, int]:
    made = Problem(torch.diag_embed(torch.tensor(problem.curvature)), torch.tensor(problem.optimum))
    run = Simulation(problem=made, algorithm=ALGORITHMS[cell.algorithm], mixing=mixing(cell, NODES), lr=lr)
    timer = timer_of(cell, machines, NODES)
    for now in run.iterates(1000):
        if now.step:
            timer.advance(now.step - 1)
        if float(problem.gradient_norm_sq(now.state.x[0].mean(0).numpy())) <= level:
            return float(timer.seconds[0]), now.step
    return float("inf"), -1


def engine() -> dict[str, Any]:
    """The rows of docs/engine/index.md (eight nodes, 100 Mbit/s, slow 20, 5e5 parameters; measured with BBR), predicted."""
    figures = json.loads((Path(__file__).parent.parent / "docs" / "engine" / "links.json").read_text())["figures"]
    parameters = {"1e3": 64 * 13 + 13 + 13 * 10 + 10, "5e5": 784 * 480 + 480 + 480 * 256 + 256 + 256 * 10 + 10}
    graphs = {"all-reduce": "ring", "ring": "ring", "one-peer": "one-peer", "exponential": "exponential",
              "ring around it": "around", "slow node a leaf": "leaf"}  # fmt: skip
    slow = {"slow link 4 to 3": (4, 3), "slow link 3 to 4": (3, 4), "slow uplink of 3": (3, None)}
    rows = []
    for setting, entries in figures.items():
        random = setting == "stragglers"
        for name, row in entries.items():
            plain = name.removesuffix(", bf16")
            cell = Cell(
                setting, name, "centralized" if plain == "all-reduce" else "push_pull", graphs[plain],
                compute="stragglers(0.02, 0.1, 0.2)" if random else 0.0, slow=slow.get(setting),
                parameters=parameters["1e3" if random else "5e5"], steps=2000 if random else 23,
            )  # fmt: skip
            machines = Machines() if random else machines_of(cell, 8, 100, 20)
            model = predicted_step(cell, machines, 8, 2.0 if name.endswith("bf16") else 4.0)
            rows.append({"links": setting, "name": name, "measured": row["ms"] / 1e3, "predicted": model})
    return {"rows": rows}


# ---- what is said of it


PARTS: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "links": (links, "5 nodes, uplinks of 20 Mbit/s (slow: 4), 50,000 parameters"),
    "latency": (latency, "5 nodes, 34 to 150 ms one way, 1,000 parameters, compute 0.1 s"),
    "target": (target, "5 nodes, one direction of each pair 10 times slower: seconds to a target"),
    "engine": (engine, "the rows of the page on the engine, 8 nodes, 100 Mbit/s (slow: 20), 5e5 parameters, BBR"),
}


def errors(rows: list[dict[str, Any]]) -> list[float]:
    return [row["predicted"] / row["measured"] - 1 for row in rows]


def summary(rows: list[dict[str, Any]]) -> str:
    sizes = [abs(error) for error in errors(rows)]
    return f"{len(sizes)} rows: median error {statistics.median(sizes):.1%}, largest {max(sizes):.1%}"


def printed(part: str, rows: list[dict[str, Any]]) -> Table:
    unit, scale = ("s", 1) if part == "target" else ("ms", 1e3)
    made = Table(
        "links", "", f"measured, {unit}", f"predicted, {unit}", "error", title=PARTS[part][1], caption=summary(rows)
    )
    for row, error in zip(rows, errors(rows), strict=True):
        cells = (f"{row[name] * scale:.{1 if part == 'target' else 0}f}" for name in ("measured", "predicted"))
        made.add_row(row["links"], row["name"], *cells, f"{error:+.1%}")
    return made


def page(out: Path) -> str:
    """The page, from the figures that are there."""
    parts = [
        "# The clock against real processes\n\nWritten by `benchmarks/clock.py page` from measured figures. Each node is a "
        "process in a network namespace with `perron.Decentralized`; compute is a sleep, TCP is Reno. Predictions are those of "
        "[the clock](../concepts/time.md) with the rates and sleeps that were set: nothing is fitted."
    ]
    for part, (_, title) in PARTS.items():
        file = out / f"clock_{part}.json"
        if not file.exists():
            continue
        found = json.loads(file.read_text())
        rows, (unit, scale, digits) = found["rows"], ("s", 1, 1) if part == "target" else ("ms", 1e3, 0)
        cells = [
            [
                row["links"],
                row["name"],
                *(f"{row[name] * scale:.{digits}f}" for name in ("measured", "predicted")),
                f"{error:+.1%}",
            ]
            for row, error in zip(rows, errors(rows), strict=True)
        ]
        head = f"## {title[0].upper()}{title[1:]}"
        load = f" Load of the machine before the run: {found['load']:.1f}." if part != "engine" else ""
        parts += [
            head,
            f"{summary(rows)}.{load}",
            table(["links", "", f"measured {unit}", f"predicted {unit}", "error"], cells),
        ]
    return "\n\n".join(parts) + "\n"


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["worker"]:
        work(Path(arguments[1]), int(arguments[2]), int(arguments[3]))
        return
    out = Path(__file__).parent.parent / "docs" / "engine"
    if "--out" in arguments:
        place = arguments.index("--out")
        out, arguments = Path(arguments[place + 1]), arguments[:place] + arguments[place + 2 :]
    if len(arguments) != 1 or arguments[0] not in (*PARTS, "page"):
        sys.exit(__doc__)
    part = arguments[0]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # as an exception, so that namespaces are removed
    if part == "page":
        write_bytes(out / "clock.md", page(out).encode())
        return
    if part != "engine" and (why := unavailable()):
        sys.exit(f"{part} is left out: {why}")
    load, began = os.getloadavg()[0], time.monotonic()
    found = PARTS[part][0]() | {"load": load}
    Console(width=120).print(printed(part, found["rows"]), f"{time.monotonic() - began:.0f} s; load before {load:.1f}")
    out.mkdir(parents=True, exist_ok=True)
    write_bytes(out / f"clock_{part}.json", (json.dumps(found, indent=1) + "\n").encode())


if __name__ == "__main__":
    main(sys.argv[1:])

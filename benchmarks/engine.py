"""What the engine costs in real processes: beside all-reduce, behind compute, and over slow links.

    .venv/bin/python benchmarks/engine.py overhead    # a step of the optimizer, beside all-reduce and DDP; six minutes
    .venv/bin/python benchmarks/engine.py overlap     # how much of the exchange hides behind compute; two minutes, root
    .venv/bin/python benchmarks/engine.py links       # equal links, slow ones, stragglers; five minutes, root
    .venv/bin/python benchmarks/engine.py page        # docs/engine/index.md from the figures of the three
    ... --out FOLDER                                  # for figures (JSON), pictures and page; else docs/engine

Contenders take turns in short rounds in the same processes, and a ratio is the median of the rounds' ratios, so that a
busy machine slows all alike. A round is timed from the first node's start to the last node's end, and counts as many
exchanges as steps: Push-Pull's first message leaves before the clock starts, its last is left out.

Slow links are network namespaces behind a bridge, shaped by the kernel; they need Linux, root, `ip` and `tc`.
"""

import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from links import Namespaces, Shape, avoiding, leaf, pictures, run_workers, shaped, text_page, unavailable
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from perron import Mixing, PushPull
from perron._storage.atomic import write_bytes
from perron.distributed.optimizer import Decentralized
from perron.distributed.process_group import FixedPeers, Transfer

WIDTHS = {
    "1e3": (64, 13, 10),
    "1e5": (784, 125, 10),
    "5e5": (784, 480, 256, 10),
    "1.86e6": (784, 1024, 1024, 10),
}  # of the models, by parameters
LR, BATCH, TIMEOUT = 1e-6, 512, 120.0
SLEEP = 1.5  # seconds of a GPU's compute, which leaves the CPU alone
STRAGGLING = (0.02, 0.1, 0.2)  # seconds of compute; with this probability; so many more
SMALL_BAR, LARGE_BAR, HIDDEN_BAR = 0.35, 1.3, 0.95

Times = dict[str, np.ndarray]  # (2, rounds) by contender: seconds per step, and of them the processor's for one node


@dataclass(frozen=True)
class Entry:
    """A contender: what it does with a gradient, and where it gets it from.

    Attributes:
        kind: local (plain SGD, no exchange), all-reduce (of one flat gradient, then SGD), ddp, or push-pull; and without
            any other work: bare-reduce, and bare-exchange of x and y on a ring.
        graph: of Push-Pull: a topology, ``leaf`` or ``avoiding``.
        wire: ``bf16`` or nothing.
        compute: given (the gradient is there, for free), backprop, sleep, or stragglers (a random sleep).
        waits: whether messages are awaited before computing, so that nothing overlaps.
    """

    name: str
    kind: str = "push-pull"
    graph: str = "ring"
    wire: str | None = None
    compute: str = "given"
    waits: bool = False


@dataclass(frozen=True)
class Cell:
    """Contenders that take turns: one model size, one shape of the links."""

    name: str
    entries: Sequence[Entry]
    size: str = "1.86e6"
    steps: int = 3
    rounds: int = 3
    links: Shape | None = None


# ---- contenders, in a worker


class Given(torch.autograd.Function):
    """A loss whose gradient is there already, for DDP, which acts on gradients as backward finds them."""

    @staticmethod
    def forward(ctx: Any, grads: list[Tensor], *params: Tensor) -> Tensor:
        ctx.grads = grads
        return params[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor | None, ...]:
        return (None, *ctx.grads)


class Model(nn.Sequential):
    """A perceptron; without input, a loss with a given gradient."""

    def __init__(self, widths: Sequence[int]) -> None:
        layers = [nn.Linear(a, b) for a, b in pairwise(widths)]
        super().__init__(*(part for layer in layers for part in (layer, nn.ReLU())))
        self.given = [torch.randn_like(param) * 1e-3 for param in self.parameters()]

    def forward(self, x: Tensor | None = None) -> Tensor:
        return Given.apply(self.given, *self.parameters()) if x is None else super().forward(x)


class Contender:
    """A model and what trains it; `advance` is one step."""

    def __init__(self, entry: Entry, size: str, turn: int) -> None:
        torch.manual_seed(0)
        self.entry, self.model = entry, Model(WIDTHS[size])
        self.batch = torch.randn(BATCH, WIDTHS[size][0])
        self.random = np.random.default_rng([turn, dist.get_rank()])
        self.net, self.drain = self.model, _nothing
        self.update = getattr(self, "_" + entry.kind.replace("-", "_"))()

    def advance(self) -> None:
        """Compute, and let the optimizer step."""
        if self.entry.waits:
            self.drain()
        compute = self.entry.compute
        if compute in ("sleep", "stragglers"):
            base, probability, more = STRAGGLING
            time.sleep(SLEEP if compute == "sleep" else base + more * (self.random.random() < probability))
        if compute == "backprop":
            self.model.zero_grad()
            self.net(self.batch).square().mean().backward()
        elif self.entry.kind == "ddp":
            self.model.zero_grad()
            self.net().backward()
        else:
            for param, grad in zip(self.model.parameters(), self.model.given, strict=True):
                param.grad = grad
        self.update()

    def _local(self) -> Callable[[], Any]:
        return torch.optim.SGD(self.model.parameters(), lr=LR).step

    def _all_reduce(self) -> Callable[[], Any]:
        params = list(self.model.parameters())
        flat = nn.utils.parameters_to_vector(params).detach()
        nn.utils.vector_to_parameters(flat, params)  # they are views of it
        total, nodes = torch.empty_like(flat), dist.get_world_size()

        @torch.no_grad()
        def update() -> None:
            torch.cat([param.grad.view(-1) for param in params], out=total)
            sent = total if self.entry.wire is None else total.to(torch.bfloat16)
            dist.all_reduce(sent)
            flat.add_(sent, alpha=-LR / nodes)

        return update

    def _bare_reduce(self) -> Callable[[], Any]:
        flat = nn.utils.parameters_to_vector(self.model.parameters()).detach()
        return lambda: dist.all_reduce(flat)

    def _bare_exchange(self) -> Callable[[], Any]:
        x = nn.utils.parameters_to_vector(self.model.parameters()).detach()
        y, rank, nodes = x.clone(), dist.get_rank(), dist.get_world_size()
        heard = [torch.empty_like(x), torch.empty_like(x)]
        peers = FixedPeers()

        def exchange() -> None:
            parcels = [Transfer((rank - 1) % nodes, part, place, sent=False) for place, part in enumerate(heard)]
            parcels += [Transfer((rank + 1) % nodes, part, place, sent=True) for place, part in enumerate((x, y))]
            peers.finish([(work, "bare exchange") for work in peers.post(parcels)], TIMEOUT)

        return exchange

    def _ddp(self) -> Callable[[], Any]:
        self.net = nn.parallel.DistributedDataParallel(self.model, gradient_as_bucket_view=True)
        return torch.optim.SGD(self.model.parameters(), lr=LR).step

    def _push_pull(self) -> Callable[[], Any]:
        nodes = dist.get_world_size()
        own = {"leaf": leaf, "avoiding": avoiding}
        graph: str | Mixing = own[self.entry.graph](nodes) if self.entry.graph in own else self.entry.graph
        optimizer = Decentralized(
            self.model, PushPull(), graph, lr=LR, wire=self.entry.wire, timeout=TIMEOUT, group=dist.new_group()
        )
        self.drain = optimizer.node.drain
        return optimizer.step


def _nothing() -> None:
    """There is nothing to wait for."""


def timed(contender: Contender, steps: int) -> tuple[float, float, float]:
    """When some steps started and ended on this node, by the clock of the machine; and the processor's time for "
    "them."""
    contender.drain()
    dist.barrier()
    if contender.entry.kind == "push-pull":
        contender.update()  # waits for nothing; the first message leaves
    start, busy = time.perf_counter(), time.process_time()
    for _ in range(steps):
        contender.advance()
    stop, busy = time.perf_counter(), time.process_time() - busy
    contender.drain()
    return start, stop, busy


def work(folder: Path, rank: int, nodes: int) -> None:
    """One node: all cells, all rounds; its times go to a file."""
    torch.set_num_threads(1)
    cells = json.loads((folder / "cells.json").read_text())
    limit = timedelta(seconds=TIMEOUT)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=nodes, timeout=limit)
    found = []
    for cell in cells:
        if cell["links"]:
            shaped(rank, **cell["links"])
        entries = [Entry(**entry) for entry in cell["entries"]]
        contenders = [Contender(entry, cell["size"], 0) for entry in entries]
        for contender in contenders:
            timed(contender, 1)
        spent: dict[str, list[tuple[float, float, float]]] = {entry.name: [] for entry in entries}
        for turn in range(cell["rounds"]):
            for contender in contenders[:: 1 if turn % 2 else -1]:
                contender.random = np.random.default_rng([turn, rank])  # the same luck for all
                spent[contender.entry.name].append(timed(contender, cell["steps"]))
        found.append(spent)
        if rank == 0:
            print(f"{nodes} nodes, {cell['size']} parameters, {cell['name']}: done", file=sys.stderr, flush=True)
    (folder / f"{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


# ---- the parent


def measured(nodes: int, cells: Sequence[Cell], spaces: Namespaces | None = None) -> list[Times]:
    """Run cells in as many processes as nodes, each in its own namespace if there are any."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "cells.json").write_text(json.dumps([asdict(cell) for cell in cells]))
        run_workers(__file__, [name], nodes, spaces)
        files = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(nodes)]
    return [
        {entry.name: _per_step([one[place][entry.name] for one in files], cell.steps) for entry in cell.entries}
        for place, cell in enumerate(cells)
    ]


def _per_step(ranks: list[list[tuple[float, float, float]]], steps: int) -> np.ndarray:
    start, stop, busy = np.array(ranks).transpose(2, 0, 1)  # (rank, round) each
    return np.stack([stop.max(0) - start.min(0), busy.mean(0)]) / steps


def compared(times: Times, to: str = "all-reduce") -> dict[str, dict[str, float]]:
    """Milliseconds per step, and ratios round by round."""
    return {
        name: {
            "ms": statistics.median(wall) * 1e3, "cpu ms": statistics.median(busy) * 1e3,
            "ratio": statistics.median(wall / times[to][0]), "cpu ratio": statistics.median(busy / times[to][1]),
        }
        for name, (wall, busy) in times.items()
    }  # fmt: skip


def held(good: bool) -> str:
    return "[green]held[/green]" if good else "[red]MISSED[/red]"


def overhead() -> dict[str, Any]:
    """A step's cost beside all-reduce: with a gradient for free, and with real backpropagation."""
    figures: dict[str, Any] = {"given": [], "backprop": []}
    for nodes in (2, 4, 8):
        graphs = ("ring", "one_peer_exponential", "exponential") if nodes > 2 else ("ring",)  # the same for two
        entries = [
            Entry("plain SGD, no exchange", "local"), Entry("all-reduce", "all-reduce"), Entry("DDP", "ddp"),
            *(Entry(graph, graph=graph) for graph in graphs),
        ]  # fmt: skip
        bare = [Entry("bare all-reduce", "bare-reduce"), Entry("bare exchange, ring", "bare-exchange")]
        cells = [Cell("given", entries, "1e3", 24, 15), Cell("given", entries, "1e5", 24, 12)]
        cells.append(Cell("given", [*entries, *bare], "1.86e6", 6, 10))
        if nodes == 4:
            some = [Entry(one.name, one.kind, one.graph, compute="backprop") for one in entries[:4]]
            cells += [Cell("backprop", some, "1e3", 24, 15), Cell("backprop", some, "1.86e6", 3, 15)]
        for cell, times in zip(cells, measured(nodes, cells), strict=True):
            rows = compared(times)
            for name, row in rows.items():
                row["over local ms"] = statistics.median(times[name][0] - times["plain SGD, no exchange"][0]) * 1e3
            if "bare all-reduce" in times:
                rows["bare exchange, ring"]["to bare"] = statistics.median(
                    times["bare exchange, ring"][0] / times["bare all-reduce"][0]
                )
            for row in rows.values():
                row["overhead"] = row["over local ms"] / rows["all-reduce"]["over local ms"]
            figures[cell.name].append({"nodes": nodes, "parameters": cell.size, "rows": rows})
    return figures


def overhead_tables(figures: dict[str, Any]) -> list[Table]:
    tables = []
    titles = {"given": "gradient for free", "backprop": f"backpropagation, batch {BATCH}"}
    for kind, title in titles.items():
        table = Table(
            "nodes", "parameters", "", "ms / step", "processor ms", "ratio", "ms over SGD", "ratio", "bar", ""
        )
        table.title = f"One step, {title}: time and what exceeds plain SGD, with ratios to all-reduce"
        for cell in figures[kind]:
            table.add_section()
            for name, row in cell["rows"].items():
                bar = overhead_bar(kind, cell["nodes"], cell["parameters"], name)
                table.add_row(
                    str(cell["nodes"]), cell["parameters"], name, f"{row['ms']:.2f}", f"{row['cpu ms']:.2f}",
                    f"{row['ratio']:.2f}", f"{row['over local ms']:.2f}", f"{row['overhead']:.2f}",
                    *([f"<= {bar}", held(row["overhead"] <= bar)] if bar else []),
                )  # fmt: skip
        tables.append(table)
    return tables


def overhead_bar(kind: str, nodes: int, size: str, name: str) -> float | None:
    """What the overhead over the local backward pass may be at most, in all-reduce's."""
    if kind != "backprop" or nodes != 4 or name not in ("ring", "one_peer_exponential"):
        return None
    return SMALL_BAR if size == "1e3" else LARGE_BAR if size == "1.86e6" and name == "ring" else None


def overlap() -> dict[str, Any]:
    """Four namespaces with 100 Mbit/s each: sequential and overlapped, against exchange and compute alone."""
    entries = [Entry("exchange alone")]
    for compute in ("sleep", "backprop"):
        entries += [
            Entry(f"{compute} alone", "local", compute=compute),
            Entry(f"{compute}, one after the other", compute=compute, waits=True),
            Entry(f"{compute}, overlapped", compute=compute),
        ]
    with Namespaces(4) as spaces:
        (times,) = measured(4, [Cell("overlap", entries, steps=2, rounds=3, links=Shape())], spaces)
    figures: dict[str, Any] = {"ms": {name: statistics.median(spent[0]) * 1e3 for name, spent in times.items()}}
    for compute in ("sleep", "backprop"):
        less = times[f"{compute}, one after the other"][0] - times[f"{compute}, overlapped"][0]
        most = np.minimum(times["exchange alone"][0], times[f"{compute} alone"][0])
        figures[f"hidden behind {compute}"] = statistics.median(less / most)
    return figures


def overlap_tables(figures: dict[str, Any]) -> list[Table]:
    table = Table(
        "compute", "exchange ms", "compute ms", "one after the other ms", "overlapped ms", "hidden", "bar", "",
        title="Push-Pull on a ring of 4 namespaces, 100 Mbit/s each, 1.86e6 parameters",
    )  # fmt: skip
    for compute in ("sleep", "backprop"):
        names = (
            "exchange alone",
            *(f"{compute}{what}" for what in (" alone", ", one after the other", ", overlapped")),
        )
        hidden = figures[f"hidden behind {compute}"]
        cells = [">= 95 %", held(hidden >= HIDDEN_BAR)] if compute == "sleep" else []
        table.add_row(compute, *(f"{figures['ms'][name]:.0f}" for name in names), f"{hidden:.0%}", *cells)
    return [table]


def links() -> dict[str, Any]:
    """Eight nodes: equal links, one slow directed link, a slow uplink, stragglers."""
    reduce, ring = Entry("all-reduce", "all-reduce"), Entry("ring")
    one = Entry("one-peer", graph="one_peer_exponential")
    away, last = Entry("ring around it", graph="avoiding"), Entry("slow node a leaf", graph="leaf")
    halves = [Entry("all-reduce, bf16", "all-reduce", wire="bf16"), Entry("ring, bf16", wire="bf16")]
    cells = [
        Cell("equal links", [reduce, ring, one, Entry("exponential", graph="exponential"), *halves], "5e5",
             links=Shape()),
        Cell("slow link 4 to 3", [reduce, ring, one], "5e5", rounds=2, links=Shape(slow=(4, 3))),
        Cell("slow link 3 to 4", [reduce, ring, one, away], "5e5", rounds=2, links=Shape(slow=(3, 4))),
        Cell("slow uplink of 3", [reduce, ring, last], "5e5", rounds=2, links=Shape(slow=(3, None))),
    ]  # fmt: skip
    stragglers = Cell(
        "stragglers",
        [
            Entry(name, kind, graph, compute="stragglers")
            for name, kind, graph in (
                ("all-reduce", "all-reduce", ""), ("ring", "push-pull", "ring"),
                ("one-peer", "push-pull", "one_peer_exponential"), ("exponential", "push-pull", "exponential"),
            )
        ],
        size="1e3", steps=30, rounds=3,
    )  # fmt: skip
    with Namespaces(8) as spaces:
        times = measured(8, cells, spaces)
    cells, times = [*cells, stragglers], [*times, *measured(8, [stragglers])]
    return {cell.name: compared(one) for cell, one in zip(cells, times, strict=True)}


def links_tables(figures: dict[str, Any]) -> list[Table]:
    table = Table("links", "", "ms / step", "ratio to all-reduce")
    table.title = "8 nodes, 5e5 parameters, 100 Mbit/s each (slow: 20); stragglers: 1e3 parameters, no limit"
    for cell, rows in figures.items():
        table.add_section()
        for name, row in rows.items():
            table.add_row(cell, name, f"{row['ms']:.0f}", f"{row['ratio']:.2f}")
    return [table]


PARTS: dict[str, tuple[Callable[[], Any], Callable[[Any], list[Table]]]] = {
    "overhead": (overhead, overhead_tables), "overlap": (overlap, overlap_tables), "links": (links, links_tables),
}  # fmt: skip


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
    part, console = arguments[0], Console(width=120)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # as an exception, so that namespaces are removed
    if part == "page":
        write_bytes(out / "index.md", text_page(out).encode())
        return
    if part in ("overlap", "links") and (why := unavailable()):
        sys.exit(f"{part} is left out: {why}")
    measure, tables = PARTS[part]
    start, load = time.monotonic(), os.getloadavg()[0]
    figures = measure()
    for table in tables(figures):
        console.print(table, "")
    console.print(f"{time.monotonic() - start:.0f} s; load before {load:.1f}, now {os.getloadavg()[0]:.1f}")
    out.mkdir(parents=True, exist_ok=True)
    write_bytes(out / f"{part}.json", (json.dumps({"load": load, "figures": figures}, indent=1) + "\n").encode())
    pictures(out, part, figures)


if __name__ == "__main__":
    main(sys.argv[1:])

"""How long it takes until all nodes have made their first step: forked, started one by one, and under torchrun.

    .venv/bin/python benchmarks/starting.py [--nodes 2 4 8] [--rounds 3]

start: from the command to the first step of the last node. restart: from the kill of a node to the first step of the last one
afterwards (``--restarts``, torchrun's ``--max-restarts``). memory: of all processes but launchers, pages that are shared counted
once (PSS). Contenders take turns; times are medians over rounds, ratios medians of the rounds' ratios. The nodes are those of any
script with `perron.Decentralized`: PyTorch, its compiler (which torch.optim imports) and perron.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

WAYS = ("forked", "one by one", "torchrun")


def worker(folder: Path) -> None:
    """A step, and when it was; the first attempt then loses node 0."""
    import torch

    import perron

    torch.set_num_threads(1)
    rank, _ = perron.init()
    attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
    model = torch.nn.Linear(100, 10)
    optimizer = perron.Decentralized(model, graph="ring", lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(1, 100)).sum().backward()
        optimizer.step()
        if optimizer.steps == 1:
            (folder / f"{attempt}.{rank}").write_text(str(time.monotonic()))
    torch.distributed.barrier()
    if rank == 0:
        nodes = psutil.Process(os.getppid()).children()
        (folder / f"{attempt}.memory").write_text(str(sum(one.memory_full_info().pss for one in nodes)))
    torch.distributed.barrier()
    if attempt == "0" and rank == 0:
        (folder / "killed").write_text(str(time.monotonic()))
        os.kill(os.getpid(), signal.SIGKILL)
    optimizer.close()
    perron.shutdown()


def measured(way: str, nodes: int) -> tuple[float, float, float]:
    """Seconds to start and to start again, and megabytes."""
    launch = [sys.executable, "-m", "perron", "launch", "--restarts", "1", "-n", str(nodes)]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts", "1"]
    command = [*torchrun, "--nproc-per-node", str(nodes)] if way == "torchrun" else launch
    environment = os.environ | {"PERRON_FORK_SERVER": str(int(way == "forked")), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as place:
        folder, began = Path(place), time.monotonic()
        script = [str(Path(__file__).resolve()), "worker", place]
        subprocess.run(
            [*command, *script], env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        first, second = (
            max(float((folder / f"{attempt}.{node}").read_text()) for node in range(nodes)) for attempt in (0, 1)
        )
        again = second - float((folder / "killed").read_text())
        return first - began, again, float((folder / "0.memory").read_text()) / 1e6


def main() -> None:
    if sys.argv[1:2] == ["worker"]:
        worker(Path(sys.argv[2]))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    console = Console()
    table = Table("nodes", "", "start, s", "ratio", "restart, s", "ratio", "memory, MB", "ratio")
    for nodes in given.nodes:
        rounds = []
        for number in range(given.rounds):
            rounds.append({way: measured(way, nodes) for way in WAYS})
            console.print(f"{nodes} nodes, round {number + 1} of {given.rounds}", style="dim")
        for way in WAYS:
            cells = []
            for what in range(3):
                cells.append(f"{statistics.median(one[way][what] for one in rounds):.{0 if what == 2 else 1}f}")
                cells.append(f"{statistics.median(one[way][what] / one['one by one'][what] for one in rounds):.2f}")
            table.add_row(str(nodes), way, *cells)
    console.print(table)
    console.print(f"ratios: to one by one. {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()

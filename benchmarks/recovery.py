"""How long an elastic training of many nodes needs to recover: one node is killed, and later another.

    .venv/bin/python benchmarks/recovery.py [NODES ...] [--kills 3] [--out docs/engine]

Starts `perron launch --elastic` with 8, 32 and 64 nodes, by default, which train a model of 10,000 numbers over the one-peer
exponential graph. After some steps, one node after the other is killed. For each kill, the table has the seconds until all
survivors have done another step, and of these the seconds from the notice of the death until the next generation was formed.
Writes recovery.json.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

STEPS = 10  # of all nodes, between two kills
LONG = 300.0  # seconds after which a training is given up


def worker(folder: Path) -> None:
    """A node: its process, and a line for each step with the time and the recoveries before it."""
    import torch

    import perron

    torch.set_num_threads(1)
    rank, _ = perron.init()
    (folder / f"{rank}.pid").write_text(str(os.getpid()))
    x = torch.nn.Parameter(torch.zeros(10_000))
    optimizer = perron.Decentralized([x], lr=0.1, timeout=60)
    with (folder / f"{rank}.steps").open("w", buffering=1) as told:
        while not (folder / "end").exists():
            optimizer.zero_grad()
            (0.5 * (x - rank).square().sum()).backward()
            optimizer.step()
            told.write(json.dumps([time.monotonic(), [change.seconds for change in optimizer.changes]]) + "\n")
    os._exit(0)


def steps(folder: Path, node: int) -> list[Any]:
    """The lines of a node."""
    path = folder / f"{node}.steps"
    return (
        [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
        if path.exists()
        else []
    )


def measured(nodes: int, kills: int) -> list[dict[str, float]]:
    """Kill so many of the nodes, one after the other; what each took."""
    found = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        command = [sys.executable, "-m", "perron", "launch", "--elastic", "--nodes", str(nodes)]
        with (folder / "log").open("w") as log:
            launcher = subprocess.Popen([*command, __file__, "worker", place], stdout=log, stderr=log)
        try:
            alive = list(range(nodes))
            for _ in range(kills):
                goals = {node: len(steps(folder, node)) + STEPS for node in alive}
                wait(lambda goals=goals: all(len(steps(folder, node)) >= goal for node, goal in goals.items()))
                dead = alive.pop(len(alive) // 2)
                changes, began = {node: len(steps(folder, node)[-1][1]) for node in alive}, time.monotonic()
                os.kill(int((folder / f"{dead}.pid").read_text()), signal.SIGKILL)
                first = wait(lambda changes=changes: [after(folder, *one) for one in changes.items()])
                changed = max(line[1][-1] for line in first)
                found.append({"next step": max(line[0] for line in first) - began, "agreeing": changed})
        except TimeoutError:
            sys.exit((folder / "log").read_text()[-3000:])
        finally:
            (folder / "end").touch()
            launcher.kill()
            launcher.wait()
    return found


def after(folder: Path, node: int, changes: int) -> Any:
    """The first step of a node after more than so many changes of members; None before that."""
    return next((line for line in steps(folder, node) if len(line[1]) > changes), None)


def wait(condition: Callable[[], Any]) -> Any:
    """Wait until a condition holds, for all of them if it is a list."""
    deadline = time.monotonic() + LONG
    while not (found := condition()) or (isinstance(found, list) and not all(found)):
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.2)
    return found


def main() -> None:
    """Measure, print the table, and write the file."""
    if sys.argv[1:2] == ["worker"]:
        worker(Path(sys.argv[2]))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nodes", type=int, nargs="*", default=[8, 32, 64])
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--out", type=Path, help="where to write recovery.json")
    options = parser.parse_args()
    table, stored = Table("nodes", "kills", "next step, median", "at most", "agreeing, median", "load"), []
    for nodes in options.nodes:
        found, load = measured(nodes, options.kills), round(os.getloadavg()[0], 1)
        stored.append({"nodes": nodes, "load": load, "kills": found})
        after, agreeing = ([one[name] for one in found] for name in ("next step", "agreeing"))
        figures = (statistics.median(after), max(after), statistics.median(agreeing))
        table.add_row(str(nodes), str(len(found)), *(f"{figure:.2f} s" for figure in figures), str(load))
    Console().print(table)
    if options.out:
        (options.out / "recovery.json").write_text(json.dumps(stored, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""What faults cost: kill and stop nodes of an elastic training on real data, at random, and let them come back.

    .venv/bin/python benchmarks/faults.py [--data DIRECTORY-OF-MNIST] [--runs 3] [--out docs/engine]

Trains five nodes on MNIST (or on the bundled digits) with `perron launch --elastic`: undisturbed; with two of five killed, of
which one is started again; and under chaos, where every few seconds a node is killed (and started again) or stopped for some
seconds. Prints the accuracy of the averaged model, and for each fault the seconds from the fault until every survivor has
finished its next step: noticing it, agreeing on the members, and a step with the new network.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

NODES, BATCH = 5, 64
STEPS = {"mnist": 1500, "digits": 1500}
CHAOS = (4.0, 9.0)  # seconds between faults
AWAY = 5.0  # seconds for which a stopped node stays stopped


@dataclass
class Fault:
    """Something done to a node."""

    kind: str
    node: int
    at: float
    recovered: float | None = None


@dataclass
class Run:
    """A training and what happened in it."""

    name: str
    seed: int
    accuracy: float = 0.0
    steps: int = 0
    members: int = 0
    seconds: float = 0.0
    faults: list[Fault] = field(default_factory=list)


def worker(folder: Path, data: str | None, seed: int) -> None:
    """A node: plain training, with the time of each step written down."""
    import torch
    from torch import nn
    from torch.nn.functional import cross_entropy

    import perron

    torch.set_num_threads(1)
    rank, size = perron.init()
    name = "mnist" if perron.data.find("mnist", data) else "digits"
    loaded = perron.data.load(name, data)
    images, labels = loaded.images[rank::size].flatten(1) / 255.0, loaded.labels[rank::size].long()
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(images.shape[1], 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = perron.Decentralized(model, perron.PushPull(), lr=0.2)
    draws = torch.Generator().manual_seed(seed * 100 + rank)
    notes = (folder / f"{os.environ['PERRON_NAME']}.notes").open("w", buffering=1)
    notes.write(f"pid {rank} {os.getpid()}\n")
    changes = 0
    while optimizer.steps < STEPS[name]:
        batch = torch.randint(len(images), (BATCH,), generator=draws)
        optimizer.zero_grad()
        cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()
        time.sleep(0.02)  # so that five nodes on two cores have time for faults
        kind, changes = ("step" if len(optimizer.changes) == changes else "change"), len(optimizer.changes)
        notes.write(f"{kind} {optimizer.steps} {time.monotonic()}\n")
    with optimizer.averaged_model(), torch.no_grad():
        right = (model(loaded.test_images.flatten(1) / 255.0).argmax(1) == loaded.test_labels).float().mean()
    optimizer.close()
    found = {"accuracy": float(right), "steps": optimizer.steps, "members": optimizer.node.nodes, "data": name}
    (folder / f"{rank}.json").write_text(json.dumps(found))


def trained(name: str, seed: int, data: str | None, plan: str) -> Run:
    """One training with its faults."""
    run, dice = Run(name, seed), random.Random(seed)  # noqa: S311 - reproducible, not secret
    with tempfile.TemporaryDirectory() as place:
        folder, began = Path(place), time.monotonic()
        arguments = [str(folder), str(seed), *([data] if data else [])]
        restarts = {"none": 0, "two": 1, "chaos": 1000}[plan]
        command = [sys.executable, "-m", "perron", "launch", "-n", str(NODES), "--elastic", "--restarts", str(restarts)]
        log = folder / "log"
        with log.open("w") as said:
            launcher = subprocess.Popen([*command, __file__, "worker", *arguments], stderr=said)
        while len(_pids(folder)) < NODES and launcher.poll() is None:
            time.sleep(0.1)
        if plan == "two":
            _two(run, folder, dice, launcher)
        while plan == "chaos" and launcher.poll() is None and _furthest(folder) < STEPS[_data(data)] * 0.85:
            _fault(run, folder, dice, "kill" if dice.random() < 0.5 else "stop")
            time.sleep(dice.uniform(*CHAOS))
        if launcher.wait():
            sys.exit(f"The training failed:\n{log.read_text()}")
        ends = [json.loads(path.read_text()) for path in folder.glob("*.json")]
        run.seconds = time.monotonic() - began
        run.accuracy = statistics.mean(one["accuracy"] for one in ends)
        run.steps, run.members = max(one["steps"] for one in ends), max(one["members"] for one in ends)
        for fault in run.faults:
            fault.recovered = _recovered(folder, fault)
    return run


def _two(run: Run, folder: Path, dice: random.Random, launcher: subprocess.Popen[bytes]) -> None:
    """Two of five killed at random steps: the first is started again, the second is not."""
    for share in (dice.uniform(0.1, 0.3), dice.uniform(0.5, 0.7)):
        while _furthest(folder) < share * STEPS["mnist"] and launcher.poll() is None:
            time.sleep(0.05)
        _fault(run, folder, dice, "kill")


def _fault(run: Run, folder: Path, dice: random.Random, kind: str) -> None:
    alive = {node: pid for node, pid in _pids(folder).items() if Path(f"/proc/{pid}").exists()}
    node = dice.choice(sorted(alive))
    run.faults.append(Fault(kind, node, time.monotonic()))
    with suppress(ProcessLookupError):
        os.kill(alive[node], signal.SIGKILL if kind == "kill" else signal.SIGSTOP)
        if kind == "stop":
            time.sleep(AWAY)
            os.kill(alive[node], signal.SIGCONT)


def _pids(folder: Path) -> dict[int, int]:
    """The latest process of each node."""
    first = [path.read_text().split("\n")[0].split() for path in sorted(folder.glob("*.notes"), key=_started)]
    return {int(line[1]): int(line[2]) for line in first if len(line) == 3}


def _started(path: Path) -> int:
    return int(path.stem.split(".")[1])


def _notes(folder: Path) -> dict[str, list[tuple[str, int, float]]]:
    found = {}
    for path in folder.glob("*.notes"):
        lines = [line.split() for line in path.read_text().split("\n")[1:] if line.count(" ") == 2]
        found[path.stem] = [(kind, int(step), float(at)) for kind, step, at in lines]
    return found


def _furthest(folder: Path) -> int:
    return max((lines[-1][1] for lines in _notes(folder).values() if lines), default=0)


def _recovered(folder: Path, fault: Fault) -> float | None:
    """Seconds until all others who were training have done a step after the change; None if it fell into another's recovery."""
    until = []
    for name, lines in _notes(folder).items():
        before = [at for _, _, at in lines if at < fault.at]
        after = [at for kind, _, at in lines if kind == "change" and at > fault.at]
        if int(name.split(".")[0]) != fault.node and before and fault.at - before[-1] < 1:
            if not after:
                return None
            until.append(after[0])
    return max(until) - fault.at if until else None


def _data(folder: str | None) -> str:
    import perron

    return "mnist" if perron.data.find("mnist", folder) else "digits"


def main() -> None:
    """Run all, and print the tables."""
    if sys.argv[1:2] == ["worker"]:
        worker(Path(sys.argv[2]), sys.argv[4] if len(sys.argv) > 4 else None, int(sys.argv[3]))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="where the MNIST files are (default: $PERRON_DATA/mnist)")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--out", type=Path, help="where to write faults.json")
    options = parser.parse_args()
    console, runs, load = Console(), [], os.getloadavg()[0]
    plans = {"undisturbed": "none", "two of five killed, one restarted": "two", "chaos": "chaos"}
    table = Table(
        "training", "runs", "accuracy, % (s.d.)", "faults", "members at the end", "seconds", title=_data(options.data)
    )
    for name, plan in plans.items():
        done = []
        for seed in range(options.runs):
            done.append(trained(name, seed, options.data, plan))
            console.print(f"{name}, run {seed + 1}: {done[-1].accuracy:.2%} after {done[-1].steps} steps", style="dim")
        runs += done
        right = [100 * run.accuracy for run in done]
        spread = f" ({statistics.stdev(right):.2f})" if len(right) > 1 else ""
        faults = str(sum(len(run.faults) for run in done))
        members = ", ".join(str(run.members) for run in done)
        seconds = f"{statistics.mean(run.seconds for run in done):.0f}"
        table.add_row(name, str(len(done)), f"{statistics.mean(right):.2f}{spread}", faults, members, seconds)
    console.print(table)
    recovery = Table("fault", "how many", "seconds until all survivors have done a step: median", "largest")
    for kind, told in {"kill": "SIGKILL", "stop": "SIGSTOP"}.items():
        times = [fault.recovered for run in runs for fault in run.faults if fault.kind == kind and fault.recovered]
        if times:
            recovery.add_row(told, str(len(times)), f"{statistics.median(times):.2f}", f"{max(times):.2f}")
    console.print(recovery)
    if options.out:
        figures: list[dict[str, Any]] = [vars(run) | {"faults": [vars(one) for one in run.faults]} for run in runs]
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "faults.json").write_text(json.dumps({"load": load, "figures": figures}, indent=1))


if __name__ == "__main__":
    main()

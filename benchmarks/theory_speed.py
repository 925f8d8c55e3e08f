"""Processor time of theory, design, advice and start-up, before and after a change: benchmarks/theory_speed.py --before DIR

    .venv/bin/python benchmarks/theory_speed.py                          # this checkout alone
    .venv/bin/python benchmarks/theory_speed.py --before ../other/src    # beside the sources of another one, taking turns

Every measurement runs in a process of its own with one thread. Times are those of the processor, medians over rounds; ratios are
medians of the rounds' ratios. Calls are timed without imports and without building their inputs; commands as a whole. A call
that one of the two refuses or does not finish in time has no number.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parents[1] / "src"
LIMIT = 300  # seconds of waiting for one measurement
SETUP = """
import time, torch, perron
from perron import Mixing, Network, PushPull, theory, topologies
from perron.advise import advise
from perron.networks import spectral
from perron.problems import Quadratic
torch.set_num_threads(1)
def problem(d): return Quadratic.random(16, d, strong_convexity=0.2, noise_std=0.5, seed=1)
def network(name, n=16): return Network(Mixing.random_integer(topologies.NAMES[name](n), seed=0))
shared = torch.linspace(0.1, 1, 10, dtype=torch.float64)
"""
TIMED = "began = time.process_time()\n{}\nprint(time.process_time() - began)"
CALLS = {  # name: (preparation, call)
    "stable_lr, n=16, d=10, exponential": ("p, w = problem(10), network('exponential')", "theory.stable_lr(PushPull(), w, p)"),
    "stable_lr, n=16, d=10, ring": ("p, w = problem(10), network('ring')", "theory.stable_lr(PushPull(), w, p)"),
    "stable_lr, n=16, 10 shared curvatures": ("w = network('exponential')", "theory.stable_lr(PushPull(), w, shared)"),
    "rate, n=16, d=10": ("p, w = problem(10), network('exponential')", "theory.rate(PushPull(), w, 0.05, p)"),
    "stationary, n=16, d=10": ("p, w = problem(10), network('exponential')", "theory.stationary(p, PushPull(), w, 0.05)"),
    "stable_lr, n=16, d=100, exponential": ("p, w = problem(100), network('exponential')", "theory.stable_lr(PushPull(), w, p)"),
    "stable_lr, n=16, d=100, ring": ("p, w = problem(100), network('ring')", "theory.stable_lr(PushPull(), w, p)"),
    "rate, n=16, d=100": ("p, w = problem(100), network('exponential')", "theory.rate(PushPull(), w, 0.05, p)"),
    "advise, 1,000 nodes, exponential": ("w = network('exponential', 1000)", "advise(w.mixing)"),
    "advise, 1,000 nodes, ring": ("w = network('ring', 1000)", "advise(w.mixing)"),
    "advise, 961 nodes, torus": ("w = network('torus', 961)", "advise(w.mixing)"),
    "advise, 1,000 nodes, geometric": ("w = network('geometric', 1000)", "advise(w.mixing)"),
    "mixing_sum of [[e, 1-e], [1-e, e]], e = 1e-6": (
        "m = [[1e-6, 1 - 1e-6], [1 - 1e-6, 1e-6]]",
        "spectral.mixing_sum(m)",
    ),
}  # fmt: skip
COMMANDS = {
    "import perron": ["-c", "import perron"],
    "perron --help": ["-m", "perron", "--help"],
    "perron graph ring --nodes 8": ["-m", "perron", "graph", "ring", "--nodes", "8"],
    "perron graph ring --nodes 8 --json": ["-m", "perron", "graph", "ring", "--nodes", "8", "--json"],
    "perron advise exponential --nodes 1000": ["-m", "perron", "advise", "exponential", "--nodes", "1000"],
}


def seconds(name: str, source: Path) -> float | None:
    """The processor time of one measurement with these sources; None if it fails or takes too long."""
    environment = os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    words = COMMANDS.get(name) or ["-c", f"{SETUP}\n{CALLS[name][0]}\n{TIMED.format(CALLS[name][1])}"]
    before = os.times()
    try:
        done = subprocess.run(
            [sys.executable, *words], env=environment, capture_output=True, text=True, check=False, timeout=LIMIT
        )
    except subprocess.TimeoutExpired:
        return None
    if done.returncode:
        return None
    after = os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return used if name in COMMANDS else float(done.stdout)


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, help="the src folder of another checkout")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("-k", default="", help="only measurements with this in their names")
    given = parser.parse_args()
    sources = ([given.before.resolve()] if given.before else []) + [HERE]
    console, table = Console(soft_wrap=True), Table("", *(["before, s"] if given.before else []), "after, s", "ratio")
    for name in [name for name in (*CALLS, *COMMANDS) if given.k in name]:
        rounds = [[seconds(name, source) for source in sources] for _ in range(given.rounds)]
        cells = []
        for times in zip(*rounds, strict=True):
            known = [one for one in times if one is not None]
            cells.append(f"{statistics.median(known):.3f}" if known else "-")
        ratios = [one[-1] / one[0] for one in rounds if one[0] and one[-1]]
        table.add_row(name, *cells, f"{statistics.median(ratios):.2f}" if ratios and given.before else "-")
        console.print(f"{name}: {', '.join(cells)}", style="dim")
    console.print(table)


if __name__ == "__main__":
    main()

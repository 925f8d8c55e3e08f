"""How long the command line takes to answer: python benchmarks/startup.py

The median and the fastest of ten calls, each in a process of its own; beside them a bare Python, and the parts of SciPy that
``perron graph`` is made of. Other work on the machine disturbs: look at the fastest.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "import scipy.sparse.csgraph": ["-c", "import scipy.sparse.csgraph"],
    "perron": ["-m", "perron"],
    "perron --help": ["-m", "perron", "--help"],
    "perron study list": ["-m", "perron", "study", "list"],
    "perron graph ring --nodes 8": ["-m", "perron", "graph", "ring", "--nodes", "8"],
    "perron graph ring --nodes 8 --json": ["-m", "perron", "graph", "ring", "--nodes", "8", "--json"],
    "perron algorithms": ["-m", "perron", "algorithms"],
}


def seconds(words: list[str]) -> float:
    """How long one call takes."""
    began = time.perf_counter()
    subprocess.run([sys.executable, *words], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=10)
    repeats = parser.parse_args().repeats
    sys.stdout.write(f"{'':<36}{'median':>10}{'fastest':>10}\n")
    for name, words in COMMANDS.items():
        seconds(words)  # the first one fills the disk's cache
        found = [seconds(words) for _ in range(repeats)]
        sys.stdout.write(f"{name:<36}{statistics.median(found):>8.2f} s{min(found):>8.2f} s\n")


if __name__ == "__main__":
    main()

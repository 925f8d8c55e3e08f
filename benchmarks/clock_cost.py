"""What a clock costs: processor time of a simulated step without it, and of the clock's own step, measured in turns.

    .venv/bin/python benchmarks/clock_cost.py [largest n, default 100000]

Push-Pull on quadratics with d = 5, as small as problems get: the larger the model, the smaller the clock's share. "Unequal"
machines have a latency for each link, given as a function; on equal machines and regular graphs one node stands for all.
Prints a table with the bars: at n = 16 at most 30 us; of a step at n = 100,000 at most 15 % on a ring and 70 % on the
exponential graph; for one trial on unequal machines.
"""

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from perron import Clock, Machines, Mixing
from perron.networks import topologies
from perron.problems import Quadratic
from perron.simulation.simulator import Running, Simulation

SIZES, TRIALS, DIM = (16, 1000, 100_000), (1, 20), 5
ROUNDS, SECONDS = 9, 0.08  # of each contender; a round takes at least this long
BARS = {(16, "ring"): 30e-6, (16, "exponential"): 30e-6, (100_000, "ring"): 0.15, (100_000, "exponential"): 0.7}


def latency(sources: Any, targets: Any) -> Any:
    """Seconds that differ between links."""
    return 0.01 + 0.001 * ((7 * sources + targets) % 13)


MACHINES = {"unequal": Machines(latency=latency, rate=1e7), "equal": Machines(latency=0.01, rate=1e7)}
COMPUTE = {"fixed": 0.02, "random": "exponential(0.02)"}


def measure(contenders: dict[str, Callable[[], None]]) -> dict[str, float]:
    """The median processor time of a call of each, in seconds; they take turns."""
    calls = {}
    for name, call in contenders.items():
        call()
        began, warm = time.process_time(), 0
        while time.process_time() - began < SECONDS:  # the first calls take longer
            call()
            warm += 1
        calls[name] = warm
    found: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(ROUNDS):
        for name, call in contenders.items():
            began = time.process_time()
            for _ in range(calls[name]):
                call()
            found[name].append((time.process_time() - began) / calls[name])
    return {name: statistics.median(times) for name, times in found.items()}


def steps(advance: Callable[[int], None]) -> Callable[[], None]:
    """A call that does the next step."""
    count = iter(range(10**9))
    return lambda: advance(next(count))


def row(n: int, name: str, mixing: Mixing, trials: int) -> dict[str, float]:
    """Seconds of a step, and of each clock's."""
    problem = Quadratic.random(n, DIM, noise_std=0.1, diagonal=True)
    plain = Running(Simulation(problem=problem, algorithm="push_pull", mixing=mixing, lr=0.01, trials=trials))
    contenders: dict[str, Callable[[], None]] = {"step": plain.advance}
    for machines, record in MACHINES.items():
        for compute, seconds in COMPUTE.items():
            clock = Clock(record, compute=seconds, size=1e5)
            timer = clock.start(plain.simulation.algorithm, mixing, trials=plain.simulation.numbers)
            contenders[f"{machines}, {compute}"] = steps(timer.advance)
    print(f"{name}({n}), {trials} trials", file=sys.stderr)
    with torch.no_grad():
        return measure(contenders)


def main() -> None:
    torch.set_num_threads(1)
    largest = int(sys.argv[1]) if len(sys.argv) > 1 else SIZES[-1]
    kinds = [f"{machines}, {compute}" for machines in MACHINES for compute in COMPUTE]
    table = Table(
        "network", "trials", "step without", *kinds, "bar", title="Processor time of a step, and of its clock"
    )
    for n in (n for n in SIZES if n <= largest):
        for name in ("ring", "exponential"):
            mixing = Mixing.uniform(getattr(topologies, name)(n))
            for trials in TRIALS if n <= 1000 else TRIALS[:1]:  # 20 trials of 1.7 million links take minutes
                found = row(n, name, mixing, trials)
                step, bar = found.pop("step"), BARS.get((n, name)) if trials == 1 else None
                cells = [f"{time * 1e6:,.1f} us ({time / step:.0%})" for time in found.values()]
                worst = max(found["unequal, fixed"], found["unequal, random"])
                share = worst if n == SIZES[0] else worst / step
                said = "" if bar is None else f"{bar * 1e6:.0f} us" if n == SIZES[0] else f"{bar:.0%}"
                said += "" if bar is None else ", met" if share <= bar else ", missed"
                table.add_row(f"{name}({n:,})", str(trials), f"{step * 1e6:,.1f} us", *cells, said)
    Console(width=170).print(table)


if __name__ == "__main__":
    main()

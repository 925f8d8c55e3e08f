"""What the paper's logistic regression costs: compiled, in plain torch, and as research code does it.

Prints times and ratios with the bar beside each, in about two minutes; needs numba:

    .venv/bin/python benchmarks/logistic.py

Times are those of one core (the process's own clock, one thread of torch), so that what others run matters little. The
contenders take turns, a time is the median over the rounds and a ratio the median of the rounds' ratios. Compiling, which
numba does once for a machine, is not timed. The naive twin sorts a row of random numbers as long as a node's data for each
minibatch, one trial after the other; nearly all its time goes there, so see also what other ways to sample cost.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from numba import njit
from rich.console import Console
from rich.table import Table
from torch import Tensor

from perron import Mixing, PushPull, simulate
from perron.networks import released as authors
from perron.problems import Logistic
from perron.problems import _kernels as kernels
from perron.random import NOISE, Keyed
from perron.simulation.simulator import Simulation

NODES, TRIALS, DIM, BATCH, LR = 16, 20, 10, 200, 0.05
SAMPLES = 1_440_000  # over all nodes
CHUNK = 2**14  # samples at a time of the readable full gradient: what belongs to them fits into the cache
STEPS, EVERY = 9000, 50  # of figure 2
CASES = {4: 6, 8: 5, 9: 1, 12: 5, 16: 6, 25: 1}  # of figure 2 with so many nodes: five topologies, and the grid

Name = TypeVar("Name")
Pick = Callable[[int, int], Tensor]  # (step, trial) -> the minibatches of all nodes, (n, batch)


class Work(NamedTuple):
    """Something to time: `run` does it `times` times."""

    run: Callable[[], object]
    times: int = 1


# ---- the contenders


def stepping(problem: Logistic, mixing: Mixing, steps: int) -> Work:
    def run() -> None:
        simulate(problem, PushPull(), mixing, lr=LR, steps=steps, trials=TRIALS, metrics=[], progress=False)

    return Work(run, steps)


def by_sorting(problem: Logistic) -> Pick:
    return lambda _step, _trial: torch.rand(problem.nodes, problem.samples).argsort(-1)[:, :BATCH]


def by_key(problem: Logistic) -> Pick:
    """The minibatches that the simulator draws."""
    keyed = Keyed(0, trials=TRIALS, nodes=problem.nodes, stream=NOISE)
    return lambda step, trial: keyed.distinct(step, BATCH, problem.samples)[trial]


def naive(problem: Logistic, mixing: Mixing, pick: Pick) -> Iterator[Tensor]:
    """Push-Pull as the formulas have it; each item is the models after one more step."""
    a, b, node = torch.tensor(mixing.pull), torch.tensor(mixing.push), torch.arange(problem.nodes)[:, None]
    x = torch.zeros(TRIALS, problem.nodes, DIM, dtype=torch.float64)
    y, previous, step = torch.zeros_like(x), torch.zeros_like(x), 0
    while True:
        grad = 2 * problem.regularization * x / (1 + x * x) ** 2
        for trial in range(TRIALS):
            rows = problem.rows[node, pick(step, trial)].double()  # (n, batch, d)
            weight = 1 / (1 + torch.exp(rows @ x[trial, :, :, None]))
            grad[trial] -= (rows * weight).mean(-2)
        y = b @ y + grad - previous
        x = a @ x - LR * y
        previous, step = grad, step + 1
        yield x


def readable_grad(problem: Logistic, x: Tensor) -> Tensor:
    """grad f at ``(points, d)`` in plain torch and float32."""
    point, total = x.float(), torch.zeros_like(x)
    for rows in problem.rows.view(-1, DIM).split(CHUNK):
        total -= torch.sigmoid(-(point @ rows.mT)) @ rows
    return total / SAMPLES + 2 * problem.regularization * x / (1 + x * x) ** 2


@njit
def compiled_picks(keys, draw, high, picks, seen):
    for t in range(picks.shape[0]):
        for i in range(picks.shape[1]):
            kernels.distinct(keys[t, i], draw, high, picks[t, i], seen)


# ---- timing and printing


def clocked(work: Work) -> float:
    start = time.process_time()
    work.run()
    return (time.process_time() - start) / work.times


def interleaved(works: dict[Name, Work], rounds: int) -> dict[Name, np.ndarray]:
    """Seconds of one core in each round."""
    spent: dict[Name, list[float]] = {name: [] for name in works}
    for turn in range(rounds):
        for name in list(works)[:: -1 if turn % 2 else 1]:
            spent[name].append(clocked(works[name]))
    return {name: np.array(times) for name, times in spent.items()}


def held(good: bool) -> str:
    return "[green]held[/green]" if good else "[red]MISSED[/red]"


def listed(table: Table, spent: dict[str, np.ndarray], bars: dict[str, float] | None = None) -> None:
    """A row for each contender; ratios to the first."""
    first = next(iter(spent.values()))
    for name, times in spent.items():
        took, bar = statistics.median(times) * 1e3, (bars or {}).get(name)
        cells = [f"<= {bar:g} ms", held(took <= bar)] if bar else []
        table.add_row(name, f"{took:,.2f} ms", f"{statistics.median(times / first):,.1f}", *cells)


# ---- the parts


def apart(points: Tensor, others: Tensor) -> float:
    return float((points - others).abs().max() / others.abs().max())


def steps_table(problem: Logistic, plain: Logistic, mixing: Mixing) -> Table:
    """Also checks that all contenders compute the same, given the same minibatches."""
    twin = naive(problem, mixing, by_key(problem))
    after = [next(twin) for _ in range(3)][-1]
    off = []
    for which in (plain, problem):
        *_, last = Simulation(problem=which, algorithm=PushPull(), mixing=mixing, lr=LR, trials=TRIALS).iterates(3)
        off.append(apart(last.state.x, after))
    sorting = naive(problem, mixing, by_sorting(problem))
    works = {
        "compiled": stepping(problem, mixing, 100),
        "plain torch, float64": stepping(plain, mixing, 10),
        "naive twin, float64": Work(lambda: next(sorting)),
    }
    table = Table(
        "one step", "core time", "ratio", "bar", "",
        title=f"Push-Pull on {mixing.name}, {TRIALS} trials, d={DIM}, batch {BATCH} of {problem.samples:,}, no evaluation",
        caption=f"on the same minibatches the naive twin is {off[0]:.0e} from plain torch (bar: < 1e-12, "
        f"{held(off[0] < 1e-12)}) and {off[1]:.0e} from compiled (bar: < 1e-6, {held(off[1] < 1e-6)}) after 3 steps",
    )  # fmt: skip
    listed(table, interleaved(works, rounds=3), {"compiled": 3})
    return table


def sampling_table(problem: Logistic) -> Table:
    keyed = Keyed(0, trials=TRIALS, nodes=NODES, stream=NOISE)
    picks, seen = np.empty((TRIALS, NODES, BATCH), np.int64), np.zeros(problem.samples, bool)
    draws, numpy_random, sorting = iter(range(10**9)), np.random.default_rng(0), by_sorting(problem)

    def compiled(draw: int) -> None:
        compiled_picks(keyed.keys, draw, problem.samples, picks, seen)

    def sorted_in_numpy() -> None:
        for _ in range(TRIALS):
            numpy_random.random((NODES, problem.samples), np.float32).argsort(-1)[:, :BATCH]

    compiled(0)
    same = bool((torch.from_numpy(picks) == keyed.distinct(0, BATCH, problem.samples)).all())
    works = {
        "kernels.distinct": Work(lambda: [compiled(next(draws)) for _ in range(100)], 100),
        "Keyed.distinct": Work(lambda: [keyed.distinct(next(draws), BATCH, problem.samples) for _ in range(10)], 10),
        "NumPy's choice, one call each": Work(
            lambda: [numpy_random.choice(problem.samples, BATCH, replace=False) for _ in range(TRIALS * NODES)]
        ),
        "argsort in NumPy": Work(sorted_in_numpy),
        "argsort in torch": Work(lambda: [sorting(0, trial) for trial in range(TRIALS)]),
    }
    table = Table(
        "minibatches of a step", "core time", "ratio", "bar", "",
        title=f"{TRIALS} x {NODES} times {BATCH} of {problem.samples:,} without replacement",
        caption=f"kernels.distinct and Keyed.distinct draw the same: {held(same)}",
    )  # fmt: skip
    listed(table, interleaved(works, rounds=3))
    return table


def grads_table(problem: Logistic, plain: Logistic) -> Table:
    # From where all samples weigh nearly the same to where most weigh nothing.
    scales = torch.logspace(-2, 1, TRIALS, dtype=torch.float64)[:, None]
    points = scales * torch.from_numpy(np.random.default_rng(0).standard_normal((TRIALS, DIM)))
    contenders: dict[str, tuple[Callable[[], Tensor], int]] = {
        "compiled": (lambda: problem.full_grad(points), 5),
        "plain torch, float32, in chunks": (lambda: readable_grad(problem, points), 2),
        "Logistic(compiled=False), float64": (lambda: plain.full_grad(points), 1),
    }
    found = {name: grad() for name, (grad, _) in contenders.items()}
    exact = found["Logistic(compiled=False), float64"]
    error = {name: float((grad - exact).abs().max()) for name, grad in found.items()}
    works = {
        name: Work(lambda grad=grad, times=times: [grad() for _ in range(times)], times)
        for name, (grad, times) in contenders.items()
    }
    table = Table(
        "full gradient", "core time", "ratio", "bar", "",
        title=f"grad f at {TRIALS} points, {SAMPLES:,} samples, d={DIM} (aim for compiled: 40 ms)",
        caption=f"largest error against float64: compiled {error['compiled']:.1e} (bar: < 1e-7, "
        f"{held(error['compiled'] < 1e-7)}), plain float32 {error['plain torch, float32, in chunks']:.1e}",
    )  # fmt: skip
    listed(table, interleaved(works, rounds=3), {"compiled": 80})
    return table


def prepared(nodes: int) -> tuple[Logistic, float]:
    """The problem and what it costs to set up, first evaluation included, but not the data, which are made once."""
    start = time.process_time()
    problem = Logistic.synthetic(nodes)
    problem.full_grad(torch.zeros(TRIALS, DIM, dtype=torch.float64))
    return problem, time.process_time() - start


def parts_of(problem: Logistic) -> dict[str, Work]:
    mixing, points = authors.exponential(problem.nodes), torch.full((TRIALS, DIM), 0.5, dtype=torch.float64)
    sorting = naive(problem, mixing, by_sorting(problem))
    return {
        "step": stepping(problem, mixing, 100),
        "evaluation": Work(lambda: [problem.full_grad(points) for _ in range(3)], 3),
        "naive step": Work(lambda: next(sorting)),
        "naive evaluation": Work(lambda: readable_grad(problem, points)),  # the faster one in plain torch
    }


def parts_table() -> tuple[Table, dict[int, dict[str, float]]]:
    """What one case of figure 2 is made of, for each number of nodes, in seconds."""
    problems, setup = {}, {}
    for n in CASES:
        problems[n], setup[n] = prepared(n)
    works = {(n, part): work for n, problem in problems.items() for part, work in parts_of(problem).items()}
    seconds: dict[int, dict[str, float]] = {n: {"set-up": setup[n]} for n in CASES}
    for (n, part), times in interleaved(works, rounds=3).items():
        seconds[n][part] = statistics.median(times)
    table = Table(
        "nodes", "cases", *seconds[NODES],
        title="the parts of figure 2, core ms (on exponential networks: at these sizes all cost the same)",
    )  # fmt: skip
    for n, parts in seconds.items():
        table.add_row(str(n), str(CASES[n]), *(f"{part * 1e3:,.2f}" for part in parts.values()))
    return table, seconds


def figure_table(seconds: dict[int, dict[str, float]]) -> Table:
    def total(kind: str, every: int) -> float:
        evaluations = STEPS // every + 1  # the start, too
        return sum(
            cases
            * (seconds[n]["set-up"] + STEPS * seconds[n][f"{kind}step"] + evaluations * seconds[n][f"{kind}evaluation"])
            for n, cases in CASES.items()
        )

    table = Table(
        "figure 2, estimated", "on two cores", "ratio", "bar",
        title=f"{sum(CASES.values())} cases, {STEPS:,} steps, {TRIALS} trials",
        caption="half of the core time: as if the cases were shared out evenly and two at a time did not slow each other",
    )  # fmt: skip
    for name, kind, every in (
        (f"compiled, evaluated every {EVERY} steps", "", EVERY),
        (f"naive twin, evaluated every {EVERY} steps", "naive ", EVERY),
        ("naive twin, evaluated at every step", "naive ", 1),
    ):
        spent = total(kind, every)
        table.add_row(name, f"{spent / 2 / 60:,.1f} min", f"{spent / total('', EVERY):,.0f}")
    return table


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    console = Console(width=120)
    began = time.perf_counter()
    problem, plain = Logistic.synthetic(NODES), Logistic.synthetic(NODES, compiled=False)
    console.print(f"data made and set up in {time.perf_counter() - began:.1f} s\n")
    mixing = authors.exponential(NODES)
    stepping(problem, mixing, 1).run()  # numba compiles, or loads what it compiled
    problem.full_grad(torch.zeros(TRIALS, DIM, dtype=torch.float64))
    with torch.no_grad():
        for table in (steps_table(problem, plain, mixing), sampling_table(problem), grads_table(problem, plain)):
            console.print(table, "")
        table, seconds = parts_table()
        console.print(table, "", figure_table(seconds))
    console.print(f"\nall of it took {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()

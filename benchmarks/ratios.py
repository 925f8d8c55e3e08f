"""What a step of the simulator costs, as ratios to the loop that a user would write in NumPy.

    .venv/bin/python benchmarks/ratios.py                            # prints a table, a few minutes
    .venv/bin/python benchmarks/ratios.py --only logistic            # the rows whose names contain a text
    .venv/bin/python benchmarks/ratios.py --json docs/ratios.json    # stores the ratios
    .venv/bin/python benchmarks/ratios.py --check docs/ratios.json   # fails if one is worse than that by more than noise

Both sides of a row take turns in short rounds on one thread, and a ratio is the median of the rounds' ratios of processor times,
per step and trial: what else runs on the machine slows both alike. Rows are functions in `ROWS` that return both sides.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from perron import ADDOPT, DSGD, FROST, Mixing, PushPull, Simulation, simulate, topologies
from perron._threads import single_threaded
from perron.problems import LinearModel, LocalLoss, Logistic, Quadratic
from perron.simulation.running import Running

WORSE = 1.5  # times the stored ratio: more than noise
LR = 0.01
Run = Callable[[int], object]  # does so many steps


class Row(NamedTuple):
    """A name, what a user would write, perron, and the trials that perron does at once."""

    name: str
    numpy: Run
    perron: Run
    trials: int = 1


# ---- what a user would write


def push_pull(mixing: Mixing, grad: Callable[[Any], Any], x: Any, steps: int) -> Any:
    A, B = mixing.pull, mixing.push
    y, before = np.zeros_like(x), np.zeros_like(x)
    for _ in range(steps):
        now = grad(x)
        y = B @ y + now - before
        x = A @ x - LR * y
        before = now
    return x


def add_opt(mixing: Mixing, grad: Callable[[Any], Any], x: Any, steps: int) -> Any:
    B, u, v = mixing.push, x, np.ones((len(x), 1))
    y, before = np.zeros_like(x), np.zeros_like(x)
    for _ in range(steps):
        now = grad(x)
        y = B @ y + now - before
        u = B @ u - LR * y
        v = B @ v
        x, before = u / v, now
    return x


def frost(mixing: Mixing, grad: Callable[[Any], Any], x: Any, steps: int) -> Any:
    A, V = mixing.pull, np.eye(len(x))
    y, before = np.zeros_like(x), np.zeros_like(x)
    for _ in range(steps):
        now = grad(x) / np.diag(V)[:, None]
        y = A @ y + now - before
        x = A @ x - LR * y
        V, before = A @ V, now
    return x


def dsgd(mixing: Mixing, grad: Callable[[Any], Any], x: Any, steps: int) -> Any:
    W = mixing.pull
    for _ in range(steps):
        x = W @ x - LR * grad(x)
    return x


LOOPS = {
    "Push-Pull": (PushPull(), push_pull),
    "ADD-OPT": (ADDOPT(), add_opt),
    "FROST": (FROST(), frost),
    "D-SGD": (DSGD(), dsgd),
}


def quadratic_grad(problem: Quadratic) -> Callable[[Any], Any]:
    H, b = problem.hessians.numpy(), problem.offsets.numpy()
    random, scale = np.random.default_rng(0), problem.noise_std / np.sqrt(problem.dim)

    def exact(x: Any) -> Any:
        return (H * x if problem.diagonal else (H @ x[:, :, None])[:, :, 0]) - b

    return (lambda x: exact(x) + scale * random.standard_normal(x.shape)) if scale else exact


def logistic_grad(rows: Any, batch: int | None, regularization: float) -> Callable[[Any], Any]:
    """Of logistic regression with a nonconvex regularizer; a minibatch is drawn with replacement, which is faster."""
    n, m, _ = rows.shape
    random, nodes = np.random.default_rng(0), np.arange(n)[:, None]

    def grad(x: Any) -> Any:
        part = rows if batch is None else rows[nodes, random.integers(0, m, (n, batch))]
        weight = 1 / (1 + np.exp((part @ x[:, :, None])[:, :, 0]))
        mean = -(weight[:, None, :] @ part)[:, 0] / part.shape[1]
        return mean + 2 * regularization * x / (1 + x * x) ** 2

    return grad


# ---- rows


def network(name: str, nodes: int) -> Mixing:
    graph = topologies.exponential(nodes)
    return Mixing.metropolis(graph.symmetric()) if name == "D-SGD" else Mixing.random_integer(graph, seed=0)


def row(name: str, method: str, problem: Any, grad: Callable[[Any], Any], trials: int) -> Row:
    algorithm, loop = LOOPS[method]
    mixing = network(method, problem.nodes)
    running = Running(Simulation(problem=problem, algorithm=algorithm, mixing=mixing, lr=LR, trials=trials))
    running.advance()  # compiles
    start = np.zeros((problem.nodes, problem.dim))
    title = f"{method}, n={problem.nodes}, d={problem.dim}, {name}, {trials} trial{'s' * (trials > 1)}"
    return Row(title, lambda steps: loop(mixing, grad, start, steps), running.advance, trials)


def quadratics() -> Iterator[Callable[[], Row]]:
    for method, n, d, diagonal, noise, trials in product(
        LOOPS, (16, 64), (10, 100), (False, True), (0.0, 1.0), (1, 20)
    ):
        if trials == 1 or method == "Push-Pull":
            yield partial(quadratic, method, n, d, diagonal, noise, trials)


def quadratic(method: str, n: int, d: int, diagonal: bool, noise: float, trials: int) -> Row:
    problem = Quadratic.random(n, d, diagonal=diagonal, noise_std=noise)
    kind = f"{'diagonal' if diagonal else 'full'} Hessians{', noise' if noise else ''}"
    return row(kind, method, problem, quadratic_grad(problem), trials)


def logistics() -> Iterator[Callable[[], Row]]:
    for n, d, batch, trials in product((16, 64), (10, 100), (None, 20), (1, 20)):
        yield partial(logistic, n, d, batch, trials)


def logistic(n: int, d: int, batch: int | None, trials: int) -> Row:
    problem = Logistic.synthetic(n, samples=100 * n, dim=d, batch=batch)
    kind = f"logistic, 100 samples a node{'' if batch is None else f', batch {batch}'}"
    return row(kind, "Push-Pull", problem, logistic_grad(problem.rows.double().numpy(), batch, 0.01), trials)


def local_loss() -> Row:
    """A logistic regression as a function, which torch differentiates."""
    problem = Logistic.synthetic(16, samples=1600, dim=10, batch=None, compiled=False)

    def loss(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.softplus(-(rows @ x)).mean() + 0.01 * (x * x / (1 + x * x)).sum()

    own = LocalLoss(loss, [problem.rows.double()], dim=10)
    return row("LocalLoss, logistic", "Push-Pull", own, logistic_grad(problem.rows.double().numpy(), None, 0.01), 1)


def ridge() -> Row:
    """A linear model on data, 100 samples a node."""
    problem = LinearModel.from_data(16, kind="ridge", data="synthetic", samples=1600, dim=10, l2=0.1)
    rows, targets = problem.rows.view(16, 100, 10).numpy(), problem.targets.view(16, 100, 1).numpy()

    def grad(x: Any) -> Any:
        return (rows.transpose(0, 2, 1) @ (rows @ x[:, :, None] - targets))[:, :, 0] / 100 + 0.1 * x

    return row("ridge, 100 samples a node", "Push-Pull", problem, grad, 1)


def whole() -> Row:
    """`simulate` from its call to its history, with 200 records of its default metrics, for 20,000 steps."""
    problem, mixing = Quadratic.random(16, 10), network("Push-Pull", 16)
    grad, H, b = quadratic_grad(problem), problem.hessians.numpy(), problem.offsets.numpy()
    pi = np.linalg.matrix_power(mixing.pull, 1000)[0]

    def numpy(steps: int) -> Any:
        found, x = [], np.zeros((16, 10))
        for _ in range(200):
            x = push_pull(mixing, grad, x, steps // 200)
            mean = pi @ x
            found.append((np.square((H @ mean - b).mean(0)).sum(), np.square(x - mean).sum(1).mean()))
        return found

    return Row(
        "simulate, 200 records, Push-Pull, n=16, d=10, full Hessians, 1 trial", numpy,
        lambda steps: simulate(problem, PushPull(), mixing, lr=LR, steps=steps, progress=False),
    )  # fmt: skip


ROWS: list[Callable[[], Row]] = [*quadratics(), *logistics(), local_loss, ridge, whole]


# ---- measuring


def timed(run: Run, steps: int) -> float:
    began = time.thread_time()
    run(steps)
    return (time.thread_time() - began) / steps


def measure(one: Row, rounds: int = 11, seconds: float = 0.01) -> dict[str, float]:
    """Microseconds per step and trial of both sides, and their ratio."""
    least = 20_000 if one.name.startswith("simulate") else 20  # a whole run has a start of its own
    many = [max(least, int(seconds / timed(run, least))) for run in (one.numpy, one.perron)]
    ours, theirs = [], []
    for turn in range(5 if least > 20 else rounds):
        sides = [(theirs, one.numpy, many[0], 1), (ours, one.perron, many[1], one.trials)]
        for spent, run, steps, trials in sides[:: 1 if turn % 2 else -1]:
            spent.append(timed(run, steps) / trials)
    ratio = statistics.median(mine / other for mine, other in zip(ours, theirs, strict=True))
    return {"numpy": statistics.median(theirs) * 1e6, "perron": statistics.median(ours) * 1e6, "ratio": ratio}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="rows whose names contain this text")
    parser.add_argument("--json", type=Path, help="file to store the ratios in")
    parser.add_argument("--check", type=Path, help=f"file of ratios that must not get worse by more than {WORSE} times")
    given = parser.parse_args()
    stored = json.loads(given.check.read_text()) if given.check else {}
    found, worse = {}, []
    print(f"{'us per step and trial':>88}  {'NumPy':>8}  {'perron':>8}  {'ratio':>6}")
    with single_threaded(), threadpool_limits(1), torch.no_grad():
        for make in ROWS:
            one = make()
            if given.only not in one.name:
                continue
            result = measure(one)
            found[one.name] = round(result["ratio"], 3)
            late = given.check and one.name in stored and result["ratio"] > WORSE * stored[one.name]
            worse += [one.name] if late else []
            numbers = f"{result['numpy']:8.2f}  {result['perron']:8.2f}  {result['ratio']:6.3f}"
            print(f"{one.name:>88}  {numbers}{f'  WORSE than {stored[one.name]}' if late else ''}", flush=True)
    if given.json:
        kept = json.loads(given.json.read_text()) if given.json.exists() else {}  # of rows that were not measured
        given.json.write_text(json.dumps(kept | found, indent=1) + "\n")
    if worse:
        sys.exit(f"{len(worse)} of {len(found)} ratios are worse than the stored ones by more than {WORSE} times.")


if __name__ == "__main__":
    main()

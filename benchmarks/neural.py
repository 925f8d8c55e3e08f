"""What simulating neural networks costs beside their own arithmetic, as ratios measured in one run.

    .venv/bin/python benchmarks/neural.py [threads of torch, default 1] [--resnet] [--limits]

- The paper's MLP, 128 samples a node, Push-Pull: a whole step (data, forward, backward, mixing) against nothing but the matrix
  products of the forward and backward pass, of the same shapes, into memory that is there already. And against the textbook
  loop over one module for each node, with parameters flattened, stacked, mixed and copied back.
- ResNet-18, with --resnet: a step of four nodes against four forward and backward passes of plain modules.
- With --limits, how large lr times curvature may be on the networks of the study mnist-speedup: where all local losses have the
  same curvature, Push-Pull is a linear iteration, which must contract.
- The memory of a run: the peak above what was there before, in units of n P 4 bytes.

Contenders take turns, and a ratio is the median of the rounds' ratios. With one thread the thread's own clock is used, so
that what others run matters little. Images are random: what they show makes no difference here.
"""

import argparse
import statistics
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from perron import Mixing, PushPull, theory
from perron.data import models
from perron.data.datasets import Images
from perron.data.partition import iid
from perron.networks import topologies
from perron.networks.facts import Network
from perron.problems import Neural
from perron.simulation.simulator import Running, Simulation, simulate
from perron.studies.run import Run
from perron.studies.spec import load

BATCH, ROUNDS = 128, 15
SIZES = [784, 1024, 1024, 10]


def random_images(count: int, shape: tuple[int, ...]) -> Images:
    random = torch.Generator().manual_seed(0)
    images = torch.randint(256, (count, *shape), dtype=torch.uint8, generator=random)
    labels = torch.randint(10, (count,), generator=random)
    return Images(images, labels, images[:100], labels[:100])


def running(model: nn.Module, data: Images, n: int, batch: int) -> Running:
    problem = Neural(model, data, iid(data.labels, n), batch=batch)
    mixing = Mixing.random_integer(topologies.exponential(n), seed=0)
    return Running(Simulation(problem=problem, algorithm=PushPull(), mixing=mixing, lr=1e-3))


def products(n: int) -> Callable[[], None]:
    """The matrix products of a forward and a backward pass of n MLPs, and nothing else."""
    pairs = list(pairwise(SIZES))
    hidden = [torch.randn(n, BATCH, size) for size in SIZES]
    weights = [torch.randn(n, wide, narrow) for narrow, wide in pairs]
    above = [torch.randn(n, BATCH, wide) for _, wide in pairs]
    made = [torch.empty(n, BATCH, wide) for _, wide in pairs]
    grads = [torch.empty_like(weight) for weight in weights]
    below = [torch.empty(n, BATCH, narrow) for narrow, _ in pairs]

    def once() -> None:
        for layer, weight in enumerate(weights):
            torch.bmm(hidden[layer], weight.mT, out=made[layer])
        for layer in (2, 1, 0):
            torch.bmm(above[layer].mT, hidden[layer], out=grads[layer])
            if layer:
                torch.bmm(above[layer], weights[layer], out=below[layer])

    return once


def textbook(n: int, data: Images) -> Callable[[], None]:
    """A loop over n ordinary modules: backward, flatten, stack, mix, copy back."""
    modules = [models.build("mlp", (1, 28, 28), 10) for _ in range(n)]
    network = Network(Mixing.random_integer(topologies.exponential(n), seed=0))
    pull, push = (torch.tensor(matrices[0], dtype=torch.float32) for matrices in network.mixing.sequences)
    parts = iid(data.labels, n)
    size = sum(param.numel() for param in modules[0].parameters())
    kept = {"y": torch.zeros(n, size), "grad": torch.zeros(n, size)}

    def once() -> None:
        grads = []
        for module, part in zip(modules, parts, strict=True):
            batch = part[torch.randint(len(part), (BATCH,))]
            module.zero_grad()
            cross_entropy(module(data.images[batch] / 255.0), data.labels[batch]).backward()
            grads.append(torch.cat([param.grad.reshape(-1) for param in module.parameters()]))  # type: ignore[union-attr]
        with torch.no_grad():
            grad = torch.stack(grads)
            x = torch.stack([nn.utils.parameters_to_vector(module.parameters()) for module in modules])
            y = push @ kept["y"] + grad - kept["grad"]
            x = pull @ x - 1e-3 * y
            for module, row in zip(modules, x, strict=True):
                nn.utils.vector_to_parameters(row, module.parameters())
        kept.update(y=y, grad=grad)

    return once


def passes(model: nn.Module, data: Images, n: int, batch: int) -> Callable[[], None]:
    """Forward and backward of n plain modules."""
    inputs = torch.randn(n, batch, *data.images.shape[1:])

    def once() -> None:
        for part in inputs:
            model.zero_grad()
            cross_entropy(model(part), data.labels[:batch]).backward()

    return once


def timed(function: Callable[[], object], *, own: bool) -> float:
    clock = time.thread_time if own else time.perf_counter
    start = clock()
    function()
    return clock() - start


def ratio(ours: Callable[[], object], theirs: Callable[[], object], rounds: int, *, own: bool) -> tuple[float, float]:
    """The median of time(ours) / time(theirs) and the median time of ours."""
    ours(), theirs()
    pairs = [(timed(ours, own=own), timed(theirs, own=own)) for _ in range(rounds)]
    return statistics.median(a / b for a, b in pairs), statistics.median(a for a, _ in pairs)


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def peak(n: int, data: Images) -> float:
    """The most memory that a measured and saved run takes, from before its problem is made, in units of n P 4 bytes."""
    before, most, over = resident(), [0], threading.Event()

    def watch() -> None:
        while not over.is_set():
            most[0] = max(most[0], resident())
            time.sleep(0.002)

    watcher = threading.Thread(target=watch)
    watcher.start()
    problem = Neural(models.build("mlp", (1, 28, 28), 10), data, iid(data.labels, n), batch=BATCH, evaluate=1000)
    mixing = Mixing.random_integer(topologies.exponential(n), seed=0)
    measured = ["loss_mean", "test_accuracy", "consensus_error_sq"]
    with TemporaryDirectory() as folder:
        options = {"lr": 1e-3, "steps": 4, "every": 2, "metrics": measured, "save_every": 0.0}
        simulate(problem, PushPull(), mixing, checkpoint=Path(folder) / "run", **options)  # type: ignore[arg-type]
    over.set()
    watcher.join()
    return (most[0] - before) / (4 * n * problem.dim)


def limit(run: Run, order: Literal["cta", "pu", "atc"]) -> float:
    """The largest effective step times curvature up to which Push-Pull contracts in one of its orders."""
    network = Network(run.mixing())
    stable = theory.stable_lr(PushPull(order=order), network, 1.0)
    return stable.upper * network.alignment if stable else 0.0


def limits() -> Table:
    table = Table("topology", "n", "A x - lr y", "A (x - lr y)", "both", title="Largest step times curvature")
    for run in load("mnist-speedup").runs:
        if run.nodes in (4, 16):
            found = [f"{limit(run, order):.3f}" for order in ("cta", "pu", "atc")]
            table.add_row(run.topology, str(run.nodes), *found)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("threads", type=int, nargs="?", default=1)
    parser.add_argument("--resnet", action="store_true")
    parser.add_argument("--limits", action="store_true")
    options = parser.parse_args()
    if options.limits:
        Console(width=110).print(limits())
        return
    torch.set_num_threads(options.threads)
    own = options.threads == 1
    table = Table("what", "n", "ratio", "bar", "ms a step", title=f"Simulated networks, {options.threads} thread(s)")
    digits = random_images(20_000, (1, 28, 28))
    memory = peak(16, digits)
    for n, bar in ((4, "1.5"), (16, "1.6")):
        run = running(models.build("mlp", (1, 28, 28), 10), digits, n, BATCH)

        def step(run: Running = run) -> None:
            with torch.no_grad():
                run.advance()

        slow, _ = ratio(textbook(n, digits), products(n), ROUNDS, own=own)
        found, seconds = ratio(step, products(n), ROUNDS * 16 // n, own=own)
        table.add_row("MLP step / bare products", str(n), f"{found:.2f}", bar, f"{1e3 * seconds:.0f}")
        table.add_row("MLP textbook loop / bare products", str(n), f"{slow:.2f}", "", "")
        problem, random, draws = run.problem, run.oracle.random, iter(range(10**6))

        def load(problem: Neural = problem, random: object = random, draws: object = draws) -> Tensor:
            chosen = problem.batches(next(draws), random)  # type: ignore[call-overload]
            return problem._normal(problem._inputs(problem.data.images, chosen))

        share, _ = ratio(load, step, ROUNDS, own=own)
        table.add_row("MLP: data / step", str(n), f"{share:.1%}", "3 %", "")
    table.add_row("MLP: peak memory / (n P 4 bytes)", "16", f"{memory:.2f}", "5", "")
    if options.resnet:
        pictures, batch = random_images(2_000, (3, 32, 32)), 16
        model = models.build("resnet18", (3, 32, 32), 10)
        run = running(model, pictures, 4, batch)

        def train() -> None:
            with torch.no_grad():
                run.advance()

        found, seconds = ratio(train, passes(model, pictures, 4, batch), 5, own=own)
        table.add_row("ResNet-18 step / forward and backward", "4", f"{found:.3f}", "1.05", f"{1e3 * seconds:.0f}")
    Console(width=110).print(table)


if __name__ == "__main__":
    main()

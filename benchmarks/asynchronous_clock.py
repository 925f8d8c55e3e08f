"""Nodes at their own pace: `simulate_asynchronous` against real processes, and when it pays. No number is fitted.

    .venv/bin/python benchmarks/asynchronous_clock.py                # five processes at 20 Mbit/s, one slow; a minute and a half
    .venv/bin/python benchmarks/asynchronous_clock.py --simulate     # seconds to 1e-6, synchronous and at own pace; simulated
    .venv/bin/python benchmarks/asynchronous_clock.py --speed        # steps per second of the simulation
    ... --seconds 30                                                 # of the processes

Processes train with `Decentralized(..., asynchronous=True)`, each in a network namespace; the kernel shapes their uplinks, TCP is
Reno, and compute is a sleep. Predictions use the rates that were set (times 1448/1514, the share of payload in a full Ethernet
frame), the sleeps, and the sizes of messages. That the sender's system stores messages (``buffer``) was learned from a first
comparison, in which messages arrived older than predicted. They need Linux, root, `ip` and `tc`.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections import defaultdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import links
import numpy as np
import torch
import torch.distributed as dist
from rich.progress import track
from torch import Tensor

from perron import Clock, Machines, Mixing, PushPull, RobustPushPull, simulate, topologies
from perron.distributed import asynchronous
from perron.distributed.optimizer import Decentralized
from perron.problems import Quadratic
from perron.simulation import Simulation, simulate_asynchronous
from perron.simulation.asynchronous import AsynchronousRunning

links.PREFIX, links.NETWORK = "perron-async-", "10.213.9."  # beside other benchmarks
NODES, KINDS, COPIES, RATE, LR = 5, 32, 1600, 20, 0.05  # Mbit/s
PARAMETERS = KINDS * COPIES
COMPUTE = [0.1, 0.1, 0.5, 0.1, 0.1]
PAYLOAD = 1448 / 1514
GOAL = {"grad_norm_sq": 1e-6}


def quadratic() -> Quadratic:
    """Of 32 coordinates, which the processes repeat to the length of their model."""
    return Quadratic.random(NODES, KINDS, diagonal=True, seed=3)


def ring(nodes: int = NODES) -> Mixing:
    """A directed ring."""
    return Mixing.uniform(topologies.ring(nodes))


# ---- a process


class Counted:
    """Notes when the messages of each link of the engine are posted, sent and received; the engine itself does not."""

    def __init__(self) -> None:
        self.times: dict[str, list[float]] = defaultdict(list)
        put, transfer = asynchronous.Outbox.put, asynchronous._Link.transfer
        posted: dict[int, float] = {}

        def noted_put(link: asynchronous.Outbox, message: Tensor | None) -> None:
            posted[id(message)] = time.monotonic()
            self.times[f"posted {side_of(link)}"].append(posted[id(message)])
            put(link, message)

        def noted_transfer(link: asynchronous._Link, tensor: Tensor, *, sent: bool) -> None:
            if sent:
                self.times[f"sent {side_of(link)}"].append(posted[id(tensor)])  # when it was posted
            transfer(link, tensor, sent=sent)
            self.times[f"{'left' if sent else 'received'} {side_of(link)}"].append(time.monotonic())

        asynchronous.Outbox.put = noted_put  # type: ignore[method-assign]
        asynchronous._Link.transfer = noted_transfer  # type: ignore[method-assign]


def side_of(link: asynchronous._Link) -> str:
    """Pull or push."""
    return next(side for side, tag in asynchronous.TAGS.items() if tag == link.tag)


def work(folder: Path, rank: int, seconds: float) -> None:
    """One node: steps until the time is over; writes when steps ended, and its models."""
    torch.set_num_threads(1)
    limit = timedelta(seconds=120)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=NODES, timeout=limit)
    links.shaped(rank, None, (RATE, RATE), burst="6kb")
    counted, problem = Counted(), quadratic().of_node(rank)
    curvature, center = (part[0].float().repeat(COPIES) for part in (problem.hessians, problem.centers))
    x = torch.nn.Parameter(torch.zeros(PARAMETERS))
    dist.barrier()
    optimizer = Decentralized([x], RobustPushPull(), ring(), lr=LR, asynchronous=True, timeout=120)
    start = time.monotonic()
    ends, models = [], []
    while time.monotonic() < start + seconds:
        time.sleep(COMPUTE[rank])
        x.grad = curvature * (x.detach() - center)
        optimizer.step()
        ends.append(time.monotonic() - start)
        models.append(x.detach()[:KINDS].double().tolist())
    (folder / f"{rank}.json").write_text(
        json.dumps({"ends": ends, "models": models, "start": start, "times": counted.times})
    )
    optimizer.close()
    dist.barrier()
    dist.destroy_process_group()


# ---- measured and predicted


def measured(seconds: float) -> list[dict[str, Any]]:
    """What every process wrote."""
    with links.Namespaces(NODES) as spaces, tempfile.TemporaryDirectory() as name:
        links.use_reno(spaces)

        def watch(workers: list[subprocess.Popen[bytes]]) -> None:
            for _ in track(range(int(seconds) + 10), f"{NODES} processes", transient=True):
                for _ in range(10):
                    if any(worker.poll() is not None for worker in workers):
                        return
                    time.sleep(0.1)

        links.run_workers(str(Path(__file__).resolve()), [name, str(seconds)], NODES, spaces, watch)
        return [json.loads((Path(name) / f"{rank}.json").read_text()) for rank in range(NODES)]


def predicted(seconds: list[float]) -> tuple[list[float], AsynchronousRunning]:
    """|grad f|^2 at given seconds, and the run."""
    up = RATE * 1e6 / 8 * PAYLOAD
    clock = Clock(Machines(up=up), compute=COMPUTE, size=4.0 * (PARAMETERS + 1), protocol="rendezvous")
    simulation = Simulation(problem=quadratic(), algorithm=RobustPushPull(), mixing=ring(), lr=LR)
    running, values = AsynchronousRunning(simulation, clock), []
    with torch.no_grad():
        for time_ in seconds:
            running.advance(time_)
            values.append(norm(running.snapshot(time_).state.x[0]))
    return values, running


def norm(models: Tensor) -> float:
    """|grad f|^2 at the average of the models of a ring."""
    return float(quadratic().full_grad(models.mean(0)).square().sum())


def compare(seconds: float) -> str:
    """The tables of measured and predicted numbers."""
    load = os.getloadavg()[0]
    found = measured(seconds)
    times = [seconds * part for part in (0.25, 0.5, 0.75, 1.0)]
    values, running = predicted(times)
    (events,) = running.groups
    rows: list[tuple[str, float, float]] = []
    for node, one in enumerate(found):
        done = sum(end <= seconds for end in one["ends"])
        rows.append((f"steps per second, node {node}", done / seconds, events.steps[node] / seconds))
    for link in events.links:
        sender, receiver = (
            {what: np.array(noted) for what, noted in found[node]["times"].items()}
            for node in (link.source, link.target)
        )
        end, way = found[link.source]["start"] + seconds, f"{link.side}, {link.source} to {link.target}"
        arrived = receiver[f"received {link.side}"]
        arrived = arrived[arrived <= end]
        posted = sender[f"posted {link.side}"]
        left = sender[f"left {link.side}"]
        ages = arrived - sender[f"sent {link.side}"][: len(arrived)]
        rows.append((f"messages received, {way}", len(arrived), link.received))
        replaced = 1 - (left <= end).sum() / (posted <= end).sum()
        rows.append((f"share replaced, {way}", replaced, link.replaced / link.put))
        rows.append((f"age on arrival, s, {way}", ages.mean(), link.ages / link.received))
    for time_, value in zip(times, values, strict=True):
        latest = []
        for one in found:
            done = sum(end <= time_ for end in one["ends"])
            latest.append(one["models"][done - 1] if done else [0.0] * KINDS)
        rows.append((f"grad norm squared at {time_:g} s", norm(torch.tensor(latest, dtype=torch.float64)), value))
    text = [
        [name, f"{real:.4g}", f"{model:.4g}", f"{model / real - 1:+.1%}" if real > 1e-2 else "-"]
        for name, real, model in rows
    ]
    note = f"{NODES} processes, {PARAMETERS} parameters, {seconds:g} s; load average before: {load:.1f}."
    return f"{note}\n\n{links.table(['', 'measured', 'predicted', 'difference'], text)}"


# ---- when it pays


def settings() -> dict[str, tuple[Mixing, Any, float]]:
    """Network, compute times and bytes of a vector."""
    slow = [0.1] * 7 + [0.5]
    return {
        "equal machines, 4 MB": (ring(8), 0.1, 4e6),
        "equal machines, 5 MB: messages 20 % longer than a gradient": (ring(8), 0.1, 5e6),
        "one machine 5 times slower": (ring(8), slow, 4e6),
        "one machine 5 times slower, 5 MB": (ring(8), slow, 5e6),
        "stragglers (chance 0.1 of one more second)": (ring(8), "stragglers(0.1, 0.1, 1.0)", 4e6),
        "exponential graph, equal machines": (Mixing.uniform(topologies.exponential(8)), 0.1, 4e6),
        "exponential graph, one machine 5 times slower": (Mixing.uniform(topologies.exponential(8)), slow, 4e6),
    }


def seconds_to_goal() -> str:
    """Seconds to |grad f|^2 = 1e-6 at the best of some learning rates, simulated."""
    torch.set_num_threads(1)
    problem, rows = Quadratic.random(8, 10, seed=0), []
    rates = np.geomspace(0.02, 0.25, 8).round(3).tolist()
    for name, (mixing, compute, size) in track(settings().items(), "Simulating", transient=True):
        clock = Clock(
            Machines(latency=0.02, up=[1e8] * 8, down=[1e8] * 8), compute=compute, size=size, protocol="eager"
        )
        best = [(150.0, 0.0, None), (150.0, 0.0, None)]  # seconds, lr and settings; longer runs end
        for lr in reversed(rates):
            for kind, (limit, _, _) in enumerate(best):
                shared: dict[str, Any] = {
                    "clock": clock, "lr": lr, "trials": 2 if clock.random else 1, "metrics": ["grad_norm_sq"], "progress": False,
                }  # fmt: skip
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # some rates are too large
                    if kind == 0:
                        until = GOAL | {"seconds": limit}
                        history = simulate(problem, PushPull(), mixing, steps=3000, every=1, until=until, **shared)
                    else:
                        history = simulate_asynchronous(
                            problem, RobustPushPull(), mixing, seconds=limit, every=0.2, until=GOAL, **shared)  # fmt: skip
                if history.mean("grad_norm_sq")[-1] <= GOAL["grad_norm_sq"]:
                    best[kind] = (float(history.seconds[-1].mean()), lr, history.about)  # type: ignore[index, assignment]
        (waits, waits_lr, _), (pace, pace_lr, found) = best
        about: Any = found or {"messages_replaced": np.nan, "mean_age": np.nan}
        print(name, best[0][:2], best[1][:2], file=sys.stderr, flush=True)
        rows.append([name, f"{waits:.1f} ({waits_lr:g})", f"{pace:.1f} ({pace_lr:g})", f"{waits / pace:.2f}",
                     f"{about['messages_replaced']:.0%}", f"{about['mean_age']:.2f}"])  # fmt: skip
    header = ["8 nodes, directed ring", "synchronous, s (lr)", "own pace, s (lr)", "ratio", "replaced", "mean age, s"]
    return links.table(header, rows)


def speed() -> str:
    """Steps of nodes per second of the simulation."""
    rows = []
    torch.set_num_threads(1)
    for nodes in (8, 64):
        for graph in ("ring", "exponential"):
            clock = Clock(Machines(latency=0.03, rate=1e6), compute="exponential(0.1)", protocol="eager")
            problem = Quadratic.random(nodes, 10, noise_std=0.1)
            start = time.process_time()
            history = simulate_asynchronous(
                problem, RobustPushPull(), graph, clock=clock, steps=20_000 / nodes, lr=1e-3
            )
            rows.append([str(nodes), graph, f"{sum(history.about['node_steps']) / (time.process_time() - start):.0f}"])
    return links.table(["nodes", "graph", "steps of a node per second of processor time"], rows)


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:  # worker FOLDER SECONDS RANK NODES
        work(Path(sys.argv[2]), int(sys.argv[4]), float(sys.argv[3]))
        sys.exit()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulate", action="store_true")
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--seconds", type=float, default=60.0)
    given = parser.parse_args()
    if given.simulate or given.speed:
        print(seconds_to_goal() if given.simulate else speed())
    elif problem := links.unavailable():
        sys.exit(f"No processes are measured: {problem}")
    else:
        print(compare(given.seconds))

"""Nodes that step at their own pace on simulated machines, as with `Decentralized(asynchronous=True)`, in seconds of a clock."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from math import ceil, isfinite
from typing import Any

import numpy as np
import torch
from torch import Tensor

from perron._typing import FloatArray, real_number
from perron.algorithms.base import Algorithm
from perron.clock import Clock
from perron.errors import PerronError, brief
from perron.monitor.progress import Bar, OnProgress
from perron.networks.graph import Graph
from perron.networks.mixing import Mixing
from perron.problems.base import Problem
from perron.schedules import LearningRate, rate_at
from perron.simulation._events import BUFFER, Events
from perron.simulation._inputs import as_clock, as_until
from perron.simulation.history import MOST, History, Recorder, about_run
from perron.simulation.metrics import Metric
from perron.simulation.simulator import Simulation
from perron.simulation.snapshot import Snapshot, Traffic

RECORDS = 200


def simulate_asynchronous(
    problem: Problem,
    algorithm: Algorithm | str,
    mixing: Mixing | Graph | str,
    *,
    clock: Clock | Any,
    seconds: float | None = None,
    steps: float | None = None,
    lr: LearningRate | None = None,
    every: float | None = None,
    metrics: Sequence[str | Metric] = ("grad_norm_sq", "consensus_error_sq"),
    trials: int | Sequence[int] = 1,
    seed: int = 0,
    start: Tensor | None = None,
    dtype: torch.dtype | None = None,
    buffer: float = BUFFER,
    until: Mapping[str, float] | None = None,
    progress: bool | OnProgress | None = None,
) -> History:
    """Run a robust algorithm whose nodes step at their own pace, and measure it at given seconds of a clock.

    No node waits for another: each computes a gradient, takes the newest message of each neighbor that has arrived by then, and
    posts its own. On each link and side (models, sums) one message is on its way out, and one waits for it, which a newer one
    replaces, as in `perron.Decentralized` with ``asynchronous=True``.

    Times are those of the clock. The messages of a node queue for its uplink in the order in which they are posted, those that it
    receives for its downlink in the order in which they arrive, and each passes at the slowest rate of link, uplink and downlink;
    then comes the latency. With ``protocol="rendezvous"``, as gloo, a message leaves once the receiver has the one before
    it and has asked for the next. A step takes the time of its gradient, ``overhead``, and ``per_byte`` for the messages that are
    read; ``ahead`` does not apply.

    Args:
        problem, algorithm, mixing, lr, trials, seed, start, dtype: as in `Simulation`. The algorithm must be robust
            (`perron.algorithms.RobustPushPull`). A schedule of learning rates is a function of each node's own step.
        clock: a `perron.Clock`, or what `Simulation` takes for one. Every gradient must take some time.
        seconds: of the clock, at which the run ends.
        steps: instead of seconds: the run ends when nodes have done that number of steps on average.
        every: seconds between two records; a 200th of the run if None.
        metrics: names from `perron.metrics.METRICS`, or functions of a `Snapshot`; not those of every single step.
        buffer: with ``protocol="rendezvous"``, bytes of a message that its sender's system stores. The next message is taken when
            no more than that is left of the one before it, and then waits until the receiver asks: it is older when it arrives.
            Linux stores up to 4 MB, fewer on links that are slow; measured, messages of 0.2 MB at 20 Mbit/s were stored whole.
        until: as in `perron.simulate`.
        progress: whether to show a progress bar; by default on a terminal. Or a function that is called about twice a second with
            the mean number of steps and the last measured values.

    Random numbers are keyed by node and by the node's own number of draws: they do not depend on who is faster.

    Returns:
        A `History` with ``seconds``; ``steps`` is the mean number of steps of a node. Its ``about`` has, as means over trials,
        the steps of each node (``node_steps``), the numbers of messages posted and received (``messages_posted``,
        ``messages_received``), the share replaced by newer ones before they left (``messages_replaced``), and the age in seconds
        of those that were read (``mean_age``).

    Example:
        >>> import perron
        >>> problem = perron.problems.Quadratic.random(4, 3, seed=1)
        >>> clock = perron.Clock(perron.Machines(latency=0.05), compute=[0.1, 0.1, 0.1, 0.5], protocol="eager")
        >>> history = simulate_asynchronous(problem, "robust_push_pull", "ring", clock=clock, seconds=60)
        >>> history.about["node_steps"]
        [600.0, 600.0, 600.0, 120.0]
        >>> bool(history.mean("grad_norm_sq")[-1] < 1e-6)
        True
    """
    made = as_clock(clock)
    if made is None:
        raise PerronError("Nodes at their own pace need a clock, as clock=perron.Clock(machines, compute=0.1).")
    given: dict[str, Any] = {"problem": problem, "algorithm": algorithm, "mixing": mixing, "lr": lr, "start": start}
    simulation = Simulation(**given, trials=trials, seed=seed, dtype=dtype)
    _check(simulation, made)
    made = made.matched(simulation.mixing)
    room = real_number(buffer)
    if room is None or not room >= 0:
        raise PerronError(f"buffer is a number of bytes that is not negative; got {brief(buffer)}.")
    pace = _pace(simulation, made)
    times = _records(_end(seconds, steps, pace), every)
    metrics = [metrics] if isinstance(metrics, str) else metrics
    recorder = Recorder(metrics, {0}, until=as_until(until))
    if refused := [name for name in recorder.metrics if name in recorder.watchers or recorder.needs_previous]:
        raise PerronError(
            f"Metrics of single steps of all nodes together do not exist where nodes do not step together; leave out "
            f"{', '.join(refused)}."
        )
    running = AsynchronousRunning(simulation, made, buffer=room)
    interrupted = False
    title = f"{simulation.algorithm.about.title}, own pace"
    with Bar(ceil(times[-1] * pace.mean()), progress, title) as bar, torch.no_grad():
        try:
            for time in times:
                running.advance(time, lambda: bar.update(running.steps))
                now = running.snapshot(time)
                recorder.due = {now.step}
                bar.update(now.step, recorder.observe(now))
                if recorder.reached:
                    break
                if not bool(now.state.x.isfinite().any()):
                    warnings.warn(f"{title}: diverged by {time:.4g} seconds: lr is too large.", stacklevel=2)
                    break
        except KeyboardInterrupt:
            interrupted = True
    about = about_run(simulation, running.steps, recorder)
    about |= {"seconds": times[-1], "compute": str(made.times), "protocol": made.protocol} | running.about()
    return recorder.history(simulation.numbers, about, interrupted=interrupted)


class AsynchronousRunning:
    """A simulation in progress: one set of events for all trials, or one for each if compute times are random."""

    def __init__(self, simulation: Simulation, clock: Clock, *, buffer: float = BUFFER) -> None:
        self.simulation, self.first = simulation, simulation.first()
        numbers = simulation.numbers
        groups = [[place] for place in range(len(numbers))] if clock.random else [list(range(len(numbers)))]
        self.groups = [
            Events(simulation, clock, [numbers[place] for place in group], self.first[group], buffer=buffer)
            for group in groups
        ]
        self.problem = simulation.problem.to(dtype=simulation.precision, device="cpu")

    def advance(self, seconds: float, report: Any = lambda: None) -> None:
        """Do all that happens until a time."""
        for group in self.groups:
            group.advance(seconds, report)

    @property
    def steps(self) -> int:
        """The mean number of steps of a node, rounded."""
        return round(float(np.mean([group.steps for group in self.groups])))

    def snapshot(self, seconds: float) -> Snapshot:
        """Return everything that is known at a time, to which the run has advanced."""
        one, groups = self.simulation, self.groups
        states = [group.state for group in groups]
        state = states[0] if len(states) == 1 else type(states[0])(*map(torch.cat, zip(*states, strict=True)))
        sent, size = (np.mean(each) for each in ([sum(link.sent for link in group.links) for group in groups],
                                                 [group.bytes for group in groups]))  # fmt: skip
        gradients = float(np.mean([[oracle.gradients for oracle in group.oracles] for group in groups]))
        lr = rate_at(one.rate, self.steps)
        traffic = Traffic(messages=round(float(sent)), bytes=round(float(size)))
        times: FloatArray = np.full((1, 1), seconds)
        return Snapshot(self.steps, state, None, [], lr, traffic, self.problem, one.algorithm, one.network, notes={},
                        gradients=gradients, times=times)  # fmt: skip

    def about(self) -> dict[str, Any]:
        """Return the steps of each node, and what became of the messages."""
        links = [link for group in self.groups for link in group.links]
        put = sum(link.put for link in links)
        reads = sum(group.reads for group in self.groups)
        return {
            "node_steps": np.mean([group.steps for group in self.groups], axis=0).tolist(),
            "messages_posted": put / len(self.groups),
            "messages_received": sum(link.received for link in links) / len(self.groups),
            "messages_replaced": sum(link.replaced for link in links) / max(put, 1),
            "mean_age": sum(group.ages for group in self.groups) / max(reads, 1),
        }


def _check(simulation: Simulation, clock: Clock) -> None:
    """Refuse what the engine refuses, and steps that take no time."""
    about, n = simulation.algorithm.about, simulation.mixing.nodes
    if not about.robust:
        raise PerronError(
            f"{about.title} needs every message of every step, so its nodes have to wait for each other; use RobustPushPull, or "
            "simulate(..., clock=clock)."
        )
    if simulation.mixing.varies:
        raise PerronError(f"Nodes at their own pace need a fixed network; {simulation.mixing!r} varies in time.")
    if simulation.problem.memory:
        raise PerronError(
            f"{type(simulation.problem).__name__} keeps more than the model on its nodes, as statistics of BatchNorm, which is "
            "not collected from nodes at their own pace; use a model without."
        )
    clock.record.check_nodes(n)
    if clock.times.nodes not in (None, n):
        raise PerronError(f"compute has {clock.times.nodes} times but the network {n} nodes; they must be equal.")


def _pace(simulation: Simulation, clock: Clock) -> FloatArray:
    """Steps per second of each node, in the mean."""
    n = simulation.mixing.nodes
    # One gradient for each step of the robust algorithm, and no waiting.
    read = sum(simulation.mixing.link_count(side, 0) for side in ("pull", "push")) / n
    size = simulation.problem.dim * simulation.precision.itemsize if clock.size is None else clock.size
    seconds = clock.times.means(n) + clock.overhead + clock.per_byte * read * size
    if not (seconds > 0).all():
        node = int(np.argmin(seconds))
        raise PerronError(
            f"A step of node {clock.record.label(node)} takes no time, so it would do infinitely many at once: pass compute= to "
            "Clock, the seconds of a gradient."
        )
    return 1 / seconds


def _end(seconds: Any, steps: Any, pace: FloatArray) -> float:
    """The time at which the run ends."""
    if (seconds is None) == (steps is None):
        raise PerronError(f"Pass either seconds= or steps=; got seconds={seconds!r}, steps={steps!r}.")
    what, value = ("seconds", seconds) if steps is None else ("steps", steps)
    number = real_number(value)
    if number is None or not (isfinite(number) and number >= 0):
        raise PerronError(f"{what} is a finite number that is not negative; got {brief(value)}.")
    return number if steps is None else float(number / pace.mean())


def _records(end: float, every: Any) -> list[float]:
    """The times of records: zero, multiples of ``every``, and the end."""
    given, every = every, end / RECORDS or 1.0 if every is None else real_number(every)
    if every is None or not (isfinite(every) and every > 0):
        raise PerronError(f"every is a positive number of seconds between two records; got {brief(given)}.")
    if end / every > MOST:
        raise PerronError(f"Records every {every:g} of {end:g} seconds are more than {MOST:,}; choose a larger every.")
    times = [k * every for k in range(int(end / every * (1 + 1e-9)) + 1)]
    return times if end - times[-1] <= 1e-9 * end else [*times, end]

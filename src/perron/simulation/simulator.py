"""The simulator: all nodes and all trials in one process, measured while they run, interrupted and resumed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from perron._threads import single_threaded
from perron.algorithms.base import Algorithm
from perron.algorithms.codecs import Wire, codec_of
from perron.algorithms.unreliable import LinkFaults
from perron.clock import Clock
from perron.errors import PerronError
from perron.monitor.progress import Bar, OnProgress
from perron.networks.facts import Network
from perron.networks.graph import Graph
from perron.networks.mixing import Mixing
from perron.networks.repeat import repeat
from perron.problems.base import Problem
from perron.schedules import LearningRate
from perron.simulation._inputs import (
    as_algorithm,
    as_clock,
    as_count,
    as_dtype,
    as_mixing,
    as_start,
    as_trials,
    as_until,
    check_options,
    check_problem,
    check_rate,
)
from perron.simulation.checkpoint import RunCheckpoint
from perron.simulation.history import History, Recorder, about_run, recorded
from perron.simulation.metrics import Metric
from perron.simulation.running import Running
from perron.simulation.snapshot import Snapshot


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """The settings of a run.

    Args:
        problem, algorithm, mixing: what is minimized, how, and over which network. An algorithm may be a name, and a mixing a
            graph or the name of a topology, which get uniform weights.
        lr: learning rate: a number, a tensor ``(n, 1)`` with one per node, or a schedule; the algorithm's default step if None.
        trials: number of independent trials that run side by side, or their indices.
        seed: of gradient noise and minibatches; runs with the same seed share them (common random numbers).
        start: initial models, ``(n, d)`` or ``(trials, n, d)``; those of the problem if None.
        dtype: precision; that of the problem if None.
        device: a torch device.
        loss, delay, repeats: faults of unreliable links, see `perron.algorithms.unreliable.LinkFaults`.
        wire: ``"bf16"``, ``"int8"`` or ``"int4"`` for quantized messages, see `perron.algorithms.quantized`.
        rounds: number of exchanges in a step: models and trackers are mixed that often.
        clock: a `perron.Clock`, which tells how many seconds the run would take on given machines; or a file of links, or the
            name of a preset, for a clock without further settings. It changes no values. Losses and delays take no time.
        compiled: whether steps run in a compiled loop, which needs numba; values are equal to rounding. By default where the
            algorithm, the network and the problem allow it; True raises an error with the reason where they do not.
    """

    problem: Problem
    algorithm: Algorithm
    mixing: Mixing
    lr: LearningRate | None = None
    trials: int | Sequence[int] = 1
    seed: int = 0
    start: Tensor | None = None
    dtype: torch.dtype | None = None
    device: str = "cpu"
    loss: float = 0.0
    delay: int = 0
    repeats: float = 0.0
    wire: Wire | None = None
    rounds: int = 1
    clock: Clock | None = None
    compiled: bool | None = None

    def __post_init__(self) -> None:
        check_problem(self.problem)
        converted = {
            "algorithm": as_algorithm(self.algorithm).with_l1(self.problem.proximal_l1),
            "mixing": as_mixing(self.mixing, self.problem.nodes),
            "lr": check_rate(self.lr), "trials": as_trials(self.trials), "seed": as_count("seed", self.seed),
            "start": as_start(self.start), "dtype": as_dtype(self.dtype), "clock": as_clock(self.clock),
        }  # fmt: skip
        vars(self).update(converted)  # the way into a frozen dataclass
        if self.problem.nodes != self.mixing.nodes:
            raise PerronError(
                f"The problem has {self.problem.nodes} nodes but the network {self.mixing.nodes}; they must be equal."
            )
        if not len(self.numbers):
            raise PerronError(f"A simulation needs at least one trial; got trials={self.trials!r}.")
        try:
            torch.empty(0, device=self.device)
        except (RuntimeError, AssertionError) as error:  # torch asserts that it was built for a GPU
            reason = str(error).splitlines()[0]
            raise PerronError(
                f"The device {self.device!r} is not available ({reason}); choose another, as device='cpu'."
            ) from None
        if self.rounds > 1 and (self.links or self.wire):
            raise PerronError(
                f"rounds={self.rounds} needs reliable links in full precision; leave out loss, delay and wire."
            )
        self.algorithm.check(self.network)
        if self.wire is not None:
            codec_of(self.wire)
            if self.precision.itemsize < 4:
                raise PerronError(
                    f"wire={self.wire!r} quantizes numbers of 32 or 64 bits; got dtype={self.precision}. Pass wire=None, or "
                    "dtype='float32'."
                )
            if self.links:
                raise PerronError(
                    f"wire={self.wire!r} sends changes, and a lost message would never be made up for: it needs reliable links. "
                    "Leave out loss, delay and repeats, or pass wire=None."
                )
        if self.links.delay and self.mixing.varies:
            raise PerronError(
                f"{self.mixing!r} varies in time: a late message would arrive on a link that no longer exists. Give one graph, "
                "or delay=0."
            )
        if self.links and not self.algorithm.about.robust:
            warnings.warn(
                f"Links {self.links}: {self.algorithm.about.title} keeps no guarantee. RobustPushPull does.",
                stacklevel=3,
            )

    @cached_property
    def network(self) -> Network:
        """Spectral facts of the network as a step sees it, computed once."""
        return Network(repeat(self.mixing, self.rounds))

    @cached_property
    def links(self) -> LinkFaults:
        """The faults of the links."""
        return LinkFaults(loss=self.loss, delay=self.delay, repeats=self.repeats)

    @cached_property
    def numbers(self) -> list[int]:
        """The indices of the trials."""
        return list(range(self.trials)) if isinstance(self.trials, int) else [int(number) for number in self.trials]

    @property
    def precision(self) -> torch.dtype:
        """The precision: the given one, or that of the problem."""
        return self.dtype or self.problem.dtype

    @cached_property
    def rate(self) -> LearningRate:
        """The learning rate: the given one, or the algorithm's default step."""
        if self.lr is not None:
            return self.lr
        if self.problem.smoothness is None:
            raise PerronError("Without a smoothness constant of the problem there is no default step: pass lr=.")
        return self.algorithm.default_lr(self.network, self.problem.smoothness)

    def iterates(self, steps: int) -> Iterator[Snapshot]:
        """Yield snapshots after 0, 1, ..., ``steps`` steps, for loops of your own.

        The state of a large model is updated in place: clone what has to last until after the next step.
        """
        running = Running(self)
        yield running.snapshot()
        for _ in range(steps):
            running.advance()
            yield running.snapshot()

    def first(self) -> Tensor:
        """Return the initial models of all nodes and trials."""
        start = self.problem.start() if self.start is None else self.start
        shape = (len(self.numbers), self.problem.nodes, self.problem.dim)
        try:
            placed = start.to(device=self.device, dtype=self.precision)
            return placed.expand(shape).clone(memory_format=torch.contiguous_format)
        except RuntimeError:
            raise PerronError(
                f"start has shape {tuple(start.shape)}; it must fit (trials, nodes, dim) = {shape}."
            ) from None


def simulate(
    problem: Problem,
    algorithm: Algorithm | str,
    mixing: Mixing | Graph | str,
    *,
    steps: int,
    lr: LearningRate | None = None,
    every: int | Literal["log"] | None = None,
    metrics: Sequence[str | Metric] = ("grad_norm_sq", "consensus_error_sq"),
    final_metrics: Sequence[str | Metric] = (),
    progress: bool | OnProgress | None = None,
    log: Callable[..., object] | None = None,
    checkpoint: str | Path | None = None,
    save_every: float = 60.0,
    until: Mapping[str, float] | None = None,
    **options: Any,
) -> History:
    """Run an algorithm and measure it.

    Args:
        problem, algorithm, mixing, lr: as in `Simulation`, which also takes the further options (trials, seed, start, dtype,
            device, loss, delay, repeats, wire, rounds, clock).
        steps: number of steps.
        every: steps between two records, or ``"log"`` for records that are evenly spaced on a logarithmic scale; by default
            about 200 records. The start and the end are always recorded.
        metrics: names from `perron.metrics.METRICS`, or functions of a `Snapshot`.
        final_metrics: the same, but measured only after the last step because they take long; nan before.
        progress: whether to show a progress bar; by default on a terminal. Or a function that is called about twice a second
            with the step and the last measured values.
        log: called with each recorded step and the means of its values over trials, as ``log(step, grad_norm_sq=...)``; for
            example a `perron.Log`, for `perron watch`.
        checkpoint: a file in which the run is saved; if it exists, the run resumes from it, bit for bit. The previous
            save is kept as FILE.before, and the run resumes from there if FILE is damaged.
        save_every: seconds between two saves; the end of the run is always saved.
        until: values of metrics at which the run ends before ``steps``, as ``{"grad_norm_sq": 1e-8}``: at the first record where
            the mean over trials of each is at most its value (of accuracies, at least). Values of seconds, epochs, messages and
            bytes_sent are limits: the run ends at the first record that has one of them used up.

    With a ``clock``, ``history.seconds`` has the time of each record on it, for ``history.plot(metric, x="seconds")`` and
    ``history.time_to(metric, value)``; the metric ``seconds_spread`` is how far nodes are apart.

    Ctrl-C ends the run and returns what was measured, with ``interrupted`` set. A run in which no trial is finite any more
    ends with a warning.

    Example:
        >>> import perron
        >>> mixing = perron.Mixing.random_integer(perron.topologies.exponential(8), seed=0)
        >>> problem = perron.problems.Quadratic.random(8, noise_std=0.1)
        >>> history = simulate(problem, perron.PushPull(), mixing, steps=400, trials=5)
        >>> bool(history.mean("grad_norm_sq")[-1] < 1e-2)
        True
    """
    if (steps := as_count("steps", steps)) < 0:
        raise PerronError(f"simulate needs steps >= 0; got {steps}.")
    check_options(options, Simulation)
    metrics = [metrics] if isinstance(metrics, str) else metrics
    given: dict[str, Any] = {"problem": problem, "algorithm": algorithm, "mixing": mixing, "lr": lr}
    simulation = Simulation(**given, **options)
    recorder = Recorder(metrics, recorded(steps, every), final_metrics, as_until(until))
    running = Running(simulation, keep_previous=recorder.needs_previous)
    file = None if checkpoint is None else RunCheckpoint(checkpoint, save_every, simulation, list(recorder.metrics))
    lock = nullcontext() if file is None else file.lock()
    interrupted = False
    every_step = bool(recorder.watchers) or (file is not None and not file.interval)
    threads = single_threaded() if running.small else nullcontext()
    with lock, threads, Bar(steps, progress, simulation.algorithm.about.title, log) as bar, torch.no_grad():
        try:
            if file is None or not file.load(running, recorder, steps):
                bar.update(0, recorder.observe(running.snapshot()))
            elif running.step == steps and steps not in recorder.steps:  # it was saved just before its end
                bar.update(steps, recorder.observe(running.snapshot()))
            while running.step < steps and not recorder.reached:
                running.advance(running.together(1 if every_step else recorder.next_due(running.step) - running.step))
                now = running.snapshot()
                values = recorder.observe(now)
                bar.update(now.step, values)
                if values is not None and not any(bool(x.isfinite().any()) for x in now.state.x.unbind(-2)):
                    warnings.warn(
                        f"{simulation.algorithm.about.title} diverged by step {now.step}: lr is too large.",
                        stacklevel=2,
                    )
                    break
                if file is not None:
                    file.save(running, recorder, force=running.step == steps or recorder.reached)
        except KeyboardInterrupt:
            interrupted = True
    return recorder.history(
        simulation.numbers, about_run(simulation, steps, recorder) | running.about(), interrupted=interrupted
    )

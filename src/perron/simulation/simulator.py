"""The simulator: all nodes and all trials in one process, measured while they run, interrupted and resumed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from operator import add
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from perron._storage import tensorfile
from perron.algorithms.base import Algorithm, advance
from perron.algorithms.codecs import Wire, codec_of, wire_sizes
from perron.algorithms.node import Node
from perron.algorithms.quantized import quantized
from perron.algorithms.unreliable import LinkFaults, Unreliable
from perron.algorithms.wrappers import Counting, Repeated
from perron.clock import Clock
from perron.errors import PerronError
from perron.monitor.progress import Bar, OnProgress
from perron.networks.facts import Network
from perron.networks.graph import Graph
from perron.networks.mixing import Mixing
from perron.networks.repeat import repeat
from perron.problems.base import Problem
from perron.random import NOISE, Keyed
from perron.schedules import LearningRate, rate_at
from perron.simulation import _blockwise
from perron.simulation._blockwise import Blockwise, blocks, separable
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
from perron.simulation._oracle import Oracle
from perron.simulation.checkpoint import RunCheckpoint
from perron.simulation.history import History, Recorder, about_run, recorded
from perron.simulation.metrics import Metric
from perron.simulation.node import SimulatedNode
from perron.simulation.snapshot import Snapshot, Traffic, converted_traffic


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


class Running:
    """A simulation in progress.

    Args:
        simulation: what is run.
        keep_previous: whether snapshots need the state before the step; block by block, that costs a copy.
    """

    def __init__(self, simulation: Simulation, *, keep_previous: bool = False) -> None:
        one, dtype, device = simulation, simulation.precision, simulation.device
        self.simulation, self.keep_previous = one, keep_previous
        self.problem = one.problem.to(dtype=dtype, device=device)
        counts = one.problem.sample_counts
        self.inner = SimulatedNode(
            one.mixing, trials=one.numbers, seed=one.seed, dtype=dtype, device=device, samples=counts
        )
        random = Keyed(one.seed, trials=one.numbers, nodes=self.inner.nodes, stream=NOISE, device=device)
        self.step, self.oracle = 0, Oracle(self.problem, random)
        self.lr: float | Tensor = 0.0
        self.previous: Any = None
        self.unreliable = Unreliable(self.inner, one.links) if one.links else None
        self.node: Node = self.unreliable or self.inner
        self.algorithm = quantized(one.algorithm, one.wire, one.mixing)
        self.traffic = Traffic()
        self._per_step: Traffic | None = None
        first = one.first()
        large = first.numel() * first.element_size() > _blockwise.LARGE and not one.algorithm.about.samples
        self.blockwise = self._blockwise(first) if large else None
        self.state = self.blockwise.state if self.blockwise else self.algorithm.init(first, self.node)
        sizes: Any = wire_sizes(one.wire, one.problem.dim, dtype.itemsize)._asdict()
        draws: Any = {"rounds": one.rounds, "seed": one.seed, "trials": one.numbers}
        self.timer = None if one.clock is None else one.clock.start(one.algorithm, one.mixing, **sizes, **draws)

    def _blockwise(self, first: Tensor) -> Blockwise:
        width = first.shape[-1]
        # Losses and rounding act on whole vectors, and so may the algorithm.
        if (
            self.node is self.inner
            and self.algorithm is self.simulation.algorithm
            and self.simulation.rounds == 1
            and separable(self.simulation.algorithm, first, self.inner)
        ):
            width = blocks(first)[0].stop
        return Blockwise(self.algorithm, first, self.node, width)

    def advance(self) -> None:
        """Do one step."""
        self.inner.step, self.lr = self.step, rate_at(self.simulation.rate, self.step)
        oracle = self.oracle
        oracle.grads = []
        sent = self._per_step
        counting = self._counting() if sent is None else None
        node = counting or self.node
        if self.simulation.rounds > 1:
            node = Repeated(node, self.simulation.rounds)
        if self.blockwise is None:
            self.previous = self.state
            self.state = advance(self.algorithm, self.state, node, self.lr, oracle.gradient, oracle.query)
        else:
            self.previous = type(self.state)(*(value.clone() for value in self.state)) if self.keep_previous else None
            self.blockwise.advance(self.lr, oracle.gradient_into, node)
            self.state = self.blockwise.state
        if self.timer is not None:
            self.timer.advance(self.step)
        self.step += 1
        if counting is not None:
            sent = Traffic(*counting.counts)
            constant = not self.simulation.mixing.varies and self.simulation.wire is None
            self._per_step = sent if constant else None  # some exchanges of quantized messages are in full precision
        if sent is not None:
            self.traffic = Traffic(*map(add, self.traffic, sent))

    def _counting(self) -> Counting:
        """A node that counts what one step sends; over a network that does not vary, every step sends the same."""
        block = (self.blockwise.blocks[0].stop, self.simulation.problem.dim) if self.blockwise else (0, 0)
        return Counting(self.node, block=block, link_count=self.simulation.mixing.link_count)

    def snapshot(self) -> Snapshot:
        """Return everything that is known after the current step."""
        one = self.simulation
        before = self.previous if self.step else None
        facts = (self.lr, self.traffic, self.problem, one.algorithm, one.network)
        grads, count = self.oracle.grads, self.oracle.gradients
        times = None if self.timer is None else self.timer.times.now
        return Snapshot(self.step, self.state, before, grads, *facts, notes={}, gradients=count, times=times)

    def saved(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return what is needed to resume, as tensors and numbers. Keyed random numbers have no state."""
        tensors = {f"state.{name}": value for name, value in self.state._asdict().items()}
        tensors |= {f"memory.{name}": value for name, value in self.problem.memory.items()}
        in_transit = self.unreliable.state_dict() if self.unreliable else {}
        tensors |= {f"links.{name}": value for name, value in in_transit.items()}
        tensors |= {f"clock.{name}": value for name, value in (self.timer.saved() if self.timer else {}).items()}
        counts = {"draws": self.oracle.draws, "evaluated": self.oracle.evaluated, "traffic": self.traffic._asdict()}
        return tensors, {"step": self.step} | counts

    def restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Resume from what was saved."""
        self.step, self.oracle.draws = facts["step"], facts["draws"]
        self.oracle.evaluated = facts.get("evaluated", 0)  # version 0.1 had no metric that needs it
        older = "traffic" not in facts
        self.traffic = (
            converted_traffic(facts["counts"], self.simulation.mixing) if older else Traffic(**facts["traffic"])
        )
        if self.blockwise is None:
            # Copies: what was read is a view of the file, which may change.
            values = (tensors[f"state.{name}"].to(self.simulation.device).clone() for name in self.state._fields)
            self.state = type(self.state)(*values)
        else:  # in place, so that there is no second state
            for name, value in self.state._asdict().items():
                value.copy_(tensors[f"state.{name}"])
        self.problem.recall(tensorfile.part(tensors, "memory."))
        if self.unreliable is not None:
            in_transit = tensorfile.part(tensors, "links.")
            self.unreliable.load_state_dict({name: v.to(self.simulation.device) for name, v in in_transit.items()})
        if self.timer is not None:
            self.timer.restore(tensorfile.part(tensors, "clock."))


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
    with lock, Bar(steps, progress, simulation.algorithm.about.title, log) as bar, torch.no_grad():
        try:
            if file is None or not file.load(running, recorder, steps):
                bar.update(0, recorder.observe(running.snapshot()))
            elif running.step == steps and steps not in recorder.steps:  # it was saved just before its end
                bar.update(steps, recorder.observe(running.snapshot()))
            while running.step < steps and not recorder.reached:
                running.advance()
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
    return recorder.history(simulation.numbers, about_run(simulation, steps, recorder), interrupted=interrupted)

"""Runs in one process: all nodes and all trials side by side, measured as they go, interrupted and resumed."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from perron._storage import tensorfile as saved
from perron._storage.lockfile import LOCK, exclusive_lock
from perron.algorithms.base import Algorithm, advance
from perron.algorithms.node import Counting, Node, Quantized
from perron.algorithms.unreliable import Links, Unreliable
from perron.errors import FileError, PerronError
from perron.monitor.progress import Bar, OnProgress
from perron.networks.facts import Network
from perron.networks.mixing import Mixing
from perron.problems.base import Problem
from perron.random import NOISE, Keyed
from perron.schedules import LearningRate, rate_at
from perron.simulation._blockwise import Stripes, stripes
from perron.simulation.history import History, Recorder, recorded
from perron.simulation.metrics import Metric, Snapshot
from perron.simulation.node import SimulatedNode


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """A run to be: who minimises what, over which network, how.

    Args:
        problem, algorithm, mixing: what, how, over which network.
        lr: a number, a tensor with one for each node ``(n, 1)``, or a schedule; None for the algorithm's default step.
        trials: how many independent runs side by side, or their numbers.
        seed: of gradient noise and minibatches; runs with the same seed share them (common random numbers).
        start: where the nodes start, ``(n, d)`` or ``(trials, n, d)``; the problem's own starting point if None.
        dtype: the precision; the problem's own if None.
        device: where tensors live, as torch names it.
        loss, delay, repeats: of links that are not reliable; see `perron.algorithms.unreliable.Links`.
        wire: ``"bf16"`` or ``"int8"`` for messages in few bits.
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
    wire: Literal["bf16", "int8"] | None = None

    def __post_init__(self) -> None:
        if self.problem.nodes != self.mixing.nodes:
            raise PerronError(
                f"The problem has {self.problem.nodes} nodes but the network {self.mixing.nodes}; they need as many."
            )
        if not len(self.numbers):
            raise PerronError(f"A simulation needs at least one trial; got trials={self.trials!r}.")
        try:
            torch.empty(0, device=self.device)
        except (RuntimeError, AssertionError) as error:  # torch asserts that it was built for a GPU
            told = str(error).splitlines()[0]
            raise PerronError(
                f"There is no device {self.device!r} here ({told}); choose another, as device='cpu'."
            ) from None
        self.algorithm.check(self.network)
        if self.links.delay and self.mixing.period > 1:
            raise PerronError(
                f"{self.mixing!r} has {self.mixing.period} graphs in turn: a message that is late would arrive on a link that is "
                "not there any more. Give one graph, or delay=0."
            )
        if self.links and not self.algorithm.about.robust:
            warnings.warn(
                f"Links {self.links}: {self.algorithm.about.title} keeps no guarantee. RobustPushPull does.",
                stacklevel=3,
            )

    @cached_property
    def network(self) -> Network:
        """The network's facts."""
        return Network(self.mixing)

    @cached_property
    def links(self) -> Links:
        """How reliable links are."""
        return Links(loss=self.loss, delay=self.delay, repeats=self.repeats)

    @cached_property
    def numbers(self) -> list[int]:
        """The numbers of the trials."""
        return list(range(self.trials)) if isinstance(self.trials, int) else [int(number) for number in self.trials]

    @property
    def precision(self) -> torch.dtype:
        """The given one, or the problem's own."""
        return self.dtype or self.problem.dtype

    @cached_property
    def rate(self) -> LearningRate:
        """The step size: the given one, or the algorithm's default."""
        if self.lr is not None:
            return self.lr
        if self.problem.smoothness is None:
            raise PerronError("Without a smoothness constant of the problem there is no default step: pass lr=.")
        return self.algorithm.default_lr(self.network, self.problem.smoothness)

    def iterates(self, steps: int) -> Iterator[Snapshot]:
        """Snapshots after 0, 1, ..., ``steps`` steps, for people who want their own loop.

        Of a problem that is kept in place, as `Neural`, a snapshot lasts until the next: clone what you want to keep.
        """
        running = Running(self)
        yield running.snapshot()
        for _ in range(steps):
            running.advance()
            yield running.snapshot()

    def first(self) -> Tensor:
        """Where all nodes of all trials start."""
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
    """A simulation under way: where it is, and all that decides how it goes on."""

    def __init__(self, simulation: Simulation) -> None:
        one, dtype, device = simulation, simulation.precision, simulation.device
        self.simulation, self.problem = one, one.problem.to(dtype=dtype, device=device)
        self.inner = SimulatedNode(one.mixing, trials=one.numbers, seed=one.seed, dtype=dtype, device=device)
        self.random = Keyed(one.seed, trials=one.numbers, nodes=self.inner.nodes, stream=NOISE, device=device)
        self.step = self.draws = 0
        self.lr: float | Tensor = 0.0
        self.previous: Any = None
        self.grads: list[Tensor] = []
        first = one.first()
        # Losses and rounding look at whole vectors, and so may the algorithm.
        whole = bool(one.links or one.wire) or not one.algorithm.coordinatewise
        parts = stripes(first, first.shape[-1] if whole else None)
        wire = {"bf16": 2, "int8": 1, None: None}[one.wire]
        self.node = Counting(self._wrapped(self.inner), wire=wire, stands_for=(parts[0].stop, first.shape[-1]))
        self.stripes = None
        if self.problem.in_place:
            self.stripes = Stripes(one.algorithm, first, self.node, others=self.inner, width=parts[0].stop)
        self.state = self.stripes.state if self.stripes else one.algorithm.init(first, self.node)

    def _wrapped(self, inner: Node) -> Node:
        self.links = Unreliable(inner, self.simulation.links) if self.simulation.links else None
        inner = self.links or inner
        return Quantized(inner, self.simulation.wire) if self.simulation.wire else inner

    def advance(self) -> None:
        """One step."""
        self.inner.step, self.lr, self.grads = self.step, rate_at(self.simulation.rate, self.step), []
        if self.stripes is None:
            self.previous = self.state
            self.state = advance(self.simulation.algorithm, self.state, self.node, self.lr, self._gradient)
        else:
            self.stripes.advance(self.lr, self._gradient)
            self.state = self.stripes.state
        self.step += 1

    def _gradient(self, point: Tensor, out: Tensor | None = None) -> Tensor:
        place = {} if out is None else {"out": out}
        grad = self.problem.grad(point, self.draws, self.random, **place)
        self.draws += 1
        self.grads.append(grad)
        return grad

    def snapshot(self) -> Snapshot:
        """All that is known now."""
        one = self.simulation
        previous = self.previous if self.step else None
        facts = (self.lr, self.node, self.problem, one.algorithm, one.network)
        return Snapshot(self.step, self.state, previous, self.grads, *facts, notes={})

    def saved(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """All that is needed to go on, as tensors and as numbers. Random numbers come by seed and draw: they have no state."""
        tensors = {f"state.{name}": value for name, value in self.state._asdict().items()}
        tensors |= {f"memory.{name}": value for name, value in self.problem.memory.items()}
        tensors |= {f"links.{name}": value for name, value in (self.links.saved() if self.links else {}).items()}
        counts = {"messages": self.node.messages, "bytes": self.node.bytes}
        return tensors, {"step": self.step, "draws": self.draws, "counts": counts}

    def restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Go on from what was saved."""
        self.step, self.draws = facts["step"], facts["draws"]
        self.node.messages, self.node.bytes = facts["counts"]["messages"], facts["counts"]["bytes"]
        if self.stripes is None:
            self.state = type(self.state)(
                *(tensors[f"state.{name}"].to(self.simulation.device) for name in self.state._fields)
            )
        else:  # in place, so that there is no second state
            for name, value in self.state._asdict().items():
                value.copy_(tensors[f"state.{name}"])
        self.problem.recall(saved.part(tensors, "memory."))
        if self.links is not None:
            under_way = saved.part(tensors, "links.")
            self.links.restore({name: value.to(self.simulation.device) for name, value in under_way.items()})


def simulate(
    problem: Problem,
    algorithm: Algorithm,
    mixing: Mixing,
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
    **options: Any,
) -> History:
    """Run an algorithm and measure it.

    Args:
        problem, algorithm, mixing, lr: as in `Simulation`, which also takes the further options (trials, seed, start, dtype,
            device, loss, delay, repeats, wire).
        steps: how many.
        every: measure after every so many steps, or at steps spaced evenly on a logarithmic scale; by default about 200 times.
            The start and the end are always measured.
        metrics: names from `perron.metrics.METRICS`, or functions of a `Snapshot`.
        final_metrics: likewise, but measured after the last step only, because they take long; nan before.
        progress: whether to show a progress bar; by default on a terminal. Or a function that is told the step and the values
            that were measured last, about twice a second.
        log: called with each measured step and the means of its values over trials, as ``log(step, grad_norm_sq=...)``: a
            `perron.Log`, for example, for `perron watch`.
        checkpoint: a file in which the run is kept; if it is there already, the run goes on from it, bit for bit. What was saved
            before stays beside it, as FILE.before: the run goes on from there if FILE is damaged.
        save_every: so many seconds after it was saved last, and at the end.

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
    if steps < 0:
        raise PerronError(f"simulate needs steps >= 0; got {steps}.")
    simulation = Simulation(problem=problem, algorithm=algorithm, mixing=mixing, lr=lr, **options)
    running, recorder = Running(simulation), Recorder(metrics, recorded(steps, every), final_metrics)
    keeper = None if checkpoint is None else Keeper(checkpoint, save_every, simulation, list(recorder.metrics))
    interrupted = False
    with _alone(checkpoint), Bar(steps, progress, algorithm.about.title, log) as bar, torch.no_grad():
        try:
            if keeper is None or not keeper.load(running, recorder, steps):
                bar.update(0, recorder.observe(running.snapshot()))
            elif running.step == steps and steps not in recorder.steps:  # it was saved just before its end
                bar.update(steps, recorder.observe(running.snapshot()))
            while running.step < steps:
                running.advance()
                now = running.snapshot()
                values = recorder.observe(now)
                bar.update(now.step, values)
                if values is not None and not any(bool(x.isfinite().any()) for x in now.state.x.unbind(-2)):
                    warnings.warn(
                        f"{algorithm.about.title} diverged by step {now.step}: lr is too large.", stacklevel=2
                    )
                    break
                if keeper is not None:
                    keeper.save(running, recorder, now_or_never=running.step == steps)
        except KeyboardInterrupt:
            interrupted = True
    return recorder.history(simulation.numbers, _about(simulation), interrupted=interrupted)


SOME = (0, 1, 10, 100, 1000, 10_000)  # steps at which learning rates are compared


class Keeper:
    """Saves a run now and then, and takes it up again where it was saved last.

    Args:
        path: the file; written in full or not at all.
        seconds: that pass between two times; more where saving takes longer than a fiftieth of them; 0 for every step.
        simulation, metrics: what is run and measured; the file of another run is refused.
    """

    def __init__(self, path: str | Path, seconds: float, simulation: Simulation, metrics: list[str]) -> None:
        self.path, self.seconds, self.last = Path(path), seconds, time.monotonic()
        self.began = self.last  # less what it took before it was taken up again
        self.whole = True  # of the file that is there: a damaged one is not worth being kept
        if not self.path.parent.is_dir() or self.path.is_dir():
            raise FileError(
                f"checkpoint={path} cannot be a file: make the directory {self.path.parent}, or choose another."
            )
        rates = [torch.as_tensor(rate_at(simulation.rate, step)).tolist() for step in SOME]
        facts = {
            "algorithm": simulation.algorithm.description, "network": simulation.mixing.fingerprint, "lr": rates,
            "problem": simulation.problem.fingerprint(), "trials": simulation.numbers, "seed": simulation.seed,
            "start": saved.digest([simulation.first()]), "precision": str(simulation.precision), "links": vars(simulation.links),
            "wire": simulation.wire, "metrics": metrics,
        }  # fmt: skip
        self.facts = json.loads(json.dumps(facts))

    def load(self, running: Running, recorder: Recorder, steps: int) -> bool:
        """Whether there was something to go on from."""
        if not self.path.exists():
            return False
        try:
            tensors, facts, wrong = saved.latest(self.path)
        except FileError as error:
            self.whole = False
            warnings.warn(f"{error} The run starts anew.", stacklevel=3)
            return False
        if not isinstance(facts.get("run"), dict):
            raise FileError(f"{self.path} holds no run of perron.simulate. Remove it, or choose another file.")
        if wrong:
            self.whole = False
            warnings.warn(
                f"{wrong} The run goes on from {saved.before(self.path)}, step {facts['step']}.", stacklevel=3
            )
        if differ := [key for key, value in self.facts.items() if facts["run"].get(key) != value]:
            raise PerronError(
                f"{self.path} was saved by another run: it differs in {', '.join(differ)}. Remove it, or choose another file."
            )
        if facts["step"] > steps:
            raise PerronError(
                f"{self.path} is at step {facts['step']} already; ask for more steps than {steps}, or choose another file."
            )
        running.restore(tensors, facts)
        recorder.restore(tensors)
        self.began -= facts.get("seconds", 0.0)
        return True

    def save(self, running: Running, recorder: Recorder, *, now_or_never: bool) -> None:
        """Save it, if it is time."""
        began = time.monotonic()
        if began - self.last < self.seconds and not now_or_never:
            return
        tensors, facts = running.saved()
        facts |= {"run": self.facts, "seconds": began - self.began}
        try:
            saved.write(self.path, tensors | recorder.saved(), facts, keep=self.whole)
            self.whole = True
        except FileError as error:
            warnings.warn(f"{error} The run goes on without being saved.", stacklevel=3)
        self.last = time.monotonic()
        if self.seconds:
            self.seconds = max(self.seconds, 50 * (self.last - began))


def _alone(checkpoint: str | Path | None) -> AbstractContextManager[None]:
    """Nobody else keeps a run in this file meanwhile."""
    place = None if checkpoint is None else Path(f"{checkpoint}{LOCK}")
    return exclusive_lock(
        place, f"Another process keeps a run in {checkpoint}", "wait for it, end it, or choose another file"
    )


def _about(simulation: Simulation) -> dict[str, Any]:
    rate = simulation.rate
    return {
        "algorithm": simulation.algorithm.about.title,
        "network": simulation.mixing.name,
        "nodes": simulation.mixing.nodes,
        "lr": rate if isinstance(rate, float | int) else "schedule" if callable(rate) else "per node",
        "seed": simulation.seed,
    }

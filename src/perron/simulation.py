"""All nodes and all trials in one process: tensors ``(trials, n, d)``, one matrix product mixes them all."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from scipy.sparse import issparse
from torch import Tensor

from perron.algorithm import Algorithm, advance
from perron.errors import PerronError
from perron.graph import FloatArray
from perron.history import History
from perron.keyed import LOSSES, NOISE, PARTICIPATION, Keyed
from perron.metrics import Metric, Snapshot, chosen
from perron.mixing import Mixing
from perron.network import Network
from perron.node import Counting, Handle, Lossy, Node, Quantized, Ready, Side
from perron.problem import Problem
from perron.schedule import LearningRate, rate_at


class SimulatedNode(Node):
    """All nodes of all trials at once; an exchange is done as soon as it is started.

    Args:
        mixing: the network.
        trials: how many, or their numbers; None for tensors without a trial axis.
        seed: of what nodes draw themselves.
    """

    def __init__(
        self,
        mixing: Mixing,
        *,
        trials: int | Sequence[int] | None = None,
        seed: int = 0,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
    ) -> None:
        self.mixing, self.nodes, self.step = mixing, mixing.nodes, 0
        self._count = None if trials is None else trials if isinstance(trials, int) else len(trials)
        self._dtype, self._device = dtype, device
        pulls, pushes = mixing.sequences
        self._matrices: dict[Side, list[Tensor]] = {
            "pull": [self._tensor(matrix) for matrix in pulls],
            "push": [self._tensor(matrix) for matrix in pushes],
        }
        self._batched = {
            side: [self._batch(matrix) for matrix in matrices] for side, matrices in self._matrices.items()
        }
        key = {"trials": trials, "nodes": self.nodes, "device": device}
        self._participation = Keyed(seed, stream=PARTICIPATION, **key)  # type: ignore[arg-type]
        self._losses = Keyed(seed, stream=LOSSES, **key)  # type: ignore[arg-type]
        self._lost = 0

    def _tensor(self, matrix: Any) -> Tensor:
        if not issparse(matrix):
            return torch.tensor(matrix, dtype=self._dtype, device=self._device)
        rows, columns, values = (
            torch.from_numpy(np.array(part)) for part in (matrix.indptr, matrix.indices, matrix.data)
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch calls its CSR tensors a beta feature
            return torch.sparse_csr_tensor(
                rows, columns, values, size=matrix.shape, dtype=self._dtype, device=self._device
            )

    def _batch(self, matrix: Tensor) -> Tensor | None:
        """The matrix once for each trial (without copying it), as the batched product wants it."""
        if self._count is None or matrix.layout != torch.strided:
            return None
        return matrix.expand(self._count, self.nodes, self.nodes)

    def _mixed(self, side: Side, x: Tensor) -> Tensor:
        which = self.step % len(self._matrices[side])
        batched = self._batched[side][which]
        if batched is not None and x.ndim == 3:
            return torch.bmm(batched, x)
        matrix = self._matrices[side][which]
        if matrix.layout == torch.strided or x.ndim == 2:
            return matrix @ x
        # Sparse matrices multiply flat ones: the trials stand side by side.
        flat = x.transpose(0, 1).reshape(self.nodes, -1)
        return (matrix @ flat).view(self.nodes, x.shape[0], x.shape[2]).transpose(0, 1)

    def pull(self, x: Tensor) -> Handle:
        """A x."""
        return Ready(self._mixed("pull", x))

    def push(self, y: Tensor) -> Handle:
        """B y."""
        return Ready(self._mixed("push", y))

    def mean(self, x: Tensor) -> Handle:
        """The average, for every node."""
        return Ready(x.mean(-2, keepdim=True).expand_as(x))

    def uniform(self) -> Tensor:
        """A number for every node of every trial."""
        return self._participation.uniform(self.step).to(self._dtype)

    @cached_property
    def unit(self) -> Tensor:
        """The identity."""
        return torch.eye(self.nodes, dtype=self._dtype, device=self._device)

    @cached_property
    def push_share(self) -> Tensor:
        """n pi_B."""
        share = self.nodes * Network(self.mixing).push_perron
        return torch.as_tensor(share, dtype=self._dtype, device=self._device)[:, None]

    def self_weight(self, side: Side) -> Tensor:
        """The diagonal."""
        matrix = self.mixing.pull_at(self.step) if side == "pull" else self.mixing.push_at(self.step)
        return torch.as_tensor(matrix.diagonal().copy(), dtype=self._dtype, device=self._device)[:, None]

    def lose(self, side: Side, x: Tensor, probability: float) -> Tensor:
        """The product with a matrix that has lost entries: each off the diagonal, with the given probability."""
        matrix = self._matrices[side][self.step % len(self._matrices[side])].to_dense()
        self._lost += 1
        kept = matrix * (self._losses.uniform(self._lost, self.nodes) >= probability)
        kept.diagonal(dim1=-2, dim2=-1).copy_(matrix.diagonal())
        if side == "pull":  # the listener makes up for what it missed
            kept.diagonal(dim1=-2, dim2=-1).add_(1 - kept.sum(-1))
        return kept @ x


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """A run to be: who minimises what, over which network, how.

    Args:
        problem, algorithm, mixing: what, how, over which network.
        lr: a number, a tensor with one for each node ``(n, 1)``, or a schedule; None for the algorithm's default step.
        trials: how many independent runs side by side, or their numbers.
        seed: of gradient noise and minibatches; runs with the same seed share them (common random numbers).
        start: where the nodes start, ``(n, d)`` or ``(trials, n, d)``; the problem's own starting point if None.
        loss: probability with which a link loses a message.
        wire: ``"bf16"`` or ``"int8"`` for messages in few bits.
    """

    problem: Problem
    algorithm: Algorithm
    mixing: Mixing
    lr: LearningRate | None = None
    trials: int | Sequence[int] = 1
    seed: int = 0
    start: Tensor | None = None
    dtype: torch.dtype = torch.float64
    device: str = "cpu"
    loss: float = 0.0
    wire: Literal["bf16", "int8"] | None = None

    def __post_init__(self) -> None:
        if self.problem.nodes != self.mixing.nodes:
            raise PerronError(
                f"The problem has {self.problem.nodes} nodes but the network {self.mixing.nodes}; they need as many."
            )
        if not len(self.numbers):
            raise PerronError(f"A simulation needs at least one trial; got trials={self.trials!r}.")
        self.algorithm.check(self.network)
        if self.loss:
            warnings.warn(
                f"Links lose {self.loss:.0%} of their messages: {self.algorithm.about.title} keeps no guarantee.",
                stacklevel=3,
            )

    @cached_property
    def network(self) -> Network:
        """The network's facts."""
        return Network(self.mixing)

    @cached_property
    def numbers(self) -> list[int]:
        """The numbers of the trials."""
        return list(range(self.trials)) if isinstance(self.trials, int) else list(self.trials)

    @cached_property
    def rate(self) -> LearningRate:
        """The step size: the given one, or the algorithm's default."""
        if self.lr is not None:
            return self.lr
        if self.problem.smoothness is None:
            raise PerronError("Without a smoothness constant of the problem there is no default step: pass lr=.")
        return self.algorithm.default_lr(self.network, self.problem.smoothness)

    def iterates(self, steps: int) -> Iterator[Snapshot]:
        """Snapshots after 0, 1, ..., ``steps`` steps, for people who want their own loop."""
        inner = SimulatedNode(self.mixing, trials=self.numbers, seed=self.seed, dtype=self.dtype, device=self.device)
        node = self._wrapped(inner)
        rate, algorithm, network = self.rate, self.algorithm, self.network
        problem = self.problem.to(dtype=self.dtype, device=self.device)
        random = Keyed(self.seed, trials=self.numbers, nodes=inner.nodes, stream=NOISE, device=self.device)
        draw, grads = 0, []

        def gradient(point: Tensor) -> Tensor:
            nonlocal draw
            grad = problem.grad(point, draw, random)
            draw += 1
            grads.append(grad)
            return grad

        state = algorithm.init(self._first(), node)
        yield Snapshot(0, state, None, [], 0.0, node, problem, algorithm, network)
        for step in range(steps):
            inner.step = step
            lr = rate_at(rate, step)
            grads = []
            previous, state = state, advance(algorithm, state, node, lr, gradient)
            yield Snapshot(step + 1, state, previous, grads, lr, node, problem, algorithm, network)

    def _wrapped(self, inner: Node) -> Counting:
        if self.loss:
            inner = Lossy(inner, self.loss)
        if self.wire:
            inner = Quantized(inner, self.wire)
        return Counting(inner, wire={"bf16": 2, "int8": 1, None: None}[self.wire])

    def _first(self) -> Tensor:
        start = self.problem.start() if self.start is None else self.start
        shape = (len(self.numbers), self.problem.nodes, self.problem.dim)
        try:
            return start.to(device=self.device, dtype=self.dtype).expand(shape).contiguous()
        except RuntimeError:
            raise PerronError(
                f"start has shape {tuple(start.shape)}; it must fit (trials, nodes, dim) = {shape}."
            ) from None


def simulate(
    problem: Problem,
    algorithm: Algorithm,
    mixing: Mixing,
    *,
    steps: int,
    lr: LearningRate | None = None,
    every: int | Literal["log"] | None = None,
    metrics: Sequence[str | Metric] = ("grad_norm_sq", "consensus_error_sq"),
    progress: bool | Callable[[int], None] | None = None,
    **options: Any,
) -> History:
    """Run an algorithm and measure it.

    Args:
        problem, algorithm, mixing, lr: as in `Simulation`, which also takes the further options (trials, seed, start, dtype,
            device, loss, wire).
        steps: how many.
        every: measure after every so many steps, or at steps spaced evenly on a logarithmic scale; by default about 200 times.
            The start and the end are always measured.
        metrics: names from `perron.metrics.METRICS`, or functions of a `Snapshot`.
        progress: whether to show a progress bar; by default on a terminal. Or a function that is told each recorded step.

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
    measured = chosen(metrics)
    watchers = [metric for metric in measured.values() if getattr(metric, "every_step", False)]
    due = recorded(steps, every)
    rows: dict[str, list[FloatArray]] = {name: [] for name in measured}
    done: list[int] = []
    interrupted = False
    with Bar(steps, progress, algorithm.about.title) as bar, torch.no_grad():
        try:
            for now in simulation.iterates(steps):
                for watcher in watchers:
                    watcher.observe(now)  # type: ignore[attr-defined]
                if now.step in due:
                    found = {name: metric(now).cpu().double().numpy() for name, metric in measured.items()}
                    for name, value in found.items():
                        rows[name].append(value)
                    done.append(now.step)
                    bar.at(now.step)
                    if not torch.isfinite(now.state.x).any():
                        warnings.warn(
                            f"{algorithm.about.title} diverged by step {now.step}: lr is too large.", stacklevel=2
                        )
                        break
        except KeyboardInterrupt:
            interrupted = True
    return History(
        steps=np.array(done, dtype=np.int64),
        values={name: np.array(value[: len(done)]).reshape(len(done), -1) for name, value in rows.items()},
        trials=np.array(simulation.numbers),
        about=_about(simulation),
        interrupted=interrupted,
    )


def recorded(steps: int, every: int | Literal["log"] | None) -> set[int]:
    """The steps at which to measure."""
    if every == "log":
        return {0, steps, *np.unique(np.geomspace(1, max(steps, 1), 200).round().astype(int)).tolist()}
    if every is not None and (not isinstance(every, int) or every < 1):
        raise PerronError(f"every is a whole number of steps, or 'log'; got {every!r}.")
    return {steps, *range(0, steps + 1, every or max(1, steps // 200))}


class Bar:
    """A progress bar on standard error, for runs that take longer than a moment."""

    def __init__(self, total: int, wanted: bool | Callable[[int], None] | None, title: str) -> None:
        self.total, self.title = total, title
        self.tell = wanted if callable(wanted) else None
        self.wanted = sys.stderr.isatty() if wanted is None else wanted is True
        self.started = time.monotonic()
        self.progress: Any = None
        self.task: Any = None

    def __enter__(self) -> Bar:
        return self

    def at(self, step: int) -> None:
        """Show how far we are, from the second second on."""
        if self.tell is not None:
            self.tell(step)
        if not self.wanted or time.monotonic() - self.started < 1:
            return
        if self.progress is None:
            from rich.console import Console
            from rich.progress import Progress

            self.progress = Progress(console=Console(stderr=True), transient=True)
            self.progress.start()
            self.task = self.progress.add_task(self.title, total=self.total)
        self.progress.update(self.task, completed=step)

    def __exit__(self, *_: object) -> None:
        if self.progress is not None:
            self.progress.stop()


def _about(simulation: Simulation) -> dict[str, Any]:
    rate = simulation.rate
    return {
        "algorithm": simulation.algorithm.about.title,
        "network": simulation.mixing.name,
        "nodes": simulation.mixing.nodes,
        "lr": rate if isinstance(rate, float | int) else "schedule" if callable(rate) else "per node",
        "seed": simulation.seed,
    }

"""Steps of a simulation in a compiled loop, where the algorithm, the network and the problem allow it.

The text of the algorithm is recorded (`perron.simulation._trace`) and written as a program (`perron.simulation._program`), which
is compared with the text on random states, and run by `perron.simulation._loop` with the gradients of the problem inside.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib.util import find_spec
from itertools import count
from threading import Timer
from typing import Any

import numpy as np
import torch
from torch import Tensor

from perron._typing import FloatArray
from perron.algorithms.base import Algorithm, advance
from perron.algorithms.node import Node
from perron.algorithms.wrappers import Repeated
from perron.networks.mixing import Mixing
from perron.problems.base import Problem
from perron.random import Keyed
from perron.schedules import LearningRate
from perron.simulation._program import Builder, Place, Slot, rows_of
from perron.simulation._trace import NotTraceable, Step, trace
from perron.simulation.node import SimulatedNode

LARGEST = 2**18  # numbers in the models of all nodes and trials; beyond, torch is as fast, on all cores
DENSE = 0.5  # share of entries of a matrix that are not zero, from which on BLAS is faster than sparse sums,
WORK = 2**19  # where a product multiplies more numbers than this
PERIOD = 256  # of a network
SLOW = 2.0  # seconds after which compiling is announced
CLOSE = 1e-9  # relative difference of a step of the program and of the text

_ready: set[type] = set()  # kinds of problems whose loop is compiled, or read from disk


class NotCompiled(Exception):  # noqa: N818 (no error of the user's)
    """Why a simulation runs the text of its algorithm."""


class CompiledLoop:
    """A simulation between two records.

    Args:
        algorithm, mixing, problem, lr, rounds: as in a `Simulation`.
        node: all nodes.
        random: of the gradients.
        state: the initial state.

    Raises:
        NotCompiled: with the reason.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        mixing: Mixing,
        problem: Problem,
        node: SimulatedNode,
        random: Keyed,
        state: Any,
        lr: LearningRate | None,
        rounds: int,
    ) -> None:
        self.trials, self.nodes, self.dim = state.x.shape
        if find_spec("numba") is None:
            raise NotCompiled("numba is not installed")
        if state.x.dtype != torch.float64 or state.x.device.type != "cpu":
            raise NotCompiled("it is not in double precision on the processor")
        if state.x.numel() > LARGEST:
            raise NotCompiled("its models are large")
        if not 0 < mixing.period <= PERIOD:
            raise NotCompiled("its network does not repeat soon")
        if isinstance(lr, Tensor):
            self._column(lr)
        arrays = problem.compiled_gradient(self.trials)
        if arrays is None:
            raise NotCompiled(f"{type(problem).__name__} has no compiled gradient")
        try:
            steps = _recorded(algorithm, mixing, rounds)
            builder = Builder(steps, mixing, self.trials * self.dim)
        except NotTraceable as error:
            raise NotCompiled(f"{algorithm.about.title} has no recorded step: {error}") from None
        links = builder.most_links
        if links > DENSE * self.nodes**2 and links * builder.numbers > WORK:
            raise NotCompiled("its network is dense, and its models are not small")
        self.places, self._program, self._lr = builder.places, builder.program(), builder.lr
        self._wide = {name for name, value in steps[0].outputs.items() if value.width == steps[0].width}
        self._kind, self._forms = type(state), {name: value.shape for name, value in state._asdict().items()}
        self._problem, self._keys = arrays, random.keys
        with announced(CompiledLoop):
            self._compare(algorithm, node, rounds)
        self.load(state, 0)

    def load(self, state: Any, step: int) -> None:
        """Continue from a state before a step."""
        for name, value in state._asdict().items():
            self._write(self._place(step).before[name], name, value)

    def run(self, rates: list[float | Tensor], step: int, steps: int, draw: int) -> int:
        """Do steps; return the number of gradients that a node has computed.

        Args:
            rates: the learning rate of each step, or one for all.
            step, steps: the number of the first step, and of steps.
            draw: the number of the first gradient.
        """
        from perron.simulation._loop import run

        columns = [self._column(rate) for rate in rates]
        rows_of(self._program.memory, self._lr)[:] = columns[0]
        each = np.concatenate(columns, axis=1).T.copy() if len(rates) > 1 else np.empty((0, self.nodes))
        kind = type(self._problem)
        with nullcontext() if kind in _ready else announced(kind):
            return int(run(self._program, self._problem, each, step, steps, self._keys, draw))

    def state(self, step: int) -> Any:
        """Return the state after a step."""
        return self._state(self._place(step).after)

    def previous(self, step: int) -> Any:
        """Return the state before a step, which has just been done."""
        return self._state(self._place(step).before)

    def gradients(self, step: int) -> list[Tensor]:
        """Return the gradients of a step, which has just been done, ``(trials, n, d)`` each."""
        return [self._read(slot, "x") for slot in self._place(step).gradients]

    def _place(self, step: int) -> Place:
        return self.places[step % len(self.places)]

    def _state(self, slots: dict[str, Slot]) -> Any:
        return self._kind(*(self._read(slots[name], name) for name in self._forms))

    def _read(self, slot: Slot, name: str) -> Tensor:
        rows, form = rows_of(self._program.memory, slot), self._forms[name]
        if name not in self._wide:  # the same for all trials
            return torch.from_numpy(np.broadcast_to(rows, form).copy())
        numbers = rows[:, : self.trials * self.dim].reshape(self.nodes, self.trials, self.dim)
        return torch.from_numpy(numbers.transpose(1, 0, 2).copy())

    def _write(self, slot: Slot, name: str, value: Tensor) -> None:
        rows, numbers = rows_of(self._program.memory, slot), value.numpy()
        if name in self._wide:
            rows[:, : self.trials * self.dim] = numbers.transpose(1, 0, 2).reshape(self.nodes, -1)
            return
        rows[:] = first = numbers if numbers.ndim == 2 else numbers[0]
        if not np.array_equal(np.broadcast_to(first, numbers.shape), numbers):
            raise NotCompiled(f"{name} of its state differs between trials")

    def _column(self, rate: float | Tensor) -> FloatArray:
        """A learning rate for each node, ``(n, 1)``."""
        numbers = torch.as_tensor(rate, dtype=torch.float64).numpy()
        if numbers.size != 1 and numbers.shape != (self.nodes, 1):
            raise NotCompiled(f"its learning rate has the shape {numbers.shape}")
        return np.broadcast_to(numbers.reshape(-1, 1), (self.nodes, 1))

    def _compare(self, algorithm: Algorithm, node: SimulatedNode, rounds: int) -> None:
        """Compare the steps of a cycle with the text, on random states and gradients."""
        from perron.simulation._loop import execute

        random = np.random.default_rng(0)
        whole: Node = Repeated(node, rounds) if rounds > 1 else node
        rate = random.uniform(0.5, 1.5, (self.nodes, 1))
        rows_of(self._program.memory, self._lr)[:] = rate
        code, starts = self._program.code, self._program.starts

        def numbers(name: str) -> Tensor:
            form = self._forms[name]
            drawn = random.uniform(0.5, 1.5, form if name in self._wide else form[-2:])
            return torch.from_numpy(np.broadcast_to(drawn, form).copy())

        for step, place in enumerate(self.places):
            before = self._kind(*map(numbers, self._forms))
            grads = [numbers("x") for _ in place.gradients]
            node.step = step
            expected = advance(
                algorithm, before, whole, torch.from_numpy(rate), _in_turn([one.clone() for one in grads])
            )
            self.load(before, step)
            at, given = execute(self._program, starts[step], starts[step + 1]), _in_turn(grads)
            while at < starts[step + 1]:
                result = Slot(*code[at, 1:5].tolist())
                self._write(result, "x", given(None))
                at = execute(self._program, at + 1, starts[step + 1])
            for name, value in expected._asdict().items():
                found, size = self._read(place.after[name], name), float(value.abs().max()) if value.numel() else 0.0
                if value.shape != found.shape or not torch.allclose(found, value, rtol=CLOSE, atol=CLOSE * size):
                    raise NotCompiled(f"its recorded step differs from its text in {name}")


@contextmanager
def announced(kind: type) -> Iterator[None]:
    """Say what takes so long if the loop for a kind of problem is compiled, which numba does once for a machine."""
    message = (
        "perron: compiling the loop for this kind of problem, once; later runs start at once. compiled=False avoids it."
    )
    timer = Timer(SLOW, partial(print, message, file=sys.stderr, flush=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
    _ready.add(kind)


def _in_turn(grads: list[Tensor]) -> Callable[[Any], Tensor]:
    """Answer every point with the next gradient."""
    left = iter(grads)
    return lambda _: next(left)


def _recorded(algorithm: Algorithm, mixing: Mixing, rounds: int) -> list[Step]:
    """The graphs of the steps of a period."""
    if algorithm.about.samples:
        raise NotCompiled(f"{algorithm.about.title} chooses samples itself")
    node = SimulatedNode(mixing)

    def state(width: int) -> Any:
        return algorithm.init(torch.zeros(mixing.nodes, width, dtype=torch.float64), node)

    try:
        first, second = state(2), state(3)
        fixed = {one.shape[-1] for one, other in zip(first, second, strict=True) if one.shape == other.shape}
        width = next(width for width in count(2) if width not in fixed | {mixing.nodes})  # no other field is as wide
        begun = state(width)
    except (
        RuntimeError,
        ValueError,
        TypeError,
        IndexError,
    ):  # functions of the user may insist on the length of the model
        raise NotCompiled(f"{algorithm.about.title} depends on the length of the model") from None
    return [trace(algorithm, begun, node, mixing.index, step, rounds) for step in range(mixing.period)]

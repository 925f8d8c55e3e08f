"""A simulation in progress: its state, its random numbers, and what it has sent and spent."""

from __future__ import annotations

from collections.abc import Mapping
from operator import add
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from perron._storage import tensorfile
from perron.algorithms.base import advance
from perron.algorithms.codecs import wire_sizes
from perron.algorithms.node import Node
from perron.algorithms.quantized import quantized
from perron.algorithms.states import saved_fields
from perron.algorithms.unreliable import Unreliable
from perron.algorithms.wrappers import Counting, Repeated
from perron.errors import PerronError
from perron.random import NOISE, Keyed
from perron.schedules import rate_at
from perron.simulation import _blockwise
from perron.simulation._blockwise import Blockwise, blocks, separable
from perron.simulation._compiled import CompiledLoop, NotCompiled
from perron.simulation._oracle import Oracle
from perron.simulation.node import SimulatedNode
from perron.simulation.snapshot import Snapshot, Traffic, converted_traffic

if TYPE_CHECKING:
    from perron.simulation.simulator import Simulation

CALL = 0.1  # seconds of compiled steps in one call
SMALL = 2**20  # numbers; on a busy machine, threads of torch wait for each other longer than they compute


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
        self._traffic_of: dict[int, Traffic] = {}  # of the steps of the network's period
        first = one.first()
        large = first.numel() * first.element_size() > _blockwise.LARGE and not one.algorithm.about.samples
        self.blockwise = self._blockwise(first) if large else None
        self.state = self.blockwise.state if self.blockwise else self.algorithm.init(first, self.node)
        sizes: Any = wire_sizes(one.wire, one.problem.dim, dtype.itemsize)._asdict()
        draws: Any = {"rounds": one.rounds, "seed": one.seed, "trials": one.numbers}
        self.timer = None if one.clock is None else one.clock.start(one.algorithm, one.mixing, **sizes, **draws)
        self.loop, self.text = self._compiled()
        self._pace = 0.0  # seconds of a step

    def _compiled(self) -> tuple[CompiledLoop | None, str]:
        """The compiled loop, or None and why there is none."""
        one = self.simulation
        try:
            if one.compiled is False:
                raise NotCompiled("compiled=False")
            if self.node is not self.inner or self.algorithm is not one.algorithm:
                raise NotCompiled("its links are unreliable, or its messages quantized")
            if self.blockwise is not None:
                raise NotCompiled("its models are large")
            given = (self.algorithm, one.mixing, self.problem, self.inner, self.oracle.random, self.state, one.lr)
            return CompiledLoop(*given, rounds=one.rounds), ""
        except NotCompiled as reason:
            if one.compiled:
                raise PerronError(f"compiled=True: this simulation has no compiled loop, since {reason}.") from None
            return None, str(reason)

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

    @property
    def small(self) -> bool:
        """Whether torch is faster on one thread: models and data of the problem are small."""
        return self.state.x.numel() + numbers_in(vars(self.problem)) <= SMALL

    def together(self, steps: int) -> int:
        """Return how many of the next steps to do in one call: no more than take a fraction of a second."""
        if self.loop is None or not self.step:  # the first gradients are checked
            return 1
        return max(1, min(steps, int(CALL / self._pace))) if self._pace else 1

    def advance(self, steps: int = 1) -> None:
        """Do some steps."""
        if self.loop is None:
            for _ in range(steps):
                self._advance()
            return
        began, last = perf_counter(), self.step + steps - 1
        rate = self.simulation.rate
        varies = callable(rate) and not isinstance(rate, Tensor)
        rates = [rate_at(rate, self.step + k) for k in range(steps if varies else 1)]
        count = self.loop.run(rates, self.step, steps, self.oracle.draws)
        self.oracle.note(count, self.loop.gradients(last))
        self.lr = rates[-1]
        self.previous = self.state if steps == 1 else self.loop.previous(last)
        self.state = self.loop.state(last)
        for step in range(self.step, last + 1) if self.timer is not None else ():
            self.timer.advance(step)  # type: ignore[union-attr]
        for step in range(self.step, min(last + 1, self.step + self.simulation.mixing.period)):
            times = (last - step) // self.simulation.mixing.period + 1
            self.traffic = Traffic(
                *(had + times * more for had, more in zip(self.traffic, self._sent(step), strict=True))
            )
        self.step = last + 1
        self._pace = (perf_counter() - began) / steps

    def _sent(self, step: int) -> Traffic:
        """What a step of the compiled loop sends, counted in a step of the text."""
        number = step % self.simulation.mixing.period
        if number not in self._traffic_of:
            self.inner.step, counting = number, self._counting()
            node = Repeated(counting, self.simulation.rounds) if self.simulation.rounds > 1 else counting
            advance(self.algorithm, self.state, node, 0.0, torch.zeros_like)
            self._traffic_of[number] = Traffic(*counting.counts)
        return self._traffic_of[number]

    def _advance(self) -> None:
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

    def about(self) -> dict[str, Any]:
        """Return what runs the steps, for the record."""
        return {"loop": {"compiled": self.loop is not None} | ({"reason": self.text} if self.text else {})}

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
        saved = saved_fields(self.state, tensorfile.part(tensors, "state."))
        if self.blockwise is None:
            # Copies: what was read is a view of the file, which may change.
            self.state = type(self.state)(*(value.to(self.simulation.device).clone() for value in saved.values()))
        else:  # in place, so that there is no second state
            for name, value in self.state._asdict().items():
                value.copy_(saved[name])
        self.problem.recall(tensorfile.part(tensors, "memory."))
        if self.unreliable is not None:
            in_transit = tensorfile.part(tensors, "links.")
            self.unreliable.load_state_dict({name: v.to(self.simulation.device) for name, v in in_transit.items()})
        if self.loop is not None:
            try:
                self.loop.load(self.state, self.step)
            except NotCompiled as reason:
                self.loop, self.text = None, str(reason)
        if self.timer is not None:
            self.timer.restore(tensorfile.part(tensors, "clock."))


def numbers_in(value: Any) -> int:
    """Count the numbers in tensors and modules, also of tuples, lists and tables."""
    if isinstance(value, Tensor):
        return value.numel()
    if isinstance(value, nn.Module):
        return sum(part.numel() for part in [*value.parameters(), *value.buffers()])
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, tuple | list) else ()
    return sum(map(numbers_in, parts))

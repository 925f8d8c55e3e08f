"""Nodes at their own pace, simulated by events: a heap of the times at which gradients are done and messages leave and arrive.

Each direction of a link and each side (pull, push) is a `_Link`, as in the engine (`perron.distributed.asynchronous`): one
message on the way out, and one that waits for it, which a newer one replaces. At equal times messages move first, then all nodes
that are due read what has arrived, then they post: on equal machines and free links that is the synchronous algorithm.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from math import inf
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from perron._typing import FloatArray
from perron.algorithms.base import Partial, Query, Step
from perron.algorithms.node import SIDES, Handle, Later, LocalSamples, Node, NodeLinks, Side
from perron.clock import Clock
from perron.errors import PerronError
from perron.networks.facts import Network
from perron.random import NOISE, PARTICIPATION, SAMPLES, Keyed
from perron.schedules import rate_at
from perron.simulation._oracle import Oracle
from perron.simulation.simulator import Simulation

MOVE, READ, POST = 0, 1, 2  # the order of events at one time
BUFFER = 1e6  # bytes of a message that the sender's system stores
KEPT = 64  # draws of compute times in a table
REPORT = 128  # steps of nodes between two reports of progress
NEWEST_ONLY = "An asynchronous node has only the newest messages, not all of them: use RobustPushPull."
ROUNDING = 1e-9  # relative, for the end: times are sums
NANOSECOND = 1e-9  # what arrives so little after a node reads is read: likewise


class _Link:
    """One side of a link from one node to another.

    Attributes:
        place: its number, which decides between events at one time.
        waiting: the message that leaves next, and when it was posted.
        busy: whether a message was taken that the node has not handed over yet.
        asked: when the sender knows that the receiver has asked for the next message; -inf if it need not ask, inf if it has not.
        held: the message that was taken, if the receiver has not asked for it.
        newest: the last message that has arrived, and when it was posted.
        put, sent, received, replaced: numbers of messages.
        ages: the sum of the ages of messages on arrival, in seconds.
    """

    __slots__ = ("ages", "asked", "back", "busy", "held", "latency", "newest", "place", "put", "rate", "received", "replaced",
                 "sent", "side", "source", "target", "waiting")  # fmt: skip

    def __init__(self, place: int, side: Side, source: int, target: int) -> None:
        self.place, self.side, self.source, self.target = place, side, source, target
        self.latency = self.back = 0.0
        self.rate, self.asked = inf, -inf
        self.busy = False
        self.waiting: tuple[Tensor, float] | None = None
        self.held: tuple[Tensor, float] | None = None
        self.newest: tuple[Tensor, float] | None = None
        self.put = self.sent = self.received = self.replaced = 0
        self.ages = 0.0


class EventNode(Node):
    """One node of a simulation by events. Tensors are ``(trials, 1, d)``: all trials have the same times."""

    def __init__(self, events: Events, number: int) -> None:
        one = events.simulation
        self.events, self.number = events, number
        self.nodes, self.step, self.read = one.mixing.nodes, 0, 0.0
        self._dtype = one.precision
        self._keyed = {"seed": one.seed, "trials": events.trials, "nodes": [number]}
        self._participation = Keyed(stream=PARTICIPATION, **self._keyed)  # type: ignore[arg-type]
        self.sides = {side: EventLinks(self, side) for side in SIDES}
        counts = one.problem.sample_counts
        self._samples = None if counts is None else (counts[number : number + 1, None], SAMPLES)

    def tensor(self, values: Any) -> Tensor:
        """Return numbers in the precision of the run."""
        return torch.tensor(values, dtype=self._dtype)

    @property
    def unit(self) -> Tensor:
        return torch.eye(self.nodes, dtype=self._dtype)[self.number : self.number + 1]

    def pull(self, x: Tensor) -> Handle:  # noqa: ARG002
        raise PerronError(NEWEST_ONLY)

    def push(self, y: Tensor) -> Handle:  # noqa: ARG002
        raise PerronError(NEWEST_ONLY)

    def mean(self, x: Tensor) -> Handle:  # noqa: ARG002
        raise PerronError(NEWEST_ONLY)

    def uniform(self) -> Tensor:
        return self._participation.uniform(self.step).to(self._dtype)

    def links(self, side: Side) -> NodeLinks:
        return self.sides[side]

    @property
    def samples(self) -> LocalSamples:
        if self._samples is None:
            return super().samples
        counts, stream = self._samples
        return LocalSamples(counts, Keyed(stream=stream, **self._keyed), self.step)  # type: ignore[arg-type]


class EventLinks(NodeLinks):
    """The incoming links of one node on one side, in the order of the senders, and where its own messages are put."""

    def __init__(self, node: EventNode, side: Side) -> None:
        self.node, self.side = node, side
        matrix = csr_array(node.events.simulation.mixing.at(side, 0))
        row = matrix[[node.number]].toarray()[0]
        self.self_weight = node.tensor([[row[node.number]]])
        row[node.number] = 0.0
        self.sources: list[int] = np.flatnonzero(row).tolist()
        self._weights = node.tensor(row[None, self.sources])
        self.incoming: list[_Link] = []
        self.outgoing: list[_Link] = []

    @property
    def share(self) -> Tensor:  # type: ignore[override]
        perron = Network(self.node.events.simulation.mixing).push_perron
        return self.node.tensor([[self.node.nodes * float(perron[self.node.number])]])

    def latest(self, x: Tensor, before: Tensor) -> Handle:
        events = self.node.events
        for link in self.outgoing:
            events.put(link, x)

        def newest() -> Tensor:
            rows = []
            for row, link in enumerate(self.incoming):
                if link.newest is None:
                    rows.append(before[..., row : row + 1, :])
                else:
                    rows.append(link.newest[0])
                    events.ages += events.now - link.newest[1]
                    events.reads += 1
            self.node.read += len(rows) * events.size(x)
            return torch.cat(rows, -2) if rows else before

        return Later(newest)

    def broadcast(self, x: Tensor) -> Tensor:
        return x.expand(*x.shape[:-2], len(self.sources), x.shape[-1])

    def reduce(self, messages: Tensor) -> Tensor:
        return self._weights @ messages


class Events:
    """All nodes of some trials that have the same times.

    Args:
        simulation: what is run.
        clock: machines, links and compute times.
        trials: the indices of the trials.
        first: their initial models, ``(trials, n, d)``.
        buffer: bytes of a message that a sender's system stores, see `simulate_asynchronous`.

    Attributes:
        now: the time of the last event.
        states: the state of each node after its last step.
        steps: the number of steps of each node.
        ages, reads: the sum of the ages of the messages that were read, in seconds, and their number.
        bytes: sent on all links.
    """

    def __init__(
        self, simulation: Simulation, clock: Clock, trials: Sequence[int], first: Tensor, *, buffer: float = BUFFER
    ) -> None:
        one, n = simulation, simulation.mixing.nodes
        self.buffer = buffer if clock.protocol == "rendezvous" else 0.0
        self.simulation, self.clock, self.trials = one, clock, list(trials)
        self.now = self.ages = self.bytes = 0.0
        self.reads = self._count = self._since = 0
        self.steps = [0] * n
        self._heap: list[tuple[float, int, int, int, float, Callable[..., None], tuple[Any, ...]]] = []
        up, down = (np.broadcast_to(value, n).tolist() for value in (clock.record.up, clock.record.down))
        self._up, self._down = up, down
        self._up_free, self._down_free = [0.0] * n, [0.0] * n
        self.nodes = [EventNode(self, number) for number in range(n)]
        self.links = self._connect()
        problem = one.problem.to(dtype=one.precision, device="cpu")
        self.oracles = [
            Oracle(problem.of_node(i), Keyed(one.seed, trials=self.trials, nodes=[i], stream=NOISE)) for i in range(n)
        ]
        self._seconds = _Drawn(clock, one, self.trials)
        self._running: list[Step | None] = [None] * n
        self.states = [one.algorithm.init(first[:, i : i + 1], node) for i, node in enumerate(self.nodes)]
        for number in range(n):
            self._due(0.0, POST, number, self._begin, number)

    def _connect(self) -> list[_Link]:
        """The links of both sides, ordered by sender, receiver and side, as a node's messages leave."""
        pairs = [(source, node.number, SIDES.index(side)) for node in self.nodes for side in SIDES
                 for source in node.sides[side].sources]  # fmt: skip
        links = [_Link(k, SIDES[side], source, target) for k, (source, target, side) in enumerate(sorted(pairs))]
        sources, targets = (
            np.array([getattr(link, end) for link in links], dtype=np.int64) for end in ("source", "target")
        )
        machines = self.clock.record
        machines.check_links(sources, targets)
        there, back = machines.latencies(sources, targets), machines.latencies_back(sources, targets)
        rates = machines.rates(sources, targets)
        for link, latency, rate, asks in zip(links, there.tolist(), rates.tolist(), back.tolist(), strict=True):
            link.latency, link.rate, link.back = latency, rate, asks
            if self.clock.protocol == "rendezvous":
                link.asked = asks
            self.nodes[link.source].sides[link.side].outgoing.append(link)
            self.nodes[link.target].sides[link.side].incoming.append(link)
        return links

    def size(self, x: Tensor) -> float:
        """Return the bytes of a message; where the clock has a size, that is the size of a model vector."""
        dim, given = self.simulation.problem.dim, self.clock.size
        if given is None or x.shape[-1] % dim:
            return float(x.shape[-1] * x.element_size())
        return given * (x.shape[-1] // dim)

    # ---- events

    def _due(self, time: float, phase: int, order: int, action: Callable[..., None], *about: Any) -> None:
        self._count += 1
        later = time if phase == MOVE else time + NANOSECOND
        heapq.heappush(self._heap, (later, phase, order, self._count, time, action, about))

    def advance(self, seconds: float, report: Callable[[], None] = lambda: None) -> None:
        """Do all that happens until a time, and call ``report`` now and then."""
        heap, until = self._heap, seconds * (1 + ROUNDING) + 2 * NANOSECOND
        while heap and heap[0][0] <= until:
            _, _, _, _, self.now, action, about = heapq.heappop(heap)
            action(*about)
            if self._since >= REPORT:
                self._since = 0
                report()

    # ---- nodes

    def _begin(self, number: int) -> None:
        """A node begins a step, and posts what it sends before its first gradient."""
        node, one = self.nodes[number], self.simulation
        node.step, node.read = self.steps[number], 0.0
        lr = rate_at(one.rate, node.step)
        if isinstance(lr, Tensor) and lr.ndim > 1 and lr.shape[-2] > 1:
            lr = lr[..., number : number + 1, :]
        step = one.algorithm.step(self.states[number], node, lr)
        self._running[number] = step
        self._continue(number, lambda: next(step))

    def _continue(self, number: int, proceed: Callable[[], Tensor | Query | Partial]) -> None:
        """Run a step to its next gradient, or to its end."""
        try:
            asked = proceed()
        except StopIteration as done:
            self.states[number] = done.value
            self.steps[number] += 1
            self._since += 1
            clock, node = self.clock, self.nodes[number]
            active = any(links.incoming or links.outgoing for links in node.sides.values())
            rest = clock.overhead * active + clock.per_byte * node.read
            self._due(self.now + rest, POST, number, self._begin, number)
            return
        point = asked.point if isinstance(asked, Partial) else asked
        self._due(self.now + self._seconds(number), READ, number, self._answer, number, point)

    def _answer(self, number: int, asked: Tensor | Query) -> None:
        """The gradient is there; the step reads what has arrived."""
        oracle, step = self.oracles[number], self._running[number]
        oracle.grads.clear()
        grad = oracle.query(asked) if isinstance(asked, Query) else oracle.gradient(asked)
        self._continue(number, lambda: step.send(grad))  # type: ignore[union-attr]

    # ---- messages

    def put(self, link: _Link, x: Tensor) -> None:
        """Post a message; it replaces one that still waits."""
        link.put += 1
        if link.busy:
            link.replaced += link.waiting is not None
            link.waiting = (x, self.now)
        else:
            self._take(link, (x, self.now))

    def _take(self, link: _Link, message: tuple[Tensor, float]) -> None:
        """Take a message out of the queue; it leaves once the receiver has asked for it."""
        link.waiting, link.busy = None, True
        if link.asked == inf:
            link.held = message
        elif link.asked > self.now:
            self._due(link.asked, MOVE, link.place, self._leave, link, message)
        else:
            self._leave(link, message)

    def _leave(self, link: _Link, message: tuple[Tensor, float]) -> None:
        """The message queues for its sender's access, then passes link and accesses at the slowest of their rates."""
        size, source, target = self.size(message[0]), link.source, link.target
        start = max(self.now, self._up_free[source])
        self._up_free[source] = start + size / self._up[source]
        rate = min(link.rate, self._up[source], self._down[target])
        end = start + size / rate
        self._due(max(self.now, end - self.buffer / rate), MOVE, link.place, self._left, link)
        self._due(end + link.latency, MOVE, link.place, self._receive, link, message, size)
        self.bytes += size
        link.sent += 1
        if self.clock.protocol == "rendezvous":
            link.asked = inf

    def _left(self, link: _Link) -> None:
        link.busy = False
        if link.waiting is not None:
            self._take(link, link.waiting)

    def _receive(self, link: _Link, message: tuple[Tensor, float], size: float) -> None:
        """The last byte is there, unless messages of other links keep the receiver's access busy."""
        free, own = self._down_free[link.target], size / self._down[link.target]
        arrival = max(self.now, free + own) if own else self.now
        self._down_free[link.target] = arrival
        if arrival > self.now:
            self._due(arrival, MOVE, link.place, self._arrive, link, message)
        else:
            self._arrive(link, message)

    def _arrive(self, link: _Link, message: tuple[Tensor, float]) -> None:
        link.newest = message
        link.received += 1
        link.ages += self.now - message[1]
        if self.clock.protocol == "rendezvous":
            link.asked = self.now + link.back
            if link.held is not None:
                self._due(link.asked, MOVE, link.place, self._leave, link, link.held)
                link.held = None

    # ---- results

    @property
    def state(self) -> Any:
        """The states of all nodes, as that of the simulator: ``(trials, n, d)``, and ``(trials, links, d)``."""
        kind = type(self.states[0])
        return kind(*(torch.cat(parts, -2) for parts in zip(*self.states, strict=True)))


class _Drawn:
    """The seconds of each node's gradients, by its own number of gradients so far."""

    def __init__(self, clock: Clock, simulation: Simulation, trials: Sequence[int]) -> None:
        n = simulation.mixing.nodes
        self._drawn = [0] * n
        self._means: list[float] = clock.times.means(n).tolist()
        random = clock.random
        self._sampler = clock.times.sampler(n, seed=simulation.seed, trials=trials[:1]) if random else None
        self._tables: list[FloatArray | None] = []

    def __call__(self, number: int) -> float:
        """Return the seconds of a node's next gradient."""
        if self._sampler is None:
            return self._means[number]
        draw = self._drawn[number]
        self._drawn[number] += 1
        table, row = divmod(draw, KEPT)
        if table == len(self._tables):
            rows = [self._sampler(first)[0] for first in range(table * KEPT, (table + 1) * KEPT)]
            self._tables.append(np.stack(rows))
            for old in range(min(self._drawn) // KEPT):
                self._tables[old] = None
        return float(self._tables[table][row, number])  # type: ignore[index]

"""The max-plus recursion of the clock: when each node has done each operation of a step.

All maps are max-plus linear in the state, ``(..., n)`` arrays of times, so that unit vectors give their matrix
(`perron.clock.cycle`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import gcd
from typing import Any, Literal

import numpy as np

from perron._typing import FloatArray
from perron.clock.links import BatchLinks, Grouped, NetworkLinks, Sizes
from perron.clock.machines import Machines
from perron.clock.tape import Average, Gradient, Post, Tape, Wait
from perron.errors import PerronError
from perron.networks.mixing import Mixing

Protocol = Literal["rendezvous", "eager"]
QUEUED_UP_TO = 2000  # nodes whose links may have queues, where the network never repeats


class Times(dict[str, FloatArray]):
    """The state of the clock: ``now``, the time of each node, and times of queues and earlier posts, ``(trials, n)`` each."""

    @property
    def now(self) -> FloatArray:
        return self["now"]


class Recursion:
    """When each node does what.

    Args:
        tape: of a step.
        machines, mixing, sizes: see `NetworkLinks`.
        protocol: ``"rendezvous"``: a message leaves when its receiver has asked for it, and its sender waits until it has left;
            ``"eager"``: it leaves at once, in the order of its link and of its sender's and receiver's access.
        ahead: steps by which receives are asked for in advance.
        overhead: seconds of each batch of messages.
        per_byte: seconds for each byte received.
        average: ``"ring"``, an all-reduce along ``order``, or ``"server"``, by way of node ``hub``.
        alike: whether every gradient takes the same time on all nodes. On equal machines and regular graphs one node then stands
            for all of them.
    """

    def __init__(
        self,
        tape: Tape,
        machines: Machines,
        mixing: Mixing,
        sizes: Sizes,
        *,
        protocol: Protocol = "rendezvous",
        ahead: int = 0,
        overhead: float = 0.0,
        per_byte: float = 0.0,
        average: Literal["ring", "server"] = "ring",
        order: Sequence[int] | None = None,
        hub: int = 0,
        alike: bool = False,
    ) -> None:
        self.tape, self.machines, self.sizes = tape, machines, sizes
        self.protocol, self.ahead, self.overhead, self.per_byte = protocol, ahead, overhead, per_byte
        self.average, self.hub, self.mixing = average, hub, mixing
        self.eager = protocol == "eager"
        posts = any(isinstance(one, Post) for one in tape.operations)
        self.queued = posts and self.eager and not (np.ndim(machines.rate) == 0 and machines.rate == np.inf)
        if self.queued and not mixing.period and mixing.nodes > QUEUED_UP_TO:
            raise PerronError(
                f"protocol='eager' with rates of links takes at most {QUEUED_UP_TO:,} nodes where the network never repeats; "
                f"got {mixing.nodes:,}. Give up= and down= instead of rate=, or take protocol='rendezvous'."
            )
        self.real_nodes = mixing.nodes
        self.links = NetworkLinks(machines, mixing, tape, sizes, queues=self.queued)
        self.averages = any(isinstance(one, Average) for one in tape.operations)
        self.order = np.arange(mixing.nodes) if order is None else np.asarray(order)
        self.uniform = alike and self._is_uniform()
        self.nodes = 1 if self.uniform else mixing.nodes
        self._ring: list[Any] = []
        self._representatives: dict[tuple[int, int], BatchLinks] = {}

    @property
    def period(self) -> int:
        """Steps after which the links repeat; 0 if they never do."""
        return self.mixing.period // gcd(self.mixing.period, self.tape.rounds) if self.mixing.period else 0

    @property
    def batches(self) -> list[int]:
        """The batches of a step."""
        return list(self.links.posts)

    def start(self, shape: tuple[int, ...] = ()) -> Times:
        """Return the state at time zero, for the given leading axes."""
        times = Times(now=np.zeros((*shape, self.nodes)))
        if self.eager and self.batches:
            times |= {"up": np.zeros((*shape, self.nodes)), "down": np.zeros((*shape, self.nodes))}
        if self.queued and self.batches:
            count = 1 if self.uniform else len(self.links.all)  # type: ignore[arg-type]
            times["link"] = np.zeros((*shape, count))
        if not self.eager:
            times |= {
                f"asked.{b}.{k}": np.zeros((*shape, self.nodes)) for b in self.batches for k in range(1, self.ahead + 1)
            }
        return times

    def advance(self, times: Times, step: int, compute: Callable[[int], FloatArray | float]) -> None:
        """Do one step; ``compute(number)`` returns the seconds of the step's gradients, ``(..., n)``."""
        now, posted = times["now"], {}
        asked: dict[int, FloatArray] = {}
        for one in self.tape.operations:
            match one:
                case Gradient(number):
                    now = now + compute(number)
                case Post(batch):
                    posted[batch] = now
                    asked[batch] = self._asked(times, batch, now)
                case Wait(batch):
                    now = self._wait(times, self.batch_links(batch, step), now, posted[batch], asked[batch])
                case Average(vectors, numbers):
                    now = self._averaged(now, self.sizes.of(vectors, numbers))
        times["now"] = now

    def _asked(self, times: Times, batch: int, now: FloatArray) -> FloatArray:
        """When a node has asked for the messages of a batch; note that it now asks for those of a later step."""
        if self.eager or not self.ahead:
            return now
        names = [f"asked.{batch}.{k}" for k in range(1, self.ahead + 1)]
        asked = times[names[-1]]
        for later, earlier in zip(names[:0:-1], names[-2::-1], strict=True):
            times[later] = times[earlier]
        times[names[0]] = now
        return asked

    def _wait(
        self, times: Times, links: BatchLinks, now: FloatArray, posted: FloatArray, asked: FloatArray
    ) -> FloatArray:
        if not len(links.sources):
            return now
        start = posted.take(links.sources, axis=-1)
        if self.eager:
            now = self._queue(times, links, now, posted, start)
        else:  # a message has left at max(posted, asked + back) + wire
            each = links.rendezvous
            start += each.posted_there
            now = links.by_target.raise_to(np.maximum(now, asked + each.asked_there), start)
            left = asked.take(each.targets, axis=-1)
            left += each.asked_left
            now = each.by_source.raise_to(np.maximum(now, posted + each.posted_left), left)
        if self.overhead or self.per_byte:
            now = now + (self.overhead * links.active + self.per_byte * links.heard)
        return now

    def _queue(
        self, times: Times, links: BatchLinks, now: FloatArray, posted: FloatArray, start: FloatArray
    ) -> FloatArray:
        """Messages leave in the order in which they were posted, on each link and on each access."""
        up = times["up"]
        np.maximum(start, up.take(links.sources, axis=-1), out=start)
        if links.index is not None:
            free = times["link"]
            np.maximum(start, free.take(links.index, axis=-1), out=start)
            times["link"] = free = free.copy()
            free[..., links.index] = start + links.own
        times["up"] = np.where(links.out > 0, np.maximum(posted, up) + links.out, up)
        arrived = links.by_target.raise_to(np.full_like(now, -np.inf), start + links.wire + links.latency)
        down = times["down"]
        arrived = np.where(links.into > 0, np.maximum(arrived, down + links.into), arrived)
        times["down"] = np.maximum(down, arrived)
        return np.maximum(now, arrived)

    # ---- averages

    def _averaged(self, now: FloatArray, size: float) -> FloatArray:
        if self.real_nodes == 1:
            return now
        return self._server(now, size) if self.average == "server" else self._all_reduce(now, size)

    def _all_reduce(self, now: FloatArray, size: float) -> FloatArray:
        """Ring all-reduce: 2 (n - 1) rounds, in each of which every node sends a chunk of size / n to the node before it."""
        n = self.real_nodes
        sender, wire, latency, back = self._ring_links(size / n)
        now = now.take(sender, axis=-1)  # in the order of the ring
        free = now
        places = np.arange(self.nodes)
        before, after = np.roll(places, 1), np.roll(places, -1)  # the receiver of each, and its sender
        for _ in range(2 * (n - 1)):
            start = np.maximum(now, free)
            if not self.eager:
                np.maximum(start, now.take(before, axis=-1) + back, out=start)
            free = start + wire
            now = np.maximum(now, (free + latency).take(after, axis=-1))
        now = np.maximum(now, free)
        result = np.empty_like(now)
        result[..., sender] = now
        return result

    def _ring_links(self, chunk: float) -> list[Any]:
        """Sender, wire, latency and way back of each link of the ring, by the position of its sender."""
        if not self._ring or self._ring[0] != chunk:
            n, machines = self.real_nodes, self.machines
            order = np.array([0]) if self.uniform else self.order
            sender, to = (order, order) if self.uniform else (order, np.roll(order, 1))
            ends = (np.array([0]), np.array([1 % n])) if self.uniform else (sender, to)
            machines.check_links(
                *ends, instead="the all-reduce sends: each node to the one before it in order. Pass order="
            )
            up, down = (np.broadcast_to(rate, (n,)) for rate in (machines.up, machines.down))
            rates = np.minimum(machines.rates(*ends), np.minimum(up[ends[0]], down[ends[1]]))
            back = machines.latencies_back(*ends)
            self._ring = [chunk, [sender, chunk / rates, machines.latencies(*ends), back]]
        parts: list[Any] = self._ring[1]
        return parts

    def _server(self, now: FloatArray, size: float) -> FloatArray:
        """Parameter server: all send to the hub, which sends the average back to all."""
        n, machines, hub = self.real_nodes, self.machines, self.hub
        everyone = np.arange(n)
        others = everyone[everyone != hub]
        hubs = np.full_like(others, hub)
        for ends in ((others, hubs), (hubs, others)):
            machines.check_links(*ends)
        up, down = (np.broadcast_to(rate, (n,)) for rate in (machines.up, machines.down))
        many = (n - 1) * size
        there, again = machines.latencies(others, hubs), machines.latencies(hubs, others)
        in_wire = np.maximum(np.maximum(size / machines.rates(others, hubs), size / up[others]), many / down[hub])
        out_wire = np.maximum(np.maximum(size / machines.rates(hubs, others), size / down[others]), many / up[hub])
        if self.uniform:
            at_hub = now + (0 if self.eager else again[0]) + in_wire[0] + there[0]
            return at_hub + (0 if self.eager else there[0]) + out_wire[0] + again[0]
        mine, theirs = now[..., hub], now.take(others, axis=-1)
        start = theirs if self.eager else np.maximum(theirs, mine[..., None] + again)
        sent = start + in_wire
        at_hub = np.maximum(mine, (sent + there).max(-1))
        start = (
            np.broadcast_to(at_hub[..., None], sent.shape)
            if self.eager
            else np.maximum(at_hub[..., None], sent + there)
        )
        back = start + out_wire
        result = np.empty_like(now)
        result[..., others] = back + again
        result[..., hub] = at_hub if self.eager else np.maximum(at_hub, back.max(-1))
        return result

    # ---- networks on which all nodes have equal times

    def _is_uniform(self) -> bool:
        """Whether machines are equal, and as many links of equal size lead into and out of each node."""
        machines, period = self.machines, self.mixing.period
        values = (machines.latency, machines.rate, machines.up, machines.down)
        if not period or any(callable(value) or np.ndim(value) for value in values):
            return False
        for links in (self.links.at(batch, step) for batch in self.batches for step in range(period)):
            sent = np.bincount(links.sources, links.bytes, self.real_nodes)
            if not all(np.ptp(sizes) == 0 for sizes in (sent, links.heard, links.bytes) if len(sizes)):
                return False
        return True

    def batch_links(self, batch: int, step: int) -> BatchLinks:
        """Return the links of a batch in a step; one link that stands for all, if nodes are alike."""
        links = self.links.at(batch, step)
        if not self.uniform or not len(links.sources):
            return links
        key = (batch, step % self.mixing.period)
        if key not in self._representatives:  # one link from a node to itself, with the times of all the others
            zero, one = np.zeros(1, dtype=np.int64), Grouped.by(np.zeros(1, dtype=np.int64), 1)
            self._representatives[key] = replace(
                links, sources=zero, targets=zero, bytes=links.bytes[:1], own=links.own[:1], out=links.out[:1],
                into=links.into[:1], heard=links.heard[:1], active=links.active[:1], by_target=one, by_source=one,
                index=None if links.index is None else zero,
            )  # fmt: skip
        return self._representatives[key]

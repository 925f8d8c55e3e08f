"""The links that a batch of messages uses in a step, with their times: what the recursion of the clock is made of."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array

from perron._typing import FloatArray, IntArray
from perron.clock.machines import Machines
from perron.clock.tape import Message, Post, Tape
from perron.networks.mixing import Mixing

KEPT = 32  # batches in the cache, where steps do not repeat


class Sizes(NamedTuple):
    """Bytes on the wire.

    Attributes:
        vector: of a model vector.
        number: of another number.
    """

    vector: float
    number: float = 4.0

    def of(self, vectors: int, numbers: int) -> float:
        """Bytes of a message."""
        return vectors * self.vector + numbers * self.number


@dataclass(frozen=True)
class Grouped:
    """Links in groups of equal end: for maxima over the links of each node."""

    order: IntArray | None  # of links, such that groups are contiguous; None if they are
    starts: IntArray
    nodes: IntArray | None  # the node of each group; None if every node has one

    @classmethod
    def by(cls, ends: IntArray, nodes: int) -> Grouped:
        order = None if (ends[1:] >= ends[:-1]).all() else np.argsort(ends, kind="stable")
        ends = ends if order is None else ends[order]
        starts = np.flatnonzero(np.r_[True, ends[1:] != ends[:-1]])
        found = ends[starts]
        return cls(order, starts, None if len(found) == nodes else found)

    def raise_to(self, now: FloatArray, values: FloatArray) -> FloatArray:
        """Return max(now, largest value of each node's links), ``(..., n)``."""
        values = values if self.order is None else values.take(self.order, axis=-1)
        if len(self.starts) != values.shape[-1]:
            values = np.maximum.reduceat(values, self.starts, axis=-1)
        if self.nodes is None:
            return np.maximum(now, values)
        raised = now.copy()
        raised[..., self.nodes] = np.maximum(now.take(self.nodes, axis=-1), values)
        return raised


@dataclass(frozen=True)
class BatchLinks:
    """The links of one batch, ordered by target and source.

    Attributes:
        sources, targets: the ends of each link.
        bytes: on each link.
        latency, back: of each link, and of the way back, along which a receiver asks.
        wire: seconds that the last byte leaves after the first: the larger of the link's own time and its nodes' accesses.
        own: seconds of the link alone, bytes / rate.
        out, into: seconds that each node's uplink and downlink are busy, ``(n,)``.
        heard: bytes that each node receives, ``(n,)``.
        active: nodes with messages, as 0 or 1, ``(n,)``.
        by_target, by_source: for maxima over the links of each node.
        index: of each link among all links of the network, where their queues are needed.
    """

    sources: IntArray
    targets: IntArray
    bytes: FloatArray
    latency: FloatArray | float
    back: FloatArray | float
    wire: FloatArray | float
    own: FloatArray
    out: FloatArray
    into: FloatArray
    heard: FloatArray
    active: FloatArray
    by_target: Grouped
    by_source: Grouped
    index: IntArray | None = None

    @cached_property
    def rendezvous(self) -> Rendezvous:
        """The links as the rendezvous protocol uses them."""
        n, order = len(self.heard), self.by_source.order
        full = [np.broadcast_to(value, self.sources.shape) for value in (self.wire, self.latency, self.back)]
        wire, latency, back = full
        ordered = slice(None) if order is None else order
        nothing = np.full(n, -np.inf)
        return Rendezvous(
            _scalar(wire + latency), self.by_target.raise_to(nothing, back + wire + latency),
            self.targets[ordered], _scalar((back + wire)[ordered]), self.by_source.raise_to(nothing, wire),
            replace(self.by_source, order=None),
        )  # fmt: skip


class Rendezvous(NamedTuple):
    """A message leaves at max(posted, asked + back). Maxima over links are taken of each of the two apart, which is faster.

    Attributes:
        posted_there: from the post of the source to the arrival at the target, of each link.
        asked_there: from the question of a node to the arrival of the last message that it asks for, ``(n,)``.
        targets, asked_left: of links by source: the target, and the time from its question until the message has left.
        posted_left: from the post of a node until its last message has left, ``(n,)``.
        by_source: for maxima over links by source.
    """

    posted_there: FloatArray | float
    asked_there: FloatArray
    targets: IntArray
    asked_left: FloatArray | float
    posted_left: FloatArray
    by_source: Grouped


class NetworkLinks:
    """The links of a network on some machines, batch by batch.

    Args:
        machines: latencies and rates.
        mixing: the network.
        tape: of the algorithm.
        sizes: bytes of messages.
        queues: whether each link has a queue, so that links need an index.
    """

    def __init__(self, machines: Machines, mixing: Mixing, tape: Tape, sizes: Sizes, *, queues: bool = False) -> None:
        self.machines, self.mixing, self.tape, self.sizes = machines, mixing, tape, sizes
        self.nodes = mixing.nodes
        self.posts = {one.batch: one for one in tape.operations if isinstance(one, Post)}
        self._cache: dict[Any, BatchLinks] = {}
        self.all: IntArray | None = None
        if queues:
            self.all = self._all_links()
            self._cache.clear()  # links have an index from now on

    def at(self, batch: int, step: int) -> BatchLinks:
        """Return the links of a batch in a step."""
        messages = self.posts[batch].messages
        key = (batch, *(self.mixing.index(one.side, self._number(one, step)) for one in messages))
        if key not in self._cache:
            if not self.mixing.period and len(self._cache) >= KEPT:
                self._cache.clear()
            self._cache[key] = self._build(messages, step)
        return self._cache[key]

    def _number(self, message: Message, step: int) -> int:
        return step * self.tape.rounds + message.round

    def _build(self, messages: tuple[Message, ...], step: int) -> BatchLinks:
        parts = []
        for one in messages:
            matrix = csr_array(self.mixing.at(one.side, self._number(one, step)))
            targets = np.repeat(np.arange(self.nodes), np.diff(matrix.indptr))
            used = (targets != matrix.indices) & (matrix.data != 0)
            keys = targets[used].astype(np.int64) * self.nodes + matrix.indices[used]
            parts.append((keys, np.full(len(keys), self.sizes.of(one.vectors, one.numbers))))
        keys, weights = (np.concatenate(part) for part in zip(*parts, strict=True))
        unique, inverse = np.unique(keys, return_inverse=True)
        return self.build(unique // self.nodes, unique % self.nodes, _sums(inverse, weights, len(unique)))

    def build(self, targets: IntArray, sources: IntArray, size: FloatArray) -> BatchLinks:
        """Return links ordered by target, with their times."""
        machines, n = self.machines, self.nodes
        machines.check_links(sources, targets)
        sent, heard = (_sums(ends, size, n) for ends in (sources, targets))
        out, into = sent / machines.up, heard / machines.down
        own = size / machines.rates(sources, targets)
        wire = np.maximum(own, np.maximum(out[sources], into[targets]))
        latency = machines.latencies(sources, targets)
        back = machines.latencies_back(sources, targets)
        return BatchLinks(
            sources, targets, size, _scalar(latency), _scalar(back), _scalar(wire), own, out, into, heard,
            ((sent > 0) | (heard > 0)).astype(float),
            Grouped.by(targets, n), Grouped.by(sources, n),
            None if self.all is None else np.searchsorted(self.all, targets * n + sources),
        )  # fmt: skip

    def _all_links(self) -> IntArray:
        """The numbers of all links of the network, sorted: target n + source."""
        if not self.mixing.period:
            return np.arange(self.nodes**2)
        steps = range(self.mixing.period)
        return np.unique(
            np.concatenate(
                [
                    part.targets * self.nodes + part.sources
                    for batch in self.posts
                    for part in (self.at(batch, step) for step in steps)
                ]
            )
        )


def _sums(places: IntArray, values: FloatArray, count: int) -> FloatArray:
    """The sum of the values at each place."""
    return np.asarray(np.bincount(places, values, count), dtype=np.float64)


def _scalar(values: FloatArray) -> FloatArray | float:
    """One number if all are equal: arithmetic with it is faster."""
    return float(values[0]) if len(values) and (values == values[0]).all() else values

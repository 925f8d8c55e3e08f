"""Asynchronous nodes: each steps at its own pace with the newest messages that have arrived.

`AsynchronousNode` supports one exchange, `latest`. A thread per outgoing link sends the newest message; one that is replaced
before it is sent is never sent. A thread per incoming link keeps the newest message received. So no step waits for a neighbor,
a slow or stopped node delays no other, and memory is bounded. The algorithm must tolerate lost messages (`about.robust`), as
Robust Push-Pull does.

A connection that closes before the neighbor's last message is an error at the next step.
"""

from __future__ import annotations

import atexit
import threading
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from perron.algorithms.base import Algorithm
from perron.algorithms.codecs import Encoded
from perron.algorithms.node import Handle, Later, NodeLinks, Side
from perron.distributed.exchange import Exchange
from perron.distributed.finite import is_finite
from perron.distributed.node import DistributedNode, ProcessLinks
from perron.distributed.process_group import DRAIN_SECONDS, Peers, Transfer, explain_error
from perron.errors import DivergenceError, NetworkError, PerronError

FOREVER = 7 * 86400.0  # seconds that a link may be silent: gloo closes all connections when a wait times out
TAGS: dict[Side, int] = {"pull": 2**30, "push": 2**30 + 1}
UNUSED_TAG = 2**30 + 2  # no message has it


class _Link(threading.Thread, ABC):
    """One direction of one link; its thread blocks in gloo, which can neither wake nor poll a wait.

    The last number of a message is 1 if no message follows it, otherwise 0.
    """

    def __init__(self, peers: Peers, neighbor: int, side: Side, what: str) -> None:
        super().__init__(name=f"perron {what}", daemon=True)
        self.peers, self.neighbor, self.tag, self.what = peers, neighbor, TAGS[side], what
        self.error: PerronError | None = None

    def run(self) -> None:
        try:
            self.work()
        except PerronError as error:
            self.error = error
        except (RuntimeError, dist.DistError) as error:
            self.error = NetworkError(f"{self.what}: {explain_error(error)}. {self.peers.remedy}".rstrip())

    @abstractmethod
    def work(self) -> None:
        """Send or receive until the last message, or an error."""

    def transfer(self, tensor: Tensor, *, sent: bool) -> None:
        works = self.peers.post([Transfer(self.neighbor, tensor, self.tag, sent)])
        self.peers.finish([(work, self.what) for work in works], FOREVER)


class Outbox(_Link):
    """Sends the newest message."""

    def __init__(self, peers: Peers, neighbor: int, side: Side, what: str) -> None:
        super().__init__(peers, neighbor, side, what)
        self.bytes_sent = 0
        self._changed = threading.Condition()
        self._next: Tensor | None = None
        self._stopped = False

    def put(self, message: Tensor | None) -> None:
        """Send a message as soon as the previous one is sent; None ends the thread instead."""
        with self._changed:
            self._next, self._stopped = message, message is None
            self._changed.notify()

    def work(self) -> None:
        last = False
        while not last:
            with self._changed:
                self._changed.wait_for(lambda: self._next is not None or self._stopped)
                message, self._next = self._next, None
            if message is None:
                return
            self.transfer(message, sent=True)
            self.bytes_sent += message.nbytes
            last = bool(message[-1])


class Inbox(_Link):
    """Receives messages and keeps the newest."""

    def __init__(self, peers: Peers, neighbor: int, side: Side, what: str, like: Tensor) -> None:
        super().__init__(peers, neighbor, side, what)
        self.like = like
        self.newest: Tensor | None = None

    def work(self) -> None:
        last = False
        while not last:
            message = torch.empty_like(self.like)
            self.transfer(message, sent=False)
            if not is_finite(message):
                raise DivergenceError(f"{self.what}: the numbers that it sent are not finite. Lower lr, or pass clip=.")
            self.newest, last = message[:-1], bool(message[-1])


class AsynchronousNode(DistributedNode):
    """This process as a node that never waits for its neighbors; see the module's docstring."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if self.mixing.varies:
            raise PerronError("Asynchronous nodes need a fixed network: give one graph.")
        if torch.device(self._device).type != "cpu":
            raise PerronError(f"Asynchronous nodes need gloo and CPU tensors; got {self._device}.")
        self._out: dict[tuple[Side, int], Outbox] = {}
        self._in: dict[tuple[Side, int], Inbox] = {}
        self._last: dict[Side, Tensor] = {}
        self.timeout = FOREVER  # in collectives, as averages, the fast nodes wait for the slow ones

    def links(self, side: Side) -> NodeLinks:
        return AsynchronousLinks(self, side)

    def latest(self, side: Side, x: Tensor, before: Tensor) -> Handle:
        """Hand ``x`` to the outboxes; the handle reads the inboxes."""
        self._check()
        message = torch.cat([x.detach().reshape(-1), x.new_zeros(1)])
        if side not in self._last:
            self._open(side, message)
        self._last[side] = message
        neighbors = self.neighbors(side, self.step)
        for target in neighbors.targets:
            self._out[side, target].put(message)

        def newest() -> Tensor:
            rows = before.clone()
            for row, source in enumerate(neighbors.sources):
                received = self._in[side, source].newest
                if received is not None:
                    rows[row] = received.view_as(x)
            return rows

        return Later(newest)

    def _open(self, side: Side, message: Tensor) -> None:
        """Start the threads of a side's links."""
        if not self._last:
            atexit.register(self._abandon)
        neighbors, own = self.neighbors(side, self.step), self.name
        for source in neighbors.sources:
            name = self.peers.node_ids[source]
            what = f"Node {own} lost node {name} (edge node {name} -> node {own}, {side})"
            self._in[side, source] = Inbox(self.peers, source, side, what, message)
            self._in[side, source].start()
        for target in neighbors.targets:
            name = self.peers.node_ids[target]
            what = f"Node {own} lost node {name} (edge node {own} -> node {name}, {side})"
            self._out[side, target] = Outbox(self.peers, target, side, what)
            self._out[side, target].start()

    @property
    def bytes_sent(self) -> int:
        return self.posted_bytes + sum(outbox.bytes_sent for outbox in self._out.values())

    @property
    def _links(self) -> list[_Link]:
        return [*self._in.values(), *self._out.values()]

    def _check(self) -> None:
        for link in self._links:
            if link.error is not None:
                raise link.error

    def close(self) -> None:
        """Send the last messages, and wait for those of all neighbors: no node leaves before all are done."""
        for (side, _), outbox in self._out.items():
            outbox.put(torch.cat([self._last[side][:-1], self._last[side].new_ones(1)]))
        for link in self._links:
            link.join()
        atexit.unregister(self._abandon)
        self._check()

    def _abandon(self) -> None:
        """End the threads of a process that exits without `close`: one inside gloo would abort the interpreter's shutdown.

        gloo closes all connections, and so wakes all threads, when a wait times out. So wait briefly for messages that never
        come, from one neighbor after the other, until a connection that was still open has timed out.
        """
        for outbox in self._out.values():
            outbox.put(None)
        for other in range(self.nodes):
            if other != self.number and any(link.is_alive() for link in self._links):
                with suppress(NetworkError, RuntimeError, dist.DistError):
                    works = self.peers.post([Transfer(other, torch.empty(1), UNUSED_TAG, sent=False)])
                    self.peers.finish([(work, "No message") for work in works], DRAIN_SECONDS / 10)
                for link in self._links:
                    link.join(DRAIN_SECONDS)

    def drain(self) -> None:
        """Do nothing: no message has to arrive."""

    def _exchange(self, kind: type[Exchange], side: Side, x: Tensor | Encoded) -> Exchange:  # noqa: ARG002
        raise PerronError("An asynchronous node has only the newest messages, not all of them: use RobustPushPull.")


class AsynchronousLinks(ProcessLinks):
    """Links of an asynchronous node: the newest message that has arrived."""

    node: AsynchronousNode

    def latest(self, x: Tensor, before: Tensor) -> Handle:
        return self.node.latest(self.side, x, before)


def check_asynchronous(algorithm: Algorithm, *, elastic: bool = False, wire: str | None = None) -> None:
    """Refuse an algorithm that needs every message, elastic membership, and quantized messages."""
    if not algorithm.about.robust:
        raise PerronError(
            f"{algorithm.about.title} needs every message of every step, so its nodes have to wait for each other; use "
            "RobustPushPull, or leave out asynchronous=True."
        )
    if wire is not None:
        raise PerronError(f"Asynchronous nodes send running sums, in full precision: leave out wire={wire!r}.")
    if elastic:
        raise PerronError("Elastic membership needs nodes that wait for each other: leave out asynchronous=True.")

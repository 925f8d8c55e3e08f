"""Processes that do not wait for each other: every node steps at its own pace, with the newest that it has heard.

`AsynchronousNode` knows one exchange, `latest`. What a node sends goes into the outbox of a link; a thread sends what lies there,
and if something newer is put there before the last is out, the older one is never sent. Another thread listens on each link and
keeps the newest message. So no step waits for a neighbour, a slow or stopped one slows nobody down, and the memory that messages
take is bounded. For algorithms that need no more than that (`about.robust`), as Robust Push-Pull.

A neighbour whose connection closes before it has said goodbye is an error, at the next step.
"""

from __future__ import annotations

import atexit
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from perron.algorithms.base import Algorithm
from perron.algorithms.node import Handle, Later, Side
from perron.distributed.exchange import Exchange
from perron.distributed.node import DistributedNode
from perron.distributed.process_group import DRAIN_SECONDS, Peers, Transfer, explain_error, wait
from perron.errors import NetworkError, PerronError

FOREVER = 7 * 86400.0  # seconds that a link may be silent: gloo closes all connections when a wait times out
TAGS: dict[Side, int] = {"pull": 2**30, "push": 2**30 + 1}
NOBODY = 2**30 + 2  # the tag of a message that is never sent


class _Link(threading.Thread, ABC):
    """One direction of one link; its thread blocks in gloo, which can neither wake nor poll a wait."""

    def __init__(self, peers: Peers, neighbour: int, side: Side, what: str) -> None:
        super().__init__(name=f"perron {what}", daemon=True)
        self.peers, self.neighbour, self.tag, self.what = peers, neighbour, TAGS[side], what
        self.error: NetworkError | None = None

    def run(self) -> None:
        """Until the goodbye, or an error."""
        try:
            self.work()
        except NetworkError as error:
            self.error = error
        except (RuntimeError, dist.DistError) as error:
            self.error = NetworkError(f"{self.what}: {explain_error(error)}. {self.peers.remedy}".rstrip())

    @abstractmethod
    def work(self) -> None:
        """What the thread does."""

    def pass_on(self, tensor: Tensor, *, sent: bool) -> None:
        """Send it, or fill it; the last number is 0, or 1 for goodbye."""
        for one in self.peers.post([Transfer(self.neighbour, tensor, self.tag, sent)]):
            wait(one, self.what, FOREVER, self.peers.remedy)


class Outbox(_Link):
    """Holds what is to be sent next; what is newer takes its place."""

    def __init__(self, peers: Peers, neighbour: int, side: Side, what: str) -> None:
        super().__init__(peers, neighbour, side, what)
        self._changed = threading.Condition()
        self._next: Tensor | None = None
        self._stopped = False

    def stop(self) -> None:
        """Send no more."""
        with self._changed:
            self._stopped = True
            self._changed.notify()

    def put(self, message: Tensor) -> None:
        """To be sent as soon as the last one is out."""
        with self._changed:
            self._next = message
            self._changed.notify()

    def work(self) -> None:
        """Send and send, until a goodbye is sent."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._next is not None or self._stopped)
                message, self._next = self._next, None
            if message is None or self._stopped:
                return
            self.pass_on(message, sent=True)
            if message[-1]:
                return


class Inbox(_Link):
    """Keeps the newest message."""

    def __init__(self, peers: Peers, neighbour: int, side: Side, what: str, like: Tensor) -> None:
        super().__init__(peers, neighbour, side, what)
        self.like = like
        self.newest: Tensor | None = None

    def work(self) -> None:
        """Listen and listen, until a goodbye comes."""
        while True:
            message = torch.empty_like(self.like)
            self.pass_on(message, sent=False)
            self.newest = message[:-1]
            if message[-1]:
                return


class AsynchronousNode(DistributedNode):
    """This process as a node of a network in which nobody waits; see the module's text."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if self.wire is not None or self.mixing.period > 1:
            raise PerronError("Asynchronous nodes need a fixed network, and numbers in full precision: wire=None.")
        if torch.device(self._device).type != "cpu":
            raise PerronError(f"Asynchronous nodes work on gloo, for CPU tensors; got {self._device}.")
        self._out: dict[tuple[Side, int], Outbox] = {}
        self._in: dict[tuple[Side, int], Inbox] = {}
        self._last: dict[Side, Tensor] = {}
        self.timeout = FOREVER  # where all come together, as for an average, the fast wait for the slow

    def latest(self, side: Side, x: Tensor, before: Tensor) -> Handle:
        """Hand it over, and take what is there when it is waited for."""
        self._check()
        message = torch.cat([x.detach().reshape(-1), x.new_zeros(1)])
        if side not in self._last:
            self._open(side, message)
        self._last[side] = message
        edges = self.edges(side, self.step)
        for target in edges.targets:
            self._out[side, target].put(message)

        def found() -> Tensor:
            heard = before.clone()
            for row, source in enumerate(edges.sources):
                newest = self._in[side, source].newest
                if newest is not None:
                    heard[row] = newest.view_as(x)
            return heard

        return Later(found)

    def _open(self, side: Side, message: Tensor) -> None:
        """The links of a side; their threads begin to listen."""
        if not self._last:
            atexit.register(self._abandon)
        edges, names = self.edges(side, self.step), self.peers.node_ids
        for source in edges.sources:
            what = f"Node {self.name} lost node {names[source]} (edge node {names[source]} -> node {self.name}, {side})"
            self._in[side, source] = Inbox(self.peers, source, side, what, message)
        for target in edges.targets:
            what = f"Node {self.name} lost node {names[target]} (edge node {self.name} -> node {names[target]}, {side})"
            self._out[side, target] = Outbox(self.peers, target, side, what)
        for (own, _), link in [*self._in.items(), *self._out.items()]:
            if own == side:
                link.start()

    def _links(self) -> Iterator[_Link]:
        yield from self._in.values()
        yield from self._out.values()

    def _check(self) -> None:
        for link in self._links():
            if link.error is not None:
                raise link.error

    def close(self) -> None:
        """Send what is newest with a goodbye, and wait for those of all others: nobody goes before everybody is done."""
        for (side, _), box in self._out.items():
            box.put(torch.cat([self._last[side][:-1], self._last[side].new_ones(1)]))
        for link in self._links():
            link.join()
        atexit.unregister(self._abandon)
        self._check()

    def _abandon(self) -> None:
        """At the end of a process that did not close: a thread that is inside gloo when the interpreter goes would abort it.

        gloo closes all connections when a wait times out, and so wakes all threads. So we wait, in vain and not for long, for
        somebody to whom the connection is still open.
        """
        for box in self._out.values():
            box.stop()
        for other in range(self.nodes):
            if other != self.number and any(link.is_alive() for link in self._links()):
                with suppress(NetworkError, RuntimeError, dist.DistError):
                    for work in self.peers.post([Transfer(other, torch.empty(1), NOBODY, sent=False)]):
                        wait(work, "nobody", DRAIN_SECONDS / 10)
                for link in self._links():
                    link.join(DRAIN_SECONDS)

    def drain(self) -> None:
        """Nothing that is under way has to arrive."""

    def _ask(self, side: Side, x: Tensor, *, apart: bool = False) -> Exchange:  # noqa: ARG002
        raise PerronError("An asynchronous node has the newest messages only, not all: use RobustPushPull.")


def pacing(algorithm: Algorithm, *, elastic: bool = False) -> type[AsynchronousNode]:
    """The kind of node with which an algorithm need not wait; refused if it needs every message."""
    if not algorithm.about.robust:
        raise PerronError(
            f"{algorithm.about.title} needs every message of every step, so its nodes have to wait for each other; use "
            "RobustPushPull, or leave out asynchronous=True."
        )
    if elastic:
        raise PerronError("Elastic membership needs nodes that wait for each other: leave out asynchronous=True.")
    return AsynchronousNode

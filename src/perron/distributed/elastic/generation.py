"""A generation: the members of an elastic training between two changes, and the gloo context among them.

gloo can neither interrupt nor poll a wait, so a thread of the generation waits; when the generation ends, the process abandons
that thread and its context.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from queue import SimpleQueue
from typing import Any, NamedTuple

import torch.distributed as dist
from torch import Tensor

from perron.distributed.elastic.protocol import Decision
from perron.distributed.elastic.tree import Tree
from perron.distributed.process_group import TIMEOUT, Description, Peers, Transfer, first_line, post_to, wait
from perron.distributed.store import STORE_ERRORS
from perron.errors import NetworkError, listed


class Change(NamedTuple):
    """A change of the members after ``step`` steps: the nodes that are members now, how others were lost, which joined."""

    step: int
    members: tuple[int, ...]
    lost: dict[int, str]
    joined: tuple[int, ...]
    seconds: float  # until training continued

    def __str__(self) -> str:
        lost = ", ".join(f"{node} ({how})" for node, how in self.lost.items())
        parts = [f"lost node {lost}" if self.lost else "", f"node {listed(self.joined)} joined" if self.joined else ""]
        events = "; ".join(filter(None, parts)) or "the same members reconnected"
        return (
            f"Step {self.step}: {events}. The objective is now the average over nodes {listed(self.members, 32)}. "
            f"Recovered in {self.seconds:.2f} s."
        )


class Generation(Peers):
    """The members between two changes, and their messages.

    Attributes:
        number: k.
        members: in the order of their nodes.
        lost: for each node of generation k - 1 that is missing, why.
        broken: the pairs of ranks that cannot reach each other.
        stops: why its members save and end without another step; mostly empty.
        ended: why it ended; empty until then.
        stepped: whether this process has made a step in it.
    """

    def __init__(self, decision: Decision, name: str, lost: dict[int, str]) -> None:
        self.number, self.members, self.lost = decision.number, decision.members, lost
        self.node_ids = [member.node for member in self.members]
        self.rank, self.size = decision.names.index(name), len(self.members)
        self.broken = {frozenset(decision.names.index(end) for end in pair) for pair in decision.broken}
        self._tree = Tree(self.post, self.rank, self.size, self.broken) if self.broken else None
        self.stops, self.ended, self.stepped = decision.stops, "", False
        self._changed = threading.Condition()
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self.group: Any = None
        waiter = threading.Thread(target=self._serve, name=f"perron generation {self.number}", daemon=True)
        waiter.start()
        _waiters[:] = [*(thread for thread in _waiters if thread.is_alive()), waiter]

    @property
    def in_progress(self) -> bool:
        """Whether a member is beyond the start."""
        return any(member.phase not in ("start", "load") for member in self.members)

    def connect(self, store: Any, timeout: float) -> None:
        """Create the gloo context. If pairs are broken, only those that exchange messages connect, when they do."""
        seconds = timedelta(seconds=timeout)

        def create() -> None:
            try:
                if not self.broken:
                    self.group = dist.ProcessGroupGloo(store, self.rank, self.size, seconds)
                else:
                    self.group = dist.ProcessGroupGloo(store, self.rank, self.size, _lazy_options(seconds))
            except STORE_ERRORS as error:
                raise NetworkError(f"The members could not connect: {first_line(error)}.") from None

        self._run([create])

    def end(self, why: str) -> None:
        """End it: the thread that waits in it gets an error. May be called by any thread."""
        with self._changed:
            self.ended = self.ended or why
            self._changed.notify_all()

    def leave(self) -> None:
        """End it for this process; a wait in progress is left to the waiting thread, which keeps the context until then."""
        self.end("this process left it")
        self.ledger.clear()
        self._jobs.put(None)

    def post(self, transfers: list[Transfer]) -> list[Any]:
        return post_to(self.group, transfers)

    # gloo's collectives use pairs of its own choice.

    def all_reduce(self, tensor: Tensor, op: Any = dist.ReduceOp.SUM, *, timeout: float = TIMEOUT) -> Any:
        return self._tree.all_reduce(tensor, op) if self._tree else super().all_reduce(tensor, op, timeout=timeout)

    def all_gather(self, tensors: list[Tensor], tensor: Tensor, *, timeout: float = TIMEOUT) -> Any:
        return (
            self._tree.all_gather(tensors, tensor)
            if self._tree
            else super().all_gather(tensors, tensor, timeout=timeout)
        )

    def broadcast(self, tensor: Tensor, root: int, *, timeout: float = TIMEOUT) -> Any:
        return self._tree.broadcast(tensor, root) if self._tree else super().broadcast(tensor, root, timeout=timeout)

    def finish(self, works: Sequence[tuple[Any, Description]], timeout: float = TIMEOUT) -> None:
        """Wait for all handles; an error if one fails, or as soon as the generation ends."""
        if works:
            self._run([partial(wait, work, description, timeout) for work, description in works])

    def _run(self, calls: list[Callable[[], None]]) -> None:
        """Have the waiting thread make these calls, and wait until they return or the generation ends."""
        job = _Job(calls)
        self._jobs.put(job)
        with self._changed:
            self._changed.wait_for(lambda: job.done or self.ended)
        error, job.error = job.error, None  # break the cycle, so that the error's frames are freed at once
        if error is not None:
            raise error
        if not job.done:
            raise NetworkError(f"The members changed: {self.ended}.")

    def _serve(self) -> None:
        """Make the calls of all jobs, in the waiting thread."""
        while (job := self._jobs.get()) is not None:
            error: Exception | None = None
            try:
                for call in job.calls:
                    if not self.ended:
                        call()
            except Exception as caught:
                error = caught
            with self._changed:
                job.error, job.done = error, not self.ended
                job.calls.clear()
                self._changed.notify_all()
        self.group = None  # its destructor may wait for threads of its own, so not in the main thread


def _lazy_options(timeout: timedelta) -> Any:
    """Return options by which pairs connect when they first exchange a message."""
    kind: Any = dist.ProcessGroupGloo
    options = kind._Options()
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "").partition(",")[0]
    device = kind.create_device(interface=interface, lazy_init=True) if interface else None
    options._devices, options._timeout = [device or kind.create_default_device(lazy_init=True)], timeout
    return options


class _Job:
    """Blocking calls for the waiting thread, and the error of the one that failed."""

    def __init__(self, calls: list[Callable[[], None]]) -> None:
        self.calls, self.done = calls, False
        self.error: Exception | None = None


_waiters: list[threading.Thread] = []


@atexit.register
def _join_waiters() -> None:
    """Join the waiting threads, whose waits time out: one that is inside gloo at the interpreter's exit aborts the process."""
    deadline = time.monotonic() + 2 * TIMEOUT
    for waiter in _waiters:
        waiter.join(max(0.0, deadline - time.monotonic()))

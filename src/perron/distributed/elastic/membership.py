"""Elastic membership: how processes agree, each time one is lost or joins, on the members of the next generation.

A training is a sequence of generations. Generation k is a list of members and a gloo context among them. It ends when a member
finds a neighbor's connection closed, when the heartbeat of a member stops, or when a process asks to join. The remaining
processes then register for generation k + 1, and one decision, written once to the store, fixes its members:

- A registered member of generation k keeps its model. Every other process is *fresh* and receives a model, so that a process that
  was stopped and resumed, or was restarted, continues with the model of the others instead of an old one.
- The decision waits for all members of generation k that are alive. It proceeds without the others if more than half of the
  members of generation k have registered or finished: a minority that was cut off cannot train on its own.

gloo can neither interrupt nor poll a wait, so a thread of the generation waits; when the generation ends, the process abandons
that thread and its context. Heartbeats, registrations and decisions are JSON in the store that the launcher hosts.

    heartbeat/NAME            a counter that rises with every heartbeat, or the final status: "finished" or "gone: ..."
    generation/3/registered   the processes that registered for generation 3, a line each
    generation/3/members      the decision
    generation/3/end          why it ended
    latest                    the number of a decided generation; later ones may exist
    dead/4                    how node 4 ended, if the launcher does not restart it
"""

from __future__ import annotations

import atexit
import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from queue import SimpleQueue
from secrets import token_hex
from typing import Any, NamedTuple

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore  # dist names it, but its types do not

from perron.distributed.elastic.heartbeat import Heartbeat
from perron.distributed.launch.handshake import join, read_secret
from perron.distributed.process_group import (
    HEARTBEAT_TIMEOUT,
    START_TIMEOUT,
    TIMEOUT,
    Description,
    Peers,
    Transfer,
    check_timeout,
    first_line,
    post_to,
    wait,
)
from perron.distributed.store import STORE_ERRORS, STORE_PREFIX, connect_store, enable_tcp_keepalive
from perron.errors import NetworkError, PerronError, listed

SETTLE_SECONDS = 0.25  # without a new registration before a decision
POLL_INTERVAL = 0.02  # seconds between two reads of the store


class Member(NamedTuple):
    """A process as it registers for a generation.

    ``node`` is the number that the launcher gave it, ``name`` is unique among all processes that had this number, ``fresh``
    processes have no model. ``phase`` is what it was doing when the last generation ended, after ``step`` steps.
    """

    node: int
    name: str
    fresh: bool
    phase: str
    step: int


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
    """

    def __init__(self, number: int, members: Sequence[Member], name: str, lost: dict[int, str]) -> None:
        self.number, self.members, self.lost = number, members, lost
        self.node_ids = [member.node for member in members]
        self.rank, self.size = [member.name for member in members].index(name), len(members)
        self.ended = ""
        self._changed = threading.Condition()
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self.group: Any = None
        waiter = threading.Thread(target=self._serve, name=f"perron generation {number}", daemon=True)
        waiter.start()
        _waiters[:] = [*(thread for thread in _waiters if thread.is_alive()), waiter]

    def sources(self) -> tuple[list[int], int]:
        """Return the ranks that have the current model (none at the start), and their largest number of steps."""
        ranks = [rank for rank, member in enumerate(self.members) if not member.fresh]
        ranks = [rank for rank in ranks if self.members[rank].phase != "load"] or ranks  # these have not loaded it
        furthest = max(self.members[rank].step for rank in ranks or range(self.size))
        if not ranks and furthest:  # all were away; better an old model than none
            ranks = [[member.step for member in self.members].index(furthest)]
        return ranks, furthest

    @property
    def in_progress(self) -> bool:
        """Whether a member is beyond the start."""
        return any(member.phase not in ("start", "load") for member in self.members)

    def connect(self, store: Any, timeout: float) -> None:
        """Create the gloo context."""

        def create() -> None:
            try:
                self.group = dist.ProcessGroupGloo(store, self.rank, self.size, timedelta(seconds=timeout))
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
        self._jobs.put(None)

    def post(self, transfers: list[Transfer]) -> list[Any]:
        return post_to(self.group, transfers)

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


class Membership:
    """This process as a member of an elastic training.

    Args:
        store: of torch.distributed, hosted by a process that is not a member.
        node: the number of this process.
        size: the number of nodes at the start.
        name: of this process; unique.
        timeout: seconds for a member that is alive to register, or to be reached.
    """

    def __init__(self, store: Any, node: int, size: int, *, name: str | None = None, timeout: float = TIMEOUT) -> None:
        self.store, self.node, self.size, self.timeout = store, node, size, timeout
        self.name = name or f"{node}-{token_hex(4)}"
        self.generation: Generation | None = None
        self._claimed = False
        self._heartbeat = Heartbeat(store.clone(), self.name)
        self._heartbeat.start()
        atexit.register(self._abandon)

    def claim(self, timeout: float) -> None:
        """Reserve the membership for one optimizer, and set its timeout; a second claim is refused."""
        if self._claimed:
            raise PerronError(
                "With elastic membership a process can make one Decentralized optimizer; this is the second."
            )
        self._claimed, self.timeout = True, check_timeout(timeout, HEARTBEAT_TIMEOUT)

    def rendezvous(self, phase: str, step: int, why: object, *, fresh: bool) -> Generation:
        """Join the next generation.

        Args:
            phase: what this process was doing.
            step: its number of steps.
            why: the reason for which the present generation ends.
            fresh: whether it has no model. A process that was not in the last generation is fresh in any case.
        """
        while True:
            if not self._heartbeat.is_alive():
                raise NetworkError(
                    f"Node {self.node} lost the launcher's store, so that the members cannot change: {why}"
                )
            try:
                last, before = self._latest()
                self._end(last, why)
                fresh = fresh or self.name not in {member.name for member in before}
                members = self._decide(last, before, Member(self.node, self.name, fresh, phase, step))
            except STORE_ERRORS as error:
                raise _unreachable(self.node, error) from None
            names = [member.name for member in members]
            if self.name not in names:
                why = f"node {self.node} registered late"
                continue
            lost = self._lost([member for member in before if member.name not in names])
            self.generation = self._heartbeat.generation = Generation(last + 1, members, self.name, lost)
            self._heartbeat.watch(names)
            try:
                shared = PrefixStore(f"generation/{last + 1}/gloo", self.store.clone())
                enable_tcp_keepalive()
                self.generation.connect(shared, self.timeout)
            except NetworkError as error:
                why = error
                continue
            return self.generation

    def finish(self) -> None:
        """Leave the training: wait until the other members have finished, too, or the generation ends."""
        self._heartbeat.set_final_status("finished")
        while self.generation is not None and not self.generation.ended:
            others = [member.name for member in self.generation.members if member.name != self.name]
            if not any(self._heartbeat.is_responsive(name) for name in others):
                break
            time.sleep(POLL_INTERVAL)
        self._leave()
        self._heartbeat.stop()

    def _abandon(self) -> None:
        """At the exit of a process that did not finish: notify the others at once, and leave no thread behind."""
        self._heartbeat.set_final_status("gone: it ended before its training did")
        self._leave()
        self._heartbeat.stop()

    def _end(self, number: int, why: object) -> None:
        """End a generation for all its members."""
        if number >= 0:
            reason = str(why).rstrip(".")
            self.store.compare_set(f"generation/{number}/end", "", reason[:1].lower() + reason[1:])
        self._leave()

    def _leave(self) -> None:
        self._heartbeat.generation = None
        if self.generation is not None:
            self.generation.leave()
            self.generation = None

    def _latest(self) -> tuple[int, list[Member]]:
        """Return the number of the last generation that was decided, and its members; -1 and [] at the start."""
        number = int(self.store.get("latest")) if self.store.check(["latest"]) else -1  # a hint: it may lag behind
        while self.store.check([f"generation/{number + 1}/members"]):
            number += 1
        return number, self._members(number) if number >= 0 else []

    def _members(self, number: int) -> list[Member]:
        return [Member(**fields) for fields in json.loads(self.store.get(f"generation/{number}/members"))]

    def _lost(self, absent: list[Member]) -> dict[int, str]:
        """Return how each absent member was lost; without those that have finished."""
        # The process that decided may have been a moment ahead: half of the timeout tells a silent member from a busy one.
        states = {member.node: self._heartbeat.status(member.name, HEARTBEAT_TIMEOUT / 2) for member in absent}
        late = f"did not register within {self.timeout:g} s"
        return {node: late if state == "alive" else state for node, state in states.items() if state != "finished"}

    def _decide(self, last: int, before: list[Member], me: Member) -> list[Member]:
        """Register for the generation after the last one, and wait until its members are decided."""
        key = f"generation/{last + 1}"
        self._heartbeat.watch([member.name for member in before])
        self.store.append(f"{key}/registered", json.dumps(me._asdict()) + "\n")
        began = changed = time.monotonic()
        registered: dict[str, Member] = {}
        while not self.store.check([f"{key}/members"]):
            now, count = time.monotonic(), len(registered)
            for text in self.store.get(f"{key}/registered").decode().splitlines():
                member = Member(**json.loads(text))
                registered[member.name] = member
            changed = now if len(registered) > count else changed
            obstacle = self._obstacle(last, before, registered, waiting=now - began < self.timeout)
            if not obstacle and now - changed >= SETTLE_SECONDS:
                latest = {member.node: member for member in registered.values()}  # of two with one number, the later
                members = [latest[node]._asdict() for node in sorted(latest)]
                self.store.compare_set(f"{key}/members", "", json.dumps(members))
                self.store.set("latest", str(last + 1))
            elif now - changed > (START_TIMEOUT if last < 0 else self.timeout + HEARTBEAT_TIMEOUT):
                raise NetworkError(f"Node {self.node} cannot continue. {obstacle or 'No decision was made'}.")
            time.sleep(POLL_INTERVAL)
        return self._members(last + 1)

    def _obstacle(self, last: int, before: list[Member], registered: dict[str, Member], *, waiting: bool) -> str:
        """Return why the members cannot be decided yet; an empty string if they can."""
        nodes = {member.node for member in registered.values()}
        if last < 0:
            absent = sorted(set(range(self.size)) - nodes)
            for node in absent:
                if self.store.check([f"dead/{node}"]):
                    how = self.store.get(f"dead/{node}").decode()
                    raise NetworkError(f"Node {self.node} cannot start: node {node} {how} before the training began.")
            return f"Nodes {absent} did not register within {START_TIMEOUT:g} s" if absent else ""
        states = {member: self._heartbeat.status(member.name) for member in before}
        unfinished = {member: state for member, state in states.items() if state != "finished"}
        if not unfinished:
            raise NetworkError(f"Node {self.node} registered after the training had finished.")
        if waiting and any(state == "alive" and member.name not in registered for member, state in unfinished.items()):
            return "Members that are alive did not register"
        gone = [f"node {member.node} ({state})" for member, state in unfinished.items() if member.node not in nodes]
        left = len(before) - len(gone)
        if 2 * left <= len(before):
            return (
                f"Quorum lost: {left} of {len(before)} members left, more than half are required (lost: "
                f"{', '.join(gone)}). Start again to resume from the last checkpoint"
            )
        return ""


def connect(*, timeout: float = TIMEOUT) -> Membership:
    """Return a membership through the store that the environment names, as `perron launch` sets it."""
    node, size, name = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), os.environ.get("PERRON_NAME")
    try:
        store = PrefixStore(STORE_PREFIX, connect_store(timeout))
        if name is not None:  # started by perron launch
            join(store, read_secret(), f"Node {node}", timeout=timeout)
        membership = Membership(store, node, size, name=name, timeout=timeout)
        enable_tcp_keepalive()  # the connection of its heartbeats, too
        return membership
    except STORE_ERRORS as error:
        raise _unreachable(node, error) from None


def _unreachable(node: int, error: BaseException) -> NetworkError:
    return NetworkError(f"Node {node} cannot reach the launcher's store: {first_line(error)}.")

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
import logging
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
from torch.distributed.distributed_c10d import PrefixStore  # dist names both, but its types do not

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
from perron.distributed.store import STORE_PREFIX, connect_store, enable_tcp_keepalive
from perron.errors import NetworkError, PerronError, listed

QUIET = 0.25  # seconds without a new registration before a decision
POLL_INTERVAL = 0.02  # seconds between looks at the store

log = logging.getLogger("perron")


class Member(NamedTuple):
    """A process as it registers.

    ``node`` is its number from the launcher; ``name`` is new for every process that had that number; ``phase`` is what it was
    doing when the last generation ended, and ``step`` how many steps it had done.
    """

    node: int
    name: str
    fresh: bool
    phase: str
    step: int


class Change(NamedTuple):
    """Members were lost or came: after which step, who is there now, who was lost and how, who came, seconds to recover."""

    step: int
    members: tuple[int, ...]
    lost: dict[int, str]
    joined: tuple[int, ...]
    seconds: float

    def __str__(self) -> str:
        lost = ", ".join(f"{node} ({how})" for node, how in self.lost.items())
        parts = [f"lost node {lost}" if self.lost else "", f"node {listed(self.joined)} joined" if self.joined else ""]
        what = "; ".join(part for part in parts if part) or "members met anew"
        return (
            f"Step {self.step}: {what}. The objective is now the average over nodes {listed(self.members, 32)}. "
            f"Recovered in {self.seconds:.2f} s."
        )


class Generation(Peers):
    """The members between two changes, and their messages.

    Attributes:
        number: k.
        members: in the order of their nodes.
        lost: what is known of those that were there before, by node.
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
        _waiters[:] = [*(one for one in _waiters if one.is_alive()), waiter]

    def sources(self) -> tuple[list[int], int]:
        """The ranks of those with a model to go on with (nobody at the start), and how many steps they have done at most."""
        found = [rank for rank, one in enumerate(self.members) if not one.fresh]
        found = [rank for rank in found if self.members[rank].phase != "load"] or found  # these have not loaded it
        furthest = max(self.members[rank].step for rank in found or range(self.size))
        if not found and furthest:  # all were away; better an old model than none
            found = [[one.step for one in self.members].index(furthest)]
        return found, furthest

    @property
    def in_progress(self) -> bool:
        """Whether somebody is beyond the start."""
        return any(one.phase not in ("start", "load") for one in self.members)

    def connect(self, store: Any, timeout: float) -> None:
        """Make the gloo context."""

        def made() -> None:
            try:
                self.group = dist.ProcessGroupGloo(store, self.rank, self.size, timedelta(seconds=timeout))
            except (RuntimeError, dist.DistError) as error:
                raise NetworkError(f"The members could not connect: {first_line(error)}.") from None

        self._do([made])

    def end(self, why: str) -> None:
        """Whoever waits is woken with an error. May be called by any thread."""
        with self._changed:
            self.ended = self.ended or why
            self._changed.notify_all()

    def leave(self) -> None:
        """Go away from it; what still waits is left to its thread, which keeps the context until then."""
        self.end("this process left it")
        self._jobs.put(None)

    def post(self, transfers: list[Transfer]) -> list[Any]:
        return post_to(self.group, transfers)

    def finish(self, works: Sequence[tuple[Any, Description]], timeout: float = TIMEOUT) -> None:
        """Wait for all; an error if one fails, or as soon as the generation ends."""
        if works:
            self._do([partial(wait, work, what, timeout) for work, what in works])

    def _do(self, calls: list[Callable[[], None]]) -> None:
        job = _Job(calls)
        self._jobs.put(job)
        with self._changed:
            self._changed.wait_for(lambda: job.done or self.ended)
        error, job.error = job.error, None  # without the cycle, what the error's frames hold goes at once
        if error is not None:
            raise error
        if not job.done:
            raise NetworkError(f"The members changed: {self.ended}.")

    def _serve(self) -> None:
        """The thread that waits."""
        while (job := self._jobs.get()) is not None:
            error: Exception | None = None
            try:
                for call in job.calls:
                    if not self.ended:
                        call()
            except Exception as found:
                error = found
            with self._changed:
                job.error, job.done = error, not self.ended
                job.calls.clear()
                self._changed.notify_all()
        self.group = None  # its end may wait for threads of its own, so not in the main thread


class _Job:
    """Calls that block."""

    def __init__(self, calls: list[Callable[[], None]]) -> None:
        self.calls, self.done = calls, False
        self.error: Exception | None = None


_waiters: list[threading.Thread] = []


@atexit.register
def _join() -> None:
    """A thread that is inside gloo when the interpreter goes would abort the process; its wait ends with its timeout."""
    deadline = time.monotonic() + 2 * TIMEOUT
    for waiter in _waiters:
        waiter.join(max(0.0, deadline - time.monotonic()))


class Membership:
    """This process's part in the agreement.

    Args:
        store: of torch.distributed, hosted by a process that is not a member.
        node: this process's number.
        size: how many begin together.
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
        """For one training, with its timeout: members that come and go are those of all that a process does."""
        if self._claimed:
            raise PerronError(
                "With elastic membership a process can make one Decentralized optimizer; this is the second."
            )
        self._claimed, self.timeout = True, check_timeout(timeout, HEARTBEAT_TIMEOUT)

    def rendezvous(self, phase: str, step: int, why: object, *, fresh: bool) -> Generation:
        """Take part in the next generation.

        Args:
            phase: what this process was about.
            step: how many steps it has done.
            why: the reason for which a present generation ends.
            fresh: that it has no model to go on with. So it is, too, if it was not in the last generation.
        """
        while True:
            if not self._heartbeat.is_alive():
                raise NetworkError(
                    f"Node {self.node} lost the launcher's store, so that members can change no more: {why}"
                )
            try:
                last, members = self._latest()
                self.end(last, _clause(why))
                fresh = fresh or self.name not in {member.name for member in members}
                decided = self._decide(last, members, Member(self.node, self.name, fresh, phase, step))
            except (RuntimeError, dist.DistError) as error:
                raise NetworkError(
                    f"Node {self.node} cannot reach the launcher's store: {first_line(error)}."
                ) from None
            mine = [member for member in decided if member.name == self.name]
            if not mine:
                why = f"node {self.node} came late"
                continue
            here = {one.name for one in decided}
            # Who decided may have been a moment ahead: half of the patience tells a silent one from one that is busy.
            states = {
                one.node: self._heartbeat.status(one.name, HEARTBEAT_TIMEOUT / 2)
                for one in members
                if one.name not in here
            }
            late = f"did not come within {self.timeout:g} s"
            lost = {node: late if how == "alive" else how for node, how in states.items() if how != "finished"}
            generation = Generation(last + 1, decided, self.name, lost)
            self.generation = self._heartbeat.generation = generation
            self._heartbeat.watch([member.name for member in decided])
            try:
                shared = PrefixStore(f"generation/{last + 1}/gloo", self.store.clone())
                enable_tcp_keepalive()
                generation.connect(shared, self.timeout)
            except NetworkError as error:
                why = error
                continue
            return generation

    def end(self, number: int, why: str) -> None:
        """End an generation for everybody."""
        if number >= 0:
            self.store.compare_set(f"generation/{number}/end", "", why)
        if self.generation is not None:
            self._heartbeat.generation = None
            self.generation.leave()
            self.generation = None

    def finish(self) -> None:
        """Leave for good: stay until the others have finished, too, or the generation ends."""
        self._heartbeat.set_final_status("finished")
        while self.generation is not None and not self.generation.ended:
            others = [member.name for member in self.generation.members if member.name != self.name]
            if not any(self._heartbeat.is_responsive(name) for name in others):
                break
            time.sleep(POLL_INTERVAL)
        if self.generation is not None:
            self.generation.leave()
            self.generation = None
        self._heartbeat.stop()

    def _abandon(self) -> None:
        """At the end of the process, if it did not finish: the others know at once, and no thread is left behind."""
        self._heartbeat.set_final_status("gone: it ended before its training did")
        if self.generation is not None:
            self.generation.leave()
        self._heartbeat.stop()

    def _latest(self) -> tuple[int, list[Member]]:
        """The last generation that was decided, and its members; -1 and nobody at the beginning."""
        number = int(self.store.get("latest")) if self.store.check(["latest"]) else -1  # a hint: it may lag behind
        while self.store.check([f"generation/{number + 1}/members"]):
            number += 1
        return number, self._members(number) if number >= 0 else []

    def _members(self, number: int) -> list[Member]:
        return [Member(**one) for one in json.loads(self.store.get(f"generation/{number}/members"))]

    def _decide(self, last: int, before: list[Member], me: Member) -> list[Member]:
        """Register for the generation after the last one, and wait until its members are decided."""
        key = f"generation/{last + 1}"
        self._heartbeat.watch([member.name for member in before])
        self.store.append(f"{key}/registered", json.dumps(me._asdict()) + "\n")
        began = changed = time.monotonic()
        registered: dict[str, Member] = {}
        while not self.store.check([f"{key}/members"]):
            now, many = time.monotonic(), len(registered)
            for text in self.store.get(f"{key}/registered").decode().splitlines():
                member = Member(**json.loads(text))
                registered[member.name] = member
            changed = now if len(registered) > many else changed
            missing = self._missing(last, before, registered, waiting=now - began < self.timeout)
            if not missing and now - changed >= QUIET:
                latest = {member.node: member for member in registered.values()}  # of two with one number, the later
                members = [latest[node]._asdict() for node in sorted(latest)]
                self.store.compare_set(f"{key}/members", "", json.dumps(members))
                self.store.set("latest", str(last + 1))
            elif now - changed > (START_TIMEOUT if last < 0 else self.timeout + HEARTBEAT_TIMEOUT):
                raise NetworkError(f"Node {self.node} cannot go on: {missing or 'no decision was made'}.")
            time.sleep(POLL_INTERVAL)
        return self._members(last + 1)

    def _missing(self, last: int, before: list[Member], registered: dict[str, Member], *, waiting: bool) -> str:
        """What is missing before a decision can be made; nothing if it can."""
        nodes = {member.node for member in registered.values()}
        if last < 0:
            absent = sorted(set(range(self.size)) - nodes)
            for node in absent:
                if self.store.check([f"dead/{node}"]):
                    how = self.store.get(f"dead/{node}").decode()
                    raise NetworkError(f"Node {self.node} cannot go on: node {node} {how} before the training began.")
            return f"nodes {absent} did not come within {START_TIMEOUT:g} s" if absent else ""
        finished = [member for member in before if self._heartbeat.status(member.name) == "finished"]
        if len(finished) == len(before):
            raise NetworkError(f"Node {self.node} came when the training had finished.")
        unfinished = [member for member in before if member not in finished]
        if waiting and any(
            one.name not in registered and self._heartbeat.is_responsive(one.name) for one in unfinished
        ):
            return "members that are alive did not come"
        here = len(finished) + sum(member.node in nodes for member in unfinished)
        if 2 * here <= len(before):
            gone = [
                f"node {one.node} ({self._heartbeat.status(one.name)})" for one in unfinished if one.node not in nodes
            ]
            return (
                f"only {here} of the {len(before)} members are left, and more than half are needed (lost: "
                f"{', '.join(gone)}). Start again from the last checkpoint"
            )
        return ""


def connect(*, timeout: float = TIMEOUT) -> Membership:
    """Membership through the store that the environment names, as `perron launch` sets it."""
    node, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    try:
        store = connect_store(timeout)
        keys, name = PrefixStore(STORE_PREFIX, store), os.environ.get("PERRON_NAME")
        if name is not None:  # the launcher is perron's
            join(keys, read_secret(), f"Node {node}", timeout=timeout)
        found = Membership(keys, node, size, name=name, timeout=timeout)
        enable_tcp_keepalive()  # these connections, and that of its heartbeats
        return found
    except (RuntimeError, dist.DistError) as error:
        raise NetworkError(f"Node {node} cannot reach the launcher's store: {first_line(error)}.") from None


def _clause(why: object) -> str:
    """An error's sentence as a part of another."""
    text = str(why).rstrip(".")
    return text[:1].lower() + text[1:]

"""Elastic membership: a process as a member of a training whose members may change.

`protocol` has the rules, `rendezvous` applies them, `heartbeat` finds out who is alive, `reachability` who can exchange messages
with whom, and `generation` is the group of processes that train together until the next change. Heartbeats, registrations and
decisions are in the store that the launcher hosts.
"""

from __future__ import annotations

import atexit
import os
import time
from contextlib import suppress
from secrets import token_hex
from typing import Any

from torch.distributed.distributed_c10d import PrefixStore  # dist names it, but its types do not

from perron.distributed.elastic.generation import Generation
from perron.distributed.elastic.heartbeat import Heartbeat
from perron.distributed.elastic.protocol import ALIVE, FINISHED, Decision, Member
from perron.distributed.elastic.reachability import Reachability
from perron.distributed.elastic.rendezvous import (
    FIRST_DELAY,
    LONGEST_DELAY,
    POLL_INTERVAL,
    Rendezvous,
    refuse_failed,
    refuse_finished,
)
from perron.distributed.launch.handshake import join, read_secret
from perron.distributed.process_group import HEARTBEAT_TIMEOUT, TIMEOUT, check_timeout, first_line
from perron.distributed.store import STORE_ERRORS, STORE_PREFIX, connect_store, enable_tcp_keepalive
from perron.errors import NetworkError, PerronError


class Membership:
    """This process as a member of an elastic training.

    Args:
        store: of torch.distributed, hosted by a process that is not a member.
        node: the number of this process.
        size: the number of nodes at the start.
        name: of this process; unique.
        timeout: seconds for a member that is alive to register, or to be reached.
        min_nodes: the smallest number of members with which the training continues.
    """

    def __init__(
        self,
        store: Any,
        node: int,
        size: int,
        *,
        name: str | None = None,
        timeout: float = TIMEOUT,
        min_nodes: int = 1,
    ) -> None:
        self.store, self.node, self.size, self.timeout = store, node, size, timeout
        self.min_nodes = check_min_nodes(min_nodes, size)
        self.name = name or f"{node}.{token_hex(4)}"
        self.generation: Generation | None = None
        self._claimed = False
        self._joined = 0  # how many times
        self._reachability = Reachability(store.clone(), self.name)
        self._heartbeat = Heartbeat(store.clone(), self.name)
        self._heartbeat.start()
        atexit.register(self.abandon)

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
            self._leave()
            try:
                decision, last = self._agree(Member(self.node, self.name, fresh, phase, step), why)
                lost = self._lost([member for member in last.members if member.name not in decision.names], decision)
                self.generation = Generation(decision, self.name, lost)
                self._heartbeat.watch(decision.names)
                self._heartbeat.generation = self.generation
                shared = PrefixStore(f"generation/{decision.number}/gloo", self.store.clone())
                enable_tcp_keepalive()
            except STORE_ERRORS as error:
                raise _unreachable(self.node, error) from None
            try:
                self.generation.connect(shared, self.timeout)
            except NetworkError as error:
                why = error
                continue
            return self.generation

    def _agree(self, me: Member, why: object) -> tuple[Decision, Decision]:
        """Return the decision about the next generation, and the one before."""
        delay = min(FIRST_DELAY * 2 ** (self._joined - 1), LONGEST_DELAY) if self._joined else 0.0
        rendezvous = Rendezvous(
            self.store,
            self._heartbeat,
            me,
            why,
            size=self.size,
            timeout=self.timeout,
            probe=self._reachability.probe,
            delay=delay,
            min_nodes=self.min_nodes,
        )
        while (decision := rendezvous.poll()) is None:
            if not self._heartbeat.is_alive():
                raise NetworkError(
                    f"Node {self.node} lost the launcher's store, so that the members cannot change: {why}"
                )
            time.sleep(POLL_INTERVAL)
        self._joined += rendezvous.me.fresh
        return decision, rendezvous.last

    def assembled(self, generation: Generation) -> None:
        """Record that the members of a generation have a model, before they train it."""
        try:
            self.store.set("assembled", str(generation.number))
        except STORE_ERRORS as error:
            raise _unreachable(self.node, error) from None

    def stepped(self) -> None:
        """Note that a step was made: newcomers may join from now on."""
        if self.generation is not None:
            self.generation.stepped = True

    def fail(self, error: Exception) -> None:
        """End the training for all members."""
        with suppress(*STORE_ERRORS):
            self.store.compare_set("failure", "", f"{type(error).__name__}: {error}")

    def finish(self, step: int) -> None:
        """Leave the training: wait until the other members have finished, too, the generation ends, or the store is gone.

        The launcher ends the store when all have finished, which some may not have seen by then.
        """
        with suppress(*STORE_ERRORS):
            refuse_failed(self.store)
            self.store.compare_set("finished", "", f"node {self.node}, after {step} steps")
        self._heartbeat.set_final_status(FINISHED)
        while self.generation is not None and not self.generation.ended and self._heartbeat.is_alive():
            others = [member.name for member in self.generation.members if member.name != self.name]
            if all(self._heartbeat.status(name).kind != ALIVE for name in others):
                break
            time.sleep(POLL_INTERVAL)
        self._close()

    def abandon(self, why: str = "it ended before its training did") -> None:
        """Leave before the end, at the latest when the process exits: notify the others at once, and leave no thread behind."""
        self._heartbeat.set_final_status(f"gone: {why}")
        self._close()

    def _close(self) -> None:
        self._leave()
        self._heartbeat.stop()
        self._reachability.close()

    def _leave(self) -> None:
        self._heartbeat.generation = None
        if self.generation is not None:
            self.generation.leave()
            self.generation = None

    def _lost(self, absent: list[Member], decision: Decision) -> dict[int, str]:
        """Return how each absent member was lost; without those that have finished."""
        # The process that decided may have been a moment ahead: half of the timeout tells a silent member from a busy one.
        found = {}
        for member in absent:
            status = self._heartbeat.status(member.name, HEARTBEAT_TIMEOUT / 2)
            late = f"did not register within {self.timeout:g} s"
            if status.kind != FINISHED:
                how = decision.excluded.get(member.name)
                found[member.node] = how or (late if status.kind == ALIVE else status.text)
        return found


def check_min_nodes(min_nodes: int, size: int) -> int:
    """Return a smallest number of members; refuse one that is impossible."""
    if not 1 <= min_nodes <= size:
        raise PerronError(
            f"min_nodes is a number of nodes from 1 to {size}, which there are at the start; got {min_nodes}."
        )
    return min_nodes


def connect(*, timeout: float = TIMEOUT, min_nodes: int | None = None) -> Membership:
    """Return a membership through the store that the environment names, as `perron launch` sets it."""
    node, size, name = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), os.environ.get("PERRON_NAME")
    if min_nodes is None:
        min_nodes = int(os.environ.get("PERRON_MIN_NODES", "1"))
    try:
        store = PrefixStore(STORE_PREFIX, connect_store(timeout))
        if name is not None:  # started by perron launch
            join(store, read_secret(), f"Node {node}", timeout=timeout)
        refuse_finished(store, node)
        membership = Membership(store, node, size, name=name, timeout=timeout, min_nodes=min_nodes)
        enable_tcp_keepalive()  # the connection of its heartbeats, too
        return membership
    except STORE_ERRORS as error:
        raise _unreachable(node, error) from None


def _unreachable(node: int, error: BaseException) -> NetworkError:
    return NetworkError(f"Node {node} cannot reach the launcher's store: {first_line(error)}.")

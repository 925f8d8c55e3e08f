"""The rendezvous: how a process registers for the next generation and learns its members, by polling the store.

The keys in the store, apart from those of gloo:

- ``heartbeat/NAME``: a counter that rises with every heartbeat, or the final status, "finished" or "gone: ..."
- ``address/NAME``: where the process can be reached, for tests of connections
- ``generation/3/registered``: the processes that registered for generation 3, a line of JSON each
- ``generation/3/reach/NAME``: which of the others this process cannot reach, and which it hears; if this was tested
- ``generation/3/members``: the decision
- ``generation/3/end``: why it ended
- ``latest``: the number of a decided generation; later ones may exist
- ``assembled``: the number of a generation whose members have a model
- ``stepped``: the number of a generation that has made a step
- ``finished``: which member finished first
- ``failure``: the error that has ended the training for all: its class, a colon, and its text
- ``dead/4``: how node 4 ended, if the launcher does not restart it
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable
from typing import Any

from perron.distributed.elastic.heartbeat import Heartbeat, ObservedClock
from perron.distributed.elastic.protocol import (
    ALIVE,
    Decision,
    Member,
    Status,
    View,
    as_pairs,
    decide,
    may_interrupt,
)
from perron.distributed.elastic.reachability import ATTEMPT_SECONDS
from perron.distributed.process_group import START_TIMEOUT
from perron.errors import DivergenceError, NetworkError, TrainingFinishedError, listed

SETTLE_SECONDS = 0.25  # without a new registration before a decision
POLL_INTERVAL = 0.02  # seconds between two polls
MOST = 0.5  # seconds that count between two polls
FIRST_DELAY, LONGEST_DELAY = 1.0, 60.0  # seconds before a process that was a member joins again, doubled each time
PROBE_INTERVAL = 2 * ATTEMPT_SECONDS  # between two tests of the connections, while no decision is possible
GRACE = 2 * PROBE_INTERVAL  # seconds after the timeout: until silence is noticed, and connections are tested
TELL_AFTER = 5.0  # seconds after which a process that waits says why

log = logging.getLogger("perron")

Probe = Callable[[Iterable[str]], dict[str, list[str]]]


class Rendezvous:
    """A process on its way into the next generation: call `poll` until it returns a decision that includes this process.

    Args:
        store: of the launcher.
        heartbeat: of this process.
        me: how this process registers. A process that was not a member of the last generation is fresh in any case.
        why: the reason for which the present generation ends.
        size: the number of nodes at the start.
        timeout: seconds to wait for members that are alive.
        probe: returns which of these processes cannot be reached (``unreachable``), and which are heard (``heard``).
        delay: seconds to wait before a running generation is interrupted.
        min_nodes: the smallest number of members with which the training continues.
    """

    def __init__(
        self,
        store: Any,
        heartbeat: Heartbeat,
        me: Member,
        why: object,
        *,
        size: int,
        timeout: float,
        probe: Probe,
        delay: float = 0.0,
        min_nodes: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.store, self.heartbeat, self.me, self.why = store, heartbeat, me, why
        self.size, self.timeout, self.probe, self.delay, self.min_nodes = size, timeout, probe, delay, min_nodes
        self.last = Decision()
        self._clock = ObservedClock(MOST, clock)
        self._arrived = self._clock.read()
        self._told = False
        self._registered: dict[str, Member] | None = None  # None until this process has registered
        self._began = self._changed = self._next_probe = 0.0
        self._warned: set[tuple[str, str]] = set()

    def poll(self) -> Decision | None:
        """Take the next step; return the decision if this process is a member, None if there is none yet."""
        now = self._clock.read()
        refuse_failed(self.store)
        if self._registered is None:
            self._approach(now)
            return None
        key = f"generation/{self.last.number + 1}"
        if self.store.check([f"{key}/members"]):
            decision = self._decision(self.last.number + 1)
            if self.me.name in decision.names:
                return decision
            self._retreat(decision, now)
            return None
        self._deliberate(key, now)
        return None

    def latest(self) -> Decision:
        """Return the last decision."""
        number = int(self.store.get("latest")) if self.store.check(["latest"]) else -1  # a hint: it may lag behind
        while self.store.check([f"generation/{number + 1}/members"]):
            number += 1
        return self._decision(number) if number >= 0 else Decision()

    def _decision(self, number: int) -> Decision:
        return Decision.from_json(self.store.get(f"generation/{number}/members"))

    def _read(self, key: str) -> str:
        return str(self.store.get(key).decode()) if self.store.check([key]) else ""

    def _given_up(self) -> dict[int, str]:
        """Return the nodes that their launchers do not start again, with how they ended."""
        if self.last.number >= 0 and self.min_nodes == 1:
            return {}  # not needed
        found = {node: self._read(f"dead/{node}") for node in range(self.size)}
        return {node: how for node, how in found.items() if how}

    def _approach(self, now: float) -> None:
        """Register as soon as the present generation has ended, or may be ended."""
        self.last = self.latest()
        member = self.me.name in self.last.names
        if not member:
            self.me = self.me._replace(fresh=True)
            refuse_finished(self.store, self.me.node)
        running = self.last.number >= 0 and not self._read(f"generation/{self.last.number}/end")
        if running and not member and (reason := self._hindrance(now)):
            if not self._told and now - self._arrived > TELL_AFTER:
                self._told = True
                log.warning("Node %d waits to join the training: %s.", self.me.node, reason)
            return
        end(self.store, self.last.number, self.why)
        key = f"generation/{self.last.number + 1}"
        self.store.append(f"{key}/registered", json.dumps(self.me._asdict()) + "\n")
        self.heartbeat.watch([*self.last.names, *self.last.absent])
        self._registered, self._next_probe, self._began, self._changed = {}, now, now, now

    def _hindrance(self, now: float) -> str:
        """Return why this newcomer may not end the present generation yet."""
        if now - self._arrived < self.delay:
            return f"it was a member before, and joins again after {self.delay:g} s"
        self.heartbeat.watch(self.last.names)
        statuses = {name: self.heartbeat.status(name) for name in self.last.names}
        stepped = int(self._read("stepped") or -1) >= self.last.number
        if not may_interrupt(self.last, statuses, stepped=stepped):
            return "the members have not made a step since the last change"
        names = [name for name in self.last.names if statuses[name].kind == ALIVE]
        unreachable = self.probe(names)["unreachable"]
        if unreachable and len(unreachable) == len(names):
            self._arrived, self.delay = now, min(2 * max(self.delay, FIRST_DELAY), LONGEST_DELAY)
            nodes = [member.node for member in self.last.members if member.name in unreachable]
            return f"it cannot reach node {listed(nodes)}"
        return ""

    def _retreat(self, decision: Decision, now: float) -> None:
        """Start again: the decision was made without this process."""
        reason = decision.excluded.get(self.me.name)
        if reason and not self._told:
            self._told = True
            log.warning("Node %d is not a member of the next generation: %s.", self.me.node, reason)
        self.why = f"node {self.me.node} wants to join again" if reason else f"node {self.me.node} registered late"
        self._registered, self._arrived = None, now

    def _deliberate(self, key: str, now: float) -> None:
        """Decide if that is possible; raise an error if it has been impossible for too long."""
        lines = self.store.get(f"{key}/registered").decode().splitlines()
        found = {member.name: member for member in (Member(**json.loads(line)) for line in lines)}
        self._changed = now if len(found) > len(self._registered or ()) else self._changed
        self._registered = found
        names = list(dict.fromkeys([*found, *self.last.names, *self.last.absent]))
        self.heartbeat.watch(names)
        statuses = {name: self.heartbeat.status(name) for name in names} | {self.me.name: Status(ALIVE, ALIVE)}
        given_up = self._given_up()
        for node, how in given_up.items() if self.last.number < 0 else ():
            raise NetworkError(f"Node {self.me.node} cannot start: node {node} {how} before the training began.")
        if self.me.name not in self.last.names:
            refuse_finished(self.store, self.me.node)  # after the statuses: a member writes this first, then its status
        waited = now - self._began
        finished, assembled = (bool(self._read(name)) for name in ("finished", "assembled"))
        known = dict.fromkeys(self.last.broken, "they could not reach each other before")
        view = View(self.last, found, statuses, self.size, assembled, waited < self.timeout, finished, known)
        view = view._replace(min_nodes=self.min_nodes, given_up=frozenset(given_up))
        outcome = decide(view)
        suspicious = isinstance(outcome, Decision) and found.keys() >= set(self.last.names) and self.last.names
        if suspicious or (self.last.broken and waited > SETTLE_SECONDS):
            # No member is lost, so something else is wrong; or broken pairs may work again: find out which ones.
            broken = self._broken_pairs(key, [name for name in found if statuses[name].kind == ALIVE], now)
            outcome = decide(view._replace(broken=broken)) if broken is not None else "Not all tested their connections"
        if isinstance(outcome, Decision) and now - self._changed >= SETTLE_SECONDS:
            self.store.compare_set(f"{key}/members", "", outcome.to_json())
            self.store.set("latest", str(self.last.number + 1))
        elif now - self._changed > (limit := START_TIMEOUT if self.last.number < 0 else self.timeout + GRACE):
            reason = outcome if isinstance(outcome, str) else "No decision was made"
            raise NetworkError(f"Node {self.me.node} cannot continue after {limit:g} s. {reason}.")

    def _broken_pairs(self, key: str, names: list[str], now: float) -> dict[tuple[str, str], str] | None:
        """Return the pairs that cannot reach each other; None until all processes that are alive have tested this."""
        if now >= self._next_probe:
            self._next_probe = now + PROBE_INTERVAL
            report = self.probe([name for name in names if name != self.me.name])
            self.store.set(f"{key}/reach/{self.me.name}", json.dumps(report))
        keys = {name: f"{key}/reach/{name}" for name in names}
        if not self.store.check(list(keys.values())):
            return None
        reports = {name: json.loads(self.store.get(one)) for name, one in keys.items()}
        broken = as_pairs(reports, {name: member.node for name, member in (self._registered or {}).items()})
        for pair, why in broken.items():
            if self.me.name in pair and pair not in self._warned:
                self._warned.add(pair)
                log.warning("%s%s.", why[:1].upper(), why[1:])
        return broken


def end(store: Any, number: int, why: object) -> None:
    """End a generation for all its members; the first reason counts."""
    if number >= 0:
        reason = str(why).rstrip(".")
        store.compare_set(f"generation/{number}/end", "", reason[:1].lower() + reason[1:])


def refuse_failed(store: Any) -> None:
    """Raise the error that has ended the training for all, if there is one."""
    if store.check(["failure"]):
        kind, _, reason = store.get("failure").decode().partition(": ")
        raise DivergenceError(reason) if kind == DivergenceError.__name__ else NetworkError(reason)


def refuse_finished(store: Any, node: int) -> None:
    """Send a process that is not a member away if a member has finished the training."""
    if store.check(["finished"]):
        first = store.get("finished").decode()
        raise TrainingFinishedError(f"Node {node} is not needed any more: the training has finished ({first}).")

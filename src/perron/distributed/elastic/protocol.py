"""The rules by which the processes of an elastic training agree on its members. Nothing here waits, sends or reads a clock.

A training is a sequence of generations. Each is a list of members that train together until one of them is lost, a pair of them
cannot exchange messages, or a process asks to join. All processes that want to continue then register for the next generation.
Every one of them may write the `Decision` about its members, and the first one counts. A decision follows these rules:

1. A *member* is a process, not a node. A process that was started in place of a dead one is a newcomer: it has no model, and it
   does not count as the member that died.
2. Members that are alive are waited for until the timeout. More than half of the members of the last generation must have
   registered, finished, or be known to be dead and have been replaced: a minority that was cut off cannot continue on its own.
3. If no member with a model has registered, training starts again only if every process that may hold a model is known to be
   dead. A silent process may hold one.
4. While members run a collective operation such as the final average, newcomers wait for the generation after that, unless
   rule 9 needs them.
5. A newcomer interrupts a generation only after its first step, or if one of its members is lost.
6. After a member has finished, newcomers are sent away: a finished training does not start again.
7. Pairs of processes that cannot reach each other do not exchange messages. The largest set of processes that are connected by
   the other pairs continues.
8. A failure, such as divergence, ends the training for all.
9. With fewer members than ``min_nodes`` a training does not continue. Nodes that may still come, because their launcher has not
   given them up, are waited for until the timeout. Then the members form a last generation, in which they save and end.

A process is known to be dead if its launcher saw it end, or if it said so itself. Otherwise it is only silent.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from perron.errors import listed

ALIVE, FINISHED, DEAD, SILENT = "alive", "finished", "dead", "silent"
INTERRUPTIBLE = ("start", "load", "step")  # phases in which newcomers may join


class Status(NamedTuple):
    """What is known of a process: one of the four kinds, and a phrase for messages."""

    kind: str
    text: str


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


class Decision(NamedTuple):
    """The members of a generation.

    ``absent`` are the names of processes that were members earlier, and are neither members now nor known to be dead: they may
    hold a model. ``excluded`` says of registered processes, by name, why they are not members. ``broken`` are the pairs of
    members, by name, that cannot reach each other. ``stops`` says why the members save and end without another step.
    """

    number: int = -1
    members: tuple[Member, ...] = ()
    absent: tuple[str, ...] = ()
    excluded: Mapping[str, str] = {}
    broken: tuple[tuple[str, str], ...] = ()
    stops: str = ""

    @property
    def names(self) -> list[str]:
        """The names of the members."""
        return [member.name for member in self.members]

    def to_json(self) -> str:
        fields = self._asdict() | {"members": [member._asdict() for member in self.members]}
        return json.dumps(fields)

    @classmethod
    def from_json(cls, text: bytes | str) -> Decision:
        fields = json.loads(text)
        fields["members"] = tuple(Member(**member) for member in fields["members"])
        return cls(**fields | {"absent": tuple(fields["absent"]), "broken": tuple(map(tuple, fields["broken"]))})


class View(NamedTuple):
    """What a process knows when it decides on the generation after ``last``.

    ``registered`` are the processes that registered, by name, in this order; ``status`` is known of all of them, of the members
    of the last generation and of the absent ones. ``assembled`` says whether there has been a model, ``patient`` whether
    processes that are alive are still waited for, ``finished`` whether a member has finished. ``broken`` are the pairs of names
    that cannot reach each other, with a reason. ``min_nodes`` is the smallest number of members, and ``given_up`` are the nodes
    that their launchers do not start again.
    """

    last: Decision
    registered: Mapping[str, Member]
    status: Mapping[str, Status]
    size: int
    assembled: bool
    patient: bool
    finished: bool = False
    broken: Mapping[tuple[str, str], str] = {}
    min_nodes: int = 1
    given_up: frozenset[int] = frozenset()


def decide(view: View) -> Decision | str:
    """Return the members of the next generation, or why they cannot be decided yet."""
    last, status = view.last, view.status
    live = {name: member for name, member in view.registered.items() if status[name].kind == ALIVE}
    latest = {member.node: name for name, member in live.items()}  # of two with one number, the later
    if last.number < 0:
        missing = sorted(set(range(view.size)) - set(latest))
        if missing:
            return f"Node {listed(missing)} did not register"
    waiting = [name for name in last.names if name not in live and status[name].kind == ALIVE]
    if view.patient and waiting:
        return "Members that are alive did not register"
    chosen = {name: live[name] for name in latest.values()}
    holders = [name for name, member in chosen.items() if name in last.names and not member.fresh]
    excluded: dict[str, str] = {}
    busy = next((chosen[name].phase for name in holders if chosen[name].phase not in INTERRUPTIBLE), None)
    if (busy is not None and len(holders) >= view.min_nodes) or view.finished:
        reason = "the training has finished" if view.finished else f"the members are busy ({busy})"
        excluded |= {name: reason for name in chosen if name not in holders}
    excluded |= unreachable({name: member for name, member in chosen.items() if name not in excluded}, view)
    members = sorted(member for name, member in chosen.items() if name not in excluded)
    names = {member.name for member in members}
    gone = [
        member
        for member in last.members
        if member.name not in names
        and status[member.name].kind != FINISHED
        and not (status[member.name].kind == DEAD and member.node in latest)  # a newcomer is in its place
    ]
    left = len(last.members) - len(gone)
    lost = ", ".join(f"node {one.node} ({excluded.get(one.name, status[one.name].text)})" for one in gone)
    if last.members and 2 * left <= len(last.members):
        return (
            f"Quorum lost: {left} of {len(last.members)} members left, more than half are required (lost: {lost}). "
            "Start again to resume from the last checkpoint"
        )
    earlier = dict.fromkeys([*last.names, *last.absent])
    absent = [name for name in earlier if name not in names and status[name].kind in (ALIVE, SILENT)]
    if view.assembled and names.isdisjoint(holders) and absent:
        states = listed(f"{name} ({excluded.get(name, status[name].text)})" for name in absent)
        return f"No process that registered has the model; these may have it: {states}"
    broken = tuple(pair for pair in view.broken if names >= set(pair))
    stops = ""
    if len(members) < view.min_nodes and not view.finished:
        awaited = set(range(view.size)) - {member.node for member in members} - view.given_up
        if view.patient and awaited:
            return f"Node {listed(sorted(awaited))} did not register, and min_nodes is {view.min_nodes}"
        which = f" (lost: {lost})" if lost else ""
        stops = f"{len(members)} of {view.size} nodes are left{which}, fewer than min_nodes = {view.min_nodes}"
    return Decision(last.number + 1, tuple(members), tuple(absent), excluded, broken, stops)


def unreachable(chosen: Mapping[str, Member], view: View) -> dict[str, str]:
    """Return the processes outside the largest set that is connected by pairs which reach each other, each with a reason."""
    left, largest = dict(chosen), list[str]()
    while left:
        part, queue = [], [next(iter(left))]
        while queue:
            name = queue.pop()
            if left.pop(name, None) is not None:
                part.append(name)
                queue += [other for other in left if (min(name, other), max(name, other)) not in view.broken]
        largest = max(largest, part, key=lambda names: (len(names), sum(name in view.last.names for name in names)))
    reasons = {name: why for pair, why in view.broken.items() for name in pair}
    return {name: reasons[name] for name in chosen if name not in largest}


def may_interrupt(last: Decision, status: Mapping[str, Status], *, stepped: bool) -> bool:
    """Return whether a newcomer may end the last generation: after its first step, or if one of its members is lost."""
    return stepped or any(status[name].kind != ALIVE for name in last.names)


def as_pairs(reports: Mapping[str, Mapping[str, list[str]]], nodes: Mapping[str, int]) -> dict[tuple[str, str], str]:
    """Return the pairs that cannot reach each other, from the reports of all processes about whom they reach and hear."""
    broken: dict[tuple[str, str], str] = {}
    for one, report in reports.items():
        for other in report["unreachable"]:
            pair = (min(one, other), max(one, other))
            heard = [(a, b) for a, b in (pair, pair[::-1]) if a in reports.get(b, {}).get("heard", ())]
            a, b = nodes[pair[0]], nodes[pair[1]]
            why = f"node {a} and node {b} cannot reach each other"
            if len(heard) == 1:
                source, target = (nodes[name] for name in heard[0])
                why = f"nothing from node {target} reaches node {source}, the other direction works"
            broken[pair] = why
    return broken


def sources(members: Iterable[Member]) -> tuple[list[int], int]:
    """Return the ranks that have the current model (none at the start), and their largest number of steps."""
    members = list(members)
    ranks = [rank for rank, member in enumerate(members) if not member.fresh]
    ranks = [rank for rank in ranks if members[rank].phase != "load"] or ranks  # these have not loaded it
    furthest = max(members[rank].step for rank in ranks or range(len(members)))
    if not ranks and furthest:  # all were away; better an old model than none
        ranks = [[member.step for member in members].index(furthest)]
    return ranks, furthest

"""The membership protocol under random schedules of faults, with simulated time; see support/membership_world.py.

``PERRON_SCHEDULES=20000`` explores more of them.
"""

import os
import random

import pytest
from membership_world import FINISHED, World

from perron.distributed.elastic import heartbeat, protocol, rendezvous
from perron.distributed.elastic.protocol import DEAD, SILENT, Decision, Member, Status, View, decide

SCHEDULES = int(os.environ.get("PERRON_SCHEDULES", "800"))
PARTS = 4


def explore(seed):
    """Run one schedule; its invariants are asserted on the way. Return whether the training had to finish, and whether it did."""
    rng = random.Random(seed)
    size, restarts = rng.randint(2, 6), rng.choice([0, 1, 2, 5, 20])
    faults, duration = rng.choice([1, 2, 4, 8]), rng.choice([3, 8, 20, 40])
    world = World(seed, size, restarts, min_nodes=rng.choice([1, 1, rng.randint(1, size)]))
    world.run(faults, duration)
    finished = any(one.outcome == FINISHED for one in world.processes)
    assert finished or not world.expected, (
        "more than half had the model and could exchange messages, and nobody finished"
    )
    return world.expected, finished


@pytest.mark.parametrize("part", range(PARTS))
def test_the_invariants_hold_under_random_schedules(part):
    found = []
    for seed in range(part, SCHEDULES, PARTS):
        try:
            found.append(explore(seed))
        except AssertionError as error:
            raise AssertionError(f"schedule {seed}: {error}") from error
    expected, finished = (sum(column) for column in zip(*found, strict=True))
    assert finished > len(found) / 2  # else it would say little
    assert expected > len(found) / 10


def without_rule_3(view):
    return decide(view._replace(assembled=False))


def silent_is_dead(view):
    status = {name: Status(DEAD, one.text) if one.kind == SILENT else one for name, one in view.status.items()}
    return decide(view._replace(status=status))


def newcomers_vote(view):
    """As if the process in place of a dead or silent member was that member."""
    outcome = silent_is_dead(view)
    return outcome._replace(absent=()) if isinstance(outcome, Decision) else outcome


def without_a_floor(view):
    return decide(view._replace(min_nodes=1))


MUTANTS = {
    "a model may be discarded": ("decide", without_rule_3),
    "silent processes count as dead": ("decide", silent_is_dead),
    "newcomers vote for others": ("decide", newcomers_vote),
    "fewer than min_nodes continue": ("decide", without_a_floor),
    "a finished training may start again": ("refuse_finished", lambda _store, _node: None),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_the_exploration_finds_rules_that_are_wrong(name, monkeypatch):
    function, mutant = MUTANTS[name]
    monkeypatch.setattr(rendezvous, function, mutant)
    if function == "refuse_finished":
        monkeypatch.setattr("membership_world.refuse_finished", mutant)
        monkeypatch.setattr(rendezvous, "decide", lambda view: decide(view._replace(finished=False)))
    with pytest.raises(AssertionError):
        all(explore(seed) for seed in range(3000))


def stalls(seed):
    """The number of generations in a training whose store does not answer for 3 to 10 seconds."""
    world = World(seed, size=4, restarts=0)
    began, seconds = world.random.uniform(1, 2), world.random.uniform(3, 10)
    while world.live():
        world.now += 0.05
        world.stalled = began < world.now < began + seconds
        for process in world.random.sample(world.live(), len(world.live())):
            process.act()
        world.launcher()
    assert all(one.outcome == FINISHED for one in world.processes)
    return int(world.store.get("latest")) + 1


def test_a_store_that_stalls_loses_nobody(monkeypatch):
    assert {stalls(seed) for seed in range(20)} == {1}
    monkeypatch.setattr(heartbeat, "ObservedClock", lambda _most, clock: _Plain(clock))
    assert max(stalls(seed) for seed in range(20)) > 1


class _Plain:
    """A clock without a limit between two readings."""

    def __init__(self, clock):
        self.clock = clock

    @property
    def now(self):
        return self.clock()

    def read(self):
        return self.clock()


# ---- the rules, one by one

ALIVE = Status(protocol.ALIVE, "alive")


def view(members=4, registered=(), **options):
    """The last generation has so many members; registered are pairs of a name and its phase, or names."""
    last = Decision(3, tuple(Member(node, f"{node}.1", False, "step", 7) for node in range(members)))
    found = {}
    for one in registered:
        name, phase = one if isinstance(one, tuple) else (one, "step")
        found[name] = Member(int(name[0]), name, name not in last.names, phase, 7)
    given = {name: Status(kind, kind) for name, kind in options.pop("status", {}).items()}
    status = dict.fromkeys([*last.names, *found], ALIVE) | given
    return View(last, found, status, members, assembled=True, patient=options.pop("patient", False), **options)


def members_of(outcome):
    assert isinstance(outcome, Decision), outcome
    return outcome.names


def test_members_that_are_alive_are_waited_for():
    some = view(registered=["0.1", "1.1", "2.1"], patient=True)
    assert decide(some) == "Members that are alive did not register"
    assert members_of(decide(some._replace(patient=False))) == ["0.1", "1.1", "2.1"]


def test_half_of_the_members_are_not_enough():
    half = view(registered=["0.1", "1.1"], status={"2.1": SILENT, "3.1": SILENT})
    assert "Quorum lost: 2 of 4 members left" in decide(half)
    replaced = view(registered=["0.1", "1.1", "2.2"], status={"2.1": DEAD, "3.1": SILENT})
    assert members_of(decide(replaced)) == ["0.1", "1.1", "2.2"]
    not_dead = view(registered=["0.1", "1.1", "2.2"], status={"2.1": SILENT, "3.1": SILENT})
    assert "Quorum lost" in decide(not_dead)


def test_newcomers_alone_start_again_only_if_all_others_are_dead():
    newcomers, dead = ["0.2", "1.2", "2.2"], {"0.1": DEAD, "1.1": DEAD, "2.1": DEAD}
    assert "these may have it: 3.1 (silent)" in decide(view(registered=newcomers, status=dead | {"3.1": SILENT}))
    assert members_of(decide(view(registered=newcomers, status=dead | {"3.1": DEAD}))) == newcomers


def test_fewer_than_min_nodes_save_and_end():
    lost = {"2.1": DEAD, "3.1": DEAD}
    few = view(registered=["0.1", "1.1", "2.1"], status={"3.1": DEAD}, min_nodes=4)
    assert members_of(decide(few)) == ["0.1", "1.1", "2.1"]
    assert decide(few).stops == "3 of 4 nodes are left (lost: node 3 (dead)), fewer than min_nodes = 4"
    assert decide(few._replace(min_nodes=3)).stops == ""
    assert decide(few._replace(finished=True)).stops == ""
    patient = few._replace(patient=True)
    assert decide(patient) == "Node 3 did not register, and min_nodes is 4"
    assert decide(patient._replace(given_up=frozenset([3]))).stops  # at once
    back = view(registered=["0.1", "1.1", "2.1", "3.2"], status={"3.1": DEAD}, min_nodes=4, patient=True)
    assert members_of(decide(back)) == ["0.1", "1.1", "2.1", "3.2"]
    assert decide(back).stops == ""
    assert Decision.from_json(decide(few).to_json()) == decide(few)
    assert "Quorum lost" in decide(view(registered=["0.1", "1.1"], status=lost, min_nodes=1))  # in any case


def test_newcomers_are_members_at_once_where_they_are_needed_for_min_nodes():
    registered = [("0.1", "average"), ("1.1", "step"), "2.2"]
    found = decide(view(3, registered=registered, status={"2.1": DEAD}, min_nodes=3))
    assert members_of(found) == ["0.1", "1.1", "2.2"]
    assert found.stops == ""


def test_newcomers_wait_while_members_average():
    found = decide(view(3, registered=[("0.1", "average"), ("1.1", "step"), "2.2"], status={"2.1": DEAD}))
    assert members_of(found) == ["0.1", "1.1"]
    assert found.excluded == {"2.2": "the members are busy (average)"}


def test_broken_pairs_are_avoided():
    everybody = [f"{node}.1" for node in range(4)]
    broken = {("0.1", "2.1"): "no way", ("1.1", "2.1"): "no way"}
    found = decide(view(registered=everybody, broken=broken))
    assert members_of(found) == everybody
    assert set(found.broken) == set(broken)
    assert Decision.from_json(found.to_json()) == found
    alone = decide(view(registered=everybody, broken=broken | {("2.1", "3.1"): "no way"}))
    assert members_of(alone) == ["0.1", "1.1", "3.1"]
    assert alone.excluded == {"2.1": "no way"}
    assert alone.absent == ("2.1",)
    assert alone.broken == ()
    every = {(one, other): "no way" for one in everybody for other in everybody if one < other}
    assert "Quorum lost: 1 of 4" in decide(view(registered=everybody, broken=every))


def test_the_direction_of_a_broken_link_is_named():
    nodes = {"0.1": 0, "1.1": 1}
    reports = {"0.1": {"unreachable": ["1.1"], "heard": ["1.1"]}, "1.1": {"unreachable": ["0.1"], "heard": []}}
    (why,) = protocol.as_pairs(reports, nodes).values()
    assert why == "nothing from node 0 reaches node 1, the other direction works"


def test_decisions_survive_the_store():
    decision = decide(view(3, registered=["0.1", "1.1", "2.2"], status={"2.1": DEAD}))
    assert Decision.from_json(decision.to_json()) == decision

"""A world in one thread for the membership protocol: processes, a store, links and a launcher, with time that is a number.

The processes run perron's own `Rendezvous`, `Heartbeat` and rules; simulated are the store, the exchange of messages, and what
goes wrong: deaths, pauses, restarts, cut links, and a store that does not answer. Each process is a generator that yields where
it would sleep. A training is known by the generation in which it began from nothing.
"""

import random
from contextlib import suppress

from perron.distributed.elastic.heartbeat import Heartbeat
from perron.distributed.elastic.protocol import ALIVE, FINISHED, Member, sources
from perron.distributed.elastic.rendezvous import Rendezvous, refuse_finished
from perron.distributed.process_group import HEARTBEAT_INTERVAL, STALL_TIMEOUT
from perron.errors import NetworkError, PerronError

TIMEOUT = 6.0  # seconds, of exchanges
STEPS = 25
TICK = 0.05  # seconds
CALM = 400.0  # seconds after the last fault within which every process must have ended


class Store(dict):
    """The calls of torch's store that perron uses."""

    def set(self, key, value):
        self[key] = value.encode() if isinstance(value, str) else value

    def get(self, key):
        return self[key]

    def check(self, keys):
        return all(key in self for key in keys)

    def append(self, key, value):
        self[key] = super().get(key, b"") + value.encode()

    def compare_set(self, key, expected, value):
        if self.get(key) == expected.encode() if key in self else not expected:
            self.set(key, value)
        return self[key]

    def multi_get(self, keys):
        return [self[key] for key in keys]


class Generation:
    """As much of a generation as the heartbeat knows, and how far each member is in it."""

    def __init__(self, decision):
        self.number, self.members, self.ended, self.stepped = decision.number, decision.members, "", False
        nodes = {member.name: member.node for member in decision.members}
        self.avoided = [{nodes[one], nodes[other]} for one, other in decision.broken]

    def end(self, why):
        self.ended = self.ended or why


class Process:
    """A process of a node."""

    def __init__(self, world, node, start):
        self.world, self.node, self.name = world, node, f"{node}.{start}"
        self.paused = self.dead = False
        self.outcome, self.late = "", 0
        self.model = None  # lineage and step
        self.lineage_known = False
        self.generation = None
        self.place = None  # the barrier at which it waits
        self.heartbeat = Heartbeat(world.store, self.name, world.clock)
        self.ticked = world.now
        self.main = self.run()

    @property
    def live(self):
        return not self.dead and not self.outcome

    def act(self):
        """Do what is due; not called while it is paused, nor anything that needs the store while that is stalled."""
        if self.world.now - self.ticked >= HEARTBEAT_INTERVAL and not self.world.stalled:
            self.ticked = self.world.now
            self.heartbeat.tick()
        try:
            next(self.main)
        except StopIteration:
            pass
        except PerronError as error:
            self.leave(f"error: {error}", "gone: it ended before its training did")

    def leave(self, outcome, status):
        self.outcome, self.generation, self.heartbeat.generation = outcome, None, None
        self.heartbeat.set_final_status(status)

    def run(self):
        """A training: join, make steps, average, finish."""
        phase, why = "start", f"node {self.node} wants to join"
        yield from self.world.answer()
        refuse_finished(self.world.store, self.node)
        yield from self.join(phase, why)
        while self.model[1] < STEPS:
            delay = self.world.now + self.world.random.uniform(0.02, 0.3)
            while self.world.now < delay:
                yield
            step = self.model
            if (yield from self.barrier(("step", step))):
                self.world.stepped(self)
                self.model = (step[0], step[1] + 1)
                self.generation.stepped = True
            else:
                yield from self.join("step", "a neighbor was silent")
        while not (yield from self.barrier(("average", self.model))):
            activities = yield from self.join("average", "a neighbor was silent")
            if not activities <= {("average", self.model[1])} | {("step", step) for step in range(STEPS)}:
                break
        yield from self.world.answer()
        self.world.store.compare_set("finished", "", f"node {self.node}")
        self.world.finished()
        self.heartbeat.set_final_status(FINISHED)
        others = [member.name for member in self.generation.members]
        while not self.generation.ended and any(self.heartbeat.status(one).kind == ALIVE for one in others):
            yield
        self.leave(FINISHED, FINISHED)

    def join(self, phase, why):
        """Become a member of a generation and have its model; return what its members were doing."""
        while True:
            self.heartbeat.generation = self.generation = None
            step = self.model[1] if self.model else 0
            me = Member(self.node, self.name, not self.lineage_known, phase, step)
            rendezvous = Rendezvous(
                self.world.store, self.heartbeat, me, why, size=self.world.size, timeout=TIMEOUT,
                probe=lambda names: self.world.probe(self, names), clock=self.world.clock, min_nodes=self.world.min_nodes,
            )  # fmt: skip
            decision = None
            while decision is None:
                yield from self.world.answer()
                decision = rendezvous.poll()
                yield
            self.generation = Generation(decision)
            self.heartbeat.watch(decision.names)
            self.heartbeat.generation = self.generation
            ranks, furthest = sources(decision.members)
            self.lineage_known = self.lineage_known and decision.names.index(self.name) in ranks
            self.world.offer(self, decision, ranks)
            if not (yield from self.barrier(("connect", decision.number))):
                why = "the members could not connect"
                continue
            yield from self.world.answer()
            self.world.store.set("assembled", str(decision.number))
            self.model = self.world.model_of(decision, ranks, furthest)
            self.lineage_known = True
            if decision.stops:
                yield from self.stop(decision)
            return {(member.phase, member.step) for member in decision.members}

    def stop(self, decision):
        """Save with the others, and end the training for all."""
        yield from self.barrier(("saved", decision.number))
        yield from self.world.answer()
        error = NetworkError(decision.stops)
        self.world.store.compare_set("failure", "", f"{type(error).__name__}: {error}")
        raise error

    def barrier(self, place):
        """Wait until all members of the generation are at this place; return whether they were within the timeout."""
        generation, deadline = self.generation, self.world.now + TIMEOUT
        self.place = (generation.number, place)
        while not self.world.passed(self, generation, self.place):
            if generation.ended or self.world.now > deadline:
                return False
            yield
        return not generation.ended


class World:
    """Runs a training with faults, and checks the invariants on the way."""

    def __init__(self, seed, size, restarts, min_nodes=1):
        self.random, self.size, self.restarts, self.min_nodes = random.Random(seed), size, restarts, min_nodes
        self.now, self.stalled, self.cut = 0.0, False, set()
        self.store, self.processes, self.log = Store(), [], []
        self.arrived = {}  # who has been at which place
        self.lineage, self.models, self.is_finished, self.expected = -1, {}, False, False
        for node in range(size):
            self.start(node)

    def clock(self):
        return self.now

    def answer(self):
        """Wait while the store does not answer."""
        while self.stalled:
            yield

    def start(self, node):
        process = Process(self, node, 1 + sum(one.node == node for one in self.processes))
        self.processes.append(process)

    def probe(self, process, names):
        others = {one.name: one for one in self.processes}
        cut = [name for name in names if {process.node, others[name].node} in self.cut]
        return {"unreachable": cut, "heard": []}

    def passed(self, process, generation, place):
        here = self.arrived.setdefault(place, set())
        here.add(process.name)
        names = {member.name for member in generation.members}
        nodes = {member.node for member in generation.members}
        blocked = any(pair <= nodes and pair not in generation.avoided for pair in map(set, self.cut))
        return names <= here and not blocked

    # ---- the model

    def offer(self, process, decision, ranks):
        """Keep the model of a source for the members of its generation."""
        if decision.names.index(process.name) in ranks:
            self.models.setdefault(decision.number, process.model)

    def model_of(self, decision, ranks, furthest):
        """The model with which a generation continues; a new lineage if nobody has one."""
        if ranks:
            return (self.models[decision.number][0], furthest)
        return self.models.setdefault(decision.number, (decision.number, 0))

    def stepped(self, process):
        """Check that one training goes on, and that it began when nobody had a model.

        A process that was away may complete two steps in an old generation: their messages were on their way.
        """
        number, (lineage, step) = process.generation.number, process.model
        assert len(process.generation.members) >= self.min_nodes or self.is_finished, "too few members make a step"
        assert not self.store.check(["failure"]) or process.late < 2, "a step after the training has ended for all"
        if self.store.check([f"generation/{number + 1}/members"]):
            process.late += 1
            assert process.late <= 2, f"{process.name} steps in generation {number} although there is another"
            return
        process.late = 0
        if lineage != self.lineage:
            held = {one.name: one.model for one in self.live() if one.model is not None}
            other = [name for name, model in held.items() if model[1] > 0 and model[0] != lineage]
            assert not other, f"{other} hold a model, and {process.name} makes step {step} of another training"
            assert not self.is_finished, f"training {lineage} goes on after {self.lineage} has finished"
            assert lineage > self.lineage, f"{process.name} steps in training {lineage} after {self.lineage}"
            self.lineage = lineage

    def finished(self):
        self.is_finished = True

    # ---- faults

    def live(self):
        return [one for one in self.processes if one.live]

    def kill(self, process):
        process.dead = True
        self.log.append(f"{self.now:.2f} {process.name} killed at {process.place}")

    def launcher(self):
        """Collect the dead, and restart them."""
        if self.stalled:
            return
        for process in [one for one in self.processes if not one.live and not hasattr(one, "seen")]:
            process.seen = True
            if process.outcome == FINISHED:
                self.store.set(f"heartbeat/{process.name}", FINISHED)
                self.store.compare_set("finished", "", f"node {process.node}")
                continue
            self.store.set(f"heartbeat/{process.name}", "gone: killed")
            if self.restarts and not self.store.check(["finished"]) and not self.store.check(["failure"]):
                self.restarts -= 1
                self.start(process.node)
            else:
                self.store.set(f"dead/{process.node}", "killed")
        running = [one for one in self.processes if one.live]
        if running and any(one.outcome == FINISHED for one in self.processes):  # as Launcher._kill_stalled
            for one in running:
                value = self.store.get(f"heartbeat/{one.name}")
                if value != getattr(one, "value", None):
                    one.value, one.since = value, self.now
                elif self.now - one.since > STALL_TIMEOUT:
                    self.kill(one)

    def fault(self):
        """Do something that goes wrong, or mend it."""
        live = self.live()
        if not live:
            return
        kind = self.random.choice(["kill", "kill", "pause", "pause", "resume", "stall", "cut", "heal", "kill two"])
        victim = self.random.choice(live)
        self.log.append(f"{self.now:.2f} {kind} {victim.name}")
        if kind == "kill":
            self.kill(victim)
        elif kind == "kill two":
            for one in self.random.sample(live, min(2, len(live))):
                self.kill(one)
        elif kind == "pause":
            victim.paused = True
        elif kind == "resume":
            for one in live:
                one.paused = False
        elif kind == "stall":
            self.stalled = not self.stalled
        elif kind == "cut" and self.size > 1:
            self.cut.add(frozenset(self.random.sample(range(self.size), 2)))
        else:
            self.cut.clear()

    def mend(self):
        self.stalled, self.cut = False, set()
        for process in self.processes:
            process.paused = False

    def run(self, faults, duration):
        """Run with so many faults at random times, then mend everything and wait for the end."""
        times = sorted(self.random.uniform(0, duration) for _ in range(faults))
        end = None
        while self.live():
            self.now += TICK
            if times and self.now > times[0]:
                times.pop(0)
                self.fault()
            elif not times and end is None and self.now > duration:
                self.expected = self.majority() and not self.cut  # else they may be about to give up
                self.mend()
                end = self.now + CALM
            assert end is None or self.now < end, f"no end: {[(one.name, one.place) for one in self.live()]}"
            for process in self.random.sample(self.live(), len(self.live())):
                if not process.paused and process.live:
                    process.act()
            if self.random.random() < 0.3:
                self.launcher()
        return self

    def majority(self):
        """Whether more than half of the last generation are alive and hold the model, and enough of them are not paused."""
        with suppress(KeyError, NetworkError):
            number = int(self.store.get("latest"))
            names = Rendezvous._decision(self, number).names  # reads the store only
            holders = [one for one in self.live() if one.name in names and one.lineage_known]
            awake = [one for one in holders if not one.paused]
            return 2 * len(holders) > len(names) and (len(awake) >= self.min_nodes or self.min_nodes == 1)
        return False

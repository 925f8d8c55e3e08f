"""Nodes at their own pace: against the synchronous simulator, closed forms, and a twin that goes tick by tick."""

from itertools import product

import numpy as np
import pytest
import torch

import perron
from perron import Clock, Machines, Mixing, PerronError, RobustPushPull, simulate
from perron.networks import topologies
from perron.networks.facts import Network
from perron.problems import Quadratic
from perron.simulation import Simulation, simulate_asynchronous
from perron.simulation.asynchronous import AsynchronousRunning


def small(n=5, *, noise=0.1):
    return (
        Quadratic.random(n, 3, seed=2, noise_std=noise),
        Mixing.random_integer(topologies.random_digraph(n, seed=1), seed=1),
    )


def run(problem, mixing, clock, seconds, *, lr=0.05, trials=1, seed=0, **options):
    simulation = Simulation(problem=problem, algorithm=RobustPushPull(), mixing=mixing, lr=lr, trials=trials, seed=seed)
    running = AsynchronousRunning(simulation, clock, **options)
    with torch.no_grad():
        running.advance(seconds)
    return running


# ---- against the synchronous simulator


@pytest.mark.parametrize("protocol", ["eager", "rendezvous"])
def test_on_equal_machines_and_free_links_it_is_the_synchronous_algorithm(protocol):
    problem, mixing = small()
    simulation = Simulation(problem=problem, algorithm=RobustPushPull(), mixing=mixing, lr=0.05, trials=3)
    running = AsynchronousRunning(simulation, Clock(compute=0.1, protocol=protocol))
    with torch.no_grad():
        for step, expected in enumerate(simulation.iterates(40)):
            running.advance(step * 0.1)
            found = running.snapshot(step * 0.1)
            assert found.step == step
            for name, value in expected.state._asdict().items():
                torch.testing.assert_close(getattr(found.state, name), value, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("latency", [0.09, 0.1])  # messages that arrive just when a node reads are read
def test_latency_below_the_compute_time_changes_nothing(latency):
    problem, mixing = small()
    clock = Clock(Machines(latency=latency), compute=0.1, protocol="eager")
    found = simulate_asynchronous(problem, RobustPushPull(), mixing, clock=clock, steps=30, every=0.1, lr=0.05)
    expected = simulate(problem, RobustPushPull(), mixing, steps=30, every=1, lr=0.05, clock=clock)
    np.testing.assert_allclose(found["grad_norm_sq"], expected["grad_norm_sq"], rtol=1e-9)
    np.testing.assert_allclose(found.seconds, expected.seconds, atol=1e-9)
    assert (found.steps == expected.steps).all()


def test_a_schedule_and_rates_by_node_are_those_of_the_node():
    problem, mixing = small()
    for lr in (perron.schedules.power(0.1), torch.linspace(0.01, 0.05, 5)[:, None]):
        found = simulate_asynchronous(
            problem, RobustPushPull(), mixing, clock=Clock(compute=1.0), seconds=20, every=1, lr=lr
        )
        expected = simulate(problem, RobustPushPull(), mixing, steps=20, every=1, lr=lr)
        np.testing.assert_allclose(found["grad_norm_sq"], expected["grad_norm_sq"], rtol=1e-9)


# ---- the invariant, randomness


@pytest.mark.parametrize("protocol", ["eager", "rendezvous"])
@pytest.mark.parametrize("compute", [[0.1, 0.1, 0.5, 0.07, 0.23], "exponential(0.1)"])
def test_trackers_and_what_is_in_flight_sum_to_the_gradients(compute, protocol):
    problem, mixing = small()
    machines = Machines(latency=0.04, rate=4e3, up=2e3, down=3e3)
    running = run(problem, mixing, Clock(machines, compute=compute, size=600, protocol=protocol), 20, lr=0.01, trials=2)
    assert running.about()["messages_replaced"] > 0.2
    state = running.snapshot(20).state
    (mass,) = RobustPushPull().conserved(state, Network(mixing)).values()
    assert mass.shape == (2, 3)
    assert float(mass.abs().max()) < 1e-12 * float(state.total.abs().max() + 1)
    assert float(state.y.sum(-2).sub(state.grad.sum(-2)).abs().max()) > 1e-3  # so much is in flight


def test_it_reaches_the_optimum_with_one_slow_machine():
    problem, mixing = small(noise=0.0)
    clock = Clock(Machines(latency=0.05), compute=[0.1, 0.1, 0.1, 0.1, 0.5])
    found = simulate_asynchronous(
        problem, RobustPushPull(), mixing, clock=clock, seconds=400, every=5, lr=0.02, until={"grad_norm_sq": 1e-12}
    )
    assert found.mean("grad_norm_sq")[-1] <= 1e-12
    assert found.seconds[-1] < 400
    assert found.time_to("grad_norm_sq", 1e-12) == found.seconds[-1]


def test_the_draws_of_a_node_do_not_depend_on_the_others():
    mixing = Mixing.uniform(topologies.ring(3))
    problem = Quadratic(torch.ones(3, 2), torch.zeros(3, 2), noise_std=1.0)  # with lr = 0 its gradients are the noise
    grads = []
    for other in (0.01, 0.1, 3.0):
        running = run(problem, mixing, Clock(compute=[0.1, other, other]), 1.04, lr=0.0)
        (events,) = running.groups
        assert events.steps[0] == 10
        grads.append(events.states[0].grad)
    assert torch.equal(grads[0], grads[1])
    assert torch.equal(grads[0], grads[2])


def test_a_trial_is_the_same_alone_and_among_others():
    problem, mixing = small()
    for compute in ("exponential(0.1)", [0.1, 0.2, 0.3, 0.4, 0.5]):
        clock = Clock(Machines(latency=0.05), compute=compute)
        many, alone = (
            simulate_asynchronous(problem, RobustPushPull(), mixing, clock=clock, seconds=5, lr=0.01, trials=trials)
            for trials in (3, [2])
        )
        np.testing.assert_allclose(many["grad_norm_sq"][:, 2:], alone["grad_norm_sq"], rtol=1e-12)
    assert len(np.unique(many["grad_norm_sq"][-1])) == 3


def test_compute_times_are_those_of_the_synchronous_clock():
    problem, mixing = small(noise=0.0)
    clock = Clock(compute="exponential(0.1)")
    drawn = clock.times.sampler(5, seed=3, trials=[1])
    total = np.sum([drawn(step)[0] for step in range(70)], axis=0)
    (events,) = run(problem, mixing, clock, float(total.max()) + 1e-6, trials=[1], seed=3).groups
    assert events.steps[int(total.argmax())] == 70
    assert all(steps >= 70 for steps in events.steps)


# ---- closed forms of messages


def ring_of(wire, *, protocol="eager", latency=0.0, compute=0.1, seconds=100.0, access=False):
    """A directed ring with messages of that many seconds."""
    problem = Quadratic.random(4, 2, seed=0)
    rate = 1000 / wire
    machines = Machines(latency=latency, **({"up": rate} if access else {"rate": rate}))
    clock = Clock(machines, compute=compute, size=1000, protocol=protocol)
    return run(problem, Mixing.uniform(topologies.ring(4)), clock, seconds, lr=1e-3).about()


def test_messages_that_arrive_within_a_step_are_a_step_old():
    about = ring_of(0.01, latency=0.05)
    assert about["messages_replaced"] == 0
    assert about["mean_age"] == pytest.approx(0.1, rel=0.01)


def test_a_message_longer_than_a_step_is_replaced():
    about = ring_of(0.25)  # the next one leaves at 0.25, 0.5, ...
    assert about["messages_replaced"] == pytest.approx(1 - 0.1 / 0.25, abs=0.01)
    assert ring_of(0.125, access=True)["messages_replaced"] == pytest.approx(1 - 0.1 / 0.25, abs=0.01)  # two of them
    assert ring_of(0.04, access=True)["messages_replaced"] == 0


def test_a_rendezvous_takes_a_round_trip_more():
    about = ring_of(0.25, protocol="rendezvous", latency=0.1)
    assert about["messages_received"] / about["messages_posted"] == pytest.approx(0.1 / (0.25 + 0.2), abs=0.01)


def test_steps_are_those_of_the_compute_times():
    problem, mixing = small(noise=0.0)
    clock = Clock(Machines(latency=10.0), compute=[0.1, 0.2, 0.4, 0.5, 1.0], overhead=0.0)
    found = simulate_asynchronous(problem, RobustPushPull(), mixing, clock=clock, seconds=10, lr=1e-3)
    assert found.about["node_steps"] == [100, 50, 25, 20, 10]
    slower = simulate_asynchronous(
        problem, RobustPushPull(), mixing, clock=clock.changed(overhead=0.1), seconds=11, lr=1e-3
    )
    assert slower.about["node_steps"] == [55, 37, 22, 18, 10]
    assert found.steps[-1] == 41
    by_steps = simulate_asynchronous(problem, RobustPushPull(), mixing, clock=clock, steps=41, lr=1e-3)
    assert by_steps.seconds[-1, 0] == pytest.approx(10)
    assert len(found.steps) == 201


# ---- the twin


class Twin:
    """Three nodes in whole ticks, in plain Python: at each tick, everything that could happen is looked at."""

    def __init__(self, problem, mixing, *, lr, compute, latency, wire, out, into, eager, stored):
        n = 3
        self.A, self.B = mixing.at("pull", 0), mixing.at("push", 0)
        self.problem, self.lr, self.compute, self.out, self.into, self.eager = problem, lr, compute, out, into, eager
        self.stored = stored
        self.x, self.y, self.g, self.s = (np.zeros((n, problem.dim)) for _ in range(4))
        self.steps, self.due = [0] * n, [None] * n
        self.up, self.down = [0] * n, [0] * n
        self.replaced = self.received = 0
        self.links = [
            {"side": side, "from": j, "to": i, "latency": latency[i][j], "back": latency[j][i], "wire": wire[i][j],
             "asked": 0 if eager else latency[j][i], "waiting": None, "taken": None, "moving": [], "newest": None}
            for j, i, side in product(range(n), range(n), ("pull", "push"))
            if i != j and {"pull": self.A, "push": self.B}[side][i, j]
        ]  # fmt: skip
        self.used = {(link["from"], link["to"]): np.zeros(problem.dim) for link in self.links}

    def post(self, node, side, value, tick):
        for link in self.links:
            if (link["from"], link["side"]) == (node, side):
                if link["taken"] is not None:
                    self.replaced += link["waiting"] is not None
                    link["waiting"] = value
                else:
                    link["taken"] = [value, None]
                    self.leave(link, tick)

    def leave(self, link, tick):
        """A taken message leaves if it was asked for."""
        if link["taken"] and link["taken"][1] is None and link["asked"] <= tick:
            j, i = link["from"], link["to"]
            start = max(tick, self.up[j])
            self.up[j] = start + self.out[j]
            end = start + max(link["wire"], self.out[j], self.into[i])
            link["taken"][1] = tick if self.stored else end
            link["moving"].append([link["taken"][0], end + link["latency"], False])
            link["asked"] = 0 if self.eager else np.inf

    def move(self, tick):
        for link in self.links:
            self.leave(link, tick)
            if link["taken"] and link["taken"][1] is not None and link["taken"][1] <= tick:
                link["taken"] = None if link["waiting"] is None else [link["waiting"], None]
                link["waiting"] = None
                self.leave(link, tick)
            for message in list(link["moving"]):
                if message[1] == tick and not message[2]:
                    message[1] = self.down[link["to"]] = max(tick, self.down[link["to"]] + self.into[link["to"]])
                    message[2] = True
                if message[1] == tick and message[2]:
                    link["newest"], self.received = message[0], self.received + 1
                    link["asked"] = 0 if self.eager else tick + link["back"]
                    link["moving"].remove(message)

    def read(self, i):
        grad = np.asarray(self.problem.local_grads(torch.tensor(self.asked))[i])
        y = self.B[i, i] * self.y[i] + grad - self.g[i]
        x = self.A[i, i] * self.x[i]
        for link in self.links:
            j, newest = link["from"], link["newest"]
            if link["to"] == i and link["side"] == "pull":
                self.models[i, j] = newest if newest is not None else self.models.get((i, j), np.zeros(len(x)))
                x = x + self.A[i, j] * self.models[i, j]
            elif link["to"] == i and newest is not None:
                y, self.used[j, i] = y + self.B[i, j] * (newest - self.used[j, i]), newest
        self.x[i], self.y[i], self.g[i] = x - self.lr * y, y, grad
        self.s[i] += y
        self.steps[i] += 1

    def run(self, ticks):
        self.models = {}
        for tick in range(ticks + 1):
            for _ in range(3):
                self.move(tick)
            self.asked = self.x.copy()
            ready = [i for i in range(3) if self.due[i] in (None, tick)]
            for i in [i for i in ready if self.due[i] is not None]:
                self.read(i)
            for i in ready:
                self.post(i, "pull", self.x[i].copy(), tick)
                self.post(i, "push", self.s[i].copy(), tick)
                self.due[i] = tick + self.compute[i]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("protocol", "buffer"), [("eager", 0), ("rendezvous", 0), ("rendezvous", 1000)])
def test_events_equal_a_twin_that_goes_tick_by_tick(seed, protocol, buffer):
    random = np.random.default_rng(seed)
    problem = Quadratic.random(3, 2, seed=seed)
    mixing = Mixing.random_integer(perron.Graph(3, [(0, 1), (1, 2), (2, 0), (0, 2), (0, 0), (1, 1), (2, 2)]), seed=seed)
    compute = random.integers(40, 500, 3).tolist()
    latency, wire = random.integers(1, 300, (2, 3, 3))
    out, into = random.integers(5, 250, (2, 3))
    twin = Twin(problem, mixing, lr=0.02, compute=compute, latency=latency.tolist(), wire=wire.tolist(),
                out=out.tolist(), into=into.tolist(), eager=protocol == "eager", stored=buffer > 0)  # fmt: skip
    ticks = 30_011
    twin.run(ticks)
    size = 1.0  # byte, so that the rates are those below
    machines = Machines(latency, size / wire, up=size / out, down=size / into)
    running = run(problem, mixing, Clock(machines, compute=compute, size=size, protocol=protocol), ticks, lr=0.02,
                  buffer=buffer)  # fmt: skip
    (events,) = running.groups
    assert events.steps == twin.steps
    assert sum(link.received for link in events.links) == twin.received
    assert sum(link.replaced for link in events.links) == twin.replaced
    state = running.snapshot(ticks).state
    np.testing.assert_allclose(state.x[0], twin.x, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(state.y[0], twin.y, rtol=1e-8, atol=1e-10)


# ---- what is shown and what is refused


def test_ctrl_c_returns_what_was_measured():
    problem, mixing = small()
    calls = []

    def impatient(now):
        calls.append(float(now.seconds[0]))
        if len(calls) == 4:
            raise KeyboardInterrupt
        return now.seconds

    found = simulate_asynchronous(
        problem, RobustPushPull(), mixing, clock=Clock(compute=0.1), seconds=10, every=1, lr=0.01, metrics=[impatient]
    )
    assert found.interrupted
    assert found.seconds[:, 0].tolist() == [0, 1, 2]


def test_progress_is_reported_between_records(monkeypatch):
    monkeypatch.setattr(perron.monitor.progress, "INTERVAL", 0.0)
    problem, mixing = small()
    steps = []
    simulate_asynchronous(
        problem, RobustPushPull(), mixing, clock=Clock(compute=0.1), seconds=30, every=30, lr=0.01,
        progress=lambda step, _: steps.append(step),
    )  # fmt: skip
    assert len(steps) > 5
    assert steps == sorted(steps)
    assert steps[-1] == 300


def test_a_run_that_diverges_ends_with_a_warning():
    problem, mixing = small()
    with pytest.warns(UserWarning, match="diverged by"):
        found = simulate_asynchronous(problem, RobustPushPull(), mixing, clock=Clock(compute=1), steps=20_000, lr=50.0)
    assert len(found.steps) < 200


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"algorithm": "push_pull"}, "needs every message .* use RobustPushPull, or simulate"),
        ({"mixing": "one_peer_exponential"}, "var"),
        ({"clock": None}, "need a clock"),
        ({"clock": Clock()}, "takes no time"),
        ({"clock": Clock(compute=[0.1, 0.2])}, "compute has 2 times but the network 5"),
        ({"clock": Clock(Machines(np.zeros((3, 3))), compute=1)}, "3 nodes but the network 5"),
        ({"steps": 3}, "either seconds= or steps="),
        ({"seconds": None}, "either seconds= or steps="),
        ({"seconds": -1.0}, "not negative; got -1"),
        ({"buffer": -1}, "buffer is a number of bytes"),
        ({"every": 0}, "every is a positive number of seconds"),
        ({"every": 1e-9}, "choose a larger every"),
        ({"metrics": ["residual_sq"]}, "leave out residual_sq"),
    ],
)
def test_what_cannot_be_simulated_is_refused(change, message):
    problem, mixing = small()
    given = {"algorithm": RobustPushPull(), "mixing": mixing, "clock": Clock(compute=0.1), "seconds": 1.0, "lr": 0.01}
    given |= change
    with pytest.raises(PerronError, match=message):
        simulate_asynchronous(problem, given.pop("algorithm"), given.pop("mixing"), **given)


def test_links_that_do_not_exist_are_named():
    problem, _ = small()
    rate = np.ones((5, 5))
    rate[1, 0] = 0
    with pytest.raises(PerronError, match="no link 0 -> 1"):
        simulate_asynchronous(
            problem, RobustPushPull(), Mixing.uniform(topologies.ring(5)), clock=Clock(Machines(0.0, rate), compute=1), seconds=1,
            lr=0.1,
        )  # fmt: skip


def test_only_the_newest_messages_can_be_had():
    problem, mixing = small()
    (events,) = run(problem, mixing, Clock(compute=1.0), 1.0).groups
    node = events.nodes[1]
    for exchange in (node.pull, node.push, node.mean):
        with pytest.raises(PerronError, match="only the newest messages"):
            exchange(torch.zeros(1, 1, 3))
    assert node.unit.tolist() == [[0, 1, 0, 0, 0]]
    assert node.uniform().shape == (1, 1, 1)
    assert float(node.links("push").share) == pytest.approx(5 * Network(mixing).push_perron[1])


def test_numbers_may_be_those_of_numpy():
    problem = perron.problems.Quadratic.random(5)
    clock = Clock(Machines(latency=np.float64(0.05)), compute=np.int64(1))
    history = simulate_asynchronous(
        problem, "robust_push_pull", "ring", clock=clock, seconds=np.int64(6), every=np.array(2), buffer=np.int64(10**6)
    )
    assert history.about["node_steps"] == [6.0] * 5

"""The clock against closed forms, a slow twin, and simulated slopes."""

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

import perron
from perron import Clock, Machines, Mixing, PushPull, topologies
from perron.algorithms.base import Algorithm
from perron.clock import record_tape
from perron.clock.compute import Compute
from perron.clock.tape import Average, Gradient, Post
from perron.clock.trace import SlowRecursion
from perron.errors import PerronError
from perron.networks import samplers
from perron.networks.builder import load_network
from perron.networks.repeat import repeat
from perron.networks.restrict import avoid, restrict
from perron.simulation import measure_traits, simulate_asynchronous

LATENCY, RATE, SIZE, COMPUTE = 0.05, 1e6, 1e5, 0.1
WIRE = SIZE / RATE
ORDERS = ("cta", "pu", "atc")
PROTOCOLS = ("eager", "rendezvous")


def ring(nodes: int) -> Mixing:
    return Mixing.uniform(topologies.ring(nodes))


def equal(**options) -> Clock:
    return Clock(Machines(latency=LATENCY, rate=RATE), compute=COMPUTE, size=SIZE, **({"ahead": 0} | options))


def random_machines(nodes: int, seed: int) -> Machines:
    rng = np.random.default_rng(seed)
    return Machines(
        latency=rng.uniform(0, 0.2, (nodes, nodes)), rate=rng.uniform(1e6, 1e7, (nodes, nodes)),
        up=rng.uniform(1e6, 1e7, nodes), down=rng.uniform(1e6, 1e7, nodes), compute=rng.uniform(0, 0.3, nodes),
    )  # fmt: skip


def slope(clock: Clock, algorithm: Algorithm, mixing: Mixing, steps: int) -> float:
    """Seconds per step between ``steps`` and twice as many."""
    timer = clock.start(algorithm, mixing)
    for step in range(steps):
        timer.advance(step)
    half = timer.seconds[0]
    for step in range(steps, 2 * steps):
        timer.advance(step)
    return float(timer.seconds[0] - half) / steps


# ---- closed forms


@pytest.mark.parametrize(("protocol", "order"), list(product(PROTOCOLS, ORDERS)))
def test_equal_ring(protocol, order):
    latency = LATENCY * (1 if protocol == "eager" else 2)  # a request travels first
    expected = {
        "cta": max(COMPUTE, latency + 2 * WIRE),
        "pu": max(COMPUTE, latency + WIRE) + latency + WIRE,
        "atc": COMPUTE + 2 * (latency + WIRE),
    }[order]
    one_for_all = equal(protocol=protocol)
    matrix = Machines(latency=np.full((8, 8), LATENCY), rate=RATE)
    each = Clock(matrix, compute=COMPUTE, size=SIZE, protocol=protocol, ahead=0)
    for clock in (one_for_all, each):
        assert float(clock.cycle_time(PushPull(order=order), ring(8))) == pytest.approx(expected, rel=1e-12)
        assert slope(clock, PushPull(order=order), ring(8), 40) == pytest.approx(expected, rel=1e-12)


def test_latency_is_averaged_over_an_eager_ring():
    latency = np.random.default_rng(1).uniform(0.01, 0.5, (8, 8))
    clock = Clock(Machines(latency=latency), compute=0.1, size=SIZE, protocol="eager")
    mean = np.mean([latency[(i + 1) % 8, i] for i in range(8)])
    found = clock.cycle_time(PushPull(), ring(8))
    assert found.seconds == pytest.approx(max(mean, 0.1), rel=1e-12)
    assert sorted(found.links) == sorted((i, (i + 1) % 8) for i in range(8))
    assert found.shares == pytest.approx({"latency": mean})


def test_words_count_the_parts_of_a_cycle():
    """A cycle may pass a kind of part more or less than once in each step; its seconds are means over steps."""
    clock = Clock(one_way(3), size=1e4)
    parts = {order: clock.cycle_time(PushPull(order=order), ring(3)).describe() for order in ("cta", "pu")}
    links = "0 -> 1, 1 -> 2, 2 -> 0"
    assert parts["cta"] == f"{links} (wire 20 ms, latency 50 ms)"
    assert parts["pu"] == f"{links} (wire 20 ms, latency 100 ms per step: 2 x wire, 2 x latency in each)"
    trees = Mixing.spanning_trees(topologies.ring(3))
    found = clock.cycle_time(PushPull(order="atc"), trees)
    assert found.seconds == pytest.approx((4 * 0.01 + 3 * LATENCY) / 2)  # a sender waits until its message has left
    assert found.describe().endswith("(wire 20 ms, latency 75 ms per step: 4 x wire, 3 x latency in 2 steps)")


def test_a_slow_wire_is_not_averaged():
    rate = np.full((6, 6), 1e7)
    rate[3, 2] = 1e5
    clock = Clock(Machines(rate=rate), size=SIZE, protocol="eager")
    found = clock.cycle_time(PushPull(), ring(6))
    assert found.seconds == pytest.approx(2 * SIZE / 1e5, rel=1e-12)
    assert found.links == ((2, 3),)


def test_a_slow_uplink_carries_all_messages_of_a_node():
    up = np.full(8, 1e7)
    up[5] = 1e6
    mixing = Mixing.uniform(topologies.exponential(8))  # three out-neighbors
    for protocol in PROTOCOLS:
        clock = Clock(Machines(up=up), size=SIZE, protocol=protocol)
        assert float(clock.cycle_time(PushPull(), mixing)) == pytest.approx(3 * 2 * SIZE / 1e6, rel=1e-12)


def test_a_slow_downlink_is_a_floor():
    mixing = Mixing.uniform(topologies.exponential(8))
    down = np.full(8, 1e7)
    down[2] = 1e6
    clock = Clock(Machines(down=down, latency=0.01), size=SIZE, protocol="eager")
    assert float(clock.cycle_time(PushPull(), mixing)) == pytest.approx(3 * 2 * SIZE / 1e6, rel=1e-12)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_all_reduce_on_equal_links(protocol):
    n, latency = 6, LATENCY * (1 if protocol == "eager" else 2)
    expected = COMPUTE + 2 * (n - 1) * (latency + SIZE / (n * RATE))
    each = Clock(Machines(latency=np.full((n, n), LATENCY), rate=RATE), compute=COMPUTE, size=SIZE, protocol=protocol)
    for clock in (equal(protocol=protocol), each):
        assert float(clock.cycle_time(perron.ALGORITHMS["centralized"], ring(n))) == pytest.approx(expected, rel=1e-12)


def one_way(nodes: int) -> Machines:
    """Links 0 -> 1 -> ... -> 0 only."""
    graph = topologies.ring(nodes)
    return Machines(LATENCY * graph.adjacency().toarray(), RATE * graph.adjacency().toarray())


def test_all_reduce_on_links_in_one_direction():
    """Where no link leads back, a request takes as long as the message."""
    n, central = 5, perron.ALGORITHMS["centralized"]
    clock = Clock(one_way(n), compute=COMPUTE, size=SIZE)
    expected = COMPUTE + 2 * (n - 1) * (2 * LATENCY + SIZE / (n * RATE))
    found = clock.changed(order=range(n)[::-1]).cycle_time(central, ring(n))
    assert found.seconds == pytest.approx(expected, rel=1e-12)
    with pytest.raises(PerronError, match=r"no link 0 -> 4, .* each node to the one before it in order. Pass order="):
        clock.cycle_time(central, ring(n))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_parameter_server(protocol):
    n = 5
    up, down = np.array([4e6, 1e6, 1e6, 1e6, 1e6]), np.array([8e6, 1e6, 1e6, 1e6, 1e6])
    latency = np.full((n, n), LATENCY)
    clock = Clock(
        Machines(latency=latency, up=up, down=down), compute=COMPUTE, size=SIZE, protocol=protocol, average="server"
    )
    there, back = max(SIZE / 1e6, 4 * SIZE / 8e6), max(SIZE / 1e6, 4 * SIZE / 4e6)
    found = clock.cycle_time(perron.ALGORITHMS["centralized"], ring(n))
    # Requests cost nothing in the long run: they travel while the others are still receiving.
    assert found.seconds == pytest.approx(COMPUTE + there + back + 2 * LATENCY, rel=1e-12)
    worse = clock.changed(hub=3).cycle_time(perron.ALGORITHMS["centralized"], ring(n))
    assert worse.seconds > found.seconds


def test_one_peer_exponential_has_the_time_of_degree_one():
    graphs = topologies.one_peer_exponential(8)
    mixing = Mixing.uniform(graphs)
    assert mixing.period == 3
    latency = np.full((8, 8), LATENCY)
    clock = Clock(Machines(latency=latency, up=RATE), compute=COMPUTE, size=SIZE, ahead=0)
    assert float(clock.cycle_time(PushPull(), mixing)) == pytest.approx(2 * LATENCY + 2 * WIRE, rel=1e-12)


@pytest.mark.parametrize("ahead", [0, 1, 2, 3])
def test_receives_ahead_divide_the_round_trip(ahead):
    for compute in (0.0, 0.04):
        clock = Clock(Machines(latency=LATENCY), compute=compute, size=SIZE, ahead=ahead)
        expected = max(compute, LATENCY, 2 * LATENCY / (1 + ahead))
        assert float(clock.cycle_time(PushPull(), ring(2))) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("ahead", range(5))
@pytest.mark.parametrize("seed", range(4))
def test_a_ring_with_rendezvous_takes_the_largest_of_four_times(ahead, seed):
    n, compute = 6, 0.3 * (seed == 3)
    rng = np.random.default_rng(seed)
    latency, rate = rng.uniform(0, 0.3, (n, n)), rng.uniform(2e5, 5e6, (n, n))
    source = np.arange(n)
    target = (source + 1) % n
    there, back, wire = latency[target, source], latency[source, target], 2 * SIZE / rate[target, source]
    expected = max(compute, wire.max(), ((there + back + wire) / (1 + ahead)).max(), (there + wire).mean())
    clock = Clock(Machines(latency, rate), compute=compute, size=SIZE, ahead=ahead)
    assert clock.cycle_time(PushPull(), ring(n)).seconds == pytest.approx(expected, rel=1e-12)


def test_rounds_are_sequential():
    clock = equal(protocol="eager")
    once = float(clock.cycle_time(PushPull(order="atc"), ring(6))) - COMPUTE
    found = float(clock.cycle_time(PushPull(order="atc"), ring(6), rounds=3))
    assert found == pytest.approx(COMPUTE + 3 * once, rel=1e-12)


def test_overheads():
    clock = equal(protocol="eager", overhead=0.01, per_byte=1e-7)
    expected = LATENCY + 2 * WIRE + 0.01 + 1e-7 * 2 * SIZE
    assert float(clock.cycle_time(PushPull(), ring(6))) == pytest.approx(expected, rel=1e-12)


def test_exponential_compute_of_all_reduce_is_a_harmonic_number():
    n = 12
    clock = Clock(Machines(), compute="exponential(1.0)", size=SIZE)
    found = clock.cycle_time(perron.ALGORITHMS["centralized"], ring(n))
    harmonic = sum(1 / k for k in range(1, n + 1))  # the mean of the largest of n
    assert not found.exact
    assert abs(found.seconds - harmonic) < 4 * found.standard_error
    assert float(clock.cycle_time(PushPull(), ring(n))) < 0.6 * harmonic  # one step of slack


def test_slack_against_random_compute_times():
    """The figures of docs/concepts/time.md."""
    clock = Clock(Machines(), compute="exponential(1.0)", size=SIZE)
    for order, expected in (("cta", 1.56), ("atc", 2.36)):
        assert clock.cycle_time(PushPull(order=order), ring(64)).seconds == pytest.approx(expected, abs=0.01)


def test_a_round_of_local_steps_hides_its_exchange():
    early = perron.algorithms.LocalPushPull(local_steps=5, order="cta")
    found = equal(protocol="eager").cycle_time(early, ring(6))
    assert found.seconds == pytest.approx(max(5 * COMPUTE, LATENCY + 2 * WIRE), rel=1e-12)
    late = perron.algorithms.LocalPushPull(local_steps=5)
    found = equal(protocol="eager").cycle_time(late, ring(6))  # both vectors leave together
    assert found.seconds == pytest.approx(5 * COMPUTE + LATENCY + 2 * WIRE, rel=1e-12)


# ---- the twin, and cycle times of random machines


CASES = [("eager", 0), ("rendezvous", 0), ("rendezvous", 1), ("rendezvous", 2)]


@pytest.mark.parametrize(("protocol", "ahead"), CASES)
@pytest.mark.parametrize("order", ORDERS)
def test_the_slow_twin_and_the_slope(protocol, ahead, order):
    for seed in range(3):
        machines = random_machines(7, seed)
        mixing = Mixing.random_integer(topologies.random(7, probability=0.4, seed=seed), seed=seed)
        clock = Clock(machines, size=3e5, protocol=protocol, ahead=ahead)
        timer = clock.start(PushPull(order=order), mixing)
        slow = SlowRecursion(timer.recursion, machines.compute)
        for step in range(12):
            timer.advance(step)
            slow.advance(step)
        assert timer.times.now[0] == pytest.approx([one.time for one in slow.state["now"]], rel=1e-14)
        found = clock.cycle_time(PushPull(order=order), mixing)
        assert found.exact
        assert slope(clock, PushPull(order=order), mixing, 420) == pytest.approx(found.seconds, rel=1e-9)
        assert sum(part.seconds for part in found.critical) == pytest.approx(found.steps * found.seconds, rel=1e-9)


def test_the_slow_twin_on_a_network_that_varies():
    machines = random_machines(8, 0)
    mixing = Mixing.uniform(topologies.one_peer_exponential(8))
    for protocol, rounds in product(PROTOCOLS, (1, 2)):
        clock = Clock(machines, size=3e5, protocol=protocol, overhead=0.01, per_byte=1e-9)
        timer = clock.start(PushPull(order="pu"), mixing, rounds=rounds)
        slow = SlowRecursion(timer.recursion, machines.compute)
        for step in range(10):
            timer.advance(step)
            slow.advance(step)
        assert timer.times.now[0] == pytest.approx([one.time for one in slow.state["now"]], rel=1e-14)
        found = clock.cycle_time(PushPull(order="pu"), mixing, rounds=rounds)
        # a multiple of the period and of the length of any critical cycle
        steps = 3 * 840
        timer = clock.start(PushPull(order="pu"), mixing, rounds=rounds)
        for step in range(steps):
            timer.advance(step)
        half = timer.seconds[0]
        for step in range(steps, 2 * steps):
            timer.advance(step)
        assert (timer.seconds[0] - half) / steps == pytest.approx(found.seconds, rel=1e-9)


@pytest.mark.parametrize("name", perron.ALGORITHMS)
def test_every_algorithm_has_a_clock(name):
    algorithm = perron.ALGORITHMS[name]
    graph = topologies.ring(6)
    needs = algorithm.about.matrices
    if needs == "R C":
        mixing = Mixing.spanning_trees(graph)
    else:
        mixing = Mixing.metropolis(graph.symmetric()) if needs.startswith("W") else Mixing.random_integer(graph, seed=0)
    clock = Clock(random_machines(6, 3), size=2e5)
    found = clock.cycle_time(algorithm, mixing)
    assert found.exact
    assert slope(clock, algorithm, mixing, 240) == pytest.approx(found.seconds, rel=1e-9)


# ---- tapes


@pytest.mark.parametrize("name", perron.ALGORITHMS)
def test_the_tape_hides_what_was_measured(name):
    """Vectors in flight while a gradient is computed are those that `measure_traits` finds."""
    algorithm = perron.ALGORITHMS[name]
    tape, traits = record_tape(algorithm, 5), measure_traits(algorithm)
    overlap = [] if traits.overlap == "-" else traits.overlap.split(", ")
    hidden = tape.overlapped
    assert bool(hidden) == bool(overlap)
    posts = [one for one in tape.operations if isinstance(one, Post)]
    sent = [message for post in posts for message in post.messages]
    vectors = sum(message.vectors for message in sent)
    numbers = [message.numbers for message in sent if message.numbers]
    parts = {"d": vectors, "n": numbers.count(5), "1": numbers.count(1)}
    expected = [f"{count} {unit}" if count > 1 else unit for unit, count in parts.items() if count]
    averages = any(isinstance(one, Average) for one in tape.operations)
    assert (" + ".join(expected) or "all-reduce of d") == traits.sends
    assert averages == (algorithm.about.matrices == "-")


def test_tapes_of_push_pull():
    assert [str(record_tape(PushPull(order=order), 4)) for order in ORDERS] == [
        "post[pull d, push d]; gradient; wait",
        "post[push d]; gradient; wait; post[pull d]; wait",
        "gradient; post[push d]; wait; post[pull d]; wait",
    ]
    rounds = record_tape(PushPull(), 4, 2)
    assert [message.round for one in rounds.operations if isinstance(one, Post) for message in one.messages] == [
        0,
        0,
        1,
        1,
    ]
    assert sum(isinstance(one, Gradient) for one in rounds.operations) == rounds.gradients == 1


# ---- compute times


def test_draws_do_not_depend_on_the_other_trials():
    for given_times in (
        "exponential(0.1)",
        "lognormal(0.1, 0.5)",
        "stragglers(0.02, 0.1, 0.2)",
        [0.1, "exponential(1)", 0.2, 0],
    ):
        compute = Compute(given_times)
        many = compute.sampler(4, seed=3, trials=range(6))(17)
        assert (compute.sampler(4, seed=3, trials=[4])(17)[0] == many[4]).all()


@pytest.mark.parametrize("text", ["exponential(0.1)", "lognormal(0.1, 0.5)", "stragglers(0.02, 0.1, 0.2)"])
def test_means_of_distributions(text):
    compute = Compute(text)
    draws = compute.sampler(100, seed=0, trials=range(200))(0)
    assert draws.mean() == pytest.approx(compute.means(1)[0], abs=4 * draws.std() / np.sqrt(draws.size))


def test_measured_times(tmp_path):
    path = tmp_path / "times.csv"
    path.write_text("seconds\n0.1\n0.4\n")
    compute = Compute(str(path))
    draws = compute.sampler(50, seed=0, trials=range(20))(0)
    assert set(np.unique(draws)) == {0.1, 0.4}
    path.write_text("0.1\nabc\n")
    with pytest.raises(PerronError, match="'abc' is not a number of seconds"):
        Compute(str(path))


# ---- state


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_saved_timer_goes_on(protocol):
    clock = Clock(random_machines(6, 1), size=1e5, compute="exponential(0.1)", protocol=protocol, ahead=2)
    options = {"seed": 5, "trials": [0, 3]}
    whole, first, second = (clock.start(PushPull(order="pu"), ring(6), **options) for _ in range(3))
    for step in range(20):
        whole.advance(step)
    for step in range(11):
        first.advance(step)
    second.restore(first.saved())
    for step in range(11, 20):
        second.advance(step)
    assert (second.times.now == whole.times.now).all()
    alone = clock.start(PushPull(order="pu"), ring(6), seed=5, trials=[3])
    for step in range(20):
        alone.advance(step)
    assert (alone.times.now[0] == whole.times.now[1]).all()
    with pytest.raises(PerronError, match="another protocol"):
        equal().start(PushPull(), ring(6)).restore(first.saved())


@given(
    st.integers(2, 6), st.floats(0, 1), st.floats(1e3, 1e9) | st.just(np.inf), st.floats(0, 1), st.sampled_from(PROTOCOLS),
    st.sampled_from(ORDERS), st.integers(0, 2), st.integers(0, 100),
)  # fmt: skip
def test_one_node_stands_for_all_where_they_are_alike(nodes, latency, rate, compute, protocol, order, ahead, seed):
    """The short cut for equal nodes equals the full recursion, on every circulant graph."""
    shifts = np.random.default_rng(seed).permutation(np.arange(1, nodes))[: 1 + seed % (nodes - 1)]
    edges = [(i, (i + s) % nodes) for i in range(nodes) for s in [0, *shifts.tolist()]]
    mixing = Mixing.uniform(perron.Graph(nodes, edges)) if np.gcd.reduce([nodes, *shifts]) == 1 else ring(nodes)
    options = {"compute": compute, "size": 1e4, "protocol": protocol, "ahead": ahead}
    short = Clock(Machines(latency=latency, rate=rate, up=5e4), **options)
    full = Clock(Machines(latency=np.full((nodes, nodes), latency), rate=rate, up=5e4), **options)
    one, all_of_them = (clock.start(PushPull(order=order), mixing) for clock in (short, full))
    assert one.recursion.nodes == 1
    assert all_of_them.recursion.nodes == nodes
    for step in range(8):
        one.advance(step)
        all_of_them.advance(step)
    assert one.seconds == pytest.approx(all_of_them.seconds, rel=1e-12)


# ---- machines


def test_routes_follow_the_least_latency():
    rate, latency = np.zeros((4, 4)), np.zeros((4, 4))
    for source, target, seconds, speed in [
        (0, 1, 0.1, 5),
        (1, 2, 0.1, 2),
        (2, 3, 0.1, 9),
        (3, 0, 0.1, 7),
        (0, 2, 0.5, 8),
    ]:
        rate[target, source], latency[target, source] = speed, seconds
    routed = Machines(latency, rate).routed()
    ends = np.array([0, 3, 0]), np.array([3, 2, 2])
    assert routed.latencies(*ends).tolist() == pytest.approx([0.3, 0.3, 0.5])
    assert routed.rates(*ends).tolist() == [2, 2, 8]  # an existing link stays as it is


def test_a_network_needs_its_links():
    rate = np.full((4, 4), 1e6)
    rate[1, 0] = 0
    machines = Machines(rate=rate, labels=["Rome", "Oslo", "Bonn", "Bern"])
    with pytest.raises(PerronError, match="has no link Rome -> Oslo, along which the network sends"):
        Clock(machines, size=1).cycle_time(PushPull(), ring(4))
    assert Clock(machines.routed(), size=1).cycle_time(PushPull(), ring(4)).seconds > 0
    assert len(machines.graph.edges) == 11
    some = machines.reordered([2, 0, 1])
    assert some.labels == ("Bonn", "Rome", "Oslo")
    assert some.rates(np.array([1]), np.array([2])).tolist() == [0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Machines(latency=-1), "latency of a link is a finite number that is not negative; got -1"),
        (lambda: Machines(latency=np.zeros((2, 3))), r"\(n, n\) array; got the shape \(2, 3\)"),
        (lambda: Machines(latency=float("nan")), "latency of a link is a finite number .* got nan"),
        (lambda: Machines(np.full((2, 2), np.nan)), "latency is nan for 1 -> 0, 0 -> 1, but the rate"),
        (lambda: Machines([[0, np.nan], [1, 0]], 1e6, labels=["a", "b"]), "latency is nan for b -> a, but the rate"),
        (lambda: Machines(np.full((9, 9), np.nan)), r"4 -> 0, 5 -> 0, 6 -> 0, ... \(66 more\), but"),
        (lambda: Machines(up=[1, 0]), "up is a positive number, or one per node; got 0"),
        (lambda: Machines(latency=np.zeros((3, 3)), up=[1, 2]), "one number of nodes throughout; got latency 3, up 2"),
        (lambda: Machines(rate="fast"), "rate is a number, an .* got 'fast'"),
        (lambda: Clock(5), "machines is a perron.Machines, a file of links or the name of a preset; got 5"),
        (lambda: Clock(ahead=-1), "ahead is a whole number of steps from 0 to 16; got -1"),
        (lambda: Clock(protocol="tcp"), "protocol is one of 'rendezvous', 'eager'; got 'tcp'"),
        (lambda: Clock(size=-1), "size is the number of bytes of a model vector; got -1"),
        (lambda: Clock(compute="gamma(1)"), "compute is 0.1, exponential"),
        (lambda: Clock(compute="exponential(1, 2)"), "exponential takes 1 numbers, exponential.mean.; got"),
        (lambda: Clock(compute="stragglers(1, 2, 3)"), "a chance is at most 1"),
        (lambda: Clock(compute=[]), "got an empty list"),
        (lambda: Clock(compute=float("nan")), "compute is a finite number of seconds"),
        (lambda: Clock().cycle_time(PushPull(), ring(3)), "How large is a message"),
        (
            lambda: Clock(size=1).cycle_time(perron.algorithms.PushPullDiLoCo(local_steps=(1, 2, 3)), ring(3)),
            r"the same number of local steps on all nodes .* got|has local_steps=\(1, 2, 3\)",
        ),
        (lambda: Clock(Machines(up=[1, 1]), size=1).cycle_time(PushPull(), ring(3)), "has 2 nodes but the network 3"),
        (lambda: Clock(compute=[1, 1], size=1).cycle_time(PushPull(), ring(3)), "compute has 2 times but the network 3"),
        (lambda: Clock(size=1, order=[0, 0]).cycle_time(PushPull(), ring(2)), "order lists each of the nodes 0 to 1 once"),
        (
            lambda: Clock(size=1, average="server", hub=9).cycle_time(perron.ALGORITHMS["centralized"], ring(2)),
            "hub is the number of a node, from 0 to 1; got 9",
        ),
    ],
)  # fmt: skip
def test_mistakes(make, message):
    with pytest.raises(PerronError, match=message):
        make()


def test_the_default_is_that_of_the_engine():
    from perron.distributed.process_group import RECEIVE_AHEAD

    assert Clock().ahead == RECEIVE_AHEAD


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("latency", [0.0, np.zeros((4, 4))])
def test_a_step_may_take_no_time(latency, protocol):
    for average, name in product(("ring", "server"), ("push_pull", "centralized", "diloco")):
        clock = Clock(Machines(latency), compute=0, size=0, protocol=protocol, average=average)
        found = clock.cycle_time(perron.ALGORITHMS[name], ring(4))
        assert (found.seconds, found.links, found.shares) == (0, (), {})
        assert str(found) == "0 ms per step: nothing takes time"
    assert clock.changed(compute="exponential(0)").cycle_time(PushPull(), ring(4)).seconds == 0
    history = perron.simulate(perron.problems.Quadratic.random(4), "push_pull", ring(4), lr=0.02, steps=3, clock=clock)
    assert history.time_to("grad_norm_sq", 1e9).tolist() == [0]


# ---- numbers of other libraries


NUMBERS = {"float64": np.float64, "int64": np.int64, "array": np.array, "tensor": torch.tensor}


@pytest.mark.parametrize("kind", NUMBERS)
def test_numbers_may_be_those_of_numpy_and_pytorch(kind):
    make = NUMBERS[kind]
    machines = Machines(latency=make(1), rate=make(10), up=make(20), compute=make(1))
    assert (machines.latency, machines.rate, machines.up, machines.compute) == (1, 10, 20, 1)
    whole = np.int64 if kind == "float64" else make
    given = Clock(
        machines, compute=make(2), size=make(5), overhead=make(1), per_byte=make(0), ahead=whole(1),
        average="server", hub=whole(1), order=np.array([1, 0, 2]),
    )  # fmt: skip
    same = Clock(
        Machines(latency=1, rate=10, up=20), compute=2, size=5, overhead=1, ahead=1, average="server", hub=1, order=[1, 0, 2]
    )  # fmt: skip
    assert given.size == 5
    assert type(given.size) is float
    for algorithm in (PushPull(), perron.ALGORITHMS["centralized"]):
        assert given.cycle_time(algorithm, ring(3)).seconds == same.cycle_time(algorithm, ring(3)).seconds


@pytest.mark.parametrize("wrong", [True, np.True_, np.array(True), "1", "fast", None, 1j, [[1]]])
@pytest.mark.parametrize("name", ["latency", "rate", "up", "down"])
def test_machines_take_numbers_only(name, wrong):
    if wrong == [[1]] and name in ("latency", "rate"):
        return
    with pytest.raises(PerronError, match=f"{name} is a number.*; got"):
        Machines(**{name: wrong})


@pytest.mark.parametrize("wrong", [True, np.True_, "1", 1j, [1]])
@pytest.mark.parametrize("name", ["size", "overhead", "per_byte", "ahead", "hub", "order"])
def test_clocks_take_numbers_only(name, wrong):
    with pytest.raises(PerronError, match=rf"^{name} (is|lists) .*; got .*{'' if wrong == [1] else str(wrong)[:2]}"):
        Clock(**{"size": 1.0, "average": "server", name: wrong}).cycle_time(perron.ALGORITHMS["centralized"], ring(3))


@pytest.mark.parametrize("wrong", [True, np.array(False), [1, True, 1], "fast", [[1, 2, 3]]])
def test_compute_times_are_numbers_or_distributions(wrong):
    with pytest.raises(PerronError, match=r"compute is 0.1, exponential.*; got"):
        Clock(compute=wrong)


def test_no_link_may_have_no_latency():
    none = np.nan
    for missing in (none, 0.0):
        machines = Machines(
            [[0, none, 1], [1, none, none], [none, 1, 0]], [[0, missing, 5], [5, 0, missing], [missing, 5, 0]]
        )
        assert machines.latency_matrix.tolist() == [[0, 0, 1], [1, 0, 0], [0, 1, 0]]
        assert len(machines.graph.edges) == 3


# ---- names of nodes

NAMES = ("Rome", "Oslo", "Bonn", "Bern", "Graz")
PLACES = [3, 0, 4, 1, 2]  # node k of the network is machine PLACES[k]


def by_name(kind: str = "dense") -> tuple[Clock, Clock, Mixing]:
    """A clock whose machines have names, one whose machines are in the order of a network, and the network."""
    machines = random_machines(5, seed=1).changed(labels=NAMES)
    ordered = machines.reordered(PLACES).changed(labels=None)
    if kind == "sparse":
        machines = machines.changed(latency=csr_array(machines.latency), rate=csr_array(machines.rate))
    if kind == "function":
        latency, rate = machines.latency, machines.rate
        machines = machines.changed(latency=lambda i, j: latency[j, i], rate=lambda i, j: rate[j, i])
    graph = perron.Graph(5, topologies.exponential(5).edges, labels=[NAMES[place] for place in PLACES])
    return Clock(machines, size=SIZE), Clock(ordered, size=SIZE), Mixing.random_integer(graph)


@pytest.mark.parametrize("kind", ["dense", "sparse", "function"])
def test_nodes_are_matched_by_name(kind):
    named, ordered, mixing = by_name(kind)
    plain = Mixing(mixing.pull, mixing.push)
    for algorithm in (PushPull(), PushPull(order="atc"), perron.ALGORITHMS["centralized"]):
        found, expected = named.cycle_time(algorithm, mixing), ordered.cycle_time(algorithm, plain)
        assert found.seconds == expected.seconds != named.cycle_time(algorithm, plain).seconds
        assert (found.links, found.labels) == (expected.links, mixing.labels)
        assert slope(named, algorithm, mixing, 5) == slope(ordered, algorithm, plain, 5)
    found = named.cycle_time(PushPull(), mixing)
    assert found.describe() == ordered.cycle_time(PushPull(), plain).describe(lambda node: NAMES[PLACES[node]])
    problem = perron.problems.Quadratic.random(5)
    runs = [
        perron.simulate(problem, "push_pull", network, lr=0.02, steps=5, clock=clock).seconds
        for clock, network in ((named, mixing), (ordered, plain))
    ]
    assert np.array_equal(*runs)
    if kind == "dense":
        assert named.matched(mixing).fingerprint(5) == ordered.fingerprint(5) != named.fingerprint(5)
    of_events = [
        simulate_asynchronous(problem, "robust_push_pull", network, clock=clock, seconds=3)
        for clock, network in ((named, mixing), (ordered, plain))
    ]
    assert of_events[0].about["node_steps"] == of_events[1].about["node_steps"]


def test_numbers_of_nodes_in_a_clock_are_those_of_its_machines():
    named, ordered, mixing = by_name()
    compute, order, hub = np.array([1, 2, 3, 4, "stragglers(1, 0.5, 1)"], dtype=object), [4, 3, 0, 1, 2], 4
    node = {place: k for k, place in enumerate(PLACES)}
    same = ordered.changed(compute=compute[PLACES], order=[node[one] for one in order], hub=node[hub])
    for average in ("ring", "server"):
        one = named.changed(compute=compute, order=order, hub=hub, average=average).matched(mixing)
        central = perron.ALGORITHMS["centralized"]
        assert slope(one, central, mixing, 5) == slope(same.changed(average=average), central, mixing, 5)


def test_names_that_differ_are_refused():
    named, _, mixing = by_name()
    other = Mixing.uniform(perron.Graph(5, mixing.pull_graph.edges, labels=list("abcde")))
    with pytest.raises(
        PerronError, match=r"are Rome, .*, Graz, those of the network a, b, c, d, e. They are matched by name"
    ):
        named.cycle_time(PushPull(), other)
    unnamed = named.changed(machines=named.record.changed(labels=None))
    assert unnamed.cycle_time(PushPull(), other).labels == tuple("abcde")


def test_networks_keep_the_names_of_their_graph(tmp_path):
    graph = topologies.ring(4).symmetric()
    graph = perron.Graph(4, graph.edges, labels=list("abcd"))
    kinds = ("uniform", "lazy", "random_integer", "metropolis", "balanced", "spanning_trees")
    made = [getattr(Mixing, kind)(graph) for kind in kinds]
    perron.write_mixing(made[0], tmp_path / "network.npz")
    perron.write_graph(graph, tmp_path / "graph.graphml")
    made += [
        perron.read_mixing(tmp_path / "network.npz"), load_network(str(tmp_path / "graph.graphml")).mixing, repeat(made[0], 2),
        samplers.pairwise(made[0]), samplers.matching(made[0]), avoid(made[0], [(0, 1)]),
    ]  # fmt: skip
    assert {one.labels for one in made} == {tuple("abcd")}
    assert restrict(made[0], [0, 2, 3]).labels == tuple("acd")
    assert made[0].pull_graph.labels == tuple("abcd")
    assert ring(4).labels is None

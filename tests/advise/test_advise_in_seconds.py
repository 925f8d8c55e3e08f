"""The adviser in seconds: closed forms, who wins on symmetric and on asymmetric links, words, JSON and bad input."""

import json
from dataclasses import replace
from inspect import signature
from math import inf

import numpy as np
import pytest
from typer.main import get_command
from typer.testing import CliRunner

from perron import ALGORITHMS, Mixing, read_mixing
from perron.advise import Goal, Needs, advise
from perron.advise.fewer_bytes import words_on_bytes
from perron.advise.seconds import costs_of_a_gradient, shown_timings
from perron.algorithms.codecs import CODECS
from perron.cli.main import app
from perron.cli.options import parse_compute
from perron.clock import Clock, Machines, presets
from perron.clock import clock as clocks
from perron.clock.candidates import candidates, exists, of_nodes, tour
from perron.design import fastest_graph
from perron.distributed.process_group import RECEIVE_AHEAD
from perron.distributed.receive_ahead import MOST_AHEAD
from perron.errors import PerronError
from perron.networks import topologies
from perron.theory import steps_to_accuracy, time_to_accuracy

GAIA = ["--links", "gaia", "--size", "5.62e6"]
SEVEN = Mixing.uniform(topologies.exponential(7))


def machines(asymmetry: float, nodes: int = 7) -> Machines:
    """Nodes in a plane; one direction of each pair is several times slower, and the other leads up to half-way around a ring."""
    places = np.random.default_rng(3).uniform(size=(nodes, 2))
    latency = 0.01 + 0.1 * np.linalg.norm(places[:, None] - places[None], axis=-1)
    target, source = np.indices((nodes, nodes))
    slower = np.where((target - source) % nodes > nodes // 2, asymmetry, 1.0)
    return Machines(slower * latency, 1e8 / slower)


def timed(asymmetry, **options):
    clock = Clock(machines(asymmetry), compute=0.02, size=5e6, protocol="eager")
    return advise(SEVEN, Needs(), clock=clock, **options)


EACH_STEP = ["push_pull", "push_pull_pu", "push_pull_atc", "exact_diffusion", "extra"]  # one exchange for each gradient


def test_on_symmetric_links_an_undirected_method_is_fastest_and_with_slow_directions_a_directed_one():
    symmetric, asymmetric = (timed(ratio, algorithms=EACH_STEP).times[0] for ratio in (1.0, 20.0))
    assert symmetric.algorithm in ("exact_diffusion", "extra")
    assert not symmetric.directed
    assert asymmetric.algorithm.startswith("push_pull")
    assert asymmetric.directed


def test_local_steps_are_fastest_where_links_are_slow_and_gradients_fast():
    """One exchange of two vectors for four gradients."""
    for asymmetry in (1.0, 20.0):
        fastest = timed(asymmetry).times[0]
        assert fastest.algorithm == "local_push_pull"
        assert fastest.seconds < timed(asymmetry, algorithms=EACH_STEP).times[0].seconds
    assert fastest.directed


def test_quantized_messages_take_less_time_and_as_many_steps():
    """Vectors are as large as the codec writes them; averages over all nodes stay in full precision."""
    clock = Clock(machines(1.0), compute=0.02, size=5e6, protocol="eager")

    def rows(wire):
        advice = advise(SEVEN, Needs(wire=wire), clock=clock, algorithms=["push_pull"], other_graphs=False)
        return {(one.algorithm, one.graph): one for one in advice.times}

    full, few = rows(4), rows("int4")
    given = ("push_pull", "given")
    assert few[given].steps == full[given].steps
    smaller = clock.changed(size=CODECS["int4"].nbytes(1_250_000))
    assert few[given].step_seconds == pytest.approx(smaller.cycle_time(ALGORITHMS["push_pull"], SEVEN).seconds)
    central = [key for key in full if key[0] == "centralized"]
    assert central
    assert all(few[key].seconds == full[key].seconds for key in central)
    with pytest.raises(PerronError, match="There are: bf16, int8, int4"):
        Needs(wire="int2")


def test_an_all_reduce_takes_the_direction_whose_links_exist():
    ring = topologies.ring(5)
    links = ring.adjacency().toarray()
    clock = Clock(Machines(0.05 * links, 1e6 * links), compute=0.1, size=1e5)
    advice = advise(Mixing.uniform(ring), clock=clock, other_graphs=False)
    seconds = 0.1 + 8 * (2 * 0.05 + 0.02)
    (row,) = [one for one in advice.times if one.graph == "all-reduce, ring"]
    assert row.step_seconds == pytest.approx(seconds)
    (cost,) = [one for one in advice.gradients if one.algorithm == "centralized"]
    assert cost.seconds == pytest.approx(seconds)


def test_costs_of_a_gradient_that_takes_no_time():
    costs = costs_of_a_gradient(SEVEN, Needs(), Clock(Machines(), size=4e6))
    assert {one.seconds for one in costs} == {0.0}
    (line,) = words_on_bytes(costs)
    assert "takes 0 ms, and sends 1" in line
    assert "times fewer bytes than" in line
    assert costs_of_a_gradient(SEVEN, Needs(), Clock(Machines(), size=0)) == ()


def test_what_a_gradient_costs():
    """Seconds are cycle times over H, bytes those of the codec; what the network does not bear is left out."""
    clock = Clock(machines(1.0), compute=0.001, size=4e6, protocol="eager")
    advice = advise(SEVEN, clock=clock, algorithms=["push_pull"], other_graphs=False)
    found = {(one.algorithm, one.local_steps, one.wire): one for one in advice.gradients}
    full, few = found["push_pull", 1, None], found["push_pull_diloco", 16, "int4"]
    links = len(SEVEN.pull_graph.edges) + len(SEVEN.push_graph.edges)
    assert full.bytes == links * 4e6 / 7
    vector = CODECS["int4"].nbytes(1_000_000)
    assert few.bytes == links * vector / 7 / 16
    algorithm = replace(ALGORITHMS["push_pull_diloco"], local_steps=16)
    assert few.seconds == clock.changed(size=vector).cycle_time(algorithm, SEVEN).seconds / 16
    assert found["diloco", 16, None].bytes == 2 * 6 * 4e6 / 7 / 16
    (line,) = [line for line in advice.words if "for each gradient" in line.lower()]
    assert f"{full.bytes / few.bytes:.3g} times fewer bytes" in line
    assert advice.to_dict()["gradients"][0]["algorithm"] == "push_pull"
    ring = Mixing.uniform(topologies.ring(7))  # on which rounds of the default outer step diverge
    others = advise(ring, clock=clock, algorithms=["push_pull"], other_graphs=False).gradients
    assert {one.algorithm for one in others} == {"push_pull", "local_push_pull", "centralized", "diloco"}
    assert advise(SEVEN, algorithms=["push_pull"]).gradients == ()


def test_rows_are_cycle_times_and_steps_of_theory():
    clock = Clock(machines(1.0), compute=0.02, size=5e6, protocol="eager")
    advice = advise(SEVEN, Needs(smoothness=3.0), clock=clock, target=1e-6, condition=20, other_graphs=False)
    rows = {one.algorithm: one for one in advice.times if one.graph == "given"}
    assert set(rows) == {"push_pull", "push_pull_pu", "push_pull_atc", "local_push_pull"}
    for name, one in rows.items():
        cycle = clock.cycle_time(ALGORITHMS[name], SEVEN)
        found = steps_to_accuracy(ALGORITHMS[name], SEVEN, 1e-6, condition=20, smoothness=3.0)
        assert (one.step_seconds, one.steps, one.lr) == pytest.approx((cycle.seconds, found.steps, found.lr))
        assert one.seconds == one.step_seconds * one.steps
        assert one.critical == cycle.describe()
        assert one.links == cycle.links
    assert {one.graph for one in advice.times if one.algorithm == "extra"} == {"given, both ways"}


def test_all_reduce_and_server_have_closed_forms():
    n, latency, rate, size, compute = 7, 0.05, 1e8, 7e6, 0.02
    clock = Clock(Machines(latency, rate), compute=compute, size=size, protocol="eager")
    advice = advise(SEVEN, clock=clock, target=1e-4, condition=10)
    rows = {one.graph: one for one in advice.times if one.algorithm == "centralized"}
    ring = compute + 2 * (n - 1) * (latency + size / n / rate)
    assert rows["all-reduce, ring by number"].step_seconds == pytest.approx(ring)
    assert rows["all-reduce, ring"].step_seconds == pytest.approx(ring)
    assert rows["parameter server"].step_seconds == pytest.approx(compute + 2 * (latency + size / rate))
    descent = steps_to_accuracy(ALGORITHMS["centralized"], Mixing([[1.0]], [[1.0]]), 1e-4, condition=10).steps
    assert rows["parameter server"].steps == pytest.approx(descent, rel=0.02)


def test_with_noise_more_steps_are_needed():
    needs = Needs(noise_var=4.0)
    clean = timed(1.0, target=1e-3, other_graphs=False).times
    clock = Clock(machines(1.0), compute=0.02, size=5e6, protocol="eager")
    noisy = advise(SEVEN, needs, clock=clock, target=1e-3, noisy=True, other_graphs=False).times
    steps = {(one.algorithm, one.graph): one.steps for one in clean}
    assert all(one.steps > 1.5 * steps[one.algorithm, one.graph] for one in noisy)


def test_with_random_compute_times_few_candidates_are_simulated(monkeypatch):
    """A candidate that is too slow with mean times is slower with random ones."""
    calls = []
    simulated = clocks.simulated_cycle_time
    monkeypatch.setattr(clocks, "simulated_cycle_time", lambda *given: calls.append(given) or simulated(*given))
    clock = Clock(machines(1.0), compute="lognormal(0.02, 0.5)", size=5e6)
    steps = []
    advice = advise(SEVEN, clock=clock, progress=lambda step, _: steps.append(step))
    assert len(calls) - len(advice.gradients) < 0.7 * steps[-1]  # the number of candidates
    fixed = advise(SEVEN, clock=clock.changed(compute=0.02), algorithms=["push_pull_atc"])
    means = {(one.algorithm, one.graph): one for one in fixed.times}
    for one in shown_timings(advice.times):
        assert one.standard_error < 0.01 * one.step_seconds
        assert one.critical
        if (one.algorithm, one.graph) in means:
            assert one.step_seconds > means[one.algorithm, one.graph].step_seconds - 4 * one.standard_error
    given = next(one for one in advice.times if (one.algorithm, one.graph) == ("push_pull_atc", "given"))
    cycle = clock.cycle_time(ALGORITHMS["push_pull_atc"], SEVEN)
    assert (given.step_seconds, given.standard_error) == (cycle.seconds, cycle.standard_error)


def test_a_target_below_the_noise_floor_has_no_seconds():
    advice = advise(SEVEN, clock=Clock(machines(1.0), size=5e6), target=1e-13, noisy=True, algorithms=["push_pull"])
    assert all(one.seconds == inf for one in advice.times)
    assert "below the floor of every lr" in advice.words[0]


def test_defaults_are_the_same_everywhere():
    functions = (advise, fastest_graph, steps_to_accuracy, time_to_accuracy)
    defaults = [{name: one.default for name, one in signature(function).parameters.items()} for function in functions]
    assert {(found["target"], found["condition"]) for found in defaults} == {(None, 50.0)}
    assert (Goal(noisy=False).target, Goal(noisy=True).target, Goal().condition) == (1e-8, 1e-4, 50.0)
    noise = steps_to_accuracy(ALGORITHMS["push_pull"], SEVEN, noise_var=1.0)
    assert noise == steps_to_accuracy(ALGORITHMS["push_pull"], SEVEN, 1e-4, noise_var=1.0)
    words = ["--goal", "time", *GAIA, "--tries", "1", "--algorithm", "push_pull_pu", "--json"]
    for more, expected in (([], (1e-8, 0.0)), (["--noise", "0.5"], (1e-4, 0.25))):
        goal = json.loads(CliRunner().invoke(app, ["design", *words, *more]).stdout)["goal"]
        assert (goal["target"], goal["noise_var"], goal["condition"]) == (*expected, 50.0)
    output = CliRunner().invoke(app, ["advise", "ring", *GAIA, "--only-given", "--noise", "0.5"]).output
    assert "is 0.0001 of its start; L / mu = 50, sigma^2 = 0.25" in " ".join(output.split())


def test_words_say_why_and_the_table_has_the_best_graph_of_each_algorithm():
    advice = timed(1.0, algorithms=EACH_STEP)
    fastest = advice.times[0]
    assert advice.words[0].startswith(f"Fastest: {fastest.described}, {fastest.seconds:.3g} s")
    assert "Fewest seconds, not fewest ms per step" in advice.words[0]
    assert "directed: push_pull" in advice.words[1]
    assert not any(line.startswith("Use ") for line in advice.words)
    shown = shown_timings(advice.times)
    assert [one.seconds for one in shown] == sorted(one.seconds for one in shown)
    assert all(one.critical for one in shown)
    for name in ("push_pull", "extra"):
        of_it = [one for one in shown if one.algorithm == name]
        assert sum(not one.given for one in of_it) <= 1
        assert min(one.seconds for one in of_it) == min(one.seconds for one in advice.times if one.algorithm == name)


def test_biased_and_unstable_methods_have_no_seconds():
    advice = timed(1.0, algorithms=["dsgd", "push_pull"], other_graphs=False)
    row = next(one for one in advice.times if one.algorithm == "dsgd")
    assert row.seconds == inf
    assert "biased" in row.remark


def test_candidates_use_existing_links_only():
    rate = np.full((6, 6), 1e6)
    rate[:, 0] = rate[0, :] = 0
    rate[1, 0] = rate[0, 1] = rate[0, 5] = 1e6
    some = Machines(0.01, rate)
    found = candidates(some, 1e5)
    assert found
    assert all(exists(some, one.graph) for one in found)
    assert "ring by number" in {one.name for one in found} or not exists(some, topologies.ring(6))
    assert of_nodes(Machines(0.1, 1e6), 4).nodes == 4
    assert sorted(tour(some, 1e5).tolist()) == list(range(6))
    assert candidates(of_nodes(Machines(), 1), 1.0) == []


def test_the_command_has_it_all():
    words = ["advise", "exponential", "--links", "gaia", "--size", "5.62e6", "--compute", "0.0254"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    for text in ("ms/step", "exact_diffusion", "parameter server", "all-reduce", "Fastest: ", "Sao Paulo"):
        assert text in result.output
    order = [result.output.index(text) for text in ("ms/step", "By number:", "Fastest: ", "A gradient of each node")]
    assert order == sorted(order)  # the conclusion is beside its table
    assert result.output.count("Fastest: ") == 1
    result = CliRunner().invoke(app, [*words, "--only-given", "--target", "1e-4", "--condition", "10", "--json"])
    found = json.loads(result.stdout)
    assert found["goal"] == {"target": 1e-4, "condition": 10.0, "noisy": False}
    assert {one["graph"] for one in found["times"] if one["algorithm"] == "push_pull"} == {"given"}
    assert found["times"][0]["seconds"] == min(one["seconds"] for one in found["times"])
    result = CliRunner().invoke(app, [*words, "--noise", "0.1", "--only-given", "--json", "--protocol", "eager"])
    assert json.loads(result.stdout)["goal"] == {"target": 1e-4, "condition": 50.0, "noisy": True}


def test_the_fastest_network_is_written(tmp_path):
    path = tmp_path / "network.npz"
    words = [
        "advise",
        "exponential",
        *GAIA,
        "--compute",
        "0.0254",
        "--algorithm",
        "push_pull",
        "--out",
        str(path),
        "--json",
    ]
    result = CliRunner().invoke(app, words)
    found, mixing = json.loads(result.stdout), read_mixing(path)
    fastest = found["fastest"]
    assert (fastest["algorithm"], fastest["graph"]) == ("push_pull", "one-peer in ring order")
    clock = Clock(presets.load("gaia"), compute=0.0254, size=5.62e6)
    assert clock.cycle_time(ALGORITHMS["push_pull"], mixing).seconds == pytest.approx(fastest["step_seconds"])
    assert [len(step) for step in fastest["pull_edges"]] == [11] * mixing.period
    assert "parameter server is faster and has no network of its own" in found["notes"][-1]
    given = advise(SEVEN, clock=Clock(machines(1.0), size=5e6), algorithms=["push_pull"], other_graphs=False)
    edges = given.to_dict()["fastest"]["push_edges"]
    assert sorted(map(tuple, edges)) == sorted(map(tuple, topologies.exponential(7).edges.tolist()))
    assert given.fastest.mixing is SEVEN


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0.1", "0.1"),
        ("0.1,0.2,0.3", ["0.1", "0.2", "0.3"]),
        ("[0.1, 0.2,0.3]", ["0.1", "0.2", "0.3"]),
        ("lognormal(0.1, 0.5)", "lognormal(0.1, 0.5)"),
        ("[0.1,'lognormal(0.1, 0.5)',stragglers(1,0.5,2)]", ["0.1", "lognormal(0.1, 0.5)", "stragglers(1,0.5,2)"]),
        ("times,new.csv", "times,new.csv"),
    ],
)
def test_compute_times_on_the_command_line(text, expected):
    assert parse_compute(text) == expected


def test_compute_times_of_each_node():
    times = [0.1 * k for k in range(11)]
    given = ",".join(f"{time:g}" for time in times)
    found = [
        json.loads(CliRunner().invoke(app, ["graph", "ring", *GAIA, "--json", "--compute", text]).stdout)["steps"]
        for text in (given, f"[{given}]")
    ]
    assert found[0] == found[1]
    mixing = Mixing.random_integer(topologies.ring(11), seed=0)
    clock = Clock("gaia", compute=times, size=5.62e6)
    assert found[0]["push_pull"]["ms"] == pytest.approx(1e3 * clock.cycle_time(ALGORITHMS["push_pull"], mixing).seconds)


def test_receives_are_posted_ahead_by_the_default_and_up_to_the_limit_of_the_engine():
    assert Clock().ahead == RECEIVE_AHEAD
    assert clocks.AHEAD_UP_TO == MOST_AHEAD
    command = get_command(app)
    for name in ("advise", "design", "graph"):
        option = next(one for one in command.commands[name].params if one.name == "receive_ahead")
        assert f"(0 to {MOST_AHEAD}; default: {RECEIVE_AHEAD})" in option.help
    result = CliRunner().invoke(app, ["graph", "ring", *GAIA, "--receive-ahead", str(MOST_AHEAD + 1)])
    assert result.exit_code == 2


def test_the_graph_command_names_the_critical_cycle():
    words = ["graph", "ring", "--links", "gaia", "--size", "5.62e6", "--compute", "0.0254", "--protocol", "eager"]
    output = CliRunner().invoke(app, words).output
    for name in ("push_pull: ", "push_pull_pu: ", "push_pull_atc: "):
        assert f"- {name}" in output
    found = json.loads(CliRunner().invoke(app, [*words, "--json"]).output)["steps"]
    clock = Clock(presets.load("gaia"), compute=0.0254, size=5.62e6, protocol="eager")
    mixing = Mixing.random_integer(topologies.ring(11), seed=0)
    assert found["push_pull"]["ms"] == pytest.approx(1e3 * clock.cycle_time(ALGORITHMS["push_pull"], mixing).seconds)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["advise", "ring", "--size", "5"], "on which links"),
        (["advise", "ring", "--target", "0.1"], "are for seconds"),
        (["advise", "ring", "--out", "network.npz"], "are for seconds"),
        (["advise", "ring", *GAIA, "--out", "network.csv"], "ends in .npz"),
        (["advise", "ring", "--links", "gaia"], "How large is a message"),
        (["advise", "ring", "--links", "nowhere.csv", "--size", "5"], "nowhere.csv"),
        (["advise", "ring", "--nodes", "5", "--links", "gaia", "--size", "5"], "they must be equal"),
        (["graph", "ring", "--compute", "5"], "on which links"),
        (["graph", *GAIA], "Which network on these links"),
        (["advise", "ring", *GAIA, "--compute", "0.1,0.2"], "--compute has 2 values for 11 nodes"),
        (["advise", "ring", *GAIA, "--compute", "[0.1]"], "--compute has 1 value for 11 nodes"),
        (["advise", "ring", *GAIA, "--compute", "0.1,,0.2"], "one for each node, as 0.1,0.2,0.1"),
        *(
            (["advise", "ring", *GAIA, "--target", given], "between 0 and 1")
            for given in ("0", "-1", "1", "nan", "inf")
        ),
        (["advise", "ring", *GAIA, "--target", "1e-300"], "Double precision resolves"),
    ],
)
def test_what_is_refused(words, message):
    result = CliRunner().invoke(app, words)
    assert isinstance(result.exception, PerronError)
    assert message in str(result.exception)


@pytest.mark.parametrize("command", [["advise", "ring", "--nodes", "3"], ["design", "--goal", "time", "--tries", "10"]])
def test_links_that_take_no_time_are_said_to_be_so(command, tmp_path):
    file = tmp_path / "free.csv"
    file.write_text("from,to,latency_ms,rate_mbit\n0,1,0,100\n1,2,0,100\n2,0,0,100\n")
    result = CliRunner().invoke(app, [*command, "--links", str(file), "--size", "0", "--compute", "0"])
    assert "no time" in " ".join(result.output.split()) + str(result.exception)
    assert not isinstance(result.exception, ZeroDivisionError)

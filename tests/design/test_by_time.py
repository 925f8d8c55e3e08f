"""A graph for given links: who wins where, never slower than the starts, repeatable, interruptible."""

import json
from math import inf, isfinite

import numpy as np
import pytest
from typer.testing import CliRunner

from perron import ALGORITHMS, Mixing, read_mixing
from perron.advise import advise
from perron.cli.main import app
from perron.clock import Clock, Machines
from perron.design import by_time, fastest_graph, time_task
from perron.design.link_arrays import connected, metropolis, mixing_of, one_peer, places_of
from perron.errors import PerronError
from perron.networks import topologies
from perron.theory import steps_to_accuracy

ROTATION = 7


def clock(asymmetry: float, nodes: int = ROTATION) -> Clock:
    """Nodes in a plane; one direction of each pair is several times slower, and the other leads up to half-way around a ring."""
    places = np.random.default_rng(3).uniform(size=(nodes, 2))
    latency = 0.01 + 0.1 * np.linalg.norm(places[:, None] - places[None], axis=-1)
    target, source = np.indices((nodes, nodes))
    slower = np.where((target - source) % nodes > nodes // 2, asymmetry, 1.0)
    return Clock(Machines(slower * latency, 1e8 / slower), compute=0.02, size=5e6, protocol="eager")


EACH_STEP = ["push_pull", "push_pull_pu", "push_pull_atc", "exact_diffusion", "extra"]  # one exchange for each gradient


def test_undirected_on_symmetric_links_and_directed_where_one_direction_is_slow():
    symmetric = fastest_graph(clock(1.0), algorithms=EACH_STEP, tries=60, weights=False).best
    asymmetric = fastest_graph(clock(20.0), algorithms=EACH_STEP, tries=60, weights=False).best
    assert symmetric.algorithm in ("exact_diffusion", "extra")
    assert not symmetric.directed
    assert asymmetric.algorithm.startswith("push_pull")
    assert asymmetric.directed


def test_the_result_is_what_it_says_and_not_slower_than_its_starts():
    found = fastest_graph(clock(1.0), tries=50, target=1e-6, condition=20, weights=False)
    for one in found.candidates:
        algorithm = ALGORITHMS[one.algorithm]
        cycle = clock(1.0).cycle_time(algorithm, one.mixing).seconds
        steps = steps_to_accuracy(algorithm, one.mixing, 1e-6, condition=20)
        assert one.step_seconds == pytest.approx(cycle)
        assert one.steps == pytest.approx(steps.steps, rel=0.03)  # found from a guess
    assert found.best.seconds == min(one.seconds for one in found.candidates)
    assert found.best.seconds <= found.plain.seconds
    assert set(found.evaluations.values()) == {50}  # equal effort
    for name in found.evaluations:
        of_it = [one for one in found.candidates if one.algorithm == name]
        improved = [one for one in of_it if one.name.endswith("improved")]
        assert len(of_it) - len(improved) == 1
        assert all(one.seconds < max(other.seconds for other in of_it) for one in improved)
    assert "times the seconds" in str(found)


def test_a_seed_gives_the_same_result_and_more_tries_none_slower():
    few, again, more = (fastest_graph(clock(20.0), tries=tries, weights=False, seed=4) for tries in (40, 40, 90))
    assert few.to_dict() == again.to_dict()
    assert more.best.seconds <= few.best.seconds * 1.001
    assert fastest_graph(clock(20.0), tries=1, weights=False).best.seconds >= more.best.seconds


@pytest.mark.parametrize(("kind", "directed"), [("directed", None), ("undirected", False)])
def test_kinds(kind, directed):
    found = fastest_graph(clock(1.0), kind=kind, tries=25, weights=False)
    assert set(found.evaluations) == set(by_time.DIRECTED if kind == "directed" else by_time.UNDIRECTED)
    if directed is False:
        assert all(one.mixing.is_symmetric for one in found.candidates)


def test_designed_weights_are_taken_if_they_are_faster():
    found = fastest_graph(clock(20.0), algorithms=["push_pull"], tries=12)
    assert found.designed is not None
    assert (found.best is found.designed) == (found.designed.seconds <= found.best.seconds)
    assert "designed weights" in "\n".join(found.notes)


def test_an_interrupt_returns_the_best_so_far(monkeypatch):
    calls = 0

    def interrupted(self, *args, original=time_task.TimeTask.timed):
        nonlocal calls
        calls += 1
        if calls == 20:
            raise KeyboardInterrupt
        return original(self, *args)

    monkeypatch.setattr(time_task.TimeTask, "timed", interrupted)
    found = fastest_graph(clock(1.0), tries=100)
    assert found.interrupted
    assert isfinite(found.best.seconds)
    assert sum(found.evaluations.values()) == 19
    assert found.notes[-1] == "interrupted: this is the best so far"
    calls = 19
    with pytest.raises(KeyboardInterrupt):
        fastest_graph(clock(1.0), tries=100)


def test_a_search_whose_time_is_up_returns_the_best_so_far():
    """Each algorithm evaluates one network in any case."""
    found = fastest_graph(clock(1.0), algorithms=["push_pull_pu", "exact_diffusion"], tries=1000, seconds=1e-6)
    assert found.interrupted == "time is up"
    assert list(found.evaluations.values()) == [1, 1]
    assert found.notes[-1] == "time is up: this is the best so far"
    with pytest.raises(PerronError, match="positive number; got 0"):
        fastest_graph(clock(1.0), seconds=0)


def test_connected_means_a_common_root():
    ring = topologies.ring(5).adjacency().toarray() > 0
    np.fill_diagonal(ring, val=False)
    path = ring.copy()
    path[0, 4] = False  # 0 -> 1 -> ... -> 4
    assert connected(ring, ring)
    assert not connected(path, path)  # 0 is the root of pulling, 4 that of pushing
    assert connected(path, path.T)
    assert connected(ring, path)
    split = ring.copy()
    split[0, 4] = split[3, 2] = False
    assert not connected(split, ring)
    for pair in ((ring, ring), (path, path.T), (ring, path)):
        assert mixing_of(pair, undirected=False).nodes == 5


def test_weights_aremetropolis():
    graph = topologies.random_digraph(8, seed=2).symmetric()
    links = graph.adjacency().toarray() > 0
    np.fill_diagonal(links, val=False)
    pull = Mixing.metropolis(graph).pull
    assert metropolis(links) == pytest.approx(pull.toarray() if hasattr(pull, "toarray") else pull)


def test_machines_of_any_number_and_of_two():
    found = fastest_graph(Clock(Machines(0.1, 1e6), size=1e5), 2, tries=5, weights=False)
    assert found.best.seconds < inf


def test_what_cannot_be_searched():
    with pytest.raises(PerronError, match="How large"):
        fastest_graph(Clock(Machines(np.ones((3, 3)))))
    with pytest.raises(PerronError, match="pass nodes="):
        fastest_graph(Clock(size=1))
    with pytest.raises(PerronError, match="2 to 120 nodes"):
        fastest_graph(Clock(size=1), 500)
    for target in (0.0, -1.0, 1.0, float("nan")):
        with pytest.raises(PerronError, match="between 0 and 1"):
            fastest_graph(clock(1.0), target=target)
    with pytest.raises(PerronError, match="Double precision resolves"):
        fastest_graph(clock(1.0), target=1e-300)
    with pytest.raises(PerronError, match="below the floor of every lr"):
        fastest_graph(clock(1.0), target=1e-13, noise_var=1.0, tries=2)
    with pytest.raises(PerronError, match="exact methods"):
        fastest_graph(clock(1.0), algorithms=["dsgd"])
    with pytest.raises(PerronError, match="does not belong"):
        fastest_graph(clock(1.0), algorithms=["extra"], kind="directed")


def test_local_steps_are_considered_and_centralized_methods_compared_with():
    found = fastest_graph(clock(1.0), tries=3, weights=False)
    assert "local_push_pull" in found.evaluations
    assert {one.name for one in found.baselines} == {
        "all-reduce, ring by number",
        "all-reduce, ring",
        "parameter server",
    }
    advised = advise(Mixing.uniform(topologies.exponential(ROTATION)), clock=clock(1.0), algorithms=["push_pull"])
    expected = {one.graph: one.seconds for one in advised.times if one.algorithm == "centralized"}
    assert {one.name: one.seconds for one in found.baselines} == pytest.approx(expected, rel=0.02)
    ratio = found.baselines[0].seconds / found.best.seconds
    assert any(f"{found.baselines[0].name}: {ratio:.3g} times the seconds" in line for line in found.notes)
    assert found.baselines[0].row() in found.rows()


def test_random_compute_times_are_simulated_and_their_critical_cycle_is_not_known():
    found = fastest_graph(
        clock(1.0).changed(compute="lognormal(0.02, 0.5)"), algorithms=["extra"], tries=12, weights=False
    )
    seconds = clock(1.0).changed(compute="lognormal(0.02, 0.5)").cycle_time(ALGORITHMS["extra"], found.mixing).seconds
    assert found.best.step_seconds == pytest.approx(seconds)
    assert "not known, as compute times are random" in found.notes[0]


def test_the_command(tmp_path):
    path = tmp_path / "network.npz"
    words = ["design", "--goal", "time", "--links", "gaia", "--size", "5.62e6", "--compute", "0.0254", "--tries", "12"]
    result = CliRunner().invoke(app, [*words, "--undirected", "--out", str(path)])
    assert result.exit_code == 0, result.output
    assert "ms/step" in result.output
    assert "fastest: exact_diffusion" in result.output
    assert read_mixing(path).nodes == 11
    found = json.loads(CliRunner().invoke(app, [*words, "--algorithm", "push_pull_pu", "--json"]).stdout)
    assert found["best"]["algorithm"] == "push_pull_pu"
    assert found["evaluations"] == {"push_pull_pu": 12}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--goal", "time"], "on which links"),
        (["ring", "--goal", "time", "--links", "gaia", "--size", "1"], "leave out 'ring'"),
        (["ring", "--tries", "5"], "are for --goal time"),
        ([], "Which network"),
    ],
)
def test_what_the_command_refuses(words, message):
    result = CliRunner().invoke(app, ["design", *words])
    assert isinstance(result.exception, PerronError)
    assert message in str(result.exception)


def test_where_access_is_narrow_a_digraph_of_degree_one_is_fastest():
    """Two vectors to one node are as many bytes as one to two, and graphs of degree one that vary mix faster than rings."""
    narrow = Clock(Machines(0.001, up=1e6, down=1e6), size=1e6, protocol="eager")
    found = fastest_graph(narrow, 16, algorithms=["push_pull_atc", "exact_diffusion"], tries=150, weights=False)
    assert found.best.algorithm == "push_pull_atc"
    assert found.best.mixing.varies
    assert found.best.step_seconds == pytest.approx(2.002, rel=0.01)
    undirected = min(one.seconds for one in found.candidates if not one.directed)
    assert undirected > 1.2 * found.best.seconds


def test_orders_and_shifts_are_read_off_graphs():
    graphs = topologies.one_peer_exponential(11)
    assert places_of(graphs) == (list(range(11)), [1, 2, 4, 8])
    assert one_peer(range(11), [1, 2, 4, 8]) == graphs
    order = [0, 3, 1, 4, 2]
    assert places_of(one_peer(order, [1, 3])) == (order, [1, 3])

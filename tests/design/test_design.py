"""Designed weights: better by their own measure, on the edges only, optimal where the optimum is known, and kept in runs."""

import itertools
import json
import sys

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import perron
from perron.cli.main import app
from perron.design import GOALS, choose_graph, design, goals
from perron.design.effort import Effort
from perron.design.weights import Balanced, Simplex, search
from perron.errors import GraphError, MixingError, PerronError
from perron.networks import topologies
from perron.networks.spectral import decay_rate, mixing_sum
from perron.theory.matrix_node import dense

GRAPHS = {
    "grid": topologies.grid(9),
    "k_out": topologies.random_k_out(6, k=2, seed=1),
    "ring": topologies.ring(5),
}
FREE = ["fastest", "sum", "alignment", "level", "rate"]  # goals that may choose any weights on the edges


def options(goal):
    return {"step": 0.02} if goal == "level" else {}


def on_edges(matrix, graph):
    return bool(((dense(matrix) > 0) == (graph.adjacency().toarray() > 0)).all())


@pytest.fixture(scope="module")
def designs():
    """Each goal on some of the graphs, from equal weights."""
    on = {"level": ["grid", "k_out"], "rate": ["k_out", "ring"]}
    return {
        (goal, name): design(GRAPHS[name], goal=goal, starts=1, iterations=15 if goal in on else 30, **options(goal))
        for goal in FREE
        for name in on.get(goal, GRAPHS)
    }


@pytest.mark.parametrize("goal", FREE)
def test_a_goal_improves_its_own_measure(designs, goal):
    found = [one for (which, _), one in designs.items() if which == goal]
    assert all(one.after.value <= one.before.value for one in found)
    assert any(one.after.value < 0.95 * one.before.value for one in found)


@pytest.mark.slow
@pytest.mark.parametrize("goal", FREE)
def test_it_beats_random_weights_too(goal):
    start = perron.Mixing.random_integer(GRAPHS["k_out"], seed=3)
    found = design(GRAPHS["k_out"], goal=goal, start=start, starts=1, iterations=15, **options(goal))
    assert found.after.value < found.before.value
    assert found.before.network.c == pytest.approx(perron.Network(start).alignment)


def test_weights_are_on_all_edges_and_no_others_and_above_the_floor(designs):
    for (goal, name), found in designs.items():
        graph, mixing = GRAPHS[name], found.mixing
        assert on_edges(mixing.pull, graph)
        assert on_edges(mixing.push, graph)
        np.testing.assert_allclose(dense(mixing.pull).sum(1), 1, atol=1e-12)
        np.testing.assert_allclose(dense(mixing.push).sum(0), 1, atol=1e-12)
        equal = perron.Mixing.balanced(graph) if goal == "alignment" else perron.Mixing.uniform(graph)
        assert (dense(mixing.pull) >= 0.01 * dense(equal.pull) - 1e-12).all()


def test_values_are_what_spectral_says(designs):
    fastest, summed = designs["fastest", "grid"].mixing, designs["sum", "grid"].mixing
    assert designs["fastest", "grid"].after.value == max(decay_rate(fastest.pull), decay_rate(fastest.push))
    assert designs["sum", "grid"].after.value == max(mixing_sum(summed.pull).value, mixing_sum(summed.push).value)


def test_the_rate_is_the_one_of_theory_and_of_a_run(designs):
    found = designs["rate", "k_out"]
    best = perron.theory.best_lr(perron.PushPull(), found.mixing, torch.tensor([0.1, 0.3, 1.0], dtype=torch.float64))
    assert found.after.value == pytest.approx(best.rate)
    curvature = torch.tensor([0.1, 0.3, 1.0], dtype=torch.float64).expand(6, 3).contiguous()
    centers = torch.as_tensor(np.random.default_rng(0).standard_normal((6, 3)))
    problem = perron.problems.Quadratic(curvature, centers)
    history = perron.simulate(
        problem, perron.PushPull(), found.mixing, lr=best.lr, steps=120, every=1, metrics=["distance_max"]
    )
    error = history.mean("distance_max")
    assert (error[-1] / error[-61]) ** (1 / 60) == pytest.approx(best.rate, abs=0.03)


def test_nothing_worse_than_the_start_is_returned():
    graph = topologies.complete(4)
    found = design(graph, goal="sum", iterations=1, starts=1)
    assert found.after.value <= found.before.value
    np.testing.assert_allclose(dense(found.mixing.pull), 0.25, atol=1e-9)


def test_known_optimum_the_complete_graph():
    # s >= ||I - A_inf|| = sqrt(n) |pi|, which is 1 for uniform pi only, and A = A_inf adds nothing to it.
    rng = np.random.default_rng(0)
    A = rng.uniform(0.1, 1, (5, 5))
    A /= A.sum(1, keepdims=True)
    space = Simplex(np.ones((5, 5)), 0.01)
    found = search([space], [goals.summed], [[A]], lambda m: mixing_sum(m[0]).value, effort=Effort(200))
    np.testing.assert_allclose(found.matrices[0], 0.2, atol=1e-4)
    assert decay_rate(found.matrices[0]) < 1e-3


def test_known_optimum_two_nodes():
    # [[1-p, p], [q, 1-q]] has the second eigenvalue 1 - p - q.
    graph = topologies.complete(2)
    start = perron.Mixing([[0.9, 0.1], [0.2, 0.8]], [[0.9, 0.2], [0.1, 0.8]])
    found = design(graph, goal="fastest", start=start, starts=1)
    assert found.before.value == pytest.approx(0.7)
    assert found.after.value < 1e-6


def test_the_fastest_ring_is_nearly_a_path_from_a_root():
    # The eigenvalues of a directed ring solve prod(l - 1 + p_i) = prod p_i: equal weights have the modulus cos(pi/n).
    found = design(topologies.ring(5), goal="fastest", starts=2)
    assert found.before.value == pytest.approx(np.cos(np.pi / 5))
    assert found.after.value < 0.7 * found.before.value
    assert found.after.network.pull.kappa > 10


# ---- doubly stochastic, symmetric


@pytest.mark.parametrize("name", ["grid", "k_out"])
def test_balanced_weights_are_doubly_stochastic_and_faster(name):
    found = design(GRAPHS[name], goal="balanced", starts=1, iterations=60)
    W = dense(found.mixing.pull)
    np.testing.assert_allclose([W.sum(0), W.sum(1)], 1, atol=1e-9)
    np.testing.assert_array_equal(W, dense(found.mixing.push))
    assert on_edges(W, GRAPHS[name])
    assert decay_rate(W) < decay_rate(perron.Mixing.balanced(GRAPHS[name]).pull)


def test_the_residual_vanishes_in_a_run_with_aligned_weights(designs):
    problem = perron.problems.Quadratic.random(9, noise_std=1.0)

    def residual(mixing):
        history = perron.simulate(problem, perron.PushPull(), mixing, lr=0.02, steps=100, metrics=["residual_sq"])
        return history.mean("residual_sq")[-1]

    assert designs["alignment", "grid"].after.value == 0
    assert residual(designs["alignment", "grid"].mixing) < 1e-24
    assert residual(perron.Mixing.uniform(GRAPHS["grid"])) > 1e-8


def test_the_residual_is_the_one_of_a_run():
    """With hardly any curvature gradients are noise, for which the formula is exact."""
    mixing = perron.Mixing.random_integer(GRAPHS["k_out"], seed=0)
    problem = perron.problems.Quadratic(
        torch.full((6, 2), 1e-9, dtype=torch.float64), torch.zeros(6, 2).double(), noise_std=1.0
    )
    history = perron.simulate(
        problem, perron.PushPull(), mixing, lr=0.1, steps=300, every=10, trials=200, metrics=["residual_sq"]
    )
    measured = history.mean("residual_sq")[np.asarray(history.steps) >= 100].mean()
    c = perron.Network(mixing).alignment
    expected = goals.true_residual([dense(mixing.pull), dense(mixing.push)])
    assert measured / ((c * 0.1) ** 2 / 6) == pytest.approx(expected, rel=0.05)


def test_an_edge_that_no_doubly_stochastic_weights_use_is_named():
    graph = perron.Graph(3, [(0, 1), (1, 2), (2, 0), (1, 0), (0, 0)], self_loops=False)
    with pytest.raises(MixingError, match=r"edge \(\d, \d\) lies on no collection of disjoint cycles"):
        design(graph, goal="balanced")


def test_alignment_without_doubly_stochastic_weights_still_improves():
    graph = perron.Graph(4, [(0, 1), (1, 2), (2, 3), (3, 0), (1, 0), (2, 0), (0, 0)], self_loops=False)
    found = design(graph, goal="alignment", starts=2)
    assert 0 < found.after.value < found.before.value


def test_symmetric_weights_of_a_path():
    # Boyd, Diaconis, Sun & Xiao 2006: 1/2 on every link, rho_2 = cos(pi / n).
    pytest.importorskip("cvxpy")
    found = design(topologies.path(5), goal="symmetric", floor=0)
    assert found.after.value == pytest.approx(np.cos(np.pi / 5), abs=1e-6)
    assert found.mixing.is_symmetric
    assert found.mixing.is_doubly_stochastic


@pytest.mark.parametrize("graph", [topologies.ring(6).symmetric(), topologies.star(5)], ids=["cycle", "star"])
def test_symmetric_weights_of_symmetric_graphs_are_equal_on_all_links(graph):
    """By symmetry the optimum has one weight for all links; the best one is found by trying."""
    pytest.importorskip("cvxpy")
    links = graph.adjacency().toarray() - np.eye(graph.nodes)
    laplacian = np.diag(links.sum(1)) - links
    most = 1 / links.sum(1).max()
    best = min(
        np.abs(np.linalg.eigvalsh(np.eye(graph.nodes) - p * laplacian - 1 / graph.nodes)).max()
        for p in np.linspace(0, most, 20001)
    )
    found = design(graph, goal="symmetric", floor=0)
    assert found.after.value == pytest.approx(best, abs=1e-4)
    assert found.after.value <= decay_rate(perron.Mixing.metropolis(graph).pull) + 1e-9
    assert bool(found.notes) == (not perron.Mixing.uniform(graph).is_symmetric)


def test_without_cvxpy_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cvxpy", None)
    with pytest.raises(PerronError, match=r"needs cvxpy.*perron\[design\]"):
        design(topologies.path(3), goal="symmetric")


# ---- noise


def test_the_level_is_the_measured_one(designs):
    found = designs["level", "grid"]
    assert found.after.value < 0.95 * found.before.value
    curvature = torch.tensor([0.1, 0.3, 1.0], dtype=torch.float64).expand(9, 3).contiguous()
    problem = perron.problems.Quadratic(curvature, torch.zeros(9, 3).double(), noise_std=3**0.5)
    lr = 0.02 / perron.Network(found.mixing).alignment
    history = perron.simulate(
        problem, perron.PushPull(), found.mixing, lr=lr, steps=6000, every=25, trials=40, metrics=["distance_sq_local"]
    )
    late = history.values["distance_sq_local"][np.asarray(history.steps) >= 2500].mean(0)
    assert abs(late.mean() - found.after.value) < 4 * late.std(ddof=1) / 40**0.5


@pytest.mark.parametrize("metric", ["distance_sq_local", "distance_sq", "grad_norm_sq", "consensus_error_sq"])
def test_the_differentiable_level_is_that_of_theory(metric):
    mixing = perron.Mixing.random_integer(GRAPHS["k_out"], seed=0)
    curvature = torch.tensor([0.2, 1.0], dtype=torch.float64)
    dynamics = goals.Dynamics(perron.PushPull(), curvature, mixing)
    at = [torch.as_tensor(dense(m)) for m in (mixing.pull, mixing.push)]
    value = dynamics.level(0.05, metric, slowest=0.9999)(at).exp()  # so slow that there is no penalty
    assert float(value) == pytest.approx(dynamics.true_level(mixing, 0.05, metric), rel=1e-8)


def test_other_algorithms_of_the_family_and_no_others():
    found = design(
        GRAPHS["k_out"], goal="rate", algorithm=perron.PushPull(order="atc"), curvature=1.0, starts=1, iterations=20
    )
    assert found.after.value <= found.before.value
    with pytest.raises(PerronError, match="Push-Pull family"):
        design(GRAPHS["k_out"], goal="rate", algorithm=perron.ADDOPT())


# ---- a slow uplink


def test_nobody_pulls_from_a_leaf_and_the_minimiser_stays_exact():
    graph = topologies.random(8, seed=0)
    found = design(graph, goal="leaf", leaf=3, starts=1)
    mixing = found.mixing
    assert len(mixing.pull_graph.targets(3)) == 0
    assert len(mixing.push_graph.targets(3)) == 1
    assert found.after.value == 1
    assert found.before.value == 2 * graph.out_degrees[3]
    assert perron.Network(mixing).pull_perron[3] == 0
    problem = perron.problems.Quadratic.random(8, heterogeneity=2.0)
    best = perron.theory.best_lr(perron.PushPull(), mixing, problem.hessians)
    history = perron.simulate(problem, perron.PushPull(), mixing, lr=best.lr, steps=600, metrics=["distance_max"])
    assert history.mean("distance_max")[-1] < 1e-9  # of the leaf, too, and with its data


def test_a_node_that_others_depend_on_cannot_be_a_leaf():
    with pytest.raises(GraphError, match=r"needs the models of node 1.*another source"):
        design(topologies.path(3), goal="leaf", leaf=1)


# ---- graphs


def fastest_slowest_link(rates, degree):
    """By trying all subsets of the fastest links, more and more of them."""
    n = len(rates)
    links = sorted(
        ((rates[i, j], i, j) for i in range(n) for j in range(n) if i != j and rates[i, j] > 0), reverse=True
    )
    for count in range(n, len(links) + 1):
        for others in itertools.product([False, True], repeat=count - 1):
            chosen = [link for link, used in zip(links, (*others, True), strict=False) if used]
            if len(chosen) < n:
                continue
            into, out = (np.bincount([link[k] for link in chosen], minlength=n) for k in (1, 2))
            fits = max(into.max(), out.max()) <= degree and min(into.min(), out.min()) >= 1
            if fits and perron.Graph(n, [(j, i) for _, i, j in chosen]).is_strongly_connected:
                return links[count - 1][0]
    return None


@pytest.mark.parametrize(("nodes", "degree", "seed"), [(4, 1, 0), (4, 2, 1), (4, 1, 2), (5, 2, 3), (5, 2, 4)])
def test_the_slowest_link_is_as_fast_as_can_be(nodes, degree, seed):
    rates = np.random.default_rng(seed).lognormal(size=(nodes, nodes))
    chosen = choose_graph(rates, degree=degree)
    assert chosen.proven
    assert chosen.slowest == fastest_slowest_link(rates, degree)


@pytest.mark.parametrize("degree", [2, 3])
def test_a_chosen_graph_is_connected_and_within_its_degree(degree):
    rates = np.random.default_rng(degree).lognormal(size=(14, 14))
    rates[0, 3:] = np.nan
    chosen = choose_graph(rates, degree=degree, message=10.0)
    graph = chosen.graph
    assert graph.is_strongly_connected
    assert graph.has_all_self_loops
    assert max(graph.in_degrees.max(), graph.out_degrees.max()) <= degree
    assert min(rates[target, source] for source, target in graph.edges) == chosen.slowest > chosen.slowest_before
    assert chosen.seconds == 10 / chosen.slowest
    equal = perron.Mixing.uniform(graph)
    moduli = [np.sort(np.abs(np.linalg.eigvals(dense(matrix)))) for matrix in (equal.pull, equal.push)]
    assert chosen.rho_2 == pytest.approx(max(each[-2] for each in moduli), rel=1e-9)
    assert "slowest link, chosen" in str(chosen)


def test_where_deleting_links_fails_the_exact_search_finds_a_cycle():
    order = np.random.default_rng(5).permutation(9)
    rates = np.zeros((9, 9))
    rates[np.roll(order, -1), order] = 5.0  # a cycle through all, hidden among chords
    rates += np.where(np.random.default_rng(6).random((9, 9)) < 0.5, 5.0, 0.0) * (rates == 0)
    chosen = choose_graph(rates, degree=1)
    assert len(chosen.graph.edges) == 9


def test_more_links_mix_better():
    rates = np.ones((10, 10))
    assert choose_graph(rates, degree=4).rho_2 < choose_graph(rates, degree=1).rho_2


# ---- pieces


def test_derivatives_of_the_two_parametrisations():
    W = dense(perron.Mixing.balanced(GRAPHS["k_out"]).pull)
    for space in (Balanced(W, 0.1), Simplex(W, 0.1), Simplex(W, 0.1, transposed=True)):
        free = torch.tensor(np.random.default_rng(0).standard_normal(space.size), requires_grad=True)
        assert torch.autograd.gradcheck(space.matrix, (free,), atol=1e-6)
        again = space.free(space.matrix(free).detach().numpy())
        np.testing.assert_allclose(space.matrix(torch.as_tensor(again)), space.matrix(free).detach(), atol=1e-9)


def test_the_surrogate_bounds_rho_2_and_tends_to_it():
    A = torch.as_tensor(dense(perron.Mixing.random_integer(GRAPHS["grid"], seed=0).pull))
    rho = decay_rate(A.numpy())
    gaps = [float(goals.log_power_norm(goals.deviation(A), k).exp()) - rho for k in (2, 5, 8)]
    assert gaps == sorted(gaps, reverse=True)
    assert 0 < gaps[-1] < 0.02


def test_a_design_reads_as_a_table(designs):
    found = designs["sum", "grid"]
    assert [row[0] for row in found.rows()][:2] == [GOALS["sum"], "rho_2 of A"]
    assert "before" in str(found)
    assert found.evaluations > 0
    json.dumps(found.to_dict(), allow_nan=False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"goal": "best"}, "no goal 'best'.*fastest"),
        ({"floor": 1.0}, "floor is a share.*got 1"),
        ({"starts": 0}, "at least 1; got 0"),
        ({"goal": "leaf"}, "leaf=NODE.*go together"),
        ({"goal": "sum", "leaf": 1}, "go together"),
        ({"goal": "level"}, "step=.*go together"),
        ({"goal": "level", "step": 5.0}, "unstable.*smaller step"),
        ({"goal": "level", "step": -1.0}, "positive effective step; got step=-1"),
        ({"goal": "level", "step": 0.01, "metric": "loss"}, "has the metrics.*got 'loss'"),
        ({"goal": "rate", "curvature": -1.0}, "curvature is a positive number"),
        ({"push_graph": topologies.ring(4)}, "as many nodes; got 5 and 4"),
        ({"start": perron.Mixing.uniform(topologies.complete(5))}, r"start has pull\[\d, \d\] > 0.*no edge"),
        ({"goal": "symmetric"}, "undirected graph.*not its reverse"),
    ],
)
def test_errors_say_what_and_the_remedy(change, message):
    with pytest.raises(PerronError, match=message):
        design(topologies.ring(5), **({"goal": "sum"} | change))


@pytest.mark.parametrize(
    ("rates", "change", "message"),
    [
        (np.ones((2, 3)), {}, "square array.*shape"),
        ([["fast"]], {}, "array of numbers"),
        (-np.ones((3, 3)), {}, r"not negative.*rates\[0, 1\]"),
        (np.triu(np.ones((3, 3))), {}, "not strongly connected"),
        (np.ones((3, 3)), {"degree": 0}, "at least 1; got 0"),
        (np.ones((3, 3)), {"message": 0.0}, "positive size"),
        (dense(topologies.star(4).adjacency()), {"degree": 1}, "Allow a larger degree"),
    ],
)
def test_errors_of_choose_graph(rates, change, message):
    with pytest.raises(GraphError, match=message):
        choose_graph(rates, **({"degree": 2} | change))


def test_command_line(tmp_path):
    runner = CliRunner()
    out = tmp_path / "weights.npz"
    done = runner.invoke(app, ["design", "grid", "--nodes", "4", "--goal", "sum", "--starts", "1", "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert "the larger s" in done.output
    assert perron.read_mixing(out).nodes == 4
    done = runner.invoke(app, ["design", str(out), "--goal", "balanced", "--starts", "1", "--json"])
    found = json.loads(done.stdout)
    assert found["after"]["value"] == pytest.approx(found["after"]["pull"]["rho_2"])
    done = runner.invoke(app, ["design", "one_peer_exponential", "--nodes", "4"])
    assert isinstance(done.exception, PerronError)


def test_command_that_chooses_links(tmp_path):
    rates = np.full((4, 4), 5.0)
    rates[0, 1] = rates[2, 3] = 0.01
    np.savetxt(tmp_path / "rates.csv", rates, delimiter=",")
    out = tmp_path / "network.graphml"
    done = CliRunner().invoke(app, ["links", str(tmp_path / "rates.csv"), "--degree", "2", "--out", str(out)])
    assert done.exit_code == 0, done.output
    graph = perron.read_graph(out)
    assert graph.is_strongly_connected
    assert (1, 0) not in map(tuple, graph.edges.tolist())
    assert "slowest link, chosen" in done.output
    done = CliRunner().invoke(app, ["links", str(tmp_path / "none.csv")])
    assert isinstance(done.exception, PerronError)


@pytest.mark.slow
@pytest.mark.parametrize("goal", ["rate", "level"])
def test_the_unit_of_the_loss_does_not_matter(goal):
    """Losses 1e7 times as curved, steps as much smaller: the same weights, and distances 1e14 times smaller squared."""
    found = []
    for scale in (1.0, 1e7):
        options = {"step": 0.01 / scale} if goal == "level" else {}
        curvature = [0.1 * scale, scale]
        found.append(design(topologies.ring(4), goal=goal, curvature=curvature, starts=1, iterations=5, **options))
    unit = 1e14 if goal == "level" else 1.0
    for one, other in zip((found[0].before, found[0].after), (found[1].before, found[1].after), strict=True):
        assert one.value == pytest.approx(unit * other.value, rel=1e-6)
    assert found[0].after.value < found[0].before.value


def test_other_algorithms_of_the_family_and_starts_of_a_leaf():
    graph = topologies.exponential(5)
    found = design(graph, goal="rate", algorithm=perron.ConstrainedPushPull(), starts=1, iterations=5)
    assert found.after.value <= found.before.value
    trees = perron.Mixing.spanning_trees(graph)
    leaf = next(node for node in range(5) if not len(trees.pull_graph.targets(node)))
    assert design(graph, goal="leaf", leaf=leaf, start=trees, starts=1, iterations=5).before.value == 1
    with pytest.raises(PerronError, match=r"whole number.*got 1\.7"):
        design(graph, goal="leaf", leaf=1.7)
    for curvature in ((), "steep", torch.ones(5, 2, 3), torch.zeros(5, 2, 2)):
        with pytest.raises(PerronError, match="curvature is a positive number"):
            design(graph, goal="rate", curvature=curvature)


def test_what_is_not_better_is_not_returned():
    """Weights near to equal ones, which is all that a high floor leaves to choose from, are worse than a start without it."""
    graph = GRAPHS["k_out"]
    good = design(graph, goal="sum", starts=1, iterations=15)
    kept = design(graph, goal="sum", start=good.mixing, floor=0.9, starts=1, iterations=15)
    assert design(graph, goal="sum", floor=0.9, starts=1, iterations=15).after.value > 1.1 * good.after.value
    assert kept.mixing is good.mixing
    assert kept.after == kept.before
    assert kept.before.value == good.after.value
    assert kept.notes == ("nothing better than the start was found",)


def test_command_that_chooses_links_reads_files_of_links(tmp_path):
    """As ``perron launch --measure`` writes them; the access of a node counts, too."""
    rate = np.full((5, 5), 1e7)
    rate[2, 1] = 1e6
    machines = perron.Machines(0.01, rate, up=[1e9, 1e9, 1e9, 5e6, 1e9], labels=list("abcde"))
    for name in ("links.csv", "links.npz"):
        machines.write(tmp_path / name)
        command = ["links", str(tmp_path / name), "--degree", "2", "--message", "1e7", "--json"]
        done = CliRunner().invoke(app, command)
        found = json.loads(done.stdout)
        assert ["b", "c"] not in found["links"]
        assert (found["slowest_before"], found["slowest"], found["seconds"]) == (1e6, 5e6, 2.0)
    preset = CliRunner().invoke(app, ["links", "gaia"])
    assert "1.25e+08" in preset.stdout
    assert "perron design --goal time --links gaia --size BYTES" in preset.stdout
    (tmp_path / "latencies.csv").write_text("from,to,latency_ms\na,b,1\nb,a,1\n")
    done = CliRunner().invoke(app, ["links", str(tmp_path / "latencies.csv")])
    assert "link b -> a has no rate" in str(done.exception)
    assert "no file gaai, nor a preset" in str(CliRunner().invoke(app, ["links", "gaai"]).exception)


# ---- a search that ends before its time


@pytest.mark.parametrize("goal", ["sum", "rate", "alignment"])
def test_a_design_whose_time_is_up_is_not_worse_than_the_start(goal):
    found = design(topologies.grid(9), goal=goal, starts=1, seconds=1e-6)
    assert found.interrupted == "time is up"
    assert found.after.value <= found.before.value * (1 + 1e-9)
    assert found.evaluations == 0
    assert found.notes[-1] == "time is up: these are the best weights so far"


def test_an_interrupted_design_is_the_best_so_far(monkeypatch):
    """Ctrl-C in the middle of a search; what was found until then is better than the start."""
    count = 0

    def interrupted(matrices, original=goals.summed):
        nonlocal count
        count += 1
        if count == 30:
            raise KeyboardInterrupt
        return original(matrices)

    monkeypatch.setattr(goals, "summed", interrupted)
    shown = []
    found = design(topologies.grid(9), goal="sum", progress=lambda step, values: shown.append(step))
    assert (found.interrupted, found.evaluations, count) == ("interrupted", 29, 30)
    assert found.after.value < found.before.value
    assert found.to_dict()["interrupted"] is True


def test_the_time_of_a_design_is_a_positive_number():
    with pytest.raises(PerronError, match="positive number; got -1"):
        design(topologies.grid(9), seconds=-1)

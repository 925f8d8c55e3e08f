"""Networks that are drawn at random in each step."""

import numpy as np
import pytest
import torch

from perron import MixingError, PushPull, Simulation, simulate, theory
from perron.algorithms import ALGORITHMS
from perron.networks import Mixing, Network, topologies
from perron.networks.drawn import DrawnMixing
from perron.networks.repeat import repeat
from perron.networks.samplers import SAMPLERS, activation, link_failures, pairwise, spanning_trees
from perron.networks.stochastic import to_dense
from perron.problems import Quadratic
from perron.simulation import metrics
from perron.simulation.cost import bytes_per_step

DIGRAPH = topologies.random_digraph(6, seed=1)
BASE = Mixing(
    Mixing.random_integer(DIGRAPH, seed=2).pull, Mixing.random_integer(topologies.exponential(6), seed=3).push
)
UNDIRECTED = Mixing.metropolis(DIGRAPH.symmetric())
PROBLEM = Quadratic.random(6, 3, seed=1)


def network(name, **options):
    return SAMPLERS[name](UNDIRECTED if name in ("pairwise", "matching") else BASE, **options)


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_draw_is_stochastic_and_their_mean_is_the_expected_one(name):
    mixing, draws = network(name, seed=4), 3000
    total = {"pull": np.zeros((6, 6)), "push": np.zeros((6, 6))}
    for step in range(draws):
        for side, matrix in mixing.draw(step).items():
            assert (matrix >= 0).all()
            np.testing.assert_allclose(matrix.sum(1 if side == "pull" else 0), 1, atol=1e-12)
            total[side] += matrix
    for side, sum_ in total.items():  # entries are within [0, 1]: five standard errors of the largest possible variance
        mean = to_dense(mixing.expected.at(side, 0))
        bound = 5 * 0.5 / np.sqrt(draws if name not in ("matching", "spanning_trees") else 256)
        np.testing.assert_allclose(sum_ / draws, mean, atol=bound)
    links = {(i, j) for i, j in (*mixing.pull_graph.edges.tolist(), *mixing.push_graph.edges.tolist())}
    for side, sum_ in total.items():
        assert {(j, i) for i, j in zip(*np.nonzero(sum_), strict=True) if i != j} <= links, side


def test_the_expected_matrices_by_hand():
    half = activation(BASE, probability=0.5).expected
    failing = link_failures(BASE, probability=0.75).expected  # also every fourth link works
    for one in (half, failing):
        apart = ~np.eye(6, dtype=bool)
        np.testing.assert_allclose(one.pull[apart], BASE.pull[apart] / 4, atol=1e-15)
        np.testing.assert_allclose(one.push[apart], BASE.push[apart] / 4, atol=1e-15)
    pair = pairwise(Mixing.metropolis(topologies.ring(4).symmetric())).expected.pull
    np.testing.assert_allclose(pair[0], [3 / 4, 1 / 8, 0, 1 / 8])


def test_links_fail_by_their_own_probability():
    chances = np.zeros((6, 6))
    source, target = DIGRAPH.edges[0]
    chances[target, source] = 0.9
    mixing = link_failures(BASE, probability=chances, seed=1)
    worked = np.mean([mixing.pull_at(step) > 0 for step in range(2000)], axis=0)
    assert worked[target, source] == pytest.approx(0.1, abs=0.04)
    chances[target, source] = 0
    np.testing.assert_array_equal(np.delete(worked.ravel(), target * 6 + source) % 1, 0)
    with pytest.raises(MixingError, match=r"matrix of 6 x 6; got \(2, 2\)"):
        link_failures(BASE, probability=np.zeros((2, 2)))


def test_a_link_fails_for_pulls_and_pushes_alike():
    same = Mixing.random_integer(DIGRAPH, seed=1)
    mixing = link_failures(same, probability=0.5)
    for step in range(50):
        np.testing.assert_array_equal(mixing.pull_at(step) > 0, mixing.push_at(step) > 0)


def test_spanning_trees_are_uniform():
    """The complete graph of three nodes has three spanning trees with a given root."""
    mixing = spanning_trees(Mixing.uniform(topologies.complete(3)), root=1, seed=2)
    found = [tuple(np.argmax(mixing.pull_at(step), axis=1).tolist()) for step in range(3000)]
    counts = {tree: found.count(tree) for tree in set(found)}
    assert sorted(counts) == [(1, 1, 0), (1, 1, 1), (2, 1, 1)]
    assert all(abs(count - 1000) < 5 * np.sqrt(3000 * 2 / 9) for count in counts.values())


def test_draws_are_keyed_by_seed_and_step():
    one, other, third = (activation(BASE, seed=seed) for seed in (1, 1, 2))
    backwards = [one.pull_at(step) for step in reversed(range(20))][::-1]
    for step in range(20):
        np.testing.assert_array_equal(other.pull_at(step), backwards[step])
    assert any((third.pull_at(step) != backwards[step]).any() for step in range(20))
    assert one.fingerprint == other.fingerprint != third.fingerprint


@pytest.mark.parametrize("name", SAMPLERS)
def test_push_pull_reaches_the_optimum(name):
    mixing = network(name)
    slow = name in ("pairwise", "spanning_trees")
    simulation = Simulation(problem=PROBLEM, algorithm=PushPull(), mixing=mixing, lr=0.02 if slow else 0.1)
    for now in simulation.iterates(4000 if slow else 1200):
        assert simulation.algorithm.conserved(now.state, simulation.network)["1'y - 1'grad"].abs().max() < 1e-11
    assert metrics.distance_max(now)[0] < 1e-9


def test_rounds_use_consecutive_draws():
    mixing = activation(BASE, seed=3)
    twice = repeat(mixing, 2)
    np.testing.assert_allclose(twice.pull_at(5), mixing.pull_at(11) @ mixing.pull_at(10), atol=1e-15)
    plain = Simulation(problem=PROBLEM, algorithm=PushPull(), mixing=twice, lr=0.1)
    rounds = Simulation(problem=PROBLEM, algorithm=PushPull(), mixing=mixing, lr=0.1, rounds=2)
    for one, other in zip(plain.iterates(20), rounds.iterates(20), strict=True):
        torch.testing.assert_close(one.state.x, other.state.x, rtol=0, atol=1e-13)


def test_messages_are_counted_as_sent():
    mixing = link_failures(BASE, probability=0.5, seed=1)
    *_, now = Simulation(problem=PROBLEM, algorithm=PushPull(), mixing=mixing, lr=0.1).iterates(30)
    links = sum((np.count_nonzero(mixing.at(side, t)) - 6) for t in range(30) for side in ("pull", "push"))
    assert metrics.messages(now).tolist() == [links]
    mean = bytes_per_step(PushPull(), Network(mixing), dim=3, wire=8)
    assert mean == pytest.approx(0.5 * 24 * (len(BASE.pull_graph.edges) + len(BASE.push_graph.edges)), rel=0.15)


def test_a_run_resumes_bit_for_bit(tmp_path):
    options = {"lr": 0.1, "every": 10, "metrics": ["grad_norm_sq", "bytes_sent"]}
    file = tmp_path / "run.ckpt"
    simulate(PROBLEM, "push_pull", activation(BASE), steps=30, checkpoint=file, **options)
    resumed = simulate(PROBLEM, "push_pull", activation(BASE), steps=60, checkpoint=file, **options)
    whole = simulate(PROBLEM, "push_pull", activation(BASE), steps=60, **options)
    for name in whole.values:
        np.testing.assert_array_equal(resumed[name], whole[name])


def test_a_function_of_ones_own():
    ring, all_ = topologies.ring(6), topologies.complete(6)
    mixing = DrawnMixing(lambda step, random: ring if step % 2 else (all_ if random.random() < 0.5 else ring), seed=1)
    assert mixing.nodes == 6
    assert mixing.expected.pull[0, 3] == pytest.approx(1 / 24, abs=0.02)  # the complete graph in a quarter of the steps
    history = simulate(PROBLEM, "push_pull", mixing, lr=0.1, steps=800, metrics=["distance_max"])
    assert history["distance_max"][-1, 0] < 1e-9
    pairs = DrawnMixing(lambda step, _: (BASE.pull, None), name="pull only")
    assert pairs.has_pull
    assert not pairs.has_push
    with pytest.raises(MixingError, match="no push matrix"):
        pairs.push_at(0)


SPLIT = np.eye(6)
OFF = np.full((6, 6), 1 / 6)
SHIFT = np.roll(np.eye(6), 1, axis=0)


@pytest.mark.parametrize(
    ("draw", "words"),
    [
        (lambda step, _: (SPLIT, SPLIT), "not strongly connected"),
        (lambda step, _: (OFF * (2 if step == 7 else 1), OFF), "row 0 sums to 2"),
        (lambda step, _: (SHIFT, SHIFT), "pull, step 0: a matrix that is drawn needs a positive diagonal; node 0"),
        (lambda step, _: OFF, r"step 0: .* a pair \(pull, push\)"),
        (lambda step, _: (None, None), r"step 0: .* a pair \(pull, push\)"),
        (lambda step, _: (OFF, OFF[:3, :3]), "as many nodes"),
        (BASE, r"a function of \(step, random\)"),
    ],
)
def test_functions_that_are_refused(draw, words):
    with pytest.raises(MixingError, match=words):
        DrawnMixing(draw)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: pairwise(BASE), r"undirected graph.*graph\.symmetric\(\)"),
        (lambda: activation(BASE, probability=0), "above 0 and at most 1; got 0"),
        (lambda: link_failures(BASE, probability=1.0), "at least 0 and below 1"),
        (lambda: link_failures(Mixing.uniform(topologies.one_peer_exponential(4))), "varies in time"),
        (lambda: spanning_trees(Mixing.spanning_trees(DIGRAPH, root=0), root=3), "root=3"),
        (lambda: activation(BASE).pull, r"ask for pull_at\(step\)"),
        (lambda: theory.stable_lr(PushPull(), activation(BASE), PROBLEM), "no fixed matrices"),
    ],
)
def test_what_is_refused(make, words):
    with pytest.raises(MixingError, match=words):
        make()


@pytest.mark.filterwarnings("ignore:.*(on this network disagreement grows|divides by diag)")
def test_methods_that_need_fixed_weights_say_so():
    varying = link_failures(Mixing.random_integer(DIGRAPH.with_self_loops(), seed=1))
    for name in ("frost", "pull_diag_gt", "frozen", "d_dngt", "row_extra", "extra_push", "dextra"):
        with pytest.warns(UserWarning, match="needs weights that do not change, and .* varies in time"):
            ALGORITHMS[name].check(Network(varying))
    for name in ("push_pull", "push_diging", "sgp"):
        ALGORITHMS[name].check(Network(varying))
    same = pairwise(UNDIRECTED)  # doubly stochastic: one Perron vector at all times
    ALGORITHMS["frost"].check(Network(same))
    with pytest.warns(UserWarning, match="EXTRA needs weights that do not change"):
        ALGORITHMS["extra"].check(Network(same))


def test_frost_settles_elsewhere_and_push_pull_does_not():
    """What the warning says, seen."""
    varying = link_failures(Mixing.random_integer(DIGRAPH.with_self_loops(), seed=1), probability=0.3)
    with pytest.warns(UserWarning, match="weights that do not change"):
        frost = simulate(PROBLEM, "frost", varying, steps=1500, lr=0.01, metrics=["distance_max"])
    other = simulate(PROBLEM, "push_pull", varying, steps=1500, lr=0.06, metrics=["distance_max"])
    assert frost["distance_max"][-1, 0] > 1e-2
    assert other["distance_max"][-1, 0] < 1e-10

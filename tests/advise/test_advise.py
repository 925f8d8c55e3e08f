"""The adviser: its numbers against theory and the simulator, its choice, its words, and bad input."""

import json
import warnings

import networkx as nx
import numpy as np
import pytest
from typer.testing import CliRunner

from perron import ALGORITHMS, Mixing, Network, PushPull, simulate, theory, write_mixing
from perron.advise import Needs, advise
from perron.cli.main import app
from perron.errors import PerronError
from perron.networks import topologies
from perron.networks.spectral import decay_rate
from perron.problems import Logistic, Quadratic

FOUR = Mixing.random_integer(topologies.exponential(4), seed=0)


def fit(advice, name):
    return next(one for one in advice.assessments if one.name == name)


def test_numbers_are_those_of_theory():
    needs = Needs(smoothness=2.0, noise_var=3.0, gap=0.5, steps=20_000, dim=100)
    advice = advise(FOUR, needs)
    for one in advice.assessments:
        if one.family == "tree":
            continue
        assert one.stable.upper == pytest.approx(theory.stable_lr(ALGORITHMS[one.name], FOUR, 2.0).upper)
        assert one.step == pytest.approx(one.lr * ALGORITHMS[one.name].effective_step(Network(FOUR)))
        assert one.lr <= one.stable.upper / 2 + 1e-12
        assert 0 < one.speedup <= 4.001
        assert one.transient == pytest.approx(
            2 * 4 * 0.5 / (min(one.stable.upper / 2 * one.step / one.lr, 0.5) ** 2 * 2 * 3)
        )
    # One coordinate of curvature L with all the noise in it: the level that is predicted is that of such a problem.
    problem = Quadratic(2.0 * np_ones(4), 0 * np_ones(4)[:, :, 0], noise_std=3**0.5)
    chosen = advice.chosen
    history = simulate(
        problem, ALGORITHMS[chosen.name], FOUR, lr=chosen.lr, steps=1500, every=10, trials=100,
        metrics=["grad_norm_sq", "distance_sq_local"], progress=False,
    )  # fmt: skip
    measured, error = history.tail("grad_norm_sq", 0.6)
    assert chosen.level == pytest.approx(measured, abs=4 * error)
    measured, error = history.tail("distance_sq_local", 0.6)
    assert chosen.level_local == pytest.approx(4 * measured, abs=16 * error)


def np_ones(nodes):
    import torch

    return torch.ones(nodes, 1, 1, dtype=torch.float64)


@pytest.mark.parametrize("name", ["push_pull", "add_opt", "frost", "stpp"])
def test_bytes_are_those_that_the_simulator_counts(name):
    advice = advise(FOUR, Needs(dim=37, wire=8), algorithms=[name])
    mixing = Mixing.spanning_trees(topologies.exponential(4)) if name == "stpp" else FOUR
    problem = Quadratic.random(4, 37)
    history = simulate(
        problem, ALGORITHMS[name], mixing, lr=0.001, steps=2, metrics=["bytes_sent"], every=1, progress=False
    )
    sent = history.mean("bytes_sent")
    assert advice.assessments[0].bytes_per_step == sent[2] - sent[1]


def test_push_pull_is_chosen_unless_another_is_clearly_better():
    assert advise(FOUR, Needs(steps=100_000)).chosen.name == "push_pull"
    ring = advise(Mixing.random_integer(topologies.ring(10), seed=0), Needs(steps=5_000))
    assert ring.chosen.name == "stpp"  # it bears far larger steps
    assert fit(ring, "stpp").error < 0.8 * fit(ring, "push_pull").error
    assert any("push-pull has a bound" in line and "times the step" in line for line in ring.words)
    # The longer one trains, the less the network matters.
    later = advise(Mixing.random_integer(topologies.ring(10), seed=0), Needs(steps=10_000_000))
    assert later.chosen.name == "push_pull"
    assert later.chosen.speedup == pytest.approx(10, rel=0.01)


def test_pull_only_methods_that_start_wildly_are_not_chosen():
    """On a ring with light self-loops diag(A^t) is tiny at first: FROST blows up before it converges, and is not advised."""
    n = 8
    A = 0.1 * np.eye(n) + 0.9 * np.roll(np.eye(n), 1, axis=0)
    advice = advise(Mixing(A, A), algorithms=["frost", "push_pull"])
    assert "wild start" in fit(advice, "frost").remark
    assert advice.chosen.name == "push_pull"
    problem = Quadratic.random(n, 2, seed=1)
    with pytest.warns(UserWarning, match="falls to 8e-07 of its limit"):
        run = simulate(
            problem, ALGORITHMS["frost"], Mixing(A, A), lr=fit(advice, "frost").lr, steps=60, every=1, progress=False
        )
    curve = run.mean("grad_norm_sq")
    assert curve.max() > 1e3 * curve[0]
    assert "wild" not in fit(advise(FOUR, algorithms=["frost"]), "frost").remark


def test_what_starts_too_wildly_for_double_precision_warns():
    """FROST ends 2e-8 off on the first network, 0.8 off on the second; gossip 1e-13 there, and 6e-6 on the third."""
    calm, wild, wilder = (
        Network(Mixing.random_integer(topologies.ring(n), seed=seed)) for n, seed in ((14, 3), (16, 3), (16, 0))
    )
    for network, name in ((calm, "frost"), (calm, "pull_diag"), (wild, "pull_diag"), (wild, "push_pull")):
        ALGORITHMS[name].check(network)  # a warning would be an error
    with pytest.warns(
        UserWarning, match=r"FROST divides by diag\(A\^t\).*falls to 2e-05.*orders of magnitude.*Mixing.lazy"
    ):
        ALGORITHMS["frost"].check(wild)
    with pytest.warns(UserWarning, match=r"Pull-Diag gossip divides.*falls to 9e-13.*rounding errors grow by as much"):
        ALGORITHMS["pull_diag"].check(wilder)


def test_a_family_has_a_best_size(monkeypatch):
    def ring(nodes):
        return Mixing.random_integer(topologies.ring(nodes), seed=0)

    monkeypatch.setattr("perron.advise.adviser.EXACT_UP_TO", 16)
    advice = advise(ring(9), Needs(steps=1_000), algorithms=["push_pull"], family=ring)
    errors = {}
    for nodes in (1, 2, 4, 8, 9, 16):  # 2 Delta / (eta T) + eta L sigma^2 / n, with L = sigma^2 = Delta = 1
        cap = 1.0
        if nodes > 1:
            stable = theory.stable_lr(ALGORITHMS["push_pull"], ring(nodes), 1.0)
            cap = min(cap, stable.upper / 2 * Network(ring(nodes)).alignment)
        eta = min(cap, (2 * nodes / 1_000) ** 0.5)
        errors[nodes] = 2 / (eta * 1_000) + eta / nodes
    assert dict(advice.family) == pytest.approx(errors)
    assert advice.crossover == min(errors, key=lambda nodes: errors[nodes])
    assert 1 < advice.crossover < 16
    assert any(f"{advice.crossover} nodes do best" in line for line in advice.words)


def test_what_cannot_be_used_says_why():
    only = Mixing(push=FOUR.push)
    advice = advise(only)
    assert "row-stochastic pull matrix" in fit(advice, "push_pull").refusal
    assert advice.chosen.family == "push-only"
    assert any("column-stochastic push only" in line for line in advice.words)
    rooted = advise(Mixing.spanning_trees(topologies.exponential(4)))
    assert not fit(rooted, "add_opt").works
    assert rooted.chosen is not None
    assert "doubly stochastic" in advise(Mixing.metropolis(topologies.exponential(4).symmetric())).words[0]


def test_constants_are_checked():
    with pytest.raises(PerronError, match="smoothness must be a positive number; got 0"):
        Needs(smoothness=0)
    with pytest.raises(PerronError, match="noise_var must be a number that is not negative; got -1"):
        Needs(noise_var=-1)
    for bad in ({"wire": 0}, {"dim": 2.5}, {"steps": float("inf")}, {"smoothness": float("nan")}):
        with pytest.raises(PerronError, match=r"must be|whole number"):
            Needs(**bad)
    with pytest.raises(PerronError, match="no algorithm 'adam'"):
        advise(FOUR, algorithms=["adam"])
    with pytest.raises(PerronError, match="minimises nothing"):
        advise(FOUR, algorithms=["push_sum"])
    assert any("nothing to average" in line for line in advise(FOUR, Needs(noise_var=0.0)).words)


def test_large_and_time_varying_networks():
    advice = advise(Mixing.uniform(topologies.exponential(64)), algorithms=["push_pull", "stpp"])
    assert not advice.chosen.exact
    assert advice.chosen.level_local is None
    assert any("the tested default rule" in line for line in advice.words)
    mixing = Mixing.uniform(topologies.one_peer_exponential(8))
    varying = advise(mixing, Needs(dim=37, wire=8), algorithms=["push_pull", "stpp"])
    assert "varies in time" in fit(varying, "stpp").refusal
    assert any("varies in time" in line for line in varying.words)
    history = simulate(
        Quadratic.random(8, 37), PushPull(), mixing, lr=0.01, steps=3, metrics=["bytes_sent"], every=1, progress=False
    )
    assert varying.chosen.bytes_per_step == pytest.approx(float(history.mean("bytes_sent")[3]) / 3)


def test_methods_without_a_bound_are_shown_but_not_preferred():
    advice = advise(FOUR, algorithms=["push_pull", "sgp", "focus_sampled", "centralized"])
    assert fit(advice, "sgp").error is fit(advice, "focus_sampled").error is None
    assert "biased" in fit(advice, "sgp").remark
    assert "at random" in fit(advice, "focus_sampled").remark
    assert fit(advice, "centralized").bytes_per_step == 2 * 3  # vectors of a ring all-reduce
    assert advise(FOUR, algorithms=["sgp", "push_pull"]).chosen.name == "push_pull"
    assert advise(FOUR, algorithms="sgp").chosen.name == "sgp"


def test_one_node_and_no_noise():
    one = advise(Mixing.uniform(topologies.complete(1)), algorithms=["push_pull"])
    assert one.chosen.lr > 0
    assert not any("nodes do what one does" in line for line in one.words)
    quiet = advise(Network(FOUR), Needs(noise_var=0.0), labels=list("abcd"))
    assert quiet.chosen.transient == np.inf
    json.dumps(quiet.to_dict(), allow_nan=False)
    with pytest.raises(PerronError, match="4 nodes need as many labels; got 1"):
        advise(FOUR, labels=["a"])


def test_slow_rings_have_a_step_too():
    ring = Mixing.uniform(topologies.ring(32))
    advice = advise(ring, algorithms=["push_pull"])
    assert 0 < advice.chosen.stable.upper < 1e-3
    assert theory.rate(PushPull(), ring, 0.9 * advice.chosen.stable.upper, 1.0) < 1


def test_what_limits_a_network_is_tried_out():
    """The change that is promised is what really comes out; where several modes are equally slow, none is promised."""
    advice = advise(FOUR, algorithms=["push_pull"])
    limit = next(one for one in advice.limits if one.side == "pull" and one.what == "rho_2")
    moved = np.array(FOUR.pull)
    weight = moved[limit.target, limit.source]
    moved[limit.target, limit.source] += 0.1 if limit.slope < 0 else -min(0.1, weight / 2)
    assert limit.moved == pytest.approx(decay_rate(moved / moved.sum(1, keepdims=True)))
    tied = advise(Mixing.uniform(topologies.exponential(4)), algorithms=["push_pull"])
    assert not any(limit.what == "rho_2" for limit in tied.limits)


@pytest.mark.slow
def test_the_recommended_step_works_on_logistic_regression():
    problem = Logistic.synthetic(4, samples=4000, batch=20)
    needs = Needs(smoothness=problem.smoothness, noise_var=0.1, gap=0.3, steps=500)
    for one in advise(FOUR, needs).assessments:
        mixing = Mixing.spanning_trees(topologies.exponential(4)) if one.name == "stpp" else FOUR
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # divergence warns
            history = simulate(problem, ALGORITHMS[one.name], mixing, lr=one.lr, steps=500, trials=2, progress=False)
        curve = history.mean("grad_norm_sq")
        assert curve[-1] < 0.2 * curve[0]


# ---- the command line


def run(*arguments, code=0):
    result = CliRunner().invoke(app, ["advise", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result.stdout if not code else str(result.exception)


def test_command_on_a_topology_and_as_json(monkeypatch):
    monkeypatch.setattr("perron.advise.adviser.EXACT_UP_TO", 9)  # to look at few sizes
    text = run("exponential", "--nodes", "4", "--algorithm", "push_pull", "--algorithm", "frost", "--dim", 10)
    assert "push_pull" in text
    assert "Take lr" in text
    told = json.loads(run("exponential", "--nodes", "4", "--json", "--algorithm", "push_pull", "--steps", 500))
    assert told["chosen"] == "push_pull"
    assert told["needs"]["steps"] == 500
    assert told["family"][0]["nodes"] == 1
    assert told["limits"][0]["what"] == "rho_2"


def test_command_on_files(tmp_path):
    graph = nx.DiGraph()
    nx.add_cycle(graph, ["oslo", "bergen", "tromso", "bodo"])
    graph.add_edge("oslo", "tromso")
    nx.write_graphml(graph, tmp_path / "sites.graphml")
    text = run(tmp_path / "sites.graphml", "--algorithm", "push_pull", "--smoothness", 4, "--noise", 2)
    assert "L = 4, sigma^2 = 4" in text
    assert "4 nodes" in text
    assert "oslo" in text or "bergen" in text or "tromso" in text or "bodo" in text  # what limits it, by name
    np.savetxt(tmp_path / "A.csv", np.array([[0.5, 0.5, 0], [0, 0.5, 0.5], [0.5, 0, 0.5]]), delimiter=",")
    np.savetxt(tmp_path / "B.csv", np.array([[0.5, 0.5, 0], [0, 0.5, 0.5], [0.5, 0, 0.5]]), delimiter=",")
    assert "valid" in run(tmp_path / "A.csv", "--push", tmp_path / "B.csv", "--algorithm", "push_pull")
    write_mixing(FOUR, tmp_path / "both.npz")
    assert json.loads(run(tmp_path / "both.npz", "--json", "--algorithm", "push_pull"))["network"]["nodes"] == 4


def test_command_takes_constants_from_a_problem():
    told = json.loads(
        run("ring", "--nodes", 3, "--problem", "quadratic", "--algorithm", "push_pull", "--json", "--gap", 2)
    )
    assert told["needs"]["smoothness"] == pytest.approx(1.0)
    assert told["needs"]["gap"] == 2
    assert told["needs"]["noise_var"] == 0
    assert any("quadratic: L = 1" in line for line in told["notes"])


def test_command_on_bad_files(tmp_path):
    parted = nx.DiGraph([("a", "b"), ("b", "a"), ("c", "d"), ("d", "c")])
    nx.write_graphml(parted, tmp_path / "parted.graphml")
    assert "connected" in run(tmp_path / "parted.graphml", code=1)
    np.savetxt(tmp_path / "A.csv", np.array([[0.5, 0.5], [0.5, 0.5]]), delimiter=",")
    np.savetxt(tmp_path / "B.csv", np.array([[0.9, 0.5], [0.5, 0.5]]), delimiter=",")
    assert "sums to 1.4" in run(tmp_path / "A.csv", "--push", tmp_path / "B.csv", code=1)
    (tmp_path / "broken.graphml").write_text("<graphml><graph>")
    assert "broken.graphml" in run(tmp_path / "broken.graphml", code=1)
    assert "nowhere.csv" in run(tmp_path / "nowhere.csv", code=1)
    (tmp_path / "words.csv").write_text("a,b\nc,d\n")
    assert "words.csv" in run(tmp_path / "words.csv", code=1)
    assert "did you mean 'ring'" in run("rign", code=1)
    assert "There is no problem" in run("ring", "--nodes", 4, "--problem", "chess", code=1)
    for noise in (-1, "nan", "inf", 1e200):
        assert "standard deviation" in run("ring", "--nodes", 4, "--noise", noise, code=1)
    assert "gap must be a positive number" in run("ring", "--nodes", 4, "--gap", 1e308, code=1)


def test_printing_it_gives_a_table():
    text = str(advise(FOUR, algorithms=["push_pull", "dsgd"]))
    assert "push_pull" in text
    assert "D-SGD" in text.replace("\n", " ")
    assert PushPull().about.title in text

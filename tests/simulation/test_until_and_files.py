"""Runs that end when they are good enough, what they have spent, and histories in files and notebooks."""

import json
from xml.etree import ElementTree

import numpy as np
import pytest

from perron import History, Mixing, PushPull, simulate, topologies
from perron._storage import npz
from perron.algorithms.federated import FOCUS
from perron.errors import FileError, FormatError, PerronError
from perron.problems import Quadratic

GRAPH = topologies.exponential(8)
MIXING = Mixing.random_integer(GRAPH, seed=0)
PROBLEM = Quadratic.random(8, 3, seed=1)
NOISY = Quadratic.random(8, 3, seed=1, noise_std=0.1)


def run(problem=PROBLEM, **options):
    return simulate(problem, PushPull(), MIXING, **({"lr": 0.1, "steps": 2000, "every": 10} | options))


# ---- until


def test_a_run_ends_at_the_first_record_that_is_good_enough():
    whole, short = run(), run(until={"grad_norm_sq": 1e-8})
    first = int(np.argmax(whole.mean("grad_norm_sq") <= 1e-8))
    assert 0 < first < len(whole.steps) - 1
    assert short.steps.tolist() == whole.steps[: first + 1].tolist()
    assert np.array_equal(short["grad_norm_sq"], whole["grad_norm_sq"][: first + 1])
    assert (short.about["steps"], short.about["until"]) == (2000, {"grad_norm_sq": 1e-8})
    assert not short.interrupted


def test_all_goals_have_to_be_reached_by_the_mean_over_trials():
    goals = {"grad_norm_sq": 1e-3, "distance_sq": 1e-4}  # the second is measured although no metric names it
    found = run(NOISY, until=goals, trials=4, every=1)
    means = {name: found.mean(name) for name in goals}
    both = np.all([means[name] <= goals[name] for name in goals], axis=0)
    assert both[-1]
    assert not both[:-1].any()
    assert (means["grad_norm_sq"][:-1] <= 1e-3).any()  # one alone did not end it


def test_accuracies_have_to_grow():
    def share_accuracy(now):
        return 1 - 1 / (1 + now.step) + 0 * now.state.x[:, 0, 0]

    assert run(metrics=[share_accuracy], until={"share_accuracy": 0.95}).steps[-1] == 20


def test_a_goal_reached_at_the_start_needs_no_step_and_an_unreached_one_all():
    assert run(until={"loss": 1e9}).steps.tolist() == [0]
    assert run(until={"loss": -1e9}, steps=30).steps[-1] == 30


def test_final_metrics_are_measured_where_a_run_ends():
    found = run(metrics=["loss"], final_metrics=["distance_sq"], until={"grad_norm_sq": 1e-8})
    assert np.isnan(found["distance_sq"][:-1]).all()
    assert 0 < found["distance_sq"][-1, 0] < 1e-6


def test_a_run_that_has_reached_its_goal_stays_there_when_resumed(tmp_path):
    options = {"until": {"grad_norm_sq": 1e-8}, "checkpoint": tmp_path / "run"}
    first, again = run(**options), run(**options)
    assert np.array_equal(first.steps, again.steps)
    stricter = run(until={"grad_norm_sq": 1e-12}, checkpoint=tmp_path / "run")
    straight = run(until={"grad_norm_sq": 1e-12})
    assert np.array_equal(stricter["grad_norm_sq"], straight["grad_norm_sq"])
    assert np.array_equal(stricter.costs["bytes"], straight.costs["bytes"])


@pytest.mark.parametrize("until", [1e-8, {"loss": "small"}, {"loss": float("nan")}, {"loss": True}, {3: 1.0}])
def test_goals_are_numbers_of_metrics(until):
    with pytest.raises(PerronError, match="until is a table of metrics and values"):
        run(until=until)


def test_goals_of_unknown_metrics_are_refused():
    with pytest.raises(PerronError, match="did you mean 'grad_norm_sq'"):
        run(until={"grad_norm": 1e-8})


# ---- costs


def test_costs_count_gradients_and_bytes_as_sent():
    plain, short, scaled = (run(steps=40, wire=wire) for wire in (None, "bf16", "int8"))
    local = simulate(PROBLEM, FOCUS(local_steps=3), MIXING, lr=0.01, steps=40, every=10)
    assert plain.costs["gradients"].tolist() == plain.steps.tolist()
    assert local.costs["gradients"].tolist() == (3 * local.steps).tolist()
    links = len(MIXING.pull_graph.edges) + len(MIXING.push_graph.edges)
    assert plain.costs["bytes"].tolist() == (plain.steps * links * 3 * 8).tolist()  # x and y, three float64 each
    # A message ends with 8 bytes that identify it, and int8 has a scale of 2 bytes.
    for history, size in ((short, 3 * 2 + 8), (scaled, 3 * 1 + 2 + 8)):
        assert history.costs["bytes"].tolist() == (history.steps * links * size).tolist()


# ---- files and notebooks


def test_a_history_is_read_as_it_was_written(tmp_path):
    history = run(NOISY, steps=40, trials=3)
    read = History.load(history.save(tmp_path / "run.npz"))
    for name in ("steps", "trials"):
        assert np.array_equal(getattr(read, name), getattr(history, name))
    for kind in ("values", "costs"):
        one, other = getattr(read, kind), getattr(history, kind)
        assert list(one) == list(other)
        assert all(np.array_equal(one[name], other[name]) for name in one)
    assert (read.about, read.interrupted) == (history.about, False)
    assert repr(read) == repr(history)


def test_files_that_hold_no_history_are_refused(tmp_path):
    path = run(steps=10).save(tmp_path / "run.npz")
    arrays = npz.read(path)
    header = json.loads(str(arrays["perron_history"]))

    def changed(**changes):
        content = arrays | {"perron_history": np.array(json.dumps(header | changes.pop("header", {})))} | changes
        (tmp_path / "other.npz").write_bytes(npz.pack(content))
        return tmp_path / "other.npz"

    with pytest.raises(FormatError, match="has format 2; this version of perron reads 1"):
        History.load(changed(header={"format": 2}))
    with pytest.raises(FileError, match="shape"):
        History.load(changed(values_0=np.zeros((1, 1))))
    with pytest.raises(FileError, match="damaged"):
        History.load(changed(header={"values": ["a", "b", "c", "d"]}))
    np.savez(tmp_path / "plain.npz", a=np.zeros(3))
    with pytest.raises(FileError, match="holds no history"):
        History.load(tmp_path / "plain.npz")
    np.savez(tmp_path / "pickled.npz", perron_history=np.array({"format": 1}, dtype=object))
    with pytest.raises(FileError):
        History.load(tmp_path / "pickled.npz")
    with pytest.raises(FileError, match=r"\.npz file; got"):
        run(steps=10).save(tmp_path / "run.csv")


def test_histories_are_short_in_a_terminal_and_drawn_in_a_notebook():
    history = run(steps=100, trials=2)
    assert repr(history).startswith("<History of Push-Pull")
    assert "100 steps, 11 records, 2 trials, grad_norm_sq" in repr(history)
    assert len(repr(history)) < 200
    page = history._repr_html_()
    ElementTree.fromstring(page[page.index("<svg") : page.index("</svg>") + 6])  # noqa: S314 - our own
    assert "<td>lr</td><td>0.1</td>" in page
    named = History(history.steps, history.values, history.trials, {"algorithm": "<b>mine"})
    assert "<b>mine" not in named._repr_html_()

"""Simulations with a clock: values stay what they are, and seconds are recorded, saved, resumed and drawn."""

import numpy as np
import pytest
import torch
from scipy.sparse import coo_array, csr_array

import perron
from perron import Clock, History, Machines, Mixing, simulate, topologies
from perron.clock import Distribution
from perron.errors import PerronError
from perron.problems import LinearModel, Logistic, Quadratic
from perron.simulation import Simulation, Snapshot
from perron.simulation.running import Running

MIXING = Mixing.random_integer(topologies.exponential(6), seed=0)
NOISY = Quadratic.random(6, noise_std=0.1)
EQUAL = Machines(latency=0.05, rate=1e6)
UNEQUAL = Machines(latency=lambda sources, targets: 0.01 + 0.003 * ((7 * sources + targets) % 5), rate=1e6)
RANDOM = Clock(UNEQUAL, compute="exponential(0.1)", size=1e5)


def run(clock=None, algorithm="push_pull", problem=NOISY, **options):
    given = {"steps": 40, "every": 10, "trials": 3, "seed": 4} | options
    return simulate(problem, algorithm, MIXING, clock=clock, **given)


# ---- values


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"wire": "int8"},
        {"rounds": 2},
        {"algorithm": "robust_push_pull", "loss": 0.2, "delay": 2},
        {"algorithm": "push_pull_pu"},
        {"algorithm": "centralized"},
        {"problem": Logistic.synthetic(6, samples=60, dim=3, batch=2)},
        {"algorithm": "push_saga", "problem": LinearModel.from_data(6, kind="ridge", data="synthetic", batch=1)},
    ],
    ids=["plain", "int8", "rounds", "lossy", "two batches", "centralized", "minibatches", "samples"],
)
@pytest.mark.parametrize(
    "clock",
    [RANDOM, Clock(EQUAL, compute=0.1, protocol="eager"), Clock(UNEQUAL, ahead=2)],
    ids=["random", "eager", "ahead"],
)
def test_a_clock_changes_no_values(options, clock):
    plain, timed = run(**options), run(clock, **options)
    assert plain.seconds is None
    assert plain.seconds_first is None
    assert "seconds" not in plain.frame()
    assert plain.values.keys() == timed.values.keys()
    for metric, values in plain.values.items():
        assert np.array_equal(values, timed[metric], equal_nan=True)
    assert all(np.array_equal(spent, timed.costs[name]) for name, spent in plain.costs.items())
    assert timed.seconds.shape == timed.seconds_first.shape == (5, 3)
    assert (np.diff(timed.seconds, axis=0) > 0).all()
    assert (timed.seconds_first <= timed.seconds).all()
    assert (timed.seconds[0] == 0).all()


def test_equal_machines_have_the_seconds_of_the_closed_form():
    """Push-Pull sends two vectors along each link while it computes: max(compute, latency + 2 size / rate)."""
    ring, problem = Mixing.uniform(topologies.ring(6)), Quadratic.random(6)
    found = simulate(
        problem, "push_pull", ring, steps=8, every=1, clock=Clock(EQUAL, compute=0.1, size=1e5, protocol="eager")
    )
    assert np.allclose(found.seconds[:, 0], 0.25 * np.arange(9))  # 0.05 + 2 * 0.1
    slow = simulate(
        problem, "push_pull", ring, steps=8, every=1, clock=Clock(EQUAL, compute=1.0, size=1e5, protocol="eager")
    )
    assert np.allclose(slow.seconds[:, 0], 1.0 * np.arange(9))


@pytest.mark.parametrize(
    ("options", "size"),
    [
        ({}, 8 * NOISY.dim),
        ({"dtype": torch.float32}, 4 * NOISY.dim),
        ({"wire": "bf16"}, 2 * NOISY.dim + 8),
        ({"wire": "int8"}, NOISY.dim + 2 + 8),
    ],
)
def test_messages_have_the_size_that_is_counted(options, size):
    """On one link at a time, without latency, a step takes as long as its bytes on a link, which the simulator counts."""
    clock = Clock(Machines(rate=1000.0), protocol="eager")
    running = Running(Simulation(problem=NOISY, algorithm="dsgd_atc", mixing="ring", clock=clock, **options))
    running.advance()
    first = running.traffic.pull_bytes  # in full precision
    running.advance()
    assert running.traffic.pull_bytes - first == size
    assert running.snapshot().seconds.item() == pytest.approx(2 * size / 1000)


def test_the_size_may_be_that_of_another_model():
    small, large = (run(Clock(EQUAL, size=size), steps=10) for size in (None, 1e7))
    assert large.seconds[-1, 0] > 100 * small.seconds[-1, 0]
    assert np.array_equal(small["grad_norm_sq"], large["grad_norm_sq"])


# ---- trials, saving and resuming


def test_a_trial_does_not_depend_on_the_others():
    together = run(RANDOM, trials=5)
    alone = run(RANDOM, trials=[3])
    assert np.array_equal(together.seconds[:, 3], alone.seconds[:, 0])
    assert np.array_equal(together.seconds_first[:, 3], alone.seconds_first[:, 0])
    assert len(np.unique(together.seconds[-1])) == 5
    assert not np.array_equal(run(RANDOM, seed=5).seconds, run(RANDOM).seconds)


@pytest.mark.parametrize(
    "clock", [RANDOM, Clock(UNEQUAL, ahead=2), Clock(UNEQUAL, protocol="eager", compute=[0.1, 0.2, 0.1, 0.1, 0.3, 0.1])]
)
def test_resumed_runs_have_the_same_seconds(clock, tmp_path):
    straight = run(clock, metrics=["seconds", "seconds_spread"])
    file = tmp_path / "run"
    run(clock, metrics=["seconds", "seconds_spread"], steps=20, checkpoint=file)
    resumed = run(clock, metrics=["seconds", "seconds_spread"], checkpoint=file)
    assert resumed.steps.tolist() == straight.steps.tolist()
    for name in ("seconds", "seconds_first"):
        assert np.array_equal(getattr(resumed, name), getattr(straight, name))
    assert np.array_equal(resumed["seconds"], straight.seconds)
    assert np.array_equal(resumed["seconds_spread"], straight.seconds - straight.seconds_first)


@pytest.mark.parametrize(
    "other",
    [
        None,
        RANDOM.changed(compute="exponential(0.2)"),
        RANDOM.changed(size=2e5),
        RANDOM.changed(ahead=1),
        RANDOM.changed(protocol="eager"),
        RANDOM.changed(machines=UNEQUAL.changed(up=1e6)),
        RANDOM.changed(machines=UNEQUAL.changed(latency=lambda sources, targets: 0.01 + 0.0 * sources * targets)),
        RANDOM.changed(overhead=0.1),
    ],
)
def test_a_run_is_not_resumed_with_another_clock(other, tmp_path):
    run(RANDOM, steps=20, checkpoint=tmp_path / "run")
    with pytest.raises(PerronError, match="differs in clock"):
        run(other, checkpoint=tmp_path / "run")


def test_a_run_without_a_clock_is_not_resumed_with_one(tmp_path):
    run(steps=20, checkpoint=tmp_path / "run")
    with pytest.raises(PerronError, match="differs in clock"):
        run(RANDOM, checkpoint=tmp_path / "run")
    assert run(checkpoint=tmp_path / "run").seconds is None


def test_the_fingerprint_is_that_of_the_numbers():
    latency = np.full((6, 6), 0.01)
    one, same = (Clock(Machines(latency=latency.copy(), labels=names)) for names in (None, "abcdef"))
    assert one.fingerprint(6) == same.fingerprint(6)
    latency[0, 3] = 0.02
    assert Clock(Machines(latency=latency)).fingerprint(6) != one.fingerprint(6)


def test_equal_numbers_have_equal_fingerprints_and_others_have_not():
    def of(latency=0.01, rate=np.inf, up=np.inf, compute=1, size=2, **options):
        return Clock(Machines(latency, rate, up=up), compute=compute, size=size, **options).fingerprint(6)

    same = of(up=3, overhead=1, order=[0, 1, 2, 3, 5, 4], hub=1, ahead=1)
    for kind in (float, np.float64, np.int64, np.array):
        order, whole = np.array([0, 1, 2, 3, 5, 4]), int if kind is float else np.int64
        assert same == of(
            up=kind(3), compute=kind(1), size=kind(2), overhead=kind(1), order=order, hub=whole(1), ahead=whole(1)
        )
    assert of(compute=Distribution("exponential", (1,))) == of(compute="exponential(1.0)")
    random = np.random.default_rng(0).uniform(1, 2, (6, 6))
    sparse = csr_array(np.where(np.eye(6), 0.0, random))
    rows, columns = sparse.tocoo().coords
    shuffled = np.random.default_rng(1).permutation(sparse.nnz)
    again = coo_array((sparse.data[shuffled], (rows[shuffled], columns[shuffled])), shape=(6, 6))
    assert of(sparse) == of(again)
    changed = [np.where((np.arange(36) == place).reshape(6, 6), 9.0, random) for place in range(1, 36) if place % 7]
    functions = [lambda sources, targets, table=table: table[targets, sources] for table in changed]
    values = [
        of(), of(0.02), of(up=3), of(rate=3), of(compute=[1] * 6), of(compute=[1] * 5 + [2]), of(compute=1 + 1e-15),
        of(size=2 + 1e-15),
        of(random), of(sparse), *map(of, changed), *map(of, functions),
    ]  # fmt: skip
    assert len(set(values)) == len(values)
    long = [[1.0] * 2000, [1.0] * 1000 + [2.0] + [1.0] * 999]
    assert len({Clock(Machines(), compute=one, size=1).fingerprint(2000) for one in long}) == 2


def test_histories_are_saved_with_their_seconds(tmp_path):
    timed, plain = run(RANDOM), run()
    found = History.load(timed.save(tmp_path / "timed.npz"))
    assert np.array_equal(found.seconds, timed.seconds)
    assert np.array_equal(found.seconds_first, timed.seconds_first)
    assert History.load(plain.save(tmp_path / "plain.npz")).seconds is None


# ---- what seconds are for


def test_time_to_a_value_is_that_of_the_first_record_that_reaches_it():
    found = History(
        steps=np.arange(4), trials=np.arange(2), seconds=np.array([[0.0, 0.0], [1.0, 2.0], [2.5, 4.0], [3.0, 5.0]]),
        values={"loss": np.array([[9.0, 9.0], [1.0, 5.0], [2.0, 4.0], [0.5, 4.0]]),
                "test_accuracy": np.array([[0.1, 0.1], [0.5, 0.2], [0.9, 0.95], [0.8, 0.95]])},
    )  # fmt: skip
    assert np.array_equal(found.time_to("loss", 1.0), [1.0, np.nan], equal_nan=True)
    assert found.time_to("loss", 5.0).tolist() == [1.0, 2.0]
    assert found.time_to("test_accuracy", 0.9).tolist() == [2.5, 4.0]
    assert found.time_to("loss", 10).tolist() == [0.0, 0.0]


def test_seconds_need_a_clock():
    for options in ({"metrics": ["seconds"]}, {"metrics": ["seconds_spread"]}, {"until": {"seconds": 3}}):
        with pytest.raises(PerronError, match="Seconds need a clock: pass clock="):
            run(**options)
    with pytest.raises(PerronError, match="had no clock"):
        run().time_to("grad_norm_sq", 1.0)
    with pytest.raises(PerronError, match="had no clock"):
        run().plot("grad_norm_sq", x="seconds")


def test_a_run_ends_when_its_seconds_are_used_up():
    found = run(RANDOM, steps=1000, every=1, until={"seconds": 3.0})
    means = found.seconds.mean(axis=1)
    assert means[-1] >= 3.0 > means[-2]
    both = {"grad_norm_sq": 1e-30, "seconds": 3.0}
    assert run(RANDOM, steps=1000, every=1, until=both).steps[-1] == found.steps[-1]
    early = {"grad_norm_sq": 1e30, "seconds": 3.0}
    assert run(RANDOM, steps=1000, every=1, until=early).steps[-1] == 0


def test_a_run_ends_when_its_bytes_are_used_up():
    found = run(every=1, until={"bytes_sent": 5e4})
    assert found.costs["bytes"][-1] >= 5e4 > found.costs["bytes"][-2]


@pytest.mark.parametrize("x", ["steps", "seconds", "bytes", "gradients"])
def test_plots_have_the_axis_that_is_asked_for(x):
    found = run(RANDOM)
    line = found.plot("grad_norm_sq", x=x).axes[0].lines[0]
    last = {"steps": 40, "seconds": found.seconds[-1].mean()} | {name: spent[-1] for name, spent in found.costs.items()}
    assert line.get_xdata()[-1] == pytest.approx(last[x])


def test_frames_have_a_column_of_seconds():
    found = run(RANDOM, metrics=["grad_norm_sq", "seconds"])
    frame = found.frame()
    assert frame["seconds"].to_numpy() == pytest.approx(found.seconds.ravel())
    assert list(frame.columns).count("seconds") == 1
    shown = perron.compare([found], x="seconds", y="grad_norm_sq")
    assert shown.summary["x"] == "seconds"


def test_snapshots_keep_their_times():
    kept = list(Simulation(problem=NOISY, algorithm="push_pull", mixing=MIXING, clock=RANDOM).iterates(3))
    assert isinstance(kept[0], Snapshot)
    assert [round(float(one.seconds), 6) for one in kept] == sorted({round(float(one.seconds), 6) for one in kept})
    with pytest.raises(PerronError, match="Seconds need a clock"):
        _ = next(Simulation(problem=NOISY, algorithm="push_pull", mixing=MIXING).iterates(1)).seconds


def test_clocks_are_given_in_several_ways(tmp_path):
    (tmp_path / "links.csv").write_text("# both_ways=true\nfrom,to,latency_ms\n0,1,10\n1,2,20\n2,0,30\n")
    problem, options = Quadratic.random(3), {"steps": 5, "every": 5}
    results = [
        simulate(problem, "dsgd", "ring", clock=clock, **options).seconds
        for clock in (tmp_path / "links.csv", str(tmp_path / "links.csv"), Clock(tmp_path / "links.csv"))
    ]
    assert np.array_equal(results[0], results[1])
    assert np.array_equal(results[0], results[2])
    assert results[0][-1] > 0
    with pytest.raises(PerronError, match=r"clock is a perron\.Clock, a file of links or the name of a preset"):
        simulate(problem, "dsgd", "ring", clock=3, **options)
    with pytest.raises(PerronError, match="has 3 nodes but the network 6"):
        run(Clock(tmp_path / "links.csv"))

"""Study files, runs in processes, kills, resumption, conclusions and the command line."""

import json
import os
import random
import signal
import subprocess
import sys
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
import pytest
from processes import HANG
from study_runs import LONG, QUICK, run_in_background, suspend_one, wait_for

from perron import Mixing, PushPull, simulate
from perron._storage import tensorfile as saved
from perron.errors import PerronError
from perron.networks import topologies
from perron.problems import Quadratic
from perron.studies import conclusions, results
from perron.studies import runner as experiment
from perron.studies._values import parse
from perron.studies.job import Job, execute, perform
from perron.studies.runner import read_study, run_study
from perron.studies.spec import Study, load, shipped
from perron.studies.statistics import COARSE


@pytest.fixture
def quick(tmp_path) -> Path:
    path = tmp_path / "quick.toml"
    path.write_text(QUICK)
    return path


# ---- files


EXAMPLES = [str(path) for path in sorted((Path(__file__).parents[2] / "examples").glob("*.toml"))]


@pytest.mark.parametrize("name", [*shipped(), *EXAMPLES], ids=lambda name: Path(name).stem)
def test_shipped_studies_are_valid_and_their_networks_exist(name):
    study = load(name)
    assert study.title
    assert study.about
    assert len(study.runs) > 0
    for run in {(run.topology, run.nodes, run.weights): run for run in study.runs}.values():
        assert run.mixing().nodes == run.nodes


def test_a_study_stands_for_all_combinations(quick):
    study = load(quick, {"lr": [0.1, 0.2], "weights": ["uniform", "lazy"], "problem.noise_std": [0.1, 0.2]})
    assert len(study.runs) == 2 * 2 * 2 * 2 * 2
    assert len({run.key for run in study.runs}) == len(study.runs)
    assert {run.problem["noise_std"] for run in study.runs} == {0.1, 0.2}
    assert study.runs[0].problem["dim"] == 3


def test_node_counts_by_topology_and_weights(quick):
    nodes = {"default": [2], "ring": [3, 4], "ring/lazy": [5]}
    study = load(quick, {"nodes": nodes, "weights": ["uniform", "lazy"]})
    found = [(run.topology, run.weights, run.nodes) for run in study.runs]
    assert found == [
        ("exponential", "uniform", 2), ("exponential", "lazy", 2), ("ring", "uniform", 3), ("ring", "uniform", 4),
        ("ring", "lazy", 5),
    ]  # fmt: skip


def test_learning_rates_by_topology(quick):
    study = load(quick, {"topologies": ["exponential", "ring"], "lr": {"default": [0.1, 0.2], "ring": 0.01}})
    assert {(run.topology, run.lr) for run in study.runs} == {
        ("exponential", 0.1),
        ("exponential", 0.2),
        ("ring", 0.01),
    }


def test_algorithms_and_topologies_take_options(quick):
    study = load(
        quick,
        {
            "topologies": [{"name": "random", "probability": 0.7}, "ring"],
            "algorithms": ["push_pull", {"name": "dsgd", "weights": "balanced"}, {"name": "abm", "heavy": 0.1}],
        },
    )
    assert {run.columns["topology"] for run in study.runs} == {"random(probability=0.7)", "ring"}
    assert {run.weights for run in study.runs if run.algorithm == "dsgd"} == {"balanced"}
    _, algorithm, _ = next(run for run in study.runs if run.algorithm == "abm").build()
    assert algorithm.heavy == 0.1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stepz": 5}, "There is no key 'stepz'; did you mean 'steps'"),
        ({"steps": -1}, r"steps: .*greater than or equal to 0; got -1"),
        ({"steps": "many"}, r"steps: .*got 'many'"),
        ({"lr": 0}, r"lr\.default\.0.*greater than 0 or 'default' or 'tune'; got 0"),
        ({"lr": float("nan")}, "lr"),
        ({"topologies": ["exponentail"]}, "topologies: .*did you mean 'exponential'"),
        ({"topologies": [{"name": "ring", "chords": 3}]}, "topologies.*chords"),
        ({"topologies": []}, "topologies"),
        ({"algorithms": ["push_pul"]}, "algorithms: .*did you mean 'push_pull'"),
        ({"algorithms": [{"name": "abm", "theta": 1}]}, "no option of abm 'theta'; .*There are: heavy"),
        ({"algorithms": [{"name": "dsgd", "weights": "even"}]}, "weight rule 'even'"),
        ({"weights": "even"}, "weights: .*random_integer"),
        ({"metrics": ["speed"]}, "metrics: There is no metric 'speed'"),
        ({"metrics": ["residual_block_sq_0"]}, "at least one step"),
        ({"problem.noise": 1}, "problem.*noise"),
        ({"problem.kind": "cubic"}, "problem: There is no kind of problem 'cubic'. There are: logistic, quadratic"),
        ({"problem.dim": "three"}, r"problem.*dim.*got 'three'"),
        ({"nodes": {"grid": [4]}}, "nodes: There is no topology of the study's 'grid'"),
        ({"nodes": {"ring": [4]}}, "nodes: nothing for exponential"),
        ({"conclusion": "success"}, "conclusion"),
        ({"trials": 0}, "trials"),
        ({"problem.kind": ["quadratic", "logistic"]}, "no kind of problem"),
        ({"problem.dim": []}, "dim is an empty list"),
        ({"problem.nois_std": 1}, "did you mean 'noise_std'"),
        ({"algorithms": [{"name": "abm", "heavy": "big"}]}, r"algorithms: heavy: .*got 'big'"),
        ({"algorithms": [{"name": "abm", "heavy": [0.1, 0.2]}]}, "algorithms: heavy"),
        ({"algorithms": [{"name": "abm", "weights": ["lazy"]}]}, "weights: input should be a valid string"),
        ({"nodes": {"default": [2], "ring/lazzy": [5]}}, "names weights that the study does not use"),
        ({"weights": "authors", "topologies": [{"name": "random", "probability": 0.9}]}, "take no options"),
        ({"name": "../escaped"}, "name"),
        ({"metrics": ["loss"]}, "conclusion: speedup needs the metric grad_norm_sq"),
        ({"every": 40}, "16 records of a run, but steps = 320 and every = 40 give 9"),
        ({"every": "log"}, "equal distances"),
        ({"conclusion": "residual"}, "the metric residual_sq"),
        ({"conclusion": "residual", "metrics": ["residual_sq"]}, "two or more metrics residual_block_sq_M"),
        (
            {"conclusion": "residual", "metrics": ["residual_sq", "residual_block_sq_1", "residual_block_sq_300"]},
            "blocks of at most half the run; got 300",
        ),
        ({"conclusion": "residual", "metrics": ["residual_sq"], "algorithms": ["frost"]}, "push_pull among"),
        ({"lr": {"ring": 0.1}}, "lr: nothing for exponential"),
        ({"lr": {"default": 0.1, "star": 0.1}}, "lr: There is no topology of the study's 'star'"),
        ({"problem": {"kind": "images", "model": "resnet"}}, "no model 'resnet'; did you mean 'resnet18'"),
        ({"problem": {"kind": "images", "data": "minst"}}, "no data 'minst'; did you mean 'mnist'"),
        ({"problem": {"kind": "images", "partition": "byshard"}}, "no partition 'byshard'; did you mean 'by_shard'"),
        ({"conclusion": "training"}, "needs the metric loss_mean or test_accuracy"),
        ({"conclusion": "time_to_accuracy"}, "a run with one node"),
        ({"conclusion": "time_to_accuracy", "nodes": [1, 2]}, "the same function for every number of nodes"),
    ],
)
def test_a_bad_study_is_refused_with_the_key(quick, change, message):
    with pytest.raises(PerronError, match=message):
        load(quick, change)


def test_all_that_is_wrong_is_said_at_once(quick):
    with pytest.raises(PerronError) as error:
        load(quick, {"steps": -1, "trials": 0, "weights": "even"})
    assert all(f"{key}: " in str(error.value) for key in ("steps", "trials", "weights"))


def test_files_that_are_not_studies(tmp_path):
    with pytest.raises(PerronError, match="did you mean 'synthetic-speedup'"):
        load("synthetic-speedupp")
    with pytest.raises(PerronError, match="no study file"):
        load(tmp_path / "none.toml")
    bad = tmp_path / "bad.toml"
    bad.write_text("title = ")
    with pytest.raises(PerronError, match="not a TOML file"):
        load(bad)
    bad.write_bytes(b"\xff\xfe")
    with pytest.raises(PerronError, match="Cannot read"):
        load(bad)


def test_changes_from_the_command_line():
    found = parse(["lr=0.01", "nodes=[4, 8]", "weights=lazy", 'problem.kind="quadratic"', "horizon=1e3"])
    assert found == {"lr": 0.01, "nodes": [4, 8], "weights": "lazy", "problem.kind": "quadratic", "horizon": 1000.0}
    for bad in ("lr", "=3"):
        with pytest.raises(PerronError, match="KEY=VALUE"):
            parse([bad])


def test_exact_gradients_and_settings_of_results(quick):
    study = load("demo", {"problem.batch": "all"})
    assert study.runs[0].problem["batch"] is None
    assert isinstance(study.runs[0].problem["compiled"], bool)  # decided when the run is made


# ---- one run


def test_a_run_is_what_simulate_says(quick):
    import perron

    study = load(quick, {"equal_effective_step": True, "algorithms": ["push_pull", "frost", "centralized"]})
    for run in study.runs:
        table, warned = execute(run)
        problem, algorithm, mixing = run.build()
        network = perron.Network(mixing)
        lr = 0.2 / algorithm.effective_step(network)
        history = perron.simulate(problem, algorithm, mixing, lr=lr, steps=320, every=10, trials=6, seed=7)
        np.testing.assert_array_equal(table.grad_norm_sq, history["grad_norm_sq"].ravel())
        assert table.effective_step.iloc[0] == pytest.approx(0.2)
        assert table.c.iloc[0] == pytest.approx(network.alignment)
        assert table.predicted.iloc[0] == pytest.approx(perron.theory.noise_floor(problem, 0.2))
        assert not warned


def test_small_steps_get_more_time(quick):
    study = load(quick, {"lr": [0.05, 0.1, "default"], "horizon": 10, "steps": 150, "algorithms": "centralized"})
    counts = {run.lr: execute(run)[0].steps.iloc[0] for run in study.runs}
    assert counts[0.1] == 100
    assert counts[0.05] == 150  # at most steps
    assert counts["default"] == 10


def test_what_a_run_warned_of_is_kept(quick):
    table, warned = execute(load(quick, {"lr": 50.0}).runs[0])
    assert any("diverged" in said for said in warned)
    assert not np.isfinite(table.grad_norm_sq.iloc[-1])


# ---- many runs


@pytest.mark.processes
def test_a_study_runs_resumes_and_repeats_nothing(quick, tmp_path):
    study = load(quick)
    seen = []
    first = run_study(study, tmp_path / "out", progress=seen.append)
    assert first.finished
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
    assert len(first.table) == 4 * 33 * 6
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "runs").iterdir()}
    second = run_study(study, tmp_path / "out")
    assert second.reused == 4
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "runs").iterdir()} == kept
    bytes_before = (tmp_path / "out" / "results.parquet").read_bytes()
    again = run_study(study, tmp_path / "other", workers=1)
    assert (tmp_path / "other" / "results.parquet").read_bytes() == bytes_before
    pd.testing.assert_frame_equal(again.table, first.table)
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["seeds"] == [7]
    assert set(manifest["runs"]) == {run.key for run in study.runs}
    assert {"perron", "commit", "machine", "seconds", "started"} <= set(manifest)


def test_a_run_that_is_taken_up_again_counts_the_seconds_before(quick, tmp_path):
    job = Job(load(quick).runs[0], tmp_path / "run")
    first = perform(job, lambda _: None)
    took = json.loads(first.facts)["seconds"]
    tensors, facts = saved.read(tmp_path / "run.partial")
    assert 0 < facts["seconds"] <= took
    for before, least in ((1000.0, 1000.0), (None, 0.0)):  # None: of an older perron
        kept = {name: value for name, value in facts.items() if name != "seconds"}
        saved.write(tmp_path / "run.partial", tensors, kept | ({"seconds": before} if before else {}))
        again = perform(job, lambda _: None)
        assert again.failed is None
        assert again.table == first.table
        assert least < json.loads(again.facts)["seconds"] < least + HANG
    network = Mixing.uniform(topologies.ring(4))
    options = {"every": 10, "checkpoint": tmp_path / "on.partial"}
    for steps in (10, 20):  # what was saved before is in what is saved later
        simulate(Quadratic.random(4), PushPull(), network, lr=0.01, steps=steps, **options)
        tensors, facts = saved.read(tmp_path / "on.partial")
        assert (facts["seconds"] > 500) == (steps == 20)
        saved.write(tmp_path / "on.partial", tensors, facts | {"seconds": 500.0})


@pytest.mark.processes
def test_damaged_results_of_a_run_are_made_again(quick, tmp_path):
    study = load(quick, {"topologies": ["ring"], "nodes": [2]})
    before = run_study(study, tmp_path / "out").table
    (path,) = (tmp_path / "out" / "runs").glob("*.parquet")
    path.write_bytes(path.read_bytes()[:100])
    after = run_study(study, tmp_path / "out")
    assert after.reused == 0
    pd.testing.assert_frame_equal(after.table, before)


@pytest.mark.processes
@pytest.mark.parametrize(
    "said", ['{"seconds": null, "warnings": []}', '["seconds", "warnings"]', '{"seconds": -1, "warnings": [3]}']
)
def test_what_a_run_said_of_itself_makes_no_sense(said, quick, tmp_path):
    study = load(quick)
    first = run_study(study, tmp_path / "out", workers=1)
    (path, *_) = sorted((tmp_path / "out" / "runs").glob("*.json"))
    path.write_text(said)
    again = run_study(study, tmp_path / "out", workers=1)
    assert again.reused == len(study.runs) - 1
    assert not again.failed
    assert again.table.equals(first.table)


@pytest.mark.processes
def test_tables_with_other_columns(quick, tmp_path):
    study, out = load(quick), tmp_path / "out"
    first = run_study(study, out, workers=1)
    (path, *_) = sorted((out / "runs").glob("*.parquet"))
    pd.DataFrame({"other": [1, 2]}).to_parquet(path)
    again = run_study(study, out, workers=1)
    assert again.reused == len(study.runs) - 1
    assert again.table.equals(first.table)
    table, said = out / "results.parquet", json.loads((out / "manifest.json").read_text())
    first.table.drop(columns=["run", "lr"]).to_parquet(table)
    (out / "manifest.json").write_text(json.dumps(said | {"sha256": sha256(table.read_bytes()).hexdigest()}))
    with pytest.raises(PerronError, match=r"results\.parquet has no column lr, run"):
        experiment.read_study(out)


@pytest.mark.processes
def test_a_flipped_bit_in_a_table_is_noticed(quick, tmp_path):
    """Parquet's own readers would show a wrong number."""
    study, out = load(quick, {"topologies": ["ring"], "nodes": [2]}), tmp_path / "out"
    first, dice, silent = run_study(study, out), random.Random(0), 0
    for path in (out / "results.parquet", *(out / "runs").glob("*.parquet")):
        whole = path.read_bytes()
        for _ in range(20):
            content = bytearray(whole)
            content[dice.randrange(len(content))] ^= 1 << dice.randrange(8)
            path.write_bytes(content)
            with suppress(Exception):
                silent += not pd.read_parquet(path).equals(first.table)
            if path.parent == out:
                with pytest.raises(
                    PerronError, match=r"results\.parquet is damaged: its SHA-256 is \w+\.\.\. instead of"
                ):
                    read_study(out)
        if path.parent != out:
            assert run_study(study, out).reused == 0
        else:
            assert run_study(study, out).reused == 1
        pd.testing.assert_frame_equal(read_study(out).table, first.table)
    assert silent > 0


@pytest.mark.processes
def test_results_of_other_code_are_not_taken(quick, tmp_path, monkeypatch):
    study = load(quick, {"topologies": ["ring"], "nodes": [2]})
    run_study(study, tmp_path / "out")
    monkeypatch.setattr(experiment, "code", lambda: "changed")
    monkeypatch.setattr(results, "own_code", lambda: "changed")
    assert run_study(study, tmp_path / "out").reused == 0


@pytest.mark.processes
def test_a_run_that_cannot_be_is_named_and_harms_no_other(quick, tmp_path):
    study = load(quick, {"algorithms": ["push_pull", "dsgd"]})  # these weights are not doubly stochastic
    outcome = run_study(study, tmp_path / "out")
    assert not outcome.finished
    assert len(outcome.failed) == 4
    assert all("dsgd" in said and "doubly stochastic" in said for said in outcome.failed.values())
    assert set(outcome.table.algorithm) == {"push_pull"}


@pytest.mark.processes
def test_kill_9_in_the_middle_then_the_same_table(quick, tmp_path):
    out = tmp_path / "out"
    process = run_in_background(quick, out, *LONG)
    wait_for(lambda: len(list((out / "runs").glob("*.parquet"))) >= 2)
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    psutil.wait_procs(children, timeout=HANG)
    assert not any(child.is_running() for child in children)  # no orphan goes on
    assert not (out / "results.parquet").exists()
    done = {path: path.stat().st_mtime_ns for path in (out / "runs").glob("*.parquet")}
    assert 2 <= len(done) < 8
    process = run_in_background(quick, out, *LONG)
    _, error = process.communicate(timeout=HANG)
    assert process.returncode == 0, error
    assert f"{len(done)} of them already done" in error
    assert {path: path.stat().st_mtime_ns for path in done} == done
    whole = run_in_background(quick, tmp_path / "whole", *LONG)
    whole.communicate(timeout=HANG)
    assert (out / "results.parquet").read_bytes() == (tmp_path / "whole" / "results.parquet").read_bytes()


@pytest.mark.processes
def test_a_killed_worker_is_named_and_the_others_finish(quick, tmp_path):
    out = tmp_path / "out"
    process = run_in_background(quick, out, *LONG, "--set", "steps=12000")
    wait_for(lambda: list((out / "runs").glob("*.parquet")))
    suspend_one(out).kill()
    _, error = process.communicate(timeout=HANG)
    assert process.returncode == 3
    assert "its process was killed (exit code -9)" in error
    assert "the same command retries these" in error
    assert len(read_study(out).failed) == 1
    assert len(list((out / "runs").glob("*.parquet"))) == 7
    process = run_in_background(quick, out, *LONG, "--set", "steps=12000")
    process.communicate(timeout=HANG)
    assert process.returncode == 0


@pytest.mark.processes
def test_a_hung_run_is_stopped_and_named(quick, tmp_path):
    study = load(quick, {"topologies": ["ring"], "nodes": [2, 4], "steps": 3_000_000, "every": 1000, "timeout": 0.05})
    outcome = run_study(study, tmp_path / "out")
    assert len(outcome.failed) == 2
    assert all("longer than timeout = 0.05 minutes" in said for said in outcome.failed.values())
    with pytest.raises(PerronError, match="every run failed"):
        conclusions.conclude(outcome)


@pytest.mark.processes
def test_a_stopped_worker_is_named_and_the_others_finish(quick, tmp_path):
    out = tmp_path / "out"
    process = run_in_background(quick, out, *LONG, "--set", "timeout=0.3")
    wait_for(lambda: list((out / "runs").glob("*.parquet")))
    suspend_one(out)
    _, error = process.communicate(timeout=HANG)
    assert process.returncode == 3
    assert error.count("took longer than timeout = 0.3 minutes and was stopped") == 1
    assert len(list((out / "runs").glob("*.parquet"))) == 7


@pytest.mark.processes
def test_ctrl_c_keeps_what_is_finished(quick, tmp_path):
    out = tmp_path / "out"
    process = run_in_background(quick, out, *LONG)
    wait_for(lambda: list((out / "runs").glob("*.parquet")))
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the workers, too
    _, error = process.communicate(timeout=HANG)
    assert process.returncode == 130
    assert "the same command resumes" in error
    assert "Traceback" not in error
    finished = list((out / "runs").glob("*.parquet"))
    assert 1 <= len(finished) < 8
    assert all(len(pd.read_parquet(path)) == 41 * 6 for path in finished)  # none of them cut short


def test_two_at_a_time_in_one_directory_are_refused(quick, tmp_path):
    with experiment._exclusive(tmp_path / "out"), pytest.raises(PerronError, match="Another process"):
        run_study(load(quick), tmp_path / "out")
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(PerronError, match="Cannot write"):
        run_study(load(quick), file)


# ---- conclusions


def made(study: Study, curve, *, noise=0.3, seed=0) -> experiment.Outcome:
    """An outcome whose curves are what we say: ``curve(run, steps)``, times noise of mean one."""
    random = np.random.default_rng(seed)
    steps = np.arange(0, study.steps + 1, study.every)
    tables = []
    for run in study.runs:
        mean = curve(run, steps)
        values = mean[:, None] * random.gamma(1 / noise**2, noise**2, size=(len(steps), run.trials))
        lr, predicted = float(run.lr), 1e-3 / run.nodes
        facts = {"c": 1.0, "s_A": 2.0, "s_B": 2.0, "lr": lr, "effective_step": lr, "predicted": predicted}
        columns = {"step": np.repeat(steps, run.trials), "trial": np.tile(np.arange(run.trials), len(steps))}
        tables.append(pd.DataFrame(columns | {"grad_norm_sq": values.ravel()}).assign(**run.columns, **facts))
    return experiment.Outcome(study, Path(), pd.concat(tables, ignore_index=True), 1.0)


def test_linear_speedup_is_found_and_falling_curves_are_refused(quick):
    study = load(quick, {"nodes": [2, 4, 8], "trials": 20})

    def curve(run, steps):
        if run.topology == "ring":
            return np.exp(-0.005 * steps) / run.nodes  # a false speedup: all transient
        return np.exp(-0.2 * steps) + 1e-3 / run.nodes

    found = conclusions.conclude(made(study, curve))
    fine, false = found.summary["slopes"]
    assert fine["verdict"] == "linear speedup"
    assert fine["slope of level/c"] == pytest.approx(-1, abs=0.05)
    assert false["slope of level"] == pytest.approx(-1, abs=0.05)
    assert false["verdict"] == "cannot say: still falling at n=2,4,8"
    assert found.sentences[0].startswith("On 1 of 2 networks the noise floor falls as 1/n")
    assert "no speedup is claimed" in found.sentences[-2]
    assert found.sentences[-1].startswith("All networks see the same noise (common random numbers, one seed)")
    assert all(row["ratio"] == pytest.approx(1, abs=0.1) for row in found.summary["levels"][:3])


@pytest.mark.processes
def test_the_example_in_the_docs_keeps_its_variants_apart(quick, tmp_path):
    change = {
        "conclusion": "comparison", "topologies": ["ring"], "nodes": [4], "weights": ["random_integer", "lazy"],
        "algorithms": ["centralized", "push_pull", {"name": "dsgd", "weights": "balanced"}], "lr": [0.05, 0.1],
        "problem.noise_std": [0.1, 1.0], "seeds": [0, 1], "equal_effective_step": True,
    }  # fmt: skip
    outcome = run_study(load(quick, change), tmp_path / "out")
    rows = conclusions.conclude(outcome).summary["levels"]
    assert len(rows) == len(outcome.study.runs) == 2 * 2 * 2 * (2 + 2 + 1)
    by_hand = outcome.table[outcome.table.step >= 160].groupby("run").grad_norm_sq.mean()
    assert sorted(row["level"] for row in rows) == pytest.approx(sorted(by_hand))


@pytest.mark.processes
def test_speedup_with_default_and_effective_steps(quick, tmp_path):
    for change in ({"lr": "default"}, {"equal_effective_step": True}):
        study = load(quick, change | {"algorithms": ["push_pull", "centralized"]})
        outcome = run_study(study, tmp_path / next(iter(change)))
        slopes = conclusions.conclude(outcome).summary["slopes"]
        assert len(slopes) == 4  # two topologies, two algorithms: all node counts in one row
        assert all(row["nodes"] == "2, 4" and np.isfinite(row["slope of level/c"]) for row in slopes)


@pytest.mark.processes
def test_a_diverged_run_and_a_problem_without_noise_do_not_end_the_conclusion(quick, tmp_path):
    outcome = run_study(
        load(quick, {"lr": [0.1, 1e30], "topologies": ["ring"], "problem.noise_std": 0.0}), tmp_path / "out"
    )
    found = conclusions.conclude(outcome)
    assert {row["why"] for row in found.summary["levels"]} >= {"diverged"}
    conclusions.write(outcome, found)
    assert outcome.warned


@pytest.mark.processes
def test_if_all_fails_the_reason_is_said(quick, tmp_path):
    failed = perron("study", "run", str(quick), "--set", "algorithms=dsgd", "--out", str(tmp_path / "out"))
    assert failed.returncode == 3
    assert "every run failed. dsgd on exponential(2)" in failed.stderr
    assert "doubly stochastic" in failed.stderr


def test_a_slope_that_is_known_too_coarsely_is_left_open(quick):
    study = load(quick, {"nodes": [4, 5], "trials": 20, "seeds": [1, 2]})  # levels are known well, but not their slope
    found = conclusions.conclude(made(study, lambda run, steps: np.full(len(steps), 1 / run.nodes)))
    verdicts = {row["verdict"] for row in found.summary["slopes"]}
    assert COARSE in verdicts
    assert "linear speedup" not in verdicts
    assert any("reaches out of -1.1 to -0.9: measured too coarsely to say" in sentence for sentence in found.sentences)
    assert not any("the same noise" in sentence for sentence in found.sentences)  # there are two seeds


def test_compiled_sums_are_told_with_the_results(quick):
    compiled, exact = (
        made(
            load(quick, {"problem": {"kind": "logistic", "samples": 800, "compiled": which}}),
            lambda run, steps: 1.0 + 0 * steps,
        )
        for which in (True, False)
    )
    assert any("summed in float32" in sentence for sentence in conclusions.conclude(compiled).sentences)
    assert not any("float32" in sentence for sentence in conclusions.conclude(exact).sentences)


def test_no_speedup_is_called_no_speedup(quick):
    found = conclusions.conclude(made(load(quick, {"trials": 20}), lambda run, steps: np.full(len(steps), 1e-3)))
    assert {row["verdict"] for row in found.summary["slopes"]} == {"no linear speedup"}


def test_time_to_accuracy_of_known_curves(quick):
    change = {
        "conclusion": "time_to_accuracy",
        "nodes": [1, 4],
        "lr": [0.02, 0.04, 0.08, 0.16, 0.32],
        "accuracies": [6e-3, 1e-9],
    }
    same = {"problem.same_hessian": True, "problem.heterogeneity": 0}
    study = load(quick, change | same | {"topologies": ["exponential"], "steps": 1000, "every": 5, "trials": 20})
    outcome = made(study, lambda run, steps: np.exp(-run.lr * steps) + 0.1 * run.lr / run.nodes)
    found = conclusions.conclude(outcome)
    four = next(row for row in found.summary["times"] if row["nodes"] == 4 and row["accuracy"] == 6e-3)
    assert four["low"] <= four["speedup"] <= four["high"]
    assert four["speedup"] == pytest.approx(4, rel=0.35)
    assert "not reached" in found.tables["Time to accuracy"].steps.tolist()
    assert "speedup T(1) / T(n) of 4 nodes to the accuracy 0.006: " in found.sentences[0]


@pytest.mark.processes
@pytest.mark.parametrize("conclusion", ["speedup", "comparison", "residual", "topologies", "time_to_accuracy"])
def test_every_conclusion_of_a_real_run_is_written(quick, tmp_path, conclusion):
    change = {
        "conclusion": conclusion,
        "algorithms": ["push_pull", "add_opt", "frost", "centralized"] if conclusion != "speedup" else ["push_pull"],
        "metrics": ["grad_norm_sq", "residual_sq", "residual_block_sq_1", "residual_block_sq_10"],
        "nodes": [1, 4] if conclusion == "time_to_accuracy" else [2, 4],
        "topologies": ["exponential", "hypercube"],
        "equal_effective_step": True,
        "lr": [0.1, 0.2] if conclusion == "time_to_accuracy" else 0.1,
        "accuracies": [0.1, 0.01],
        "problem.same_hessian": True,
        "problem.heterogeneity": 0,
    }
    outcome = run_study(load(quick, change), tmp_path / "out")
    assert outcome.finished, outcome.failed
    paths = conclusions.write(outcome, conclusions.conclude(outcome))
    assert {path.suffix for path in paths} == {".png", ".pdf", ".json", ".md", ".csv", ".tex"}
    assert all(path.stat().st_size > 100 for path in paths)
    summary = json.loads((tmp_path / "out" / "summary.json").read_text(), parse_constant=pytest.fail)
    assert summary["sentences"]
    page = (tmp_path / "out" / "report.md").read_text()
    assert page.startswith("# A quick one")
    assert "nan" not in page.replace("nanometre", "")
    before = {path: path.read_bytes() for path in paths}
    reread = read_study(tmp_path / "out")
    assert {path: path.read_bytes() for path in conclusions.write(reread, conclusions.conclude(reread))} == before


def test_a_directory_without_results_is_refused(tmp_path):
    with pytest.raises(PerronError, match="holds no results"):
        read_study(tmp_path)
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(PerronError, match="holds no results"):
        read_study(tmp_path)


# ---- command line


def perron(*arguments, cwd=None):
    command = [sys.executable, "-m", "perron", *arguments]
    environment = os.environ | {"COLUMNS": "200"}
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment, timeout=HANG, check=False)


@pytest.mark.processes
def test_command_line_runs_shows_and_plots(quick, tmp_path):
    ran = perron("study", "run", str(quick), "--set", "nodes=[2,3,4]", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert "Picture: results/quick/curves.png" in ran.stdout
    assert "A quick one: 6 runs." in ran.stderr
    shown = perron("study", "show", "results/quick", cwd=tmp_path)
    assert "slope of level/c" in shown.stdout
    (tmp_path / "results/quick/curves.png").unlink()
    assert perron("study", "plot", "results/quick", cwd=tmp_path).returncode == 0
    assert (tmp_path / "results/quick/curves.png").exists()


@pytest.mark.slow
def test_command_line_lists_and_refuses(tmp_path):
    listed = perron("study", "list")
    assert all(name in listed.stdout for name in shipped())
    bad = perron("study", "run", "synthetic-speedup", "--set", "stepz=3", cwd=tmp_path)
    assert bad.returncode == 1
    assert bad.stderr.startswith("perron: synthetic-speedup.toml: There is no key 'stepz'; did you mean 'steps'?")
    assert not list(tmp_path.iterdir())
    assert perron("study", "show", "nowhere", cwd=tmp_path).returncode == 1

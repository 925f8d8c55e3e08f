"""Studies on data: files in the study's folder, datasets by name, and the optimum that distances refer to."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from processes import HANG

from perron.errors import PerronError
from perron.problems import LinearModel, Logistic
from perron.studies import read_study, run_study
from perron.studies.job import execute
from perron.studies.spec import load

STUDY = """
conclusion = "comparison"
topologies = ["exponential"]
nodes = 3
algorithms = ["push_pull", "centralized"]
weights = "uniform"
lr = 0.1
steps = 40
every = 2
trials = 1
metrics = ["grad_norm_sq", "distance_sq", "suboptimality", "test_accuracy"]
[problem]
kind = "logistic"
data = "file:sites/patients.csv"
test = "file:sites/test.csv"
target = "ill"
drop = "site"
partition = ["column:site", "iid"]
l2 = 0.05
batch = 2
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    random = np.random.default_rng(0)
    table = pd.DataFrame(random.standard_normal((40, 3)), columns=["age", "weight", "dose"])
    table = table.assign(ill=np.where(table["age"] + random.standard_normal(40) > 0, "yes", "no"))
    table["site"] = np.array(["oslo", "rome", "bonn"])[np.minimum(np.arange(40) // 7, 2)]  # 7, 7 and 26 samples
    (tmp_path / "sites").mkdir()
    table.to_csv(tmp_path / "sites" / "patients.csv", index=False)
    table[:9].to_csv(tmp_path / "sites" / "test.csv", index=False)
    (tmp_path / "study.toml").write_text(STUDY)
    return tmp_path


def test_files_are_part_of_a_run(folder, monkeypatch):
    study = load(folder / "study.toml")
    before = [run.key for run in study.runs]
    assert len(set(before)) == 4
    monkeypatch.chdir("/")  # files are in the study's folder, wherever the worker is
    problems = [run.build()[0] for run in study.runs]
    # The files are part of the runs, also in their partitions.
    assert [problem.sample_counts.tolist() for problem in problems] == [
        [26, 7, 7],
        [26, 7, 7],
        [14, 13, 13],
        [14, 13, 13],
    ]
    assert problems[0].batch == 2
    assert len(problems[0].test[0]) == 9
    test = folder / "sites" / "test.csv"
    test.write_text(test.read_text() + test.read_text().splitlines()[1] + "\n")
    with pytest.raises(PerronError, match=r"file:sites/test\.csv has changed since the study was started"):
        study.runs[0].build()
    assert not {run.key for run in load(folder / "study.toml").runs} & set(before)


@pytest.mark.processes
def test_a_study_of_a_file(folder):
    study = load(folder / "study.toml")
    outcome = run_study(study, folder / "results", workers=1)
    assert not outcome.failed
    last = outcome.table[outcome.table["step"] == 40]
    assert (last["distance_sq"] < outcome.table[outcome.table["step"] == 0]["distance_sq"].max()).all()
    assert last["test_accuracy"].between(0.5, 1).all()
    assert len(list((folder / "home" / ".cache" / "perron" / "optima").iterdir())) == 1  # of both partitions
    content = (folder / "results" / "results.parquet").read_bytes()
    # A part that is computed again, with the optimum of the cache or without, gives the same bytes.
    for cached in (True, False):
        if not cached:
            shutil.rmtree(folder / "home" / ".cache")
        next((folder / "results" / "runs").glob("*.parquet")).unlink()
        again = run_study(load(folder / "study.toml"), folder / "results", workers=1)
        assert again.reused == 3
        assert (folder / "results" / "results.parquet").read_bytes() == content
    # Results can be read without the files.
    shutil.rmtree(folder / "sites")
    assert read_study(folder / "results").study.runs == study.fixed.runs


@pytest.mark.processes
@pytest.mark.skipif(not Path(os.environ.get("PERRON_DATA", ""), "libsvm", "a9a.gz").is_file(), reason="a9a is not here")
def test_a_study_of_a9a_by_commands(folder):
    text = STUDY[: STUDY.index("[problem]")].replace("nodes = 3", "nodes = 7")
    problem = 'kind = "logistic"\ndata = "a9a"\nsamples = 3000\nl2 = 0.01\npartition = "sorted"\n'
    (folder / "a9a.toml").write_text(f"{text}[problem]\n{problem}")

    def perron(*arguments):
        command = [sys.executable, "-m", "perron", "study", *arguments]
        return subprocess.run(command, cwd=folder, check=True, timeout=HANG, capture_output=True, text=True)

    perron("run", "a9a.toml", "--workers", "1")
    assert run_study(load(folder / "a9a.toml"), folder / "results" / "a9a", workers=1).reused == 2
    assert "Push-Pull" in perron("show", "results/a9a").stdout
    table = read_study(folder / "results" / "a9a").table
    assert table["test_accuracy"].notna().all()
    best = LinearModel.from_data(7, data="a9a", samples=3000, l2=0.01, partition="sorted").optimum
    first = table[table["step"] == 0]
    assert first["distance_sq"].tolist() == pytest.approx([float(best.square().sum())] * 2, rel=1e-12)


def test_a_lasso_in_a_study(folder):
    text = STUDY[: STUDY.index("[problem]")].replace(
        '"push_pull", "centralized"', '{ name = "push_pull_atc", move = "proximal" }'
    )
    text = text.replace(', "test_accuracy"', "").replace("steps = 40", "steps = 400")
    problem = 'kind = "lasso"\ndata = "synthetic"\nsamples = 200\ndim = 8\nl1 = [0.05, 0.1]\n'
    (folder / "lasso.toml").write_text(f"{text}[problem]\n{problem}")
    for run in load(folder / "lasso.toml").runs:
        table, warned = execute(run)
        assert not warned
        assert table["distance_sq"].iloc[-1] < 1e-20 < table["distance_sq"].iloc[0]
        assert np.isnan(table["predicted"]).all()  # theory knows no level of a lasso
    plain = load(folder / "lasso.toml", {"algorithms": "push_pull"}).runs[0]
    with pytest.raises(PerronError, match="would ignore l1"):
        execute(plain)


def test_without_data_it_is_the_papers(folder):
    problem = load("synthetic-speedup", {"problem.samples": 1440, "nodes": 8, "problem.batch": 20}).runs[0].build()[0]
    assert type(problem) is Logistic


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("file:sites/patients.csv", "a8a", "no data 'a8a'; did you mean.*There are: .*a9a.*synthetic, file:PATH"),
        ("file:sites/patients.csv", "file:none.csv", r"Cannot read .*none\.csv"),
        ('"iid"', '"random"', "no partition 'random'.*There are: iid.*sorted, column:NAME"),
        ("l2 = 0.05", "regularization = 0.05", "no option 'regularization'.*There are: .*l2"),
        ('kind = "logistic"', 'kind = "logistics"', "did you mean 'logistic'"),
        ("batch = 2", 'batch = "some"', "batch"),
        ('data = "file:sites/patients.csv"', "", "is for a dataset or a file: add data"),
        ('kind = "logistic"\ndata = "file:sites/patients.csv"', 'kind = "ridge"', "data: it is required"),
    ],
)
def test_mistakes(folder, old, new, message):
    assert old in STUDY
    (folder / "study.toml").write_text(STUDY.replace(old, new))
    with pytest.raises(PerronError, match=message):
        _ = load(folder / "study.toml").runs


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("batch = 2", "batch = 8", "1 to 7 samples, as many as the node with the fewest; got batch=8"),
        ("nodes = 3", "nodes = 4", r"belong to 3 nodes \(bonn, oslo, rome\).*set nodes = 3"),
        ('kind = "logistic"', 'kind = "ridge"', "needs numbers as targets; got no, yes"),
        ('target = "ill"', 'target = "state"', r"no column of patients\.csv 'state'"),
    ],
)
def test_mistakes_that_only_the_data_show(folder, old, new, message):
    assert old in STUDY
    (folder / "study.toml").write_text(STUDY.replace(old, new))
    with pytest.raises(PerronError, match=message):
        load(folder / "study.toml").runs[0].build()

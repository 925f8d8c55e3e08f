"""Learning rates that are found: the same candidates and budget for all, extended grids, halving, resumption."""

import json
import tomllib

import numpy as np
import pandas as pd
import pytest

from perron.cli.main import _run
from perron.errors import PerronError
from perron.studies import runner
from perron.studies.job import execute
from perron.studies.results import Outcome
from perron.studies.spec import Study, load
from perron.studies.toml import to_toml
from perron.studies.tuner import tune

TUNED = {
    "name": "mine", "conclusion": "curves", "topologies": "ring", "nodes": 4, "weights": "uniform",
    "algorithms": ["push_pull", "dsgd"], "lr": "tune", "steps": 60, "every": 3, "trials": 2, "seeds": [0, 5],
    "problem": {"kind": "quadratic", "dim": 3}, "tune": {"grid": [0.03, 0.1, 0.3]},
}  # fmt: skip


class Runner:
    """Runs studies in this process, and keeps what it ran."""

    def __init__(self):
        self.studies, self.tables = [], {}

    def __call__(self, study, _):
        self.studies.append(study)
        with np.errstate(all="ignore"):
            for run in study.runs:
                if run.key not in self.tables:
                    self.tables[run.key] = execute(run)[0]
        table = pd.concat([self.tables[run.key] for run in study.runs], ignore_index=True)
        return Outcome(study, "", table, 0.0)

    @property
    def table(self):
        return pd.concat(self.tables.values(), ignore_index=True)


def found(**changes):
    study, run = Study(**(TUNED | changes)), Runner()
    return study, run, tune(study, "", run)


def test_the_best_of_the_grid_is_found_with_a_seed_of_its_own():
    study, run, tuning = found(tune={"grid": [0.01, 0.1, 0.3, 20.0]})
    assert {one for table in run.tables.values() for one in table["seed"]} == {6}
    last = run.table[run.table.step >= 57]  # 2 of 21 records
    means = last.groupby(["algorithm", "lr"])["grad_norm_sq"].mean().unstack()
    assert tuning.study.tuned == {
        f"{name} on ring(4), uniform": means.loc[name].idxmin() for name in ("push_pull", "dsgd")
    }
    rates = {(one.algorithm, one.seed): one.lr for one in tuning.study.runs}
    assert rates == {(name, seed): means.loc[name].idxmin() for name in ("push_pull", "dsgd") for seed in (0, 5)}
    assert {one.lr for one in study.runs} == {"tune"}
    assert not tuning.study.is_tuned


def test_every_algorithm_gets_the_same_candidates_and_gradients():
    _, run, tuning = found(tune={"grid": [0.001, 0.003]})  # too small: extended, for both alike
    rates = {name: sorted(set(own["lr_setting"].astype(float))) for name, own in run.table.groupby("algorithm")}
    assert rates["push_pull"] == rates["dsgd"] == tuning.conclusion.summary["rates"]
    assert len(rates["dsgd"]) > 2
    spent = run.table.groupby(["algorithm", "run", "trial"])["gradients"].max().groupby("algorithm").sum()
    assert spent["push_pull"] == spent["dsgd"] == tuning.conclusion.summary["gradients"] / 2
    assert f"Each of 2 took {spent['dsgd']:.3g} gradients of a node" in tuning.conclusion.sentences[1]
    assert "The grid was extended for all" in tuning.conclusion.sentences[2]


def test_a_grid_is_extended_downwards_where_everything_diverges():
    _, _, tuning = found(algorithms="push_pull", tune={"grid": [10.0, 30.0], "extend": 4})
    assert 0.01 < tuning.study.tuned["push_pull on ring(4), uniform"] < 3
    _, _, none = found(algorithms="push_pull", tune={"grid": [100.0, 300.0], "extend": 0})
    assert none.study.tuned == {}
    assert none.conclusion.tables["Learning rates"]["lr"].item() == "none"
    with pytest.raises(PerronError, match="no learning rate was found"):
        execute(none.study.runs[0])


def test_halving_gives_all_the_same_rounds():
    grid = [0.003, 0.01, 0.03, 0.1, 0.3, 0.6, 1.0, 2.0, 4.0]
    _, run, tuning = found(steps=90, tune={"grid": grid, "method": "halving", "extend": 0})
    planned = [
        (study.steps, {choice.name: choice.options.get("lr", grid) for choice in study.algorithms})
        for study in run.studies
    ]
    assert [steps for steps, _ in planned] == [10, 30, 90]
    assert [{len(rates) for rates in each.values()} for _, each in planned] == [{9}, {3}, {1}]
    whole = found(steps=90, tune={"grid": grid, "method": "grid", "extend": 0})[2]
    assert (
        tuning.conclusion.summary["gradients"] == 2 * 2 * (9 * 10 + 3 * 30 + 90) < whole.conclusion.summary["gradients"]
    )
    assert tuning.study.tuned.keys() == whole.study.tuned.keys()


def test_a_budget_shortens_the_runs():
    _, run, tuning = found(tune={"grid": [0.03, 0.1, 0.3], "budget": 180, "extend": 0})
    assert {study.steps for study in run.studies} == {30}  # three candidates, two trials
    assert tuning.conclusion.summary["gradients"] == 2 * 180
    with pytest.raises(PerronError, match="budget is not enough for 3 learning rates and 2 trials"):
        found(tune={"grid": [0.03, 0.1, 0.3], "budget": 5})


def test_with_until_the_fastest_is_the_best():
    _, run, tuning = found(algorithms="push_pull", steps=400, every=1, trials=1, until={"grad_norm_sq": 1e-6})
    lasts = run.table.groupby("lr")["gradients"].max()
    reached = run.table[run.table.grad_norm_sq <= 1e-6].groupby("lr")["gradients"].min()
    assert tuning.study.tuned["push_pull on ring(4), uniform"] == reached.idxmin()
    assert lasts[reached.idxmin()] == reached.min()


def test_places_are_told_apart_by_what_varies_and_fixed_rates_stay():
    algorithms = ["push_pull", {"name": "dsgd", "lr": 0.07}]
    _, run, tuning = found(algorithms=algorithms, problem=TUNED["problem"] | {"dim": [2, 3]}, nodes=[3, 4])
    assert set(run.table["algorithm"]) == {"push_pull"}
    assert set(tuning.study.tuned) == {f"push_pull on ring({n}), uniform, dim {dim}" for n in (3, 4) for dim in (2, 3)}
    assert {one.lr for one in tuning.study.runs if one.algorithm == "dsgd"} == {0.07}
    again = Study.model_validate(tomllib.loads(to_toml(tuning.study)))
    assert again == tuning.study
    assert [one.key for one in again.runs] == [one.key for one in tuning.study.runs]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lr": ["tune", 0.1]}, '"tune" stands alone'),
        ({"lr": {"default": 0.1, "ring": "tune"}}, '"tune" stands alone'),
        ({"tuned": {"push_pull on rign(4), uniform": 0.1}}, r"did you mean 'push_pull on ring\(4\), uniform'"),
        ({"tune": {"grid": [0.1, -1.0]}}, "tune.grid.1"),
        ({"tune": {"metod": "grid"}}, "tune.metod"),
    ],
)
def test_mistakes_are_found_before_anything_runs(change, message):
    with pytest.raises(ValueError, match=message):
        Study(**(TUNED | change))
    with pytest.raises(PerronError, match="nothing to tune"):
        tune(Study(**(TUNED | {"lr": 0.1})), "")


@pytest.mark.processes
def test_a_study_is_tuned_and_run_and_resumed(tmp_path, capsys, monkeypatch):
    path = Study(**(TUNED | {"algorithms": "push_pull", "tune": {"grid": [0.1, 0.3, 20.0]}})).save(
        tmp_path / "mine.toml"
    )
    monkeypatch.chdir(tmp_path)
    outcome = runner.run_study(load(path), tmp_path / "results" / "mine", workers=1)
    assert outcome.finished
    assert set(outcome.table["lr"]) == set(outcome.study.tuned.values())
    assert set(outcome.table["seed"]) == {0, 5}
    assert _run(["tune", "mine.toml", "--workers", "1", "--json"], debug=True) == 0  # which finds all runs done
    printed = json.loads(capsys.readouterr().out)
    assert printed["tuned"] == outcome.study.tuned
    with monkeypatch.context() as patch:
        patch.setattr(runner, "_run_all", lambda *_: pytest.fail("a finished run was repeated"))
        again = runner.run_study(load(path), tmp_path / "results" / "mine", workers=1)
        assert _run(["tune", "mine.toml", "--workers", "1"], debug=True) == 0
    assert again.reused == 2
    text = capsys.readouterr().out
    keys = tomllib.loads(text[text.index('lr = "tune"') :])
    assert keys == {"lr": "tune", "tuned": outcome.study.tuned}


def test_a_check_tells_what_tuning_costs(tmp_path, capsys):
    path = Study(**TUNED).save(tmp_path / "mine.toml")
    assert _run(["study", "check", str(path)], debug=True) == 0
    # Two algorithms, three rates, one seed; four nodes, two trials, 60 steps.
    assert "Before that, lr is tuned: 6 runs or more, 2.89e+03 gradients." in capsys.readouterr().out

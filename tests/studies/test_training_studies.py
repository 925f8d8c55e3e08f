"""Studies that train: schedules, rounds, learning rates of each algorithm, and the conclusion about tuned ones."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from perron import ALGORITHMS, simulate
from perron.errors import PerronError
from perron.plots import Chart
from perron.studies import conclusions
from perron.studies.conclusions.accuracy import _panel as speedup_panel
from perron.studies.conclusions.training import _best as best_of
from perron.studies.job import execute
from perron.studies.results import Outcome
from perron.studies.spec import Study, load

BASE = {
    "topologies": ["ring"], "nodes": 4, "lr": 0.02, "steps": 60, "trials": 2, "conclusion": "comparison",
    "problem": {"kind": "quadratic", "noise_std": 0.1},
}  # fmt: skip


def study(**changes):
    return Study.model_validate(BASE | changes)


@pytest.mark.parametrize(
    ("changes", "rate", "rounds"),
    [
        ({"warmup": 10}, lambda t: 0.02 * min((t + 1) / 10, 1), 1),
        ({"decay": "cosine"}, lambda t: 0.01 * (1 + np.cos(np.pi * t / 60)), 1),
        ({"warmup": 5, "decay": "cosine", "rounds": 3}, lambda t: min((t + 1) / 5, 1) * 0.01 * (1 + np.cos(np.pi * t / 60)), 3),
    ],
)  # fmt: skip
def test_schedules_and_rounds_of_a_run(changes, rate, rounds):
    (run,) = study(**changes).runs
    table, _ = execute(run)
    problem, algorithm, mixing = run.build()
    history = simulate(problem, algorithm, mixing, steps=60, lr=rate, trials=2, rounds=rounds, progress=False)
    last = table[table.step == 60].sort_values("trial").grad_norm_sq
    assert last.tolist() == pytest.approx(history["grad_norm_sq"][-1].tolist(), rel=1e-9)
    assert table.predicted.isna().all() == ("decay" in changes)  # a floor is that of a constant lr
    (constant,) = study().runs
    assert run.key != constant.key


def test_keys_of_runs_are_those_of_earlier_versions():
    """So that results are found again: keys that came later count only where they are used."""
    keys = {name: load(name).runs[0].key for name in ("demo", "digits", "table-1")}
    assert keys == {"demo": "0fcde96d543b59ff", "digits": "14d1f16c567e7e0c", "table-1": "c3f52271fc2ee145"}


def test_algorithms_have_learning_rates_of_their_own():
    own = {"name": "push_pull", "move": "adamw", "lr": [0.1, 0.2], "weights": "uniform"}
    runs = study(algorithms=["push_pull", own], lr=[0.01, 0.02]).runs
    assert [(run.lr, run.weights, run.algorithm_options) for run in runs] == [
        (0.01, "random_integer", {}), (0.02, "random_integer", {}),
        (0.1, "uniform", {"move": "adamw"}), (0.2, "uniform", {"move": "adamw"}),
    ]  # fmt: skip
    assert study(algorithms=[{"name": "push_pull", "move": "adamw", "lr": 0.1}], lr="default").runs[0].lr == 0.1
    first, second = study(algorithms=["push_pull", {"name": "push_pull", "rounds": 2}]).runs
    assert (first.rounds, second.rounds) == (1, 2)
    assert (first.columns["algorithm"], second.columns["algorithm"]) == ("push_pull", "push_pull(rounds=2)")
    for lr in (-1.0, [], "fast"):
        with pytest.raises((ValueError, PerronError)):
            study(algorithms=[{"name": "push_pull", "lr": lr}])


def test_a_run_of_adamw_has_its_effective_step_and_floor():
    (run,) = study(algorithms=[{"name": "centralized", "move": "adamw"}]).runs
    table, _ = execute(run)
    deviation = 0.1 / 5**0.5
    assert table.effective_step.iloc[0] == pytest.approx(0.02 * 2 / deviation)  # lr sqrt(n) / s
    hessian = run.build()[0].hessians.mean(0)
    floor = 0.02 * 2 / deviation * deviation**2 * float(hessian.trace()) / 8
    assert table.predicted.iloc[0] == pytest.approx(floor)


def outcome(losses, **changes):
    """The results of a study whose losses at the end are ``losses[algorithm][lr]``, one for each trial."""
    whole = study(
        conclusion="tuned", metrics=["test_loss"], trials=3, steps=2, every=1, lr=[0.1, 0.2, 0.4],
        algorithms=[{"name": "centralized", "move": "adamw"}, {"name": "push_pull", "move": "adamw"}, "sgp"], **changes,
    )  # fmt: skip
    tables = []
    for run in whole.runs:
        last = np.array(losses[run.algorithm][run.lr])
        values = np.stack([last + 2, last + 1, last])
        facts = {"lr": run.lr, "effective_step": run.lr, "predicted": np.nan}
        columns = {"step": np.repeat([0, 1, 2], 3), "trial": np.tile([0, 1, 2], 3), "test_loss": values.ravel()}
        tables.append(pd.DataFrame(columns).assign(**run.columns, **facts))
    return Outcome(whole, Path(), pd.concat(tables, ignore_index=True), 1.0)


LOSSES = {
    "centralized": {0.1: [3.0, 3.0, 3.0], 0.2: [2.0, 2.1, 2.2], 0.4: [2.5, 2.5, 2.5]},
    "push_pull": {0.1: [2.5, 2.5, 2.5], 0.2: [1.0, 1.0, 5.0], 0.4: [2.02, 2.121, 2.222]},
    "sgp": {0.1: [2.4, 2.4, 2.4], 0.2: [2.3, 2.3, 2.3], 0.4: [np.nan, 2.0, 2.0]},
}


def test_every_algorithm_is_taken_at_its_best_lr():
    found = conclusions.conclude(outcome(LOSSES))
    central, tracked, sgp = found.summary["tuned"]
    assert [row["lr"] for row in (central, tracked, sgp)] == [0.2, 0.4, 0.2]  # lowest mean; not that of one lucky trial
    assert [row["at_edge"] for row in (central, tracked, sgp)] == [False, True, False]
    assert central["loss"] == pytest.approx(2.1)
    assert central["error"] == pytest.approx(0.1 / 3**0.5)
    assert tracked["excess"] == pytest.approx(0.01)
    assert tracked["excess_error"] == pytest.approx(0, abs=1e-12)  # paired: all trials are above by the same share
    assert np.isnan(central["excess"])
    (table,) = found.tables.values()
    assert table["best lr"].tolist() == ["0.2", "0.4 (end of the grid)", "0.2"]
    assert table["above centralized"].tolist()[:2] == ["", "+1.00 ± 0.00 %"]
    assert (
        "Nearest to the best centralized method is Push-Pull (AB, SAB), adamw: its test loss is +1.00 ± 0.00 %"
        in found.sentences[0]
    )
    assert "up to 3 learning rates" in found.sentences[1]
    drawn = {line.label: line for line in found.figures["by-lr"].panels[0].lines}
    assert drawn[ALGORITHMS["sgp"].about.title].x.tolist() == [0.1, 0.2]  # without the lr that diverged
    ends = {line.label: line.y[-1] for line in found.figures["curves"].panels[0].lines}
    assert ends["Centralized SGD, adamw"] == pytest.approx(2.1)


def test_the_studies_of_the_gpt_agree():
    """The study takes the methods, the model and the schedule of its tuning, and learning rates of its grid."""
    final, tuning = load("gpt"), load("gpt-tuning")
    for name in ("problem", "topologies", "nodes", "weights", "network_seed", "steps", "warmup", "decay"):
        assert getattr(final, name) == getattr(tuning, name)

    def grid(study):
        found = {}
        for run in study.runs:
            found.setdefault((run.algorithm, str(run.algorithm_options)), set()).add(run.lr)  # whatever the rounds
        return found

    assert grid(final).keys() == grid(tuning).keys()
    for algorithm, rates in grid(final).items():
        assert len(rates) == 1
        assert rates < grid(tuning)[algorithm]
        assert len(grid(tuning)[algorithm]) == 4
    assert {run.seed for run in final.runs}.isdisjoint(run.seed for run in tuning.runs)


# ---- the best of several trainings


def test_no_method_is_named_best_by_a_single_run():
    rows = [
        {"algorithm": name, "nodes": 8, "topology": "ring", "test_accuracy": value, "test_accuracy_error": np.nan}
        for name, value in (("one", 0.9353), ("other", 0.9352))
    ]
    told = best_of(rows, 1)
    assert told.startswith("Highest in this run: one with n = 8 on ring")
    assert "93.52%. A single run of each cannot tell the best" in told


@pytest.mark.parametrize(("errors", "begin", "tied"), [((0.01, 0.01), "Highest", True), ((1e-4, 1e-4), "Best", False)])
def test_the_best_is_named_with_those_that_cannot_be_told_from_it(errors, begin, tied):
    rows = [
        {"algorithm": name, "nodes": 8, "topology": "ring", "test_accuracy": value, "test_accuracy_error": error}
        for (name, value), error in zip((("one", 0.94), ("other", 0.93)), errors, strict=True)
    ]
    told = best_of(rows, 3)
    assert told.startswith(f"{begin}: one with n = 8 on ring")
    assert ("within two standard errors of it: other with n = 8 on ring" in told) is tied


def test_bars_of_a_figure_are_the_intervals_of_its_table():
    """Both ends, on either side of the estimate, as matplotlib draws them; no bar where an end is not known."""
    one = {"algorithm": [
        {"nodes": 1, "speedup": 1.0, "low": 1.0, "high": 1.0}, {"nodes": 4, "speedup": 3.1, "low": 3.0, "high": 5.7},
        {"nodes": 8, "speedup": 6.0, "low": 5.0, "high": np.inf},
    ]}  # fmt: skip
    drawn = Chart(panels=[speedup_panel("", one)], x="n", y="speedup", log_x=True, marks="points").figure()
    (bars,) = drawn.axes[0].containers
    (segments,) = bars.lines[2]
    ends = [sorted(segment[:, 1].tolist()) for segment in segments.get_segments()]
    assert np.allclose(ends, [[1.0, 1.0], [3.0, 5.7], [6.0, 6.0]])

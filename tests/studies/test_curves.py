"""From a sweep to a figure: the best step, means and bands, runs that diverged, panels, tables and files."""

import io
import json

import numpy as np
import pandas as pd
import pytest

import perron
from perron import History, simulate
from perron.cli.main import _run
from perron.errors import PerronError
from perron.networks import topologies
from perron.problems import Quadratic
from perron.studies import compare, conclude
from perron.studies.job import execute
from perron.studies.results import Manifest, Outcome, replace_table
from perron.studies.spec import Study

SWEEP = {
    "name": "sweep", "conclusion": "curves", "topologies": "ring", "nodes": 4, "weights": "uniform",
    "algorithms": ["push_pull", "dsgd"], "lr": [0.02, 0.1, 0.3, 30.0], "steps": 120, "every": 4, "trials": 2, "seeds": [0, 1, 2],
    "metrics": ["grad_norm_sq", "loss"], "problem": {"kind": "quadratic", "dim": 3, "noise_std": 0.02},
}  # fmt: skip
TABLE = "At the best step"


def studied(**changes) -> Outcome:
    """A study whose runs are done in this process."""
    study = Study(**(SWEEP | changes))
    with np.errstate(all="ignore"):
        table = pd.concat([execute(run)[0] for run in study.runs], ignore_index=True)
    return Outcome(study, "", table, 0.0)


@pytest.fixture(scope="module")
def sweep() -> Outcome:
    return studied()


def lines(conclusion, name="curves"):
    return {line.label: line for panel in conclusion.figures[name].panels for line in panel.lines}


# ---- the best step, means, bands


def test_each_algorithm_is_drawn_at_its_best_step(sweep):
    found = conclude(sweep)
    for algorithm, row in zip(("push_pull", "dsgd"), found.summary["curves"], strict=True):
        own = sweep.table[(sweep.table.algorithm == algorithm) & (sweep.table.step >= 112)]  # the last 3 of 31 records
        means = own.groupby("lr")["grad_norm_sq"].mean()
        assert row["lr"] == means.idxmin()
        assert row["grad_norm_sq"] == pytest.approx(means.min())
    assert "smallest mean squared gradient norm over the last tenth" in found.sentences[0]
    assert [line.mark for line in lines(found, "by-lr").values()] == [row["lr"] for row in found.summary["curves"]]


def test_curves_are_means_over_seeds_and_trials_with_two_standard_errors(sweep):
    found = conclude(sweep)
    row = found.summary["curves"][0]
    line = lines(found)[f"Push-Pull (AB, SAB), lr {row['lr']:g}"]
    own = sweep.table[(sweep.table.algorithm == "push_pull") & (sweep.table.lr == row["lr"])]
    each = own.groupby("step")["grad_norm_sq"]
    assert len(line.x) == 31
    assert np.allclose(line.y, each.mean())
    # Of the logarithm, by the delta method: positive, and to first order the plain standard error.
    relative = 2 * each.std() / np.sqrt(6) / each.mean()
    assert np.allclose(np.log(line.high / line.y)[1:], relative[1:])
    assert np.allclose(np.log(line.y / line.low)[1:], relative[1:])
    assert (line.low > 0).all()


def test_a_best_step_at_an_edge_is_marked():
    inner, outer = (conclude(studied(lr=lr, algorithms="dsgd")) for lr in ([0.02, 0.1, 30.0], [0.02, 0.1]))
    assert [one.summary["curves"][0]["lr"] for one in (inner, outer)] == [0.1, 0.1] or outer.summary["curves"][0][
        "edge"
    ]
    smallest = conclude(studied(lr=[0.3, 0.6], algorithms="dsgd"))
    assert smallest.tables[TABLE]["remark"].item() == "edge of the grid: extend it"
    assert any("edge of the grid" in sentence for sentence in smallest.sentences)


def test_a_goal_is_reached_with_the_fewest_steps():
    found = conclude(studied(figure={"target": 0.05}, algorithms="push_pull"))
    row = found.summary["curves"][0]
    means = found_means(studied(algorithms="push_pull"))
    first = {lr: own.index[(own <= 0.05).argmax()] if (own <= 0.05).any() else np.inf for lr, own in means.items()}
    assert row["to_target"] == min(first.values())
    assert row["lr"] == min(first, key=first.get) == 0.3  # at the end, a smaller step is better
    assert conclude(studied(algorithms="push_pull")).summary["curves"][0]["lr"] < 0.3
    assert found.tables[TABLE]["to the target"].item() == f"{row['to_target']:g}"
    assert "the fewest steps to squared gradient norm 0.05" in found.sentences[0]


def found_means(outcome):
    return {lr: own.groupby("step")["grad_norm_sq"].mean() for lr, own in outcome.table.groupby("lr")}


def test_runs_that_end_at_their_goal_keep_their_last_value():
    outcome = studied(
        until={"grad_norm_sq": 0.01}, algorithms="push_pull", lr=[0.1, 0.2], every=1, trials=1,
        problem=SWEEP["problem"] | {"noise_std": 0.3},
    )  # fmt: skip
    lasts = outcome.table.groupby(["lr", "seed"])["step"].max().unstack()
    assert (lasts.nunique(axis=1) > 1).any()  # seeds end at different steps
    found = conclude(outcome)
    row, line = found.summary["curves"][0], next(iter(lines(found).values()))
    assert line.x[-1] == lasts.loc[row["lr"]].max()
    assert line.y[-1] <= 0.01
    assert np.isfinite(row["to_target"])


# ---- runs that diverged


def test_runs_that_diverged_are_listed_and_do_not_set_the_axis(sweep):
    found = conclude(sweep)
    assert found.tables[TABLE]["diverged at lr"].tolist() == ["30", "30"]
    assert any("Push-Pull (AB, SAB) at lr 30" in sentence for sentence in found.sentences)
    start = sweep.table[sweep.table.step == 0]["grad_norm_sq"].max()
    assert sweep.table["grad_norm_sq"].max() > 1e20 * start
    for name in ("curves", "by-lr"):
        assert all(np.nanmax(line.high) <= start * (1 + 1e-9) for line in lines(found, name).values())


def test_a_transient_far_above_the_others_does_not_set_the_axis():
    outcome = studied(
        algorithms=["push_pull", "dsgd", "push_diging"], lr=0.1, metrics=["consensus_error_sq"]
    )  # which starts at zero
    usual = outcome.table["consensus_error_sq"].max()
    peak = (outcome.table.algorithm == "dsgd") & (outcome.table.step == 8)
    outcome.table.loc[peak, "consensus_error_sq"] = 1e12
    found = conclude(outcome)
    assert all(line.high.max() <= usual * 1.01 for line in lines(found).values())
    assert len(lines(found)["D-SGD (DGD), AWC, lr 0.1"].x) == 29  # without the start and the peak
    assert any("are not shown: D-SGD" in sentence for sentence in found.sentences)


def test_a_figure_of_runs_that_all_diverged_can_be_drawn(tmp_path):
    outcome = studied(lr=[30.0, 40.0, 50.0, 60.0, 70.0])  # 30 runs
    found = conclude(outcome)
    start = outcome.table[outcome.table.step == 0]["grad_norm_sq"].max()
    assert all("(diverged)" in label for label in lines(found))
    assert max(line.y.max() for line in lines(found).values()) <= 1e3 * start
    assert any("Every step of the grid diverged" in sentence for sentence in found.sentences)
    assert set(found.tables[TABLE]["remark"]) == {"diverged: try smaller steps"}
    figure = found.figures["curves"].figure()
    figure.canvas.draw()
    assert figure.axes[0].get_ylim()[1] < 1e6 * start
    found.save(tmp_path)


@pytest.mark.parametrize("steps", [0, 1])
def test_one_or_two_records_can_be_drawn(tmp_path, steps):
    outcome = studied(steps=max(steps, 1), every=10, trials=1, seeds=0)
    outcome.table = outcome.table[outcome.table.step == outcome.table.step.max()] if steps == 0 else outcome.table
    found = conclude(outcome)
    assert [len(line.x) for line in lines(found).values()] == [steps + 1] * 2
    assert all(path.stat().st_size for path in found.save(tmp_path))


# ---- axes, panels


def test_any_measured_column_is_an_axis(sweep):
    bytes_sent = compare(sweep, x="bytes", y="loss", where={"lr_setting": 0.1})
    row = bytes_sent.summary["curves"][0]
    own = sweep.table[(sweep.table.algorithm == "push_pull") & (sweep.table.lr == 0.1)]
    links = 8  # of a ring of four nodes, pull and push
    assert row["bytes"] == own["bytes"].max() == 120 * links * 3 * 8
    assert bytes_sent.figures["curves"].x == "kB sent"
    push_pull, dsgd = lines(bytes_sent).values()
    assert push_pull.x[-1] == 2 * dsgd.x[-1] == row["bytes"] / 1000
    against = compare(sweep, x="loss", y="grad_norm_sq", where={"lr_setting": 0.1})
    assert np.allclose(lines(against)["Push-Pull (AB, SAB), lr 0.1"].x, own.groupby("step")["loss"].mean())
    with pytest.raises(PerronError, match="no x axis of these results 'byte'; did you mean 'bytes'"):
        compare(sweep, x="byte")
    with pytest.raises(PerronError, match="no metric of these results 'los'; did you mean 'loss'"):
        compare(sweep, y="los")


def test_a_study_checks_its_figure_before_it_runs():
    many = {"topologies": ["ring", "exponential", "complete"], "nodes": [4, 5, 6], "weights": "uniform"}
    with pytest.raises(
        ValueError, match=r"18 panels, one for each topology \(3 values\) and nodes \(3 values\) and problem_dim"
    ) as caught:
        Study(**(SWEEP | many | {"problem": {"kind": "quadratic", "dim": [2, 3]}}))
    assert 'panels = ["problem_dim"]' in str(caught.value)
    assert "figure.where = { problem_dim = 2 }" in str(caught.value)
    Study(**(SWEEP | many | {"figure": {"panels": "topology"}}))
    Study(**(SWEEP | many | {"figure": {"where": {"nodes": 4}}}))
    for figure, message in (
        ({"x": "bits"}, "did you mean 'bytes'"), ({"y": "distance_sq"}, "no metric of these results 'distance_sq'"),
        ({"panels": "topologie"}, "did you mean 'topology'"), ({"columns": "three"}, "columns"), ({"colums": "two"}, "colums"),
        ({"where": {"nodes": 7}}, "no run has nodes = 7; there are 4"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            Study(**(SWEEP | {"figure": figure}))


def test_panels_split_what_they_are_told_to_and_labels_the_rest():
    outcome = studied(
        nodes=[4, 5], lr=0.1, trials=1, problem=SWEEP["problem"] | {"dim": [2, 3]}, algorithms="push_pull"
    )
    by_all, by_nodes = compare(outcome), compare(outcome, panels="nodes")
    assert [panel.title for panel in by_all.figures["curves"].panels] == [
        "n = 4, dim 2", "n = 5, dim 2", "n = 4, dim 3", "n = 5, dim 3",
    ]  # fmt: skip
    assert [panel.title for panel in by_nodes.figures["curves"].panels] == ["n = 4", "n = 5"]
    assert list(lines(by_nodes)) == ["Push-Pull (AB, SAB), dim 2, lr 0.1", "Push-Pull (AB, SAB), dim 3, lr 0.1"]
    one = outcome.table[outcome.table.nodes == 4]
    many = pd.concat([one.assign(nodes=nodes, run=f"{nodes}" + one["run"]) for nodes in range(2, 15)])
    with pytest.raises(PerronError, match=r'26 curves; at most 12.* figure.panels = \["nodes"\]'):
        compare(Outcome(outcome.study, "", many, 0.0), panels=[])


def test_networks_are_the_independent_draws():
    """With several networks the standard error is that of their means, since trials on one network are alike."""
    outcome = studied(algorithms="push_pull", lr=0.1, weights="random_integer", network_seed=[0, 1, 2, 3])
    line = next(iter(lines(conclude(outcome)).values()))
    means = outcome.table.groupby(["step", "network_seed"])["grad_norm_sq"].mean().unstack()
    relative = 2 * means.std(axis=1) / 2 / means.mean(axis=1)
    assert np.allclose(line.y, means.mean(axis=1))
    assert np.allclose(np.log(line.high / line.y)[1:], relative[1:])


# ---- histories


def test_histories_give_the_same_as_a_study(sweep):
    problem = Quadratic.random(4, 3, noise_std=0.02)
    mixing = perron.Mixing.uniform(topologies.ring(4))
    common = {"steps": 120, "every": 4, "trials": 2, "metrics": ["grad_norm_sq", "loss"]}
    runs = [
        simulate(problem, "push_pull", mixing, lr=lr, seed=seed, **common)
        for lr in (0.02, 0.1, 0.3)
        for seed in (0, 1, 2)
    ]
    one, other = compare(runs, x="gradients"), compare(sweep, x="gradients", where={"algorithm": "push_pull"})
    (first,), (second,) = lines(one).items(), lines(other).items()
    assert first[0] == second[0]
    for name in ("x", "y", "low", "high"):
        assert np.allclose(getattr(first[1], name), getattr(second[1], name))


def test_interrupted_runs_end_where_they_were_interrupted():
    problem, mixing = Quadratic.random(4, 3), perron.Mixing.uniform(topologies.ring(4))
    whole = simulate(problem, "push_pull", mixing, lr=0.1, steps=100, every=10)
    values, costs = ({name: array[:4] for name, array in kind.items()} for kind in (whole.values, whole.costs))
    part = History(whole.steps[:4], values, whole.trials, whole.about, True, costs)
    found = compare([whole, part])
    assert next(iter(lines(found).values())).x[-1] == 30
    assert found.tables[TABLE]["remark"].item() == "1 of 2 runs interrupted"


def test_the_same_run_in_two_results_counts_once(sweep):
    once, twice = compare(sweep), compare([sweep, sweep])
    pd.testing.assert_frame_equal(twice.tables[TABLE], once.tables[TABLE])
    assert twice.sentences == [*once.sentences, "Runs that are in several of the results count once: 24 were left out."]


def test_only_results_are_compared():
    with pytest.raises(PerronError, match="takes histories, results of studies"):
        compare([3])
    with pytest.raises(PerronError, match="no results to compare"):
        compare([])


# ---- files


def test_figures_fit_a_page_and_their_fonts_are_embedded(sweep, tmp_path):
    for columns, points in (("one", 252), ("two", 515.52)):
        pdf = compare(sweep, columns=columns).figures["curves"].save(tmp_path / "figure.pdf").read_bytes()
        assert f"/MediaBox [ 0 0 {points:g} ".encode() in pdf
        assert b"/FontFile2" in pdf
        assert b"/Subtype /Type3" not in pdf
    figure = compare(sweep).figures["curves"].figure()
    drawn = figure.axes[0].get_lines()
    assert len({(line.get_linestyle(), line.get_marker()) for line in drawn}) == len(drawn)  # told apart in grey
    sizes = {
        text.get_fontsize() for text in figure.findobj(lambda one: hasattr(one, "get_fontsize")) if text.get_text()
    }
    assert sizes == {8.0}


def test_latex_is_asked_for_where_it_is_missing(sweep, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PerronError, match="needs the program latex and dvipng; install TeX"):
        compare(sweep, latex=True).save(tmp_path)
    chart = compare(sweep, latex=True).figures["curves"]
    assert chart._text(r"50% of a_b $x_1$") == r"50\% of a\_b $x_1$"


def test_the_table_is_written_as_markdown_csv_and_latex(sweep, tmp_path):
    found = compare(sweep, x="bytes")
    paths = {path.suffix: path for path in found.save(tmp_path)}
    rows = pd.read_csv(paths[".csv"])
    assert rows["squared gradient norm"].to_numpy() == pytest.approx(
        [row["grad_norm_sq"] for row in found.summary["curves"]], rel=1e-3
    )
    markdown = paths[".md"].read_text().splitlines()
    assert len(markdown) == 2 + len(rows)
    assert markdown[2].startswith("| Push-Pull (AB, SAB) | ")
    latex = paths[".tex"].read_text()
    assert latex.count(r"\\") == 1 + len(rows)
    assert latex.startswith(r"\begin{tabular}{" + "l" * len(rows.columns) + "}")


def test_a_comparison_shows_itself_in_a_notebook(sweep):
    page = compare(sweep)._repr_html_()
    assert page.count("<svg") == 2
    assert "<th>best lr</th>" in page
    assert repr(compare(sweep)) == "<Conclusion: figures curves, by-lr; tables At the best step>"


def test_studies_are_compared_on_the_command_line(sweep, tmp_path, capsys):
    folders = [tmp_path / "a", tmp_path / "b"]
    other = studied(name="other", algorithms="push_pull", lr=0.05, trials=1, seeds=9)
    for outcome, folder in zip((sweep, other), folders, strict=True):
        folder.mkdir()
        replace_table(
            folder, outcome.table, Manifest(study=outcome.study.model_dump(mode="json"), seconds=0, reused=0, failed={})
        )
    out = tmp_path / "out"
    options = [
        "--x",
        "bytes",
        "--panels",
        "topology",
        "--where",
        "algorithm=push_pull",
        "--columns",
        "two",
        "--out",
        str(out),
    ]
    assert _run(["study", "compare", *map(str, folders), *options, "--json"], debug=True) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["algorithm"] for row in found["summary"]["curves"]] == [
        "Push-Pull (AB, SAB), study sweep", "Push-Pull (AB, SAB), study other",
    ]  # fmt: skip
    assert {path.name for path in out.iterdir()} >= {"curves.pdf", "curves.png", "table-at-the-best-step.tex"}
    assert _run(["study", "compare", str(folders[0]), "--x", "bites", "--out", str(out)], debug=False) == 1
    assert "did you mean 'bytes'" in capsys.readouterr().err
    assert len(pd.read_csv(io.StringIO((out / "table-at-the-best-step.csv").read_text()))) == 2

"""The report without a browser: its numbers are the study's, nothing in it escapes, nothing is loaded, nothing is too large."""

import base64
import gzip
import hashlib
import itertools
import json
import re
import shutil
import tomllib
import warnings

import numpy as np
import pandas as pd
import pytest
from reports import OTHERS, PLOTLY, SPEEDUP, TRAINING, Page, run_here
from typer.testing import CliRunner

from perron import report
from perron.cli import main as cli
from perron.cli import study as study_cli
from perron.errors import PerronError
from perron.networks.spectral import describe
from perron.report import curves, facts, networks
from perron.studies.conclusions import conclude
from perron.studies.runner import Outcome, read_study
from perron.studies.spec import Study, load, shipped
from perron.studies.toml import to_toml

LIMIT = 10_000_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return run_here(SPEEDUP, tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def outcome(folder):
    return read_study(folder)


@pytest.fixture(scope="module")
def html(outcome):
    return report.page([outcome])


@pytest.fixture(scope="module")
def page(html):
    return Page(html)


# ---- numbers


def test_tables_and_sentences_are_those_of_the_conclusion(outcome, page):
    found = conclude(outcome)
    for title, table in found.tables.items():
        assert page.tables[title] == [list(table.columns), *table.to_numpy().tolist()]
    for sentence in found.sentences:
        assert " ".join(sentence.split()) in page.text


def test_curves_are_means_over_trials(outcome, page):
    drawn = page.data[0]["curves"]
    assert len(drawn["runs"]) == outcome.table.run.nunique() == 6
    for one in drawn["runs"]:
        part = outcome.table[outcome.table.run == one["run"]]
        steps = drawn["steps"][one["steps"]]
        for metric in ("grad_norm_sq", "consensus_error_sq"):
            by_step = part.groupby("step")[metric]
            for name, values in (
                ("mean", by_step.mean()),
                ("error", by_step.sem()),
                ("low", by_step.quantile(0.1)),
                ("high", by_step.quantile(0.9)),
            ):
                np.testing.assert_allclose(one["values"][metric][name], values.loc[steps], rtol=5.1e-5, atol=1e-300)
        named = [dim["values"][at] for dim, at in zip(drawn["dimensions"], one["at"], strict=True)]
        assert named == [f"n = {part.nodes.iloc[0]}", part.topology.iloc[0]]
        assert one["floor"] == pytest.approx(part.predicted.iloc[0], rel=1e-5)


def test_bytes_are_those_that_the_simulator_counted(outcome, page):
    for one in page.data[0]["curves"]["runs"]:
        part = outcome.table[outcome.table.run == one["run"]]
        assert one["per_step"]["bytes"] * 600 == part.bytes_sent.max() > 0
        assert one["per_step"]["seconds"] * 600 == pytest.approx(3.0)
        assert one["per_step"]["epochs"] is None  # a quadratic has no data


def test_complete_table_is_exact(outcome, page):
    kept = page.data[0]["complete"]
    raw = gzip.decompress(base64.b64decode(kept["numbers"]))
    count = sum(kept["rows"])
    assert count == len(outcome.table)
    whole = np.frombuffer(raw[: 8 * count], "<i4").reshape(2, count)
    exact = np.frombuffer(raw[8 * count :], "<f8").reshape(len(kept["metrics"]), count)
    assert (whole[0] == outcome.table.step).all()
    assert (whole[1] == outcome.table.trial).all()
    for name, values in zip(kept["metrics"], exact, strict=True):
        assert (values == outcome.table[name]).all()
    names = dict(zip(kept["columns"], kept["runs"][0], strict=True))
    assert (names["run"], names["nodes"]) == (outcome.table.run.iloc[0], 2)


def test_networks_have_their_perron_weights(outcome, page):
    drawn = {one["title"]: one for one in page.data[0]["networks"]}
    assert list(drawn) == [
        "ring, n = 2",
        "ring, n = 4",
        "ring, n = 8",
        "exponential, n = 2",
        "exponential, n = 4",
        "exponential, n = 8",
    ]
    run = next(run for run in outcome.study.runs if (run.topology, run.nodes) == ("ring", 8))
    metrics = describe(run.mixing())
    np.testing.assert_allclose(drawn["ring, n = 8"]["pull"]["weights"], metrics.pull.perron, rtol=1e-3)
    np.testing.assert_allclose(drawn["ring, n = 8"]["push"]["weights"], metrics.push.perron, rtol=1e-3)
    assert len(drawn["ring, n = 8"]["pull"]["arrows"]) == 8
    assert not drawn["ring, n = 8"]["pull"]["lines"]
    assert drawn["ring, n = 2"]["pull"]["undirected"]
    row = dict(zip(page.tables["How the networks mix"][0], page.tables["How the networks mix"][3], strict=True))
    assert row["rho_2 of A"] == f"{metrics.pull.rho_2:.4g}"
    assert row["c"] == f"{metrics.c:.4g}"


def test_speedup_chart_shows_the_fit_with_its_interval(outcome, page):
    slopes = {row["topology"]: row for row in conclude(outcome).summary["slopes"]}
    (chart,) = page.data[0]["charts"]
    for panel in chart["panels"]:
        own, fit = slopes[panel["title"]], panel["lines"][0]["fit"]
        for end, name in (("y", "slope of level/c"), ("low", "level/c low"), ("high", "level/c high")):
            slope = np.diff(np.log(fit[end])) / np.diff(np.log(fit["x"]))
            assert slope[0] == pytest.approx(own[name], abs=1e-6)
        assert f"slope {own['slope of level/c']:.2f}" in panel["note"]
        assert panel["lines"][1]["guide"]


@pytest.mark.parametrize("kind", OTHERS)
def test_other_conclusions(kind, tmp_path):
    outcome = read_study(run_here({"name": kind} | OTHERS[kind], tmp_path / kind))
    page = Page(report.page([outcome]))
    found = conclude(outcome)
    assert set(found.tables) <= set(page.tables)
    data = page.data[0]
    if kind == "time_to_accuracy":
        row = next(
            row for row in found.summary["times"] if row["algorithm"].startswith("Push-Pull") and row["nodes"] == 4
        )
        line = next(line for line in data["charts"][0]["panels"][0]["lines"] if line["label"].startswith("Push-Pull"))
        assert line["y"][line["x"].index(4)] == pytest.approx(row["speedup"])
        alone = data["curves"]["runs"][0]  # centralized, one node
        assert alone["per_step"]["bytes"] == 0
    if kind == "comparison":
        lines = {line["label"]: line["y"] for line in data["charts"][0]["panels"][0]["lines"]}
        assert {name: values[0] for name, values in lines.items()} == pytest.approx(
            {row["algorithm"]: row["of_predicted"] for row in found.summary["levels"]}
        )
        assert data["curves"]["dimensions"][0]["values"][-1].endswith("weights balanced")
    if kind == "residual":
        assert data["charts"][0]["panels"][0]["lines"][0]["x"] == [1, 10]
    if kind == "topologies":
        assert data["curves"] is None


def test_training_has_a_heat_map_and_passes(tmp_path):
    outcome = read_study(run_here(TRAINING, tmp_path))
    page = Page(report.page([outcome]))
    data = page.data[0]
    assert [one["title"] for one in data["heat_maps"]] == ["iid, n = 4", "dirichlet, n = 4"]
    for one in data["heat_maps"]:
        assert np.sum(one["counts"]) == 200
        assert page.tables[f"Samples of each class, {one['title']}"][1][1:] == [
            str(count) for count in one["counts"][0]
        ]
    four = next(run for run in data["curves"]["runs"] if run["at"] == [1])
    assert four["per_step"]["epochs"] == pytest.approx(4 * 2 / 200)
    parameters = 64 * 8 + 8 + 8 * 10 + 10
    assert four["per_step"]["bytes"] == 2 * 4 * parameters * 4  # two vectors along each of four links, in float32
    assert not data["curves"]["metrics"][0]["share"]
    assert data["curves"]["metrics"][1]["share"]


def test_a_step_of_its_own_for_each_topology_is_no_choice(tmp_path):
    own = SPEEDUP | {"lr": {"default": 0.1, "ring": 0.05}, "steps": 20, "every": 1, "nodes": [2, 4], "trials": 2}
    drawn = Page(report.page([read_study(run_here(own, tmp_path))])).data[0]["curves"]
    assert [dim["title"] for dim in drawn["dimensions"]] == ["nodes", "topology"]
    assert drawn["dimensions"][1]["values"] == ["ring, learning rate 0.05", "exponential, learning rate 0.1"]


# ---- what was run


@pytest.mark.parametrize("name", shipped())
def test_the_study_file_in_the_page_is_the_study(name):
    study = load(name)
    assert Study.model_validate(tomllib.loads(to_toml(study))) == study
    assert facts.command(study) == (f"perron study run {name}", False)


def test_study_file_survives_odd_texts():
    odd = SPEEDUP | {
        "title": 'a "quote" \\ and \\n',
        "about": 'two\nlines \x7f\twith """ and \\ and 😀',
        "topologies": [{"name": "random", "probability": 0.5}],
    }
    study = Study.model_validate(odd | {"problem": {"kind": "logistic", "batch": "all"}})
    assert Study.model_validate(tomllib.loads(to_toml(study))) == study
    assert facts.command(study) == ("perron study run small.toml", True)


def test_machine_and_duration(tmp_path, page):
    assert "0.1.0" in page.text
    assert "1.5 s" in page.text
    machine = {"system": "Linux", "cores": 2, "python": "3.11", "torch": "2", "numpy": "2"}
    said = run_here(OTHERS["topologies"], tmp_path, machine=machine, commit="abc123", core_seconds=7300.0)
    text = Page(report.page([read_study(said)])).text
    assert all(word in text for word in ("Linux, 2 cores", "abc123", "2 h 1 min", "PyTorch 2"))


# ---- what went wrong


def test_incomplete_study_says_what_is_missing(tmp_path):
    study = Study.model_validate(OTHERS["comparison"])
    first, second, third = study.runs
    said = run_here(
        OTHERS["comparison"], tmp_path, without=(first.key, second.key), failed={first.key: f"{first}: ran out of <memory>"},
        warned={third.key: f"{third}: careful"},
    )  # fmt: skip
    html = report.page([read_study(said)])
    text = Page(html).text
    assert "1 of 3 runs failed" in text
    assert "ran out of <memory>" in text
    assert "<memory>" not in html
    assert "1 of 3 runs did not finish" in text
    assert str(second) in text
    assert "1 of 3 runs gave warnings" in text
    assert "1 of 3 finished" in text


def test_study_without_results_gets_a_page(tmp_path):
    study = Study.model_validate(OTHERS["comparison"])
    failed = {run.key: f"{run}: killed" for run in study.runs}
    outcome = read_study(run_here(OTHERS["comparison"], tmp_path, without=tuple(failed), failed=failed))
    text = Page(report.page([outcome])).text
    assert "No conclusion could be drawn" in text
    assert "3 of 3 runs failed" in text
    with pytest.raises(PerronError, match="every run failed"):
        study_cli.finish(outcome)
    assert (tmp_path / "report.html").exists()


@pytest.mark.parametrize("content", [None, {}, {"manifest.json": "{"}, {"manifest.json": '{"study": {}}'}])
def test_bad_directory_is_one_line(content, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "bad"
    if content is not None:
        folder.mkdir()
        for name, text in content.items():
            (folder / name).write_text(text)
    monkeypatch.setattr("sys.argv", ["perron", "report", str(folder)])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    said = capsys.readouterr().err
    assert stopped.value.code == 1
    assert said.count("\n") == 1
    assert "holds no results of a study" in said
    assert not list(folder.glob("report.html")) if folder.exists() else True


@pytest.mark.parametrize("value", [3, -1, [], {}, "x", None, float("inf")])
def test_a_manifest_with_other_values_is_refused_or_read(value, folder, tmp_path):
    """Whatever stands in a field: the report is made, or an error names the field."""
    shutil.copytree(folder, tmp_path / "copy")
    path = tmp_path / "copy" / "manifest.json"
    whole = json.loads(path.read_text())
    refused = []
    for name in whole:
        path.write_text(json.dumps(whole | {name: value}))
        try:
            read_study(path.parent)
        except PerronError as error:
            assert (
                f"manifest.json.{name}" in str(error)
                or name == "study"
                or (name == "sha256" and "damaged" in str(error))
            )
            refused.append(name)
    assert {"seconds", "failed"} & set(refused)
    path.write_text(json.dumps(value))
    with pytest.raises(PerronError, match=r"manifest\.json"):
        read_study(path.parent)


# ---- one page, safe and small


def test_command_writes_one_page_about_several_studies(folder, tmp_path):
    other = run_here(OTHERS["topologies"] | {"title": "The other one"}, tmp_path / "other")
    out = tmp_path / "all.html"
    done = CliRunner().invoke(cli.app, ["report", str(folder), str(other), "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert "all.html" in done.output
    page = Page(out.read_text())
    assert page.headings[0] == ["h1", "2 studies"]
    links = [attrs["href"] for tag, attrs in page.tags if tag == "a"]
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert {"#study-1", "#study-2"} <= set(links)
    assert {link.removeprefix("#") for link in links} <= set(ids)
    assert len(ids) == len(set(ids))
    assert page.text.count("The other one") >= 1
    assert len(page.data) == 2
    alone = CliRunner().invoke(cli.app, ["report", str(other)])
    assert alone.exit_code == 0
    assert (other / "report.html").exists()


def test_a_study_that_ends_writes_its_page(outcome, html, capsys):
    study_cli.finish(outcome)
    assert f"{outcome.folder / 'report.html'}" in capsys.readouterr().out.replace("\n", "")
    assert (outcome.folder / "report.html").read_text() == html


def test_nothing_is_loaded_and_only_own_scripts_run(html, page):
    assert len(html.encode()) < LIMIT
    for tag, attrs in page.tags:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base", "form")
        assert "src" not in attrs
        assert attrs.get("href", "#").startswith("#")
        assert not [name for name in attrs if name.startswith("on") or name == "style"]
    style = re.search(r"<style>(.*?)</style>", html, re.DOTALL)[1]
    assert "url(" not in style
    assert "@import" not in style
    policy = next(attrs["content"] for tag, attrs in page.tags if attrs.get("http-equiv") == "Content-Security-Policy")
    rules = {part.split()[0]: part.split()[1:] for part in policy.split(";")}
    run = [text.replace("PLOTLY", PLOTLY) for attrs, text in page.scripts if "type" not in attrs]
    hashes = [f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in run]
    assert rules["default-src"] == ["'none'"]
    assert rules["script-src"] == hashes
    assert len(run) == 3
    assert f"'sha256-{base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()}'" in rules["style-src-elem"]
    assert "unsafe-inline" not in " ".join(itertools.chain(rules["script-src"], rules["style-src-elem"]))
    assert "eval" not in policy


def test_hostile_texts_stay_texts(tmp_path):
    evil = "<script>alert(1)</script>"
    own = OTHERS["topologies"] | {
        "title": evil,
        "about": f"</script><img src=x onerror=alert(2)> {evil} {{{{ 7 * 7 }}}}",
    }
    html = report.page([read_study(run_here(own, tmp_path))])
    page = Page(html)
    assert evil not in html
    assert "<img" not in html.replace(PLOTLY, "")
    assert page.headings[0] == ["h1", evil]
    assert len(page.scripts) == 4
    assert page.data[0]["title"] == evil
    assert "{{ 7 * 7 }}" in page.text


def test_560_runs_fit():
    study = load("table-1")
    records, trials = 251, 2
    each = pd.DataFrame([run.columns | {"c": 1.0, "lr": 0.1, "steps": 1000, "predicted": 1e-6} for run in study.runs])
    table = each.loc[np.repeat(each.index, records * trials)].reset_index(drop=True)
    table["step"] = np.tile(np.repeat(np.arange(records) * 4, trials), len(each))
    table["trial"] = np.tile(np.arange(trials), len(each) * records)
    table["grad_norm_sq"] = np.random.default_rng(0).exponential(size=len(table))
    outcome = Outcome(study, None, table, 1.0)
    most = curves.points([outcome], report.NUMBERS)
    drawn = curves.curves(outcome, {}, most)
    assert len(drawn["runs"]) == 560
    assert drawn["thinned"] == [len(drawn["steps"][0]), records]
    assert drawn["steps"][0][0] == 0
    assert drawn["steps"][0][-1] == 1000
    rest = LIMIT - len(json.dumps(drawn)) - report.WHOLE
    assert rest > 5_500_000  # plotly has 4.8 MB, tables and networks the rest
    visible = [run for run in drawn["runs"] if all(at in on for at, on in zip(run["at"], drawn["shown"], strict=True))]
    assert 7 <= len(visible) <= 14  # a first look that can be read


def test_thinning_keeps_ends_and_order():
    kept = curves.thinned(np.arange(1000), 100)
    assert kept[0] == 0
    assert kept[-1] == 999
    assert len(kept) <= 100
    assert (np.diff(kept) > 0).all()
    assert curves.thinned(np.arange(5), 100).tolist() == [0, 1, 2, 3, 4]


def test_large_networks_are_not_drawn(tmp_path, monkeypatch):
    monkeypatch.setattr(networks, "MOST_NODES", 3)
    data = Page(report.page([read_study(run_here(OTHERS["topologies"], tmp_path))])).data[0]
    assert data["networks"][0]["pull"]["at"] is None
    assert len(data["networks"][0]["pull"]["weights"]) == 4


# ---- colours


def luminance(colour):
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_contrast(theme):
    blocks = re.findall(r":root[^{]*\{(.*?)\}", (report.HERE / "page.css").read_text(), re.DOTALL)
    colours = dict(re.findall(r"--([\w-]+): (#\w{6})", blocks[theme]))
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    text = [
        (front, back) for front in ("ink", "muted", "accent", "bad") for back in ("paper", "raised")
    ] + [("on-accent", "accent"), ("bad", "bad-paper"), ("ink", "bad-paper"), ("ink", "node")]  # fmt: skip
    for front, back in text:
        assert contrast(colours[front], colours[back]) >= 4.5, (front, back)
    for number in range(1, 9):
        assert contrast(colours[f"c{number}"], colours["paper"]) >= 3, number


def test_headings_go_down_one_by_one(page, folder, tmp_path):
    several = Page(report.page([read_study(folder), read_study(run_here(OTHERS["topologies"], tmp_path))]))
    for one in (page, several):
        levels = [int(tag[1]) for tag, _ in one.headings]
        assert levels[0] == 1
        assert levels.count(1) == 1
        assert all(after <= before + 1 for before, after in itertools.pairwise(levels))


def test_runs_that_diverge_at_once_leave_nothing_to_draw(tmp_path):
    content = SPEEDUP | {
        "lr": 1e200,
        "steps": 40,
        "every": 1,
        "topologies": ["ring"],
        "nodes": [4],
        "metrics": ["grad_norm_sq"],
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # overflows
        outcome = read_study(run_here(content, tmp_path))
    found = Page(report.page([outcome]))
    assert found.data[0]["curves"] is None
    assert "no run has two finite values" in found.text


def test_a_comparison_without_noise_has_no_floor_to_compare_with(tmp_path):
    content = OTHERS["comparison"] | {"problem": {"kind": "quadratic", "dim": 2, "noise_std": 0.0}, "trials": 1}
    found = Page(report.page([read_study(run_here(content, tmp_path))]))
    assert found.data[0]["charts"] == []
    assert "did not get there" not in found.text

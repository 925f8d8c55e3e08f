"""Studies with a clock: its table, its axes, its columns, and what is drawn from them."""

import json

import numpy as np
import pytest

import perron
from perron.errors import PerronError
from perron.report import curves, networks, page
from perron.studies import load, run_study
from perron.studies.check import check_networks
from perron.studies.conclusions import conclude
from perron.studies.job import Job, execute
from perron.studies.runner import read_study
from perron.studies.spec import Study
from perron.studies.toml import to_toml
from perron.studies.tuner import first_round

PLAIN = {
    "topologies": ["ring"],
    "nodes": 4,
    "steps": 40,
    "trials": 2,
    "conclusion": "curves",
    "problem": {"kind": "quadratic"},
}
CLOCK = {"latency": 0.01, "rate": 1e6, "compute": 0.02, "size": 1e4}
LINKS = "# both_ways=true\nfrom,to,latency_ms,rate_mbit\n" + "".join(
    f"{i},{j},{10 + i + 3 * j},10\n" for i in range(4) for j in range(i)
)


def study(clock=CLOCK, **changes):
    return Study.model_validate(PLAIN | {"clock": clock} | changes)


def test_a_run_without_a_clock_keeps_its_key():
    plain = Study.model_validate(PLAIN).runs[0]
    assert plain.clock == {}
    assert plain.build_clock() is None
    assert "clock" not in plain.model_dump(exclude_defaults=True)
    assert not [name for name in plain.columns if name.startswith("clock_")]
    assert study({}).runs[0].key == plain.key
    assert study().runs[0].key != plain.key


def test_every_key_is_an_axis():
    found = study(CLOCK | {"ahead": [0, 2], "compute": [0.02, "exponential(0.02)"]}).runs
    assert len({run.key for run in found}) == len(found) == 4
    assert {(run.columns["clock_ahead"], run.columns["clock_compute"]) for run in found} == {
        (0, "0.02"), (2, "0.02"), (0, "exponential(0.02)"), (2, "exponential(0.02)"),
    }  # fmt: skip


def test_equal_numbers_have_equal_keys():
    def key(**clock):
        (run,) = study(clock).runs
        return run.key

    whole = key(latency=1, compute=1, size=1000, ahead=1)
    assert whole == key(latency=1.0, compute=1.0, size=1e3, ahead=1)
    others = {key(latency=1, compute=compute, size=1000, ahead=1) for compute in (2, 1.5, "exponential(1)")}
    assert len({whole, *others}) == 4


def test_a_run_is_carried_out_with_its_clock():
    run = study(CLOCK | {"compute": "exponential(0.02)"}).runs[0]
    table, _ = execute(Job.read(Job(run, "here").text).run)
    clock = perron.Clock(perron.Machines(latency=0.01, rate=1e6), compute="exponential(0.02)", size=1e4)
    assert run.build_clock().fingerprint(4) == clock.fingerprint(4)
    problem, algorithm, mixing = run.build()
    history = perron.simulate(problem, algorithm, mixing, steps=40, trials=2, clock=clock)
    assert table["seconds"].to_numpy() == pytest.approx(history.seconds.ravel(), rel=1e-14)
    plain, _ = execute(Study.model_validate(PLAIN).runs[0])
    assert np.array_equal(plain["grad_norm_sq"], table["grad_norm_sq"])
    assert "seconds" not in plain


@pytest.mark.parametrize(
    ("clock", "message"),
    [
        ({"latancy": 1}, "There is no key of a clock 'latancy'; did you mean 'latency'"),
        ({"links": "gaja"}, "There is no record of links 'gaja'; did you mean 'gaia'"),
        ({"links": 3}, "links is the name of a preset or a file"),
        ({"links": "gaia", "rate": 1e6}, "rate: links has them for each link"),
        ({"route": True}, "route: it fills in missing pairs"),
        ({"links": "gaia", "route": 1}, "route is true or false"),
        ({"latency": -1}, "latency of a link is a finite number that is not negative"),
        ({"latency": True}, "latency is no truth value"),
        ({"rate": float("inf")}, "rate is finite; got inf"),
        ({"protocol": "fast"}, "protocol is one of 'rendezvous', 'eager'"),
        ({"ahead": 1.5}, "ahead is a whole number"),
        ({"size": "file:model.bin"}, "size is no file"),
        ({"compute": "exponential(a)"}, "exponential takes 1 numbers"),
        ({"compute": "times.csv"}, 'compute: write a file as "file:times.csv"'),
        ({"average": "tree"}, "average is one of 'ring', 'server'"),
        ({"ahead": []}, "at least 1 item"),
    ],
)
def test_mistakes_are_named(clock, message):
    with pytest.raises(ValueError, match="clock") as caught:
        study(clock)
    assert message in str(caught.value)


def test_seconds_need_a_clock():
    for changes in ({"metrics": ["seconds"]}, {"until": {"seconds": 3}}, {"final_metrics": ["seconds_spread"]}):
        with pytest.raises(ValueError, match=r"seconds(_spread)? needs a table \[clock\]"):
            Study.model_validate(PLAIN | changes)
    with pytest.raises(ValueError, match="There is no x axis of these results 'seconds'"):
        Study.model_validate(PLAIN | {"figure": {"x": "seconds"}})


def test_a_check_builds_the_clock():
    check_networks(study({"links": "gaia", "size": 1e6}, nodes=11).runs)
    with pytest.raises(PerronError, match=r"1 of 1 runs cannot work\..*gaia has 11 nodes but the network 4"):
        check_networks(study({"links": "gaia", "size": 1e6}).runs)


def test_a_file_of_links_belongs_to_the_run(tmp_path):
    (tmp_path / "links.csv").write_text(LINKS)
    (tmp_path / "times.csv").write_text("seconds\n0.1\n0.2\n")
    clock = 'links = "file:links.csv"\ncompute = "file:times.csv"\nsize = 1e4\n'
    file = tmp_path / "study.toml"
    file.write_text('topologies = "ring"\nnodes = 4\nsteps = 5\nconclusion = "curves"\ntrials = 2\n'
                    f'[problem]\nkind = "quadratic"\n[clock]\n{clock}')  # fmt: skip
    run = load(file).runs[0]
    assert run.sources.keys() == {"file:links.csv", "file:times.csv"}
    assert run.build_clock().record.nodes == 4
    assert run.build_clock().random
    check_networks([run])
    (tmp_path / "links.csv").write_text(LINKS.replace("10\n", "20\n"))
    assert load(file).runs[0].key != run.key
    with pytest.raises(PerronError, match=r"file:links\.csv has changed since the study was started"):
        execute(run)
    (tmp_path / "links.csv").write_text("from,to,latency_ms\n0,1,5\n1,2,5\n2,3,5\n3,1,5\n")
    with pytest.raises(PerronError, match=r"has no link .*machines\.routed\(\)"):
        check_networks(load(file).runs)
    (tmp_path / "links.csv").unlink()
    with pytest.raises(PerronError, match=r"Cannot read .*links\.csv"):
        load(file)


def test_a_study_is_written_with_its_clock(tmp_path):
    whole = study(CLOCK | {"ahead": [0, 2]})
    assert load(whole.save(tmp_path / "study.toml")).runs[1].key == whole.runs[1].key
    assert "[clock]\nlatency = 0.01" in to_toml(whole)
    assert "clock" not in to_toml(Study.model_validate(PLAIN))


def test_learning_rates_are_found_without_the_clock():
    whole = study(CLOCK | {"ahead": [0, 2]}, lr="tune", tune={"grid": [0.1, 0.2]})
    assert len(whole.runs) == 2
    assert all(run.clock == {} for run in first_round(whole).runs)
    assert len(first_round(whole).runs) == 2


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    folder = tmp_path_factory.mktemp("timed")
    (folder / "links.csv").write_text(LINKS)
    changes = {"clock": {"links": "file:links.csv", "size": 1e4, "compute": "lognormal(0.02, 0.5)", "ahead": [0, 2]}}
    changes |= {
        "folder": str(folder),
        "algorithms": ["push_pull", "centralized"],
        "figure": {"x": "seconds", "panels": []},
    }
    return run_study(Study.model_validate(PLAIN | changes), folder / "out", workers=1)


def test_results_have_columns_of_seconds(outcome):
    assert outcome.finished
    table = read_study(outcome.folder).table
    assert table["seconds"].notna().all()
    assert (table.groupby(["run", "trial"])["seconds"].diff().dropna() > 0).all()
    ends = table[table.step == 40].groupby(["algorithm", "clock_ahead"])["seconds"].mean()
    assert ends["push_pull", 2] < ends["push_pull", 0] < ends["centralized", 0]
    values = table.pivot(index=["algorithm", "step", "trial"], columns="clock_ahead", values="grad_norm_sq")
    assert (values[0] == values[2]).all()


def test_curves_are_drawn_over_seconds(outcome):
    found = conclude(outcome)
    chart = found.figures["curves"]
    assert chart.x == "seconds"
    assert [line.label.rpartition(",")[0] for line in chart.panels[0].lines] == [
        "Push-Pull (AB, SAB), ahead 0", "Centralized SGD, ahead 0", "Push-Pull (AB, SAB), ahead 2", "Centralized SGD, ahead 2",
    ]  # fmt: skip
    compared = perron.compare(outcome, x="seconds", panels=["clock_ahead"])
    ends = outcome.table[outcome.table.step == 40].groupby("run")["seconds"].mean()
    drawn = [line.x[-1] for panel in compared.figures["curves"].panels for line in panel.lines]
    assert sorted(drawn) == pytest.approx(sorted(ends))


def test_the_report_has_seconds_and_critical_links(outcome):
    data = curves.curves(outcome, {}, 100)
    assert [metric["name"] for metric in data["metrics"]] == ["grad_norm_sq"]
    first = data["runs"][0]
    own = outcome.table[outcome.table.run == first["run"]].groupby("step")["seconds"].mean()
    assert first["clock"] == pytest.approx(own.to_numpy(), rel=1e-5)
    fixed = Study.model_validate(outcome.study.model_dump() | {"clock": outcome.study.clock | {"compute": [0.02]}})
    drawn, _, lost = networks.networks(perron.studies.Outcome(fixed, outcome.folder, outcome.table, 0.0))
    assert not lost
    assert [text.partition(":")[0] for text in drawn[0]["times"]] == [
        "Push-Pull (AB, SAB), ahead 0", "Centralized SGD, ahead 0", "Push-Pull (AB, SAB), ahead 2", "Centralized SGD, ahead 2",
    ]  # fmt: skip
    clock, (_, algorithm, mixing) = fixed.runs[0].build_clock(), fixed.runs[0].build()
    cycle = clock.cycle_time(algorithm, mixing)
    assert f"{cycle.seconds:.4g} s per step, set by" in drawn[0]["times"][0]
    links = {(source, target) for source, target, _ in drawn[0]["pull"]["critical"]}
    assert links == {link for link in cycle.links if link[0] in mixing.pull_graph.sources(link[1])} != set()
    assert json.dumps(first["clock"][-1]) in page([outcome])

"""The command line, run as a person would run it."""

import json
import re
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO

import numpy as np
import pytest
from typer.testing import CliRunner

from perron import Mixing, write_graph, write_matrix, write_mixing
from perron.cli.main import _run, app
from perron.networks import spectral, topologies


def perron(*arguments: str, code: int = 0) -> str:
    """The output of the command, with its errors told as to a person; standard error if it failed."""
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        found = _run(list(arguments), debug=False)
    assert found == code, err.getvalue()
    return err.getvalue() if code else out.getvalue()


def in_process(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", topologies.NAMES)
def test_graph_as_json_for_all_topologies_and_sizes(name):
    for n in (4, 8, 9, 12, 16, 25, 64):
        result = CliRunner().invoke(app, ["graph", name, "--nodes", str(n), "--json"])
        if result.exception is not None:
            assert re.search(rf"got n={n} \(nearest", str(result.exception))
            continue
        told = json.loads(result.stdout)
        assert told["nodes"] == n
        assert 0 < told["c"] <= n
        assert len(told["pull"]["perron"]) == n
        assert told["pull"]["rho_2"] < 1


def test_json_says_what_the_library_says():
    told = json.loads(perron("graph", "exponential", "--nodes", "16", "--seed", "3", "--json"))
    metrics = spectral.describe(Mixing.random_integer(topologies.exponential(16), seed=3))
    assert told["c"] == metrics.c
    assert told["push"]["s"] == metrics.push.s
    assert told["edges"] == 64


def test_table_and_picture(tmp_path):
    picture = tmp_path / "ring.png"
    out = in_process("graph", "ring", "--nodes", "8", "--weights", "uniform", "--draw", str(picture))
    assert "0.9239" in out  # cos(pi/8)
    assert "Perron vector of pull: 0.1250, 0.1250" in out
    assert picture.read_bytes().startswith(b"\x89PNG")
    for suffix in ("pdf", "svg"):
        in_process("graph", "tree", "--draw", str(tmp_path / f"tree.{suffix}"))


@pytest.mark.parametrize("suffix", [".graphml", ".edges", ".csv", ".npz"])
def test_files_in_place_of_names(tmp_path, suffix):
    path = write_graph(topologies.kautz(9), tmp_path / f"net{suffix}")
    told = json.loads(in_process("graph", str(path), "--weights", "uniform", "--json"))
    assert told["c"] == pytest.approx(spectral.alignment(Mixing.uniform(topologies.kautz(9))))
    assert told["notes"] == []


def test_own_weights(tmp_path):
    mixing = Mixing.random_integer(topologies.grid(9), seed=5)
    pull, push = (write_matrix(m, tmp_path / f"{k}.csv") for k, m in enumerate((mixing.pull, mixing.push)))
    c = spectral.alignment(mixing)
    assert json.loads(in_process("graph", str(pull), "--push", str(push), "--json"))["c"] == pytest.approx(c)
    whole = write_mixing(mixing, tmp_path / "mixing.npz")
    assert json.loads(in_process("graph", str(whole), "--json"))["c"] == pytest.approx(c)
    edges = tmp_path / "weighted.edges"
    edges.write_text("0 1 3\n1 0 1\n")
    told = json.loads(in_process("graph", str(edges), "--json"))
    assert told["notes"] == ["the file has no self-loops; every node was given one, of weight 1"]
    assert np.allclose(told["pull"]["perron"], [0.6, 0.4])  # A = [[1/2, 1/2], [3/4, 1/4]]


def test_options_of_a_topology():
    told = json.loads(in_process("graph", "random", "--set", "probability=0.9", "--seed", "1", "--json"))
    assert told["edges"] == len(topologies.random(16, probability=0.9, seed=1).edges)
    authors = json.loads(in_process("graph", "ring", "--weights", "authors", "--json"))
    assert authors["edges"] == 18
    varying = json.loads(in_process("graph", "one-peer-exponential", "--json"))
    assert varying["period"] == 4


def test_list_of_topologies():
    out = in_process("graph", "--list")
    for name in topologies.NAMES:
        assert name in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("graph", "exponental"), "There is no topology 'exponental'; did you mean 'exponential'?"),
        (("graph", "grid", "--nodes", "5"), "square number of nodes; got n=5"),
        (("graph", "ring", "--weights", "heavy"), "no weight rule 'heavy'"),
        (("graph", "ring", "--set", "radius=1"), "There is no option of ring 'radius'. There are: none"),
        (("graph", "random", "--set", "probability=x"), "--set takes KEY=NUMBER"),
        (("graph", "random", "--set", "probability"), "--set takes KEY=NUMBER"),
        (("graph", "ring", "--nodes", "1000000000"), "would need about"),
        (("graph", "nowhere.csv"), "Cannot read nowhere.csv: No such file or directory"),
        (("graph", "ring", "--draw", "ring.bmp"), "one of .png, .pdf, .svg"),
        (("graph", "ring", "--nodes", "500", "--draw", "ring.png"), "at most 400 can be drawn"),
        (("graph", "ring", "--weights", "metropolis"), "need an undirected graph"),
    ],
)
def test_errors_are_one_line_without_a_traceback(arguments, message):
    said = perron(*arguments, code=1)
    assert message in said
    assert said.startswith("perron: ")
    assert said.count("\n") == 1


def test_the_demos_first_picture_is_of_a_part_of_its_runs():
    from perron.cli.demo import FIRST
    from perron.studies.spec import load

    whole = {run.key for run in load("demo").runs}
    first = {run.key for run in load("demo", FIRST).runs}
    assert len(first) == 4
    assert first < whole


@pytest.mark.processes
def test_demo_measures_a_speedup(tmp_path):
    # The demo's own study, made short; that it shows a linear speedup is seen in its full length only.
    from perron.cli import study as study_cli
    from perron.studies.spec import load

    quick = {"steps": 400, "lr": 0.2, "trials": 3, "problem.samples": 14400, "problem.batch": 100}
    study_cli.finish(study_cli.run_with_progress(load("demo", quick), tmp_path / "demo"), only=["Slopes"])
    assert (tmp_path / "demo" / "curves.png").stat().st_size > 50_000
    (tmp_path / "file").write_text("")
    assert "Cannot write to" in perron("demo", "--out", str(tmp_path / "file" / "demo"), code=1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("graph", "ring", "--seed", "-1"), "seed of random_integer needs a whole number"),
        (("graph", "random", "--set", "seed=1.5"), "needs a whole number, at least 0; got 1.5"),
        (("graph", "tree", "--set", "branching=2.5"), "branching needs a whole number"),
        (("graph", "nearest_neighbor", "--set", "neighbors=2.5"), "neighbors needs a whole number"),
        (("graph", "ring", "--weights", "authors", "--seed", "5000000000"), "seeds below 2^32"),
        (("graph", "one_peer_exponential", "--weights", "balanced"), "one graph, not on a time-varying sequence"),
        (("graph", "complete", "--nodes", "30000"), "would have about 899,970,000 edges"),
        (("graph", "x.csv", "--nodes", "7"), "--nodes does not go with a file"),
        (("graph", "ring", "--power", "0"), "whole power >= 1"),
    ],
)
def test_bad_options_are_refused(arguments, message):
    assert message in perron(*arguments, code=1)


def test_options_are_not_ignored():
    first, second = (in_process("graph", "ring", "--weights", "authors", "--seed", s, "--json") for s in ("7", "8"))
    assert first != second
    told = json.loads(in_process("graph", "ring", "--nodes", "8", "--power", "3", "--json"))
    mixing = Mixing.random_integer(topologies.ring(8), seed=0)
    assert told["s_A^3"] == spectral.mixing_sum(mixing.pull, power=3).value
    assert in_process("--version").startswith("perron 0.")


def test_names_with_markup_are_harmless(tmp_path):
    path = tmp_path / "a[red]$\\bad$.edges"
    path.write_text('# labels: ["$\\\\bad$", "[red]b"]\n0 1\n1 0\n')
    out = in_process("graph", str(path), "--draw", str(tmp_path / "x.png"))
    assert "a[red]$\\bad$" in out


def test_every_algorithm_is_listed():
    from perron import ALGORITHMS

    table = in_process("algorithms")
    told = json.loads(in_process("algorithms", "--json"))
    assert list(told) == list(ALGORITHMS)
    for name, algorithm in ALGORITHMS.items():
        assert name in table
        assert told[name]["title"] == algorithm.about.title
        assert told[name]["exact"] == algorithm.about.exact


def test_drawing_several_graphs_of_one_name(tmp_path):
    from perron import Graph, GraphError, plots

    same = [Graph(3, [(0, 1)]), Graph(3, [(1, 2)])]
    one = plots.draw(same[:1], tmp_path / "one.png").stat().st_size
    assert plots.draw(same, tmp_path / "two.png").stat().st_size > 1.2 * one
    with pytest.raises(GraphError, match="no graph to draw"):
        plots.draw([], tmp_path / "none.png")


@pytest.mark.parametrize("suffix", ["png", "pdf", "svg"])
def test_the_same_picture_is_the_same_file(tmp_path, suffix):
    from perron import plots

    first, second = (plots.draw(topologies.grid(9), tmp_path / f"{k}.{suffix}").read_bytes() for k in (1, 2))
    assert first == second

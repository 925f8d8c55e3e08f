"""Algorithms, problems, topologies and network files of one's own in study files."""

import os
import signal
import subprocess
import sys
import time

import pandas as pd
import pytest
from processes import HANG

import perron
from perron.errors import PerronError
from perron.studies import read_study, run_study
from perron.studies.check import check_networks
from perron.studies.spec import Study, load

MODULE = '''
"""Own algorithm, problem and topology."""
from dataclasses import dataclass

import torch

import perron
from perron.algorithms.push_pull import TrackerState
from scales_of_mine import SCALE


@dataclass(frozen=True, kw_only=True)
class Clipped(perron.Algorithm):
    """Push-Pull whose tracker is clipped."""

    most: float = 1e9

    @property
    def about(self):
        return perron.About(title="Clipped", family="push-pull", matrices="A B", exact=True, reference="a test")

    def init(self, x, node):
        return TrackerState(x, y=torch.zeros_like(x), grad=torch.zeros_like(x))

    def step(self, state, node, lr):
        pulled, pushed = node.pull(state.x), node.push(state.y)
        grad = yield state.x
        y = pushed.wait() + grad - state.grad
        return TrackerState(pulled.wait() - lr * y * (self.most / y.norm(dim=-1, keepdim=True)).clamp_max(1), y, grad)


class Squares(perron.Problem):
    per_node = ("centers",)
    smoothness = 1.0

    def __init__(self, nodes: int, spread: float = 1.0):
        self.nodes, self.dim = nodes, 2
        self.centers = SCALE * spread * torch.arange(2.0 * nodes, dtype=torch.float64).view(nodes, 2)

    def local_grads(self, x):
        return x - self.centers

    def loss(self, x):
        return (x.unsqueeze(-2) - self.centers).square().sum(-1).mean(-1) / 2


def wheel(n: int, spokes: int = 1) -> perron.Graph:
    return perron.Graph(n, [(i, (i + 1) % n) for i in range(n)] + [(0, k) for k in range(2, 2 + spokes)])
'''
STUDY = """
conclusion = "comparison"
topologies = ["file:networks/cities.gml", { use = "module_of_mine:wheel", spokes = 2 }]
nodes = 5
algorithms = ["push_pull", "module_of_mine:Clipped", { use = "module_of_mine:Clipped", most = 0.5 }]
lr = 0.1
steps = 40
trials = 1
weights = "uniform"
[problem]
kind = "module_of_mine:Squares"
spread = 0.5
"""
CITIES = """graph [ directed 1 node [ id 0 label "rome" ] node [ id 1 label "oslo" ] node [ id 2 label "bonn" ]
edge [ source 0 target 1 ] edge [ source 1 target 2 ] edge [ source 2 target 0 ] ]"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder as a researcher has it; modules of an earlier test are forgotten."""
    (tmp_path / "module_of_mine.py").write_text(MODULE)
    (tmp_path / "scales_of_mine.py").write_text("SCALE = 1.0\n")
    (tmp_path / "networks").mkdir()
    (tmp_path / "networks" / "cities.gml").write_text(CITIES)
    (tmp_path / "study.toml").write_text(STUDY)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in ("module_of_mine", "scales_of_mine"):
        sys.modules.pop(name, None)


def test_own_names_are_run(folder):
    study = load(folder / "study.toml")
    assert sorted({(run.topology, run.nodes) for run in study.runs}) == [
        ("file:networks/cities.gml", 3),
        ("module_of_mine:wheel", 5),
    ]
    outcome = run_study(study, folder / "results", workers=2)
    assert not outcome.failed
    last = outcome.table.sort_values("step").groupby(["topology", "algorithm"])["grad_norm_sq"].last().unstack()
    # Unclipped, the own algorithm is Push-Pull; clipped, it is not.
    assert last["module_of_mine:Clipped"].tolist() == pytest.approx(last["push_pull"].tolist(), rel=1e-9)
    assert (last["module_of_mine:Clipped(most=0.5)"] / last["push_pull"] - 1).abs().min() > 0.01
    problem, algorithm, mixing = study.runs[0].build()
    history = perron.simulate(problem, algorithm, mixing, lr=0.1, steps=40)
    own = outcome.table[outcome.table["run"] == study.runs[0].key]
    assert own["grad_norm_sq"].iloc[-1] == float(history["grad_norm_sq"][-1].mean())
    again = run_study(load(folder / "study.toml"), folder / "results", workers=1)
    assert again.reused == len(study.runs)
    # Results can be read without the files.
    for path in (*folder.glob("*.py"), folder / "networks" / "cities.gml"):
        path.unlink()
    assert read_study(folder / "results").study.runs == study.fixed.runs
    subprocess.run([sys.executable, "-m", "perron", "study", "show", str(folder / "results")], check=True, timeout=HANG)


SAMPLERS = """
topologies = [
    "ring",
    { name = "exponential", sampler = { name = "link_failures", probability = 0.5 } },
    { name = "exponential", sampler = "activation" },
    { name = "file:networks/cities.gml", sampler = { use = "module_of_mine:sometimes", share = 0.5 } },
]
nodes = 4
lr = 0.1
steps = 300
trials = 1
weights = "uniform"
metrics = ["grad_norm_sq", "distance_max"]
conclusion = "comparison"
[problem]
kind = "quadratic"
"""
SOMETIMES = '''

def sometimes(mixing, share: float = 0.1, seed: int = 0):
    """The network in some of the steps; nobody talks in the others."""
    import numpy as np

    alone = np.eye(mixing.nodes)
    both = (mixing.pull, mixing.push)
    return perron.networks.DrawnMixing(lambda step, random: both if random.random() < share else (alone, alone), seed=seed)
'''


def test_networks_are_drawn_by_samplers(folder):
    (folder / "module_of_mine.py").write_text(MODULE + SOMETIMES)
    (folder / "study.toml").write_text(SAMPLERS)
    study = load(folder / "study.toml")
    assert [run.mixing().varies for run in study.runs] == [False, True, True, True]
    assert [run.columns["topology"] for run in study.runs][1] == "exponential(sampler=link_failures(probability=0.5))"
    assert list(study.runs[3].sources) == ["file:networks/cities.gml", "module_of_mine:sometimes"]
    outcome = run_study(study, folder / "results", workers=2)
    assert not outcome.failed
    last = outcome.table.sort_values("step").groupby("topology")["distance_max"].agg(["first", "last"])
    assert (last["last"] < 1e-3 * last["first"]).all()
    for old, new, message in [
        ("link_failures", "link_failure", "There is no sampler 'link_failure'"),
        ("probability = 0.5", "chance = 0.5", "option 'chance'"),
    ]:
        (folder / "study.toml").write_text(SAMPLERS.replace(old, new))
        with pytest.raises(PerronError, match=message):
            load(folder / "study.toml")


def keys(folder):
    return [run.key for run in load(folder / "study.toml").runs]


def test_the_key_of_a_run_follows_the_content(folder):
    before = keys(folder)
    for path in folder.glob("*.py"):
        path.write_text(path.read_text() + "# a remark\n")
    assert keys(folder) == before
    (folder / "scales_of_mine.py").write_text("SCALE = 2.0\n")  # imported by the module that is named
    changed = keys(folder)
    assert not set(changed) & set(before)
    (folder / "networks" / "cities.gml").write_text(CITIES.replace("rome", "ravenna"))
    latest = keys(folder)
    assert [old == new for old, new in zip(changed, latest, strict=True)] == [False] * 3 + [True] * 3


def test_changes_while_a_study_runs_are_refused(folder):
    run = load(folder / "study.toml").runs[0]
    (folder / "scales_of_mine.py").write_text("SCALE = 2.0\n")
    with pytest.raises(PerronError, match="module_of_mine:Squares has changed since the study was started"):
        run.build()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("module_of_mine:wheel", "no_such_module:wheel", "No module named 'no_such_module'"),
        ("module_of_mine:wheel", "module_of_mine:whel", "module_of_mine has no 'whel'"),
        ("spokes = 2", "spoke = 2", "no option 'spoke'; did you mean 'spokes'"),
        ("spokes = 2", 'spokes = "two"', "spokes"),
        ("most = 0.5", "least = 0.5", "no option of module_of_mine:Clipped 'least'"),
        ("module_of_mine:Clipped", "module_of_mine:Squares", "is no algorithm: it must be a dataclass"),
        ("spread = 0.5", "spread = 0.5\nwidth = 1", "no option 'width'"),
        ("cities.gml", "towns.gml", "towns.gml: No such file"),
        ('weights = "uniform"', 'weights = "file"', "'file' stands for weights of a network file"),
        ("nodes = 5\n", "", "nothing for module_of_mine:wheel"),
    ],
)
def test_mistakes_are_named(folder, old, new, message):
    (folder / "study.toml").write_text(STUDY.replace(old, new))
    with pytest.raises(PerronError, match=message):
        _ = load(folder / "study.toml").runs


def test_a_failing_import_names_file_and_line(folder):
    (folder / "scales_of_mine.py").write_text("\nSCALE = 1 / 0\n")
    with pytest.raises(PerronError, match=r"scales_of_mine.py:2: ZeroDivisionError"):
        load(folder / "study.toml")
    (folder / "scales_of_mine.py").write_text("\n\nSCALE = = 1\n")
    with pytest.raises(PerronError, match=r"scales_of_mine.py:3: SyntaxError"):
        load(folder / "study.toml")


def test_code_that_fails_in_a_run_is_named(folder):
    module = (
        (folder / "module_of_mine.py")
        .read_text()
        .replace("def wheel", "def broken(n: int):\n    return 1 / 0\n\n\ndef wheel")
    )
    (folder / "module_of_mine.py").write_text(module)
    line = module[: module.index("1 / 0")].count("\n") + 1
    (folder / "study.toml").write_text(
        STUDY.replace('{ use = "module_of_mine:wheel", spokes = 2 }', '"module_of_mine:broken"')
    )
    outcome = run_study(load(folder / "study.toml"), folder / "results", workers=1)
    assert len(outcome.failed) == 3
    assert all(f"module_of_mine.py:{line}: ZeroDivisionError" in reason for reason in outcome.failed.values())


def test_check_builds_every_network(folder):
    file = folder / "networks.toml"
    text = 'topologies = ["grid", "file:networks/cities.gml"]\nnodes = [4, 7]\nalgorithms = ["push_pull", "dsgd"]\n'
    file.write_text(text + '[problem]\nkind = "quadratic"\n')
    with pytest.raises(PerronError, match=r"^4 of 6 runs cannot work\. ") as raised:
        check_networks(load(file).runs)
    assert "push_pull on grid(7), random_integer, lr = 'default', seed 0 and 1 more: grid(n) needs a square" in str(
        raised.value
    )
    assert str(raised.value).count("needs doubly stochastic weights") == 2
    check_networks(load(file, {"nodes": 4, "weights": "balanced"}).runs)
    done = subprocess.run(
        [sys.executable, "-m", "perron", "study", "check", str(file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "4 of 6 runs cannot work" in done.stderr


def test_weights_of_a_network_file(folder):
    (folder / "networks" / "cities.gml").write_text(CITIES.replace("target 1", "target 1 weight 3"))
    changes = {"topologies": [{"name": "file:networks/cities.gml", "undirected": True}], "weights": ["file", "uniform"]}
    study = load(folder / "study.toml", changes)
    own, uniform = study.runs[0], next(run for run in study.runs if run.weights == "uniform")
    assert own.mixing().pull.tolist() == [[1 / 5, 3 / 5, 1 / 5], [3 / 5, 1 / 5, 1 / 5], [1 / 3, 1 / 3, 1 / 3]]
    assert uniform.mixing().pull.tolist() == [[1 / 3] * 3] * 3
    assert own.graph().labels == ("rome", "oslo", "bonn")


def test_studies_without_own_names_do_not_depend_on_their_folder(tmp_path):
    (tmp_path / "plain.toml").write_text('topologies = ["ring"]\nnodes = 4\n[problem]\nkind = "quadratic"\n')
    study = load(tmp_path / "plain.toml")
    assert study.folder == ""
    assert study == Study(name="plain", topologies=["ring"], nodes=4, problem={"kind": "quadratic"})


@pytest.mark.processes
def test_killed_and_resumed(folder):
    """kill -9 while the study runs; the second run does the rest, with the numbers of an undisturbed one."""
    (folder / "study.toml").write_text(STUDY.replace("steps = 40", "steps = 400"))
    command = [sys.executable, "-m", "perron", "study", "run", str(folder / "study.toml"), "--workers", "1", "--out"]
    running = subprocess.Popen([*command, str(folder / "killed")], stderr=subprocess.DEVNULL, start_new_session=True)
    deadline = time.monotonic() + HANG
    while not (done := list((folder / "killed").glob("runs/*.parquet"))):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    study = load(folder / "study.toml")
    assert len(done) < len(study.runs)
    killed, whole = (run_study(study, folder / name, workers=1) for name in ("killed", "whole"))
    assert killed.reused >= 1
    pd.testing.assert_frame_equal(killed.table, whole.table)

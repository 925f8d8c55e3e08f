"""Networks of a hundred thousand nodes in two seconds; of a billion, refused before anything is made."""

import resource
import subprocess
import sys
import time

import numpy as np
import pytest
from scipy.sparse import issparse

import perron
from perron.errors import PerronError
from perron.experiment import run_study
from perron.study import Study

STUDY = """
topologies = ["ring"]
nodes = 1_000_000_000
conclusion = "topologies"
[problem]
kind = "quadratic"
"""


def test_f20_a_hundred_thousand_nodes(row):
    nodes, random = 100_000, np.random.default_rng(0)
    around = np.stack([np.arange(nodes), (np.arange(nodes) + 1) % nodes], axis=1)
    edges = np.concatenate([around, random.integers(0, nodes, (400_000, 2))])
    seconds = []  # of this process alone: the machine may be busy with others
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(3):
        began = time.process_time()
        graph = perron.Graph(nodes, edges)
        graph.check_strongly_connected()
        mixing = perron.Mixing.uniform(graph)
        seconds.append(time.process_time() - began)
    more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert issparse(mixing.pull)
    assert issparse(mixing.push)
    assert len(graph.edges) > 499_000
    assert min(seconds) < 2
    assert more < 1024
    row.measured(f"1e5 nodes, {len(graph.edges):,} edges: {min(seconds):.2f} s of CPU, {more:.0f} MB more", trials=3)


@pytest.mark.parametrize("how", ["graph", "study"])
def test_f20_a_billion_nodes(how, tmp_path, row):
    file = tmp_path / "huge.toml"
    file.write_text(STUDY)
    what = (
        ["graph", "ring", "--nodes", "1000000000"]
        if how == "graph"
        else ["study", "run", str(file), "--out", str(tmp_path)]
    )
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "perron", *what], capture_output=True, text=True, check=False)
    seconds, memory = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert "1,000,000,000 nodes would need about 200 GB" in line
    assert memory < 1
    row.measured(f"{how} of 1e9: refused with its 200 GB, {seconds:.1f} s, {memory:.2f} GB", trials=1)


def test_f20_more_than_this_machine_has(tmp_path, row):
    study = Study.model_validate(
        {"conclusion": "topologies", "topologies": ["ring"], "nodes": 1_000_000, "trials": 1000}
        | {"problem": {"kind": "quadratic", "dim": 100}, "lr": 0.1}
    )
    with pytest.raises(
        PerronError, match=r"ring\(1000000\).* about 3,280 GB of memory, and this machine has [\d,]+ GB"
    ):
        run_study(study, tmp_path)
    row.measured("a study of 3,280 GB: refused before it starts", trials=1)

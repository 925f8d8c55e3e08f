"""Networks of a hundred thousand nodes in two seconds; of a billion, refused before anything is made."""

import json
import subprocess
import sys
import time

import pytest

from perron.errors import PerronError
from perron.studies.runner import run_study
from perron.studies.spec import Study

STUDY = """
topologies = ["ring"]
nodes = 1_000_000_000
conclusion = "topologies"
[problem]
kind = "quadratic"
"""


SETTING_UP = """
import json, time
import numpy as np
from scipy.sparse import issparse
import perron

nodes, random = 100_000, np.random.default_rng(0)
around = np.stack([np.arange(nodes), (np.arange(nodes) + 1) % nodes], axis=1)
edges = np.concatenate([around, random.integers(0, nodes, (400_000, 2))])
seconds = []
for _ in range(3):
    began = time.perf_counter()
    graph = perron.Graph(nodes, edges)
    graph.check_strongly_connected()
    mixing = perron.Mixing.uniform(graph)
    seconds.append(time.perf_counter() - began)
print(json.dumps([max(seconds), len(graph.edges), issparse(mixing.pull) and issparse(mixing.push)]))
"""
PEAK = """
import atexit, re
from pathlib import Path
atexit.register(lambda: Path(PEAK).write_text(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]))
"""


def run(text, folder, *words):
    """Run some Python; what it printed and said, its code, and the gigabytes that it had at most."""
    peak = folder / "peak"
    command = [sys.executable, "-c", f"PEAK = {str(peak)!r}\n{PEAK}\n{text}", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done, int(peak.read_text()) / 2**20


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_f20_a_hundred_thousand_nodes(tmp_path, row):
    done, memory = run(SETTING_UP, tmp_path)
    assert done.returncode == 0, done.stderr
    seconds, edges, sparse = json.loads(done.stdout)
    assert sparse
    assert edges > 499_000
    assert seconds < 2
    assert memory < 1
    row.measured(f"1e5 nodes, {edges:,} edges: {seconds:.2f} s, {memory:.2f} GB with all imports", trials=3)


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
@pytest.mark.parametrize("how", ["graph", "study"])
def test_f20_a_billion_nodes(how, tmp_path, row):
    file = tmp_path / "huge.toml"
    file.write_text(STUDY)
    words = {
        "graph": ["graph", "ring", "--nodes", "1000000000"],
        "study": ["study", "run", str(file), "--out", str(tmp_path / "out")],
    }[how]
    began = time.perf_counter()
    done, memory = run("from perron.cli.main import main\nmain()", tmp_path, *words)
    seconds = time.perf_counter() - began
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

"""Nodes fail with an error, or are killed: a file for each, and the last line names the first of them."""

import json
import re
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest
from table import long

HERE = Path(__file__).parent


def read_errors(folder):
    return {path.stem: json.loads(path.read_text()) for path in folder.glob("node-*.json")}


@pytest.mark.parametrize("elastic_launch", [True, pytest.param(False, marks=long)])
def test_f44_an_error_is_written_with_its_traceback(elastic_launch, tmp_path, row):
    options = json.dumps({"steps": 10_000, "fails": [2, 30]})
    launch = [sys.executable, "-m", "perron", "launch", "--nodes", "4", "--log-dir", str(tmp_path / "log")]
    launch += ["--elastic", "--min-nodes", "4"] if elastic_launch else []
    script = [str(HERE / "elastic_trainee.py"), str(tmp_path), options]
    done = subprocess.run([*launch, *script], capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 3, done.stderr
    path = tmp_path / "log" / "node-2.1.json"
    last = done.stderr.splitlines()[-1]
    assert last == f"perron: First failure: node 2 in step 30: ZeroDivisionError: a bad[31m sample. See {path}"
    found = read_errors(tmp_path / "log")
    assert set(found) == {f"node-{node}.1" for node in range(4)}
    cause = found["node-2.1"]
    assert (cause["node"], cause["step"]) == (2, 30)
    assert datetime.fromisoformat(cause["time"])
    trace = cause["message"]["extraInfo"]["py_callstack"]
    assert trace.startswith("Traceback (most recent call last):")
    assert 'raise ZeroDivisionError("a bad' in trace
    others = {found[f"node-{node}.1"]["message"]["message"].partition(":")[0] for node in (0, 1, 3)}
    assert others == {"NetworkError"}
    row.measured(
        f"{'elastic' if elastic_launch else 'plain'}: node, step and traceback of the first; 4 files", trials=1
    )


@long
def test_f44_a_killed_node_is_named(elastic, row, tmp_path):
    one = elastic(steps=10_000).start("--nodes", 3, "--min-nodes", 3)
    one.further(10, "0.1", "1.1", "2.1")
    one.process("1.1").kill()
    codes, said = one.ended()
    assert codes == [3], said
    name = re.fullmatch(r"perron: First failure: node 1: was killed by SIGKILL\. See (\S+)", said.splitlines()[-1])[1]
    found = read_errors(Path(name).parent)  # a temporary folder
    assert found["node-1.1"]["message"]["message"] == "was killed by SIGKILL"
    assert set(found) == {"node-0.1", "node-1.1", "node-2.1"}
    assert found["node-0.1"]["step"] in (one.steps("0.1"), one.steps("0.1") + 1)
    for path in Path(name).parent.iterdir():
        path.unlink()
    Path(name).parent.rmdir()
    row.measured("killed: named first, before those that lost it", trials=1)


@long
def test_f44_under_torchrun(tmp_path, row):
    options = json.dumps({"steps": 10_000, "fails": [1, 20]})
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    script = [str(HERE / "elastic_trainee.py"), str(tmp_path), options]
    done = subprocess.run([*launch, *script], capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 1
    root = done.stderr.partition("Root Cause")[2]
    assert re.search(r"error_file: \S+error\.json", root), done.stderr
    assert "ZeroDivisionError: a bad" in root
    row.measured("torchrun: its summary shows the traceback", trials=1)

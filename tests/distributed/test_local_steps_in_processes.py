"""Local steps in real processes: every check of a script is a test."""

import json
import subprocess
import sys

import pytest
from processes import HANG, HERE, checks_of, run_checks, selected
from worker_elastic import CENTERS


@pytest.fixture(scope="module")
def local_steps(request, tmp_path_factory):
    """What went wrong in each check, in a group of four processes."""
    names = selected(request, "test_local_steps_in_processes")
    return run_checks("worker_local_steps.py", 4, tmp_path_factory.mktemp("local_steps"), names)


@pytest.mark.xdist_group("local_steps")
@pytest.mark.parametrize("check", checks_of("worker_local_steps.py"))
def test_local_steps_in_processes(local_steps, check):
    assert not local_steps[check], local_steps[check]


@pytest.mark.processes
def test_a_node_lost_in_the_middle_of_a_round(tmp_path):
    """The others go on, and it comes back; messages have four bits, over graphs in turn."""
    options = {
        "settings": {"local_steps": 4, "wire": "int4", "lr": 0.05}, "faults": {"2": ["kill", 30]}, "inside": 2, "steps": 300,
        "await": ["2.2.step"], "timeout": 60,
    }  # fmt: skip
    command = [sys.executable, "-m", "perron", "launch", "-n", "3", "--restarts", "1", "--elastic"]
    command += [str(HERE / "worker_elastic.py"), str(tmp_path), json.dumps(options)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG, check=False)
    assert done.returncode == 0, done.stderr
    for rank in range(3):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        assert found["x"] == pytest.approx(CENTERS[:3].mean(0).tolist(), abs=1e-8)
        assert found["sums"][0] == pytest.approx(found["sums"][1], abs=1e-9)  # trackers have restarted
        assert found["nodes"] == 3
        assert found["changes"]

"""Moves and inner optimizers in real processes: every check of a script is a test."""

import json
import subprocess
import sys

import pytest
from processes import HANG, HERE, checks_of, run_checks, selected
from worker_elastic import CENTERS


@pytest.fixture(scope="module")
def moves(request, tmp_path_factory):
    """What went wrong in each check, in a group of three processes."""
    return run_checks("worker_inner.py", 3, tmp_path_factory.mktemp("moves"), selected(request, "test_moves"))


@pytest.mark.xdist_group("inner")
@pytest.mark.parametrize("check", checks_of("worker_inner.py"))
def test_moves(moves, check):
    assert not moves[check], moves[check]


@pytest.mark.parametrize("move", ["built in", "inner"])
def test_moments_outlast_a_change_of_members_and_a_newcomer_gets_them(move, tmp_path):
    options = {"move": move, "faults": {"2": ["kill", 60]}, "steps": 800, "await": ["2.2.step"], "timeout": 60}
    command = [sys.executable, "-m", "perron", "launch", "-n", "3", "--restarts", "1", "--elastic"]
    command += [str(HERE / "worker_elastic.py"), str(tmp_path), json.dumps(options)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG, check=False)
    assert done.returncode == 0, done.stderr
    found = {rank: json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(3)}
    for one in found.values():
        assert one["x"] == pytest.approx(CENTERS[:3].mean(0).tolist(), abs=1e-6)
        assert one["sums"][0] == pytest.approx(one["sums"][1], abs=1e-9)  # trackers have restarted
        assert one["nodes"] == 3
        # Each change may cost a step that only some nodes had done; moments that were lost would cost sixty.
        assert one["updates"] == pytest.approx(800, abs=5)
    assert found[2]["joined"]
    assert found[2]["began"] >= 60

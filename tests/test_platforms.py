"""Other systems: with all that only Linux has hidden, every module can be imported, and what needs it says so when called.

What is hidden is hidden from perron only: the libraries below it are imported first, as they are on Linux. So these tests show
that perron itself is not in the way; that the libraries work on macOS and Windows is for those who publish them.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "support" / "other_system.py"


def run(tmp_path: Path, system: str, part: str) -> str:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"}
    command = [sys.executable, str(SCRIPT), system, part]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_all_modules_can_be_imported_and_simulate(tmp_path, system):
    said = run(tmp_path, system, "simulate")
    assert int(said.split()[0]) > 200  # modules
    assert said.split()[1] == "True"


def test_what_needs_linux_or_macos_says_so(tmp_path):
    said = run(tmp_path, "win32", "refuse")
    assert "perron launch needs Linux or macOS. On Windows, use the Windows Subsystem for Linux." in said
    assert "Live frames need Linux or macOS" in said


@pytest.mark.processes
def test_a_study_runs_on_macos(tmp_path):  # on Windows Python starts processes by what only Windows has
    assert run(tmp_path, "darwin", "study") == "2 runs\n"

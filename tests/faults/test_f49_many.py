"""Many elastic trainings in a row leave nothing behind."""

import json
import os
import subprocess
import sys
from pathlib import Path


def test_f49_many_trainings_in_a_row(tmp_path, row, trials):
    count = trials(3, 200)
    for name in ("training", "tmp"):
        (tmp_path / name).mkdir()
    command = [
        sys.executable,
        str(Path(__file__).with_name("many_trainings.py")),
        str(tmp_path / "training"),
        str(count),
    ]
    environment = os.environ | {"TMPDIR": str(tmp_path / "tmp")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=3600)
    assert done.returncode == 0, done.stderr
    first, last = json.loads(done.stdout.splitlines()[-1])
    assert last == first
    assert last["ports"] == last["temporary"] == 0
    row.measured(
        f"{count} trainings, each with a kill: {last['files']} open files and {last['threads']} threads, as after the first",
        trials=count,
    )

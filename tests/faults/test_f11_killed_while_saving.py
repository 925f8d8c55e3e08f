"""Processes that are killed while they save, and the next ones, which start at once."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from kinds import KINDS

HERE = Path(__file__).parent


def started(*arguments, before=(), timeout=3000, **options):
    """Run saving.py; the lines that it printed."""
    command = [*before, sys.executable, "-W", "ignore", str(HERE / "saving.py"), *map(str, arguments)]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    }
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=timeout, check=False, **options
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("kind", KINDS)
def test_f11_killed_while_saving(kind, tmp_path, row, trials):
    many = trials(5, 40)
    *seen, end = started("killed", kind, tmp_path, many)
    assert [one for one in seen if one["said"] or one["step"] < 1] == []
    assert len(seen) == many
    assert [one["step"] for one in seen] == sorted(one["step"] for one in seen)  # each went on from the one before
    assert end["finally_left"] == 0
    left = sum(one["left"] > 0 for one in seen)
    row.measured(
        f"{kind}: latest read at once {many} of {many} times; {left} kills left half-written files, all gone in the end",
        trials=many,
    )

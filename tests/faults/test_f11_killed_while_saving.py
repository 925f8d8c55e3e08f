"""Processes that are killed while they save, and the next ones, which start at once."""

import json
import os
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from kinds import KINDS, Training, group

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


def test_f11_others_remove_directories_meanwhile(tmp_path, row, trials):
    """As nodes do that are ahead: what is empty goes, whoever is about to write into it or to look at it."""
    many, ended, removed = trials(20, 100), threading.Event(), []

    def tidy():
        while not ended.is_set():
            with suppress(FileNotFoundError):  # the one who saves removes what is empty, too
                for number in range(20):
                    (tmp_path / f"0000-run-{number}" / "step-0000000001").mkdir(parents=True, exist_ok=True)
                for place in [*tmp_path.glob("*/step-*"), *tmp_path.glob("0*")]:
                    with suppress(OSError):
                        place.rmdir()
                        removed.append(place)

    other = threading.Thread(target=tidy)
    with group():
        other.start()
        try:
            one = Training(tmp_path)
            steps = [one.save() for _ in range(many)]
        finally:
            ended.set()
            other.join()
        assert steps == list(range(1, many + 1))
        assert Training(tmp_path).load() == (many, "")
    assert len(removed) > many
    row.measured(f"{many} saves while others removed {len(removed)} empty directories: none lost", trials=many)

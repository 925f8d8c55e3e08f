"""The second in one place is refused, and told who the first is; when the first is killed, the next may start at once."""

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from kinds import KINDS, group
from processes import HANG
from study_runs import LONG, QUICK, run_in_background, wait_for

import perron

HERE = Path(__file__).parent


@pytest.mark.parametrize("kind", KINDS)
def test_f25_two_that_save_in_one_place(kind, tmp_path, row):
    command = [sys.executable, str(HERE / "saving.py"), "held", kind, str(tmp_path), "100000"]
    path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": path}) as first, group():
        assert first.stdout.readline()  # it has saved
        second = KINDS[kind](tmp_path)
        with pytest.raises(
            perron.PerronError, match=rf"\(process {first.pid} on {socket.gethostname()}, since "
        ) as caught:
            second.load() if kind == "training" else second.run(3)
        assert str(tmp_path) in str(caught.value)
        with pytest.raises(perron.PerronError, match=rf"process {first.pid} on"):
            second.save() if kind == "training" else second.run(3)
        first.send_signal(signal.SIGKILL)
        first.wait()
        second.step, said = at, _ = second.load()  # at once
        assert at >= 1
        assert not said
        assert second.save() == at + 1
    row.measured(
        f"{kind}: the second refused with process and host of the first; after its kill the next resumed", trials=2
    )


def test_f25_two_studies_in_one_directory(tmp_path, row):
    file, out = tmp_path / "quick.toml", tmp_path / "out"
    file.write_text(QUICK)
    first = run_in_background(file, out, *LONG, "--set", "steps=1000000", "--set", "every=1000")
    wait_for(lambda: list((out / "runs").glob("*.live")))
    second = run_in_background(file, out)
    _, said = second.communicate(timeout=HANG)
    assert second.returncode == 1
    assert re.fullmatch(
        rf"perron: Another process is running a study in {re.escape(str(out))} \(process {first.pid} on {socket.gethostname()}, "
        r"since \S+\); wait for it, or choose another --out\.\n",
        said,
    ), said
    children = psutil.Process(first.pid).children(recursive=True)
    first.kill()
    first.communicate()
    third = run_in_background(file, out, "--set", "steps=320")
    _, said = third.communicate(timeout=HANG)
    assert third.returncode == 0, said
    psutil.wait_procs(children, timeout=HANG)
    row.measured(
        "study: the second refused with process and host of the first; after its kill the next resumed", trials=1
    )

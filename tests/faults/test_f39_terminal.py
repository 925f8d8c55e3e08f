"""The terminal of a training is closed, or the launcher gets SIGQUIT: the nodes save first."""

import json
import os
import pty
import signal
import sys
import time
from pathlib import Path

import pytest
from trainings import NODES, unfaulted


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGQUIT])
def test_f39_a_signal_saves_and_ends(number, training, row):
    one = training(steps=150, every=1000, pause=0.02).start()
    one.further(17)
    one.process.send_signal(number)
    code, said = one.ended()
    assert code == 128 + number, said
    check_resumed(one)
    row.measured(f"{number.name}: all saved after the same step", trials=1)


def test_f39_a_terminal_that_hangs_up(training, row):
    options = {"steps": 150, "every": 1000, "pause": 0.02}
    one = training(**options)
    pid, terminal = pty.fork()
    if pid == 0:
        script = [str(Path(__file__).with_name("trainee.py")), str(one.folder), json.dumps(options)]
        os.execv(sys.executable, [sys.executable, "-m", "perron", "launch", "-n", str(NODES), *script])  # noqa: S606
    try:
        deadline = time.monotonic() + 120
        while any(len(one.steps(node)) < 17 for node in range(NODES)):
            assert time.monotonic() < deadline, os.read(terminal, 10_000)
            time.sleep(0.01)
        os.close(terminal)  # the kernel sends SIGHUP
        _, status = os.waitpid(pid, 0)
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        raise
    assert os.waitstatus_to_exitcode(status) == 128 + signal.SIGHUP
    check_resumed(one)
    row.measured("a terminal that hangs up: all saved after the same step", trials=1)


def check_resumed(one):
    assert one.saved() == [one.step()]
    assert {one.step(node) for node in range(NODES)} == {one.step()}
    code, said = one.start(wait=False).ended()
    assert code == 0, said
    assert one.result() == unfaulted(steps=150, every=1000)

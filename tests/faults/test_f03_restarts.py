"""Nodes die again and again, and `perron launch --restarts` starts all of them again each time."""

import json
import os
import random
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest
from table import FULL
from trainings import NODES, SLACK, TOKEN, unfaulted


def test_f03_nodes_die_again_and_again(training, row, trials):
    kills, rng, took = trials(2, 10), random.Random(4), []
    steps = 60 * (kills + 1)
    one = training("--restarts", str(kills), steps=steps)
    one.start()
    for _ in range(kills):
        one.further(rng.randrange(20, 60) if FULL else 12)
        victim, dead, pids = rng.randrange(NODES), one.workers(), set(one.pids())
        killed = time.monotonic()
        dead[victim].kill()
        one.until(lambda pids=pids: not pids & set(one.pids()), "not started again")
        before = [len(one.steps(node)) for node in range(NODES)]
        one.until(lambda before=before: all(len(one.steps(node)) > before[node] for node in range(NODES)), "no step")
        took.append(max(one.steps(node)[before[node]][1] for node in range(NODES)) - killed)
    code, said = one.ended()
    assert code == 0, said
    assert said.count("Restarting all nodes") == kills
    assert one.result() == unfaulted(steps=steps)
    assert one.left_over() == []
    assert statistics.median(took) <= 6 * SLACK, took
    assert max(took) <= 15 * SLACK, took
    row.measured(
        f"{kills} kills in one run, finished bit for bit; next step after {statistics.median(took):.1f} s in the median, "
        f"{max(took):.1f} s at most", trials=kills,
    )  # fmt: skip


def killed_once(one, steps):
    """Kill the last node; the seconds until every node has made another step."""
    one.further(15)
    pids, killed = set(one.pids()), time.monotonic()
    one.workers()[-1].kill()
    one.until(lambda: not pids & set(one.pids()), "not started again")
    before = [len(one.steps(node)) for node in range(NODES)]
    one.until(lambda: all(len(one.steps(node)) > before[node] for node in range(NODES)), "no step")
    took = time.monotonic() - killed
    code, said = one.ended()
    assert code == 0, said
    assert one.result() == unfaulted(steps=steps)
    return took


@pytest.mark.skipif(not FULL, reason="starts two launchers; in full only")
def test_f03_launchers_start_again_together(training, row):
    with socket.create_server(("127.0.0.1", 0)) as free:
        shared = ["--restarts", "1", "--size", str(NODES), "--store", f"127.0.0.1:{free.getsockname()[1]}"]
    one = training(steps=120)
    launch = [sys.executable, "-m", "perron", "launch", *shared, "-n"]
    script = [str(Path(__file__).with_name("trainee.py")), str(one.folder), json.dumps(one.options)]
    other = subprocess.Popen(
        [*launch, "1", "--first", str(NODES - 1), *script],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {TOKEN: one.token},
    )
    one.start(command=[*launch, str(NODES - 1)])
    took = killed_once(one, 120)
    _, said = other.communicate(timeout=60)
    assert other.returncode == 0, said
    assert f"Node {NODES - 1} was killed by SIGKILL." in said
    assert one.left_over() == []
    row.measured(
        f"a node of the second of two launchers: both start again, next step after {took:.1f} s, same bits", trials=1
    )


@pytest.mark.skipif(not FULL, reason="starts torchrun; in full only")
def test_f03_under_torchrun(training, row, trials):
    took = []
    for _ in range(trials(1, 3)):
        one = training(steps=120)
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts", "1"]
        one.start(command=[*torchrun, "--nproc-per-node", str(NODES)])
        took.append(killed_once(one, 120))
    many = len(took)
    row.measured(
        f"torchrun --max-restarts: {many} of {many} came back, in {max(took):.1f} s at most, same bits", trials=many
    )

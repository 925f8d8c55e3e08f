"""A small study, and `perron study run` in a process that can be interrupted or killed."""

import json
import signal
import subprocess
import sys
import time
from contextlib import suppress

import psutil
from processes import HANG

QUICK = """
title = "A quick one"
conclusion = "speedup"
topologies = ["exponential", "ring"]
nodes = [2, 4]
lr = 0.2
steps = 320
every = 10
trials = 6
seeds = 7
[problem]
kind = "quadratic"
dim = 3
noise_std = 0.5
"""


LONG = ["--set", "steps=8000", "--set", "every=200", "--set", "nodes=[2, 3, 4, 5]"]


def run_in_background(quick, out, *more):
    """The command as from a terminal: a process group of its own, and with Ctrl-C (which shells turn off in the background)."""
    command = [sys.executable, "-m", "perron", "study", "run", str(quick), "--out", str(out), *more]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def suspend_one(out):
    """Suspend a process in the middle of a run of the study, so that the run cannot finish; the one that has begun last."""

    def try_one():
        found = []
        for path in (out / "runs").glob("*.live"):
            with suppress(OSError, IndexError, ValueError):  # just begun, or just finished
                about = json.loads(path.read_text().splitlines()[0])
                found.append((about["began"], about["pid"], path))
        for _, pid, path in sorted(found, reverse=True):
            with suppress(psutil.NoSuchProcess):
                process = psutil.Process(pid)
                process.suspend()
                if not path.with_suffix(".parquet").exists():
                    return process
                process.resume()
        return None

    return wait_for(try_one)


def wait_for(condition, seconds=HANG):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if found := condition():
            return found
        time.sleep(0.05)
    raise AssertionError("waited in vain")

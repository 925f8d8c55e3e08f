"""Forty runs of a study, two at a time; one is killed, one hangs, one is stopped."""

import json
import os
import signal

from processes import HANG
from study_runs import run_in_background, wait_for
from table import FULL

from perron.monitor.records import LIVE
from perron.studies.results import read_study, run_name
from perron.studies.spec import load

MINUTES = 0.25 if FULL else 0.5  # a busy machine may be slow
LONG = (0.00025, 0.00026)  # 8000 steps, so that they can be met in the middle
STUDY = f"""
conclusion = "topologies"
topologies = ["ring"]
nodes = 2
lr = {[*LONG, *(round(0.1 + 0.01 * k, 2) for k in range(38))]}
horizon = 2
steps = 100_000
trials = 2
timeout = {MINUTES}
[problem]
kind = "quadratic"
dim = 3
noise_std = 0.5
"""


def test_f24_runs_that_die(tmp_path, row):
    file, out = tmp_path / "forty.toml", tmp_path / "out"
    file.write_text(STUDY)
    runs = {run.lr: run for run in load(file).runs}
    assert len(runs) == 40
    pipe = out / "runs" / f"{run_name(runs[0.3])}{LIVE}"
    pipe.parent.mkdir(parents=True)
    os.mkfifo(pipe)  # who opens it, waits for ever
    process = run_in_background(file, out, "--workers", "2")

    def worker(lr):
        """The process that does a run now."""
        path = out / "runs" / f"{run_name(runs[lr])}{LIVE}"
        lines = path.read_text().splitlines() if path.exists() else []
        return json.loads(lines[0])["pid"] if lines else None

    for lr, what in zip(LONG, (signal.SIGKILL, signal.SIGSTOP), strict=True):
        os.kill(wait_for(lambda lr=lr: worker(lr)), what)
    _, error = process.communicate(timeout=HANG)
    assert process.returncode == 3
    assert "3 of 40 runs failed" in error
    outcome = read_study(out)
    assert outcome.done == 37
    said = {run.lr: outcome.failed[run.key].partition(": ")[2] for run in runs.values() if run.key in outcome.failed}
    assert said == {
        LONG[0]: "its process was killed (exit code -9)",
        LONG[1]: f"took longer than timeout = {MINUTES} minutes and was stopped",
        0.3: f"took longer than timeout = {MINUTES} minutes and was stopped",
    }
    done = {path: path.stat().st_mtime_ns for path in (out / "runs").glob("*.parquet")}
    pipe.unlink()
    process = run_in_background(file, out, "--workers", "2")
    _, error = process.communicate(timeout=HANG)
    assert process.returncode == 0, error
    assert "37 of them already done" in error
    assert {path: path.stat().st_mtime_ns for path in done} == done
    assert len(list((out / "runs").glob("*.parquet"))) == 40
    assert {path.suffix for path in (out / "runs").iterdir()} == {".parquet", ".json"}  # nothing is left over
    row.measured("37 done, 3 named with what happened; again: only those 3, then all 40", trials=40)

"""A study's folder that others read while it runs; folders that are read-only; a umask that leaves everything private."""

import os
import subprocess
import sys

import pandas as pd
from processes import HANG
from study_runs import QUICK, run_in_background, wait_for
from table import long
from test_f13_full_disk import disk, small  # noqa: F401  (a fixture)

LONGER = ["--set", "steps=8000", "--set", "every=100"]


def perron(*words, umask=-1, before=()):
    command = [*before, sys.executable, "-m", "perron", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=HANG, umask=umask)


def values(folder):
    """The table without the seconds that runs took."""
    return pd.read_parquet(folder / "results.parquet").filter(regex="^(?!seconds)")


def test_f45_readers_of_a_running_study(tmp_path, row, trials):
    file, out = tmp_path / "quick.toml", tmp_path / "out"
    file.write_text(QUICK)
    first = run_in_background(file, out, *LONGER)
    wait_for(lambda: list((out / "runs").glob("*.live")))
    shown = refused = 0
    commands = [
        ("report", out, "--out", tmp_path / "page.html"),
        ("study", "show", out),
        ("study", "run", file, "--out", out, *LONGER),
    ]
    while first.poll() is None and shown + refused < trials(3, 12):
        done = perron(*commands[(shown + refused) % 3])
        assert done.returncode in (0, 1), done.stderr
        assert "Traceback" not in done.stderr
        shown, refused = shown + (done.returncode == 0), refused + (done.returncode == 1)
    _, said = first.communicate(timeout=HANG)
    assert first.returncode == 0, said
    assert perron("report", out, "--out", tmp_path / "page.html").returncode == 0
    calm = run_in_background(file, tmp_path / "calm", *LONGER)
    calm.communicate(timeout=HANG)
    assert calm.returncode == 0
    pd.testing.assert_frame_equal(values(out), values(tmp_path / "calm"))
    row.measured(f"{shown} times shown, {refused} times refused in one line; the same results", trials=shown + refused)


def test_f46_a_read_only_folder(disk, tmp_path, row):  # noqa: F811
    file = tmp_path / "quick.toml"
    file.write_text(QUICK)
    run = f"{sys.executable} -m perron"
    script = f"""
        {run} study run {file} --workers 1 --out {disk} > /dev/null 2>&1 || exit 9
        sha256sum {disk}/results.parquet
        mount -o remount,ro {disk}
        {run} study show {disk} > /dev/null; echo "show $?"
        {run} report {disk} --out {tmp_path}/page.html > /dev/null; echo "report $?"
        {run} study run {file} --workers 1 --out {disk} --set steps=400 > /dev/null; echo "run $?"
        {run} report {disk} > /dev/null; echo "page $?"
        sha256sum {disk}/results.parquet
    """
    done = subprocess.run(
        [*small(disk, "16m"), "sh", "-c", script], capture_output=True, text=True, timeout=HANG, check=False
    )
    first, *codes, last = done.stdout.splitlines()
    assert first == last
    assert codes == ["show 0", "report 0", "run 1", "page 1"], done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("Read-only file system") >= 2
    assert (tmp_path / "page.html").exists()
    row.measured("read-only results: shown and reported; a run and a page there refused with the reason", trials=4)


@long
def test_f46_umask_of_a_study(tmp_path, row):
    file, out = tmp_path / "quick.toml", tmp_path / "out"
    file.write_text(QUICK)
    for _ in range(2):
        done = perron("study", "run", file, "--out", out, umask=0o077)
        assert done.returncode == 0, done.stderr
    assert "already done" in done.stderr
    assert perron("report", out, umask=0o077).returncode == 0
    modes = {path.stat().st_mode & 0o777 for path in out.rglob("*")}
    assert modes <= {0o700, 0o600}
    row.measured("a study: files for their owner only; read again, nothing repeated", trials=2)


def test_f46_umask_of_a_training(elastic, row):
    old = os.umask(0o077)
    try:
        one = elastic(steps=40, every=20).start("--nodes", 2)
        assert one.ended()[0] == [0]
        one.options["steps"] = 60
        codes, said = one.start("--nodes", 2).ended()
    finally:
        os.umask(old)
    assert codes == [0, 0], said
    assert {result["began"] for result in one.results().values()} == {40}
    files = list((one.folder / "checkpoints").rglob("*"))
    assert {path.stat().st_mode & 0o077 for path in files} == {0}
    row.measured("a training: checkpoints for their owner only; resumed", trials=1)

"""Full disks: what is said, and that nothing is lost or left over."""

import os
import re
import resource
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from kinds import KINDS
from test_f11_killed_while_saving import started

from perron._storage.atomic import write_bytes
from perron.errors import FileError

STUDY = """
conclusion = "topologies"
topologies = ["ring"]
nodes = [2, 3]
steps = {steps}
every = 1
trials = 30
lr = 0.1
[problem]
kind = "quadratic"
dim = 2
noise_std = 0.5
"""


def small(folder: Path, size: str) -> list[str]:
    """What runs a command on a disk of that size, seen by it alone."""
    return ["unshare", "-m", "sh", "-c", f'mount -t tmpfs -o size={size} tmpfs "$0" && exec "$@"', str(folder)]


@pytest.fixture
def disk(tmp_path):
    """A place for a small disk."""
    folder = tmp_path / "disk"
    folder.mkdir()
    trial = [*small(folder, "1m"), "true"]
    if not shutil.which("unshare") or subprocess.run(trial, capture_output=True, check=False).returncode:
        pytest.skip("no file systems can be mounted here (unshare -m, as root)")
    return folder


def check(found, folder, words):
    """Said what, where and how much; the last one saved is whole; nothing half."""
    assert re.search(
        rf"Cannot write {re.escape(str(folder))}/\S+: {words} \(it needs [\d,]+ bytes; [\d,]+ are free\)", found["said"]
    )
    step, said = found["loaded"]
    assert step == found["step"] >= 1
    assert "damaged" not in said
    assert found["left"] == 0
    assert not [name for name in found["files"] if name.endswith(".part")]


@pytest.mark.parametrize("kind", KINDS)
def test_f13_full_disk(kind, disk, row):
    width = {"training": 75, "simulation": 3000}[kind]
    (found,) = started("filled", kind, disk, width, before=small(disk, "300k"))
    check(found, disk, "No space left on device")
    row.measured(
        f"{kind}: on 300 kB said so, with path and size; step {found['step']} whole; no partial file", trials=1
    )


@pytest.mark.parametrize("kind", KINDS)
def test_f13_a_limit_on_file_size(kind, tmp_path, row):
    width = {"training": 4, "simulation": 20}[kind]
    limit = {"training": 5_000, "simulation": 2_500}[kind]  # a simulation's file grows with what was measured

    def limited():
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    if kind == "training":  # whose files are all of one size: those from before the limit are left
        started("recorded", kind, tmp_path, 2)
        before = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    (found,) = started("filled", kind, tmp_path, width, preexec_fn=limited)
    if kind == "training":
        assert "File too large" in found["said"]
        assert found["files"] == before
        assert found["loaded"] == [2, ""]
    else:
        check(found, tmp_path, "File too large")
    row.measured(f"{kind}: a limit of {limit:,} bytes: said so, nothing lost, no partial file", trials=1)


def test_f13_a_device_that_is_full(tmp_path, row):
    device = tmp_path / "full"
    try:
        os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 7))
    except PermissionError:
        pytest.skip("no devices can be made here (mknod, as root)")
    with pytest.raises(FileError, match="full: it is not a regular file"):
        write_bytes(device, b"content")
    assert stat.S_ISCHR(device.stat().st_mode)  # it was not replaced by a file
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "perron", "graph", "ring", "--nodes", "4"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=100)
    assert done.returncode == 1
    assert done.stderr == "perron: No space left on device.\n"
    row.measured("/dev/full is refused as a target and stays a device; printing to it ends in one line", trials=2)


def test_f13_results_of_a_study(disk, tmp_path, row):
    study = tmp_path / "study.toml"
    study.write_text(STUDY.format(steps=20))
    run = f"{sys.executable} -m perron study run {study} --workers 1 --out {disk}"
    script = f"""
        {run} > /dev/null 2>&1 || exit 9
        sha256sum {disk}/results.parquet
        head -c $(($(stat -f -c '%a * %S' {disk}) - 8192)) /dev/zero > {disk}/filler
        {run} --set steps=2000 2>&1 >/dev/null; echo "code $?"
        sha256sum {disk}/results.parquet
        find {disk} -name '*.part'
    """
    done = subprocess.run(
        [*small(disk, "16m"), "sh", "-c", script], capture_output=True, text=True, check=False, timeout=300
    )
    first, *said, code, last = done.stdout.splitlines()
    assert first == last, done  # the old results are whole, and nothing else is left
    assert code in ("code 1", "code 3")
    text = " ".join(said)
    assert re.search(r"Cannot write \S+: No space left on device \(it needs [\d,]+ bytes; [\d,]+ are free\)", text), (
        text
    )
    assert "Traceback" not in text
    row.measured("results.parquet: the old one whole, path and size named, no partial file", trials=1)

"""A study in a folder that holds results of other code: whatever stops it, no row of them is lost."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from hashlib import sha256

import pandas as pd
import pytest
from processes import HANG
from study_runs import run_in_background, wait_for
from tables import OTHER, STUDY, Attempts, Here, contents, disguise
from test_f13_full_disk import disk, small  # noqa: F401  (a fixture)

from perron import report
from perron.errors import FileError, PerronError
from perron.studies.provenance import code
from perron.studies.results import earlier_results, read_study, replace_table, results_by_code
from perron.studies.runner import run_study
from perron.studies.spec import Study

SPEC = Study.model_validate(STUDY)
TOML = """
title = "Small"
conclusion = "topologies"
topologies = ["ring"]
nodes = [2, 3]
lr = 0.1
steps = 6
every = 1
trials = 2
[problem]
kind = "quadratic"
dim = 2
noise_std = 0.5
"""


@pytest.fixture
def folder(tmp_path):
    """A finished study of other code, with its report."""
    out = tmp_path / "out"
    outcome = run_study(SPEC, out, executor=Here())
    assert outcome.finished
    disguise(out)
    report.write([read_study(out)], out / "report.html")
    return out


def check(out, table, page=None):
    """All rows are there, in one readable table; what is in the folder itself is whole, too."""
    found = read_study(out, code=OTHER)
    pd.testing.assert_frame_equal(found.table, table)
    now = read_study(out)
    assert now.manifest.code in (OTHER, code())
    if now.manifest.code == code():
        (kept,) = earlier_results(out)
        pd.testing.assert_frame_equal(read_study(kept).table, table)
        assert page is None or (kept / "report.html").read_bytes() == page


@pytest.mark.parametrize("how", ["kill", "interrupt", "full"])
def test_f31_stopped_at_any_operation(how, folder, tmp_path, row, trials):
    table, page = read_study(folder).table, (folder / "report.html").read_bytes()
    with Attempts() as attempt:
        shutil.copytree(folder, tmp_path / "whole")
        ended, operations = attempt(tmp_path / "whole")
        assert ended == "finished"
        assert operations > 20
        check(tmp_path / "whole", table, page)
        chosen = random.Random(how).sample(range(1, operations + 1), trials(6, operations))
        stopped = 0
        for when in chosen:
            shutil.rmtree(place := tmp_path / "place", ignore_errors=True)
            shutil.copytree(folder, place)
            ended, _ = attempt(place, how, when)
            stopped += ended != "finished"
            check(place, table, page)
            assert attempt(place)[0] == "finished", (how, when, ended)  # the next one finishes
            check(place, table, page)
            assert read_study(place).finished
            assert not list(place.rglob("*.part"))
            assert not (place / "manifest.next.json").exists()
    assert stopped > len(chosen) / 2
    row.measured(
        f"{how} at {len(chosen)} of {operations} operations, {stopped} of them stopped it: all rows of other code readable, "
        "the next run finishes",
        trials=len(chosen),
    )


def test_f31_without_ray_nothing_is_touched(folder, tmp_path, row):
    """The case that was seen: 12,060 rows became 0."""
    (tmp_path / "absent").mkdir()
    (tmp_path / "absent" / "ray.py").write_text("raise ImportError('not installed')")
    (tmp_path / "small.toml").write_text(TOML)
    path = os.pathsep.join([str(tmp_path / "absent"), os.environ.get("PYTHONPATH", "")])
    before = contents(folder)
    command = [sys.executable, "-m", "perron", "study", "run", str(tmp_path / "small.toml"), "--out", str(folder)]
    done = subprocess.run(
        [*command, "--on", "ray"],
        env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False, timeout=HANG,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == "perron: --on ray needs ray: pip install 'perron[ray]'\n"
    assert contents(folder) == before
    row.measured("no Ray: refused, not a byte of the folder changed", trials=1)


def test_f31_ctrl_c_and_kill_of_the_command(folder, tmp_path, row, trials):
    file, table = tmp_path / "small.toml", read_study(folder).table
    file.write_text(TOML)
    before = (folder / "results.parquet").read_bytes()
    dice, many = random.Random(1), trials(2, 10)
    for number in range(many):
        process = run_in_background(file, folder, "--set", "steps=2_000_000", "--set", "every=1000")
        if number == 0:
            wait_for(lambda: list((folder / "runs").glob("*.live")))
        else:
            time.sleep(dice.uniform(0, 8))
        process.send_signal(signal.SIGKILL if number % 2 else signal.SIGINT)
        _, said = process.communicate(timeout=HANG)
        assert (folder / "results.parquet").read_bytes() == before
        check(folder, table)
    process = run_in_background(file, folder)
    _, said = process.communicate(timeout=HANG)
    assert process.returncode == 0, said
    assert f"2 of 2 runs have results of other code ({OTHER})" in said
    (kept,) = earlier_results(folder)
    assert str(kept) in said
    check(folder, table)
    for arguments in (["--code", OTHER], []):
        command = [sys.executable, "-m", "perron", "study", "show", str(folder), *arguments, "--json"]
        shown = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=HANG).stdout)
        assert shown["code"] == (OTHER if arguments else code())
        assert shown["done"] == 2
        assert shown["results_by_code"] == ({OTHER: 2} if arguments else {code(): 2, OTHER: 2})
    row.measured(f"Ctrl-C and kills of the command: table unchanged {many} of {many}, then both shown", trials=many)


def test_f31_two_at_once_and_a_reader(folder, tmp_path, row, trials):
    """The second is refused and changes nothing; who reads while tables change finds one of them."""
    holder = (
        "import sys, time; from pathlib import Path; from perron._storage.lockfile import exclusive_lock\n"
        f"with exclusive_lock(Path({str(folder / 'lock')!r}), '', ''): print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", holder], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as first:
        assert first.stdout.readline()
        before = contents(folder)
        with pytest.raises(PerronError, match=f"Another process is running a study .* \\(process {first.pid} on"):
            run_study(SPEC, folder, executor=Here())
        assert contents(folder) == before
    done = run_study(SPEC, folder, executor=Here())
    part = done.table[done.table["run"] == SPEC.runs[0].key]
    tables = [part.reset_index(drop=True), done.table]
    writer = os.fork()
    if writer == 0:
        with suppress(BaseException):
            for number in range(10**9):
                replace_table(folder, tables[number % 2], done.manifest)
        os._exit(1)
    seen, reads = set(), trials(300, 3000)
    try:
        for _ in range(reads):
            seen.add(len(read_study(folder).table))
        report.write([folder], tmp_path / "page.html")
    finally:
        os.kill(writer, signal.SIGKILL)
        os.waitpid(writer, 0)
    assert seen == {len(one) for one in tables}
    assert len(earlier_results(folder)) == 2  # that of other code, and the larger one of this code
    row.measured(f"a second study refused, nothing changed; {reads} reads of changing tables, all whole", trials=reads)


def test_f31_formats_that_are_not_known(folder, row):
    """A table or manifest of a newer version is refused by name, kept, and never overwritten."""
    table = b"PAR9" + b"\0" * 100 + b"PAR9"
    (folder / "results.parquet").write_bytes(table)
    manifest = json.loads((folder / "manifest.json").read_text()) | {"sha256": sha256(table).hexdigest()}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(FileError, match=r"results\.parquet cannot be read"):
        read_study(folder)
    run_study(SPEC, folder, executor=Here())
    (first,) = earlier_results(folder)
    assert (first / "results.parquet").read_bytes() == table
    newer = json.dumps(manifest | {"format": 2, "news": []})
    (folder / "manifest.json").write_text(newer)
    with pytest.raises(FileError, match=r"manifest\.json has the format 2, and this version of perron reads up to 1"):
        read_study(folder)
    before = (folder / "results.parquet").read_bytes()
    run_study(SPEC, folder, executor=Here())
    (second,) = set(earlier_results(folder)) - {first}
    assert (second / "results.parquet").read_bytes() == before
    assert (second / "manifest.json").read_text() == newer
    unread = b"a run of a newer version"
    (path,) = (folder / "runs").glob(f"{SPEC.runs[0].key}-{code()}.parquet")
    path.write_bytes(unread)
    assert run_study(SPEC, folder, executor=Here()).reused == 1
    assert [one.read_bytes() for one in (folder / "runs").glob("*.unread")] == [unread]
    assert results_by_code(folder) == {OTHER: 2, code(): 2}
    for unknown, message in (
        ("ffffffff", r"holds no results of the code 'ffffffff'.*0ddc0de1 \(2 runs\)"),
        ("../x", "got"),
    ):
        with pytest.raises(FileError, match=message):
            read_study(folder, code=unknown)
    row.measured("newer Parquet, newer manifest, an unreadable run: refused by name, kept as they were", trials=3)


def test_f31_a_disk_that_is_full(disk, tmp_path, row):  # noqa: F811
    """Results of other code on a real file system without room for a table."""
    run_study(SPEC, tmp_path / "out", executor=Here())
    disguise(tmp_path / "out")
    (tmp_path / "small.toml").write_text(TOML)
    script = f"""
        cp -r {tmp_path}/out/. {disk}
        head -c $(($(stat -f -c '%a * %S' {disk}) - 4096)) /dev/zero > {disk}/filler
        {sys.executable} -m perron study run {tmp_path}/small.toml --workers 1 --out {disk} 2>&1 >/dev/null; echo "code $?"
        rm -f {disk}/filler; cp -r {disk}/. {tmp_path}/after
    """
    done = subprocess.run(
        [*small(disk, "4m"), "sh", "-c", script], capture_output=True, text=True, check=False, timeout=HANG
    )
    assert "code 1" in done.stdout or "code 3" in done.stdout, done
    assert "No space left on device" in done.stdout
    assert "Traceback" not in done.stdout
    before, after = contents(tmp_path / "out"), contents(tmp_path / "after")
    assert {name: after.get(name) for name in before if name != "live.jsonl"} == {
        name: content for name, content in before.items() if name != "live.jsonl"
    }
    check(tmp_path / "after", read_study(tmp_path / "out").table)
    row.measured("a full disk: said so, all results of other code as they were", trials=1)


def test_f31_a_folder_that_is_read_only(folder, tmp_path, row):
    """It can be shown, and is refused as a place to run."""
    (tmp_path / "small.toml").write_text(TOML)
    mount = f"mount --bind {folder} {folder} && mount -o remount,ro,bind {folder}"
    if not shutil.which("unshare") or subprocess.run(["unshare", "-m", "sh", "-c", mount], check=False).returncode:
        pytest.skip("no file systems can be mounted here (unshare -m, as root)")
    before = contents(folder)
    perron = f"{sys.executable} -m perron study"
    script = (
        f"{mount}; {perron} show {folder} || exit 9; {perron} run {tmp_path}/small.toml --out {folder}; echo code $?"
    )
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, check=False, timeout=HANG
    )
    assert "code 1" in done.stdout, done
    assert done.stderr.count("\n") == 1
    assert "Cannot write" in done.stderr
    assert "Read-only file system" in done.stderr
    assert contents(folder) == before
    row.measured("a read-only folder: shown; refused in one line as a place to run", trials=1)

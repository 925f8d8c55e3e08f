"""What `perron watch` shows: right numbers, in any terminal, of what goes on, was stopped, has ended, or is damaged."""

import fcntl
import io
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from perron.cli.main import app
from perron.errors import PerronError
from perron.monitor.curves import MARGIN, Curve, draw_curves
from perron.monitor.dashboard import Dashboard, shorten_labels
from perron.monitor.logger import Log
from perron.monitor.records import Records
from perron.monitor.status import STUDY_FILE, StudyFolder, open_folder

NAMES = [f"{i:016x}-01234567" for i in range(5)]
LABELS = [f"push_pull on ring({n}), uniform, lr 0.1, seed 0" for n in (4, 8, 16, 32, 64)]


@pytest.fixture
def study(tmp_path):
    """A study of five runs: one done in 10 s, one failed, one half done, two to come, on two workers."""
    runs = tmp_path / "runs"
    runs.mkdir()
    plan = [
        [name, label, cost] for name, label, cost in zip(NAMES, LABELS, [100.0, 100.0, 200.0, 400.0, 50.0], strict=True)
    ]
    about = {"title": "Rings of many sizes", "workers": 2, "runs": plan, "command": "perron study run rings.toml"}
    records = Records(tmp_path / STUDY_FILE, about)
    table = pd.DataFrame({"step": [0, 0, 10, 10], "trial": [0, 1, 0, 1], "grad_norm_sq": [1.0, 3.0, 0.1, 0.3]})
    table.to_parquet(runs / f"{NAMES[0]}.parquet")
    (runs / f"{NAMES[0]}.json").write_text('{"seconds": 10.0, "warnings": []}')
    records.event("took too long", run=NAMES[1])
    now = time.time()
    lines = [{"began": now - 20, "steps": 100}]
    lines += [
        {"time": now - 20 + step / 5, "step": step, "grad_norm_sq": 10.0 ** (-step / 25)} for step in range(0, 51, 5)
    ]
    (runs / f"{NAMES[2]}.live").write_text("\n".join(map(json.dumps, lines)) + "\n")
    with (runs / f"{NAMES[2]}.live").open("ab") as worker:
        fcntl.flock(worker, fcntl.LOCK_EX)
        yield tmp_path
    records.close(ended=False)


def shown(folder, width=80, height=24, metric=None):
    """The lines of a frame."""
    console = Console(width=width, height=height, record=True, file=io.StringIO())
    console.print(Dashboard(open_folder(folder), metric).render(width, height))
    return console.export_text().splitlines()


def run(*options):
    return CliRunner().invoke(app, ["watch", *map(str, options)])


def test_time_left_comes_from_the_work_that_is_done(study):
    folder = StudyFolder(study).refresh()
    # Work 100 in 10 s and 100 (half of 200) in 10 s: 10 a second for a worker. The half run needs 10 s more, and then there is
    # work of 400 and 50: 40 s on the free worker, 5 s after the half run.
    assert folder.left == pytest.approx(40.0)
    assert folder.share == pytest.approx((100 + 100 + 200 * 0.5) / 850)
    assert (len(folder.done), len(folder.failed), len(folder.active)) == (1, 1, 1)


def test_runs_that_were_left_wait_their_turn(tmp_path):
    (tmp_path / "runs").mkdir()
    now = time.time()
    for name in NAMES:  # a tenth of each, at one percent a second, by processes that are gone
        lines = [{"began": now - 5000, "steps": 1000}]
        lines += [{"time": now - 5000 + i, "step": 10 * i} for i in range(11)]
        (tmp_path / "runs" / f"{name}.live").write_text("\n".join(map(json.dumps, lines)) + "\n")
    plan = {
        "title": "x",
        "workers": 2,
        "runs": [[name, label, 100.0] for name, label in zip(NAMES, LABELS, strict=True)],
    }
    records = Records(tmp_path / STUDY_FILE, plan)
    folder = StudyFolder(tmp_path).refresh()
    assert (len(folder.active), len(folder.interrupted), folder.share) == (0, 5, pytest.approx(0.1))
    assert folder.left == pytest.approx(270.0)  # five of 90 s on two workers
    assert any("0 done, 5 to come; running" in line for line in shown(tmp_path))
    with Records(tmp_path / "runs" / f"{NAMES[3]}.live", {}, steps=1000):
        assert list(folder.refresh().active) == [NAMES[3]]
        assert folder.left == pytest.approx(270.0)
        for name in NAMES[:2]:  # they wrote and were killed, both of them
            Records(tmp_path / "runs" / f"{name}.live", {}, steps=1000).close(ended=False)
        assert list(folder.refresh().active) == [
            NAMES[1],
            NAMES[3],
        ]  # not more than workers: who lives, and who wrote last
    records.close(ended=False)
    assert len(folder.refresh().active) == 5  # of a stopped study, all that were begun


def test_a_frame_says_all(study):
    text = "\n".join(shown(study))
    for words in (
        "Rings of many sizes", "35%", "40 s left", "5 runs: 1 done, 1 in progress, 2 to come, 1 failed; running",
        "push_pull on ring(16) ", "50/100", "|grad|² 0.01", "10 s left", "failed: push_pull on ring(8)", "took too long",
        "grad_norm_sq over steps; gray: finished runs; q quits", "1e-2┤",
    ):  # fmt: skip
        assert words in text, words


@pytest.mark.parametrize(("width", "height"), [(80, 24), (60, 20), (40, 12), (132, 50), (30, 8)])
def test_a_frame_fits_the_terminal(study, width, height):
    lines = shown(study, width, height)
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    pictured = any("└" in line for line in lines)
    assert pictured == (height >= 12)  # the picture takes the room there is, if it is enough for one
    assert not pictured or len(lines) == height


def test_a_stopped_study_says_how_to_go_on(study):
    (study / "copy").mkdir()
    (study / "copy" / STUDY_FILE).write_bytes((study / STUDY_FILE).read_bytes())  # nobody holds a lock on the copy
    found = run(study / "copy")
    assert found.exit_code == 0
    said = " ".join(found.output.split())
    assert "stopped 1 s ago (no process holds the lock on its records); perron study run rings.toml resumes it" in said


def test_json_is_for_programs(study):
    record = json.loads(run(study, "--json").output)
    assert (record["running"], record["runs"], record["done"], record["workers"]) == (True, 5, 1, 2)
    assert record["seconds_left"] == pytest.approx(40.0)
    assert record["failed"] == {LABELS[1]: "took too long"}
    track = record["tracks"]["push_pull on ring(16)"]
    assert (track["step"], track["steps"], track["rate"]) == (50, 100, pytest.approx(5.0))
    assert track["last"]["grad_norm_sq"] == pytest.approx(0.01)


@pytest.mark.parametrize("once", [["--once"], []])
def test_without_a_terminal_there_is_one_frame(study, once):
    found = run(study, *once)
    assert found.exit_code == 0
    assert "Rings of many sizes" in found.output
    assert ("Not a terminal" in found.output) == (not once)


def test_an_unknown_metric_is_refused(study):
    with pytest.raises(PerronError, match=r"No metric 'gradnorm' .* there are: grad_norm_sq"):
        Dashboard(open_folder(study), "gradnorm")
    assert any("grad_norm_sq over steps" in line for line in shown(study, metric="grad_norm_sq"))


def test_what_cannot_be_watched_is_one_sentence(tmp_path):
    def refused(folder):
        with pytest.raises(PerronError) as error:
            open_folder(folder)
        assert "\n" not in str(error.value)
        return str(error.value)

    assert "There is no directory" in refused(tmp_path / "nowhere")
    assert "holds no study and no training" in refused(tmp_path)
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / STUDY_FILE).write_text("")
    assert f"Perhaps you mean {tmp_path / 'inner'}." in refused(tmp_path)
    assert "holds no record of a study" in refused(tmp_path / "inner")
    (tmp_path / "inner" / STUDY_FILE).write_bytes(b'{"began": 1.0, "runs": [["a", "b"]]}\n')
    assert "is damaged" in refused(tmp_path / "inner")
    for damaged in (b'{"began": 1.0, "runs": [["a", "b", NaN]]}\n', b'{"began": 1.0, "runs": [], "workers": "two"}\n'):
        (tmp_path / "inner" / STUDY_FILE).write_bytes(damaged)
        assert "is damaged" in refused(tmp_path / "inner")
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "manifest.json").write_text("{}")
    assert "perron study show" in refused(tmp_path / "old")
    (tmp_path / "node").mkdir()
    (tmp_path / "node" / "node-0.jsonl").write_bytes(b"\xff\xfe torn")
    assert "no records of perron.Log" in refused(tmp_path / "node")


def test_damaged_tables_and_records_do_not_end_it(study):
    (study / "runs" / f"{NAMES[0]}.parquet").write_bytes(b"PAR1")
    with (study / "runs" / f"{NAMES[2]}.live").open("ab") as file:
        file.write(b'\x00\xff\n{"step": "x"}\n[1]\n{"time": 3')
    assert any("50/100" in line for line in shown(study))
    for table in (
        {"step": [0, 0, 10], "trial": [0, 1, 0], "loss": [1.0, 2.0, 3.0]},
        {"step": [0], "trial": [0], "loss": ["x"]},
    ):
        pd.DataFrame(table).to_parquet(study / "runs" / f"{NAMES[0]}.parquet")  # a row is missing; no numbers
        with pytest.raises(PerronError, match="Cannot read"):
            StudyFolder(study).finished(NAMES[0])
    (study / "runs" / f"{NAMES[2]}.live").unlink()
    assert any("3 to come" in line for line in shown(study))


def test_a_training_shows_its_nodes(tmp_path):
    logs = [Log(tmp_path, steps=200, node=node, every=0) for node in range(3)]
    for step in range(1, 101):
        for node, log in enumerate(logs):
            log(step, loss=(node + 1) / step)
    logs[0]._records.event("Step 100: lost node 2 (killed). The objective is now another.")
    logs[2].close(ended=False)
    text = "\n".join(shown(tmp_path))
    for words in (
        "2 of 3 nodes, step 100 of 200",
        "steps/s; running",
        "Step 100: lost node 2 (killed)",
        "gone 1 s",
        "loss 0.02",
    ):
        assert words in text, words
    for log in logs:
        log.close()
    record = Dashboard(open_folder(tmp_path)).to_dict()
    assert (record["kind"], record["running"], record["complete"]) == ("training", False, True)
    assert record["events"] == [[100, "Step 100: lost node 2 (killed). The objective is now another."]]
    assert any(line.startswith("ended 1 s ago") for line in shown(tmp_path))


def test_nothing_that_steers_a_terminal_reaches_it(tmp_path):
    steering = "\x1b]0;mine\x07\x1b[2J\x9b31m\r\n\x7f[/]"
    plan = [[name, f"{steering}{label}", 1.0] for name, label in zip(NAMES, LABELS, strict=True)]
    (tmp_path / "study" / "runs").mkdir(parents=True)
    about = {"title": f"A title{steering}", "runs": plan, "command": f"perron{steering}"}
    with Records(tmp_path / "study" / STUDY_FILE, about) as study:
        study.event(f"failed{steering}", run=NAMES[0])
        with Records(tmp_path / "study" / "runs" / f"{NAMES[1]}.live", {}, steps=9) as one:
            one(3, **{f"loss{steering}": 1.0})
            seen = "\n".join(shown(tmp_path / "study", 100))
            with pytest.raises(PerronError) as refused:
                Dashboard(open_folder(tmp_path / "study"), "x")
    with Log(tmp_path / "training") as log:
        log._records.event(f"lost{steering}")
        seen += "\n".join(shown(tmp_path / "training"))
    seen += "\n".join(shown(tmp_path / "study")) + str(refused.value)  # now it is stopped, and says the command
    assert not [mark for mark in seen if mark != "\n" and (ord(mark) < 32 or 127 <= ord(mark) < 160)]
    for words in (
        "A title]0;mine[2J31m",
        "failed]0;mine",
        "push_pull on ring(8)",
        "loss]0;mine",
        "lost]0;mine",
        "perron]0;mine",
    ):
        assert words in seen, words


def test_names_say_what_differs():
    assert list(shorten_labels(dict(enumerate(LABELS))).values())[:2] == [
        "push_pull on ring(4)",
        "push_pull on ring(8)",
    ]
    same = shorten_labels({"abcdef": "sgp on ring(4), seed 0", "fedcba": "sgp on ring(4), seed 0"})
    assert same == {"abcdef": "sgp on ring(4), seed 0 (abcd)", "fedcba": "sgp on ring(4), seed 0 (fedc)"}


# ---- curves


def dots(line):
    return [column for column, mark in enumerate(line.plain[MARGIN + 1 :]) if 0x2801 <= ord(mark) <= 0x28FF]


def test_a_power_law_is_straight_on_a_logarithmic_axis():
    lines = draw_curves([Curve([(x, 10.0 ** (-x / 10)) for x in range(41)], "red")], width=MARGIN + 1 + 40, height=22)
    where = [dots(line) for line in lines[:-2]]
    assert [min(found) // 2 for found in where] == list(range(20))
    ticks = [line.plain[:MARGIN].strip() for line in lines[:-2] if line.plain[MARGIN] == "┤"]
    assert ticks == ["1e0", "1e-1", "1e-2", "1e-3", "1e-4"]
    assert lines[-1].plain.split() == ["0", "40"]


def test_a_narrow_range_has_a_linear_axis():
    lines = draw_curves([Curve([(0, 0.90), (100, 0.98)], "red")], width=60, height=12)
    numbers = [float(line.plain[:MARGIN]) for line in lines[:-2] if line.plain[MARGIN] == "┤"]
    assert numbers[0] == pytest.approx(0.98, abs=0.005)
    assert numbers[-1] == pytest.approx(0.90, abs=0.005)


@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.floats(allow_nan=False, allow_infinity=False, width=32)), max_size=30),
    st.integers(20, 90),
    st.integers(4, 20),
)
def test_any_curve_can_be_drawn(points, width, height):
    lines = draw_curves([Curve(sorted(points), "red"), Curve(sorted(points)[:3], "blue")], width, height)
    assert len(lines) in (1, height)
    assert all(len(line.plain) <= width for line in lines)
    assert not points or any(dots(line) for line in lines)


# ---- a terminal


def test_it_follows_a_study_in_a_terminal_and_q_quits(study):
    screen, terminal = pty.openpty()
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"}
    process = subprocess.Popen(
        [sys.executable, "-m", "perron", "watch", str(study)],
        stdin=terminal, stdout=terminal, stderr=terminal, env=environment, start_new_session=True,
    )  # fmt: skip
    os.close(terminal)
    seen = b""
    try:
        deadline, asked = time.monotonic() + 600, False
        while time.monotonic() < deadline:
            if select.select([screen], [], [], 0.1)[0]:
                try:
                    seen += os.read(screen, 65536)
                except OSError:
                    break
            if b"Rings of many sizes" in seen and not asked:
                os.write(screen, b"q")
                asked = True
        assert process.wait(timeout=600) == 0
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        os.close(screen)
    assert b"q quits" in seen
    assert b"Traceback" not in seen

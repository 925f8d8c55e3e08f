"""Records of what is under way: what is written is read again, whatever happens to the writer; TensorBoard's equal the table."""

import fcntl
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import perron
from perron.errors import FileError, PerronError
from perron.monitor import records as records_module
from perron.monitor.dashboard import Dashboard
from perron.monitor.logger import Log
from perron.monitor.records import Records, Tail, Track, is_locked, read
from perron.monitor.status import StudyFolder, makespan, open_folder
from perron.problems import Quadratic
from perron.studies.executors import Executor
from perron.studies.job import Report, perform, write_result
from perron.studies.runner import run_study
from perron.studies.spec import Study

STUDY = {
    "title": "Two algorithms on a ring",
    "conclusion": "comparison",
    "topologies": ["ring"],
    "nodes": 4,
    "algorithms": ["push_pull", "sgp"],
    "lr": 0.05,
    "steps": 120,
    "trials": 3,
    "metrics": ["grad_norm_sq", "consensus_error_sq"],
    "problem": {"kind": "quadratic", "noise_std": 0.1},
}


def test_what_is_told_is_read(tmp_path):
    with Log(tmp_path, steps=30, every=0, node=2) as log:
        for step in range(1, 31):
            log(step, loss=torch.tensor(1.0 / step, requires_grad=True))
            if step % 10 == 0:
                log(step, accuracy=step / 100)
    track = read(tmp_path / "node-2.jsonl")
    assert track.curves["loss"] == [(step, float(torch.tensor(1.0 / step))) for step in range(1, 31)]
    assert track.curves["accuracy"] == [(10, 0.1), (20, 0.2), (30, 0.3)]
    assert (track.step, track.steps, track.about["node"], track.share) == (30, 30, 2, 1.0)
    assert track.ended is not None
    assert track.damaged == 0


def test_few_lines_are_written_and_each_name_has_its_turn(tmp_path):
    with Log(tmp_path, steps=5000) as log:
        for step in range(5001):
            log(step, loss=step)
            if step == 2500:
                log(step, accuracy=0.5)
    track = read(tmp_path / "node-0.jsonl")
    assert track.curves["accuracy"] == [(2500, 0.5)]
    assert len(track.curves["loss"]) < 100
    assert track.curves["loss"][-1] == (5000, 5000.0)  # the end is always told


def test_a_value_that_is_not_due_is_not_looked_at(tmp_path):
    class Costly:
        def __float__(self):
            raise RuntimeError("looked at")

    with Log(tmp_path) as log:
        log(1, loss=1.0)
        log(2, loss=Costly())
        with pytest.raises(PerronError, match=r"other must be a number .* got Costly"):
            log(3, other=Costly())
        with pytest.raises(PerronError, match="got Tensor"):
            log(3, pair=torch.ones(2))


def test_values_that_are_not_finite(tmp_path):
    with Log(tmp_path, every=0) as log:
        log(1, loss=float("nan"))
        log(2, loss=float("inf"))
        log(3, loss=2.0)
    for line in (tmp_path / "node-0.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=pytest.fail)  # JSON that every reader takes
    assert read(tmp_path / "node-0.jsonl").curves["loss"] == [(1, None), (2, None), (3, 2.0)]


def test_who_comes_again_goes_on_in_the_same_file(tmp_path):
    path = tmp_path / "node-0.jsonl"
    first = Records(path, {}, steps=100, every=0)
    for step in (10, 20, 30):
        first(step, loss=float(step))
    first.close(ended=False)
    with path.open("ab") as file:
        file.write(b'{"time": 17, "step": 40, "lo')  # killed in the middle of a line
    second = Records(path, {}, steps=100, every=0)
    for step in (20, 25):  # from what was saved at step 15
        second(step, loss=-float(step))
    track = read(path)
    assert track.curves["loss"] == [(10, 10.0), (20, -20.0), (25, -25.0)]
    assert (track.step, track.damaged, track.ended) == (25, 1, None)
    second.close()


def test_all_that_comes_again_replaces_what_was_told_before(tmp_path):
    path = tmp_path / "node-0.jsonl"
    with Records(path, {}, every=0) as first:
        for step in (10, 20, 30):
            first(step, loss=1.0)
            first(step, accuracy=0.5)
        first(30, late=1.0)
    with Records(path, {}, every=0) as second:
        second.event("Before any step.")  # says nothing of where it goes on
        second(20, loss=2.0)
        assert read(path).curves == {"loss": [(10, 1.0), (20, 2.0)], "accuracy": [(10, 0.5)]}
        second(20, accuracy=0.6)
    assert read(path).last == {"loss": 2.0, "accuracy": 0.6}


@pytest.mark.parametrize("names", [["loss"], ["loss", "accuracy"]])
def test_a_rate_of_records_that_are_far_apart(names):
    track = Track()
    track.add({"began": 0.0, "steps": 10})
    for step in range(1, 6):
        for later, name in enumerate(names):
            track.add({"time": 100.0 * step + later, "step": step, name: 1.0})
        assert (track.rate() is None) == (step == 1)
    assert track.rate() == pytest.approx(0.01, rel=0.02)
    assert track.left == pytest.approx(500, rel=0.02)


@given(
    cut=st.integers(0, 400),
    noise=st.binary(max_size=20) | st.sampled_from([b"{", b"[]", b"1", b'{"step": 1}', b"null"]),
)
def test_a_damaged_file_loses_the_damaged_lines_only(cut, noise, tmp_path_factory):
    path = tmp_path_factory.mktemp("cut") / "node-0.jsonl"
    with Records(path, {"node": 0}, every=0) as records:
        for step in range(6):
            records(step, loss=float(step))
    content = path.read_bytes()
    path.write_bytes(content[:cut] + noise)
    whole = [json.loads(line) for line in content[:cut].split(b"\n")[:-1]]
    found = read(path).curves.get("loss", [])
    wanted = [(line["step"], line["loss"]) for line in whole if "loss" in line]
    assert found[: len(wanted)] == wanted
    path.write_bytes(noise + b"\n" + content)
    assert read(path).curves["loss"] == [(step, float(step)) for step in range(6)]


@pytest.mark.parametrize(
    "line",
    [
        '{"time": 2, "step": 2, "loss": "abc"}', '{"time": 2, "step": 2, "loss": 1, "other": {"a": 1}}',
        '{"time": 2, "step": 2, "steps": "ten"}', '{"began": 2, "steps": "ten"}', '{"began": NaN}',
        '{"time": 2, "step": Infinity, "loss": 1}', '{"time": 2, "step": -1}', '{"time": Infinity, "step": 2}',
        f'{{"time": 2, "step": {10**400}, "loss": 1}}', f'{{"time": 2, "step": 2, "loss": {10**400}}}',
        f'{{"time": 2, "step": 2, "steps": {10**400}}}', '{"ended": "x", "step": 2}', "[" * 100_000,
    ],
)  # fmt: skip
def test_a_line_that_makes_no_sense_changes_nothing(tmp_path, line):
    path = tmp_path / "node-0.jsonl"
    path.write_text('{"began": 1.0, "steps": 10}\n{"time": 1.5, "step": 1, "loss": 4.0}\n')
    before = read(path)
    with path.open("a") as file:
        file.write(line + "\n")
    after = read(path)
    assert after.damaged == 1
    after.damaged = 0
    assert after == before
    watched = Dashboard(open_folder(tmp_path))
    watched.render(80, 24)
    assert watched.to_dict()["tracks"]["node 0"]["last"] == {"loss": 4.0}


def test_a_number_that_is_not_finite_is_none_whoever_wrote_it(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"began": 1}\n{"time": 2, "step": 1, "loss": NaN, "other": -Infinity}\n')
    assert read(tmp_path / "x.jsonl").last == {"loss": None, "other": None}


def test_a_tail_reads_what_is_new_and_only_whole_lines(tmp_path):
    path = tmp_path / "node-0.jsonl"
    tail = Tail(path)
    assert tail.poll().began is None  # not there yet
    records = Records(path, {}, every=0)
    records(1, loss=1.0)
    assert tail.poll().step == 1
    with path.open("ab") as file:
        file.write(b'{"time": 5.0, "st')
        file.flush()
        assert tail.poll().step == 1
        file.write(b'ep": 2, "loss": 0.5}\n')
    assert tail.poll().curves["loss"] == [(1, 1.0), (2, 0.5)]
    records.close()
    path.unlink()
    assert tail.poll().step == 2  # gone: as before
    with Records(path, {}, every=0) as again:
        again(7, loss=7.0)
    assert tail.poll().curves["loss"] == [(7, 7.0)]  # another file


def test_the_lock_tells_who_lives(tmp_path):
    script = "from perron.monitor.records import Records; import time; r = "
    script += f"Records({str(tmp_path / 'x.jsonl')!r}, {{}}); time.sleep(600)"
    process = subprocess.Popen([sys.executable, "-c", script])
    try:
        deadline = time.monotonic() + 300
        while not is_locked(tmp_path / "x.jsonl") and time.monotonic() < deadline:
            time.sleep(0.02)
        assert is_locked(tmp_path / "x.jsonl")
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not is_locked(tmp_path / "x.jsonl")
    assert not is_locked(tmp_path / "nothing.jsonl")


def test_one_who_looks_does_not_keep_a_writer_from_its_lock(tmp_path):
    path = tmp_path / "node-0.jsonl"
    with Records(path, {}):
        pass
    with path.open("rb") as looked:
        fcntl.flock(looked, fcntl.LOCK_SH)
        looker = threading.Timer(0.05, fcntl.flock, (looked, fcntl.LOCK_UN))
        looker.start()
        with Records(path, {}):
            looker.join()
            assert is_locked(path)


def test_what_perron_warns_of_is_told(tmp_path):
    with Log(tmp_path) as log:
        log(205, loss=1.0)
        logging.getLogger("perron").warning("Step %d: lost node 1.", 205)
    logging.getLogger("perron").warning("Afterwards.")
    assert [(event.step, event.message) for event in read(tmp_path / "node-0.jsonl").events] == [
        (205, "Step 205: lost node 1.")
    ]


def test_a_full_disk_ends_the_records_not_the_run(tmp_path, caplog):
    records = Records(tmp_path / "x.jsonl", {}, every=0)
    records(1, loss=1.0)
    records._file.close()
    records._file = open("/dev/full", "ab", buffering=0)  # noqa: PTH123, SIM115 - a disk without room
    records(2, loss=0.5)
    records(3, loss=0.25)
    records.close()
    assert [message for message in caplog.messages if "No space left" in message] == caplog.messages[:1]
    assert read(tmp_path / "x.jsonl").step == 1


def test_where_nothing_can_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="Cannot write to"):
        Log(tmp_path / "file" / "inner")


def test_rates_are_of_the_present_process_and_of_late(tmp_path):
    path = tmp_path / "x"
    lines = [{"began": 0.0, "steps": 1000}, {"time": 1.0, "step": 0}, {"time": 2.0, "step": 500}]
    lines += [
        {"began": 100.0},
        {"time": 110.0, "step": 400},
        {"time": 120.0, "step": 500},
        {"time": 190.0, "step": 640},
    ]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")
    track = read(path)
    assert track.rate(1000) == pytest.approx(240 / 80)
    assert track.rate(70) == pytest.approx(140 / 70)
    assert track.left == pytest.approx(360 / (140 / 70)) if records_module.WINDOW >= 70 else True
    assert track.work == (pytest.approx(0.24), 80.0)


@given(st.lists(st.floats(0, 100), max_size=4), st.lists(st.floats(0.1, 100), max_size=12), st.integers(4, 6))
def test_time_left_lies_between_its_bounds(going, waiting, workers):
    found = makespan(going, waiting, workers)
    perfect = max([(sum(going) + sum(waiting)) / workers, *going, *waiting, 0.0])
    assert perfect - 1e-9 <= found <= 2 * perfect + 1e-9  # Graham: list scheduling is within twice the best


def test_simulate_tells_each_measured_step(tmp_path):
    mixing = perron.Mixing.uniform(perron.topologies.ring(3))
    with Log(tmp_path, every=0) as log:
        options = {"steps": 40, "every": 4, "trials": 3, "progress": False}
        history = perron.simulate(Quadratic.random(3), perron.PushPull(), mixing, log=log, **options)
    curve = read(tmp_path / "node-0.jsonl").curves["grad_norm_sq"]
    assert curve == list(zip(history.steps.tolist(), history.mean("grad_norm_sq").tolist(), strict=True))


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard reads."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


@pytest.mark.processes
def test_tensorboard_has_the_table_of_a_study(tmp_path):
    from perron.cli import study as study_cli

    study, folder = Study.model_validate(STUDY), tmp_path / "out"
    for _ in range(2):  # the second time nothing is written anew
        table = study_cli.run_with_progress(study, folder, workers=1, tensorboard=True).table
        places = sorted(path.name for path in (folder / "tensorboard").iterdir())
        assert [name.rpartition("-")[0] for name in places] == [
            "push_pull-on-ring-4-random_integer-lr-0.05-seed-0",
            "sgp-on-ring-4-random_integer-lr-0.05-seed-0",
        ]
        for name, algorithm in zip(places, ("push_pull", "sgp"), strict=True):
            assert len(list((folder / "tensorboard" / name).iterdir())) == 1
            measured = [*STUDY["metrics"], "bytes", "gradients"]
            mine = table[table.algorithm == algorithm].groupby("step")[measured].mean()
            found = scalars(folder / "tensorboard" / name)
            assert sorted(found) == sorted(measured)
            for metric, points in found.items():
                assert [step for step, _ in points] == mine.index.tolist()
                assert np.float32([value for _, value in points]).tolist() == np.float32(mine[metric]).tolist()
    assert not list((folder / "runs").glob("*.live"))  # finished runs need none
    assert StudyFolder(folder).refresh().complete


def test_a_worker_that_does_not_see_the_directory_is_heard(tmp_path):
    kept = {}

    class Blind(Executor):
        def run(self, jobs, on_progress):
            for place, job in enumerate(jobs):
                on_progress(place, Report(0, 1, {}))
                result = perform(job, lambda report, place=place: on_progress(place, report), shared=False)
                kept[job.run.algorithm] = read(job.target.with_suffix(".live"))
                yield place, write_result(job.target, result)

    table = run_study(Study.model_validate(STUDY), tmp_path, executor=Blind()).table
    for algorithm, track in kept.items():
        last = table[(table.algorithm == algorithm) & (table.step == 120)]
        assert (track.step, track.steps) == (120, 120)
        assert track.last["grad_norm_sq"] == pytest.approx(last.grad_norm_sq.mean())
    assert sorted(kept) == ["push_pull", "sgp"]
    assert not list((tmp_path / "runs").glob("*.live"))


def test_tensorboard_of_a_run_under_way_is_replaced_when_it_ends(tmp_path):
    from perron.monitor.tensorboard import StudyBoard

    name = "0123456789abcdef-01234567"
    (tmp_path / "runs").mkdir()
    plan = {"title": "x", "runs": [[name, "sgp on ring(4)", 10.0]]}
    with Records(tmp_path / "live.jsonl", plan), Records(tmp_path / "runs" / f"{name}.live", {}, every=0) as run:
        board = StudyBoard(tmp_path)
        run(0, loss=4.0)
        run(1, loss=3.0)
        board.update(now=True)
        run(2, loss=2.0)
        board.update(now=True)
        (place,) = (tmp_path / "tensorboard").iterdir()
        assert scalars(place) == {"loss": [(0, 4.0), (1, 3.0), (2, 2.0)]}
        table = pd.DataFrame({"lr": 0.1, "step": [0, 0, 1, 1], "trial": [0, 1, 0, 1], "loss": [4.0, 5.0, 1.0, 2.0]})
        table.to_parquet(tmp_path / "runs" / f"{name}.parquet")
        (tmp_path / "runs" / f"{name}.json").write_text('{"seconds": 1.0, "warnings": []}')
        board.close()
    assert scalars(place) == {"loss": [(0, 4.5), (1, 1.5)]}


def test_tensorboard_of_a_training_that_comes_again(tmp_path):
    for steps, sign in (((1, 2, 3, 4), 1), ((3, 4, 5), -1)):
        with Log(tmp_path, every=0, tensorboard=True) as log:
            for step in steps:
                log(step, loss=sign * step)
    assert scalars(tmp_path / "tensorboard" / "node-0") == {
        "loss": [(1, 1.0), (2, 2.0), (3, -3.0), (4, -4.0), (5, -5.0)]
    }


def test_without_tensorboard_it_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(PerronError, match=r"pip install 'perron\[tensorboard\]'"):
        Log(tmp_path, tensorboard=True)
    assert not os.listdir(tmp_path)  # noqa: PTH208


@pytest.mark.processes
def test_a_training_script_tells_all_its_nodes(tmp_path):
    script = Path(__file__).parents[2] / "examples" / "train_mnist.py"
    command = [sys.executable, "-m", "perron", "launch", "--nodes", "2", str(script)]
    options = ["--steps", "60", "--batch", "8", "--log", str(tmp_path)]
    subprocess.run([*command, *options], check=True, capture_output=True, timeout=600)
    for node in range(2):
        track = read(tmp_path / f"node-{node}.jsonl")
        assert (track.step, track.steps, track.about["nodes"]) == (60, 60, 2)
        assert track.ended is not None
        assert "loss" in track.curves
    assert "test_accuracy" in read(tmp_path / "node-0.jsonl").curves

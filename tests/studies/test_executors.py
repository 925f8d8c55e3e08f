"""Runs on Ray and Slurm: the same table, the same failures, the same resumption as with processes of this machine."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

import psutil
import pytest
from processes import HANG
from study_runs import run_in_background, wait_for

from perron.errors import PerronError
from perron.studies.executors import Local, Ray, Slurm, create
from perron.studies.executors import ray as ray_executor
from perron.studies.executors import slurm as slurm_executor
from perron.studies.job import Job, perform, write_result
from perron.studies.provenance import versions
from perron.studies.results import run_name
from perron.studies.runner import run_study
from perron.studies.spec import Study, load

ROOT = Path(__file__).parents[2]
STUDY = """
conclusion = "topologies"
topologies = ["ring"]
nodes = 2
algorithms = ["push_pull", "dsgd"]     # dsgd is refused: these weights are not doubly stochastic
lr = [0.2, 0.001]
horizon = 2                            # 10 steps with the one lr, 2000 with the other
steps = 100_000
trials = 2
[problem]
kind = "quadratic"
dim = 3
noise_std = 0.5
"""


@pytest.fixture
def file(tmp_path) -> Path:
    path = tmp_path / "several.toml"
    path.write_text(STUDY)
    return path


@pytest.fixture
def study(file) -> Study:
    return load(file)


def job(run, folder: Path, **more) -> Job:
    return Job(run, folder / "runs" / run_name(run), **more)


def whole(study: Study, folder: Path) -> bytes:
    """The table of a study, with all runs done here, one after the other."""
    (folder / "runs").mkdir(parents=True)
    for run in study.runs:
        if run.algorithm != "dsgd":
            assert write_result(job(run, folder).target, perform(job(run, folder), lambda report: None)) is None
    outcome = run_study(study, folder)
    assert outcome.reused == 2
    return (folder / "results.parquet").read_bytes()


# ---- jobs


def test_a_job_is_text_and_comes_back_the_same(study, tmp_path):
    for run in study.runs:
        one = job(run, tmp_path, save_every=0.1, timeout=1 / 3)
        again = Job.read(one.text)
        assert again == one
        assert again.run.key == run.key


def test_another_version_is_refused(study, tmp_path):
    for name in versions():
        other = job(study.runs[0], tmp_path, versions=versions() | {name: "0.0.9"})
        result = perform(Job.read(other.text), lambda report: None)
        assert f"{name} {versions()[name]} instead of 0.0.9" in result.failed
        assert "install the same versions" in result.failed
        assert result.table == b""


def test_a_disk_that_is_full_is_named(study, tmp_path):
    result = perform(job(study.runs[0], tmp_path), lambda report: None, shared=False)
    assert result.failed is None
    assert "Cannot write" in write_result(tmp_path / "nowhere" / "run", result)
    (tmp_path / "run.partial").mkdir()  # which cannot be removed
    assert write_result(tmp_path / "run", result) is None
    assert (tmp_path / "run.parquet").read_bytes() == result.table


# ---- choosing


def test_options_that_belong_to_another_executor_are_refused():
    assert create(workers=3) == Local(workers=3)
    assert create("ray", address="auto") == Ray(address="auto")
    assert create("slurm", slurm={"cpus": 2}) == Slurm(options={"cpus": 2})
    with pytest.raises(PerronError, match="no executor 'slrm'; did you mean 'slurm'"):
        create("slrm")
    with pytest.raises(PerronError, match="add --on ray; got --on local"):
        create(address="auto")
    with pytest.raises(PerronError, match="add --on slurm; got --on ray"):
        create("ray", slurm={"time": 3})
    with pytest.raises(PerronError, match="no option of --slurm 'partitoin'; did you mean 'partition'"):
        create("slurm", slurm={"partitoin": "long"})
    with pytest.raises(PerronError, match="whole minutes"):
        create("slurm", slurm={"time": "1:00:00"})
    with pytest.raises(PerronError, match="takes lines of a shell"):
        create("slurm", slurm={"setup": [1]})


@pytest.mark.parametrize(("library", "extra"), [("ray", "ray"), ("submitit", "slurm")])
def test_what_is_not_installed_is_named(library, extra, study, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(PerronError, match=rf"--on {extra} needs {library}: pip install 'perron\[{extra}\]'"):
        run_study(study, tmp_path / "out", executor=create(extra))


def test_without_slurm_there_is_a_sentence(study, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PerronError, match="there is no sbatch here"):
        run_study(study, tmp_path / "out", executor=Slurm())


# ---- Ray


@pytest.mark.cluster
@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "[::1]:1", "127.0.0.1:99999"])
def test_an_address_where_nobody_listens_is_named_at_once(address, study, tmp_path):
    pytest.importorskip("ray")
    with pytest.raises(PerronError, match=f"There is no Ray cluster at {re.escape(address)}: ") as caught:
        run_study(study, tmp_path / "out", executor=Ray(address=address))
    assert "RAY_AUTH_MODE" not in str(caught.value)


def test_a_worker_knows_whether_it_sees_the_study(tmp_path, monkeypatch):
    assert not ray_executor._is_shared(tmp_path, "token")
    (tmp_path / ray_executor.TOKEN).write_text("another")  # a directory of the same name on another machine
    assert not ray_executor._is_shared(tmp_path, "token")
    (tmp_path / ray_executor.TOKEN).write_text("token")
    assert ray_executor._is_shared(tmp_path, "token")
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)  # root may write everywhere
    assert not ray_executor._is_shared(tmp_path, "token")


LOST = """
import json, logging, subprocess, time, types
import ray
from perron.studies.executors.ray import _Scheduler

ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level=logging.CRITICAL)
machine = ray.get_runtime_context().get_node_id()
heard = []
scheduler = _Scheduler(ray, [types.SimpleNamespace(timeout=1.0)], lambda place, report: heard.append(report.step), "token")

def hear(step):
    while step not in heard:
        news = {"step": step, "steps": 2, "values": {}, "recorded": False, "machine": machine, "process": 0}
        scheduler.board.write.remote(0, json.dumps(news))
        scheduler._poll()
        time.sleep(0.1)

hear(1)
ray.kill(scheduler.board, no_restart=False)  # as if its process were killed
scheduler.deadlines.clear()
hear(2)
assert 0 in scheduler.deadlines
child = subprocess.Popen(["sleep", "1000"])
scheduler._kill(machine, child.pid)
assert child.wait(600) == -9
"""


@pytest.mark.cluster
def test_ray_replaces_the_board_and_kills_what_does_not_hear():
    pytest.importorskip("ray")
    done = subprocess.run([sys.executable, "-c", LOST], check=False, capture_output=True, text=True, timeout=HANG)
    assert done.returncode == 0, done.stderr


@pytest.mark.cluster
def test_ray_names_the_killed_and_another_executor_goes_on_to_the_same_table(study, file, tmp_path):
    pytest.importorskip("ray")
    out = tmp_path / "out"
    process = run_in_background(file, out, "--on", "ray", "--workers", "2")

    def at_work():
        found = []
        for one in psutil.Process(process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
                found += [one] * ("ray::_work" in " ".join(one.cmdline()))
        return found

    wait_for(at_work)[0].kill()
    family = psutil.Process(process.pid).children(recursive=True)
    _, error = process.communicate(timeout=HANG)
    assert process.returncode == 3, error
    assert error.count("its process was killed") == 1
    assert "doubly stochastic" in error
    assert "Traceback" not in error
    finished = len(list((out / "runs").glob("*.parquet")))
    assert finished in (1, 2)  # the killed one may have been done, but not have said so yet
    assert psutil.wait_procs(family, timeout=HANG)[1] == []
    outcome = run_study(study, out, workers=1)
    assert outcome.reused == finished
    assert (out / "results.parquet").read_bytes() == whole(study, tmp_path / "whole")


# ---- Slurm


class Near(Slurm):
    """submitit's own executor on this machine, where there is no Slurm."""

    known: ClassVar[dict] = {}

    def _check(self):
        pass

    def _submit(self, folder, _name, tasks, _minutes):
        from submitit import LocalExecutor

        jobs = LocalExecutor(folder=folder).map_array(slurm_executor._work, *zip(*tasks, strict=True))
        self.known.update({job.job_id: job for job in jobs})
        return [job.job_id for job in jobs]

    def _states(self, _name):
        return {number: "FAILED" if job.done() else "RUNNING" for number, job in self.known.items()}

    def _cancel(self, _name, job=None):
        for number, one in self.known.items():
            if job in (None, number) and not one.done():
                one.cancel()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A Slurm cluster of one node."""
    if not all(map(shutil.which, ("sbatch", "slurmctld", "slurmd", "munged"))) or os.getuid() != 0:
        pytest.skip("Slurm is not installed, or this is not root: apt-get install slurm-wlm munge")
    folder = tmp_path_factory.mktemp("slurm")
    script = [ROOT / "scripts" / "slurm"]
    started = subprocess.run([*script, "start", folder], check=False, capture_output=True, text=True)
    assert started.returncode == 0, started.stderr
    yield started.stdout.strip().removeprefix("export SLURM_CONF=")
    subprocess.run([*script, "stop", folder], check=True)


@pytest.fixture(params=["submitit", "slurm"])
def slurm(request, monkeypatch):
    """Slurm, or what comes next to it; with less patience."""
    pytest.importorskip("submitit")
    for name, seconds in {"FILE_INTERVAL": 0.2, "STATE_INTERVAL": 0.5, "GRACE": 1.0}.items():
        monkeypatch.setattr(slurm_executor, name, seconds)
    if request.param == "slurm":
        monkeypatch.setenv("SLURM_CONF", request.getfixturevalue("cluster"))
        yield Slurm(options={"time": 2})
    else:
        yield Near()
        for one in Near.known.values():
            one._process.wait(HANG)
        Near.known.clear()


def running(out: Path) -> dict[str, int]:
    """The processes that are at work, by run."""
    found = {}
    for path in (out / "slurm").glob("*/*.progress"):
        said = json.loads(path.read_text())
        if "process" in said:
            found[path.name.partition("-")[0]] = said["process"]
    return found


@pytest.mark.cluster
@pytest.mark.xdist_group("slurm")
def test_slurm_names_the_killed_and_another_executor_goes_on_to_the_same_table(slurm, study, tmp_path):
    out = tmp_path / "out"
    long = next(run for run in study.runs if run.algorithm == "push_pull" and run.lr == 0.001)
    killed = []

    def look(share):
        if not killed and long.key in running(out):
            killed.append(long.key)
            os.kill(running(out)[long.key], signal.SIGKILL)

    outcome = run_study(study, out, executor=slurm, progress=look)
    assert "its process failed or was killed" in outcome.failed.pop(long.key)
    assert len(outcome.failed) == 2
    assert all("doubly stochastic" in said for said in outcome.failed.values())
    again = run_study(study, out, workers=1)
    assert again.reused == 1
    assert long.key not in again.failed
    assert (out / "results.parquet").read_bytes() == whole(study, tmp_path / "whole")


@pytest.mark.cluster
@pytest.mark.xdist_group("slurm")
def test_slurm_stops_what_hangs(slurm, file, tmp_path):
    endless = {"horizon": 1e9, "steps": 10**9, "timeout": 0.05, "algorithms": "push_pull"}
    seen = {}
    outcome = run_study(
        load(file, endless),
        tmp_path / "out",
        executor=slurm,
        progress=lambda share: seen.update(running(tmp_path / "out")),
    )
    assert len(outcome.failed) == 2
    assert all("took longer than timeout = 0.05 minutes" in said for said in outcome.failed.values())
    assert len(seen) == 2
    wait_for(lambda: not any(map(psutil.pid_exists, seen.values())))


@pytest.mark.cluster
@pytest.mark.xdist_group("slurm")
def test_ctrl_c_cancels_what_slurm_has(slurm, file, tmp_path):
    out, seen = tmp_path / "out", {}

    def look(share):
        seen.update(running(out))
        if seen:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_study(load(file, {"horizon": 1e9, "steps": 10**9}), out, executor=slurm, progress=look)
    assert (out / "manifest.json").exists()
    wait_for(lambda: not any(map(psutil.pid_exists, seen.values())))
    if not isinstance(slurm, Near):
        listed = ["squeue", "--noheader"]
        wait_for(lambda: not subprocess.run(listed, capture_output=True, text=True, check=True).stdout)


@pytest.mark.parametrize(("workers", "limit"), [(None, 300), (7, 7)])
def test_what_is_submitted_to_slurm(workers, limit, tmp_path, monkeypatch):
    pytest.importorskip("submitit")
    for name in ("sbatch", "srun"):
        (tmp_path / name).write_text("#!/bin/sh\necho Submitted batch job 7\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    executor = Slurm(workers=workers, options={"setup": "module load x\nmodule load y"})
    ids = executor._submit(tmp_path, "name", [("text", "progress", "heartbeat")] * 300, 3)
    assert ids == [f"7_{number}" for number in range(300)]
    lines = next(tmp_path.glob("*submission*.sh")).read_text().splitlines()
    assert {"module load x", "module load y", f"#SBATCH --array=0-299%{limit}", "#SBATCH --time=3"} <= set(lines)


@pytest.mark.cluster
@pytest.mark.xdist_group("slurm")
def test_with_workers_the_next_array_waits_for_the_last(slurm, file, tmp_path, monkeypatch):
    monkeypatch.setattr(slurm_executor, "ARRAY", 1)
    done, submit = [], type(slurm)._submit

    def watched(executor, *given):
        done.append(len(list((tmp_path / "out" / "runs").glob("*.parquet"))))
        return submit(executor, *given)

    monkeypatch.setattr(type(slurm), "_submit", watched)
    executor = type(slurm)(workers=1, options=slurm.options)
    outcome = run_study(load(file, {"algorithms": "push_pull"}), tmp_path / "out", executor=executor)
    assert outcome.finished
    assert done == [0, 1]


def test_a_job_ends_when_the_study_is_is_stalled(tmp_path):
    file, beat = tmp_path / "progress", tmp_path / "heartbeat"
    file.write_text("")
    assert slurm_executor._is_stalled(file, beat)  # the directory is gone
    beat.write_text("")
    assert not slurm_executor._is_stalled(file, beat)
    assert not slurm_executor._is_stalled(file, beat / "not a directory")  # an error of another kind
    os.utime(beat, (0, file.stat().st_mtime - slurm_executor.STALL_TIMEOUT - 1))
    assert slurm_executor._is_stalled(file, beat)

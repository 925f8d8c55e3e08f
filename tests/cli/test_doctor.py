"""`perron doctor`: what it says of this installation, and of broken ones."""

import json
import re
import shutil
import socket
import subprocess
import tomllib
from importlib.metadata import requires
from pathlib import Path

import numpy as np
import pytest

from perron.cli import main as cli
from perron.data import datasets
from perron.doctor import Verdict, examine, machine, self_test, software

ROOT = Path(__file__).parents[2]


def found():
    return {check.name: check for check in examine()}


def ran(capsys, *words):
    code = cli._run(["doctor", *words], debug=False)
    out, err = capsys.readouterr()
    return code, out, err


def test_every_extra_says_what_it_gives():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(software.GAINS) == set(extras) - set(software.CONTRIBUTORS)


def test_a_working_installation(capsys):
    code, out, err = ran(capsys, "--no-test", "--json")
    assert (code, err) == (0, "")
    told = json.loads(out)
    rows = {row["name"]: row for row in told["checks"]}
    assert told["works"]
    assert rows["numpy"] == {"name": "numpy", "found": np.__version__, "verdict": "ok", "remedy": ""}
    assert {"Python", "perron", "torch", "scipy", "cores", "memory", "loopback ports", "datasets"} <= set(rows)
    assert {name.removeprefix("extra: ") for name in rows if name.startswith("extra: ")} == set(software.GAINS)
    assert all((row["verdict"] == "ok") == (not row["remedy"]) for row in told["checks"])
    code, out, _ = ran(capsys, "--no-test")
    assert code == 0
    assert re.search(r"│ numpy +│ ok ", out)
    assert "0 problems" in out


def test_packages_that_are_missing_or_too_old(capsys, monkeypatch):
    versions = {"numba": None, "numpy": "1.26.4", "scipy": None, "rich": None, "transformers": "4.0"}
    monkeypatch.setattr(software, "_version", lambda name: versions.get(name, "99"))
    rows = found()
    assert rows["extra: fast"][1:3] == ("numba -", Verdict.MISSING)
    assert "pip install 'perron[fast]' gives compiled steps" in rows["extra: fast"].remedy
    assert rows["extra: clients"].found == "accelerate 99, lightning 99, transformers 4.0"
    lowest = next(one for one in requires("perron") if one.startswith("numpy>="))
    assert rows["numpy"][1:] == ("numpy 1.26.4", Verdict.PROBLEM, f"pip install '{lowest}'")
    assert rows["scipy"].found == "scipy is not installed"
    others = next(check for name, check in rows.items() if name.endswith("other packages"))
    assert (others.found, others.verdict) == ("rich is not installed", Verdict.PROBLEM)
    assert "pip install 'rich" in others.remedy
    assert rows["torch"].verdict is Verdict.OK
    code, out, err = ran(capsys, "--no-test", "--json")
    assert code == 3
    assert not json.loads(out)["works"]
    assert re.fullmatch(r"perron: Problems with numpy, scipy, \d+ other packages: see the last column\.\n", err)


def test_ports_that_cannot_be_used(monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    assert machine.check_ports().verdict is Verdict.OK
    monkeypatch.setattr(socket, "create_server", refuse)
    check = machine.check_ports()
    assert (check.found, check.verdict) == ("127.0.0.1: Permission denied", Verdict.PROBLEM)
    assert "perron launch needs them" in check.remedy


def test_disk_and_memory(monkeypatch, tmp_path):
    check = machine.check_folder("disk", tmp_path / "not" / "yet", "Free some.")
    assert check.verdict is Verdict.OK
    assert str(tmp_path / "not" / "yet") in check.found
    monkeypatch.setattr(machine.os, "access", lambda *_: False)
    assert machine.check_folder("disk", tmp_path, "Free some.").found == f"{tmp_path} cannot be written"
    monkeypatch.undo()
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**12, 10**12, 3 * 10**8))
    assert machine.check_folder("disk", tmp_path, "Free some.")[1:] == (
        f"0.3 GB free in {tmp_path}", Verdict.PROBLEM, "Free some.",
    )  # fmt: skip
    (tmp_path / "limit").write_text("500000000\n")
    monkeypatch.setattr(machine, "MEMORY_LIMITS", (tmp_path / "none", tmp_path / "limit"))
    rows = found()
    assert (rows["memory"].found, rows["memory"].verdict) == ("0.5 GB", Verdict.PROBLEM)


def test_datasets(monkeypatch, tmp_path):
    monkeypatch.setattr(datasets, "find", lambda name: tmp_path if name == "mnist" else None)
    rows = found()
    assert rows["datasets"][1:3] == ("digits, mnist", Verdict.OK)
    assert "cifar10" in rows["other datasets"].found
    assert rows["other datasets"][2:] == (Verdict.MISSING, "perron data fetch NAME")


def test_a_check_that_fails_is_a_problem(monkeypatch):
    def fail():
        raise ImportError("libtorch.so:\nno such file")

    monkeypatch.setattr(machine, "check_machine", fail)
    rows = found()
    assert rows["fail"][1:3] == ("ImportError: libtorch.so: no such file", Verdict.PROBLEM)
    assert "datasets" in rows  # the others are still looked at


# ---- the self-test


def test_the_simulation_reaches_the_optimum(monkeypatch):
    (check,) = self_test.check_simulation()
    assert check.verdict is Verdict.OK
    monkeypatch.setattr(self_test, "SIMULATED", 50)  # too few steps
    (check,) = self_test.check_simulation()
    assert (check.verdict, check.remedy) == (Verdict.PROBLEM, self_test.REPORT)


@pytest.mark.processes
def test_two_processes_train_as_the_simulator_does(capsys):
    code, out, _ = ran(capsys, "--json")
    assert code == 0
    rows = {row["name"]: row for row in json.loads(out)["checks"]}
    for name in ("test: simulation", "test: two processes"):
        assert float(re.search(r"(\S+) from the", rows[name]["found"])[1]) <= 1e-12


@pytest.mark.parametrize(
    ("values", "code", "words"),
    [
        (1.0, 0, "from the simulator's"),
        (np.nan, 0, "nan from the simulator's"),
        (None, 3, "exit code 3: perron: node 1 died"),
        (None, None, "not done within"),
    ],
)
def test_a_training_that_goes_wrong(values, code, words, monkeypatch):
    def run(command, **options):
        if code is None:
            raise subprocess.TimeoutExpired(command, options["timeout"])
        if values is not None:
            for rank in range(2):
                np.save(Path(command[-1]) / f"{rank}.npy", np.full((self_test.STEPS + 1, 3), values))
        return subprocess.CompletedProcess(command, code, "", "perron: a\nperron: node 1 died\n")

    monkeypatch.setattr(subprocess, "run", run)
    (check,) = self_test.check_training()
    assert check.verdict is Verdict.PROBLEM
    assert words in check.found
    assert check.remedy

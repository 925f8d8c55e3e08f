"""Examples: listed and copied, from a checkout and from a wheel; the GPT is trained, stopped and resumed by several processes."""

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from perron.cli.main import _run, app
from perron.data import datasets, text
from perron.monitor.records import read

ROOT = Path(__file__).parents[2]
FILES = sorted(path for path in (ROOT / "examples").iterdir() if path.is_file())


def test_all_are_listed_with_a_line_each():
    done = CliRunner().invoke(app, ["examples", "--json"])
    listed = json.loads(done.stdout)
    assert [one["file"] for one in listed] == list(map(str, FILES))
    about = {one["name"]: one["about"] for one in listed}
    assert about["own_study"] == "Does momentum help, and at what price?"
    assert about["train_digits"].startswith("An ordinary PyTorch training loop")
    assert about["three-sites"].startswith("Three sites: site 0")
    shown = CliRunner().invoke(app, ["examples"]).stdout
    assert all(path.stem in shown for path in FILES)
    assert "perron examples copy NAME" in shown


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_copy_is_the_same_and_overwrites_only_by_force(path, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    copied = tmp_path / path.name
    assert _run(["examples", "copy", path.stem], debug=False) == 0
    assert copied.read_bytes() == path.read_bytes()
    copied.write_text("mine")
    assert _run(["examples", "copy", path.name], debug=False) == 1
    assert f"{path.name} exists already" in capsys.readouterr().err
    assert copied.read_text() == "mine"
    assert _run(["examples", "copy", path.stem, "--force"], debug=False) == 0
    assert copied.read_bytes() == path.read_bytes()
    assert list(tmp_path.iterdir()) == [copied]


def test_an_unknown_example(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert _run(["examples", "copy", "train_gtp"], debug=False) == 1
    assert "There is no example 'train_gtp'; did you mean 'train_gpt'?" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_they_are_in_the_wheel(tmp_path):
    build = [sys.executable, "-m", "pip", "wheel", "--disable-pip-version-check", "--no-deps", "-w", str(tmp_path)]
    done = subprocess.run([*build, str(ROOT)], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert {f"perron/examples/{path.name}" for path in FILES} <= set(archive.namelist())
        archive.extractall(tmp_path / "site")
    (tmp_path / "work").mkdir()
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "site")}
    command = [sys.executable, "-m", "perron", "examples", "copy", "train_gpt"]
    subprocess.run(command, cwd=tmp_path / "work", env=environment, check=True, capture_output=True)
    listed = subprocess.run([*command[:4], "--json"], cwd=tmp_path, env=environment, check=True, capture_output=True)
    assert {Path(one["file"]).parent for one in json.loads(listed.stdout)} == {
        tmp_path / "site" / "perron" / "examples"
    }
    assert (tmp_path / "work" / "train_gpt.py").read_bytes() == (ROOT / "examples" / "train_gpt.py").read_bytes()


@pytest.mark.processes
def test_the_gpt_learns_and_resumes(tmp_path):
    if datasets.find("tinyshakespeare") is None:
        pytest.skip("tiny-shakespeare is not here: perron data fetch tinyshakespeare")
    launch = [sys.executable, "-m", "perron", "launch", "--nodes", "4", str(ROOT / "examples" / "train_gpt.py")]
    command = [*launch, "--steps", "110", "--width", "32", "--out", str(tmp_path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)
    losses = {
        int(step): float(loss) for step, loss in re.findall(r"step (\d+): .* validation loss ([\d.]+)", done.stdout)
    }
    assert list(losses) == list(range(11, 111, 11))
    counts = torch.bincount(text.load().split(4).validation).double()
    entropy = torch.distributions.Categorical(counts).entropy()  # of single characters: 3.3
    assert losses[110] < entropy - 0.3
    assert losses[110] < losses[55] < losses[11]
    for node in range(4):
        track = read(tmp_path / f"node-{node}.jsonl")
        assert (track.step, track.about["nodes"]) == (110, 4)
        assert {"loss", "validation_loss"} <= set(track.curves)
    again = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)  # from step 100
    assert again.stdout.splitlines() == done.stdout.splitlines()[-1:]  # the same last line, to the last digit

"""`perron` in this process: its real entry point, in a directory of its own, where nothing long and no other process starts."""

from __future__ import annotations

import io
import shutil
import sys
import urllib.request
import webbrowser
from contextlib import redirect_stderr, redirect_stdout
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.error import URLError

from fuzzing import OUTPUTS, files_in, in_time

from perron import Mixing, write_graph, write_mixing
from perron.cli import main as cli
from perron.distributed.launch.fork_server import ForkServer
from perron.distributed.launch.launcher import Launcher
from perron.doctor import self_test
from perron.monitor.logger import Log
from perron.networks import topologies
from perron.report import live
from perron.studies.executors.local import Local
from perron.studies.executors.ray import Ray
from perron.studies.executors.slurm import Slurm
from perron.studies.job import cost, perform, write_result
from perron.studies.runner import run_study
from perron.studies.spec import load

CHEAP = 5000  # gradients; runs of more work are not done

STUDY = """
topologies = ["ring"]
nodes = [2, 3]
lr = 0.2
steps = 40
every = 1
trials = 2
[problem]
kind = "quadratic"
dim = 2
noise_std = 0.5
"""


def confined(monkeypatch: Any) -> None:
    """No other process, no network, no browser: only what starts those is replaced."""

    def nearby(self: Any, jobs: Any, on_progress: Any) -> Any:
        for place, job in enumerate(jobs):
            yield (
                place,
                write_result(job.target, perform(job, lambda _: None)) if cost(job.run) < CHEAP else "not done here",
            )

    def far(self: Any, jobs: Any, on_progress: Any) -> Any:
        yield from ((place, "not done here") for place, _ in enumerate(jobs))

    def offline(*_: Any, **__: Any) -> Any:
        raise URLError("no network here")

    monkeypatch.setattr(Local, "run", nearby)
    monkeypatch.setattr(Ray, "run", far)
    monkeypatch.setattr(Slurm, "run", far)
    monkeypatch.setattr(Launcher, "run", lambda self: 0)
    monkeypatch.setattr(ForkServer, "for_command", lambda _: None)
    monkeypatch.setattr(urllib.request, "urlopen", offline)
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)  # nor npm
    monkeypatch.setattr(webbrowser, "open", lambda _: True)
    monkeypatch.setattr(live, "serve", lambda dashboard, port, tell: live.LivePage(dashboard).data())
    monkeypatch.setattr(self_test, "check_training", lambda: iter(()))


def furnished(folder: Path) -> Path:
    """A directory with files of all kinds, good and bad; beside it one that is none of its business."""
    inside = folder / "inside"
    for name in ("inside", "outside", "home"):
        (folder / name).mkdir(parents=True)
    ring = topologies.ring(4)
    for name in ("good.edges", "good.csv", "good.npz"):
        write_graph(ring, inside / name)
    write_mixing(Mixing.uniform(ring), inside / "mixing.npz")
    (inside / "bad.csv").write_text("1,x\n")
    (inside / "islands.graphml").write_text("<graphml><graph>")
    (inside / "mine.toml").write_text(STUDY)
    (inside / "bad.toml").write_text("nodse = 3")
    (inside / "script.py").write_text("")
    run_study(load(inside / "mine.toml"), inside / "done", workers=1)
    with Log(inside / "watched", steps=3, every=0) as log:
        for step in range(1, 4):
            log(step, loss=1 / step)
    return inside


def ran(words: list[str]) -> tuple[int, str, str]:
    """Exit code, standard output and standard error."""
    out, err, old = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = ["perron", *words]
    try:
        with redirect_stdout(out), redirect_stderr(err), in_time():
            cli.main()
    except SystemExit as end:
        return int(end.code or 0), out.getvalue(), err.getvalue()
    finally:
        sys.argv = old
    raise AssertionError("it did not end")


def restored(folder: Path, whole: dict[Path, bytes]) -> None:
    """Have the files of a directory as they were, whatever a command has made of them."""
    for path in files_in(folder) - set(whole):
        path.unlink()
    for path, content in whole.items():
        if not path.is_file() or path.read_bytes() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def strays(folder: Path, before: set[Path], words: list[str]) -> set[Path]:
    """New files outside of the working directory that the command was not asked to write there."""
    inside = folder / "inside"
    asked = {(inside / word).resolve() for name, word in pairwise(words) if name in OUTPUTS}
    if words[:2] == ["study", "new"]:
        asked |= {(inside / f"{word.removesuffix('.toml')}.toml").resolve() for word in words[2:]}
    new = {path for path in files_in(folder) - before if not path.is_relative_to(inside)}
    return {path for path in new if not any(path.is_relative_to(one) for one in asked)}

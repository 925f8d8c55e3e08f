"""``perron launch --measure``: the file is written, complete and readable; what is wrong is said before anything runs."""

import io
import subprocess
import sys
import time

import numpy as np
import pytest
from processes import HANG

from perron.clock.machines import Machines
from perron.distributed.measure import Measurement, Progress, check_size
from perron.errors import PerronError


def perron(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "perron", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=HANG,
        check=False,
        **options,
    )


@pytest.mark.parametrize("name", ["links.csv", "links.npz"])
def test_the_file_is_complete(tmp_path, name):
    done = perron("launch", "--nodes", 3, "--measure", name, "--measure-size", 50_000, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    machines = Machines.read(tmp_path / name)
    assert machines.nodes == 3
    assert machines.labels is None  # one host has one name
    off = ~np.eye(3, dtype=bool)
    latency, rate = machines.latency_matrix, machines.rate_matrix
    assert (latency[off] > 0).all()
    assert (latency[off] < 10).all()
    np.testing.assert_array_equal(latency, latency.T)
    assert np.isfinite(rate[off]).all()
    assert (rate[off] > 0).all()
    assert np.isfinite([machines.up, machines.down]).all()
    assert machines.compute is None
    assert "3 nodes start, to measure 6 links with messages of 50,000 bytes" in done.stderr
    assert "6 links written to" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--measure", "none/links.csv"), 1, "there is no directory none"),
        (("--measure", "links.txt"), 1, "suffix '.txt'"),
        (("--measure", "."), 1, "suffix ''"),
        (("--nodes", 1, "--measure", "links.csv"), 1, "at least 2 nodes; got 1"),
        (("--measure", "links.csv", "--measure-size", 5), 1, "from 1000 to"),
        (("--measure", "links.csv", "script.py"), 1, "leave out the script"),
        (("--measure", "links.csv", "--elastic"), 1, "--elastic"),
        ((), 2, "give a script, or --measure FILE"),
    ],
)
def test_mistakes_are_told_before_anything_runs(tmp_path, arguments, code, message):
    start = time.monotonic()
    done = perron("launch", *arguments, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert message in " ".join(done.stderr.replace("│", "").split())
    assert "nodes start" not in done.stderr
    assert not any(tmp_path.iterdir())
    assert time.monotonic() - start < HANG


def test_what_is_shared_is_what_each_node_measured():
    """Node 1 of 3 puts its own columns where others look for them."""
    measurement = Measurement(1, 3, None, Progress(None))
    measurement.round_trip = np.array([[0, 0.2, 0.3], [0.2, 0, 0.4], [0.3, 0.4, 0]])
    measurement.rate = np.array([[np.inf, 1e6, 2e6], [3e6, np.inf, 4e6], [5e6, 6e6, np.inf]])
    measurement.up, measurement.down = np.array([1e6, 2e6, 3e6]), np.array([4e6, 5e6, 6e6])
    machines = measurement.machines(["a", "b", "c"])
    assert machines.latency_matrix[0, 1] == 0.1
    assert machines.rate_matrix[1, 0] == 3e6  # from node 0 to node 1
    assert machines.labels == ("a", "b", "c")


def test_messages_to_all_are_as_long_as_links_are_fast():
    measurement = Measurement(0, 4, None, Progress(None))
    assert measurement._shares(np.array([np.inf, 1e6, 5e5, 1e3]), 0, 1000) == {1: 1000, 2: 500, 3: 2}


def test_progress_is_shown_while_nothing_happens(monkeypatch):
    monkeypatch.setattr(Progress, "INTERVAL", 0.01)
    out = io.StringIO()
    progress = Progress(out.write)
    progress.say("link 0 -> 1, 1 of 2")
    deadline = time.monotonic() + HANG
    while out.getvalue().count("link 0 -> 1, 1 of 2") < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    progress.close()
    assert out.getvalue().count("perron: 0 s, link 0 -> 1, 1 of 2\n") >= 1


def test_sizes():
    check_size(1000, 2)
    with pytest.raises(PerronError, match="at least 2 nodes"):
        check_size(1000, 1)

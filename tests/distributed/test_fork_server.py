"""Workers that are forked from a process with PyTorch behave as if started by ``python SCRIPT``."""

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="nodes are forked on Linux only")

FACTS = """
import json, multiprocessing, os, pickle, random, sys, time
from pathlib import Path
import numpy, psutil, torch
import beside

class Mine:
    pass

def child(path):
    Path(path).write_text(__file__)

def siblings():  # the launcher ends the fork server after the last fork
    deadline = time.monotonic() + 60
    while (count := len(psutil.Process(os.getppid()).children())) > 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    return count

if __name__ == "__main__":
    out = Path(sys.argv[1])
    spawned = multiprocessing.get_context("spawn").Process(target=child, args=(f"{out}/spawned",))
    spawned.start()
    spawned.join()
    facts = {
        "argv": sys.argv, "file": __file__, "path": sys.path[0], "beside": beside.__file__, "cwd": os.getcwd(),
        "pickled": type(pickle.loads(pickle.dumps(Mine()))).__qualname__, "spawned": (out / "spawned").read_text(),
        "leader": os.getsid(0) == os.getpid(), "parent": os.getppid() == int(os.environ["PERRON_LAUNCHER"]),
        "threads": torch.get_num_threads(), "secret": os.environ.get("PERRON_SECRET"), "mine": os.environ.get("MINE"),
        "left": [name for name in os.environ if "CONTROL" in name],
        "stray": [fd for fd in os.listdir("/proc/self/fd") if "socket" in str(Path(f"/proc/self/fd/{fd}").resolve())],
        "same order": [name for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK") if name in os.environ],
    }
    own = {
        "random": [random.random(), numpy.random.rand(), torch.rand(1).item()],
        "forked": "perron.distributed.launch.fork_server" in " ".join(psutil.Process().cmdline()),
        "rank": os.environ["RANK"], "siblings": siblings(),
    }
    (out / f"{os.environ['RANK']}.json").write_text(json.dumps([facts, own]))
"""


def launched(folder, text, *arguments, launch=(), **environment):
    script = folder / "script.py"
    script.write_text(text)
    (folder / "beside.py").write_text("")
    command = [sys.executable, "-m", "perron", "launch", "-n", "2", *launch, str(script), *map(str, arguments)]
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"} | environment
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, check=False)


def facts(folder, **environment):
    ran = launched(folder, FACTS, folder, "--more", MINE="of mine", **environment)
    assert ran.returncode == 0, ran.stderr
    found = [json.loads((folder / f"{node}.json").read_text()) for node in range(2)]
    assert [own["rank"] for _, own in found] == ["0", "1"]
    return [common for common, _ in found], [own for _, own in found]


def test_a_forked_node_is_as_if_started_alone(tmp_path):
    common, own = facts(tmp_path)
    plain, plainly = facts(tmp_path, PERRON_FORK_SERVER="0")
    for node in range(2):
        assert {
            name: (value, plain[node][name]) for name, value in common[node].items() if value != plain[node][name]
        } == {}
    assert [each["forked"] for each in own + plainly] == [True, True, False, False]
    assert len({number for each in own for number in each["random"]}) == 6
    assert max(each["siblings"] for each in own) == 2  # no node will be restarted, so the fork server is gone


def test_where_libraries_have_threads_nodes_are_not_forked(tmp_path):
    common, own = facts(tmp_path, OMP_NUM_THREADS="2")
    assert common[0]["threads"] == 2
    assert not any(each["forked"] for each in own)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import sys; sys.exit(5)", ["ended with code 5"]),
        ("import sys; sys.exit('in words')", ["in words", "ended with code 1"]),
        (
            "def f():\n    raise ValueError('mine')\nf()",
            ["in <module>", "in f", "ValueError: mine", "ended with code 1"],
        ),
        ("def f(:\n", ["SyntaxError", "script.py", "ended with code 1"]),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", ["was killed by SIGKILL"]),
    ],
)
def test_how_a_forked_node_ends(text, words, tmp_path):
    ran = launched(tmp_path, text)
    assert ran.returncode == 3
    assert all(word in ran.stderr for word in words), ran.stderr
    assert "fork_server" not in ran.stderr
    assert "runpy" not in ran.stderr


DYING = """
import os, signal, sys, time
from pathlib import Path
import psutil
import perron
rank, _ = perron.init()
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
Path(f"{attempt}.{rank}").write_text(str("perron.distributed.launch.fork_server" in " ".join(psutil.Process().cmdline())))
fork_server = min(psutil.Process(os.getppid()).children(), key=lambda one: one.pid)  # the first that was started
perron.shutdown()
while not Path(f"{attempt}.1").exists():  # after the death of node 0, node 1 has little time
    time.sleep(0.01)
if attempt == "0" and rank == 0:
    os.kill(os.getpid(), signal.SIGKILL)
if attempt == "1" and rank == 0:
    fork_server.send_signal(signal.Signals[sys.argv[1]])
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("how", ["SIGKILL", "SIGSTOP"])
def test_without_the_fork_server_a_node_is_started_plainly(how, tmp_path):
    ran = launched(tmp_path, DYING, how, launch=["--restarts", "3"])
    assert ran.returncode == 0, ran.stderr
    found = {(attempt, node): (tmp_path / f"{attempt}.{node}").read_text() for attempt in range(3) for node in range(2)}
    assert {place for place, forked in found.items() if forked == "True"} == {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert ran.stderr.count("Restarting all nodes") == 2


LEAVING = """
import os, signal, subprocess, time
from pathlib import Path
import psutil
if os.environ["RANK"] == "1":
    Path("partial").write_text(str(os.getpid()))
    Path("partial").rename("forked")
else:
    # The launcher waits for its nodes, and has adopted node 1 already, when that has ended and is no zombie.
    while not Path("forked").exists() or psutil.pid_exists(int(Path("forked").read_text())):
        time.sleep(0.01)
    left = Path("left")
    if not left.exists():
        child = subprocess.Popen(["sleep", "60"])
        left.write_text(str(child.pid))
        os.kill(os.getpid(), signal.SIGKILL)
    orphan = psutil.Process(int(left.read_text()))
    Path("parents").write_text(f"{orphan.ppid()} {os.getppid()}")
    orphan.kill()
"""


def test_what_a_dead_node_leaves_behind_is_not_the_launchers(tmp_path):
    ran = launched(tmp_path, LEAVING, launch=["--restarts", "1"])
    assert ran.returncode == 0, ran.stderr
    parent, launcher = (tmp_path / "parents").read_text().split()
    assert parent != launcher

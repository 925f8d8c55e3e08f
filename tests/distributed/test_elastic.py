"""Elastic training: it continues without dead nodes, in real processes under the launcher."""

import json
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from worker_elastic import CENTERS

from perron import Mixing
from perron.cli.main import main
from perron.distributed.elastic.recovery import rebuild_network
from perron.distributed.launch.launcher import Launcher
from perron.errors import PerronError
from perron.networks import topologies
from perron.networks.restrict import restrict
from perron.networks.spectral import perron as perron_vector

SUPPORT = Path(__file__).parents[1] / "support"
LONG = 240  # seconds; on a machine without other load these trainings take 10 to 20


@pytest.fixture
def launched(tmp_path):
    """Start `perron launch` of worker_elastic.py; it is killed with its workers when the test ends."""
    running = []

    def launch(*, nodes=5, elastic=True, restarts=0, **options):
        command = [sys.executable, "-m", "perron", "launch", "-n", str(nodes), "--restarts", str(restarts)]
        command += ["--elastic"] * elastic + [str(SUPPORT / "worker_elastic.py"), str(tmp_path)]
        command += [json.dumps({"faults": {}, "steps": 300} | options)]
        running.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return running[-1]

    yield launch
    for process in running:
        process.kill()
        process.communicate()


def ended(process, timeout=LONG):
    """Wait for a launcher; return its exit code and its messages."""
    try:
        _, said = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        pytest.fail(f"not done in {timeout} s:\n{process.communicate()[1]}")
    return process.returncode, said


def results(folder):
    return {int(path.stem): json.loads(path.read_text()) for path in folder.glob("*.json")}


def check(found, nodes):
    """These nodes reached the optimum of their own average, and the trackers' sum is that of the gradients."""
    assert sorted(found) == sorted(nodes)
    optimum = CENTERS[sorted(nodes)].mean(0).tolist()
    for one in found.values():
        assert one["x"] == pytest.approx(optimum, abs=1e-6)
        assert one["sums"][0] == pytest.approx(one["sums"][1], abs=1e-9)
        assert one["nodes"] == len(nodes)


@pytest.mark.parametrize("graph", ["default", "fixed", "function"])
def test_survivors_of_two_kills_reach_the_optimum_of_their_average(graph, launched, tmp_path):
    process = launched(faults={"1": ["kill", 40], "3": ["kill", 100]}, graph=graph, timeout=60)
    code, said = ended(process)
    assert code == 0, said
    found = results(tmp_path)
    check(found, [0, 2, 4])
    for one in found.values():
        lost = {node: how for change in one["changes"] for node, how in change["lost"].items()}
        assert lost == {"1": "killed by SIGKILL", "3": "killed by SIGKILL"}, lost
        assert one["changes"][-1]["members"] == [0, 2, 4]
        assert all(change["seconds"] < 30 for change in one["changes"])  # without waiting for the timeout
        assert one["averages"][-1][2] == pytest.approx(2.0)  # buffers of 0, 2 and 4
    assert "The objective is now the average over nodes 0, 2, 4." in said
    assert "Node 1 was killed by SIGKILL." in said


def test_a_restarted_and_a_stopped_node_come_back_as_new(launched, tmp_path):
    faults, files = {"1": ["kill", 30], "2": ["stop", 60]}, ["1.2.step", "continued"]
    process = launched(restarts=1, faults=faults, steps=800, save=True, **{"await": files})
    until((tmp_path / "2.faulty").exists)
    stopped = psutil.Process(int((tmp_path / "2.1.pid").read_text()))
    until(lambda: stopped.status() == psutil.STATUS_STOPPED)
    step = int(read(tmp_path / "0.1.step"))
    until(lambda: int(read(tmp_path / "0.1.step")) > step + 10)  # the others have noticed, and continue without it
    stopped.send_signal(signal.SIGCONT)
    (tmp_path / "continued").touch()
    code, said = ended(process)
    assert code == 0, said
    found = results(tmp_path)
    check(found, range(5))
    assert found[1]["joined"]
    assert found[1]["began"] > 0
    assert not found[2]["joined"]
    kinds = {how for change in found[0]["changes"] for how in change["lost"].values()}
    assert "killed by SIGKILL" in kinds
    assert any("silent" in how for how in kinds), kinds
    assert {node for change in found[0]["changes"] for node in change["joined"]} == {1, 2}
    # all five resume from the checkpoints of the five
    process = launched(steps=900, save=True)
    code, said = ended(process)
    assert code == 0, said
    assert {one["loaded"] for one in results(tmp_path).values()} == {800}
    check(results(tmp_path), range(5))


def test_chaos_leaves_the_optimum_where_it_was(launched, tmp_path):
    process, dice = launched(restarts=100, steps=1500, **{"await": ["calm"]}), np.random.default_rng(0)
    wait_for_steps(tmp_path, 5)
    for kind in dice.permutation(["kill", "kill", "kill", "stop", "stop"]):
        children = sorted(psutil.Process(process.pid).children(), key=lambda child: child.pid)
        victim = dice.choice(children[1:])  # the first is the fork server
        victim.send_signal(signal.SIGKILL if kind == "kill" else signal.SIGSTOP)
        time.sleep(dice.uniform(2.5, 5))
        if kind == "stop":
            victim.send_signal(signal.SIGCONT)
    until(lambda: all_nodes_step(tmp_path))
    (tmp_path / "calm").touch()
    code, said = ended(process)
    assert code == 0, said
    check(results(tmp_path), range(5))
    assert said.count("was killed by SIGKILL; restarting it") == 3


def until(condition):
    """Wait until a condition holds."""
    deadline = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def read(path):
    """Return the text of a file that is rewritten all the time: it is empty for a moment."""
    until(lambda: path.exists() and path.read_text())
    return path.read_text() or read(path)


def all_nodes_step(folder):
    """Whether five nodes make steps."""

    def steps():
        return {path.stem: path.read_text() for path in folder.glob("*.step")}

    before = steps()
    time.sleep(2)
    return sum(before.get(name) != step for name, step in steps().items()) == 5


def test_a_newcomer_takes_over_the_learning_rate(launched, tmp_path):
    process = launched(restarts=1, nodes=3, faults={"2": ["kill", 20]}, lr=0.1, steps=800, **{"await": ["2.2.step"]})
    code, said = ended(process)
    assert code == 0, said
    found = results(tmp_path)
    check(found, range(3))
    assert {one["lr"] for one in found.values()} == {0.1}


def test_schedules_that_are_a_step_apart_and_exits_without_close(launched, tmp_path):
    code, said = ended(launched(nodes=4, faults={"1": ["kill", 40]}, leave="2", fall=True, steps=400))
    assert code == 0, said
    check(results(tmp_path), [0, 3])
    assert "Node 2 ended with code 3." in said


def test_what_is_left_over_when_the_others_have_finished(launched, tmp_path):
    code, said = ended(launched(restarts=50, nodes=4, faults={"1": ["stop", 40], "2": ["kill", 95]}, steps=100))
    assert code == 0, said
    assert set(results(tmp_path)) >= {0, 3}
    assert "Node 1 is silent, and the others have finished; killing it." in said
    assert said.count("restarting it") <= 1


def test_a_newcomer_that_does_not_fit_is_sent_away(launched, tmp_path):
    faults = {"2": ["kill", 20]}
    process = launched(restarts=1, nodes=3, faults=faults, odd=True, steps=800, **{"await": ["2.2.refused"]})
    code, said = ended(process)
    assert code == 0, said
    check(results(tmp_path), [0, 1])
    assert "do not agree on seed" in said
    assert "Node 2 ended with code 1." in said


def test_less_than_half_do_not_continue(launched, tmp_path):
    process = launched(faults={str(node): ["kill", 40] for node in (0, 1, 2)}, together=True, steps=3000)
    code, said = ended(process)
    assert code == 3, said
    assert re.search(r"Quorum lost: \d of 5 members left, more than half are required", said)
    assert "Start again to resume from the last checkpoint" in said
    assert results(tmp_path) == {}


def test_without_elastic_all_stop_and_name_the_dead(launched, tmp_path):
    process = launched(elastic=False, nodes=4, faults={"1": ["kill", 40]}, steps=100_000)
    code, said = ended(process)
    assert code == 3, said
    assert "Node 1 was killed by SIGKILL." in said
    assert "lost node 1 in step" in said


def test_workers_end_with_their_launcher(launched, tmp_path):
    process = launched(nodes=3, steps=100_000)
    wait_for_steps(tmp_path, 3)
    children = psutil.Process(process.pid).children()
    assert len(children) == 3
    process.kill()
    _, alive = psutil.wait_procs(children, timeout=LONG / 2)
    assert alive == []
    process.communicate()


def wait_for_steps(folder, nodes):
    until(lambda: len(list(folder.glob("*.step"))) >= nodes)


def test_nothing_listens_beyond_loopback_and_a_signal_ends_all(launched, tmp_path):
    process = launched(nodes=2, steps=100_000)
    wait_for_steps(tmp_path, 2)
    children = psutil.Process(process.pid).children()
    listening = {
        connection.laddr.ip
        for one in (psutil.Process(process.pid), *children)
        for connection in one.net_connections(kind="tcp")
        if connection.status == psutil.CONN_LISTEN
    }
    process.send_signal(signal.SIGTERM)
    _, said = ended(process)
    assert listening == {"127.0.0.1"}
    assert process.returncode == 128 + signal.SIGTERM
    assert "SIGTERM" in said
    assert not any(child.is_running() for child in children)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"size": 4}, "--store HOST:PORT"),
        ({"store": "here"}, "got 'here'"),
        ({"nodes": 0}, "at least one node"),
        ({"nodes": 3, "size": 4, "first": 2, "store": "here:1"}, "more than --size 4"),
    ],
)
def test_what_cannot_be_is_refused(options, words):
    with pytest.raises(PerronError, match=words):
        Launcher(["true"], **({"nodes": 2} | options))


def test_a_script_that_is_not_there(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["perron", "launch", "nowhere.py"])
    with pytest.raises(SystemExit, match="1"):
        main()
    assert "There is no script nowhere.py" in capsys.readouterr().err


def test_options_after_the_script_are_its_own(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import os, sys\nsys.stdout.write(os.environ['RANK'] + ' '.join(sys.argv[1:]) + '\\n')")
    command = [sys.executable, "-m", "perron", "launch", "-n", "2", str(script), "--lr", "0.1", "-n", "9"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert sorted(ran.stdout.split("\n")) == ["", "0--lr 0.1 -n 9", "1--lr 0.1 -n 9"]


def test_the_launcher_runs_plain_torch_scripts(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "x = torch.ones(1)\n"
        "dist.all_reduce(x)\n"
        "open(f'{__file__}.{dist.get_rank()}', 'w').write(str(x.item()))\n"
        "dist.destroy_process_group()\n"
    )
    assert Launcher([sys.executable, str(script)], nodes=3).run() == 0
    assert [Path(f"{script}.{rank}").read_text() for rank in range(3)] == ["3.0"] * 3


# ---- the network that is left


@pytest.mark.parametrize("seed", range(5))
def test_what_is_left_of_a_network_mixes_like_the_whole(seed):
    mixing = Mixing.random_integer(topologies.random_digraph(9, seed=seed), seed=seed)
    kept = sorted(np.random.default_rng(seed).choice(9, 5, replace=False).tolist())
    left = restrict(mixing, kept)
    assert left.is_strongly_connected
    for whole, part in ((mixing.pull, left.pull), (mixing.push, left.push)):
        expected = perron_vector(whole)[kept]
        assert perron_vector(part) == pytest.approx(expected / expected.sum(), abs=1e-12)


def test_a_network_that_cannot_be_rebuilt_is_replaced(caplog):
    assert rebuild_network("hypercube", [0, 1, 2]).nodes == 3
    assert "hypercube(n) needs a power of two" in caplog.text
    assert rebuild_network(topologies.ring(4), [0, 1, 2, 3, 7]).nodes == 5  # node 7 is not in it
    assert (
        rebuild_network(Mixing.spanning_trees(topologies.exponential(4), root=0), [1, 2, 3]).nodes == 3
    )  # without its root
    assert rebuild_network("ring", [3]).nodes == 1
    with pytest.raises(PerronError, match="varies in time"):
        restrict(Mixing.uniform(topologies.one_peer_exponential(4)), [0, 1, 2])


def test_rings_close_over_the_lost():
    left = rebuild_network(topologies.ring(6), [0, 1, 4])
    assert sorted(left.pull_graph.edges.tolist()) == [[0, 1], [1, 2], [2, 0]]
    assert torch.tensor(np.asarray(left.push.sum(0))).tolist() == pytest.approx([1, 1, 1])


def free_address():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"


def two_launchers(*options, script):
    """Of two nodes each, as on two machines."""
    address = free_address()
    launch = [sys.executable, "-m", "perron", "launch", *options, "-n", "2", "--size", "4", "--store", address]
    return [
        subprocess.Popen([*launch, "--first", first, *map(str, script)], stderr=subprocess.PIPE, text=True)
        for first in ("0", "2")
    ]


def test_two_launchers_share_a_training(tmp_path):
    options = json.dumps({"faults": {"3": ["kill", 40]}, "steps": 300})
    for process in two_launchers("--elastic", script=[SUPPORT / "worker_elastic.py", tmp_path, options]):
        code, said = ended(process)
        assert code == 0, said
    check(results(tmp_path), [0, 1, 2])


LEAVING = """
import os, sys, time
from pathlib import Path
import torch, perron

rank, _ = perron.init()
model = torch.nn.Linear(2, 1)
optimizer = perron.Decentralized(model, graph="ring", lr=0.1)
while optimizer.steps < 10 or sys.argv[2] == "forever":
    optimizer.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    Path(sys.argv[1], f"{rank}.steps").write_text(str(optimizer.steps))
    time.sleep(0.01)
optimizer.close()
if sys.argv[2] == str(rank):
    while not Path(sys.argv[1], "continue").exists():
        time.sleep(0.01)
    Path(sys.argv[1], "late").write_text("done")
    sys.exit(int(sys.argv[3]))
"""


def test_a_node_may_end_after_the_store_has(tmp_path):
    """The launcher of node 0 ends with its nodes; a node elsewhere still saves its results."""
    (tmp_path / "leaving.py").write_text(LEAVING)
    for process in two_launchers("--elastic", script=[tmp_path / "leaving.py", tmp_path, "3", "0"]):
        code, said = ended(process)
        assert code == 0, said
        assert "bug" not in said
        (tmp_path / "continue").touch()  # the first launcher has ended, and with it the store
    assert (tmp_path / "late").read_text() == "done"


def test_no_restart_when_other_launchers_have_finished(tmp_path):
    """A node fails after all nodes on the other machine have finished."""
    (tmp_path / "leaving.py").write_text(LEAVING)
    first, other = two_launchers("--restarts", "2", script=[tmp_path / "leaving.py", tmp_path, "0", "5"])
    assert ended(other)[0] == 0
    (tmp_path / "continue").touch()
    code, said = ended(first)
    assert code == 3
    assert "On another machine nodes [2, 3] have finished already, so no node is restarted." in said


def test_no_restart_without_a_store(tmp_path):
    (tmp_path / "leaving.py").write_text(LEAVING)
    first, other = two_launchers("--restarts", "2", script=[tmp_path / "leaving.py", tmp_path, "forever", "0"])
    while not all((tmp_path / f"{rank}.steps").exists() for rank in range(4)):
        assert first.poll() is other.poll() is None, other.communicate()
        time.sleep(0.05)
    first.kill()
    first.communicate()
    code, said = ended(other)
    assert code == 3
    assert "The store at node 0 is gone, so no node is restarted." in said


def test_a_launcher_with_a_number_that_is_taken_is_refused():
    launcher = Launcher(["true"], nodes=2, size=6, store=free_address())
    config = launcher.config | {"nodes": [2, 3]}
    assert launcher._conflict(config) == ""
    assert "node 2 exists already" in launcher._conflict(config)
    assert launcher._conflict(config | {"nodes": [4, 5]}) == ""

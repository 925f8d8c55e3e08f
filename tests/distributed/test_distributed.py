"""Processes: the same numbers as in the simulator, and faults that are named."""

import json
import re
from contextlib import nullcontext

import numpy as np
import pytest
import torch
import worker_asynchronous
import worker_parity
from processes import HANG, launched, started
from torch import nn

from perron import Mixing, Network, PerronError, Problem, PushPull, RobustPushPull, Simulation, distributed
from perron.algorithms.requirements import in_flight
from perron.distributed import asynchronous
from perron.distributed.optimizer import Decentralized
from perron.distributed.process_group import Peers, wait
from perron.errors import NetworkError
from perron.networks import topologies
from perron.problems import Logistic, Quadratic
from perron.random import Keyed


def relative(ours, theirs, case):
    """The largest difference, relative to the largest number (of those that diverge, as some do where messages are lost)."""
    return max(np.abs(ours[:, rank] - each[case]).max() for rank, each in enumerate(theirs)) / (1 + np.abs(ours).max())


@pytest.mark.filterwarnings("ignore:.*needs weights that do not change")
@pytest.mark.parametrize("n", [4, 5])
def test_every_algorithm_gives_the_simulators_numbers(n, tmp_path):
    for _, error, code in launched("worker_parity.py", n, tmp_path):
        assert code == 0, error
    theirs = [np.load(tmp_path / f"{rank}.npz") for rank in range(n)]
    off, names = {}, set()
    for case, algorithm, mixing, problem, lr in worker_parity.cases(n):
        ours = simulated(algorithm, mixing, problem, lr)
        off[case] = relative(ours, theirs, case)
        names.add(case.partition(",")[0])
    quadratic = worker_parity.problems(n)["quadratic"]
    for case, (name, mixing, _, option) in worker_parity.wrapped(n).items():
        with pytest.warns(match="keeps no guarantee") if "loss" in option and "robust" not in name else nullcontext():
            ours = simulated(worker_parity.ALGORITHMS[name], mixing, quadratic, 0.05, **option)
        off[case] = relative(ours, theirs, case)
    assert {case: value for case, value in off.items() if not value <= 1e-12} == {}
    assert names == set(worker_parity.ALGORITHMS)
    assert set(off) == set(theirs[0])


def simulated(algorithm, mixing, problem, lr, **options):
    """The models after each step, ``(steps + 1, n, d)``."""
    options |= {"seed": worker_parity.SEED, "dtype": torch.float64}
    simulation = Simulation(problem=problem, algorithm=algorithm, mixing=mixing, lr=lr, **options)
    return np.stack([now.state.x[0].numpy().copy() for now in simulation.iterates(worker_parity.STEPS)])


@pytest.mark.parametrize(("fault", "timeout"), [("kill", 120), ("stop", 10)])
def test_a_dead_or_silent_node_is_named_within_the_timeout(fault, timeout, tmp_path):
    processes = started("worker_killed.py", 4, tmp_path, fault, str(timeout))
    try:
        said = {rank: processes[rank].communicate(timeout=HANG) for rank in (0, 2, 3)}
    finally:
        for process in processes:
            process.kill()
        processes[1].communicate()
    for rank, (out, error) in said.items():
        assert processes[rank].returncode == 7, error
        seconds, message = out.strip().split("|")
        assert float(seconds) < (
            timeout / 2 if fault == "kill" else timeout + 50
        )  # a closed connection is noticed at once
        assert message.startswith(f"Node {rank} lost ")
        assert any(f"in step {step} " in message for step in range(4, 9))  # a node is ahead by its distance at most
    named = [out for out, _ in said.values() if "lost node 1" in out]
    assert named  # by its neighbours
    assert any(("silent for 10 s" if fault == "stop" else "connection is closed") in out for out in named)


class Gone(Peers):
    """Peers whose connections are closed when a transfer is posted."""

    rank, size, node_ids, remedy = 0, 3, (4, 5, 6), "Start again."

    def post(self, _transfers):
        raise RuntimeError("Connection closed by peer")

    def finish(self, works, timeout=1.0):
        for work, what in works:
            wait(work, what, timeout, self.remedy)


def test_a_transfer_that_cannot_be_posted_is_named_like_one_that_fails():
    node = distributed.DistributedNode(Mixing.uniform(topologies.exponential(3)), peers=Gone())
    waiting = node.pull(torch.ones(2)), node.push(torch.ones(2))
    edge = r"Node 4 lost node 5 in step 0 \(edge node 5 -> node 4, pull of 2 numbers and push of 2 numbers\)"
    for one in waiting:
        with pytest.raises(NetworkError, match=rf"^{edge}: its connection is closed, .* Start again\.$"):
            one.wait()


def test_init_needs_a_launcher(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(PerronError, match="torchrun"):
        distributed.init()
    with pytest.raises(PerronError, match=r"perron\.init\(\)"):
        Decentralized(nn.Linear(2, 2), lr=0.1)


def test_a_problem_says_what_belongs_to_a_node():
    class Odd(Problem):
        nodes, dim = 2, 1

        def local_grads(self, x):
            return x

        def loss(self, x):
            return x.sum(-1)

    with pytest.raises(PerronError, match="Odd does not say"):
        Odd().of_node(0)
    for problem in (Quadratic.random(3, noise_std=0.1), Logistic.synthetic(3, samples=30, batch=4, compiled=False)):
        x, random = torch.ones(1, 3, problem.dim, dtype=torch.float64), Keyed(1, trials=1, nodes=3)
        for number in range(3):
            mine = problem.of_node(number).grad(x[:, :1], 5, Keyed(1, trials=1, nodes=[number]))
            torch.testing.assert_close(mine[:, 0], problem.grad(x, 5, random)[:, number])


def test_asynchronous_nodes_do_not_wait_and_reach_the_optimum(tmp_path):
    """One node is twenty times slower than the others: these make many more steps, and all agree on the optimum of all."""
    n, found = 4, {}
    for kind in ("asynchronous", "waiting"):
        (tmp_path / kind).mkdir()
        for _, error, code in launched("worker_asynchronous.py", n, tmp_path / kind, kind):
            assert code == 0, error
        found[kind] = [json.loads((tmp_path / kind / f"{rank}.json").read_text()) for rank in range(n)]
    problem, mixing = worker_asynchronous.problem_and_network(n)
    free, bound = found["asynchronous"], found["waiting"]
    assert (
        max(float((torch.tensor(one["x"], dtype=torch.float64) - problem.optimum).abs().max()) for one in free) < 1e-6
    )
    assert free[0]["steps"] > 3 * free[3]["steps"]
    assert len({one["steps"] for one in bound}) == 1  # who waits is as slow as the slowest
    # Mass and what is under way make up the gradients, whenever each of them stopped.
    y, grad, total = (torch.tensor([one[name] for one in free], dtype=torch.float64) for name in ("y", "grad", "total"))
    used = torch.cat([torch.tensor(one["totals"], dtype=torch.float64) for one in free])
    left = (y - grad).sum(0) + in_flight(Network(mixing), total - y, used)
    assert left.abs().max() < 1e-10


def test_asynchronous_nodes_take_robust_algorithms_only():
    with pytest.raises(PerronError, match=r"Push-Pull \(AB, SAB\) needs every message.*RobustPushPull"):
        asynchronous.check_asynchronous(PushPull())
    with pytest.raises(PerronError, match="Elastic membership needs nodes that wait"):
        asynchronous.check_asynchronous(RobustPushPull(), elastic=True)


def test_an_asynchronous_optimizer(tmp_path):
    """A slow node holds nobody up, and the average of all models is the regression on the data of all."""
    outputs = launched("worker_asynchronous.py", 3, tmp_path, "optimizer")
    for _, error, code in outputs:
        assert code == 0, error
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(3)]
    assert max(one["error"] for one in found) < 1e-3
    assert found[0]["steps"] > 2 * found[2]["steps"]


def test_an_asynchronous_node_that_dies_is_named(tmp_path):
    """Silence is no error there, but a connection that closes without a goodbye is."""
    outputs = launched("worker_asynchronous.py", 3, tmp_path, "dying")
    assert outputs[1][2] == -9
    for rank in (0, 2):
        _, error, code = outputs[rank]
        assert code == 1
        assert re.search(rf"NetworkError: Node {rank} lost node \d \(edge node \d -> node \d, pu(ll|sh)\)", error), (
            error
        )
    assert any("lost node 1" in outputs[rank][1] for rank in (0, 2))

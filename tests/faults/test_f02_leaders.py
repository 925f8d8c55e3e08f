"""Node 0, which others may take for special, or the launcher, which hosts the store, is killed."""

import random
import subprocess
import sys
import time

import psutil
import pytest
from test_f01_killed import killed_again_and_again
from trainings import NODES, SLACK, unfaulted

from perron.distributed.process_group import TIMEOUT


def test_f02_node_0_is_killed(training, row, trials):
    many = trials(1, 10)
    row.measured(f"node 0 killed {killed_again_and_again(training, [lambda _: [0]] * many, seed=2)}", trials=many)


def test_f02_the_launcher_is_killed(training, row, trials):
    many, rng, took = trials(1, 10), random.Random(3), []
    one = training(steps=60 + 40 * many)
    for _ in range(many):
        one.start()
        one.further(rng.randrange(1, 35))
        workers = one.workers()
        began = time.monotonic()
        one.process.kill()
        _, alive = psutil.wait_procs(workers, timeout=30)
        took.append(time.monotonic() - began)
        one.process.communicate()
        assert alive == []
        assert one.left_over() == []
    code, said = one.start(wait=False).ended()
    assert code == 0, said
    assert one.result() == unfaulted(steps=60 + 40 * many)
    assert max(took) <= 5 * SLACK, took
    row.measured(
        f"launcher killed {many} times: nodes ended in {max(took):.2f} s at most, resumed bit for bit", trials=many
    )


@pytest.mark.parametrize("elastic", [(), ("--elastic",)], ids=["plain", "elastic"])
def test_f02_the_machine_with_the_store_vanishes(elastic, networks, training, row):
    """No word of farewell, as when its power goes: the cable is cut."""
    here, there, address = networks
    one, half = training(steps=5000, pause=0.02), NODES // 2
    both = []
    for network, first, many in ((here, 0, half), (there, half, NODES - half)):
        launch = [
            sys.executable,
            "-m",
            "perron",
            "launch",
            *elastic,
            "--restarts",
            "3",
            "-n",
            str(many),
            "--first",
            str(first),
        ]
        launch += ["--size", str(NODES), "--store", f"{address}:29411"]
        one.environment["GLOO_SOCKET_IFNAME"] = "cable"
        both.append(one.start(command=[*network, *launch], wait=False, said=subprocess.PIPE).process)
    first, other = both
    try:
        one.further(20, node=NODES - 1)
        subprocess.run([*here, here[0], "link", "set", "cable", "down"], check=True)
        began = time.monotonic()
        _, said = other.communicate(timeout=10 * TIMEOUT)
        took = time.monotonic() - began
    finally:
        for process in both:
            process.kill()
        first.communicate()
    assert other.returncode == 3, said
    assert "store" in said
    assert "Traceback" not in said
    assert took <= 3 * TIMEOUT, said
    kind = "elastic" if elastic else "plain"
    row.measured(
        f"the machine with the store vanishes ({kind}): the others end after {took:.0f} s and say so", trials=1
    )

"""Strangers at the port of the store: nothing listens beyond the machine, and what comes to it does no harm."""

import os
import random
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from table import FULL
from trainings import Training, unfaulted

LOOPBACK = "127.0.0.1"
STEPS = 60


def listening(one):
    """The addresses at which the launcher and its nodes listen."""
    return [
        tuple(connection.laddr)
        for process in (psutil.Process(one.process.pid), *one.workers())
        for connection in process.net_connections(kind="inet")
        if connection.status == psutil.CONN_LISTEN
    ]


def test_f21_nothing_listens_beyond_loopback_and_strangers_do_no_harm(training, row, trials):
    many, rng = trials(50, 500), random.Random(7)
    one = training(steps=STEPS, pause=0.02).start()
    found = listening(one)
    assert {host for host, _ in found} == {LOOPBACK}
    outside = [
        address.address
        for addresses in psutil.net_if_addrs().values()
        for address in addresses
        if address.family == socket.AF_INET and not address.address.startswith("127.")
    ]
    for host in outside:
        for _, port in found:
            with socket.socket() as stranger:
                assert stranger.connect_ex((host, port)) != 0
    store = next(
        tuple(connection.laddr)
        for connection in psutil.Process(one.process.pid).net_connections(kind="inet")
        if connection.status == psutil.CONN_LISTEN
    )
    strangers = [socket.create_connection(store) for _ in range(many)]
    for stranger in strangers[::2]:
        stranger.sendall(rng.randbytes(rng.randrange(1, 4096)))
    code, said = one.ended()
    for stranger in strangers:
        stranger.close()
    assert code == 0, said
    assert one.result() == unfaulted(steps=STEPS)
    row.measured(
        f"{len(found)} listening sockets, all on loopback, {len(outside)} other addresses refuse; {many // 2} idle connections "
        f"and {many // 2} with garbage: same bits",
        trials=many,
    )


IP = shutil.which("ip") or shutil.which("ip", path="/usr/sbin:/sbin")  # it need not be on the path of a user


def ip(*words, check=True):
    return subprocess.run([IP, *words], check=check, capture_output=True, text=True)


@pytest.fixture
def networks():
    """Two networks with a cable between them; the commands that run something in each, and the address of the first."""
    names = [f"perron-{one}-{os.getpid()}" for one in ("here", "there")]
    if IP is None or os.geteuid() or ip("netns", "add", names[0], check=False).returncode:
        pytest.skip("network namespaces cannot be made here (ip netns add, as root)")
    try:
        ip("netns", "add", names[1])
        ip("-n", names[0], "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", names[1])
        for number, name in enumerate(names, 1):
            ip("-n", name, "address", "add", f"10.213.8.{number}/24", "dev", "cable")
            for device in ("lo", "cable"):
                ip("-n", name, "link", "set", device, "up")
        yield *([IP, "netns", "exec", name] for name in names), "10.213.8.1"
    finally:
        for name in names:
            ip("netns", "delete", name, check=False)


KNOCKING = """
import socket, sys
for port in sys.argv[2:]:
    with socket.socket() as stranger:
        stranger.settimeout(5)
        print(stranger.connect_ex((sys.argv[1], int(port))))
"""


@pytest.mark.skipif(not FULL, reason="starts a training; in full only")
def test_f21_from_another_network(training, networks, row):
    here, there, address = networks
    one = training(steps=STEPS, pause=0.02)
    one.start(command=[*here, sys.executable, "-m", "perron", "launch", "-n", str(one.nodes)])
    tables = [Path(f"/proc/{one.process.pid}/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
    lines = [line.split() for table in tables for line in table]
    ports = sorted(
        {int(local.rpartition(":")[2], 16) for _, local, _, state, *_ in lines if state == "0A"}
    )  # listening
    opened = [
        *here,
        sys.executable,
        "-c",
        "import socket; s = socket.create_server(('', 2999)); print(1, flush=True); input()",
    ]
    with subprocess.Popen(opened, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as everywhere:
        everywhere.stdout.readline()
        knocks = [*there, sys.executable, "-c", KNOCKING, address, "2999", *map(str, ports)]
        reached, *codes = subprocess.run(knocks, capture_output=True, text=True, check=True).stdout.split()
        everywhere.communicate(b"\n")
    assert reached == "0"  # what listens on all addresses can be reached over there
    assert len(codes) == len(ports) >= 1 + one.nodes
    assert "0" not in codes
    code, said = one.ended()
    assert code == 0, said
    assert one.result() == unfaulted(steps=STEPS)
    row.measured(f"from another network namespace none of {len(ports)} ports can be reached", trials=len(ports))


@pytest.mark.skipif(not FULL, reason="starts a training; in full only")
def test_f21_a_flood_at_the_start(training, row, trials):
    """All of them are there before the nodes come to the store."""
    many = trials(50, 500)
    one = training(steps=STEPS)
    began = time.monotonic()
    one.start(wait=False)
    launcher = psutil.Process(one.process.pid)
    one.until(lambda: any(c.status == psutil.CONN_LISTEN for c in launcher.net_connections(kind="inet")), "no store")
    store = next(tuple(c.laddr) for c in launcher.net_connections(kind="inet") if c.status == psutil.CONN_LISTEN)
    strangers = [socket.create_connection(store) for _ in range(many)]
    code, said = one.ended()
    took = time.monotonic() - began
    for stranger in strangers:
        stranger.close()
    assert code == 0, said
    assert one.result() == unfaulted(steps=STEPS)
    row.measured(
        f"{many} idle connections before the nodes came: trained to the end in {took:.0f} s, same bits", trials=many
    )


def test_f21_a_wrong_secret(tmp_path, row):
    with socket.create_server((LOOPBACK, 0)) as free:
        address = f"{LOOPBACK}:{free.getsockname()[1]}"
    size = ("--size", "2", "--store", address)
    for name, text in (("right", "of this training"), ("wrong", "of another training")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o600)
    one = Training(tmp_path, *size, "--secret-file", str(tmp_path / "right"), nodes=1, steps=STEPS)
    one.start(wait=False)
    second = [sys.executable, "-m", "perron", "launch", "-n", "1", *size, "--first", "1"]
    script = [str(Path(__file__).with_name("trainee.py")), str(tmp_path), f'{{"steps": {STEPS}}}']
    took, refused = [], []
    try:
        for options, why in [
            (["--secret-file", str(tmp_path / "wrong")], "has another secret, or none"),
            ([], "has another secret, or none"),
            (["--secret-file", str(tmp_path / "right"), "--restarts", "3"], "--restarts is 3 there and 0 at node 0"),
        ]:
            began = time.monotonic()
            ran = subprocess.run([*second, *options, *script], capture_output=True, text=True, check=False)
            took.append(time.monotonic() - began)
            assert ran.returncode == 1, ran.stderr
            assert why in ran.stderr, ran.stderr
            refused.append(why)
        assert not (tmp_path / "1.pid").exists()  # its node was never started
        right = ["--secret-file", str(tmp_path / "right")]
        ran = subprocess.run([*second, *right, *script], capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr
        code, said = one.ended()
        assert code == 0, said
        assert said.count("Refused at the store: 'The launcher of nodes 1 to 1 on") == len(refused), said
    finally:
        one.end()
    row.measured(
        f"wrong secret, none, other options: {len(refused)} of {len(refused)} refused in {max(took):.1f} s at most and logged, "
        "before a node was started; the right one trained",
        trials=len(refused),
    )

"""Strangers at the port of the store: nothing listens beyond the machine, and what comes to it does no harm."""

import json
import random
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import torch.distributed as dist
from table import FULL
from trainings import Training, unfaulted

from perron.distributed.launch.handshake import Handshake, join
from perron.errors import NetworkError

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
        f"{len(found)} listening sockets, all on loopback; {many // 2} idle connections and {many // 2} with garbage: same bits",
        trials=many,
    )


PROBING = """
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
        probes = [*there, sys.executable, "-c", PROBING, address, "2999", *map(str, ports)]
        reached, *codes = subprocess.run(probes, capture_output=True, text=True, check=True).stdout.split()
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


def test_f21_malformed_requests(row):
    """Each is refused and reported, and the next valid request is accepted."""
    store, said = dist.HashStore(), []
    handshake = Handshake(
        store, "a secret", said.append, lambda config: "" if set(config.get("nodes", ())) <= {2, 3} else "other nodes"
    )
    whole = {"name": "me", "nonce": "0a" * 16, "config": "{}", "mac": "0b" * 32}
    odd = [b"", b"[]", b"3", b"\xff\xfe", b"[" * 10_000, b'{"name": 1}', json.dumps([whole]).encode()]
    values = ["", "é", "\ud800", "../..", None, 3, [], {}, "x" * 10_000]
    odd += [json.dumps(whole | {name: value}).encode() for name in whole for value in values]
    for raw in odd:
        store.append("handshake/requests", raw.replace(b"\n", b" ").decode("latin-1") + "\n")
        handshake.poll()
    assert len(said) == len(odd)
    for config in ('{"nodes": 5}', "3", "null", '{"nodes": [[]]}'):  # by a process that knows the secret
        request = {"name": "me", "nonce": "0a" * 16, "config": config}
        mac = mac_of(handshake, request)
        store.append("handshake/requests", json.dumps(request | {"mac": mac}) + "\n")
        handshake.poll()
    assert len(said) == len(odd) + 4

    @contextmanager
    def polled():
        """While another thread answers."""
        ended = threading.Event()

        def answer():
            while not ended.wait(0.02):
                handshake.poll()

        host = threading.Thread(target=answer)
        host.start()
        try:
            yield
        finally:
            ended.set()
            host.join()

    with polled():
        join(store, "a secret", "Me", {"nodes": [2]}, timeout=100)
    assert len(said) == len(odd) + 4
    with polled(), pytest.raises(NetworkError, match="other nodes"):
        join(store, "a secret", "Me", {"nodes": [7]}, timeout=100)
    row.measured(f"{len(odd) + 4} malformed requests: refused, and the next valid one accepted", trials=len(odd) + 4)


def mac_of(handshake, request):
    from perron.distributed.launch.handshake import _mac

    return _mac("a secret", "request", handshake._challenge, request["nonce"], request["name"], request["config"])

"""A study on a Ray cluster of its own: what of it can be reached, and by whom."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from ipaddress import ip_address

import psutil
import pytest
from processes import HANG
from study_runs import LONG, QUICK, run_in_background, wait_for

from perron.errors import PerronError
from perron.studies.executors import Ray

CLIENT = """
import sys
from ray._raylet import GcsClient
try:
    GcsClient(address=sys.argv[1]).internal_kv_keys(b"", None)
    print("in")
except Exception as error:
    print("refused:", type(error).__name__)
"""


def sockets(processes):
    """The addresses at which processes listen."""
    found = set()
    for one in processes:
        with suppress(psutil.NoSuchProcess):
            found |= {
                (ip_address(link.laddr.ip), link.laddr.port, one.name())
                for link in one.net_connections()
                if link.status == psutil.CONN_LISTEN
            }
    return found


def is_loopback(address):
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


@pytest.mark.cluster
def test_f40_what_listens(tmp_path, row):
    pytest.importorskip("ray")
    file, out, home = tmp_path / "quick.toml", tmp_path / "out", tmp_path / "home"
    file.write_text(QUICK)
    home.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        patch.setenv("RAY_AUTH_MODE", "disabled")  # which perron does not follow for a cluster of its own
        for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
            patch.delenv(name, raising=False)
        process = run_in_background(file, out, *LONG, "--set", "steps=100_000_000", "--on", "ray", "--workers", "2")
    try:
        wait_for(lambda: list((out / "runs").glob("*.live")))  # runs have begun
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        found = sockets(family)
        outside = {one for one in found if not is_loopback(one[0])}
        assert len(found) >= 6
        assert not outside
        port = next(port for _, port, name in found if name == "gcs_server")
        token = next(one for one in family if one.name() == "gcs_server").environ()["RAY_AUTH_TOKEN"]
        known = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
        answers = {}
        for mode, given in (("disabled", ""), ("token", "0" * 64), ("token", token)):
            environment = known | {"RAY_AUTH_MODE": mode, "RAY_AUTH_TOKEN": given, "HOME": str(home)}
            command = [sys.executable, "-c", CLIENT, f"127.0.0.1:{port}"]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=HANG)
            answers[given] = done.stdout.strip()
        assert answers == {"": "refused: AuthenticationError", "0" * 64: "refused: AuthenticationError", token: "in"}
        assert not list(home.rglob("auth_token"))  # which other users could read
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=HANG)
    row.measured(
        f"{len(found)} sockets, {len(outside)} beyond loopback; 2 of 2 clients without the token refused", trials=2
    )


def test_f40_an_old_ray_or_one_that_cannot_be_set_up(monkeypatch, row):
    ray = pytest.importorskip("ray")
    for name in ("RAY_AUTH_MODE", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(PerronError, match="Ray was imported before perron could set it up"):
        Ray().check()
    assert "RAY_AUTH_MODE" not in os.environ
    for version in ("2.51.3", "1.13.0", "2.9.0rc1"):
        monkeypatch.setattr(ray, "__version__", version)
        with pytest.raises(PerronError, match=rf"needs Ray 2\.52 or later.*this is {version}"):
            Ray(address="auto").check()
    row.measured("three old versions refused, and a Ray that was imported with other settings", trials=4)

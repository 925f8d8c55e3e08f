"""The name of the machine with the store stops resolving during an elastic training."""

import shutil
import subprocess

import pytest

NAME = "store.perron.invalid"


def test_f38_a_name_that_stops_resolving(elastic, row, tmp_path):
    hosts = tmp_path / "hosts"
    hosts.write_text(f"127.0.0.1 localhost {NAME}\n")
    private = [
        shutil.which("unshare") or "unshare",
        "--mount",
        "sh",
        "-c",
        'mount --bind "$0" /etc/hosts && exec "$@"',
        str(hosts),
    ]
    if not shutil.which("unshare") or subprocess.run([*private, "true"], check=False, capture_output=True).returncode:
        pytest.skip("no right to mount another /etc/hosts for one process")
    one = elastic(steps=500, pause=0.02)
    one.start("--nodes", 3, "--restarts", 1, "--store", f"{NAME}:29412", prefix=private)
    one.further(20, "0.1", "1.1", "2.1")
    hosts.write_text("127.0.0.1 localhost\n")
    one.process("1.1").kill()
    one.further(20, "0.1", "1.2", "2.1")
    codes, said = one.ended()
    assert codes == [0], said
    assert {result["step"] for result in one.results().values()} == {500}
    row.measured("a death after that is recovered from, and the node joins again", trials=1)

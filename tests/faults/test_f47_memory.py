"""The kernel kills a node because its cgroup has too little memory."""

import os
import signal
from pathlib import Path

import pytest
from table import long

MEMORY = 400 * 2**20  # bytes for one node; it takes 100 to 200 MB, until it asks for more


@pytest.fixture
def group():
    """A cgroup with little memory: the file to which a process is added."""
    two = Path("/sys/fs/cgroup/cgroup.controllers").exists()
    root = Path("/sys/fs/cgroup") if two else Path("/sys/fs/cgroup/memory")
    folder = root / f"perron-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / ("memory.max" if two else "memory.limit_in_bytes")).write_text(str(MEMORY))
    except OSError as error:
        if folder.is_dir():
            folder.rmdir()
        pytest.skip(f"no cgroup for memory can be made here ({error})")
    yield folder / "cgroup.procs"
    for process in (folder / "cgroup.procs").read_text().split():
        os.kill(int(process), signal.SIGKILL)
    while (folder / "cgroup.procs").read_text():
        pass
    folder.rmdir()


@pytest.mark.parametrize("restarts", [0, pytest.param(1, marks=long)])
def test_f47_a_node_out_of_memory(restarts, group, elastic, row):
    one = elastic(steps=300, pause=0.01, hungry=[1, 60, str(group)]).start("--nodes", 3, "--restarts", restarts)
    codes, said = one.ended()
    assert codes == [0], said
    assert "Node 1 was killed by SIGKILL" in said
    found = one.results()
    assert {found[node]["name"] for node in (0, 2)} == {"0.1", "2.1"}
    assert {found[node]["step"] for node in (0, 2)} == {300}
    assert (1 in found) == bool(restarts)
    after = "a restarted node joined" if restarts else "the others continued"
    row.measured(f"killed by the kernel at {MEMORY / 2**20:.0f} MB: named; {after}", trials=1)

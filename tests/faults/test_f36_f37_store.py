"""The launcher that hosts the store loses its own nodes, or stalls: the training continues."""

import signal
import socket
import time

import pytest


def test_f36_the_store_outlives_the_nodes_of_its_launcher(elastic, row):
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    one = elastic(steps=600, pause=0.02)
    one.start("--nodes", 1, "--size", 4, "--store", address)
    one.start("--nodes", 3, "--first", 1, "--size", 4, "--store", address, "--restarts", 1)
    one.further(20, "0.1", "3.1")
    one.process("0.1").kill()
    one.further(20, "1.1", "2.1", "3.1")
    one.process("2.1").kill()  # the others need the store to recover from this
    one.further(20, "1.1", "2.2", "3.1")
    codes, said = one.ended()
    assert codes == [3, 0], said
    found = one.results()
    assert sorted(found) == [1, 2, 3]
    assert {result["step"] for result in found.values()} == {600}
    assert "it hosts their store" in said
    row.measured("its launcher stayed; the next death was recovered from", trials=1)


@pytest.mark.parametrize("seconds", [4, 9])
def test_f37_a_store_that_stalls_loses_nobody(seconds, elastic, row):
    one = elastic(steps=600 + 60 * seconds, pause=0.02).start("--nodes", 3, "--restarts", 3)
    one.further(20, "0.1", "1.1", "2.1")
    (launcher,) = one.launchers
    launcher.send_signal(signal.SIGSTOP)
    time.sleep(seconds)
    launcher.send_signal(signal.SIGCONT)
    codes, said = one.ended()
    assert codes == [0], said
    assert [result["changes"] for result in one.results().values()] == [[], [], []], said
    row.measured(f"stalled for {seconds} s: no change of membership", trials=1)

"""No place to write is found out at once; signals end a training after it was saved."""

import signal
import subprocess
import sys
import time

import psutil
import pytest
from trainings import NODES, SLACK, unfaulted


def refused(one, words):
    began = time.monotonic()
    code, said = one.start(wait=False).ended()
    assert code == 3, said
    assert words in said
    assert "Traceback" not in said
    assert all(one.steps(node) == [] for node in range(NODES))
    assert one.left_over() == []
    return time.monotonic() - began


def test_f14_a_file_in_place_of_the_directory(training, row):
    one = training()
    (one.folder / "checkpoints").write_text("")
    took = refused(one, "Cannot make the directory")
    row.measured(
        f"a file in place of the directory: refused before the first step, {took:.1f} s after the start", trials=1
    )


def test_f14_a_directory_that_is_read_only(training, row):
    one = training()
    place = one.folder / "checkpoints"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "none", str(place)], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("no right to mount a file system")
    try:
        refused(one, "Read-only file system")
    finally:
        subprocess.run(["umount", str(place)], check=True)
    row.measured("read-only file system: refused before the first step", trials=1)


CASES = {
    "SIGTERM to the launcher": (signal.SIGTERM, lambda one: [one.process], 143),
    "Ctrl-C": (signal.SIGINT, lambda one: [one.process], 130),
    "SIGTERM to one node": (signal.SIGTERM, lambda one: one.workers()[1:2], 143),
    "SIGTERM to all nodes": (signal.SIGTERM, lambda one: one.workers(), 143),
}


@pytest.mark.parametrize("case", CASES)
def test_f14_a_signal_saves_and_ends(case, training, row):
    number, chosen, expected = CASES[case]
    one = training(steps=150, every=1000, pause=0.02).start()
    one.further(17)
    began = time.monotonic()
    for process in chosen(one):
        process.send_signal(number)
    code, said = one.ended()
    took = time.monotonic() - began
    assert code == expected, said
    assert "Traceback" not in said
    assert one.saved() == [one.step()], said
    assert {one.step(node) for node in range(NODES)} == {one.step()}
    assert one.left_over() == []
    code, said = one.start(wait=False).ended()
    assert code == 0, said
    assert one.result() == unfaulted(steps=150, every=1000)
    assert took <= 5 * SLACK
    row.measured(f"{case}: all saved after the same step, code {expected} in {took:.1f} s", trials=1)


def test_f14_a_second_signal_ends_at_once(training, row):
    one = training(steps=400, pause=5.0, timeout=60)
    one.start()
    workers = one.workers()
    one.process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert one.process.poll() is None
    began = time.monotonic()
    one.process.send_signal(signal.SIGINT)
    code, _ = one.ended()
    took = time.monotonic() - began
    assert code == 130
    assert not any(worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE for worker in workers)
    assert one.left_over() == []
    assert took <= SLACK
    row.measured(f"a second Ctrl-C: ended in {took:.2f} s", trials=1)


def test_f14_under_torchrun(training, row):
    one = training(steps=150, every=1000, pause=0.02)
    with one.folder.joinpath("said").open("w") as said:
        one.start(
            command=[sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(NODES)],
            said=said,
        )
        one.further(17)
        began = time.monotonic()
        one.process.send_signal(signal.SIGTERM)
        one.process.wait(60)
    took = time.monotonic() - began
    assert one.saved() == [one.step()], (one.folder / "said").read_text()
    assert one.process.returncode != 0
    assert one.left_over() == []
    code, said = one.start(wait=False).ended()
    assert code == 0, said
    assert one.result() == unfaulted(steps=150, every=1000)
    assert took <= 5 * SLACK
    row.measured(f"SIGTERM to torchrun: all saved after the same step, ended in {took:.1f} s", trials=1)

"""The clock is set back and forth by an hour while a training runs: nothing that waits may look at it."""

import json
import re
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
from trainings import unfaulted

import perron

SOURCE = Path(perron.__file__).parent
# Where the time of day belongs: records for people, names of trainings, times of files.
TELLERS = {
    "monitor/records.py", "monitor/status.py", "monitor/tensorboard.py", "distributed/collective.py", "studies/runner.py",
    "_storage/lockfile.py", "studies/executors/slurm.py", "distributed/launch/error_files.py",
}  # fmt: skip
# Every process sees the time of day jump by an hour, back or forth, every two seconds; the monotonic clock is left alone.
JUMPING = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>
#include <sys/time.h>
static int real(clockid_t clock, struct timespec *now) {
    static int (*next)(clockid_t, struct timespec *);
    if (!next) next = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    return next(clock, now);
}
static long jump(void) {
    struct timespec now;
    real(CLOCK_MONOTONIC, &now);
    return now.tv_sec / 2 % 2 ? -3600 : 3600;
}
int clock_gettime(clockid_t clock, struct timespec *now) {
    int code = real(clock, now);
    if (clock == CLOCK_REALTIME) now->tv_sec += jump();
    return code;
}
int gettimeofday(struct timeval *now, void *zone) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    now->tv_sec = found.tv_sec;
    now->tv_usec = found.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *told) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (told) *told = found.tv_sec;
    return found.tv_sec;
}
"""


def test_f26_only_the_monotonic_clock_is_waited_by(row):
    found = {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if re.search(r"\btime\.time(_ns)?\(|datetime\.(now|utcnow)\(|from time import time\b", path.read_text())
    }
    assert found <= TELLERS, found - TELLERS
    many = sum("time.monotonic(" in path.read_text() for path in SOURCE.rglob("*.py"))
    row.measured(f"{many} modules measure time by the monotonic clock; {len(found)} tell the time of day", trials=1)


@pytest.fixture
def jumping(tmp_path):
    """A library with a clock that jumps, for LD_PRELOAD."""
    if shutil.which("gcc") is None:
        pytest.skip("no C compiler to make a jumping clock with")
    library, source = tmp_path / "jumping.so", tmp_path / "jumping.c"
    source.write_text(JUMPING)
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    return str(library)


def test_f26_the_clock_jumps_in_an_elastic_training(elastic, jumping, row):
    one = elastic(steps=500, pause=0.02, every=100)
    one.start("--nodes", 3, "--restarts", 1, environment={"LD_PRELOAD": jumping})
    one.further(100, "0.1", "1.1", "2.1")  # some jumps
    one.process("1.1").kill()
    one.further(100, "0.1", "1.2", "2.1")
    codes, said = one.ended()
    assert codes == [0], said
    found = one.results()
    assert {result["name"] for result in found.values()} == {"0.1", "1.2", "2.1"}
    assert {result["step"] for result in found.values()} == {500}
    lost = [change for change in found[0]["changes"] if "lost" in change]
    assert len(lost) == 1, lost
    assert "lost node 1 (killed by SIGKILL)" in lost[0]
    row.measured("elastic: only the killed node is lost, and joins again", trials=1)


def test_f26_the_clock_jumps(training, jumping, row):
    steps = 240
    one = training("--restarts", "2", steps=steps, pause=0.03, timeout=5.0)
    one.environment["LD_PRELOAD"] = jumping
    one.start()
    for _ in range(2):  # what is saved after a jump back must count as newer than what was saved before
        one.further(25)
        pids = set(one.pids())
        one.workers()[1].kill()
        one.until(lambda pids=pids: not pids & set(one.pids()), "not started again")
        one.further(1)
    code, said = one.ended()
    assert code == 0, said
    assert "silent" not in said
    assert one.result() == unfaulted(steps=steps)
    told = [line for line in (one.folder / "log" / "node-0.jsonl").read_text().splitlines() if '"time"' in line]
    times = [json.loads(line)["time"] for line in told]
    jumps = sum(abs(later - earlier) > 3000 for earlier, later in pairwise(times))
    assert jumps >= 3, "the clock did not jump"
    steps_told = [step for step, *_ in one.steps(0)]
    back = [earlier - later for earlier, later in pairwise(steps_told) if later < earlier]
    assert all(one < 20 for one in back), "it went on from an old checkpoint"
    lost = max(back, default=0)
    row.measured(
        f"{jumps} jumps of two hours, 2 restarts: no timeout, {lost} steps lost at most, same bits", trials=jumps
    )

import os
import re
import shutil
import subprocess

import pytest
from elastic_trainings import ElasticTraining
from table import FULL, NOT_YET, QUICK, ROWS, Row
from trainings import Training

NAME = re.compile(r"test_f(\d\d)_")
ROW = pytest.StashKey[Row]()


def pytest_collection_modifyitems(config, items):
    """Marks by the number in the name; few rows unless all are asked for."""
    kept, left = [], []
    for item in items:
        found = NAME.match(item.name) if "faults" in item.path.parts else None
        if found is not None:
            assert int(found[1]) in ROWS
            item.add_marker(pytest.mark.fault)
            if "row" in item.fixturenames:
                item.stash[ROW] = Row(int(found[1]), item.name)
        (left if found is not None and not FULL and int(found[1]) not in QUICK else kept).append(item)
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = kept


def pytest_collection_finish(session):
    """Whatever happens from now on, what was to be measured stands in the table."""
    for item in session.items:
        if ROW in item.stash:
            item.stash[ROW].record(NOT_YET)


@pytest.fixture
def row(request):
    """Where a test says what it measured."""
    assert ROW in request.node.stash, "a test of a fault is named test_f09_..."
    return request.node.stash[ROW]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Record a verdict: of the first part (fixtures, test, their ends) that did not pass, or in the end that it holds."""
    report = yield
    one = item.stash.get(ROW, None)
    if one is not None and one.verdict is None:
        if report.skipped:
            one.record(f"not done here: {report.longrepr[2].removeprefix('Skipped: ')}")
        elif report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            one.record(f"FAILS: {str(crash.message if crash else report.longrepr).splitlines()[0][:200]}")
        elif report.when == "teardown":
            if one.trials:
                one.record("holds")
            else:
                report.outcome, report.longrepr = "failed", "a test of a fault says what it measured: row.measured(...)"
                one.record(f"FAILS: {report.longrepr}")
    return report


@pytest.fixture
def trials():
    """How many: trials(quick, full)."""
    return lambda quick, full: full if FULL else quick


@pytest.fixture
def training(tmp_path):
    """Makes a `trainings.Training`; whatever is left of it is ended with the test."""
    made = []

    def make(*launch, **options):
        folder = tmp_path / str(len(made))
        folder.mkdir()
        made.append(Training(folder, *launch, **options))
        return made[-1]

    yield make
    for one in made:
        one.end()


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


@pytest.fixture
def elastic(tmp_path):
    """Makes an `elastic_trainings.ElasticTraining`; whatever is left of it is ended with the test."""
    made = []

    def make(**options):
        folder = tmp_path / f"elastic-{len(made)}"
        folder.mkdir()
        made.append(ElasticTraining(folder, **options))
        return made[-1]

    yield make
    for one in made:
        one.end()


@pytest.fixture
def machines():
    """Four machines on one switch: the commands that run something on each, their addresses, and a function that cuts i -> j."""
    count, tag = 4, os.getpid()
    names = [f"perron-{number}-{tag}" for number in range(count)]
    addresses = [f"10.213.9.{number + 1}" for number in range(count)]
    switch = f"perron-switch-{tag}"
    if IP is None or os.geteuid() or ip("netns", "add", switch, check=False).returncode:
        pytest.skip("network namespaces cannot be made here (ip netns add, as root)")

    def cut(source, target):
        """Nothing from one machine reaches the other any more, since it sends to a wrong hardware address."""
        words = [
            "neighbor",
            "replace",
            addresses[target],
            "lladdr",
            "02:00:00:00:00:99",
            "dev",
            "cable",
            "nud",
            "permanent",
        ]
        ip("-n", names[source], *words)

    try:
        ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        ip("-n", switch, "link", "set", "bridge", "up")
        for number, name in enumerate(names):
            ip("netns", "add", name)
            ip("-n", name, "link", "add", "cable", "type", "veth", "peer", "name", f"port{number}", "netns", switch)
            ip("-n", switch, "link", "set", f"port{number}", "master", "bridge", "up")
            ip("-n", name, "address", "add", f"{addresses[number]}/24", "dev", "cable")
            for device in ("lo", "cable"):
                ip("-n", name, "link", "set", device, "up")
        yield [[IP, "netns", "exec", name] for name in names], addresses, cut
    finally:
        for name in (*names, switch):
            ip("netns", "delete", name, check=False)

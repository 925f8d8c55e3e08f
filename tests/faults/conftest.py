import re

import pytest
from table import FULL, QUICK, ROWS, Row
from trainings import Training

NAME = re.compile(r"test_f(\d\d)_")


def pytest_collection_modifyitems(config, items):
    """Marks by the number in the name; few rows unless all are asked for."""
    kept, left = [], []
    for item in items:
        found = NAME.match(item.name) if "faults" in item.path.parts else None
        if found is not None:
            item.add_marker(pytest.mark.fault)
        (left if found is not None and not FULL and int(found[1]) not in QUICK else kept).append(item)
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = kept


@pytest.fixture
def row(request):
    """Where a test says what it measured."""
    found = NAME.match(request.node.name)
    assert found is not None, "a test of a fault is named test_f09_..."
    assert int(found[1]) in ROWS
    one = Row(int(found[1]), request.node.name)
    yield one
    report = request.node.stash[OUTCOME]
    if report.skipped:
        one.record(f"not done here: {report.longrepr[2].removeprefix('Skipped: ')}")
    elif report.failed:
        one.record(f"FAILS: {str(report.longrepr.reprcrash.message).splitlines()[0][:200]}")
    else:
        assert one.trials, "a test of a fault says what it measured: row.measured(...)"
        one.record("holds")


OUTCOME = pytest.StashKey()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if call.when == "call":
        item.stash[OUTCOME] = report
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

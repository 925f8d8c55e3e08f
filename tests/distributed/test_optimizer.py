"""The optimizer in plain PyTorch code, in real processes: every check of two scripts is a test.

The processes are started once, and run the checks that were selected: ``scripts/test -k clipping`` runs one.
"""

import pytest
from processes import checks_of, run_checks, selected


@pytest.fixture(scope="module")
def training(request, tmp_path_factory):
    """What went wrong in each check, in a group of four processes."""
    return run_checks(
        "worker_training.py", 4, tmp_path_factory.mktemp("training"), selected(request, "test_the_optimizer")
    )


@pytest.mark.xdist_group("optimizer")
@pytest.mark.parametrize("check", checks_of("worker_training.py"))
def test_the_optimizer(training, check):
    assert not training[check], training[check]


ANOTHER = "another_number_of_nodes"  # goes on from what three nodes have saved


@pytest.fixture(scope="module")
def checkpoints(request, tmp_path_factory):
    """A folder, and what went wrong in each check, in a group of three processes."""
    folder = tmp_path_factory.mktemp("checkpoints")
    names = dict.fromkeys(["resuming", *selected(request, "test_checkpoints")])  # others need what it has saved
    return folder, run_checks("worker_checkpoints.py", 3, folder, names)


@pytest.mark.xdist_group("checkpoints")
@pytest.mark.parametrize("check", [name for name in checks_of("worker_checkpoints.py") if name != ANOTHER])
def test_checkpoints(checkpoints, check):
    assert not checkpoints[1][check], checkpoints[1][check]


@pytest.mark.xdist_group("checkpoints")
def test_checkpoints_of_another_number_of_nodes(checkpoints):
    folder, wrong = checkpoints
    assert not wrong["resuming"]
    found = run_checks("worker_checkpoints.py", 2, folder, [ANOTHER])
    assert not found[ANOTHER], found[ANOTHER]

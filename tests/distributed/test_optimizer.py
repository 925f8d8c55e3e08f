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


# These go on from what three nodes have saved, in the first check of each pair.
ANOTHER = [("resuming", "another_number_of_nodes", 2)]
ANOTHER += [("states_of_other_objects", "states_of_another_number_of_nodes", n) for n in (2, 4)]


@pytest.fixture(scope="module")
def checkpoints(request, tmp_path_factory):
    """A folder, and what went wrong in each check, in a group of three processes."""
    folder = tmp_path_factory.mktemp("checkpoints")
    needed = ["resuming", "states_of_other_objects"]  # others need what they have saved
    names = dict.fromkeys([*needed, *selected(request, "test_checkpoints")])
    return folder, run_checks("worker_checkpoints.py", 3, folder, names)


@pytest.mark.xdist_group("checkpoints")
@pytest.mark.parametrize("check", [name for name in checks_of("worker_checkpoints.py") if "another" not in name])
def test_checkpoints(checkpoints, check):
    assert not checkpoints[1][check], checkpoints[1][check]


@pytest.mark.xdist_group("checkpoints")
@pytest.mark.parametrize(("before", "check", "nodes"), ANOTHER)
def test_checkpoints_of_another_number_of_nodes(checkpoints, before, check, nodes):
    folder, wrong = checkpoints
    assert not wrong[before]
    found = run_checks("worker_checkpoints.py", nodes, folder, [check])
    assert not found[check], found[check]

"""Moves and inner optimizers in real processes: every check of a script is a test."""

import pytest
from processes import checks_of, run_checks, selected


@pytest.fixture(scope="module")
def moves(request, tmp_path_factory):
    """What went wrong in each check, in a group of three processes."""
    return run_checks("worker_inner.py", 3, tmp_path_factory.mktemp("moves"), selected(request, "test_moves"))


@pytest.mark.xdist_group("inner")
@pytest.mark.parametrize("check", checks_of("worker_inner.py"))
def test_moves(moves, check):
    assert not moves[check], moves[check]

"""Models with frozen parameters, several types and groups, in real processes: every check of a script is a test."""

import pytest
from processes import checks_of, run_checks, selected


@pytest.fixture(scope="module")
def models(request, tmp_path_factory):
    """What went wrong in each check, in a group of three processes."""
    return run_checks("worker_models.py", 3, tmp_path_factory.mktemp("models"), selected(request, "test_real_models"))


@pytest.mark.xdist_group("models")
@pytest.mark.parametrize("check", checks_of("worker_models.py"))
def test_real_models(models, check):
    assert not models[check], models[check]

"""Receives posted ahead change no iterate, and leave nothing behind that could block: every check of a script is a test."""

import pytest
from processes import checks_of, launched, run_checks, selected


@pytest.fixture(scope="module")
def results(request, tmp_path_factory):
    """What went wrong in each check, in a group of four processes."""
    folder = tmp_path_factory.mktemp("ahead")
    return run_checks("worker_receive_ahead.py", 4, folder, selected(request, "test_receives_ahead"))


@pytest.mark.xdist_group("ahead")
@pytest.mark.parametrize("check", checks_of("worker_receive_ahead.py"))
def test_receives_ahead(check, results):
    assert not results[check]


@pytest.mark.parametrize("end", ["open", "destroyed", "closed", "exception", "early"])
def test_the_end_of_a_process(end, tmp_path):
    """Outstanding receives neither hold up its exit nor abort it; an exception on one node ends the others at once."""
    for rank, (out, error, code) in enumerate(launched("worker_exits.py", 3, tmp_path, end)):
        if end == "exception" and rank == 1:
            assert code == 1
            assert "ValueError: of the user" in error
            continue
        if end == "early" and rank == 1:
            assert (code, out, error) == (0, "", "")
            continue
        assert (code, error) == (0, "")
        *said, seconds = out.splitlines()
        assert float(seconds) < 10  # less than the timeout
        assert len(said) == (end in ("exception", "early"))
        if end == "early" and rank == 2:
            assert "lost node 1 in step 6 (edge node 1 -> node 2, " in out
            assert "it has ended its training or restarted" in out
        assert all(line.startswith(f"Node {rank} lost node ") and " in step " in line for line in said)

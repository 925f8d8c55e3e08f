"""perron.Decentralized inside transformers.Trainer, Accelerate and Lightning: every check of a script is a test."""

import subprocess
import sys
from importlib.util import find_spec

import pytest
from processes import checks_of, run_checks, selected

CLIENTS = ("accelerate", "lightning", "transformers")


@pytest.fixture(scope="module")
def clients(request, tmp_path_factory):
    """What went wrong in each check, in a group of four processes."""
    return run_checks("worker_clients.py", 4, tmp_path_factory.mktemp("clients"), selected(request, "test_clients"))


@pytest.mark.xdist_group("clients")
@pytest.mark.skipif(not all(map(find_spec, CLIENTS)), reason="the extra 'clients' is not installed")
@pytest.mark.parametrize("check", checks_of("worker_clients.py"))
def test_clients(clients, check):
    assert not clients[check], clients[check]


def test_perron_imports_none_of_them():
    code = f"import sys, perron; perron.Decentralized; perron.init; print(set({CLIENTS}) & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"

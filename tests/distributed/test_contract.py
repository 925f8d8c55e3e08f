"""The contract of an optimizer of torch: torch's own table with one node, and a documented table of what users do with two."""

import ast

import pytest
from processes import HERE, checks_of, run_checks, selected

PAGE = HERE.parents[1] / "docs" / "howto" / "optimizer_contract.md"


@pytest.fixture(scope="module")
def torch_table(request, tmp_path_factory):
    """What went wrong in each check, in a process of its own: importing torch's table changes global settings."""
    return run_checks("worker_torch.py", 1, tmp_path_factory.mktemp("torch"), selected(request, "test_torch_table"))


@pytest.mark.xdist_group("contract")
@pytest.mark.parametrize("check", checks_of("worker_torch.py"))
def test_torch_table(torch_table, check):
    assert not torch_table[check], torch_table[check]


@pytest.fixture(scope="module")
def contract(request, tmp_path_factory):
    """What went wrong in each check, in a group of two processes."""
    return run_checks("worker_contract.py", 2, tmp_path_factory.mktemp("contract"), selected(request, "test_contract"))


@pytest.mark.xdist_group("contract")
@pytest.mark.parametrize("check", checks_of("worker_contract.py"))
def test_contract(contract, check):
    assert not contract[check], contract[check]


def test_the_page_has_a_row_for_every_check():
    """In the order of the checks; a row is the check's docstring."""
    tree = ast.parse((HERE / "worker_contract.py").read_text())
    checks = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("check_")]
    texts = [" ".join(ast.get_docstring(one).split()) for one in checks]
    rows = ["| " + " | ".join(part.strip() for part in text.split("|")) + " |" for text in texts]
    assert [line for line in PAGE.read_text().splitlines() if line.startswith("| ")][1:] == rows, "\n".join(rows)
    assert {row.split(" | ")[1] for row in rows} == {"works", "error"}

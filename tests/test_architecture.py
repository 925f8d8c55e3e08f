"""The shape of the package: which subpackage may import which, and what every module keeps to."""

import ast
import re
from pathlib import Path

import pytest

import perron
from perron.studies.provenance import DECISIVE

SOURCE = Path(perron.__file__).parent
# A unit is a subpackage, or a module at the top. It may import units on lines above its own; those on one line do not import
# each other. The first line is exempt: its modules are small and may.
ORDER = [
    ["errors", "random", "schedules", "_typing", "_registry", "_memory", "_modules", "_aliases", "_threads"],
    ["_storage"],
    ["monitor"],
    ["networks"],
    ["plots"],
    ["algorithms", "data"],
    ["problems", "clock"],
    ["simulation", "distributed"],
    ["theory"],
    ["design", "advise"],
    ["paper", "studies"],
    ["report", "play", "doctor"],
    ["cli"],
    ["__main__"],
]
RANK = {unit: rank for rank, line in enumerate(ORDER) for unit in line}
ONLY = {"torch.distributed": {"distributed"}, "typer": {"cli"}, "perron.paper": {"cli", "paper"}}  # who may import it
FAMILIES = [path for path in (SOURCE / "algorithms").glob("*.py") if path.stem in {
    "centralized", "federated", "local_steps", "pull_only", "push_only", "push_pull", "robust", "trees", "undirected",
}]  # fmt: skip
LINES = 400
MODULES = sorted(SOURCE.rglob("*.py"))


def imports(path: Path) -> set[str]:
    """The full names of what a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def unit_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def name_of(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_point_one_way(path):
    unit, found = unit_of(path), imports(path)
    for name, allowed in ONLY.items():
        assert unit in allowed or not any(f"{one}.".startswith(f"{name}.") for one in found), (
            f"only {allowed} import {name}"
        )
    if unit == "__init__":
        return
    assert unit in RANK, f"{unit} has no place in ORDER"
    for other in {one.split(".")[1] for one in found if one.startswith("perron.")} - {unit, "__version__"}:
        assert RANK[other] < RANK[unit] or RANK[other] == RANK[unit] == 0, f"{unit} must not import {other}"


@pytest.mark.parametrize("path", FAMILIES, ids=name_of)
def test_an_algorithm_knows_only_its_node(path):
    allowed = {"algorithms", "errors", "networks"}
    found = {one.split(".")[1] for one in imports(path) if one.startswith("perron.")}
    assert found <= allowed
    assert not any(one.split(".")[0] in {"numpy", "scipy"} for one in imports(path)), "no matrices inside algorithms"


def test_every_public_name_can_be_had():
    for name in perron.__all__:
        assert getattr(perron, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = perron.nothing


def test_modules_stay_readable():
    for path in MODULES:
        assert len(path.read_text().splitlines()) <= LINES, f"{name_of(path)} has grown too long: split it"


def test_stubs_are_in_order():
    for path in SOURCE.rglob("*.pyi"):
        names = re.findall(r" as (\w+)$", path.read_text(), re.M)
        assert len(names) == len(set(names))


def test_what_a_run_imports_decides_its_results():
    """Results are kept until code changes that could change them: what a run imports, but for what only stores and reports."""
    harmless = {
        "_aliases.py",
        "_memory.py",
        "_registry.py",
        "_storage",
        "errors.py",
        "monitor",
        "plots",
        "studies/provenance.py",
    }
    files = {path.relative_to(SOURCE).with_suffix("").as_posix().replace("/", "."): path for path in MODULES}
    found, new = set(), {"studies.job"}
    while new:
        found |= new
        named = {
            one.removeprefix("perron.") for module in new for one in imports(files[module]) if one.startswith("perron.")
        }
        new = {part for one in named for part in (one, one.rpartition(".")[0]) if part in files} - found
    needed = {files[module].relative_to(SOURCE).as_posix() for module in found} - {"__init__.py"}
    assert "simulation/simulator.py" in needed
    assert {one for one in needed if not one.startswith((*DECISIVE, *harmless))} == set()
    assert all((SOURCE / one).exists() for one in DECISIVE)

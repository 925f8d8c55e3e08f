"""The shape of the code: imports point one way, and every public name is where `perron` says it is."""

import ast
from pathlib import Path

import pytest

import perron
from perron.job import LOOKERS

SOURCE = Path(perron.__file__).parent
# A module may import those on lines above its own, and no others.
LAYERS = [
    ["errors", "zygote"],
    ["graph", "npz", "atomic", "locks", "progress", "options", "plain", "live", "curves"],
    ["topologies", "stochastic", "balancing", "under_way"],
    ["mixing", "eigen", "tensorboard", "watch"],
    ["spectral", "authors", "files", "log"],
    ["network", "node", "keyed", "schedule", "data", "peers", "flat", "saved", "augment", "named"],
    ["algorithm", "links", "simulated", "problem", "pulse", "door", "models", "fetch", "partition"],
    ["algorithms", "problems", "agreement", "elastic", "wiring", "stripes"],
    ["metrics", "theory", "curvature"],
    ["moments"],
    ["estimate", "design", "advise"],
    ["plots"],
    ["history"],
    ["simulation", "distributed"],
    ["claims"],
    ["asynchronous", "launch"],
    ["optim"],
    ["checkpoint"],
    ["keeper"],
    ["speedup"],
    ["run"],
    ["study"],
    ["job"],
    ["pools"],
    ["experiment"],
    ["conclusions"],
    ["report"],
    ["command"],
    ["arguments"],
    ["report_cli", "study_cli", "data_cli", "design_cli", "advise_cli", "paper_cli"],
    ["watch_cli"],
    ["cli"],
    ["__main__"],
]
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}


def imported(path: Path) -> set[str]:
    """The perron modules that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            parts = node.module.split(".")
            if parts[0] == "perron":
                found |= (
                    {parts[1]}
                    if len(parts) > 1
                    else {alias.name for alias in node.names if not alias.name.startswith("_")}
                )
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("perron.")}
    return found


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: path.stem)
def test_imports_point_one_way(path):
    module = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    if module == "__init__":
        return
    assert module in RANK, f"{module} has no place in LAYERS"
    for other in imported(path) - {module}:
        assert RANK[other] < RANK[module], f"{module} must not import {other}"


def test_every_public_name_can_be_had():
    for name in perron.__all__:
        assert getattr(perron, name) is not None
    assert set(perron._MODULE_OF) <= set(perron.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = perron.nothing


def test_modules_stay_readable():
    for path in SOURCE.rglob("*.py"):
        assert len(path.read_text().splitlines()) <= 470, f"{path.name} has grown too long: split it"


def test_what_a_run_needs_is_not_taken_for_a_looker():
    """A result is thrown away when code that decides it has changed; what a run imports may decide it."""
    tops = {path.relative_to(SOURCE).parts[0] for path in SOURCE.rglob("*.py")}
    found, new = set(), {"job"}
    while new:
        found |= new
        files = [
            path for name in new for path in (SOURCE / f"{name}.py", *(SOURCE / name).rglob("*.py")) if path.is_file()
        ]
        new = set().union(*(imported(path) for path in files)) & set(RANK) - found
    decisive = {name if name in tops else f"{name}.py" for name in found}
    assert {"simulation.py", "algorithms", "keyed.py"} <= decisive
    # A history asks plots to draw it; live takes down what a run says, and answers nothing.
    assert decisive & LOOKERS == {"plots.py", "live.py"}

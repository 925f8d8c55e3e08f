"""Python, perron and its dependencies: which versions are installed, and which extras are missing."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from perron.doctor.check import Check, Verdict

if TYPE_CHECKING:
    from packaging.requirements import Requirement

MAIN = ("torch", "numpy", "scipy")  # dependencies with a row of their own
GAINS = {  # what each extra is for; a test compares the names with pyproject.toml
    "fast": "compiled steps of the simulator and sums of logistic regression; without it they are slower",
    "design": "the fastest symmetric weights (a semidefinite program)",
    "tensorboard": "--tensorboard of studies and trainings",
    "ray": "perron study run --on ray",
    "slurm": "perron study run --on slurm",
    "clients": "examples/client_*.py: Accelerate, Lightning, transformers",
}
CONTRIBUTORS = ("docs", "dev")  # extras for work on perron itself


def check_dependencies() -> Iterator[Check]:
    """Python, perron, PyTorch, NumPy and SciPy; all other dependencies together."""
    from packaging.specifiers import SpecifierSet

    python, wanted = platform.python_version(), metadata.metadata("perron")["Requires-Python"]
    if SpecifierSet(wanted).contains(python, prereleases=True):
        yield Check("Python", f"{python}, {platform.system()} {platform.machine()}")
    else:
        yield Check("Python", python, Verdict.PROBLEM, f"perron needs Python {wanted}.")
    yield Check("perron", f"{metadata.version('perron')}, in {Path(__file__).parents[1]}")
    needed = requirements()
    for one in needed:
        if one.name in MAIN:
            yield _check_all(one.name, [one])
    others = [one for one in needed if one.name not in MAIN]
    yield _check_all(f"{len(others)} other packages", others)


def check_extras() -> Iterator[Check]:
    """The optional dependencies, a row for each extra."""
    for extra in metadata.metadata("perron").get_all("Provides-Extra") or []:
        if extra in CONTRIBUTORS:
            continue
        needed = requirements(extra)
        lacking = [one for one in needed if not _is_met(one)]
        found = ", ".join(f"{one.name} {_version(one.name) or '-'}" for one in needed)
        gain = GAINS.get(extra, "see the documentation")
        if lacking:
            yield Check(f"extra: {extra}", found, Verdict.MISSING, f"pip install 'perron[{extra}]' gives {gain}.")
        else:
            yield Check(f"extra: {extra}", found)


def requirements(extra: str = "") -> list[Requirement]:
    """Return what the installed perron requires on this system, or what an extra of it adds."""
    from packaging.requirements import Requirement

    every = [Requirement(line) for line in metadata.requires("perron") or []]
    always = [one for one in every if one.marker is None or one.marker.evaluate({"extra": ""})]
    if not extra:
        return always
    return [one for one in every if one not in always and one.marker and one.marker.evaluate({"extra": extra})]


def _check_all(name: str, needed: list[Requirement]) -> Check:
    """Return the check of several requirements in one row."""
    lacking = [one for one in needed if not _is_met(one)]
    if not lacking:
        return Check(name, _version(needed[0].name) or "" if len(needed) == 1 else "installed")
    found = ", ".join(f"{one.name} {_version(one.name) or 'is not installed'}" for one in lacking)
    wanted = " ".join(f"'{one.name}{one.specifier}'" for one in lacking)
    return Check(name, found, Verdict.PROBLEM, f"pip install {wanted}")


def _is_met(one: Requirement) -> bool:
    version = _version(one.name)
    return version is not None and one.specifier.contains(version, prereleases=True)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None

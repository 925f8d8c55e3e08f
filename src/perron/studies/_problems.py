"""The table ``[problem]`` of a study file, checked and complete."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from perron._registry import lookup, options_model, unknown, validate
from perron.data.augment import PRESETS
from perron.data.datasets import IMAGES
from perron.data.models import MODELS
from perron.data.partition import PARTITIONS
from perron.data.tables import NAMES as TABLES
from perron.studies._values import listed
from perron.studies.run import ON_DATA, PROBLEMS, problem_maker

# What options of problems may name: of networks for images, and of linear models on data.
NAMES: dict[str, Mapping[str, Any]] = {
    "data": dict.fromkeys(["digits", *IMAGES]),
    "model": MODELS,
    "partition": PARTITIONS,
    "augment": PRESETS,
}
NAMES_ON_DATA = {
    "data": dict.fromkeys([*TABLES, "synthetic", "file:PATH"]),
    "partition": PARTITIONS | {"column:NAME": None},
}


def checked_problem(value: dict[str, Any], folder: str, *, reading: bool) -> dict[str, Any]:
    """Return the options of a problem with all defaults; ``reading`` a study that was run, code of one's own may be gone."""
    kind = value.get("kind", "logistic")
    if not isinstance(kind, str):
        raise unknown(kind, PROBLEMS, "kind of problem")
    if reading and kind not in PROBLEMS:
        return value
    made = problem_maker(value | {"kind": kind}, folder)
    given = {key: entry for key, entry in value.items() if key != "kind"}
    if "batch" in given:
        sizes = [None if size == "all" else size for size in listed(given["batch"])]
        given["batch"] = sizes if isinstance(given["batch"], list) else sizes[0]
    model = options_model(made, several=True)
    if empty := [key for key, entry in given.items() if entry == []]:
        raise ValueError(f"{empty[0]} is an empty list")
    problem = {"kind": kind} | validate(model, given).model_dump()
    if kind == "logistic" and problem.get("compiled", "") is None:
        problem["compiled"] = find_spec("numba") is not None  # part of a run's key: the order of sums differs
    names = NAMES if kind == "images" else NAMES_ON_DATA if made in ON_DATA.values() else {}
    for key, among in names.items():
        for name in listed(problem[key]):
            if names is NAMES or not name.startswith(("file:", "column:")):
                lookup(name, among, key)
    return problem

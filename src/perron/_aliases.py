"""Aliases of public modules and classes: shortcuts, and names of version 0.1.

``perron.optim.Decentralized`` and ``from perron.keyed import Keyed`` keep working after the modules have moved. The tables
list every name that the documentation of version 0.1 mentioned.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MODULES = {
    "algorithm": "algorithms.base",
    "asynchronous": "distributed.asynchronous",
    "augment": "data.augment",
    "authors": "networks.released",
    "checkpoint": "distributed.checkpoint",
    "claims": "paper",
    "conclusions": "studies.conclusions",
    "estimate": "theory.constants",
    "experiment": "studies.runner",
    "files": "networks.files",
    "graph": "networks.graph",
    "history": "simulation.history",
    "keeper": "distributed.checkpoint_manager",
    "keyed": "random",
    "links": "algorithms.unreliable",
    "log": "monitor.logger",
    "metrics": "simulation.metrics",
    "mixing": "networks.mixing",
    "models": "data.models",
    "network": "networks.facts",
    "node": "algorithms.wrappers",  # which has the names of `algorithms.node`, too
    "optim": "distributed.optimizer",
    "partition": "data.partition",
    "pools": "studies.executors",
    "problem": "problems.base",
    "schedule": "schedules",
    "simulated": "simulation.node",
    "spectral": "networks.spectral",
    "speedup": "studies.statistics",
    "study": "studies.spec",
    "topologies": "networks.topologies",
    "wiring": "networks.builder",
}
NAMES = {"Keeper": "distributed.checkpoint_manager"}
SEARCHED = ("errors", "algorithms")  # every class in these is available as perron.<class>; the second one imports torch


def resolve(name: str) -> Any:
    """Return the module or class with the alias ``perron.<name>``, or raise an AttributeError."""
    if name in MODULES:
        return import_module(f"perron.{MODULES[name]}")
    if name in NAMES:
        return getattr(import_module(f"perron.{NAMES[name]}"), name)
    if name[:1].isupper():
        for module in SEARCHED:
            if hasattr(home := import_module(f"perron.{module}"), name):
                return getattr(home, name)
    raise AttributeError(f"module 'perron' has no attribute {name!r}")


class _Finder(MetaPathFinder, Loader):
    """Import ``perron.<alias>`` as the module with that alias."""

    def find_spec(self, fullname: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        package, _, name = fullname.rpartition(".")
        return ModuleSpec(fullname, self) if package == "perron" and name in MODULES else None

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = resolve(module.__name__.rpartition(".")[2])


def install() -> None:
    """Register the aliases with the import system."""
    sys.meta_path.append(_Finder())

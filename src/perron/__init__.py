"""perron: decentralized optimisation and learning over directed networks.

The name is the Perron vectors of the two mixing matrices: they decide what a directed network can do.

>>> import perron
>>> graph = perron.topologies.exponential(16)
>>> mixing = perron.Mixing.random_integer(graph, seed=0)
>>> round(perron.spectral.describe(mixing).c, 2)
1.0
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perron import (
        advise,
        algorithms,
        asynchronous,
        augment,
        authors,
        checkpoint,
        data,
        design,
        distributed,
        errors,
        estimate,
        files,
        links,
        metrics,
        models,
        optim,
        partition,
        plots,
        problems,
        schedule,
        spectral,
        speedup,
        study,
        theory,
        topologies,
        wiring,
    )  # fmt: skip
    from perron.algorithm import Algorithm
    from perron.algorithms import (
        ADDOPT,
        ALGORITHMS,
        DDNGT,
        DEXTRA,
        DSGD,
        EXTRA,
        FOCUS,
        FROST,
        FROZEN,
        NIDS,
        SGP,
        AcceleratedPushPull,
        CentralizedSGD,
        ConstrainedPushPull,
        ExactDiffusion,
        GradientPull,
        GradientTracking,
        PullDiag,
        PushDIGing,
        PushPull,
        PushSum,
        RobustPushPull,
        RowExtra,
        SubgradientPush,
        TreePushPull,
    )  # fmt: skip
    from perron.conclusions import conclude
    from perron.errors import FileError, GraphError, MixingError, NetworkError, PerronError, SpectralError
    from perron.experiment import read_study, run_study
    from perron.files import read_graph, read_matrix, read_mixing, write_graph, write_matrix, write_mixing
    from perron.graph import Graph
    from perron.history import History
    from perron.keeper import Keeper
    from perron.log import Log
    from perron.mixing import Mixing
    from perron.network import Network
    from perron.problem import Problem
    from perron.simulation import Simulation, simulate
    from perron.study import Study

    __version__: str

_HOME = {
    "graph": ["Graph"],
    "mixing": ["Mixing"],
    "network": ["Network"],
    "errors": ["FileError", "GraphError", "MixingError", "NetworkError", "PerronError", "SpectralError"],
    "files": ["read_graph", "read_matrix", "read_mixing", "write_graph", "write_matrix", "write_mixing"],
    "algorithm": ["Algorithm"],
    "algorithms": [
        "ADDOPT", "ALGORITHMS", "DDNGT", "DEXTRA", "DSGD", "EXTRA", "FOCUS", "FROST", "FROZEN", "NIDS", "SGP",
        "AcceleratedPushPull", "CentralizedSGD", "ConstrainedPushPull", "ExactDiffusion", "GradientPull", "GradientTracking",
        "PullDiag", "PushDIGing", "PushPull", "PushSum", "RobustPushPull", "RowExtra", "SubgradientPush", "TreePushPull",
    ],
    "keeper": ["Keeper"],
    "log": ["Log"],
    "problem": ["Problem"],
    "history": ["History"],
    "simulation": ["Simulation", "simulate"],
    "study": ["Study"],
    "experiment": ["read_study", "run_study"],
    "conclusions": ["conclude"],
}  # fmt: skip
_MODULES = [
    "advise", "algorithms", "asynchronous", "augment", "authors", "checkpoint", "data", "design", "distributed", "errors",
    "estimate", "files", "links", "metrics", "models", "optim", "partition", "plots", "pools", "problems", "schedule", "spectral",
    "speedup", "study", "theory", "topologies", "wiring",
]  # fmt: skip
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = sorted([*_MODULES, *_MODULE_OF, "__version__"])


def __getattr__(name: str) -> Any:
    """Import a name when it is first asked for, so that the command line starts at once."""
    if name == "__version__":
        from importlib.metadata import version

        return version("perron")
    if name in _MODULE_OF:
        return getattr(import_module(f"perron.{_MODULE_OF[name]}"), name)
    if name in _MODULES:
        return import_module(f"perron.{name}")
    raise AttributeError(f"module 'perron' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__

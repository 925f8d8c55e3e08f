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
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perron import authors, errors, files, plots, spectral, topologies
    from perron.errors import FileError, GraphError, MixingError, PerronError, SpectralError
    from perron.files import read_graph, read_matrix, read_mixing, write_graph, write_matrix, write_mixing
    from perron.graph import Graph
    from perron.mixing import Mixing

__version__ = version("perron")

__all__ = [
    "FileError", "Graph", "GraphError", "Mixing", "MixingError", "PerronError", "SpectralError", "__version__",
    "authors", "errors", "files", "plots", "read_graph", "read_matrix", "read_mixing", "spectral", "topologies",
    "write_graph", "write_matrix", "write_mixing",
]  # fmt: skip

_HOME = {
    "Graph": "graph", "Mixing": "mixing",
    "FileError": "errors", "GraphError": "errors", "MixingError": "errors", "PerronError": "errors",
    "SpectralError": "errors",
    "read_graph": "files", "read_matrix": "files", "read_mixing": "files", "write_graph": "files",
    "write_matrix": "files", "write_mixing": "files",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import a name when it is first asked for, so that the command line starts at once."""
    if name in _HOME:
        return getattr(import_module(f"perron.{_HOME[name]}"), name)
    if name in __all__:
        return import_module(f"perron.{name}")
    raise AttributeError(f"module 'perron' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__

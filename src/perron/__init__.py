"""Decentralized optimization and learning over directed networks.

The library is named after the Perron vectors of the two mixing matrices, which determine what a directed network can do.

>>> import perron
>>> graph = perron.topologies.exponential(16)
>>> mixing = perron.Mixing.random_integer(graph, seed=0)
>>> round(perron.spectral.describe(mixing).c, 2)
1.0

Names are imported on first use, so that ``import perron`` and the command line start fast.
"""

from typing import Any

import lazy_loader

from perron import _aliases
from perron.errors import NO_TORCH

_lazy, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
_aliases.install()


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("perron")
    try:
        return _lazy(name) if name in __all__ else _aliases.resolve(name)
    except ModuleNotFoundError as error:
        if error.name == "torch":
            raise ModuleNotFoundError(NO_TORCH, name="torch") from None
        raise

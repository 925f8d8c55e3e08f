"""The public modules of perron."""

from types import ModuleType

import perron


def public_modules() -> list[ModuleType]:
    """perron, its public subpackages, and the modules that these offer by name."""
    found, new = [], [perron]
    while new:
        found += new
        offered = [getattr(module, name) for module in new for name in getattr(module, "__all__", [])]
        new = [value for value in offered if isinstance(value, ModuleType) and value not in found]
    return found

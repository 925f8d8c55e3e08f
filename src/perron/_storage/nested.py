"""Nested values with tensors, as `state_dict` returns them: JSON and tensors by name, without code.

Dicts, tuples, counters and bytes are objects with a kind: ``{"kind": "dict", "items": [[key, value], ...]}``.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch import Tensor

from perron.errors import FileError

PLAIN = (bool, int, float, str, type(None))
KINDS: dict[str, Any] = {"dict": dict, "Counter": Counter, "tuple": tuple, "bytes": bytes.fromhex}


def flatten(value: Any, tensors: dict[str, Tensor], name: str) -> Any:
    """Return a value that JSON can represent, and add its tensors under names that begin with ``name``.

    Functions in a dict are left out: the object that loads it keeps its own.

    >>> flatten({3: (1, 2.5)}, {}, "")
    {'kind': 'dict', 'items': [[3, {'kind': 'tuple', 'items': [1, 2.5]}]]}
    """
    if isinstance(value, Tensor):
        key = f"{name}.{len(tensors)}"
        tensors[key] = value.detach()
        return {"kind": "tensor", "items": key}
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, bytes):
        return {"kind": "bytes", "items": value.hex()}
    if isinstance(value, dict):
        kept = [(key, entry) for key, entry in value.items() if not callable(entry)]
        items = [[flatten(key, tensors, name), flatten(entry, tensors, name)] for key, entry in kept]
        return {"kind": "Counter" if isinstance(value, Counter) else "dict", "items": items}
    if isinstance(value, list | tuple):
        items = [flatten(entry, tensors, name) for entry in value]
        return items if isinstance(value, list) else {"kind": "tuple", "items": items}
    raise FileError(f"{name} has a {type(value).__name__} in its state; only tensors, numbers, texts, bytes and "
                    "dicts, lists and tuples of them are saved.")  # fmt: skip


def restore(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Return the value from which `flatten` made this one and these tensors."""
    if isinstance(value, list):
        return [restore(entry, tensors) for entry in value]
    if not isinstance(value, dict):
        return value
    kind, items = value["kind"], value["items"]
    if kind == "tensor":
        return tensors[items]
    items = items if kind == "bytes" else restore(items, tensors)
    return KINDS[kind](dict(items) if kind == "Counter" else items)

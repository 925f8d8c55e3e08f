"""The number of torch's threads: one for small tensors, for which threads cost far more than they gain."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

import torch

_lock = Lock()
_counts: list[int] = []  # an entry for each active `single_threaded`: the number of threads before the first


@contextmanager
def single_threaded() -> Iterator[None]:
    """Restrict torch to one thread, and restore the number of threads before, also after an error."""
    with _lock:
        _counts.append(torch.get_num_threads() if not _counts else _counts[0])
        torch.set_num_threads(1)
    try:
        yield
    finally:
        with _lock:
            before = _counts.pop()
            if not _counts:
                torch.set_num_threads(before)

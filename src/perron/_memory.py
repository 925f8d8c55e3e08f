"""The memory of large tensors that were freed."""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache

# Parameters of mallopt, see malloc.h.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGEST = 2**31 - 1  # bytes
OWN_SETTINGS = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_MAX_", "GLIBC_TUNABLES")


@cache
def keep_freed_memory() -> bool:
    """Let the process keep the memory of tensors that were freed, for the next ones, and return whether it does.

    glibc gives every freed tensor of more than 32 MB back to the system. The next one gets new pages, each of which the system
    clears when it is first written; that takes several times longer than writing to it. From the first call on, up to 2 GB
    each are kept, so that a process keeps as much memory as it once needed. It has no effect where the C library is another one,
    or where the environment has settings of its own for it, such as ``MALLOC_TRIM_THRESHOLD_``.
    """
    if not sys.platform.startswith("linux") or any(name in os.environ for name in OWN_SETTINGS):
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    return all(library.mallopt(parameter, LARGEST) for parameter in (M_TRIM_THRESHOLD, M_MMAP_THRESHOLD))

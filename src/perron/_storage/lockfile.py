"""File locks that exclude other processes; the operating system releases them when their holder ends, however it ends."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from errno import ENOLCK, ENOSYS, EOPNOTSUPP
from pathlib import Path

from filelock import FileLock, Timeout

from perron.errors import FileError, PerronError

LOCK = ".lock"
READ_ATTEMPTS, READ_PAUSE = 5, 0.02  # seconds; a holder may not have written its description yet


def acquire_lock(path: Path, busy: str, remedy: str) -> FileLock | None:
    """Acquire a lock, or raise an error that names its holder. Return None on a file system without locks.

    Args:
        path: the lock file; it contains a description of the holder.
        busy: what the holder is doing, for the error.
        remedy: what the user can do about it.
    """
    lock = FileLock(path, timeout=0, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout:
        raise PerronError(f"{busy} ({_describe_holder(path)}); {remedy}.") from None
    except OSError as error:
        if error.errno in (ENOSYS, EOPNOTSUPP, ENOLCK):
            return None
        raise FileError(f"Cannot write {path}: {error.strerror}.") from None
    holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": datetime.now().isoformat(timespec="seconds")}
    with suppress(OSError):  # a full disk; the lock is held nevertheless
        path.write_text(json.dumps(holder), encoding="utf-8")
    return lock


@contextmanager
def exclusive_lock(path: Path | None, busy: str, remedy: str) -> Iterator[None]:
    """Hold a lock, and delete its file at the end; do nothing without a path. Arguments as in `acquire_lock`."""
    lock = None if path is None else acquire_lock(path, busy, remedy)
    try:
        yield
    finally:
        if lock is not None:
            with suppress(OSError):
                Path(
                    lock.lock_file
                ).unlink()  # while it is held: a process that waits for this very file sees that it is gone
            lock.release()


def _describe_holder(path: Path) -> str:
    for _ in range(READ_ATTEMPTS):
        with suppress(OSError, ValueError, KeyError, TypeError):
            holder = json.loads(path.read_text(encoding="utf-8"))
            return f"process {int(holder['pid'])} on {holder['host']!s:.80}, since {holder['since']!s:.20}"
        time.sleep(READ_PAUSE)
    return "unknown process"

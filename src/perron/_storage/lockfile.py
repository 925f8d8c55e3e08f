"""One process at a time: a lock on a file, which the system releases whenever and however its holder ends."""

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
LOOKS, PAUSE = 5, 0.02  # a holder may be about to write who it is


def hold(path: Path, busy: str, remedy: str) -> FileLock | None:
    """Hold a lock, or raise an error that says who does; None on a file system without locks.

    Args:
        path: the lock's file; who holds it stands in it.
        busy: what another process is doing, if it has the lock.
        remedy: what to do then.
    """
    lock = FileLock(path, timeout=0, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout:
        raise PerronError(f"{busy} ({_holder(path)}); {remedy}.") from None
    except OSError as error:
        if error.errno in (ENOSYS, EOPNOTSUPP, ENOLCK):
            return None
        raise FileError(f"Cannot write {path}: {error.strerror}.") from None
    about = {"pid": os.getpid(), "host": socket.gethostname(), "since": datetime.now().isoformat(timespec="seconds")}
    with suppress(OSError):  # a full disk: held all the same
        path.write_text(json.dumps(about), encoding="utf-8")
    return lock


def release(lock: FileLock | None) -> None:
    """Let others have it, and leave no file."""
    if lock is not None:
        with suppress(OSError):
            Path(lock.lock_file).unlink()  # while it is held: who waits for this very file sees that it is gone
        lock.release()


@contextmanager
def alone(path: Path | None, busy: str, remedy: str) -> Iterator[None]:
    """Within it, the lock is held; without a path, nothing is."""
    lock = None if path is None else hold(path, busy, remedy)
    try:
        yield
    finally:
        release(lock)


def _holder(path: Path) -> str:
    for _ in range(LOOKS):
        with suppress(OSError, ValueError, KeyError, TypeError):
            found = json.loads(path.read_text(encoding="utf-8"))
            return f"process {int(found['pid'])} on {found['host']!s:.80}, since {found['since']!s:.20}"
        time.sleep(PAUSE)
    return "it did not say which"

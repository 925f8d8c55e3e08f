"""Files that are written in full or not at all."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from errno import EDQUOT, EFBIG, ENOSPC
from pathlib import Path
from typing import BinaryIO

from perron.errors import FileError

PART = re.compile(r"(.+)\.(\d+)\.part")  # a file that is being written: its name to be, and the process


def write_bytes(path: str | Path, content: bytes) -> Path:
    """Write a file so that at every moment, whatever happens, the old or the new content is there in full."""
    with writing(path, size=len(content)) as file:
        file.write(content)
    return Path(path)


@contextlib.contextmanager
def writing(path: str | Path, *, size: int | None = None, before: Path | None = None) -> Iterator[BinaryIO]:
    """A file to write to, in the same way: it takes the place of the old one when all is written.

    The order is what a power cut asks for: content to disk, then the name, then the directory to disk.

    Args:
        size: bytes that will be written, for an error that says so.
        before: where the old one is kept, on file systems with hard links.
    """
    path = Path(path)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")  # one for each process that may be writing it
    try:
        if path.exists() and not path.is_file():  # replacing a device or a pipe would remove it
            raise FileError(f"Cannot write {path}: it is not a regular file.")
        clear(path)
        with part.open("xb") as file:  # never what somebody else put there, as a link to elsewhere
            yield file
            file.flush()
            os.fsync(file.fileno())
        if before is not None:
            _keep(path, before)
        part.replace(path)
        sync(path.parent)
    except BaseException as error:
        with contextlib.suppress(OSError):
            part.unlink()
        if isinstance(error, OSError):
            raise FileError(f"Cannot write {path}: {error.strerror or error}{_room(path, size, error)}.") from None
        raise


def make_directory(path: Path) -> None:
    """Make a directory, and those above it, so that they are still there after a power cut."""
    try:
        missing = [one for one in (path, *path.parents) if not one.exists()]
        path.mkdir(parents=True, exist_ok=True)
        for one in {*missing, path, path.parent}:  # another process may have made the last two, and not come further
            sync(one.parent)
    except OSError as error:
        raise FileError(f"Cannot make the directory {path}: {error.strerror}.") from None


def sync(directory: Path) -> None:
    """Have the names in a directory on disk."""
    opened = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def clear(path: Path) -> None:
    """Remove what processes that were killed left of a file; the system gives numbers of processes anew, so ours goes, too."""
    with os.scandir(path.parent) as entries:
        parts = [(entry.path, found) for entry in entries if (found := PART.fullmatch(entry.name))]
    for left, found in parts:
        if found[1] == path.name and (int(found[2]) == os.getpid() or not _lives(int(found[2]))):
            Path(left).unlink(missing_ok=True)


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _keep(path: Path, before: Path) -> None:
    """A second name for the file that is about to be replaced."""
    part = before.with_name(f"{before.name}.{os.getpid()}.part")
    with contextlib.suppress(OSError):  # there is none, or no hard links: then the old one goes
        clear(before)
        os.link(path, part)
        part.replace(before)
        part.unlink(missing_ok=True)  # still there if both were names of one file: then the system renames nothing


def _room(path: Path, size: int | None, error: OSError) -> str:
    """What a full disk lacks."""
    if error.errno not in (ENOSPC, EDQUOT, EFBIG) or size is None:
        return ""
    return f" (it needs {size:,} bytes; {shutil.disk_usage(path.parent).free:,} are free)"

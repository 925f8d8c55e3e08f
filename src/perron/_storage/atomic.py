"""Files that are written completely or not at all."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
from collections.abc import Iterator
from errno import EDQUOT, EFBIG, ENOSPC
from pathlib import Path
from typing import BinaryIO

from perron.errors import FileError

PART = re.compile(r"(.+)\.(\d+)\.part")  # a temporary file: the final name and the id of the process that writes it


def write_bytes(path: str | Path, content: bytes) -> Path:
    """Write a file atomically: at every moment, the path holds the complete old or the complete new content."""
    with open_atomic(path, size=len(content)) as file:
        file.write(content)
    return Path(path)


@contextlib.contextmanager
def open_atomic(path: str | Path, *, size: int | None = None, backup: Path | None = None) -> Iterator[BinaryIO]:
    """Open a temporary file for writing, which replaces ``path`` at the end of the block.

    To survive a power failure, the content is flushed to disk first, then the file is renamed, then the directory is flushed.

    Args:
        path: the file.
        size: number of bytes that will be written, for the error if the disk is full.
        backup: where to keep the old file, on file systems with hard links.
    """
    path = Path(path)
    part = _part_of(path)
    try:
        if path.exists() and not path.is_file():  # replacing a device or a pipe would remove it
            raise FileError(f"Cannot write {path}: it is not a regular file.")
        remove_leftovers(path)
        with part.open("xb") as file:  # never through an existing file, which may be a link to another place
            yield file
            file.flush()
            os.fsync(file.fileno())
        if backup is not None:
            _link(path, backup)
        part.replace(path)
        _flush_directory(path.parent)
    except BaseException as error:
        with contextlib.suppress(OSError):
            part.unlink()
        if isinstance(error, OSError):
            raise FileError(f"Cannot write {path}: {error.strerror or error}{_space(path, size, error)}.") from None
        raise


def make_directory(path: Path) -> None:
    """Create a directory and its missing parents so that they survive a power failure."""
    try:
        missing = [parent for parent in (path, *path.parents) if not parent.exists()]
        path.mkdir(parents=True, exist_ok=True)
        for created in {
            *missing,
            path,
            path.parent,
        }:  # another process may have created the last two, but not flushed them
            _flush_directory(created.parent)
    except OSError as error:
        raise FileError(f"Cannot make the directory {path}: {error.strerror}.") from None


def make_own_directory(path: Path) -> None:
    """Create a directory like `make_directory`; refuse a symbolic link, through which files elsewhere would be changed."""
    if path.is_symlink():
        raise FileError(f"{path} is a symbolic link; replace it by a directory, or choose another place.")
    make_directory(path)


def keep_file(path: Path, target: Path) -> Path:
    """Give a file a second name, or copy it on a file system without hard links; a file that is there already stays.

    Under its second name the content stays as it is when the file is replaced, as by `write_bytes`.
    """
    if not path.is_symlink():
        try:
            os.link(path, target)
            _flush_directory(target.parent)
            return target
        except FileExistsError:
            return target
        except OSError:  # no hard links here
            pass
    try:
        return target if target.exists() else write_bytes(target, path.read_bytes())
    except OSError as error:
        raise FileError(f"Cannot keep {path} as {target}: {error.strerror or error}.") from None


def remove_leftovers(path: Path) -> None:
    """Remove temporary files for ``path`` of processes that no longer exist, or that had the id of this process."""
    with os.scandir(path.parent) as entries:
        parts = [(entry.path, match) for entry in entries if (match := PART.fullmatch(entry.name))]
    for leftover, match in parts:
        if match[1] == path.name and (int(match[2]) == os.getpid() or not _is_alive(int(match[2]))):
            Path(leftover).unlink(missing_ok=True)


def _part_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.{os.getpid()}.part")


def _flush_directory(directory: Path) -> None:
    if sys.platform == "win32":  # directories cannot be opened there
        return
    opened = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _is_alive(process: int) -> bool:
    if sys.platform == "win32":  # os.kill would send Ctrl-C; its files stay
        return True
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # it belongs to another user
        pass
    return True


def _link(path: Path, backup: Path) -> None:
    """Give the file that is about to be replaced a second name."""
    part = _part_of(backup)
    with contextlib.suppress(OSError):  # no old file, or no hard links: then there is no backup
        remove_leftovers(backup)
        os.link(path, part)
        part.replace(backup)
        part.unlink(missing_ok=True)  # it still exists if both were names of one file, which the system does not rename


def _space(path: Path, size: int | None, error: OSError) -> str:
    if error.errno not in (ENOSPC, EDQUOT, EFBIG) or size is None:
        return ""
    return f" (it needs {size:,} bytes; {shutil.disk_usage(path.parent).free:,} are free)"

"""Files that are written in full or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from perron.errors import FileError


def write_bytes(path: str | Path, content: bytes) -> Path:
    """Write a file so that at every moment, whatever happens, the old or the new content is there in full."""
    with writing(path) as file:
        file.write(content)
    return Path(path)


@contextlib.contextmanager
def writing(path: str | Path) -> Iterator[BinaryIO]:
    """A file to write to, in the same way: it takes the place of the old one when all is written."""
    path = Path(path)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")  # one for each process that may be writing it
    try:
        with part.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            part.unlink()
        if isinstance(error, OSError):
            raise FileError(f"Cannot write {path}: {error.strerror or error}.") from None
        raise
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)

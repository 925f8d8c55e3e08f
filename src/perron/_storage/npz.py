"""Arrays in .npz files, which are read without being trusted: no pickles, and nothing is unpacked that is no array."""

from __future__ import annotations

import io
import math
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from perron.errors import FileError

MAX_UNPACKED = 2**30  # bytes


def read(path: Path) -> dict[str, Any]:
    """All arrays in a file, by name."""
    try:
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(member.file_size for member in archive.infolist())
            if unpacked > MAX_UNPACKED:
                raise FileError(
                    f"{path} would unpack to {unpacked / 2**30:.2g} GiB; at most {MAX_UNPACKED / 2**30:.2g} are read. A matrix "
                    "with few edges takes less as scipy.sparse.save_npz writes it."
                )
            for member in archive.infolist():
                if _array_size(archive, member) != member.file_size:
                    raise FileError(
                        f"{path} is not an .npz file that can be read: {member.filename!r:.80} in it is no array."
                    )
        with np.load(path, allow_pickle=False) as arrays:
            return {key: arrays[key] for key in arrays}
    except FileError:
        raise
    except OSError as error:
        raise FileError(f"Cannot read {path}: {error.strerror or error}.") from None
    except Exception as error:  # a damaged archive makes zipfile and numpy raise nearly anything
        raise FileError(f"{path} is not an .npz file that can be read: {error}.") from None


def _array_size(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> int:
    """The bytes that an array in an archive has by its own header, before it is unpacked; -1 if it has none."""
    with archive.open(member) as file:
        if file.read(len(np.lib.format.MAGIC_PREFIX)) != np.lib.format.MAGIC_PREFIX:
            return -1
        file.seek(0)
        read = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }.get(np.lib.format.read_magic(file))
        if read is None:
            return -1
        shape, _, kind = read(file)
        return file.tell() + math.prod(shape) * kind.itemsize


def packed(arrays: dict[str, Any]) -> bytes:
    """The content of a file with these arrays."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()

"""Read .npz files from untrusted sources: nothing is unpickled, and nothing but arrays is unpacked."""

from __future__ import annotations

import io
import json
import math
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from perron.errors import FileError, FormatError

MAX_UNPACKED = 2**30  # bytes


def read(path: Path) -> dict[str, Any]:
    """Return all arrays in a file, by name."""
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
            return dict(arrays)
    except FileError:
        raise
    except OSError as error:
        raise FileError(f"Cannot read {path}: {error.strerror or error}.") from None
    except Exception as error:  # zipfile and numpy raise nearly anything on a damaged archive
        raise FileError(f"{path} is not an .npz file that can be read: {error}.") from None


def read_with_header(path: Path, kind: str, form: int, written_by: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arrays of a file that perron wrote, and its header: the JSON text in the array ``perron_KIND``.

    Args:
        path: the file.
        kind: what it holds, as ``"mixing"``.
        form: the format that is read; a header without a format has it.
        written_by: the call that writes such a file, for the error.
    """
    arrays, name = read(path), f"perron_{kind}"
    if name not in arrays:
        raise FileError(f"{path} holds no {kind} but {sorted(arrays)}. Write one with {written_by}.")
    try:
        header: dict[str, Any] = json.loads(str(arrays[name]))
        found = header.get("format", form)
    except (AttributeError, json.JSONDecodeError) as error:
        raise FileError(f"{path} is damaged: {error!r}.") from None
    if found != form:
        raise FormatError(f"{path} has format {found!r:.20}; this version of perron reads {form}.")
    return arrays, header


def _array_size(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> int:
    """Return the size in bytes that an array's header implies, before it is unpacked; -1 if it is not an array."""
    with archive.open(member) as file:
        if file.read(len(np.lib.format.MAGIC_PREFIX)) != np.lib.format.MAGIC_PREFIX:
            return -1
        file.seek(0)
        version = np.lib.format.read_magic(file)
        if version not in ((1, 0), (2, 0)):
            return -1
        read_header = getattr(np.lib.format, f"read_array_header_{version[0]}_0")
        shape, _, dtype = read_header(file)
        return file.tell() + math.prod(shape) * int(dtype.itemsize)


def pack(arrays: dict[str, Any]) -> bytes:
    """Return the content of an .npz file with these arrays."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()

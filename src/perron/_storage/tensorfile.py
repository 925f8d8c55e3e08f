"""Tensors and facts in one file that is written in full or not at all, and read only if not a bit of it has changed.

It is a safetensors file, which any reader of those can open; nothing in it is code. Its last tensor is the SHA-256 of all
that comes before. It is written straight from the tensors' memory: the safetensors library makes a copy of everything first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from perron._storage.atomic import open_atomic
from perron.errors import FileError

TYPES = {
    torch.float64: "F64", torch.int64: "I64", torch.float32: "F32", torch.int32: "I32", torch.bfloat16: "BF16",
    torch.float16: "F16", torch.int16: "I16", torch.uint8: "U8", torch.int8: "I8", torch.bool: "BOOL",
}  # fmt: skip
SEAL = "sha256"  # the name of the last tensor
SIZE = 32  # bytes of it
CHUNK = 2**24
SAID = re.compile(rb'"size": " *(\d+)"')
HEADER = 2**24  # bytes; more than any header of ours


def write(path: str | Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], *, keep: bool = False) -> Path:
    """Write tensors by name, and facts that JSON can hold; with ``keep``, the file that was there stays as `before` it."""
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))  # so that all are aligned
    about = {"size": f"{0:16d}", "facts": json.dumps(facts)}  # the size first: what is left of a file tells its length
    header: dict[str, Any] = {"__metadata__": about}
    place = 0
    for name, tensor in ordered:
        size = tensor.numel() * tensor.element_size()
        kind, shape = TYPES[tensor.dtype], list(tensor.shape)
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [place, place + size]}
        place += size
    header[SEAL] = {"dtype": "U8", "shape": [SIZE], "data_offsets": [place, place + SIZE]}
    length = len(json.dumps(header))
    length += -length % 8
    whole = 8 + length + place + SIZE
    about["size"] = f"{whole:16d}"
    text = json.dumps(header).encode().ljust(length)
    hashed = sha256()
    with open_atomic(path, size=whole, backup=before(path) if keep else None) as file:
        pieces: list[Any] = [len(text).to_bytes(8, "little") + text, *(_raw(tensor) for _, tensor in ordered)]
        for piece in pieces:
            hashed.update(piece)
            file.write(piece)
        file.write(hashed.digest())
    return Path(path)


def read(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and facts; a `FileError` if a part is missing or changed."""
    path = Path(path)
    size, found, said = measured(path, SIZE)
    if (wanted := _wanted(path)) is not None and wanted != size:
        raise FileError(f"{path} is damaged: it has {size:,} bytes instead of {wanted:,}.")
    if found != said:
        raise FileError(f"{path} is damaged: it has {size:,} bytes, with {differs(found.hex(), said.hex())}.")
    tensors, metadata = contents(path)
    tensors.pop(SEAL, None)
    try:
        return tensors, plain_json(metadata["facts"])
    except (KeyError, ValueError) as error:
        raise FileError(f"{path} cannot be read: {error!r}.") from None


def latest(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any], str]:
    """Tensors and facts of a file, or of the one before it if it is damaged; and what is wrong with it, if anything is."""
    try:
        return *read(path), ""
    except FileError as error:
        try:
            return *read(before(path)), str(error)
        except FileError:
            raise error from None


def part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin so, by the rest of their names."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def before(path: str | Path) -> Path:
    """Where the file is that a file took the place of."""
    return Path(f"{path}.before")


# ---- what every reader of safetensors files here needs: nothing is believed that was not checked


def measured(path: Path, seal: int = 0) -> tuple[int, bytes, bytes]:
    """A file's size, the SHA-256 of it without its last bytes, and those bytes."""
    hashed = sha256()
    try:
        if not path.is_file():  # opening a pipe would hang
            raise FileError(
                f"{path} cannot be read: {'it is not a regular file' if path.exists() else 'it is not there'}."
            )
        with path.open("rb") as file:
            size = path.stat().st_size
            left = size - seal
            while left > 0 and (piece := file.read(min(CHUNK, left))):
                hashed.update(piece)
                left -= len(piece)
            return size, hashed.digest(), file.read(seal)
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror or error}.") from None


def differs(found: str, said: str) -> str:
    """Two checksums, as an error says it."""
    return f"the SHA-256 {found[:16]}... instead of {said[:16]}..."


def header_of(path: Path) -> tuple[int, dict[str, Any]]:
    """The length of a safetensors file's header, and what it says that the file holds."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > min(HEADER, path.stat().st_size):
                raise FileError(f"{path} cannot be read: its header would have {length:,} bytes.")
            return length, plain_json(file.read(length))
    except (OSError, ValueError, TypeError) as error:
        raise FileError(f"{path} cannot be read: its header is none ({error!s:.100}).") from None


def contents(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a safetensors file whose checksum is right, and its metadata."""
    header_of(path)
    try:
        with safe_open(path, framework="pt") as content:
            return {name: content.get_tensor(name) for name in content.keys()}, content.metadata() or {}  # noqa: SIM118
    except (OSError, SafetensorError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise FileError(f"{path} cannot be read: {error!s:.200}.") from None


def plain_json(text: str | bytes) -> dict[str, Any]:
    """A JSON object; a ValueError if it is none, or says something twice, so that two readers could read two things."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(found := dict(pairs)) != len(pairs):
            names = [name for name, _ in pairs]
            raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r:.80} stands there twice")
        return found

    try:
        found = json.loads(text, object_pairs_hook=unique)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError(f"a JSON object was expected; got {found!r:.80}")
    return found


def _wanted(path: Path) -> int | None:
    """The size that a file says it has, near its beginning."""
    with path.open("rb") as file:
        found = SAID.search(file.read(100))
    return int(found[1]) if found else None


def digest(tensors: Iterable[Tensor]) -> str:
    """A short name of tensors' very numbers."""
    hashed = sha256()
    for tensor in tensors:
        hashed.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        hashed.update(_raw(tensor))
    return hashed.hexdigest()[:16]


def _raw(tensor: Tensor) -> Any:
    """A tensor's own bytes."""
    dense = tensor.detach().cpu().contiguous()
    flat = dense.as_strided(
        (dense.numel(),), (1,)
    )  # an axis of length one may have any stride, and count as contiguous
    return flat.view(torch.uint8).numpy()

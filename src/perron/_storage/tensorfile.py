"""Files with tensors and facts that are written completely or not at all, and read only if not a bit has changed.

The format is safetensors, which other programs read too; nothing in it is code. The facts are JSON in the header's metadata,
and the last tensor is the SHA-256 of all bytes before it. Files are written directly from the tensors' memory, which the
safetensors library would copy first. `read_with_manifest` reads the older formats of checkpoints: facts and checksums are in
a second file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from perron._storage.atomic import open_atomic
from perron.errors import FileError

TYPES = {
    torch.float64: "F64", torch.int64: "I64", torch.uint64: "U64", torch.float32: "F32", torch.int32: "I32", torch.uint32: "U32",
    torch.bfloat16: "BF16", torch.float16: "F16", torch.int16: "I16", torch.uint16: "U16", torch.uint8: "U8", torch.int8: "I8",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2", torch.bool: "BOOL", torch.complex64: "C64",
}  # fmt: skip
CHECKSUM = "sha256"  # the name of the last tensor
CHECKSUM_SIZE = 32  # bytes
CHUNK = 2**24
LARGEST_HEADER = 10**8  # bytes; the limit of the safetensors library
SIZE = re.compile(rb'"size": " *(\d+)"')
MANIFEST = re.compile(rb'\{"own_size": +(\d+), "own_sha256": "(\w{64})", ')

Content = tuple[dict[str, Tensor], dict[str, Any]]


def write(path: str | Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], *, keep: bool = False) -> Path:
    """Write tensors by name, and facts that JSON can represent; with ``keep``, the previous file remains at `before`."""
    if unknown := [f"{name} ({tensor.dtype})" for name, tensor in tensors.items() if tensor.dtype not in TYPES]:
        raise FileError(f"Cannot write {path}: the format has no type for {', '.join(unknown)}.")
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))  # keeps all aligned
    metadata = {"size": f"{0:16d}", "facts": json.dumps(facts)}  # the size first: it survives in a truncated file
    header: dict[str, Any] = {"__metadata__": metadata}
    offset = 0
    for name, tensor in ordered:
        end = offset + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": TYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    header[CHECKSUM] = {"dtype": "U8", "shape": [CHECKSUM_SIZE], "data_offsets": [offset, offset + CHECKSUM_SIZE]}
    length = len(json.dumps(header))
    length += -length % 8
    if length > LARGEST_HEADER:
        raise FileError(
            f"Cannot write {path}: its header would have {length:,} bytes, at most {LARGEST_HEADER:,} are read."
        )
    size = 8 + length + offset + CHECKSUM_SIZE
    metadata["size"] = f"{size:16d}"
    text = json.dumps(header).encode().ljust(length)
    checksum = sha256()
    with open_atomic(path, size=size, backup=before(path) if keep else None) as file:
        for piece in (length.to_bytes(8, "little") + text, *(_raw(tensor) for _, tensor in ordered)):
            checksum.update(piece)
            file.write(piece)
        file.write(checksum.digest())
    return Path(path)


def read(path: str | Path) -> Content:
    """Return tensors and facts; raise a `FileError` if any part is missing or changed."""
    path = Path(path)
    size = _size(path)
    with _reading(path), path.open("rb") as file:
        claimed = SIZE.search(file.read(100))
    _check_size(path, size, int(claimed[1]) if claimed else size)
    checksum, stored = _checksum(path, size, CHECKSUM_SIZE)
    _check_sum(path, size, checksum.hex(), stored.hex())
    tensors, metadata = _contents(path)
    tensors.pop(CHECKSUM, None)
    with _reading(path):
        return tensors, parse_object(metadata["facts"])


def read_with_manifest(manifest: Path) -> Content:
    """Return tensors and facts of a safetensors file whose facts, size and checksum are in a JSON file of the same name.

    Checkpoints of formats 1 and 2 have this form. The manifest has a checksum of itself, too.
    """
    size = _size(manifest)
    if size > LARGEST_HEADER:
        raise FileError(f"{manifest} cannot be read: it has {size:,} bytes.")
    with _reading(manifest):
        content = manifest.read_bytes()
    facts = _second_manifest(manifest, content) or _first_manifest(manifest, content)
    if facts is None:
        raise FileError(f"{manifest} is damaged: it has {size:,} bytes, and does not begin as a manifest.")
    path = manifest.with_suffix(".safetensors")
    size = _size(path)
    with _reading(manifest):
        expected_size, expected = int(facts.get("size", size)), str(facts["sha256"])
    _check_size(path, size, expected_size)
    _check_sum(path, size, _checksum(path, size)[0].hex(), expected)
    return _contents(path)[0], facts


def _second_manifest(path: Path, content: bytes) -> dict[str, Any] | None:
    """Return a manifest of format 2, which begins with its own size and the checksum of the rest; None if it does not."""
    begin = MANIFEST.match(content)
    if begin is None:
        return None
    with _reading(path):
        _check_size(path, len(content), int(begin[1]))
    _check_sum(path, len(content), sha256(content[begin.end() :]).hexdigest(), begin[2].decode())
    with _reading(path):
        return parse_object(content)


def _first_manifest(path: Path, content: bytes) -> dict[str, Any] | None:
    """Return a manifest of format 1, with a checksum of its other entries in the order of their names; None if it is none."""
    try:
        facts = parse_object(content)
    except ValueError:
        return None
    expected = facts.pop("own_sha256", None)
    if facts.get("format") != 1 or not isinstance(expected, str):
        return None
    own = sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    _check_sum(path, len(content), own, expected)
    return facts


def latest(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any], str]:
    """Return tensors and facts of a file, or of the one `before` it if it is damaged; and the damage, empty if there is none."""
    try:
        return *read(path), ""
    except FileError as error:
        try:
            return *read(before(path)), str(error)
        except FileError:
            raise error from None


def part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names begin with a prefix, by the rest of their names."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def before(path: str | Path) -> Path:
    """Return the path at which the previous file is kept."""
    return Path(f"{path}.before")


def digest(tensors: Iterable[Tensor]) -> str:
    """Return a short hash of the tensors' exact values."""
    hashed = sha256()
    for tensor in tensors:
        hashed.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        stored = tensor.untyped_storage().nbytes() // tensor.element_size()
        if 0 not in tensor.stride() and tensor.numel() > stored:  # windows that overlap: every number once
            hashed.update(f"{tensor.stride()} {tensor.storage_offset()}".encode())
            hashed.update(_raw(tensor.as_strided((stored,), (1,), 0)))
        else:
            hashed.update(_raw(tensor))
    return hashed.hexdigest()[:16]


# ---- reading files that are not trusted


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn the errors of reading into a `FileError` that names the file."""
    try:
        yield
    except FileError:
        raise
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror or error}.") from None
    except (SafetensorError, KeyError, TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise FileError(f"{path} cannot be read: {error!s:.200}.") from None


def _size(path: Path) -> int:
    with _reading(path):
        if not path.is_file():  # opening a pipe would hang
            raise FileError(
                f"{path} cannot be read: {'it is not a regular file' if path.exists() else 'it is not there'}."
            )
        return path.stat().st_size


def _checksum(path: Path, size: int, end: int = 0) -> tuple[bytes, bytes]:
    """Return the SHA-256 of a file without its last bytes, and those bytes."""
    hashed, left = sha256(), size - end
    with _reading(path), path.open("rb") as file:
        while left > 0 and (piece := file.read(min(CHUNK, left))):
            hashed.update(piece)
            left -= len(piece)
        return hashed.digest(), file.read(end)


def _check_size(path: Path, size: int, expected: int) -> None:
    if size != expected:
        raise FileError(f"{path} is damaged: it has {size:,} bytes instead of {expected:,}.")


def _check_sum(path: Path, size: int, checksum: str, expected: str) -> None:
    if checksum != expected:
        difference = f"the SHA-256 {checksum[:16]}... instead of {expected[:16]}..."
        raise FileError(f"{path} is damaged: it has {size:,} bytes, with {difference}.")


def header_of(path: Path) -> tuple[int, dict[str, Any]]:
    """Return the length and the content of a safetensors file's header."""
    with _reading(path), path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > min(LARGEST_HEADER, path.stat().st_size):
            raise FileError(f"{path} cannot be read: its header would have {length:,} bytes.")
        return length, parse_object(file.read(length))


def _contents(path: Path) -> Any:
    """Return the tensors and the metadata of a safetensors file."""
    header_of(path)
    with _reading(path), safe_open(path, framework="pt") as content:
        return {name: content.get_tensor(name) for name in content.keys()}, content.metadata() or {}  # noqa: SIM118


def parse_object(text: str | bytes) -> dict[str, Any]:
    """Return a JSON object; raise a ValueError for anything else, and for repeated keys, which readers take differently."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(items := dict(pairs)) != len(pairs):
            names = [name for name, _ in pairs]
            raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r:.80} stands there twice")
        return items

    try:
        value = json.loads(text, object_pairs_hook=unique)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError(f"a JSON object was expected; got {value!r:.80}")
    return value


def _raw(tensor: Tensor) -> Any:
    """Return a tensor's bytes."""
    dense = tensor.detach().cpu().contiguous()
    flat = dense.as_strided((dense.numel(),), (1,))  # an axis of length one may have any stride and count as contiguous
    return flat.view(torch.uint8).numpy()

"""Tensors and facts in one file that is written in full or not at all, and read only if not a bit of it has changed.

It is a safetensors file, which any reader of those can open; nothing in it is code. Its last tensor is the SHA-256 of all
that comes before. It is written straight from the tensors' memory: the safetensors library makes a copy of everything first.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from perron.atomic import writing
from perron.errors import FileError

TYPES = {
    torch.float64: "F64", torch.int64: "I64", torch.float32: "F32", torch.int32: "I32", torch.bfloat16: "BF16",
    torch.float16: "F16", torch.int16: "I16", torch.uint8: "U8", torch.int8: "I8", torch.bool: "BOOL",
}  # fmt: skip
SEAL = "sha256"  # the name of the last tensor
SIZE = 32  # bytes of it
CHUNK = 2**24


def write(path: str | Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> Path:
    """Write tensors by name, and facts that JSON can hold."""
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))  # so that all are aligned
    header: dict[str, Any] = {"__metadata__": {"facts": json.dumps(facts)}}
    place = 0
    for name, tensor in ordered:
        size = tensor.numel() * tensor.element_size()
        kind, shape = TYPES[tensor.dtype], list(tensor.shape)
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [place, place + size]}
        place += size
    header[SEAL] = {"dtype": "U8", "shape": [SIZE], "data_offsets": [place, place + SIZE]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    hashed = sha256()
    with writing(path) as file:
        pieces: list[Any] = [len(text).to_bytes(8, "little") + text, *(_raw(tensor) for _, tensor in ordered)]
        for piece in pieces:
            hashed.update(piece)
            file.write(piece)
        file.write(hashed.digest())
    return Path(path)


def read(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and facts; a `FileError` if a part is missing or changed."""
    path = Path(path)
    hashed = sha256()
    try:
        left = path.stat().st_size - SIZE
        with path.open("rb") as file:
            while left > 0 and (piece := file.read(min(CHUNK, left))):
                hashed.update(piece)
                left -= len(piece)
            if file.read() != hashed.digest():
                raise FileError(f"{path} is damaged: it does not have the checksum that it was written with.")
        with safe_open(path, framework="pt") as content:
            tensors = {name: content.get_tensor(name) for name in content.keys() if name != SEAL}  # noqa: SIM118
            return tensors, json.loads(content.metadata()["facts"])
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise FileError(f"{path} cannot be read: {error}.") from None


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

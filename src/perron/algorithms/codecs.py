"""Codecs: how the numbers of a message are written on the wire in fewer bits.

``bf16``  bfloat16: 8 significant bits, 2 bytes a number
``int8``  whole multiples of a scale, from -127 to 127, 1 byte a number
``int4``  whole multiples of a scale, from -7 to 7, half a byte a number

A scale belongs to a block of 256 numbers: the largest of them divided by 127 or 7, rounded up to bfloat16. A multiple of it has
at most 15 significant bits, so that sender and receiver compute the same values, to the last bit and in every precision.

A message has the numbers, the scales, and 8 bytes by which the receiver recognizes it: its size, a mark and the codec.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from perron._registry import lookup
from perron.errors import PerronError

Wire = Literal["bf16", "int8", "int4"]
BLOCK = 256  # numbers that share a scale
MARK = (0x50, 0x51, 0x31)  # "PQ1"; the fourth byte is that of the codec
TRAILER = 8  # bytes: four of the count, and the mark


class Codec(ABC):
    """How vectors are quantized and written; along the last axis, each row for itself."""

    name: Wire
    mark: int

    @abstractmethod
    def encode(self, x: Tensor) -> Encoded:
        """Return x in few bits."""

    @abstractmethod
    def parts(self, count: int) -> list[int]:
        """Return the bytes of each part of a message with that many numbers."""

    @abstractmethod
    def decode(self, parts: Sequence[Tensor], count: int, dtype: torch.dtype) -> Tensor:
        """Return the values of a message; ``parts`` are its bytes."""

    def nbytes(self, count: int) -> int:
        """Return the bytes of a message with that many numbers."""
        return sum(self.parts(count)) + TRAILER

    def read(self, message: Tensor, count: int, dtype: torch.dtype) -> Tensor:
        """Return the values of a message, ``(bytes,) -> (count,)``; one that is not of this codec and size is refused."""
        if message.numel() != self.nbytes(count) or not torch.equal(message[-TRAILER:], self.trailer(count, message)):
            raise PerronError(f"a message that is not {count} numbers as {self.name}")
        return self.decode(message[:-TRAILER].split(self.parts(count)), count, dtype)  # type: ignore[no-untyped-call]

    def trailer(self, count: int, like: Tensor) -> Tensor:
        """Return the last bytes of a message."""
        size = (count % 2**32).to_bytes(4, "little")
        return torch.tensor([*size, *MARK, self.mark], dtype=torch.uint8, device=like.device)


@dataclass(frozen=True)
class Encoded:
    """A vector in few bits, as nodes exchange it.

    Attributes:
        codec: how it is written.
        values: the numbers that it stands for, ``(..., d)``.
        stored: its parts, as tensors.
    """

    codec: Codec
    values: Tensor
    stored: tuple[Tensor, ...]

    @property
    def shape(self) -> torch.Size:
        return self.values.shape

    @property
    def nbytes(self) -> int:
        """The bytes of one node's message."""
        return self.codec.nbytes(self.values.shape[-1])

    @cached_property
    def message(self) -> Tensor:
        """The message of one node, ``(bytes,)``."""
        parts = [part.reshape(-1).view(torch.uint8) for part in self.stored]
        return torch.cat([*parts, self.codec.trailer(self.values.numel(), self.values)])


class _BFloat16(Codec):
    name, mark = "bf16", 0

    def encode(self, x: Tensor) -> Encoded:
        stored = x.to(torch.bfloat16)
        return Encoded(self, stored.to(x.dtype), (stored,))

    def parts(self, count: int) -> list[int]:
        return [2 * count]

    def decode(self, parts: Sequence[Tensor], count: int, dtype: torch.dtype) -> Tensor:
        return _view(parts[0], torch.bfloat16).to(dtype)


class _Integers(Codec):
    """Multiples of a scale, from -``most`` to ``most``."""

    most: int

    def encode(self, x: Tensor) -> Encoded:
        count = x.shape[-1]
        blocks = _blocks(x)
        scale = _round_up(blocks.abs().amax(-1, keepdim=True).to(torch.float32) / self.most)
        # The least positive number instead of zero: a block of zeros stays one.
        divisor = scale.to(x.dtype).clamp_min(torch.finfo(x.dtype).tiny)
        multiples = (blocks / divisor).round_().clamp_(-self.most, self.most)
        values = (multiples * scale).flatten(-2)[..., :count]
        codes = multiples.to(torch.int8).flatten(-2)[..., :count]
        return Encoded(self, values, (self.pack(codes), scale.squeeze(-1).to(torch.bfloat16)))

    def decode(self, parts: Sequence[Tensor], count: int, dtype: torch.dtype) -> Tensor:
        codes, scale = self.unpack(parts[0], count), _view(parts[1], torch.bfloat16).to(dtype)
        if bool((scale < 0).any()) or bool((codes < -self.most).any()):
            raise PerronError(f"{count} numbers as {self.name} with scales or codes out of range")
        return (_blocks(codes).to(dtype) * scale[:, None]).flatten()[:count]

    def pack(self, codes: Tensor) -> Tensor:
        """Return whole numbers as they are stored."""
        return codes

    def unpack(self, stored: Tensor, count: int) -> Tensor:
        """Return the whole numbers that were packed."""
        return stored.view(torch.int8)[:count]


class _Int8(_Integers):
    name, mark, most = "int8", 1, 127

    def parts(self, count: int) -> list[int]:
        return [count, 2 * -(-count // BLOCK)]


class _Int4(_Integers):
    name, mark, most = "int4", 2, 7

    def parts(self, count: int) -> list[int]:
        return [-(-count // 2), 2 * -(-count // BLOCK)]

    def pack(self, codes: Tensor) -> Tensor:
        if codes.shape[-1] % 2:
            codes = torch.nn.functional.pad(codes, (0, 1))
        pairs = (codes + 8).view(torch.uint8)
        return pairs[..., ::2] | (pairs[..., 1::2] << 4)

    def unpack(self, stored: Tensor, count: int) -> Tensor:
        codes = torch.stack([stored & 15, stored >> 4], -1).flatten()[:count]
        return codes.view(torch.int8) - 8


CODECS: dict[str, Codec] = {one.name: one for one in (_BFloat16(), _Int8(), _Int4())}


def codec_of(wire: str) -> Codec:
    """Return the codec of a name."""
    return lookup(wire, CODECS, "wire")


class Sizes(NamedTuple):
    """Bytes on the wire: of a model vector, and of a number that is sent in full precision."""

    vector: int
    number: int


def wire_sizes(wire: int | str | None, dim: int, number: int = 4) -> Sizes:
    """Return the bytes of a vector of ``dim`` numbers; ``wire`` is a codec, the bytes of each number, or None for ``number``."""
    if isinstance(wire, str):
        return Sizes(codec_of(wire).nbytes(dim), number)
    return Sizes(dim * (wire or number), wire or number)


def values_of(x: Tensor | Encoded) -> Tensor:
    """Return the values of what is exchanged."""
    return x.values if isinstance(x, Encoded) else x


def _blocks(x: Tensor) -> Tensor:
    """Return the last axis in blocks, ``(..., d) -> (..., blocks, BLOCK)``, the last one filled with zeros."""
    count = x.shape[-1]
    if count <= BLOCK:
        return x.unsqueeze(-2)
    if missing := -count % BLOCK:
        x = torch.nn.functional.pad(x, (0, missing))
    return x.reshape(*x.shape[:-1], -1, BLOCK)


def _round_up(scale: Tensor) -> Tensor:
    """Return single-precision numbers, not negative, rounded up to those that bfloat16 has; infinity and NaN stay."""
    rounded = ((scale.view(torch.int32) + 0xFFFF) & -0x10000).view(torch.float32)
    return torch.where(scale.isfinite(), rounded, scale)


def _view(stored: Tensor, dtype: torch.dtype) -> Tensor:
    """Return bytes as numbers; they are copied unless they begin where numbers of that size may."""
    aligned = stored.storage_offset() % dtype.itemsize == 0
    return (stored if aligned else stored.clone()).view(dtype)

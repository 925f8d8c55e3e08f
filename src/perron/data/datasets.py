"""Locations of datasets, and images from their official files (`perron.data.download` gets them); nothing is unpickled.

`digits` comes with perron: 1,797 handwritten digits of 8 x 8 pixels, the test set of the UCI data set "Optical Recognition
of Handwritten Digits" (E. Alpaydin, C. Kaynak 1998, CC BY 4.0), as in scikit-learn. MNIST and Fashion-MNIST are read from their
four idx files, gzipped or not, in a given directory, in ``$PERRON_DATA/mnist``, or in ``~/.cache/perron/mnist``; CIFAR-10
from the six files of its binary version, in ``cifar10`` or its subdirectory ``cifar-10-batches-bin``. `perron.data.text` reads
texts, which are in ``text``, and `perron.data.tables` the files of the LIBSVM collection, which are in ``libsvm``.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import zlib
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from perron._registry import unknown
from perron.errors import FileError

FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
CIFAR = (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin")
FOLDER = "cifar-10-batches-bin"  # in CIFAR-10's archive
SHAPE = (3, 32, 32)  # of an image of CIFAR-10: red, green and blue
RECORDS = 10_000  # per file of CIFAR-10
IMAGES = {"mnist": "MNIST", "fashion_mnist": "Fashion-MNIST", "cifar10": "CIFAR-10"}
TEXTS = {"tinyshakespeare": "tiny-shakespeare"}
# Of the LIBSVM collection: two classes, or (the last two) regression.
TABLES = {
    "a9a": "a9a (Adult, census income)", "w8a": "w8a (web pages)", "mushrooms": "mushrooms", "phishing": "phishing",
    "ijcnn1": "ijcnn1", "covtype": "covtype (forest cover, two classes, scaled)", "abalone": "abalone (regression)",
    "cpusmall": "cpusmall (regression, scaled)",
}  # fmt: skip
TITLES = IMAGES | TEXTS | TABLES
PACKED = {".gz": b"\x1f\x8b", ".bz2": b"BZh", ".xz": b"\xfd7zXZ\0"}  # suffixes, and how such files begin
LIMIT = 2**29  # bytes; no download or unpacked file is larger
TESTED = 297  # test samples of the digits


class Images(NamedTuple):
    """Images ``(samples, channels, height, width)`` and labels ``(samples,)``, as bytes, for training and for testing."""

    images: Tensor
    labels: Tensor
    test_images: Tensor
    test_labels: Tensor


def load(name: str, folder: str | Path | None = None) -> Images:
    """Load a dataset of images by name: ``digits``, ``mnist``, ``fashion_mnist`` or ``cifar10``."""
    if name == "digits":
        return digits()
    if name not in IMAGES:
        raise unknown(name, ["digits", *IMAGES], "dataset of images")
    where = locate(name, folder)
    if name == "cifar10":
        images, labels = (torch.cat(parts) for parts in zip(*(_cifar(where / file) for file in CIFAR), strict=True))
        return Images(images[:-RECORDS], labels[:-RECORDS], images[-RECORDS:], labels[-RECORDS:])
    images, labels, test_images, test_labels = (_idx(where, file) for file in FILES)
    for pixels, classes, kind in ((images, labels, "training"), (test_images, test_labels, "test")):
        if pixels.ndim != 3 or classes.ndim != 1 or len(pixels) != len(classes):
            raise FileError(f"{where}: {pixels.shape} {kind} images do not match {classes.shape} labels.")
    return Images(images[:, None], labels, test_images[:, None], test_labels)


def find(name: str, folder: str | Path | None = None) -> Path | None:
    """Return the directory that holds all files of a dataset, or None."""
    return next((place for place in _places(name, folder) if not missing(name, place)), None)


def locate(name: str, folder: str | Path | None = None) -> Path:
    """Return the directory that holds all files of a dataset, or raise an error that says how to get them."""
    where = find(name, folder)
    if where is None:
        raise FileError(_not_found(name, folder))
    return where


def cache(name: str) -> Path:
    """Return the directory for a dataset: in ``$PERRON_DATA``, or in ``~/.cache/perron`` if that is not set or empty."""
    root = os.environ.get("PERRON_DATA")
    return (Path(root) if root else Path.home() / ".cache" / "perron") / _directory(name)


def missing(name: str, place: Path) -> list[str]:
    """Return the files of a dataset that a directory lacks."""
    return [file for file in _files(name) if lacks(place, file, packed=name != "cifar10")]


def lacks(place: Path, file: str, *, packed: bool = True) -> bool:
    """Whether a directory has neither a file nor, with ``packed``, a compressed form of it."""
    return not any((place / f"{file}{suffix}").exists() for suffix in ("", *(PACKED if packed else ())))


def path_of(place: Path, file: str) -> Path:
    """Return the path of a file in a directory, or of its compressed form."""
    return next(
        (path for suffix in ("", *PACKED) if (path := place / f"{file}{suffix}").exists()), place / f"{file}.gz"
    )


def digits() -> Images:
    """Load the small digits that come with perron, in a fixed random order; pixels 0 .. 255, 297 of them for testing."""
    with np.load(Path(__file__).parent / "digits.npz", allow_pickle=False) as content:
        images = torch.from_numpy(content["images"].astype(np.int64) * 255 // 16).to(torch.uint8)[:, None]
        labels = torch.from_numpy(content["labels"])
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(labels)))
    images, labels = images[order], labels[order]
    return Images(images[:-TESTED], labels[:-TESTED], images[-TESTED:], labels[-TESTED:])


def _files(name: str) -> tuple[str, ...]:
    if name in TEXTS or name in TABLES:
        return (f"{name}.txt",) if name in TEXTS else (name,)
    return CIFAR if name == "cifar10" else FILES


def _directory(name: str) -> str:
    return "text" if name in TEXTS else "libsvm" if name in TABLES else name


def _places(name: str, folder: str | Path | None) -> list[Path]:
    """Return the directories to search, in this order."""
    default = dict.fromkeys([cache(name), Path.home() / ".cache" / "perron" / _directory(name)])
    places = list(default) if folder is None else [Path(folder)]
    return [each for place in places for each in (place, place / FOLDER)] if name == "cifar10" else places


def _not_found(name: str, folder: str | Path | None) -> str:
    """Return the error message: the missing files if some are there, otherwise which files to put where."""
    places, files = _places(name, folder), _files(name)
    remedy = f"perron data fetch {name}{'' if folder is None else f' --to {folder}'}"
    for place in places:
        if len(lacking := missing(name, place)) < len(files):
            return f"{TITLES[name]} is not complete: {place} has no {', '.join(lacking)}. To get it: {remedy}"
    return (
        f"{TITLES[name]} was not found; searched {', '.join(map(str, places))}. To get it: {remedy}; or put its files "
        f"{', '.join(files)}{'' if name == 'cifar10' else ' (.gz or not)'} into one of them, or set PERRON_DATA."
    )


def _cifar(path: Path) -> tuple[Tensor, Tensor]:
    """Read a file of CIFAR-10: 10,000 records of one byte for the label and 3 x 32 x 32 for the image."""
    size = 1 + int(np.prod(SHAPE))
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error}.") from None
    if len(raw) != RECORDS * size:
        problem = "is truncated" if len(raw) < RECORDS * size else "is too long"
        raise FileError(f"{path} {problem}: {len(raw):,} bytes instead of {RECORDS * size:,}.")
    records = torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(RECORDS, size)
    if (largest := int(records[:, 0].max())) > 9:
        raise FileError(f"{path} is not a file of CIFAR-10: it has the label {largest}, beyond 0 .. 9.")
    return records[:, 1:].reshape(RECORDS, *SHAPE), records[:, 0].clone()


def read(folder: Path, file: str) -> tuple[Path, bytes]:
    """Return the path and the content of a file, or of the compressed one."""
    path = path_of(folder, file)
    return path, read_file(path)


def read_file(path: Path) -> bytes:
    """Return the content of a file, unpacked if it is compressed with gzip, bzip2 or xz."""
    try:
        return unpack(path.read_bytes())
    except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError) as error:
        raise FileError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.") from None


def unpack(content: bytes) -> bytes:
    """Return the content of a compressed file; other content unchanged."""
    openers: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
    for suffix, start in PACKED.items():
        if content.startswith(start):
            with openers[suffix](io.BytesIO(content)) as file:
                return read_limited(file)
    return content


def read_limited(stream: IO[bytes]) -> bytes:
    """Return the content of a stream, unless it is too large."""
    content = stream.read(LIMIT + 1)
    if len(content) > LIMIT:
        raise FileError(f"it holds more than {LIMIT:,} bytes")
    return content


def _idx(folder: Path, file: str) -> Tensor:
    """Read an idx file of bytes: two zeros, the type 8, the number of axes, their lengths (big-endian, 32 bits), the bytes."""
    path, raw = read(folder, file)
    axes = raw[3] if len(raw) >= 4 else 0
    if raw[:3] != b"\0\0\x08" or not 1 <= axes <= 4 or len(raw) < 4 + 4 * axes:
        raise FileError(f"{path} is not an idx file of bytes: it starts with {raw[:4].hex(' ')}.")
    shape = [int(length) for length in np.frombuffer(raw, ">u4", axes, 4)]
    body = np.frombuffer(raw, np.uint8, offset=4 + 4 * axes)
    if len(body) != int(np.prod(shape)):
        raise FileError(
            f"{path} is truncated: {len(body):,} bytes instead of {int(np.prod(shape)):,} for shape {shape}."
        )
    return torch.from_numpy(body.reshape(shape).copy())

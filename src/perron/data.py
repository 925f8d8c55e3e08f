"""Datasets of images, read from their official files. Nothing is downloaded, nothing is unpickled.

`digits` comes with perron: 1,797 handwritten digits of 8 x 8 pixels, the test set of the UCI data set "Optical Recognition
of Handwritten Digits" (E. Alpaydin, C. Kaynak 1998, CC BY 4.0), as scikit-learn has it. MNIST and Fashion-MNIST are read from the
four idx files, gzipped or not, in a directory that is given, or in ``$PERRON_DATA/mnist``, or in ``~/.cache/perron/mnist``.
"""

from __future__ import annotations

import gzip
import os
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from perron.errors import FileError, PerronError

IDX = {"mnist": "MNIST", "fashion_mnist": "Fashion-MNIST"}
FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
TESTED = 297  # of the digits that come with perron


class Images(NamedTuple):
    """Images ``(samples, channels, height, width)`` and labels ``(samples,)``, as bytes, for training and for testing."""

    images: Tensor
    labels: Tensor
    test_images: Tensor
    test_labels: Tensor


def load(name: str, folder: str | Path | None = None) -> Images:
    """A dataset by name: ``digits``, ``mnist`` or ``fashion_mnist``."""
    if name == "digits":
        return digits()
    if name not in IDX:
        raise PerronError(f"There is no dataset {name!r}; there are: digits, {', '.join(IDX)}.")
    where = find(name, folder)
    if where is None:
        tried = ", ".join(str(place) for place in _places(name, folder))
        raise FileError(
            f"{IDX[name]} was not found; looked in {tried}. Put its files {', '.join(FILES)} (.gz or not) into one of them, or "
            "set PERRON_DATA."
        )
    images, labels, test_images, test_labels = (_idx(where, file) for file in FILES)
    for pixels, classes, what in ((images, labels, "training"), (test_images, test_labels, "test")):
        if pixels.ndim != 3 or classes.ndim != 1 or len(pixels) != len(classes):
            raise FileError(f"{where}: {pixels.shape} {what} images do not go with {classes.shape} labels.")
    return Images(images[:, None], labels, test_images[:, None], test_labels)


def find(name: str, folder: str | Path | None = None) -> Path | None:
    """The directory that holds all files of a dataset, or None."""
    for place in _places(name, folder):
        if all((place / file).exists() or (place / f"{file}.gz").exists() for file in FILES):
            return place
    return None


def digits() -> Images:
    """The small digits that come with perron, in a fixed random order; pixels 0 .. 255, 297 of them for testing."""
    with np.load(Path(__file__).parent / "digits.npz", allow_pickle=False) as content:
        images = torch.from_numpy(content["images"].astype(np.int64) * 255 // 16).to(torch.uint8)[:, None]
        labels = torch.from_numpy(content["labels"])
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(labels)))
    images, labels = images[order], labels[order]
    return Images(images[:-TESTED], labels[:-TESTED], images[-TESTED:], labels[-TESTED:])


def _places(name: str, folder: str | Path | None) -> list[Path]:
    if folder is not None:
        return [Path(folder)]
    named = [Path(os.environ["PERRON_DATA"]) / name] if "PERRON_DATA" in os.environ else []
    return [*named, Path.home() / ".cache" / "perron" / name]


def _idx(folder: Path, file: str) -> Tensor:
    """An idx file of bytes: two zeros, the type 8, the number of axes, their lengths as big-endian 32-bit numbers, the bytes."""
    path = folder / file if (folder / file).exists() else folder / f"{file}.gz"
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise FileError(f"{path} cannot be read: {error}.") from None
    axes = raw[3] if len(raw) >= 4 else 0
    if raw[:3] != b"\0\0\x08" or not 1 <= axes <= 4 or len(raw) < 4 + 4 * axes:
        raise FileError(f"{path} is not an idx file of bytes: it starts with {raw[:4].hex(' ')}.")
    shape = [int(length) for length in np.frombuffer(raw, ">u4", axes, 4)]
    body = np.frombuffer(raw, np.uint8, offset=4 + 4 * axes)
    if len(body) != int(np.prod(shape)):
        raise FileError(
            f"{path} was cut short: {len(body):,} bytes instead of {int(np.prod(shape)):,} for shape {shape}."
        )
    return torch.from_numpy(body.reshape(shape).copy())

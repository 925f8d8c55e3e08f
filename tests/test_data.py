"""Datasets: the bundled digits, idx files made on the fly, and the real MNIST where it is found."""

import gzip
import hashlib
import struct

import numpy as np
import pytest
import torch

from perron import data
from perron.errors import PerronError


def idx(array):
    return (
        bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.astype(np.uint8).tobytes()
    )


@pytest.fixture
def files(tmp_path):
    """A tiny dataset in MNIST's format, half of it gzipped."""
    random = np.random.default_rng(0)
    arrays = [
        random.integers(256, size=(7, 5, 4)),
        np.arange(7) % 3,
        random.integers(256, size=(2, 5, 4)),
        np.arange(2),
    ]
    for number, (name, array) in enumerate(zip(data.FILES, arrays, strict=True)):
        packed = number % 2
        (tmp_path / (name + ".gz" * packed)).write_bytes(gzip.compress(idx(array)) if packed else idx(array))
    return tmp_path, arrays


def test_digits_come_with_perron():
    found = data.load("digits")
    assert found.images.shape == (1500, 1, 8, 8)
    assert found.test_images.shape == (297, 1, 8, 8)
    assert found.images.dtype == torch.uint8
    assert (found.images.min(), found.images.max()) == (0, 255)
    assert torch.bincount(found.labels.long()).min() > 130  # every digit is there
    everything = torch.cat([found.images, found.test_images]).flatten(1)
    assert len(torch.unique(everything, dim=0)) == 1797  # none twice


def test_idx_files(files):
    folder, arrays = files
    found = data.load("mnist", folder)
    assert (found.images[:, 0].numpy() == arrays[0]).all()
    assert (found.labels.numpy() == arrays[1]).all()
    assert (found.test_images[:, 0].numpy() == arrays[2]).all()
    assert (found.test_labels.numpy() == arrays[3]).all()


def test_files_are_found_by_the_environment(files, monkeypatch, tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("PERRON_DATA", raising=False)
    assert data.find("mnist") is None
    with pytest.raises(PerronError, match=r"MNIST was not found; looked in .*\.cache.*PERRON_DATA"):
        data.load("mnist")
    monkeypatch.setenv("PERRON_DATA", str(home))
    (home / "mnist").symlink_to(files[0])
    assert data.find("mnist") == home / "mnist"
    with pytest.raises(PerronError, match="digits, mnist"):
        data.load("minst")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda raw: raw[:-3], "cut short"),
        (lambda raw: b"\x80\x04" + raw[2:], "not an idx file"),
        (lambda raw: b"", "not an idx file"),
        (lambda raw: raw[:3] + b"\x09" + raw[4:], "not an idx file"),
        (lambda raw: idx(np.zeros((6, 5, 4))), "do not go with"),
    ],
)
def test_damaged_files_are_refused(files, damage, message):
    path = files[0] / data.FILES[0]
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(PerronError, match=message):
        data.load("mnist", files[0])


def test_a_damaged_archive_is_refused(files):
    path = files[0] / f"{data.FILES[1]}.gz"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(PerronError, match="cannot be read"):
        data.load("mnist", files[0])


@pytest.mark.skipif(data.find("mnist") is None, reason="MNIST is not on this machine")
def test_real_mnist():
    found = data.load("mnist")
    assert found.images.shape == (60_000, 1, 28, 28)
    assert found.test_images.shape == (10_000, 1, 28, 28)
    header = bytes([0, 0, 8, 3]) + struct.pack(">3I", 60_000, 28, 28)
    known = "6bbc9ace898e44ae57da46a324031adb"  # of the official file, unpacked
    assert hashlib.md5(header + found.images.numpy().tobytes(), usedforsecurity=False).hexdigest() == known
    assert found.labels[:5].tolist() == [5, 0, 4, 1, 9]

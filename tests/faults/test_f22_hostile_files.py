"""Hostile files in the place of checkpoints and networks: nothing runs, nothing is written elsewhere, no memory is taken."""

import io
import json
import os
import pickle
import re
import struct
import zipfile
from hashlib import sha256
from pathlib import Path

import numpy as np
import old_format
import pytest
import torch
from kinds import Simulated, Training, group

import perron
from perron._storage import tensorfile as saved
from perron.networks import files

SOURCE = Path(perron.__file__).parent
HUGE = 2**40


class Payload:
    """Makes a directory when it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self.canary = str(canary)

    def __reduce__(self):
        return os.mkdir, (self.canary,)


def pickled(canary: Path) -> list[bytes]:
    """Pickles, bare and as torch and numpy wrap them."""
    torch_file, numpy_file = io.BytesIO(), io.BytesIO()
    torch.save(Payload(canary), torch_file)
    np.savez(numpy_file, np.array([[Payload(canary)]], dtype=object))
    return [pickle.dumps(Payload(canary)), torch_file.getvalue(), numpy_file.getvalue()]


def safetensors(said: dict | str, data: bytes = b"", length: int | None = None) -> bytes:
    """A safetensors file with any header."""
    text = (said if isinstance(said, str) else json.dumps(said)).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(shape, begin, end):
    return {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}


def headers() -> list[bytes]:
    """Headers that lie."""
    one = json.dumps(entry([1], 0, 4))
    return [
        safetensors({"state.x": entry([HUGE // 4], 0, HUGE)}),  # a terabyte
        safetensors("{}", length=HUGE),
        safetensors("{}", length=2**64 - 1),
        safetensors({"state.x": entry([4], -16, 0)}, bytes(16)),
        safetensors({"state.x": entry([4], 16, 0)}, bytes(16)),
        safetensors(f'{{"state.x": {one}, "state.x": {json.dumps(entry([1], 4, 8))}}}', bytes(8)),  # twice
        safetensors(f'{{"__metadata__": {{"facts": "{{}}", "facts": "[]"}}, "x": {one}}}', bytes(4)),
        safetensors("[" * 100_000),
        safetensors("[1]"),
        safetensors({"../../x": entry([1], 0, 4), "/etc/x": entry([1], 4, 8)}, bytes(8)),
    ]


def bombs(folder: Path) -> list[Path]:
    """Zeros by the gigabyte in a megabyte, as an .npz: no array, an array by its name only, and one that says to be another."""
    zeros, whole = bytes(2**24), np.lib.format.header_data_from_array_1_0(np.zeros(2**24))
    found = []
    for name, header in (("none", None), ("short", whole | {"shape": (1,)}), ("long", whole | {"shape": (2**40,)})):
        found.append(folder / f"{name}.npz")
        with zipfile.ZipFile(found[-1], "w", zipfile.ZIP_DEFLATED) as archive, archive.open("a.npy", "w") as file:
            if header:
                np.lib.format.write_array_header_1_0(file, header)
            for _ in range(60):
                file.write(zeros)
    return found


def sealed(content: bytes) -> bytes:
    """As if it were whole: the checksum that it should have."""
    return content + sha256(content).digest()


def around(folder: Path) -> set[str]:
    return {str(path) for path in folder.parent.rglob("*") if folder not in path.parents}


def peak() -> float:
    """The megabytes that this process had at most."""
    return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) / 1000


@pytest.fixture
def guard(tmp_path):
    """Afterwards: no canary, nothing new outside, little memory at any time."""
    canary, folder = tmp_path / "canary", tmp_path / "folder"
    folder.mkdir()
    before = around(folder)
    Path("/proc/self/clear_refs").write_text("5")  # from now on, what the memory was at most
    memory = peak()
    yield canary, folder
    assert not canary.exists()
    assert around(folder) == before
    assert peak() - memory < 100, peak() - memory


def test_f22_a_hostile_training(guard, row):
    canary, folder = guard
    with group():
        one = Training(folder)
        for _ in range(2):
            one.save()
        path, tried = one.newest, 0
        whole = path.read_bytes()
        tensors, facts = saved.read(path)
        tensors = {name: value.clone() for name, value in tensors.items()}  # they are mapped from the file

        def refused(words: str) -> None:
            nonlocal tried
            step, said = one.load()
            assert step == 1, said
            assert re.search(words, said), said
            for left in (path, manifest):
                left.unlink(missing_ok=True)
            path.write_bytes(whole)
            tried += 1

        manifest = path.with_suffix(".json")  # with which the file is taken for one of version 0.1
        for evil in pickled(canary):
            path.write_bytes(evil)
            refused(r"node-0\.safetensors is damaged: it has [\d,]+ bytes, with the SHA-256")
            manifest.write_bytes(evil)
            refused(r"node-0\.json is damaged: it has [\d,]+ bytes, and does not begin as a manifest")
        for evil in [*headers(), *pickled(canary)]:  # with a checksum that is right: by somebody who knows perron
            path.write_bytes(sealed(evil))
            refused(
                r"node-0\.safetensors (cannot be read: |is damaged: it has \d+ bytes, and its manifest node-0.json is)"
            )
        for evil in [*headers()[:-1], *pickled(canary)]:
            old_format.write(path, evil, facts | {"format": 2})
            refused(r"node-0\.safetensors cannot be read: ")
        for changes in ({"nodes": "1"}, {"step": None}, {"notes": []}, {"format": "3"}, {"step": 7}):
            saved.write(path, tensors, facts | changes)
            refused(r"node-0\.safetensors (cannot be read|is that of)")
            old_format.write(path, whole, facts | {"format": 2} | changes)
            refused(r"node-0\.json (cannot be read|is that of)")
        old_format.write(path, whole, facts, size=-1)
        refused(r"node-0\.safetensors is damaged: it has [\d,]+ bytes instead of -1")
        old_format.write(path, whole, facts | {"format": 2}, extra=', "step": 2')
        refused(r"'step' stands there twice")
        seal = {"dtype": "U8", "shape": [32], "data_offsets": [0, 32]}
        path.write_bytes(sealed(safetensors({"__metadata__": {"facts": '{"step": 2, "step": 2}'}, "sha256": seal})))
        refused(r"'step' stands there twice")
        for linked in (path, manifest):  # what is there is the right thing, but a link leads to it
            outside = folder / "elsewhere"
            outside.write_bytes(whole)
            linked.unlink(missing_ok=True)
            linked.symlink_to(outside)
            refused("a link")
        saved.write(
            path, {"../../x": torch.ones(1), "/etc/x": torch.ones(1)}, facts
        )  # whole, but no state of this model
        with pytest.raises(perron.FileError, match="is not a checkpoint of this model"):
            one.load()
    row.measured(f"training: {tried + 1} files refused by name; the one before used", trials=tried + 1)


def test_f22_links_lead_nowhere(guard, row, tmp_path_factory):
    _, folder = guard
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "step-0000000001").mkdir()
    for name in ("node-0.json", "node-0.safetensors", "node-0.json.1.part"):
        (elsewhere / "step-0000000001" / name).write_text("mine")
    (folder / "00").symlink_to(elsewhere)
    (folder / "01").mkdir()
    (folder / "01" / "step-0000000001").symlink_to(elsewhere / "step-0000000001")
    with group():
        one = Training(folder)
        assert one.load() == (0, "")
        for _ in range(4):
            one.save()  # removes old ones
    assert sorted(path.name for path in elsewhere.rglob("node*")) == [
        "node-0.json",
        "node-0.json.1.part",
        "node-0.safetensors",
    ]
    row.measured("directories that are links: nothing read, removed or written through them", trials=2)


def test_f22_a_hostile_simulation(guard, row):
    canary, folder = guard
    one = Simulated(folder)
    one.save()
    tried = 0
    for evil in [*pickled(canary), *headers(), *map(sealed, pickled(canary)), *map(sealed, headers())]:
        one.path.write_bytes(evil)
        saved.before(one.path).unlink(missing_ok=True)
        with pytest.raises(perron.FileError, match=r"run\.safetensors (is damaged|cannot be read): ") as caught:
            saved.read(one.path)
        step, said = one.load()
        assert step == 0
        assert f"{caught.value} The run starts from the beginning." in said
        tried += 1
    saved.write(one.path, {"x": torch.ones(1)}, {"step": 1})  # whole, but of somebody else
    with pytest.raises(perron.FileError, match=r"holds no run of perron\.simulate"):
        one.run(2)
    one.path.unlink()
    os.mkfifo(one.path)
    with pytest.raises(perron.PerronError, match="not a regular file"):
        saved.read(one.path)
    row.measured(f"simulation: {tried + 2} files refused by name", trials=tried + 2)


def test_f22_a_hostile_network(guard, row):
    canary, folder = guard
    evil = bombs(folder)
    for number, content in enumerate(pickled(canary)):
        evil.append(folder / f"{number}.npz")
        evil[-1].write_bytes(content)
    for path in evil:
        for reader in (files.read_graph, files.read_mixing):
            with pytest.raises(perron.FileError, match=rf"{path.name}"):
                reader(path)
    row.measured(f".npz: {len(evil)} files refused, three of them bombs of a gigabyte", trials=len(evil))


GATE = re.compile(
    r"\bimport (cloud)?pickle|\b(pickle|dill|shelve|marshal|joblib)\.|\btorch\.load\b|weights_only *= *False"
    r"|allow_pickle *= *True|torch\.distributed(\.| import )checkpoint|\bdcp\b|(?<![\w.])(eval|exec|compile|__import__)\("
    r"|\byaml\b|shell *= *True|os\.system|all_gather_object"
)


def test_f22_no_code_that_could_run_a_file(row):
    found = [
        f"{path.relative_to(SOURCE)}:{number}: {line.strip()}"
        for path in sorted(SOURCE.rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if GATE.search(line)
    ]
    assert found == []
    for sample in ("import pickle", "torch.load(x)", "np.load(x, allow_pickle=True)", "eval(text)", "yaml.load(x)"):
        assert GATE.search(sample)  # it can fail
    many = len(list(SOURCE.rglob("*.py")))
    row.measured(f"no pickle, torch.load, DCP, eval, exec or yaml in {many} modules", trials=many)

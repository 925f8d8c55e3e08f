"""Files of tensors: what was written is read, by others too, and not a bit may change."""

import os
import shutil
from pathlib import Path

import kinds
import old_format
import pytest
import torch
from safetensors.torch import load_file

from perron import PerronError
from perron._storage import tensorfile as saved
from perron.distributed import checkpoint
from perron.distributed.checkpoint_files import Moment, read_part
from perron.distributed.optimizer import Decentralized
from perron.errors import FileError

DATA = Path(__file__).parent / "data"  # written by version 0.1

TENSORS = {
    "state.x": torch.randn(3, 4, dtype=torch.float64),
    "half": torch.randn(5).to(torch.bfloat16),
    "count": torch.arange(3),
    "flags": torch.tensor([True, False]),
    "strided": torch.randn(4, 6)[:, ::2],
    "none": torch.empty(0, 3),
    "one": torch.tensor(2.5),
    "expanded": torch.tensor(7).expand(1).clone(),
    "wide": torch.arange(3.0).expand(2, 3),
    "complex": torch.polar(torch.ones(3), torch.arange(3.0)),  # as the rotations of attention, which are buffers
}


def test_what_was_written_is_read(tmp_path):
    path = saved.write(tmp_path / "a", TENSORS, {"step": 7, "name": "é"})
    tensors, facts = saved.read(path)
    assert facts == {"step": 7, "name": "é"}
    assert set(tensors) == set(TENSORS)
    for name, tensor in TENSORS.items():
        assert tensors[name].dtype == tensor.dtype
        assert torch.equal(tensors[name], tensor)
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]


def test_it_is_a_safetensors_file(tmp_path):
    found = load_file(saved.write(tmp_path / "a", TENSORS, {}))
    assert torch.equal(found["strided"], TENSORS["strided"])
    assert found["sha256"].shape == (32,)


def test_any_change_is_noticed(tmp_path):
    path = saved.write(tmp_path / "a", TENSORS, {"step": 7})
    content = path.read_bytes()
    for place in (0, 9, 60, len(content) // 2, len(content) - 40, len(content) - 1):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with pytest.raises(PerronError, match=r"damaged|cannot be read"):
            saved.read(path)
    for length in (0, 5, 40, len(content) - 1):
        path.write_bytes(content[:length])
        with pytest.raises(PerronError, match=r"damaged|cannot be read"):
            saved.read(path)
    with pytest.raises(PerronError, match="cannot be read"):
        saved.read(tmp_path / "nothing")


def test_the_old_file_stays_until_the_new_one_is_there(tmp_path):
    path = saved.write(tmp_path / "a", {"x": torch.ones(2)}, {})
    with pytest.raises(FileError, match=r"no type for x \(torch\.complex128\)"):
        saved.write(path, {"x": torch.zeros(2, dtype=torch.complex128)}, {})
    with pytest.raises(TypeError):
        saved.write(path, {"x": torch.zeros(2)}, {"fact": object()})
    assert torch.equal(saved.read(path)[0]["x"], torch.ones(2))
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]


def test_a_kill_between_two_names_leaves_nothing(tmp_path):
    """Killed when the old file had its second name already, and the new one was not in its place yet."""
    path = saved.write(tmp_path / "a", TENSORS, {"step": 1})
    os.link(path, saved.before(path))
    saved.write(path, TENSORS, {"step": 2}, keep=True)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a", "a.before"]
    assert saved.read(path)[1] == {"step": 2}
    assert saved.read(saved.before(path))[1] == {"step": 1}


# ---- files of version 0.1


def test_the_file_of_a_simulation_of_version_0_1(tmp_path):
    tensors, facts = saved.read(DATA / "simulation-0.1.safetensors")
    assert facts["step"] == 50
    assert facts["run"]["algorithm"] == "PushPull(order='cta')"
    assert tensors["state.x"].shape[-2:] == (4, 5)


def test_the_two_files_of_a_checkpoint_of_version_0_1(tmp_path):
    for manifest in DATA.glob("checkpoint-0.1/*/*/node-*.json"):
        tensors, facts = saved.read_with_manifest(manifest)
        assert (f"node-{facts['node']}.json", facts["step"]) == (manifest.name, 20)
        assert tensors["state.x"].dtype == torch.float32
    assert len(list(DATA.glob("checkpoint-0.1/*/*/node-*.json"))) == 2


def test_any_change_of_the_two_files_is_noticed(tmp_path):
    path = tmp_path / "node-0.safetensors"
    old_format.write(path, {"x": torch.ones(3)}, {"step": 7, "notes": {}})
    manifest = path.with_suffix(".json")
    assert torch.equal(saved.read_with_manifest(manifest)[0]["x"], torch.ones(3))
    for one in (path, manifest):
        content = one.read_bytes()
        for place in range(len(content)):
            one.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
            with pytest.raises(PerronError, match=rf"{one.name} (is damaged: it has|cannot be read)"):
                saved.read_with_manifest(manifest)
            one.write_bytes(content[:place])
            with pytest.raises(PerronError, match=rf"{one.name} is damaged: it has {place} bytes"):
                saved.read_with_manifest(manifest)
        one.write_bytes(content)
    path.unlink()
    with pytest.raises(PerronError, match=r"node-0\.safetensors cannot be read: it is not there"):
        saved.read_with_manifest(manifest)


def test_sizes_that_are_no_sizes(tmp_path):
    path = tmp_path / "node-0.safetensors"
    old_format.write(path, {"x": torch.ones(3)}, {"step": 7}, size=float("inf"))
    manifest = path.with_suffix(".json")
    with pytest.raises(FileError, match=r"node-0\.json cannot be read"):
        saved.read_with_manifest(manifest)
    manifest.write_text(f'{{"own_size": {"9" * 5000}, "own_sha256": "{"0" * 64}", "step": 7}}')
    with pytest.raises(FileError, match=r"node-0\.json cannot be read"):
        saved.read_with_manifest(manifest)


def test_a_directory_that_may_not_be_entered(tmp_path, monkeypatch):
    def refuse(_path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "is_symlink", refuse)
    with pytest.raises(FileError, match=r"node-0\.safetensors cannot be read: Permission denied"):
        read_part(tmp_path, Moment("run", 1), 0)


def test_a_training_resumes_from_a_checkpoint_of_version_0_1(tmp_path):
    """Bit for bit with as many nodes; otherwise from the average of the models."""
    with kinds.group():
        whole = kinds.Training(tmp_path / "new")
        for _ in range(2):
            whole.save()
        (path,) = (tmp_path / "new").glob("*/step-*2/node-0.safetensors")
        tensors, facts = saved.read(path)
        old = tmp_path / "old" / path.relative_to(tmp_path / "new")
        old.parent.mkdir(parents=True)
        old_format.write(old, tensors, facts | {"format": 2})
        resumed = kinds.Training(tmp_path / "old")
        assert resumed.load() == (2, "")
        assert whole.save() == resumed.save() == 3
        assert torch.equal(whole.optimizer.algorithm_state.x, resumed.optimizer.algorithm_state.x)
        shutil.copytree(DATA / "checkpoint-0.1", tmp_path / "two")
        model = torch.nn.Linear(3, 2)
        optimizer = Decentralized(model, graph="ring", lr=0.01)
        with pytest.warns(match="step 20 was saved by 2 nodes, now there are 1"):
            checkpoint.load(tmp_path / "two", optimizer)
        parts = [saved.read_with_manifest(one)[0]["state.x"] for one in DATA.glob("checkpoint-0.1/*/*/node-*.json")]
        assert torch.equal(optimizer.algorithm_state.x, torch.stack(parts).mean(0))
        assert (optimizer.steps, optimizer.param_groups[0]["lr"]) == (20, 0.05)

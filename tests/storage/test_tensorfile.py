"""Files of tensors: what was written is read, by others too, and not a bit may change."""

import os

import pytest
import torch
from safetensors.torch import load_file

from perron import PerronError
from perron._storage import tensorfile as saved

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
    with pytest.raises(KeyError):
        saved.write(path, {"x": torch.zeros(2, dtype=torch.complex64)}, {})  # no such type in the format
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

"""Checkpoints that were cut short: refused by name and size, and the one before is used."""

import re

import pytest
from kinds import KINDS, group

from perron._storage import tensorfile as saved


@pytest.fixture(params=KINDS)
def kept(request, tmp_path):
    """Something with two generations, of steps 2 and 3 (or 1 and 2)."""
    with group():
        one = KINDS[request.param](tmp_path)
        for _ in range(3):
            one.save()
        yield one


def cuts(path):
    """Where a file is cut: anywhere in its header, and at some places behind it."""
    size = path.stat().st_size
    return sorted({0, size // 1000, size // 2, size * 999 // 1000, *range(0, 8 + saved.header_of(path)[0], 512)})


def test_f09_a_truncated_checkpoint(kept, row):
    path, tried = kept.newest, 0
    content = path.read_bytes()
    before = saved.before(path).read_bytes() if saved.before(path).exists() else b""
    for length in cuts(path):
        path.write_bytes(content[:length])
        step, said = kept.load()
        assert step == 2, (length, said)
        assert f"{path} is damaged: it has {length:,} bytes" in said
        if length >= 100:  # the beginning, which says how long it was, is there
            assert re.search(rf"instead of {len(content):,}\b", said), said
        if kept.name == "simulation":
            assert f"resumes from {saved.before(path)}, step 2" in said
            assert saved.read(path)[1]["step"] == 3  # it went on, and saved
            saved.before(path).write_bytes(before)
        path.write_bytes(content)
        tried += 1
    assert kept.load() == (3, "")
    row.measured(f"{kept.name}: named with sizes, and the one before used, {tried} of {tried}", trials=tried)

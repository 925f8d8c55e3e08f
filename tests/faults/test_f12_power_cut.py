"""Power cuts: every prefix of the recorded calls leaves a checkpoint, and no acknowledged one is lost."""

import hashlib

import pytest
from disks import Disk, calls, can_trace, put, tracer
from kinds import KINDS, group
from test_f11_killed_while_saving import started


@pytest.mark.parametrize("kind", KINDS)
def test_f12_power_cut(kind, tmp_path, row):
    if not can_trace(tmp_path):
        pytest.skip("strace is not installed here, or not allowed")
    folder, record, saves = tmp_path / "folder", tmp_path / "record", 4
    folder.mkdir()
    started("recorded", kind, folder, saves, before=[*tracer(), str(record)])
    disk, seen, prefixes, syncs = Disk(folder), set(), 0, 0
    with group():
        for call in calls(record, folder):
            disk.do(call)
            prefixes += 1
            syncs += call.name == "fsync"
            for found in disk.worst():
                name = hashlib.sha256(repr((disk.marked, sorted(found.items(), key=str))).encode()).hexdigest()[:16]
                if name in seen:
                    continue
                seen.add(name)
                put(found, tmp_path / name)
                step, said = KINDS[kind](tmp_path / name).load()
                assert step >= disk.marked, f"after {call.name} {call.texts}: step {disk.marked} was lost; {said}"
                assert not said, said  # nothing looks damaged, either
    assert disk.marked == saves
    assert syncs >= 2 * saves  # file and directory, each time
    assert len(seen) > prefixes / 2
    row.measured(
        f"{kind}: {len(seen)} states after {prefixes} calls ({syncs} syncs): no saved step lost, none looks damaged",
        trials=len(seen),
    )

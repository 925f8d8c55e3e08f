"""Checkpoints that are there, but that not all nodes can use: nothing starts without them, and nothing of them is lost."""

import shutil
from hashlib import sha256

import pytest
from table import FULL
from trainings import NODES, unfaulted

from perron._storage import tensorfile

STEPS = 40
DISK = "disk-{}"


def files(one):
    """All files of checkpoints, by the hashes of what is in them."""
    paths = [path for path in one.folder.glob("*/**/step-*/*") if path.is_file()]
    return {path.relative_to(one.folder): sha256(path.read_bytes()).hexdigest() for path in paths}


def saved(training):
    """A training that has saved steps 10 and 20, each node on its own disk, and its files."""
    one = training(steps=20, disk=DISK)
    code, said = one.start(wait=False).ended()
    assert code == 0, said
    one.options["steps"] = STEPS
    return one, files(one)


def refused(one, starts=1):
    """What a start that is refused says, and says again the next time; nothing has changed."""
    before = files(one)
    for _ in range(starts):
        code, said = one.start(wait=False).ended()
        assert code == 3, said
        assert files(one) == before
    assert "To start a new training, pass fresh=True or choose another folder" in said
    return said


def finished(one):
    code, said = one.start(wait=False).ended()
    assert code == 0, said
    assert one.result() == unfaulted(steps=STEPS)
    return said


def test_f30_a_disk_that_is_not_mounted(training, row, trials):
    nodes = list(range(NODES))[: trials(1, NODES)]
    for node in nodes:
        one, _ = saved(training)
        disk = one.folder / DISK.format(node)
        disk.rename(one.folder / "unmounted")
        said = refused(one, starts=2)
        others = ", ".join(str(other) for other in range(NODES) if other != node)
        assert f"none that all {NODES} nodes can use." in said
        for step in (10, 20):
            assert f"Step {step} can be used by node {others}. Node {node} has none of {step}." in said
        shutil.rmtree(disk)
        (one.folder / "unmounted").rename(disk)
        finished(one)
    many = len(nodes)
    row.measured(f"disk of a node missing: {many} of {many} refused twice; mounted again, bit for bit", trials=many)


def test_f30_a_new_training_leaves_the_old_one(training, row):
    one, before = saved(training)
    shutil.rmtree(one.folder / DISK.format(1))
    one.options["fresh"] = True
    finished(one)
    after, lost = files(one), DISK.format(1)
    assert all(after[path] == content for path, content in before.items() if path.parts[0] != lost)
    row.measured("fresh=True: trained from the beginning, old files untouched", trials=1)


@pytest.mark.parametrize("nodes", [[0], list(range(NODES))] if FULL else [[0]], ids=len)
def test_f30_a_later_format(training, row, nodes):
    one, _ = saved(training)
    paths = [next(one.folder.glob(f"{DISK.format(node)}/*/step-*20/node-{node}.safetensors")) for node in nodes]
    for path in paths:
        tensors, facts = tensorfile.read(path)
        tensorfile.write(path, {name: tensor.clone() for name, tensor in tensors.items()}, facts | {"format": 9})
    said = refused(one)
    assert f"Node {nodes[0]}: {paths[0]} has format 9; this version of perron reads 1, 2, 3." in said
    assert "or move it to another folder to resume from step 10" in said
    for path in paths:
        path.rename(one.folder / f"{path.stem}.moved")
    finished(one)
    row.measured(f"format 9 on {len(nodes)} nodes refused by name; moved away: resumed from step 10", trials=1)


def test_f30_no_checkpoint_is_intact(training, row):
    one, before = saved(training)
    for path in one.folder.glob(f"{DISK.format(1)}/*/step-*/node-1.safetensors"):
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2])
    said = refused(one)
    assert said.count("is damaged: it has") >= 2
    for path in before:
        assert (one.folder / path).exists()
    row.measured("all checkpoints of a node cut: refused with sizes", trials=1)


def test_f30_a_damaged_one_is_kept(training, row):
    one, _ = saved(training)
    (path,) = one.folder.glob(f"{DISK.format(1)}/*/step-*20/node-1.safetensors")
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    said = finished(one)
    assert f"{path} is damaged: it has {len(content) - 1:,} bytes instead of {len(content):,}." in said
    assert path.read_bytes() == content[:-1]
    steps = sorted(int(place.parent.name[5:]) for place in files(one) if place.name == "node-0.safetensors")
    assert steps[-2:] == [30, 40]
    row.measured("a cut one is passed over and kept; resumed from step 10 bit for bit", trials=1)


def test_f30_a_first_save_that_a_node_did_not_live_to_do(training, row, trials):
    """Not an error: there is nothing that all nodes ever had."""
    nodes = list(range(NODES))[: trials(1, NODES)]
    for node in nodes:
        one = training(steps=STEPS, disk=DISK, odd={str(node): {"spoil": [10, "x", "inf"]}})
        code, said = one.start(wait=False).ended()
        assert code == 3, said
        others = [f"node-{other}.safetensors" for other in range(NODES) if other != node]
        assert sorted(path.name for path in files(one)) == others
        del one.options["odd"]
        said = finished(one)
        assert f"Node {node} has none of 10. Training starts from the beginning." in said
    row.measured(f"first save unfinished: {len(nodes)} of {len(nodes)} started again, bit for bit", trials=len(nodes))


def test_f30_a_node_that_joins_is_not_refused(training, row):
    """It gets the model of the others, and does not need their checkpoints; its disk was lost with it."""
    one = training("--elastic", "--restarts", "1", steps=80, disk=DISK, pause=0.05).start()
    one.further(12)
    one.workers()[1].kill()
    shutil.rmtree(one.folder / DISK.format(1))
    code, said = one.ended()
    assert code == 0, said
    assert "node 1 joined" in said, said
    assert one.step(1) == 80
    assert [path for path in files(one) if path.parts[0] == DISK.format(1) and "step-0000000080" in path.parts]
    row.measured("a node that joins an elastic training with an empty disk is not refused", trials=1)

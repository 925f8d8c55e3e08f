"""Every file that earlier commits wrote is read, and resumed with the same numbers, or refused by the name of its format.

tests/support/make_old_files.py wrote the files, with the code of those commits.
"""

import json
import shutil

import kinds
import make_old_files as old
import numpy as np
import pytest
import torch

import perron
from perron._storage import tensorfile
from perron.distributed import checkpoint
from perron.errors import FileError, FormatError, PerronError
from perron.monitor import records
from perron.networks import files
from perron.studies import read_study


@pytest.fixture
def copied(request, tmp_path):
    """A copy of the files of a commit, and what its code computed next."""
    folder = tmp_path / "copy"
    shutil.copytree(old.TARGET / request.param, folder)
    return folder, json.loads((folder / "expected.json").read_text())


def written(kind):
    """Parameters: the commits that wrote files of a kind."""
    names = [f"{commit}/{kind}" for commit, kinds_ in old.COMMITS.items() if kind in kinds_]
    return pytest.mark.parametrize("copied", names, indirect=True)


def test_all_files_are_there():
    made = {f"{commit}/{kind}" for commit, kinds_ in old.COMMITS.items() for kind in kinds_}
    assert made == {str(path.parent.relative_to(old.TARGET)) for path in old.TARGET.glob("*/*/expected.json")}
    assert sum(path.stat().st_size for path in old.TARGET.rglob("*") if path.is_file()) < 500_000


@written("training")
def test_a_training_resumes(copied):
    folder, expected = copied
    with kinds.group():
        model, optimizer, step = old.trainer()
        step()  # so that torch's random state is another
        found = checkpoint.load(folder, optimizer)
        assert found == checkpoint.Checkpoint(4, {"epoch": 1})
        for _ in range(3):
            step()
        for own, theirs in zip(old.numbers(model), expected, strict=True):  # processors round differently
            assert own == pytest.approx(theirs, rel=1e-6, abs=1e-7)
        checkpoint.save(folder, optimizer)  # and goes on in the present format
        again = old.trainer()[1]
        assert checkpoint.load(folder, again).step == 7


@written("training")
def test_damage_in_a_training_is_noticed(copied):
    """Of each file of the newest checkpoint in turn; the one before is used, and nothing is removed."""
    folder, _ = copied
    (newest,) = folder.rglob("step-*4")
    with kinds.group():
        for path in sorted(newest.iterdir()):
            content = path.read_bytes()
            for damaged in (content[: len(content) // 2], content[:-40] + bytes([content[-40] ^ 1]) + content[-39:]):
                path.write_bytes(damaged)
                optimizer = old.trainer()[1]
                with pytest.warns(match=rf"{path.name} (is damaged|cannot be read)"):
                    assert checkpoint.load(folder, optimizer).step == 2
            path.write_bytes(content)
        manifest = newest / "node-0.json"
        if manifest.exists():
            manifest.unlink()
            _, optimizer, step = old.trainer()
            with pytest.warns(match=r"node-0\.safetensors is damaged: .* its manifest node-0\.json is missing"):
                assert checkpoint.load(folder, optimizer).step == 2
            for _ in range(4):
                step()
                checkpoint.save(folder, optimizer)
            assert (newest / "node-0.safetensors").exists()


@written("simulation")
def test_a_simulation_resumes(copied, request):
    folder, expected = copied
    path = folder / "run.safetensors"
    content = path.read_bytes()
    if "f7f993c" in request.node.name:
        with pytest.raises(FormatError, match=r"run\.safetensors has an early form of format 1"):
            old.simulate(8, path)
        assert path.read_bytes() == content
        return
    assert tensorfile.read(path)[1]["step"] == 4
    np.testing.assert_allclose(old.simulate(8, path), expected, rtol=1e-12)  # the compiled loop rounds differently
    facts = tensorfile.read(path)[1]
    assert (facts["step"], facts["format"]) == (8, 2)


@written("networks")
def test_networks_are_read(copied):
    folder, expected = copied
    for suffix in ("graphml", "edges", "csv", "npz"):
        graph = files.read_graph(folder / f"graph.{suffix}")
        assert sorted(map(tuple, graph.edges.tolist())) == sorted(map(tuple, expected["edges"]))
    mixing = files.read_mixing(folder / "mixing.npz")
    for matrix, side in ((mixing.pull, "pull"), (mixing.push, "push")):
        assert np.array_equal(matrix.toarray() if hasattr(matrix, "toarray") else matrix, expected[side])


@written("study")
def test_results_of_a_study_are_read(copied):
    folder, expected = copied
    outcome = read_study(folder / "table")
    assert {name: outcome.table[name].tolist() for name in expected} == expected


@written("records")
def test_records_are_read(copied):
    folder, expected = copied
    (path,) = (folder / "log").glob("*.jsonl")
    track = records.read(path)
    assert [track.step, track.last["loss"]] == expected
    assert (track.damaged, track.steps) == (0, 4)


# ---- files of later versions


def test_later_formats_are_refused_by_name(tmp_path):
    path = tmp_path / "run.safetensors"
    old.simulate(4, path)
    tensors, facts = tensorfile.read(path)
    tensorfile.write(path, {name: tensor.clone() for name, tensor in tensors.items()}, facts | {"format": 3})
    content = path.read_bytes()
    with pytest.raises(FormatError, match=r"run\.safetensors has format 3; this version of perron reads 1 and 2"):
        old.simulate(8, path)
    assert path.read_bytes() == content

    path = tmp_path / "mixing.npz"
    files.write_mixing(perron.Mixing.uniform(perron.topologies.ring(3)), path)
    with np.load(path) as arrays:
        header = json.loads(str(arrays["perron_mixing"]))
        assert header["format"] == 1
        np.savez(path, **dict(arrays) | {"perron_mixing": np.array(json.dumps(header | {"format": 2}))})
    with pytest.raises(FormatError, match=r"mixing\.npz has format 2; this version of perron reads 1"):
        files.read_mixing(path)

    path = tmp_path / "node-0.jsonl"
    with records.Records(path, {"node": 0}):
        pass
    assert records.read(path).ended
    path.write_text(path.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(FormatError, match=r"node-0\.jsonl: The records have format 2; this version of perron reads 1"):
        records.read(path)


def test_a_damaged_simulation_is_kept(tmp_path):
    path = tmp_path / "run.safetensors"
    whole = old.simulate(8)
    for _ in range(2):
        old.simulate(4, path)
        damaged = path.read_bytes()[:-7]
        path.write_bytes(damaged)
        tensorfile.before(path).unlink(missing_ok=True)
        with pytest.warns(match="The run starts from the beginning. The file is kept as"):
            assert old.simulate(8, path) == whole
        assert damaged in [one.read_bytes() for one in tmp_path.glob("run.safetensors.damaged-*")]
        path.unlink()


def test_a_damaged_record_of_runs(tmp_path):
    with kinds.group():
        one = kinds.Training(tmp_path)
        assert one.load() == (0, "")
        assert one.save() == 1
        record = tmp_path / "node-0.runs.json"
        fields = json.loads(record.read_text())
        assert fields["last"] == [one.optimizer.run_id, 1, 0]  # no gradient of a round that is not complete
        record.write_text(json.dumps(fields | {"format": 2}))
        with pytest.raises(FileError, match=r"Node 0: .*node-0\.runs\.json is not of format 1"):
            kinds.Training(tmp_path).load()
        record.write_text(json.dumps(fields | {"runs": 3}))
        with pytest.raises(FileError, match=r"Node 0: .*node-0\.runs\.json is damaged"):
            kinds.Training(tmp_path).load()
        record.unlink()
        assert kinds.Training(tmp_path).load() == (1, "")


def test_a_state_of_a_process_from_before_late_trackers_started_unmixed():
    """It lacks the field ``begun``, and goes on as if the first step had been made; without other fields it is refused."""
    with kinds.group():
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 2)
        optimizer = perron.Decentralized(model, perron.PushPull(order="atc"), graph="ring", lr=0.05)
        model(torch.randn(8, 3)).square().mean().backward()
        optimizer.step()
        saved = optimizer.state_dict()
        assert saved["perron"]["state"].pop("begun").item() == 1
        optimizer.load_state_dict(saved)
        assert optimizer.algorithm_state.begun.item() == 1
        del saved["perron"]["state"]["y"]
        with pytest.raises(PerronError, match="The saved state has the fields x, grad"):
            optimizer.load_state_dict(saved)

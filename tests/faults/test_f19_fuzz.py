"""Whatever is in a file or on a command line: an answer, or one line that says what is wrong; no hang, no stray file."""

import tomllib
import warnings
from collections import Counter

import pytest
import torch
import torch.distributed as dist
from commanding import confined, furnished, ran, restored, strays
from fuzzing import (
    STUDIES,
    command_lines,
    damaged,
    damaged_states,
    examples,
    files_in,
    in_time,
    one_line,
    study_files,
    toml,
    typos,
)
from hypothesis import example, given
from hypothesis import strategies as st

from perron import Mixing, PushPull, read_graph, read_matrix, read_mixing, write_graph, write_mixing
from perron._storage import tensorfile as saved
from perron.distributed import checkpoint
from perron.distributed.optimizer import Decentralized
from perron.errors import FileError, PerronError
from perron.networks import topologies
from perron.networks.files import SUFFIXES
from perron.simulation.history import MOST, recorded
from perron.studies.spec import Study, load

# ---- study files


def test_f19_study_files(row, trials, tmp_path):
    seen = Counter()
    huge = toml({"topologies": "ring", "nodes": [2, 4], "steps": 2**31, "every": 50})

    @examples(trials(60, 2000))
    @given(study_files())
    @example(("steps without end", huge.encode()))
    def one(made):
        path = tmp_path / "mine.toml"
        path.write_bytes(made[1])
        with in_time():
            try:
                study = load(path)
                assert study.name
                assert "/" not in study.name
                seen["valid"] += 1
            except PerronError as error:
                one_line(str(error))
                assert path.name in str(error)
                seen["refused"] += 1

    one()
    told = f"study files: {seen['refused']} refused on one line, {seen['valid']} valid"
    row.measured(told, trials=seen["refused"] + seen["valid"])


def test_f19_a_key_with_a_slip_is_named_with_the_nearest(row, trials, tmp_path):
    """A key of a study, or of its problem, that is misspelt: refused by name, with the right one."""
    path = tmp_path / "mine.toml"
    slips = Counter()

    @examples(trials(60, 2000))
    @given(st.data())
    def one(data):
        content = tomllib.loads(data.draw(st.sampled_from(STUDIES)).read_text(encoding="utf-8"))
        table = data.draw(
            st.sampled_from([content, content["problem"]] if len(content.get("problem", {})) > 1 else [content])
        )
        key = data.draw(st.sampled_from(sorted(set(table) - {"problem", "kind"})))
        wrong = data.draw(typos(key))
        if wrong in table or wrong in Study.model_fields or (table is not content and wrong.replace("-", "_") == key):
            return
        table[wrong] = table.pop(key)
        path.write_text(toml(content), encoding="utf-8")
        with pytest.raises(PerronError) as caught:
            load(path)
        said = str(caught.value)
        one_line(said)
        assert f"{wrong!r}" in said, said
        slips["named"] += 1
        slips["nearest"] += f"{wrong!r}; did you mean {key!r}" in said

    one()
    assert slips["nearest"] >= 0.9 * slips["named"], slips  # of short keys, as lr, little is left
    told = f"misspelt keys: {slips['named']} of {slips['named']} named, {slips['nearest']} with the right one"
    row.measured(told, trials=slips["named"])


def test_f19_too_many_records_are_refused():
    with pytest.raises(PerronError, match=r"at most 10,000,000 are kept. Choose every = 215 or more"):
        recorded(2**31, 1)
    with pytest.raises(PerronError, match="below 2\\^53; got"):
        recorded(10**30, "log")
    assert len(recorded(100 * MOST, 100_000)) == 10_001


# ---- graph files


def test_f19_graph_files(row, trials, tmp_path):
    whole = {}
    for suffix in SUFFIXES:
        whole[f"graph{suffix}"] = write_graph(topologies.ring(3), tmp_path / f"graph{suffix}").read_bytes()
    whole["weights.edges"] = b"# nodes: 4\n0 1 2.5\n1 2 1\n2 3 4\n3 0 1\n"
    whole["names.csv"] = b",a,b\na,1,0.5\nb,0.25,1\n"
    whole["mixing.npz"] = write_mixing(Mixing.uniform(topologies.ring(3)), tmp_path / "mixing.npz").read_bytes()
    seen = Counter()

    @examples(trials(60, 2000))
    @given(st.sampled_from(sorted(whole)).flatmap(lambda name: st.tuples(st.just(name), damaged(whole[name]))))
    def one(made):
        name, content = made
        path = tmp_path / name
        path.write_bytes(content)
        for read in (read_graph, read_matrix, read_mixing) if path.suffix == ".npz" else (read_graph, read_matrix):
            with in_time():
                try:
                    read(path)
                    seen["read"] += 1
                except FileError as error:
                    one_line(str(error))
                    assert path.name in str(error)
                    seen["refused"] += 1
        seen["files"] += 1

    one()
    told = f"graph files: {seen['files']} damaged, {seen['refused']} readings refused, {seen['read']} still valid"
    row.measured(told, trials=seen["files"])


# ---- checkpoints


def test_f19_saved_runs(row, trials, tmp_path):
    tensors = {
        "x": torch.arange(12.0).view(3, 4),
        "n": torch.tensor([1, 2]),
        "half": torch.ones(2, dtype=torch.bfloat16),
    }
    facts = {"step": 3, "notes": {"a": [1, "b"]}}
    path = saved.write(tmp_path / "run.partial", tensors, facts)
    whole, seen = path.read_bytes(), Counter()

    @examples(trials(60, 2000))
    @given(damaged(whole))
    def one(content):
        path.write_bytes(content)
        with in_time():
            try:
                found, told = saved.read(path)
            except FileError as error:
                one_line(str(error))
                assert path.name in str(error)
                seen["refused"] += 1
            else:  # changed, and changed back
                assert content == whole
                assert told == facts
                assert all(torch.equal(found[name], tensors[name]) for name in tensors)

    one()
    row.measured(f"saved runs: {seen['refused']} damaged, all noticed", trials=seen["refused"])


@pytest.fixture
def alone(tmp_path):
    """A process group of one."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_f19_checkpoints_of_a_training(row, trials, tmp_path, alone):
    """The newest of two checkpoints is damaged: the older one is used, and that is said."""

    def made():
        torch.manual_seed(0)
        model = torch.nn.Linear(2, 1)
        return model, Decentralized(model, PushPull(), lr=0.1)

    def stepped(model, optimizer):
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        return checkpoint.save(tmp_path / "saved", optimizer)

    model, optimizer = made()
    older = stepped(model, optimizer)
    newer = stepped(model, optimizer)
    files = {path: path.read_bytes() for path in sorted(newer.iterdir()) if path.suffix != ".lock"}
    assert older != newer
    fresh, seen = made()[1], Counter()

    @examples(trials(60, 2000))
    @given(st.sampled_from(sorted(files)).flatmap(lambda path: st.tuples(st.just(path), damaged(files[path]))))
    def one(made):
        path, content = made
        path.write_bytes(content)
        try:
            with in_time(), warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                found = checkpoint.load(tmp_path / "saved", fresh)
        finally:
            path.write_bytes(files[path])
        if found.step == 2:  # nothing was changed
            assert content == files[path]
            seen["whole"] += 1
        else:
            assert found.step == 1
            assert any("2" in str(one.message) and "damaged" in str(one.message) for one in said), said
            seen["fell back"] += 1

    one()
    told = f"checkpoints: {seen['fell back']} damaged, all noticed, the older one used; {seen['whole']} unharmed"
    row.measured(told, trials=seen["fell back"])


# ---- what a study or a training leaves, and command lines


@pytest.fixture
def place(tmp_path, tmp_path_factory, monkeypatch):
    """A directory to work in, with files of all kinds."""
    confined(monkeypatch)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PERRON_DATA", str(tmp_path / "home"))
    monkeypatch.setenv("MPLCONFIGDIR", str(tmp_path_factory.getbasetemp() / "matplotlib"))
    inside = furnished(tmp_path)
    monkeypatch.chdir(inside)
    return inside


def test_f19_records_and_results(row, trials, place):
    before, seen = files_in(place.parent), Counter()
    whole = {path: path.read_bytes() for path in files_in(place)}

    @examples(trials(30, 2000))
    @given(damaged_states(place))
    def one(made):
        words, path, content = made
        path.write_bytes(content)
        try:
            code, out, err = ran(words)
        finally:
            restored(place, whole)
        assert code in (0, 1, 3), (code, err)
        assert "Traceback" not in out + err
        if code == 1:
            one_line(err.strip())
        assert not strays(place.parent, before, words)
        seen[code] += 1

    one()
    told = (
        f"records and results: {seen.total()} damaged, {seen[1] + seen[3]} refused, {seen[0]} shown as far as they go"
    )
    row.measured(told, trials=seen.total())


def test_f19_command_lines(row, trials, place):
    before, seen = files_in(place.parent), Counter()

    @examples(trials(30, 2000))
    @given(command_lines())
    def one(words):
        code, out, err = ran(words)
        assert code in (0, 1, 2, 3), (code, err)
        assert "--debug" in words or "Traceback" not in out + err, err
        assert code != 0 or "perron:" not in err
        assert not strays(place.parent, before, words)
        seen[code] += 1

    one()
    codes = ", ".join(f"{many} with {code}" for code, many in sorted(seen.items()))
    row.measured(f"command lines: {codes}; none with 70, no stray file", trials=seen.total())

"""Files: what is written comes back, and what is wrong is refused with file, line and token."""

import os
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from network_files import BAD, GRAPHML
from strategies import digraphs, mixings

from perron import (
    FileError,
    Graph,
    Mixing,
    read_graph,
    read_matrix,
    read_mixing,
    write_graph,
    write_matrix,
    write_mixing,
)
from perron._storage.atomic import write_bytes
from perron.networks import topologies  # fmt: skip
from perron.networks.files import SUFFIXES

LABELS = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=6)


@pytest.mark.slow
@given(digraphs(self_loops=None), st.sampled_from(SUFFIXES), st.data())
@settings(max_examples=1000)
def test_graphs_come_back_equal(tmp_path_factory, graph, suffix, data):
    if data.draw(st.booleans()):
        labels = data.draw(st.lists(LABELS, min_size=graph.nodes, max_size=graph.nodes, unique=True))
        loops = [(i, i) for i in graph.self_loops.tolist()]
        graph = Graph(graph.nodes, graph.edges.tolist() + loops, self_loops=False, labels=labels)
        if labels == [str(i) for i in range(graph.nodes)]:
            return  # numbers in order are not names
    path = tmp_path_factory.getbasetemp() / f"graph{suffix}"
    assert read_graph(write_graph(graph, path)) == graph


@given(mixings(), st.sampled_from(SUFFIXES))
@settings(max_examples=200)
def test_matrices_come_back_to_the_last_bit(tmp_path_factory, mixing, suffix):
    path = tmp_path_factory.getbasetemp() / f"matrix{suffix}"
    assert np.array_equal(read_matrix(write_matrix(mixing.pull, path)).toarray(), mixing.pull)


@pytest.mark.parametrize(
    "mixing",
    [
        Mixing.random_integer(topologies.grid(9), topologies.ring(9), seed=1),
        Mixing.uniform(topologies.one_peer_exponential(8)),
        Mixing.spanning_trees(topologies.tree(7)),
        Mixing.random_integer(topologies.exponential(600)),
        Mixing(pull=[[0.5, 0.5], [0.5, 0.5]]),
    ],
)
def test_mixings_come_back(tmp_path, mixing):
    again = read_mixing(write_mixing(mixing, tmp_path / "mixing.npz"))
    assert (again.nodes, again.name, again.period) == (mixing.nodes, mixing.name, mixing.period)
    for kept, read in zip(mixing.sequences, again.sequences, strict=True):
        assert len(kept) == len(read)
        for one, other in zip(kept, read, strict=True):
            assert abs(one - other).max() == 0


def test_node_order_and_undirected_graphml(tmp_path):
    path = tmp_path / "net.graphml"
    path.write_text(
        """<graphml xmlns="http://graphml.graphdrawing.org/xmlns">
        <key id="w" for="edge" attr.name="weight" attr.type="double"/>
        <graph edgedefault="undirected"><node id="rome"/><node id="bonn"/><node id="oslo"/>
        <edge source="bonn" target="rome"><data key="w">2.5</data></edge><edge source="oslo" target="bonn"/>
        </graph></graphml>"""
    )
    graph = read_graph(path)
    assert graph.labels == ("rome", "bonn", "oslo")
    assert graph.is_symmetric
    assert read_matrix(path).toarray().tolist() == [[0, 2.5, 0], [2.5, 0, 1], [0, 1, 0]]


def test_graphml_default_weight(tmp_path):
    path = tmp_path / "net.graphml"
    path.write_text(
        """<graphml xmlns="http://graphml.graphdrawing.org/xmlns">
        <key id="w" for="edge" attr.name="weight" attr.type="double"><default>3</default></key>
        <graph edgedefault="directed"><node id="0"/><node id="1"/>
        <edge source="0" target="1"/><edge source="1" target="0"><data key="w">2</data></edge>
        </graph></graphml>"""
    )
    assert read_matrix(path).toarray().tolist() == [[0, 2], [3, 0]]


def test_an_edge_list_from_elsewhere(tmp_path):
    path = tmp_path / "net.txt"
    path.write_text("# a comment\n0, 1, 2.5\n1\t2\t1   # another\n\n2 0 3\n")
    assert read_matrix(path).toarray().tolist() == [[0, 0, 3], [2.5, 0, 0], [0, 1, 0]]


def test_npz_files_from_elsewhere(tmp_path):
    matrix = np.array([[0.5, 0.5], [0.25, 0.75]])
    scipy.sparse.save_npz(tmp_path / "csc.npz", scipy.sparse.csc_array(matrix))
    np.savez(tmp_path / "dense.npz", matrix)
    for name in ("csc.npz", "dense.npz"):
        assert np.array_equal(read_matrix(tmp_path / name).toarray(), matrix)


@pytest.mark.parametrize("name", BAD)
def test_malformed_files_are_refused(tmp_path, name):
    text, message = BAD[name]
    (tmp_path / name).write_text(text)
    with pytest.raises(FileError, match=message):
        read_graph(tmp_path / name)


@pytest.mark.parametrize("name", ["utf16.csv", "utf16.edges", "utf16.graphml"])
def test_utf16_is_refused(tmp_path, name):
    (tmp_path / name).write_bytes("0 1\n1 0\n".encode("utf-16"))
    with pytest.raises(FileError, match="UTF-8"):
        read_graph(tmp_path / name)
    (tmp_path / name).write_bytes("0 1\n1 0\n".encode("utf-16-le"))
    with pytest.raises(FileError, match="zero byte"):
        read_graph(tmp_path / name)


def npz(tmp_path: Path, **arrays: object) -> Path:
    np.savez(tmp_path / "x.npz", **arrays)
    return tmp_path / "x.npz"


def test_malformed_npz_files_are_refused(tmp_path):
    good = {
        "data": np.ones(2),
        "indices": np.array([1, 0]),
        "indptr": np.array([0, 1, 2]),
        "shape": np.array([2, 2]),
    }
    assert read_graph(npz(tmp_path, **good)).edges.tolist() == [[1, 0], [0, 1]]
    for changed, message in (
        ({"indices": np.array([5, 0])}, "is damaged"),
        ({"indptr": np.array([0, 1])}, "is damaged"),
        ({"shape": np.array([2, 3])}, r"shape \(2, 3\)"),
        ({"shape": np.array([10**9, 10**9])}, "would need about"),
        ({"data": np.array([1, np.nan])}, "finite"),
        ({"data": np.array(["a", "b"])}, "where numbers are needed"),
        ({"format": np.array("bsr")}, "a square csr or csc matrix"),
    ):
        with pytest.raises(FileError, match=message):
            read_graph(npz(tmp_path, **(good | changed)))
    with pytest.raises(FileError, match="must hold one matrix"):
        read_graph(npz(tmp_path, a=np.eye(2), b=np.eye(2)))
    with pytest.raises(FileError, match="holds no mixing"):
        read_mixing(npz(tmp_path, **good))
    mixing = write_mixing(Mixing.uniform(topologies.ring(3)), tmp_path / "mixing.npz")
    with pytest.raises(FileError, match="Read it with read_mixing"):
        read_graph(mixing)
    with pytest.raises(FileError, match=r"written to an \.npz file"):
        write_mixing(read_mixing(mixing), tmp_path / "mixing.csv")


def test_a_pickle_in_an_npz_is_not_opened(tmp_path):
    canary = tmp_path / "canary"

    class Payload:
        def __reduce__(self):
            return os.mkdir, (str(canary),)

    np.savez(tmp_path / "evil.npz", np.array([[Payload()]], dtype=object))
    with pytest.raises(FileError, match=r"not an .npz file that can be read"):
        read_graph(tmp_path / "evil.npz")
    assert not canary.exists()


def test_a_zip_bomb_is_not_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr("perron._storage.npz.MAX_UNPACKED", 2**20)
    np.savez_compressed(tmp_path / "bomb.npz", np.zeros((1000, 1000)))
    assert (tmp_path / "bomb.npz").stat().st_size < 2**14
    with pytest.raises(FileError, match=r"would unpack to 0.0075 GiB"):
        read_graph(tmp_path / "bomb.npz")


def test_a_damaged_mixing_is_refused(tmp_path):
    path = write_mixing(Mixing.uniform(topologies.ring(3)), tmp_path / "mixing.npz")
    with np.load(path) as arrays:
        content = dict(arrays)
    np.savez(path, **(content | {"pull0_data": content["pull0_data"] * 0.9}))
    with pytest.raises(FileError, match=r"row 0 sums to 0.9"):
        read_mixing(path)
    np.savez(path, **{key: value for key, value in content.items() if key != "push0_data"})
    with pytest.raises(FileError, match="is damaged"):
        read_mixing(path)


def test_missing_files_and_directories_are_named(tmp_path):
    with pytest.raises(FileError, match=r"Cannot read .*nowhere.csv: No such file"):
        read_graph(tmp_path / "nowhere.csv")
    with pytest.raises(FileError, match=r"Cannot write .*No such file or directory"):
        write_graph(topologies.ring(3), tmp_path / "no" / "graph.csv")


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    path = write_bytes(tmp_path / "file", b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FileError, match="file: No space left on device"):
        write_bytes(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]  # noqa: PTH208


@pytest.mark.parametrize(
    ("content", "more", "message"),
    [
        ('<node id="a"/><edge source="a" target="tpyo"/>', "", "edge a -> tpyo has an end that is no node"),
        ('<node id="a"/><edge source="a"/>', "", "edge a -> None has an end that is no node"),
        ('<node id="a"/><node id="a"/>', "", "x.graphml:1: node 'a' stands in line 1 already"),
        ('<node id="a"/>', '<graph edgedefault="directed"/>', "holds 2 graphs instead of one"),
    ],
)
def test_what_networkx_would_mend_is_refused(tmp_path, content, more, message):
    path = tmp_path / "x.graphml"
    path.write_text(GRAPHML.format("directed", content, more))
    with pytest.raises(FileError, match=message):
        read_graph(path)


def test_undirected_self_loops_count_once(tmp_path):
    path = tmp_path / "x.graphml"
    path.write_text(
        GRAPHML.format(
            "undirected", '<node id="a"/><node id="b"/><edge source="a" target="a"/><edge source="b" target="a"/>', ""
        )
    )
    assert read_matrix(path).toarray().tolist() == [[1, 1], [1, 0]]


def test_files_that_cannot_be_read_or_written(tmp_path):
    (tmp_path / "d.csv").mkdir()
    with pytest.raises(FileError, match="Is a directory"):
        read_graph(tmp_path / "d.csv")
    with pytest.raises(FileError, match="File name too long"):
        write_graph(topologies.ring(3), tmp_path / ("x" * 300 + ".csv"))
    (tmp_path / "plain").write_text("")
    with pytest.raises(FileError, match="Not a directory"):
        write_graph(topologies.ring(3), tmp_path / "plain" / "x.csv")
    with pytest.raises(FileError, match="square matrix of finite weights"):
        write_matrix([[np.nan]], tmp_path / "x.csv")
    assert read_graph(write_graph(topologies.ring(3), tmp_path / "UPPER.CSV")) == topologies.ring(3)

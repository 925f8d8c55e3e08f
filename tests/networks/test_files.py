"""Files: what is written comes back, and what is wrong is refused with file, line and token."""

import os
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
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


BAD = {
    "letters.edges": ("0 1\n1 x\n", "letters.edges:2: 'x' is not a node"),
    "column.edges": ("0 1\n1\n", "column.edges:2: a line is 'source target'"),
    "mixed.edges": ("0 1 2.0\n1 0\n", "mixed.edges:2: a line is 'source target'"),
    "nan.edges": ("0 1 nan\n", "nan.edges:1: a weight is finite and not negative; got 'nan'"),
    "minus.edges": ("0 1 -3\n", "minus.edges:1: a weight is finite and not negative; got '-3'"),
    "word.edges": ("0 1 heavy\n", "word.edges:1: 'heavy' is not a number"),
    "twice.edges": ("0 1\n1 0\n0 1\n", "twice.edges:3: edge 0 1 stands in line 1 already"),
    "unknown.edges": ("# nodes: 3\n0 3\n", "unknown.edges:2: unknown node 3; the file says there are 3"),
    "negative.edges": ("0 -1\n", "negative.edges:1: '-1' is not a node"),
    "huge.edges": ("0 999999999999\n", "huge.edges: .* nodes would need about"),
    "empty.edges": ("", "empty.edges is empty"),
    "comments.edges": ("# nothing\n", "comments.edges holds no edges"),
    "labels.edges": ("# labels: paris\n0 1\n", "labels.edges:1: labels are a JSON list"),
    "few.edges": ('# labels: ["a"]\n0 1\n', "few.edges: 2 nodes need 2 different labels"),
    "ragged.csv": ("1,0\n1\n", "ragged.csv:2: a matrix with 2 rows needs 2 columns; this row has 1"),
    "wide.csv": ("1,0,1\n0,1,1\n", "wide.csv:1: a matrix with 2 rows needs 2 columns; this row has 3"),
    "text.csv": ("1,0\nx,1\n", "text.csv:2: 'x' is not a number"),
    "nan.csv": ("1,nan\n0,1\n", "nan.csv:1: a weight is finite"),
    "names.csv": (",a,b\na,1,0\nc,0,1\n", "names.csv:3: row 'c' stands where the name 'b' of column 2"),
    "norows.csv": (",a,b\n", "norows.csv holds names but no rows"),
    "quote.csv": ('1,"0\n0,1', "not a CSV table"),
    "empty.csv": (" \n", "empty.csv is empty"),
    "cut.graphml": ("<graphml><graph>", "cut.graphml:1: not well-formed XML"),
    "other.graphml": ("<html></html>", "not GraphML that can be read"),
    "bomb.graphml": ('<!DOCTYPE x [<!ENTITY a "aa">]><graphml>&a;</graphml>', "declares a document type or entities"),
    "twice.graphml": (
        '<graphml xmlns="http://graphml.graphdrawing.org/xmlns"><graph edgedefault="directed"><node id="a"/>'
        '<node id="b"/><edge source="a" target="b"/><edge source="a" target="b"/></graph></graphml>',
        "twice.graphml:1: edge a -> b stands in line 1 already",
    ),
    "nan.graphml": (
        '<graphml xmlns="http://graphml.graphdrawing.org/xmlns"><key id="w" for="edge" attr.name="weight" '
        'attr.type="double"/><graph edgedefault="directed"><node id="a"/><edge source="a" target="a"><data key="w">nan'
        "</data></edge></graph></graphml>",
        "edge a -> a: a weight is finite",
    ),
    "nothing.graphml": (
        '<graphml xmlns="http://graphml.graphdrawing.org/xmlns"><graph edgedefault="directed"/></graphml>',
        "holds no nodes",
    ),
    "text.npz": ("not a zip", "not an .npz file that can be read"),
    "what.yaml": ("a: b", "has the suffix '.yaml'; a network is in one of .graphml, "),
}  # fmt: skip


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


GRAPHML = '<graphml xmlns="http://graphml.graphdrawing.org/xmlns"><graph edgedefault="{}">{}</graph>{}</graphml>'


@pytest.mark.parametrize(
    ("content", "more", "message"),
    [
        ('<node id="a"/><edge source="a" target="tpyo"/>', "", "edge a -> tpyo has an end that is no node"),
        ('<node id="a"/><edge source="a"/>', "", "edge a -> None has an end that is no node"),
        ('<node id="a"/><node id="a"/>', "", "x.graphml:1: node 'a' stands in line 1 already"),
        ('<node id="a"/>', '<graph edgedefault="directed"/>', "holds 2 graphs instead of one"),
        (
            '<node id="a"/><node id="b"/><edge id="0" source="a" target="b"/><edge source="a" target="b"/>',
            "",
            "edge a -> b stands",
        ),
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
    wide = tmp_path / "list.csv"
    wide.write_text("0,1\n" * 50_000)
    with pytest.raises(
        FileError, match=r"needs 50000 columns; this row has 2. A list of edges goes into an .edges file"
    ):
        read_graph(wide)

"""Files of links: units, exact round trips, and refusals with the line."""

import gzip

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perron.clock.files import read_machines, write_machines
from perron.clock.machines import Machines
from perron.errors import FileError, FormatError, PerronError

EXAMPLE = """\
# measured in May
from,to,latency_ms,rate_mbit
Virginia,Oregon,30.7,1000
Oregon,Virginia,31,800
# a comment
node,up_mbit,down_mbit,compute_s
Virginia,10000,8000,0.0254
Oregon,100,50,0.1
"""


def write(path, text):
    path.write_text(text)
    return path


def parsed(tmp_path, text, name="links.csv"):
    return read_machines(write(tmp_path / name, text))


def assert_equal(one, other):
    """The same nodes, links and numbers, whether as numbers or as arrays."""
    assert one.nodes == other.nodes
    assert [one.label(k) for k in range(one.nodes)] == [other.label(k) for k in range(other.nodes)]
    assert one.graph == other.graph
    ends = one.graph.edges.T
    np.testing.assert_array_equal(one.latencies(*ends), other.latencies(*ends))
    np.testing.assert_array_equal(one.rates(*ends), other.rates(*ends))
    for what in ("up", "down"):
        np.testing.assert_array_equal(*(np.broadcast_to(getattr(m, what), m.nodes) for m in (one, other)))
    assert (one.compute is None) == (other.compute is None)
    if one.compute is not None:
        np.testing.assert_array_equal(*(np.broadcast_to(m.compute, m.nodes) for m in (one, other)))


def test_the_format_of_the_page(tmp_path):
    machines = parsed(tmp_path, EXAMPLE)
    assert machines.labels == ("Virginia", "Oregon")
    assert machines.latency.tolist() == [[0, 0.031], [0.0307, 0]]  # [i, j] is from j to i
    assert machines.rate.tolist() == [[np.inf, 1e8], [1.25e8, np.inf]]
    assert machines.up.tolist() == [1.25e9, 1.25e7]
    assert machines.down.tolist() == [1e9, 6.25e6]
    assert machines.compute.tolist() == [0.0254, 0.1]
    assert machines.name == "links.csv"


@pytest.mark.parametrize(
    ("columns", "row", "latency", "rate"),
    [
        ("latency_s,rate_bytes_s", "0.5,1000", 0.5, 1000),
        ("latency_us,rate_kbit", "250,8", 0.00025, 1000),
        ("rtt_ms,rate_gbit", "61.4,1", 0.0307, 1.25e8),
        ("rtt_s,rate_mbit", "1,0.008", 0.5, 1000),
        ("latency_ms", "7", 0.007, np.inf),
        ("rate_mbit", "1", 0, 125_000),
        ("latency_ms,rate_mbit", ",", 0, np.inf),
        ("distance_km,rate_mbit", "1000,1", 0.0125, 125_000),
        ("latency_ms,rate_mbit", "1e1,+.5", 0.01, 62_500),
    ],
)
def test_units(tmp_path, columns, row, latency, rate):
    machines = parsed(tmp_path, f"from,to,{columns}\na,b,{row}\n")
    assert (machines.latency[1, 0], machines.rate[1, 0]) == (latency, rate)
    assert machines.rate[0, 1] == 0  # no link


def test_columns_have_any_order_and_a_missing_pair_has_no_link(tmp_path):
    machines = parsed(tmp_path, "rate_mbit;to;latency_ms;from\n8;b;1;a\n\ncompute_ms ; node\n5;c\n6;a\n7 ;b\n")
    assert machines.labels == ("c", "a", "b")  # a list of all nodes decides the order
    assert machines.compute.tolist() == [0.005, 0.006, 0.007]
    assert machines.graph.edges.tolist() == [[1, 2]]


def test_both_ways(tmp_path):
    machines = parsed(tmp_path, "# both_ways=true; a table\nfrom,to,latency_ms\na,b,1\nc,b,2\nb,a,1\n")
    assert machines.latency[1, 0] == machines.latency[0, 1] == 0.001
    assert sorted(map(tuple, machines.graph.edges.tolist())) == [(0, 1), (1, 0), (1, 2), (2, 1)]


@pytest.mark.parametrize(
    "comment", ["# no both_ways=true here", "# measured in May, both_ways=no longer valid", "# first\n# both_ways=true"]
)
def test_both_ways_in_other_places_is_prose(tmp_path, comment):
    machines = parsed(tmp_path, f"{comment}\nfrom,to,latency_ms\na,b,1\n")
    assert machines.graph.edges.tolist() == [[0, 1]]


def test_nodes_named_by_their_numbers_are_these(tmp_path):
    machines = parsed(tmp_path, "from,to,latency_ms\n2,0,1\n0,1,2\n")
    assert machines.labels is None
    assert machines.graph.edges.tolist() == [[2, 0], [0, 1]]


def test_gzipped(tmp_path):
    path = tmp_path / "links.csv.gz"
    path.write_bytes(gzip.compress(EXAMPLE.encode()))
    assert read_machines(path).nodes == 2


HEAD = "from,to,latency_ms,rate_mbit\n"
REFUSED = {
    "no header": ("a,b,1,2\n", ":1: the first row names the columns"),
    "unknown column": ("from,to,latency_ms,loss\na,b,1,0\n", ":1: column 'loss' is unknown"),
    "no unit": ("from,to,latency\na,b,1\n", ":1: column 'latency' needs a unit"),
    "wrong unit": ("from,to,rate_mb\na,b,1\n", ":1: column 'rate_mb' needs a unit"),
    "unit of a node": (f"{HEAD}a,b,1,1\nnode,up\na,5\n", ":3: column 'up' needs a unit"),
    "two latencies": ("from,to,latency_ms,rtt_ms\na,b,1,2\n", "latency_ms and rtt_ms both state the latency"),
    "nothing stated": ("from,to\na,b\n", ":1: links need a latency or a rate"),
    "column twice": ("from,to,to,rate_mbit\na,b,c,1\n", "column 'to' occurs twice"),
    "header twice": (f"{HEAD}a,b,1,1\n{HEAD}", ":3: a second header of the links"),
    "cells": (f"{HEAD}a,b,1\n", ":2: this row has 3 cells, but its header has 4"),
    "self-loop": (f"{HEAD}a,a,1,1\n", ":2: a link from 'a' to itself"),
    "negative": (f"{HEAD}a,b,-1,1\n", ":2, latency_ms: latency is finite and not negative; got '-1'"),
    "nan": (f"{HEAD}a,b,nan,1\n", ":2, latency_ms: latency is finite; got 'nan'"),
    "inf": (f"{HEAD}a,b,1,inf\n", "leave the cell empty"),
    "too large": (f"{HEAD}a,b,1,1e999\n", ":2, rate_mbit: rate is too large"),
    "too large as bytes": (f"{HEAD}a,b,1,1e305\n", ":2, rate_mbit: rate is finite"),
    "no number": (f"{HEAD}a,b,1_0,1\n", ":2, latency_ms: '1_0' is not a number"),
    "other digits": (f"{HEAD}a,b,\u0663,1\n", "is not a number"),
    "other numbers": (f"{HEAD}a,b,1,1\nb,a,1,1\na,b,2,1\n", ":4: the link a -> b has other numbers in line 2"),
    "both ways, other numbers": (f"# both_ways=true\n{HEAD}a,b,1,1\nb,a,2,1\n", ":4: the link b -> a has other"),
    "both ways?": (f"# both_ways=yes\n{HEAD}a,b,1,1\n", ":1: both_ways is true or false; got 'yes'"),
    "no name": (f"{HEAD}a,,1,1\n", ":2: the name of a node is printable text"),
    "node twice": (f"{HEAD}a,b,1,1\nnode,up_mbit\na,1\na,1\n", ":5: node 'a' stands in line 4 already"),
    "no uplink": (f"{HEAD}a,b,1,1\nnode,up_mbit\na,0\n", ":4: up of node 'a' is 0"),
    "some compute": (f"{HEAD}a,b,1,1\nnode,compute_s\na,1\n", "compute is stated for some nodes but not for b"),
    "no links": (f"{HEAD}", "has no links"),
    "quotes": (f'{HEAD}"a,b,1,1\n', "not a CSV table"),
    "empty": ("", "is empty"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_mistakes_are_refused_with_their_line(tmp_path, case):
    text, message = REFUSED[case]
    with pytest.raises(FileError) as error:
        parsed(tmp_path, text)
    assert message in str(error.value)
    assert str(error.value).startswith(str(tmp_path / "links.csv"))


# ---- round trips

numbers = st.floats(0, 1e12, allow_subnormal=True)
positive = st.floats(1e-300, 1e15) | st.just(np.inf)
names = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=6) | st.sampled_from(
    ["a, b", '"', "#1", "=1+1", "'=x", "node", "from", "-5", "'-5", "a;b", "São Paulo", "to", "+1", "1e5"]
)


@st.composite
def machines_of_all_kinds(draw):
    n = draw(st.integers(2, 5))
    matrix = st.lists(st.lists(numbers, min_size=n, max_size=n), min_size=n, max_size=n)
    rate = np.array(draw(st.lists(positive | st.just(0.0), min_size=n * n, max_size=n * n))).reshape(n, n)
    rate[1, 0] = draw(positive)
    each = st.lists(positive, min_size=n, max_size=n) | positive
    compute = st.none() | st.lists(numbers, min_size=n, max_size=n) | numbers
    labels = st.none() | st.lists(names, min_size=n, max_size=n, unique=True)
    return Machines(
        draw(matrix), rate, up=draw(each), down=draw(each), compute=draw(compute), labels=draw(labels), name="any"
    )


@given(machines=machines_of_all_kinds())
@pytest.mark.parametrize("suffix", [".csv", ".npz"])
def test_what_is_written_is_read(machines, suffix, tmp_path_factory):
    path = tmp_path_factory.mktemp("links") / f"links{suffix}"
    assert write_machines(machines, path) == path
    assert_equal(read_machines(path), machines)


def test_large_sparse_machines(tmp_path):
    from scipy.sparse import csr_array

    n = 2100
    ends = (np.arange(n) + 1) % n, np.arange(n)
    sparse = Machines(*(csr_array((np.linspace(1, 2, n), ends), shape=(n, n)) for _ in range(2)))
    for suffix in (".csv", ".npz"):
        found = read_machines(write_machines(sparse, tmp_path / f"links{suffix}"))
        assert_equal(found, sparse)
        assert not isinstance(found.latency, np.ndarray)


def test_functions_are_written_as_their_values(tmp_path):
    machines = Machines(lambda source, target: 0.001 * (1 + abs(source - target)), 1e6, up=[1e6, 2e6, 3e6])
    found = read_machines(write_machines(machines, tmp_path / "links.csv"))
    assert_equal(found, machines)
    assert found.latency[2, 0] == 0.003


@pytest.mark.parametrize(
    ("machines", "name", "message"),
    [
        (Machines(0.1, 1e6), "links.csv", "number of nodes"),
        (Machines([[0, 1], [1, 0]]), "links.txt", "suffix '.txt'"),
        (Machines([[0, 1], [1, 0]]), "none/links.csv", "no directory"),
        (Machines([[0, 1], [1, 0]], labels=["a", "a"]), "links.csv", "different labels"),
        (Machines([[0, 1], [1, 0]], labels=["a", "b\nc"]), "links.csv", "printable"),
    ],
)
def test_what_cannot_be_written(tmp_path, machines, name, message):
    with pytest.raises(PerronError, match=message):
        machines.write(tmp_path / name)
    assert not any(tmp_path.iterdir())


# ---- .npz


def packed(tmp_path, **arrays):
    np.savez(tmp_path / "links.npz", **arrays)
    return read_machines(tmp_path / "links.npz")


def test_arrays_of_other_programs(tmp_path):
    machines = packed(tmp_path, latency=np.array([[0, 1], [2, 0]]), rate=np.float32(8), labels=np.array(["a", "b"]))
    assert machines.latency.tolist() == [[0, 1], [2, 0]]
    assert machines.rate == 8
    assert machines.up == np.inf


LINKS = {"sources": np.array([0]), "targets": np.array([1]), "nodes": np.array(2)}


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"delay": np.zeros((2, 2))}, "holds delay"),
        ({"latency": np.zeros((2, 2)), "format": np.array(2)}, "format 2"),
        ({"latency": np.array([["a"]])}, "numbers are needed"),
        ({"latency": np.array(1.0)}, "no number of nodes"),
        ({"latency": np.array([[0, -1.0], [0, 0]])}, "not negative; got -1"),
        ({"latency": np.zeros((2, 2)), "up": np.zeros(2)}, "up is a positive number"),
        ({"latency": np.zeros((2, 2)), "labels": np.array([1, 2])}, "labels are texts"),
        ({"latency": np.zeros((2, 2)), "labels": np.array(["a", "a"])}, "different labels"),
        ({"latency": np.zeros((2, 2)), "rate": np.zeros((3, 3))}, "one number of nodes"),
        (LINKS | {"latency": np.zeros(1)}, "rate is missing"),
        (LINKS | {"latency": np.zeros(1), "rate": np.ones(2)}, "one length"),
        (LINKS | {"latency": np.zeros(1), "rate": np.ones(1), "targets": np.array([2])}, "outside of the nodes"),
        (LINKS | {"latency": np.zeros(1), "rate": np.ones(1), "targets": np.array([0])}, "self-loop"),
        (
            {"sources": np.array([0, 0]), "targets": np.array([1, 1]), "nodes": np.array(2), "latency": np.zeros(2),
             "rate": np.ones(2)},
            "one link twice",
        ),
    ],
)  # fmt: skip
def test_other_arrays_are_refused(tmp_path, arrays, message):
    with pytest.raises(FileError, match=message):
        packed(tmp_path, **arrays)


def test_a_later_format_and_pickles_are_refused(tmp_path):
    with pytest.raises(FormatError):
        packed(tmp_path, latency=np.zeros((2, 2)), format=np.array(9))
    np.savez(tmp_path / "links.npz", latency=np.array([[None]]))
    with pytest.raises(FileError, match=r"links\.npz"):
        read_machines(tmp_path / "links.npz")


# ---- GML and GraphML


def test_gml_with_distances(tmp_path):
    text = """graph [ node [ id 4 label "A" ] node [ id 7 label "B" ] node [ id 9 label "C" ]
      edge [ source 4 target 7 distance 1000 capacity 5 ]
      edge [ source 7 target 9 latency_ms 2.5 rate_mbit 80 distance 99 ] ]"""
    machines = parsed(tmp_path, text, "some.gml")
    assert machines.labels == ("A", "B", "C")
    assert machines.latency[1, 0] == machines.latency[0, 1] == 0.0125
    assert machines.latency[2, 1] == 0.0025  # stated
    assert machines.rate[1, 2] == 1e7
    assert machines.rate[0, 2] == 0
    assert "0.0085 ms/km + 4 ms" in machines.name


GRAPHML = """<?xml version="1.0"?>
<graphml><key id="k" for="edge" attr.name="latency"/><key id="r" for="edge" attr.name="rate_mbit"/>
<key id="u" for="node" attr.name="up_mbit"/>
<graph edgedefault="directed"><node id="a"><data key="u">8</data></node><node id="b"/>
<edge source="a" target="b"><data key="k">0.25</data><data key="r">8</data></edge>
</graph></graphml>"""


def test_graphml_in_seconds(tmp_path):
    machines = parsed(tmp_path, GRAPHML, "some.graphml")
    assert machines.latency[1, 0] == 0.25
    assert machines.rate.tolist() == [[np.inf, 0], [1e6, np.inf]]
    assert machines.up.tolist() == [1e6, np.inf]
    undirected = parsed(tmp_path, GRAPHML.replace('"directed"', '"undirected"'), "some.graphml")
    assert undirected.latency[0, 1] == 0.25


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GRAPHML.replace("<graphml>", '<!DOCTYPE x [<!ENTITY a "b">]><graphml>'), "document type or entities"),
        (GRAPHML.replace(">0.25<", ">-1<"), "not negative"),
        (GRAPHML.replace('target="b"', 'target="c"'), "no node of the file"),
        (
            "graph [ node [ id 0 ] node [ id 1 ]\n edge [ source 0 target 1 weight 5 ] ]",
            ":2: edge 0 -> 1 has no latency",
        ),
        ("graph [ node [ id 0 ] node [ id 1 ] edge [ source 0 target 0 latency 5 ] ]", "to itself"),
    ],
)
def test_graphs_without_links_of_a_clock(tmp_path, text, message):
    with pytest.raises(FileError, match=message):
        parsed(tmp_path, text, "some.file")


@given(data=st.data())
@pytest.mark.parametrize(
    "seed", [EXAMPLE, GRAPHML, "graph [ node [ id 0 ] node [ id 1 ] edge [ source 0 target 1 latency 1 ] ]"]
)
def test_damaged_files_are_refused_in_a_sentence(seed, data, tmp_path_factory):
    content = bytearray(seed.encode())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(content)))
        content[place : place + data.draw(st.integers(0, 3))] = data.draw(
            st.binary(max_size=3)
            | st.sampled_from([b",", b"\n", b'"', b"#", b"-", b"1e999", b"node", b"<", b"]", b"&#0;"])
        )
    path = tmp_path_factory.mktemp("damaged") / "links.csv"
    path.write_bytes(bytes(content))
    try:
        read_machines(path)
    except FileError as error:
        assert str(path) in str(error)


def test_a_name_without_a_file_lists_the_presets(tmp_path):
    with pytest.raises(FileError, match=r"no file .*gaja, nor a preset of that name; presets are aws-10, gaia"):
        Machines.read("gaja")
    with pytest.raises(FileError, match=r"is a directory|Is a directory"):
        Machines.read(tmp_path)

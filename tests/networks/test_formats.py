"""Network files in the form that archives and programs have them: each is read, or refused with the remedy."""

import gzip
import json
import os
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import scipy.io
import scipy.sparse

from perron import Graph, Mixing, read_graph, read_matrix
from perron.errors import FileError, GraphError
from perron.networks import load_network

SNAP = """# Directed graph (each unordered pair of nodes is saved once): p2p-Gnutella08.txt
# Gnutella P2P network from August 8 2002
# Nodes: 4 Edges: 5
# FromNodeId\tToNodeId
0\t10
10\t20
20\t0
0\t30
30\t0
"""
KONECT = """% asym weighted
% 4 3 3
1 2 4.0 1072310400
2 3 1 1072310401
3 1 2 1072310402
1 2 1 1072310409
"""
KONECT_SYMMETRIC = "% sym unweighted\n% 2 3 3\n1 2\n2 3\n"
ZOO_GML = """Creator "Topology Zoo Toolset"
Version "1.0"
graph [
  DateObtained "21/10/10"
  GeoLocation "Europe"
  Network "Example"
  node [
    id 0
    label "Paris"
    Longitude 2.3
    graphics [ x 1.0 y 2.0 ]
  ]
  node [ id 1 label "K&#246;ln" ]
  node [ id 2 label "None" hyperedge 1 ]
  node [ id 7 label "None" hyperedge 1 ]
  edge [ source 0 target 1 LinkSpeed "10" ]
  edge [ source 0 target 1 LinkSpeed "2.5" ]
  edge [ source 1 target 2 ]
  edge [ source 2 target 7 ]
]
"""
ZOO_GRAPHML = """<?xml version="1.0" encoding="utf-8"?><graphml xmlns="http://graphml.graphdrawing.org/xmlns"
xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance">
  <key attr.name="LinkLabel" attr.type="string" for="edge" id="d38" />
  <key attr.name="label" attr.type="string" for="node" id="d33" />
  <graph edgedefault="undirected">
    <data key="d0">2.3</data>
    <node id="0"><data key="d33">Seattle</data></node>
    <node id="1"><data key="d33">Denver</data></node>
    <node id="2"><data key="d33">Atlanta</data></node>
    <edge source="0" target="1"><data key="d38">OC-48</data></edge>
    <edge id="e1" source="0" target="1"/>
    <edge source="1" target="2"/>
  </graph></graphml>"""
YED = """<graphml xmlns="http://graphml.graphdrawing.org/xmlns" xmlns:y="http://www.yworks.com/xml/graphml">
  <key for="node" id="d6" yfiles.type="nodegraphics"/><graph edgedefault="directed">
  <node id="n0"><data key="d6"><y:ShapeNode><y:NodeLabel>rome</y:NodeLabel></y:ShapeNode></data></node>
  <node id="n1"><data key="d6"><y:ShapeNode><y:NodeLabel>oslo</y:NodeLabel></y:ShapeNode></data></node>
  <edge id="e0" source="n0" target="n1"/><edge id="e1" source="n1" target="n0"/></graph></graphml>"""
GEPHI_GEXF = """<?xml version='1.0' encoding='UTF-8'?><gexf xmlns="http://gexf.net/1.3" version="1.3">
  <graph defaultedgetype="directed"><nodes><node id="a" label="Anna"/><node id="b" label="Ben"/></nodes>
  <edges><edge id="0" source="a" target="b" weight="2.5"/><edge id="1" source="b" target="a" type="undirected"/></edges>
  </graph></gexf>"""
GEPHI_CSV = """Source;Target;Type;Id;Label;Weight
paris;rome;Directed;0;;2.0
rome;oslo;Undirected;1;"a; b";1
oslo;paris;Directed;2;;1
"""
PAJEK = """% made by hand
*Network example
*Vertices 4
1 "Aix la Chapelle" 0.1 0.2 0.5
2 "b" ellipse
3 c
*Arcs
1 2 3
2 3
*Edges
3 4 2.5
"""
PAJEK_LISTS = "*vertices 3\n*arcslist\n1 2 3\n*edgeslist\n2 3\n"
D3 = '{"nodes": [{"name": "Myriel", "group": 1}, {"name": "Napoleon"}], "links": [{"source": 1, "target": 0, "value": 8}]}'
MATRIX_MARKET = "%%MatrixMarket matrix coordinate pattern symmetric\n% comment\n3 3 2\n2 1\n3 2\n"

FILES = {  # what is in the file; the labels; the matrix, in which row i receives from column j; what the note says
    "p2p-Gnutella08.txt": (
        SNAP, "0 10 20 30", [[0, 0, 1, 1], [1, 0, 0, 0], [0, 1, 0, 0], [1, 0, 0, 0]], "the 4 ids that occur, 0 .. 30"
    ),
    "out.konect": (KONECT, "1 2 3", [[0, 0, 2], [5, 0, 0], [0, 1, 0]], "1 parallel edge was merged, adding their weights"),
    "out.symmetric": (KONECT_SYMMETRIC, "1 2 3", [[0, 1, 0], [1, 0, 1], [0, 1, 0]], "the 3 ids that occur"),
    "Zoo.gml": (
        ZOO_GML, "Paris|Köln|None (2)|None (7)", [[0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 1], [0, 0, 1, 0]],
        "1 parallel edge was merged",
    ),
    "Zoo.graphml": (ZOO_GRAPHML, "Seattle Denver Atlanta", [[0, 1, 0], [1, 0, 1], [0, 1, 0]], "1 parallel edge was merged"),
    "yed.graphml": (YED, "rome oslo", [[0, 1], [1, 0]], ""),
    "gephi.gexf": (GEPHI_GEXF, "Anna Ben", [[0, 1], [3.5, 0]], "1 parallel edge was merged, adding their weights"),
    "gephi.csv": (GEPHI_CSV, "paris rome oslo", [[0, 0, 1], [2, 0, 1], [0, 1, 0]], ""),
    "header.tsv": ("from\tto\nx\ty\ny\tx\n", "x y", [[0, 1], [1, 0]], ""),
    "bare.csv": ("0,1\n1,2\n2,0\n", None, [[0, 0, 1], [1, 0, 0], [0, 1, 0]], "read as a list of edges"),
    "commented.csv": ("# links\nsource,target,weight\n0,1,2\n1,0,1\n", None, [[0, 1], [2, 0]], ""),
    "adjacency.csv": (";a;b\na;0;1\nb;2;0\n", "a b", [[0, 1], [2, 0]], ""),
    "pajek.net": (
        PAJEK, "Aix la Chapelle|b|c|4", [[0, 0, 0, 0], [3, 0, 0, 0], [0, 1, 0, 2.5], [0, 0, 2.5, 0]], ""
    ),
    "lists.net": (PAJEK_LISTS, "1 2 3", [[0, 0, 0], [1, 0, 1], [1, 1, 0]], ""),
    "matrix.net": ("*Vertices 2\n*Matrix\n0 2\n1 0\n", "1 2", [[0, 1], [2, 0]], ""),
    "miserables.json": (D3, "Myriel Napoleon", [[0, 8], [0, 0]], ""),
    "zoo.mtx": (MATRIX_MARKET, None, [[0, 1, 0], [1, 0, 1], [0, 1, 0]], "entry (i, j) was read as an edge from j to i"),
    "names.edgelist": ("paris rome {'weight': 2}\nrome paris {}\n", "paris rome", [[0, 1], [2, 0]], ""),
    "loops.edges": ("0 0\n0 1\n0 0\n1 0\n", None, [[1, 1], [1, 0]], "1 parallel edge was merged"),
    "no-suffix": ("0 1\n1 0\n", None, [[0, 1], [1, 0]], ""),
}  # fmt: skip


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzipped"])
@pytest.mark.parametrize("name", FILES)
def test_files_of_archives_are_read(tmp_path, name, packed):
    text, labels, matrix, note = FILES[name]
    path = tmp_path / (name + ".gz" if packed else name)
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    graph = read_graph(path)
    wanted = labels and tuple(labels.split("|" if "|" in labels else " "))
    assert graph.labels == wanted
    assert read_matrix(path).toarray().tolist() == matrix
    assert (note in graph.note) if note else not graph.note


REFUSED = {
    "bipartite.txt": ("% bip unweighted\n1 1\n2 1\n", "bipartite"),
    "signed.txt": ("% asym signed\n1 2 -1\n", "signed.txt:2: a weight is finite and not negative; got '-1'"),
    "names.yaml": ("a: b", r"names.yaml:1: 'a:' is not a node"),
    "mixed.edges": ("a b\n1\n", "mixed.edges:2: a line is"),
    "dictionary.edges": ("0 1 {'weight': __import__('os')}\n", "dictionary.edges:1: .* is not a dictionary"),
    "open.gml": ("graph [\n node [ id 0\n", "open.gml:3: the file ends too early.*2 brackets are open"),
    "quote.gml": ('graph [\n node [ id 0 label "a ]\n]', "quote.gml:2: the file ends too early"),
    "end.gml": ("graph [\n node [ id 0 ]\n edge [ source 0 target 5 ]\n]", "end.gml:3: edge 0 -> 5 has an end that is no"),
    "twice.gml": ("graph [ node [ id 0 ]\n node [ id 0 ] ]", "twice.gml:2: node '0' stands in line 1 already"),
    "weight.gml": ("graph [ node [ id 0 ]\nedge [ source 0 target 0 weight x ] ]", "weight.gml:2: edge 0 -> 0: 'x' is not"),
    "two.gml": ("graph [ node [ id 0 ] ]\ngraph [ ]", "two.gml holds 2 graphs"),
    "modes.net": ("*Vertices 10 4\n", r"modes.net:1: \*Vertices is followed by the number of nodes"),
    "many.net": ("*Vertices 2\n3 c\n", "many.net:2: a node is a number from 1 to 2"),
    "end.net": ("*Vertices 2\n*Arcs\n1 3\n", "end.net:3: edge 1 -> 3 has an end"),
    "section.net": ("*Vertices 2\n*Partition\n", r"section.net:2: a network has the sections \*network"),
    "list.json": ("[1, 2]", 'needs lists "nodes" and "links"'),
    "cut.json": ('{"nodes": [', "cut.json:1: not JSON"),
    "end.json": ('{"nodes": [{"id": 1}], "links": [{"source": 1, "target": 2}]}', r"links\[0\]: edge 1 -> 2 has an end"),
    "null.json": ('{"nodes": [{"id": null}], "links": []}', r"nodes\[0\]: a node is named by text or a number"),
    "deep.json": ("[" * 100_000, "nested too deeply|not JSON"),
    "wide.mtx": ("%%MatrixMarket matrix coordinate real general\n3 2 1\n1 1 1\n", "square matrix.*'3 2 1'"),
    "complex.mtx": ("%%MatrixMarket matrix coordinate complex general\n2 2 1\n1 1 1 2\n", "complex"),
    "huge.mtx": ("%%MatrixMarket matrix coordinate real general\n999999999 999999999 1\n1 1 1\n", "nodes would need"),
    "outside.mtx": ("%%MatrixMarket matrix coordinate real general\n2 2 1\n3 1 1\n", "not a Matrix Market file"),
    "type.csv": ("source,target,type\na,b,sideways\n", "type.csv:2: the type of an edge is Directed or Undirected"),
    "empty.csv": ("source,target\na,\n", "empty.csv:2: an edge needs a source and a target"),
    "short.csv": ("source,target,weight\na,b\n", "short.csv:2: this line has 2 columns, but the first has 3"),
    "few.csv": ("0,1,2\n1,0,2\n", "few.csv:1: a matrix with 2 rows needs 2 columns.*source,target,weight"),
    "root.gexf": ("<svg/>", "its root element is 'svg'"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_malformed_files_are_refused_with_their_line(tmp_path, name):
    text, message = REFUSED[name]
    (tmp_path / name).write_text(text)
    with pytest.raises(FileError, match=message) as caught:
        read_graph(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_damaged_gzip_files_are_refused(tmp_path):
    whole = gzip.compress(SNAP.encode())
    for content, message in ((whole[:-9], "damaged gzip file"), (whole[:20] + b"xxxx" + whole[24:], "gzip")):
        (tmp_path / "x.gz").write_bytes(content)
        with pytest.raises(FileError, match=message):
            read_graph(tmp_path / "x.gz")


def weighted_digraph(seed, directed=True):
    graph = nx.gnp_random_graph(9, 0.3, seed=seed, directed=directed)
    rng = np.random.default_rng(seed)
    nx.set_edge_attributes(graph, {edge: float(rng.integers(1, 9)) for edge in graph.edges}, "weight")
    return nx.relabel_nodes(graph, {i: f"node {i}" for i in graph})


def written(graph, suffix, path):
    """A file as networkx or scipy writes it."""
    if suffix == "json":
        path.write_text(json.dumps(nx.node_link_data(graph)))
    elif suffix == "mtx":
        scipy.io.mmwrite(path, scipy.sparse.coo_array(nx.to_scipy_sparse_array(graph).T), precision=17)
    else:
        write = {"graphml": nx.write_graphml, "gml": nx.write_gml, "gexf": nx.write_gexf, "net": nx.write_pajek}[suffix]
        write(graph, path)
    return path


@pytest.mark.parametrize("directed", [True, False], ids=["directed", "undirected"])
@pytest.mark.parametrize("suffix", ["graphml", "gml", "gexf", "net", "json", "mtx"])
def test_what_networkx_writes_is_what_is_read(tmp_path, suffix, directed):
    for seed in range(5):
        graph = weighted_digraph(seed, directed)
        path = written(graph, suffix, tmp_path / f"x.{suffix}")
        expected = nx.to_numpy_array(graph).T
        assert np.array_equal(read_matrix(path).toarray(), expected)
        if suffix != "mtx":
            assert read_graph(path).labels == tuple(graph.nodes)


def test_multigraphs_are_merged_alike(tmp_path):
    graph = nx.MultiDiGraph([("a", "b"), ("a", "b"), ("b", "a"), ("a", "a"), ("a", "a")])
    found = Graph.from_networkx(graph, self_loops=False)
    nx.write_gml(graph, tmp_path / "x.gml")
    read = read_graph(tmp_path / "x.gml")
    again = Graph(2, [(0, 1), (0, 1), (1, 0), (0, 0), (0, 0)], self_loops=False, labels=["a", "b"])
    assert found == read == again
    assert found.note == read.note == again.note == "2 parallel edges were merged"
    assert not Graph.from_networkx(nx.Graph([("a", "b"), ("a", "a")])).note


def test_link_tables_of_real_networks():
    folder = Path(os.environ.get("PERRON_DATA", ".")) / "links"
    if not folder.is_dir():
        pytest.skip("the tables are not here")
    sizes = {path.stem: read_graph(path).nodes for path in sorted(folder.glob("*.gml"))}
    assert sizes == {"amazon_us": 22, "ebone": 87, "exodus": 79, "gaia": 11, "geantdistance": 40}
    for path in folder.glob("*.gml"):
        expected = nx.read_gml(path)
        graph = read_graph(path)
        assert graph.labels == tuple(expected.nodes)
        assert {(graph.label(i), graph.label(j)) for i, j in graph.edges} == set(expected.to_directed().edges)


# ---- from a file to a network


def test_options_for_files_that_are_not_strongly_connected(tmp_path):
    path = tmp_path / "tree.edges"
    path.write_text("rome oslo\noslo bonn\nbonn rome\nbonn paris\n")
    with pytest.raises(GraphError, match=r"--undirected.*--largest-component keeps 3 of 4 nodes"):
        load_network(str(path))
    graph, mixing, notes = load_network(str(path), largest_component=True)
    assert (graph.labels, mixing.nodes) == (("rome", "oslo", "bonn"), 3)
    assert "3 of 4 nodes kept, the largest strongly connected component" in notes
    graph, mixing, notes = load_network(str(path), undirected=True)
    assert graph.is_symmetric
    assert "every edge goes both ways" in notes
    with pytest.raises(Exception, match=r"--undirected does not go with a topology"):
        load_network("ring", undirected=True)
    path.write_text("0 1\n1 0\n1 2\n")
    with pytest.raises(GraphError) as caught:
        load_network(str(path))
    assert "--undirected" not in str(caught.value), "some edges have their reverse"
    assert load_network(str(path), largest_component=True)[0].labels == ("0", "1")


def test_parts_of_a_graph():
    graph = Graph(
        5, [(0, 1), (1, 0), (2, 3), (3, 4), (4, 2), (1, 2)], labels=list("abcde"), positions=np.arange(10).reshape(5, 2)
    )
    part = graph.largest_component()
    assert (part.labels, part.edges.tolist()) == (("c", "d", "e"), [[2, 0], [0, 1], [1, 2]])
    assert part.positions.tolist() == [[4, 5], [6, 7], [8, 9]]
    assert part.is_strongly_connected
    turned = graph.subgraph([1, 0])
    assert (turned.labels, turned.has_all_self_loops) == (("b", "a"), True)
    with pytest.raises(GraphError, match="each of its nodes once"):
        graph.subgraph([1, 1])
    with pytest.raises(GraphError, match="got node 9"):
        graph.subgraph([9])


def test_networkx_graphs_and_scipy_matrices_are_graphs():
    graph = nx.DiGraph([(0, 1), (1, 2), (2, 0)])
    expected = Mixing.uniform(Graph.from_networkx(graph))
    for rule in (Mixing.uniform, Mixing.lazy, Mixing.random_integer, Mixing.balanced, Mixing.spanning_trees):
        assert np.array_equal(rule(graph).pull, rule(Graph.from_networkx(graph)).pull)
    adjacency = Graph.from_networkx(graph).adjacency()
    for matrix in (adjacency, adjacency.toarray(), scipy.sparse.coo_matrix(adjacency)):
        assert np.array_equal(Mixing.uniform(matrix).pull, expected.pull)
    assert Mixing.uniform([graph, graph.reverse()]).period == 2
    assert np.allclose(Mixing.metropolis(graph.to_undirected()).pull, 1 / 3)


def test_single_precision_is_corrected_with_a_warning():
    rng = np.random.default_rng(0)
    weights = rng.random((20, 20))
    A = (weights / weights.sum(1, keepdims=True)).astype(np.float32)
    with pytest.warns(UserWarning, match=r"rows of a float32 matrix .* divided by its sum"):
        mixing = Mixing(pull=A)
    assert np.abs(mixing.pull.sum(1) - 1).max() < 1e-15
    assert np.abs(mixing.pull - A).max() < 1e-7
    with pytest.raises(Exception, match=r"row \d+ sums to 1.001"):
        Mixing(pull=np.float32(1.001) * A)
    with pytest.raises(Exception, match="sums to"):
        Mixing(pull=A.astype(np.float64))

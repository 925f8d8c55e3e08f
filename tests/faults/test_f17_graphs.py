"""A wrong graph is refused before anything runs: by node, edge or row, and with the value that was found."""

import os
import re
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
import torch
import torch.distributed as dist
from scipy.sparse import csr_array
from torch import nn

from perron import ALGORITHMS, Graph, Mixing, Network, PushPull, Simulation
from perron.cli import main as cli
from perron.distributed.node import DistributedNode
from perron.distributed.optimizer import Decentralized
from perron.distributed.process_group import FixedPeers
from perron.errors import GraphError, MixingError, PerronError
from perron.networks import topologies
from perron.problems import Quadratic

RING = Graph(4, [(0, 1), (1, 2), (2, 3), (3, 0)])
HALVES = Mixing.uniform(RING).pull  # 1/2 kept, 1/2 taken from the node before
ROWS = Mixing.random_integer(RING).pull  # its columns do not sum to one
SYMMETRIC = Mixing.metropolis(RING.symmetric())
TREE = Mixing.spanning_trees(RING)


def changed(matrix, *entries):
    """A matrix with some entries changed, as (row, column, value)."""
    other = np.array(matrix)
    for i, j, value in entries:
        other[i, j] = value
    return other


def mixing(pull=HALVES, push=HALVES, **options):
    return partial(Mixing, pull=pull, push=push, **options)


TWO_ISLANDS = Graph(5, [(0, 1), (1, 0), (2, 3), (3, 4), (4, 2)])
ONE_WAY = Graph(4, [(0, 1), (1, 0), (1, 2), (2, 3), (3, 2)])
ALONE = Graph(4, [(0, 1), (1, 2), (2, 0)])  # node 3 hears nobody
SWAP = np.array([[0.0, 1.0], [1.0, 0.0]])
ROOTED = {"connected": "rooted"}

MATRICES = {  # what is wrong, and what the error must name
    "row of A off": (mixing(changed(HALVES, (3, 2, 0.4))), r"pull: row 3 sums to 0\.9, must be 1 within 1e-09"),
    "row of A a little off": (mixing(changed(HALVES, (3, 2, 0.5 + 1e-8))), r"pull: row 3 sums to 1\.00000001"),
    "column of B off": (mixing(push=changed(HALVES, (2, 1, 0.75))), r"push: column 1 sums to 1\.25"),
    "only rows of both": (mixing(ROWS, ROWS), r"push: column \d sums to .*rows do sum to one: both matrices are row-stochastic"),
    "A and B swapped": (
        mixing(changed(HALVES, (1, 1, 0.25), (2, 1, 0.75)), changed(HALVES, (1, 1, 0.25), (1, 0, 0.75))),
        r"pull: row . sums to .*the two are swapped",
    ),
    "empty row": (mixing(changed(HALVES, (3, 3, 0), (3, 2, 0))), r"pull: row 3 sums to 0,"),
    "negative": (mixing(changed(HALVES, (1, 0, -0.5), (1, 1, 1.5))), r"pull: entry \[1, 0\] = -0\.5 is negative.*node 0"),
    "NaN": (mixing(push=changed(HALVES, (2, 1, np.nan))), r"push: entry \[2, 1\] = nan is not finite.*node 2 .*node 1"),
    "infinite": (mixing(changed(HALVES, (0, 3, np.inf))), r"pull: entry \[0, 3\] = inf is not finite"),
    "complex": (mixing(HALVES * 1j), "real weights; got complex"),
    "letters": (mixing([["a", "b"], ["c", "d"]], SWAP), "n x n array of numbers; got"),
    "ragged": (mixing([[1.0], [0.5, 0.5]], SWAP), "n x n array of numbers; got"),
    "not square": (mixing(HALVES[:3]), "pull must be a square matrix.*got 3 x 4"),
    "a vector": (mixing(np.ones(4)), r"n x n array of numbers; got shape \(4,\)"),
    "no nodes": (mixing(np.empty((0, 0)), np.empty((0, 0))), "pull must be a square matrix.*got 0 x 0"),
    "sizes differ": (mixing(push=SWAP), "as many nodes; got 4 in pull but 2 in push"),
    "neither": (Mixing, "needs a pull matrix .* or both"),
    "no self-loop (trace 0)": (mixing(SWAP, SWAP), "pull: no positive diagonal entry"),
    "no self-loop at the root": (
        mixing([[0, 1, 0], [1, 0, 0], [0, 0.5, 0.5]], [[0, 1, 0.5], [1, 0, 0], [0, 0, 0.5]], **ROOTED),
        r"pull: no positive diagonal entry among the roots \{0, 1\}",
    ),
    "no self-loop once in time": (
        mixing([HALVES, changed(HALVES, (2, 2, 0), (2, 1, 1))], HALVES),
        "pull: a matrix of a time-varying sequence needs a positive diagonal; node 2 has 0",
    ),
    "no common root": (
        mixing(np.eye(2), np.eye(2), **ROOTED),
        r"no common root.*along pull: \{none\}; .* along push: \{none\}",
    ),
    "roots that differ": (
        mixing([[1, 0], [0.5, 0.5]], [[0.5, 0], [0.5, 1]], **ROOTED),
        r"no common root.*along pull: \{0\}; .* along push: \{1\}",
    ),
    "connected how?": (mixing(connected="weakly"), "connected is 'strongly' or 'rooted'; got 'weakly'"),
    "negative weights": (partial(Mixing.normalized, changed(HALVES, (1, 0, -1))), r"weights: entry \[1, 0\] = -1 is negative"),
    "weights without a row": (partial(Mixing.normalized, changed(HALVES, (2, 1, 0), (2, 2, 0))), "pull: row 2 sums to 0,"),
}  # fmt: skip

CONNECTIONS = {
    "two islands": (TWO_ISLANDS, r"2 strongly connected components, \{0, 1\}, \{2, 3, 4\}"),
    "one way only": (ONE_WAY, r"2 .*components, \{0, 1\}, \{2, 3\}\. Nodes \{2, 3\} cannot reach nodes \{0, 1\}.*\(2, 0\)"),
    "an isolated node": (ALONE, r"2 .*components, .*\{3\}.*cannot reach"),
    "no edges": (Graph(9), r"9 strongly connected components, \{0\}, .*\{5\}, \.\.\. \(3 more\)"),
    "a chain": (Graph(3, [(0, 1), (1, 2)]), r"3 .*components, \{0\}, \{1\}, \{2\}.*2 cannot reach 0"),
}  # fmt: skip

GRAPHS = {
    "unknown node": (lambda: Graph(3, [(0, 1), (1, 7)]), r"Edge \(1, 7\) leaves the nodes 0 \.\. 2"),
    "negative node": (lambda: Graph(3, [(-1, 1)]), r"Edge \(-1, 1\) leaves the nodes"),
    "half a node": (lambda: Graph(3, [(0.5, 1)]), "pairs of whole numbers .*got shape .*float64"),
    "three ends": (lambda: Graph(3, [(0, 1, 2)]), r"pairs of whole numbers .*got shape \(1, 3\)"),
    "ragged edges": (lambda: Graph(3, [(0, 1), (1,)]), "pairs of whole numbers"),
    "letters": (lambda: Graph(3, [("a", "b")]), "pairs of whole numbers"),
    "no nodes": (lambda: Graph(0), "at least 1; got 0"),
    "minus nodes": (lambda: Graph(-3), "at least 1; got -3"),
    "NaN nodes": (lambda: Graph(float("nan")), "whole number of nodes, at least 1; got nan"),
    "yes nodes": (lambda: Graph(True), "got True"),
    "too many": (lambda: Graph(10**9), r"1,000,000,000 nodes would need about 200 GB"),
    "too few names": (lambda: Graph(3, labels=["a", "b"]), "3 nodes need 3 different labels; got 2"),
    "a name twice": (lambda: Graph(2, labels=["a", "a"]), "2 nodes need 2 different labels; got 2, 1 different"),
    "matrix not square": (lambda: Graph.from_matrix(np.ones((2, 3))), r"square matrix; got shape \(2, 3\)"),
    "node asked for": (lambda: RING.sources(4), r"nodes 0 \.\. 3; got node 4"),
    "no tree from there": (lambda: ONE_WAY.tree(2), r"no spanning tree from root 2.*nodes \{0, 1\}.*every node: \{0, 1\}"),
    "with names": (Graph(2, [(0, 1)], labels=["rome", "oslo"]).check_strongly_connected, r"components, \{rome\}, \{oslo\}"),
    "asymmetric for Metropolis": (lambda: Mixing.metropolis(RING), r"has the edge \(3, 0\) but not its reverse"),
    "two sizes": (lambda: Mixing.spanning_trees(RING, Graph(3)), "as many nodes; got 4 and 3"),
    "no root for trees": (lambda: Mixing.spanning_trees(TWO_ISLANDS), r"no common root.*\{none\}"),
    "no graph": (lambda: Mixing.uniform("ring"), "a Graph or a sequence of them; got 'ring'"),
}  # fmt: skip


def refused(make, words, kind=PerronError):
    """An error of ours, on one line, that names what it must."""
    with pytest.raises(kind) as caught:
        make()
    said = str(caught.value)
    assert re.search(words, said), said
    assert "\n" not in said
    return said


def test_f17_matrices_and_graphs(row):
    for make, words in MATRICES.values():
        refused(make, words, MixingError)
    for graph, words in CONNECTIONS.values():
        refused(graph.check_strongly_connected, words, GraphError)
        for rule in (Mixing.uniform, Mixing.lazy, Mixing.random_integer):
            refused(partial(rule, graph), words, MixingError)
        refused(partial(Mixing.normalized, csr_array(graph.adjacency())), "strongly connected components", MixingError)
        refused(partial(Mixing.balanced, graph), words, GraphError)
    for make, words in GRAPHS.values():
        refused(make, words)
    many = len(MATRICES) + 6 * len(CONNECTIONS) + len(GRAPHS)
    row.measured(
        f"{many} of {many} wrong matrices and graphs refused, each with row, edge or node and value", trials=many
    )


def test_f17_what_algorithms_need(row):
    """Every algorithm on networks that do not suit it: asymmetric, sums off, one matrix missing, no self-loops, not connected."""
    loose = changed(HALVES, (0, 0, 0), (0, 3, 1))  # node 0 keeps nothing
    wrong = {
        "asymmetric": (Mixing.balanced(RING), {"W sym"}, r"\[0, 1\] = 0 but \[1, 0\] = 0\.5"),
        "not doubly stochastic": (Mixing.random_integer(RING), {"W", "W sym"}, r"(row|column) \d sums to \d"),
        "pull only": (Mixing(pull=HALVES), {"A B", "B", "R C", "W", "W sym"}, "column-stochastic push matrix"),
        "push only": (Mixing(push=HALVES), {"A B", "A", "R C", "W", "W sym"}, "row-stochastic pull matrix"),
        "rooted only": (TREE, {"A", "B"}, r"4 strongly connected components, \{0\}, \{1\}, \{2\}, \{3\}"),
        "no self-loop": (Mixing(pull=loose), {"A"}, r"nodes \{0\} have no self-loop"),
        "no trees": (Mixing.uniform(RING), {"R C"}, "3 edges each.* 4 edges to pull along and 4 to push along"),
    }
    many = 0
    for network, needy, words in wrong.values():
        for algorithm in ALGORITHMS.values():
            if algorithm.about.matrices in needy:
                refused(partial(algorithm.check, Network(network)), words, MixingError)
                many += 1
    refused(
        lambda: Simulation(problem=Quadratic.random(3, 2), algorithm=PushPull(), mixing=SYMMETRIC),
        "3 nodes but the network 4",
    )
    row.measured(f"{many + 1} of {many + 1} algorithms on networks that do not suit them refused", trials=many + 1)


@pytest.fixture
def alone(tmp_path):
    """A process group of one."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_f17_a_network_of_another_size_than_the_processes(row, alone, monkeypatch):
    def sent(*_, **__):
        raise AssertionError("a tensor travels")

    for verb in ("post", "all_reduce", "all_gather", "broadcast"):
        monkeypatch.setattr(FixedPeers, verb, sent)
    model = nn.Linear(2, 1)
    words = "network has 4 nodes but the process group 1"
    refused(lambda: DistributedNode(SYMMETRIC), words)
    for graph in (SYMMETRIC, RING, (RING, RING.reverse()), lambda _: RING):
        refused(lambda graph=graph: Decentralized(model, PushPull(), graph, lr=0.1), words)
    refused(lambda: Decentralized(model, PushPull(), ONE_WAY, lr=0.1), "2 strongly connected components")
    assert torch.isfinite(model.weight).all()
    row.measured("6 of 6 refused before the first tensor", trials=6)


SCRIPT = """
import torch, perron
perron.init()
perron.Decentralized(torch.nn.Linear(2, 1), perron.PushPull(), perron.topologies.ring(3), lr=0.1)
"""


def test_f17_processes_of_another_number(row, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "perron", "launch", "--nodes", "2", str(tmp_path / "script.py")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, env=os.environ)
    assert ran.returncode == 3
    assert "The network has 3 nodes but the process group 2; they must be equal." in ran.stderr
    row.measured("2 processes for 3 nodes: refused", trials=1)


FILES = {
    "islands.edges": ("0 1\n1 0\n2 3\n3 2\n", r"2 strongly connected components, \{0, 1\}, \{2, 3\}"),
    "alone.edges": ("# nodes: 3\n0 1\n1 0\n", r"2 .*components, .*\{2\}"),
    "oneway.csv": (",a,b\na,1,0\nb,1,1\n", r"oneway.csv is not strongly.*components, \{a\}, \{b\}"),
    "negative.csv": ("1,-1\n1,1\n", r"negative.csv:1: .*'-1'"),
    "nan.edges": ("0 1 1\n1 0 nan\n", r"nan.edges:2: .*'nan'"),
}


@pytest.mark.parametrize("options", [(), ("--json",)], ids=["text", "json"])
def test_f17_from_the_command_line(row, options, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, (text, _) in FILES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "half.csv").write_text("0.5,0.5\n0.4,0.5\n")
    calls = {("graph", name): words for name, (_, words) in FILES.items()}
    calls |= {("design", name): words for name, (_, words) in FILES.items()}
    calls |= {("graph", "half.csv", "--push", "half.csv"): r"pull: row 1 sums to 0\.9"}
    calls |= {("graph", "ring", "--weights", "metropolis"): r"has the edge \(\d+, \d+\) but not its reverse"}
    calls |= {("graph", "ring", "--nodes", "1000000000"): "1,000,000,000 nodes would need about"}
    calls |= {("advise", "islands.edges"): "2 strongly connected components"}
    for call, words in calls.items():
        code = cli._run([*call, *options], debug=False)
        out, err = capsys.readouterr()
        assert (code, out) == (1, ""), (call, out, err)
        assert re.search(words, err), (call, err)
        assert err.count("\n") == 1, err
    row.measured(f"{len(calls)} of {len(calls)} commands refused on one line", trials=len(calls))


def test_f17_topologies_that_exist_are_not_refused():
    """What is right passes: a check that refuses everything would pass all tests above."""
    for family in topologies.NAMES.values():
        assert Mixing.uniform(family(16)).nodes == 16
    PushPull().check(Network(SYMMETRIC))

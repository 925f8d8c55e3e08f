"""Small files that would become large: gzipped networks of every format, and studies."""

import gzip
import subprocess
import sys

import pytest
from test_f18_graph_files import HEAVY

from perron.errors import PerronError
from perron.studies import spec
from perron.studies.spec import MAX_BYTES, load

# (the beginning, what is repeated): parsed, they would take ten times the memory of the text
NETWORKS = {
    "zeros.edges": (b"", b"\0"),
    "edges.edges": (b"", b"0 1\n"),
    "comments.csv": (b"", b"#\n"),
    "digits.edges": (b"", b"9"),
    "spaces.json": (b"[", b" "),
    "deep.json": (b"", b"["),
    "deep.graphml": (b"", b"<a>"),
    "nodes.graphml": (b"<graphml><graph>", b'<node id="x"/>'),
    "deep.gexf": (b"<gexf>", b"<a>"),
    "deep.gml": (b"", b"graph [ "),
    "digits.mtx": (b"%%MatrixMarket matrix coordinate real general\n", b"9"),
    "vertices.net": (b"*Vertices 3\n", b"1\n"),
}
SIZE, PIECE = 32 * 2**20, 2**20


def test_f50_gzipped_networks(tmp_path, row):
    names = []
    for name, (start, repeated) in NETWORKS.items():
        path = tmp_path / f"{name}.gz"
        piece = repeated * (PIECE // len(repeated))
        with gzip.open(path, "wb", 6) as file:
            file.write(start)
            for _ in range(SIZE // PIECE):
                file.write(piece)
        assert path.stat().st_size < SIZE / 100
        names.append(str(path))
    done = subprocess.run([sys.executable, "-c", HEAVY, *names], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    for name, said in zip(names, lines[::2], strict=True):
        assert name in said
        assert "which no list of edges does" in said
    memory = max(float(line.split()[0]) / 1000 for line in lines[1::2])
    assert memory < 100
    row.measured(
        f"{len(names)} gzipped networks of 32 MB refused: at most {memory:.0f} MB more memory", trials=len(names)
    )


def test_f50_a_network_in_json_with_a_huge_number(tmp_path, row):
    from perron import read_graph

    (tmp_path / "digits.json").write_text('{"nodes": [{"id": ' + "9" * 100_000 + "}]}")
    with pytest.raises(PerronError, match="not a network in JSON: Exceeds the limit"):
        read_graph(tmp_path / "digits.json")
    row.measured("a number of 100,000 digits refused", trials=1)


STUDY = 'conclusion = "topologies"\ntopologies = ["ring"]\nsteps = 4\nnodes = {nodes}\nlr = {lr}\n{more}\n'
PROBLEM = '[problem]\nkind = "quadratic"\ndim = 2\n'
STUDIES = {
    "lists": (STUDY.format(nodes=2, lr=0.1, more="x = " + "[" * 10_000 + "]" * 10_000), "maximum recursion"),
    "tables": (STUDY.format(nodes=2, lr=0.1, more="x = " + "{a = " * 10_000 + "1" + "}" * 10_000), "maximum recursion"),
    "names": (STUDY.format(nodes=2, lr=0.1, more=".".join("a" * 2_000) + " = 1"), "There is no key 'a'"),
    "digits": (STUDY.format(nodes=2, lr="9" * 100_000, more=""), "Exceeds the limit"),
    "keys": (STUDY.format(nodes=2, lr=0.1, more="".join(f"k{k} = 1\n" for k in range(2_000))), "There is no key 'k0'"),
    "comment": (STUDY.format(nodes=2, lr=0.1, more="#" * MAX_BYTES), "more than 1,048,576 bytes"),
}


def test_f50_studies(tmp_path, row, monkeypatch):
    for name, (text, words) in STUDIES.items():
        path = tmp_path / f"{name}.toml"
        path.write_text(text + PROBLEM)
        with pytest.raises(PerronError, match=words):
            load(path)
    monkeypatch.setattr(spec, "MAX_RUNS", 1_000)
    many = STUDY.format(nodes=list(range(2, 2_000)), lr=[k / 10_000 for k in range(1, 2_000)], more="")
    (tmp_path / "runs.toml").write_text(many + PROBLEM)
    with pytest.raises(PerronError, match="at most 1,000 runs"):
        _ = load(tmp_path / "runs.toml").runs
    row.measured(f"{len(STUDIES) + 1} studies refused: nested, long, and of four million runs", trials=len(STUDIES) + 1)

"""A malformed graph file is refused with the file, the line and the token, quickly, without the network and in little memory."""

import gzip
import re
import socket
import subprocess
import sys
import threading
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from network_files import BAD, GRAPHML
from trainings import SLACK

from perron import Graph, read_graph, read_matrix, write_graph
from perron.errors import FileError
from perron.networks import topologies

LABELLED = Graph(4, [(0, 1), (1, 2), (2, 3), (3, 0)], labels=["rome", "oslo", "bonn", "prague"])
NODES = '<node id="a"/>\n<node id="b"/>\n'


def graphml(body: str, kind: str = "directed") -> str:
    return GRAPHML.format(kind, body, "")


def weighted(weight: str) -> str:
    key = '<key id="w" for="edge" attr.name="weight" attr.type="string"/>'
    edge = f'{NODES}<edge source="a" target="b">\n<data key="w">{weight}</data></edge>'
    return graphml(edge).replace("<graph ", f"{key}<graph ")


BOMB = "\n".join([
    "<!DOCTYPE x [", '<!ENTITY a "aaaaaaaaaa">',
    *(f'<!ENTITY {chr(98 + i)} "{f"&{chr(97 + i)};" * 10}">' for i in range(12)),
    f"]><graphml>&{chr(97 + 12)};</graphml>",
])  # fmt: skip
WRONG = {  # more than test_files has: what is in the file, and what the error says
    "infinite.edges": ("0 1 1\n1 0 inf\n", r"infinite.edges:2: .*'inf'"),
    "minus-infinite.csv": ("1,0\n-inf,1\n", r"csv:2: .*'-inf'"),
    "negative.csv": ("1,0\n0,-0.5\n", r"csv:2: .*'-0.5'"),
    "huge-weight.edges": ("0 1 1e999\n", r"edges:1: .*'1e999'"),
    "huge-node.edges": (f"0 {'9' * 400}\n", r"edges:1: '9999"),
    "huge-node.csv": (f"{'9' * 400},0\n0,1\n", r"csv:1: .*'9999"),
    "hex.edges": ("0 0x1\n", r"edges:1: '0x1'"),
    "point.edges": ("0 1.5\n", r"edges:1: '1.5'"),
    "arabic.edges": ("0 \u0663\n", r"edges:1: "),
    "underscore.edges": ("0 1 1_0\n", r"edges:1: '1_0'"),
    "underscore.csv": ("1_0,1\n1,1\n", r"csv:1: '1_0'"),
    "four.edges": ("0 1 2 3\n", r"edges:1: .*'0 1 2 3'"),
    "nodes.edges": ("# nodes: many\n0 1\n", r"edges:1: 'many'"),
    "no-nodes.edges": ("# nodes: 0\n0 1\n", r"edges.*at least 1; got 0"),
    "huge-nodes.edges": ("# nodes: 1000000000000\n0 1\n", r"edges.*1,000,000,000,000 nodes would need"),
    "nul.edges": ("0 1\n1 \x000\n", r"edges.* zero byte"),
    "nul.csv": ("1,\x000\n0,1\n", r"csv.* zero byte"),
    "nul.graphml": (graphml(NODES + "\x00"), r"graphml.* zero byte"),
    "twice.csv": (",a,a\na,1,1\na,1,1\n", r"csv: .*different labels"),
    "control.csv": (",a\x07,b\na\x07,1,1\nb,1,1\n", r"csv: .*printable"),
    "blank.csv": ("1,\n0,1\n", r"csv:1: '' is not a number"),
    "one.csv": ("x\n", r"csv:1: 'x'"),
    "laughs.graphml": (BOMB, r"graphml:1: '<!DOCTYPE' declares a document type"),
    "xxe.graphml": ('<!DOCTYPE x [<!ENTITY e SYSTEM "file:///etc/passwd">]>' + graphml('<node id="&e;"/>'), "entities"),
    "undefined.graphml": (graphml('<node id="&e;"/>'), r"graphml:1: not well-formed"),
    "unknown.graphml": (graphml(f'{NODES}<edge source="a" target="zz"/>'), r"graphml:3: edge a -> zz"),
    "unnamed.graphml": (graphml("<node/>"), r"graphml:1: node has no id"),
    "minus.graphml": (weighted("-3"), r"graphml:3: edge a -> b.*'-3'"),
    "letters.graphml": (weighted("heavy"), r"graphml:3: edge a -> b.*'heavy'"),
    "infinite.graphml": (weighted("inf"), r"graphml:3: edge a -> b.*'inf'"),
    "huge.graphml": (weighted("9" * 400), r"graphml:3: edge a -> b.*'999"),
    "nested.graphml": (graphml('<node id="a"><graph edgedefault="directed"/></node>'), "2 graphs instead of one"),
    "hyper.graphml": (graphml(f'{NODES}<hyperedge><endpoint node="a"/></hyperedge>'), "graphml"),
    "boolean.graphml": (weighted("true").replace('"string"', '"boolean"'), r"graphml:3: edge a -> b.*'true'"),
    "double.graphml": (weighted("x").replace('"string"', '"double"'), "graphml"),
    "key.graphml": (graphml(f'{NODES}<edge source="a" target="b"><data key="q">1</data></edge>'), "graphml.*q"),
    "deep.graphml": ("<graphml>" + "<a>" * 100_000 + "</a>" * 100_000 + "</graphml>", "graphml"),
    "nothing.npz": ("", "npz"),
}  # fmt: skip


def told(path: Path, words: str) -> None:
    """Refused by both readers, on one line that begins with or holds the file's name."""
    for read in (read_graph, read_matrix):
        with pytest.raises(FileError) as caught:
            read(path)
        said = str(caught.value)
        assert re.search(words, said), said
        assert path.name in said
        assert "\n" not in said
        assert len(said) < 1000, said


def test_f18_malformed_text(row, tmp_path):
    cases = {name: (text, words.replace("\\:", ":")) for name, (text, words) in BAD.items()} | WRONG
    lines = 0
    for name, (text, words) in cases.items():
        (tmp_path / name).write_text(text)
        if name in ("twice.csv", "control.csv", "few.edges"):  # names of nodes count for the graph only
            with pytest.raises(FileError, match=words):
                read_graph(tmp_path / name)
        else:
            told(tmp_path / name, words)
        lines += bool(re.search(r"(edges|csv|graphml):\d", words))
    row.measured(f"{len(cases)} of {len(cases)} refused, {lines} with the line and the token", trials=len(cases))


def test_f18_bytes_that_are_no_text(row, tmp_path):
    many = 0
    for suffix in (".edges", ".csv", ".graphml"):
        text = write_graph(topologies.ring(3), tmp_path / f"good{suffix}").read_text()
        wrong = {
            "empty": b"", "blank": b" \n\t\n", "utf16": text.encode("utf-16"), "utf16le": text.encode("utf-16-le"),
            "utf16be": text.encode("utf-16-be"), "utf32": text.encode("utf-32"), "latin1": text.encode() + b"\xe9",
            "nul": text.encode() + b"\0", "gzip": gzip.compress(text.encode())[:-12], "zeros": bytes(1000),
            "surrogate": text.encode() + b"\xed\xa0\x80", "binary": bytes(range(256)),
        }  # fmt: skip
        for name, content in wrong.items():
            path = tmp_path / f"{name}{suffix}"
            path.write_bytes(content)
            told(path, "empty|UTF-8|damaged gzip")
            many += 1
    row.measured(f"{many} of {many} files in other encodings, empty or binary refused", trials=many)


def test_f18_cut_short(row, tmp_path, trials):
    """At every byte: refused, or it is a whole file (a list of edges may end anywhere)."""
    refused = many = 0
    for suffix in (".graphml", ".csv", ".npz", ".edges"):
        content = write_graph(LABELLED, tmp_path / f"whole{suffix}").read_bytes()
        path = tmp_path / f"cut{suffix}"
        for length in range(0, len(content), trials(7, 1)):
            path.write_bytes(content[:length])
            many += 1
            try:
                found = read_graph(path)
            except FileError as error:
                assert path.name in str(error)
                refused += 1
            else:
                assert suffix == ".edges" or length >= len(content.rstrip()), (suffix, length)
                assert len(found.edges) <= len(LABELLED.edges)
    row.measured(f"{many} cuts: {refused} refused, the others whole lines of edges", trials=many)


def test_f18_entities_reach_no_network(row, tmp_path):
    """A server that waits for the request that an external entity or document type would send."""
    called = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(1.0)

        def wait() -> None:
            try:
                server.accept()
                called.set()
            except TimeoutError:
                pass

        waiting = threading.Thread(target=wait)
        waiting.start()
        there = f"http://127.0.0.1:{server.getsockname()[1]}/x"
        texts = [
            f'<!DOCTYPE x SYSTEM "{there}">' + graphml(NODES),
            f'<!DOCTYPE x [<!ENTITY e SYSTEM "{there}">]>' + graphml('<node id="&e;"/>'),
            f'<!DOCTYPE x [<!ENTITY % e SYSTEM "{there}"> %e;]>' + graphml(NODES),
            f'<?xml version="1.0"?><!-- <!DOCTYPE --><!DOCTYPE x PUBLIC "-//x" "{there}">' + graphml(NODES),
        ]
        for number, text in enumerate(texts):
            (tmp_path / f"{number}.graphml").write_text(text)
            told(tmp_path / f"{number}.graphml", "document type or entities")
        included = f'<xi:include xmlns:xi="http://www.w3.org/2001/XInclude" href="{there}"/>'
        (tmp_path / "included.graphml").write_text(graphml(NODES + included))
        assert read_graph(tmp_path / "included.graphml").nodes == 2  # an element of another language: not followed
        waiting.join()
    assert not called.is_set()
    row.measured("4 document types and entities refused, 1 inclusion not followed; no connection was made", trials=5)


HEAVY = """
import re, sys, time
from pathlib import Path
from perron import read_graph, topologies, write_graph
from perron.errors import FileError
def peak():  # not getrusage: it begins with the memory of who started the process
    return int(re.search("VmHWM:\\\\s+(\\\\d+)", Path("/proc/self/status").read_text())[1])
read_graph(write_graph(topologies.ring(3), sys.argv[1] + ".graphml"))  # imports what reading needs
before = peak()
for name in sys.argv[1:]:
    began = time.monotonic()
    try:
        read_graph(name)
        print(name, "was read")
    except FileError as error:
        print(error)
    print(peak() - before, time.monotonic() - began)
"""


def test_f18_bombs_take_no_memory(row, tmp_path):
    """In a process of its own: peak memory before and after."""
    (tmp_path / "laughs.graphml").write_text(BOMB)
    quadratic = f'<!DOCTYPE x [<!ENTITY a "{"a" * 50_000}">]>' + graphml(f'<node id="{"&a;" * 5_000}"/>')
    (tmp_path / "quadratic.graphml").write_text(quadratic)
    (tmp_path / "huge.edges").write_text("# nodes: 10000000000\n0 1\n")
    (tmp_path / "far.edges").write_text("# nodes: 9\n0 999999999\n")
    (tmp_path / "huge.mtx").write_text("%%MatrixMarket matrix array real general\n99999999 99999999\n1\n")
    packed = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = packed.compress(bytes(2**24)) + packed.flush(zlib.Z_FULL_FLUSH)
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w") as archive:  # 5 GB of zeros in as many MB
        archive.writestr("a.npy", block * 300 + b"\3\0")
        archive.infolist()[0].compress_type, archive.infolist()[0].file_size = zipfile.ZIP_DEFLATED, 300 * 2**24
    with zipfile.ZipFile(tmp_path / "lies.npz", "w") as archive, archive.open("a.npy", "w") as file:  # it says 80 TB
        np.lib.format.write_array_header_1_0(file, {"descr": "<f8", "fortran_order": False, "shape": (10**7, 10**6)})
    few = {"data": np.ones(1), "indices": np.zeros(1, int), "indptr": np.zeros(2, int)}
    np.savez(tmp_path / "sparse.npz", **few, shape=np.array([10**9] * 2))
    np.savez(tmp_path / "long.npz", **(few | {"data": np.ones(10**6)}), shape=np.array([1] * 2))
    names = [str(path) for path in sorted(tmp_path.iterdir())]
    command = [sys.executable, "-c", HEAVY, *names]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    lines = ran.stdout.splitlines()
    most = slowest = 0.0
    for name, said, figures in zip(names, lines[::2], lines[1::2], strict=True):
        grown, seconds = (float(figure) for figure in figures.split())
        assert name in said, said
        assert "was read" not in said
        most, slowest = max(most, grown / 1000), max(slowest, seconds)
    assert most < 100, lines
    assert slowest < 10 * SLACK, lines
    many = f"{len(names)} bombs refused: at most {most:.0f} MB more memory, {slowest:.2f} s"
    row.measured(many, trials=len(names))

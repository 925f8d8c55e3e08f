"""Pajek's .net files."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

from perron.errors import FileError
from perron.networks._checks import check_nodes
from perron.networks._formats.base import EdgeList, WeightedNetwork

VERTEX = re.compile(r'(\d+)(?:\s+(?:"([^"]*)"|(\S+)))?(?:\s.*)?')


def parse_pajek(text: str, path: Path) -> WeightedNetwork:
    """Parse ``*Vertices N``, then ``*Arcs`` (directed), ``*Edges`` (undirected), their lists of targets, or ``*Matrix``."""
    file, add = _Pajek(), None
    for number, line in enumerate(map(str.strip, text.splitlines()), start=1):
        if not line or line.startswith("%"):
            continue
        try:
            if line.startswith("*"):
                add = file.section(line)
            elif add is None:
                raise FileError("this line stands before *Vertices")
            else:
                add(line, number)
        except FileError as error:
            raise FileError(f"{path}:{number}: {error}; got {line!r:.60}.") from None
    network = EdgeList(path)
    for node in range(1, file.count + 1):
        network.add_node(str(node), file.labels.get(node))
    for edge in file.edges:
        network.add_edge(*edge)
    return network.network()


class _Pajek:
    """The content of a file, filled section by section."""

    def __init__(self) -> None:
        self.count = self._row = 0
        self.labels: dict[int, str] = {}
        self.edges: list[tuple[str, str, str, int, bool]] = []

    def section(self, line: str) -> Callable[[str, int], None] | None:
        """Begin a section; the function that takes its lines."""
        name, *rest = line[1:].lower().split()
        if name == "vertices":
            if self.count or len(rest) != 1 or not rest[0].isdigit():
                raise FileError("*Vertices is followed by the number of nodes, once")
            self.count = check_nodes(int(rest[0][:18]))
        kinds = {
            "network": None,
            "vertices": self._vertex,
            "arcs": partial(self._edge, undirected=False),
            "edges": partial(self._edge, undirected=True),
            "arcslist": partial(self._targets, undirected=False),
            "edgeslist": partial(self._targets, undirected=True),
            "matrix": self._cells,
        }
        if name not in kinds:
            raise FileError(f"a network has the sections {', '.join(f'*{kind}' for kind in kinds)}")
        return kinds[name]

    def _vertex(self, line: str, _number: int) -> None:
        found = VERTEX.fullmatch(line)
        if found is None or not 1 <= int(found[1][:18]) <= self.count or int(found[1]) in self.labels:
            raise FileError(f"a node is a number from 1 to {self.count}, once, and a label")
        self.labels[int(found[1])] = found[2] or found[3] or found[1]

    def _edge(self, line: str, number: int, undirected: bool) -> None:
        tokens = line.split()
        if len(tokens) < 2:
            raise FileError("an edge is 'source target [weight]'")
        self.edges.append((tokens[0], tokens[1], tokens[2] if len(tokens) > 2 else "1", number, undirected))

    def _targets(self, line: str, number: int, undirected: bool) -> None:
        source, *targets = line.split()
        self.edges += [(source, target, "1", number, undirected) for target in targets]

    def _cells(self, line: str, number: int) -> None:
        self._row += 1
        cells = line.split()
        if self._row > self.count or len(cells) != self.count:
            raise FileError(f"a matrix of {self.count} nodes has {self.count} rows of {self.count} numbers")
        self.edges += [(str(self._row), str(j), cell, number, False) for j, cell in enumerate(cells, 1) if cell != "0"]

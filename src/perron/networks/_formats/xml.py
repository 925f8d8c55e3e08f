"""GraphML and GEXF. Document types and entities are refused, and nothing outside the file is read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.parsers import expat

from scipy.sparse import csr_array

from perron.errors import FileError
from perron.networks._formats.base import EdgeList, WeightedNetwork, weighted_edges


@dataclass
class Element:
    """A node, edge or graph of the file, with its line, its attributes, and the values of its data elements by key."""

    line: int
    attributes: dict[str, str]
    data: dict[str, str] = field(default_factory=dict)
    label: str = ""


class Document:
    """Graphs, nodes, edges and keys of an XML document, in any nesting."""

    def __init__(self, text: str, path: Path) -> None:
        self.root, self.path = "", path
        self.found: dict[str, list[Element]] = {name: [] for name in ("graph", "node", "edge", "key", "hyperedge")}
        self._open: list[Element] = []  # nodes, edges and keys around the present place
        self._text: list[str] = []
        self._parser = expat.ParserCreate(namespace_separator="}")
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._text.append
        try:
            self._parser.Parse(text, True)
        except expat.ExpatError as error:
            raise FileError(f"{path}:{error.lineno}: not well-formed XML: {error}.") from None

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        name = name.rpartition("}")[2]
        self.root = self.root or name
        self._text.clear()
        if name in self.found:
            element = Element(self._parser.CurrentLineNumber, attributes)
            self.found[name].append(element)
            self._open.append(element)
        elif name == "data" and self._open:
            self._open[-1].data[attributes.get("key", "")] = ""
            self._key = attributes.get("key", "")

    def _end(self, name: str) -> None:
        name, content = name.rpartition("}")[2], "".join(self._text).strip()
        if name in self.found:
            self._open.pop()
        elif name == "data" and self._open:
            self._open[-1].data[self._key] = content
        elif name == "default" and self._open:
            self._open[-1].data["default"] = content
        elif name == "NodeLabel" and self._open and not self._open[-1].label:  # as yEd writes it
            self._open[-1].label = content
        self._text.clear()


def parse_xml(text: str, path: Path) -> WeightedNetwork:
    """Parse GraphML or GEXF; an edge without a weight has weight 1, or the default that the file gives."""
    markup = re.finditer(r"<!--.*?-->|<!\[CDATA\[.*?\]\]>|<!", text, flags=re.DOTALL)
    start = next((match.start() for match in markup if match[0] == "<!"), None)
    if start is not None:
        raise FileError(
            f"{path}:{text.count(chr(10), 0, start) + 1}: {text[start:].split(maxsplit=1)[0]!r:.40} declares a document "
            "type or entities; networks need none, and they are refused."
        )
    document = Document(text, path)
    gexf = document.root == "gexf"
    if not gexf and document.root != "graphml":
        raise FileError(f"{path} is not GraphML that can be read, nor GEXF: its root element is {document.root!r:.80}.")
    if (graphs := len(document.found["graph"])) != 1:
        raise FileError(f"{path} is not GraphML that can be read: it holds {graphs} graphs instead of one.")
    if document.found["hyperedge"]:
        raise FileError(f"{path}:{document.found['hyperedge'][0].line}: hyperedges are not edges of a graph.")
    attribute, default = ("defaultedgetype", "undirected") if gexf else ("edgedefault", "directed")
    kind = document.found["graph"][0].attributes.get(attribute, default)
    keys = _Keys(document, path)
    network = EdgeList(path)
    for node in document.found["node"]:
        if (name := node.attributes.get("id")) is None:
            raise FileError(f"{path}:{node.line}: node has no id; every node needs an id of its own.")
        network.add_node(
            name, node.attributes.get("label") or node.label or keys.value(node, "node", "label"), node.line
        )
    for edge in document.found["edge"]:
        source, target = edge.attributes.get("source"), edge.attributes.get("target")
        directed = edge.attributes.get("type", edge.attributes.get("directed", kind)) in ("directed", "true", "mutual")
        weight = edge.attributes.get("weight") or keys.value(edge, "edge", "weight") or 1.0
        network.add_edge(source, target, weight, edge.line, not directed)
    return network.network()


class _Keys:
    """The keys that a GraphML file declares for its data elements."""

    def __init__(self, document: Document, path: Path) -> None:
        self.path = path
        self.known: dict[str | None, Any] = {key.attributes.get("id"): key for key in document.found["key"]}

    def value(self, element: Element, kind: str, name: str) -> str | None:
        """The value that an element has for a name, or its default."""
        for key in element.data:
            if key not in self.known:
                raise FileError(f"{self.path}:{element.line}: data of an unknown key {key!r:.80}.")
        for number, key in self.known.items():
            wanted = key.attributes.get("attr.name", "").lower() == name
            if wanted and key.attributes.get("for", kind) in (kind, "all"):
                return element.data.get(number or "") or key.data.get("default")
        return None


def format_graphml(matrix: csr_array, labels: Sequence[str] | None) -> str:
    """Return the text that `parse_xml` parses to the same network."""
    import networkx as nx

    names = labels or [str(i) for i in range(matrix.shape[0])]
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(names)
    for source, target, weight in weighted_edges(matrix):
        graph.add_edge(names[source], names[target], **({} if weight is None else {"weight": weight}))
    return "\n".join(nx.generate_graphml(graph)) + "\n"

"""GML, as the Internet Topology Zoo and networkx write it."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import NamedTuple

from perron.errors import FileError
from perron.networks._formats.base import EdgeList, WeightedNetwork

TOKEN = re.compile(r'\s+|^#.*|"(?P<text>[^"]*)"|(?P<bracket>[\[\]])|(?P<word>[^\s\[\]"]+)', re.MULTILINE)


class Section(NamedTuple):
    """A list ``[ key value ... ]``: the values by key, and the sections in it."""

    line: int
    values: dict[str, str]
    sections: list[tuple[str, Section]]


def parse_gml(text: str, path: Path) -> WeightedNetwork:
    """Parse ``graph [ node [ id 0 label "a" ] edge [ source 0 target 1 ] ]``; undirected unless it says ``directed 1``."""
    graphs = [section for name, section in _sections(text, path).sections if name == "graph"]
    if len(graphs) != 1:
        raise FileError(f"{path} holds {len(graphs)} graphs instead of one.")
    graph = graphs[0]
    network = EdgeList(path)
    for name, node in graph.sections:
        if name == "node":
            if "id" not in node.values:
                raise FileError(f"{path}:{node.line}: node has no id; every node needs an id of its own.")
            network.add_node(node.values["id"], node.values.get("label", node.values.get("name")), node.line)
    for name, edge in graph.sections:
        if name == "edge":
            source, target = edge.values.get("source"), edge.values.get("target")
            weight = edge.values.get("weight", edge.values.get("value", "1"))
            network.add_edge(source, target, weight, edge.line, graph.values.get("directed", "0") != "1")
    return network.network()


def _sections(text: str, path: Path) -> Section:
    stack, key, line, end = [Section(1, {}, [])], "", 1, 0
    for token in TOKEN.finditer(text):
        if token.start() != end:
            break
        end, kind, found = token.end(), token.lastgroup, token[0]
        where = f"{path}:{line}"
        if kind == "bracket" and found == "[":
            if not key:
                raise FileError(f"{where}: '[' without a key before it.")
            section = Section(line, {}, [])
            stack[-1].sections.append((key.lower(), section))
            stack.append(section)
            key = ""
        elif kind == "bracket":
            if key or len(stack) == 1:
                raise FileError(
                    f"{where}: ']' where {'the value of ' + key if key else 'nothing is open'!s:.80} was expected."
                )
            stack.pop()
        elif kind and key:
            stack[-1].values[key.lower()] = html.unescape(token["text"] if kind == "text" else found)
            key = ""
        elif kind:
            key = found
        line += found.count("\n")
    if end != len(text) or key or len(stack) > 1:
        what = f"{len(stack) - 1} brackets are open" if len(stack) > 1 else f"{(key or text[end:])!r:.40} has no value"
        raise FileError(f"{path}:{line}: the file ends too early, or a quotation mark is missing: {what}.")
    return stack[0]

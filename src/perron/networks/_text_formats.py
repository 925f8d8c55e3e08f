"""Networks as text: edge lists, CSV matrices and GraphML. Errors contain the file, the line and the offending token."""

from __future__ import annotations

import csv
import io
import json
import re
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from xml.parsers import expat

import numpy as np
from scipy.sparse import csr_array

from perron.errors import FileError, brief
from perron.networks.graph import check_nodes

FORMULA = re.compile(r"'*[=+\-@\t\r]")  # the beginning of text that a spreadsheet would evaluate
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


class WeightedNetwork(NamedTuple):
    """The content of a file: a weight matrix and, optionally, labels of the nodes."""

    matrix: csr_array
    labels: list[str] | None


def read_text(path: Path) -> str:
    """Return the content of a UTF-8 file that is not empty."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise FileError(f"Cannot read {path}: {error.strerror or error}.") from None
    except UnicodeDecodeError as error:
        raise FileError(f"{path} is not UTF-8 text (byte {error.start}). Save it as UTF-8.") from None
    if "\0" in text:
        raise FileError(f"{path} is not text: it holds a zero byte. Is it UTF-16? Save it as UTF-8.")
    if not text.strip():
        raise FileError(f"{path} is empty.")
    return text.removeprefix("\ufeff")


def _matrix(nodes: int, edges: Sequence[tuple[int, int]], weights: Sequence[float]) -> csr_array:
    source, target = np.array(edges, dtype=np.int64).reshape(-1, 2).T
    return csr_array((np.asarray(weights, dtype=np.float64), (target, source)), shape=(nodes, nodes))


def _weighted_edges(matrix: csr_array) -> Iterator[tuple[int, int, float | None]]:
    """Yield (source, target, weight) of each entry; the weight is None if all weights are 1."""
    entries = matrix.tocoo()
    weights = [None] * matrix.nnz if (matrix.data == 1).all() else entries.data.tolist()
    return zip(entries.col.tolist(), entries.row.tolist(), weights, strict=True)


def _parse_weight(token: str, where: str) -> float:
    try:
        weight = float(
            token if token.isascii() and "_" not in token else ""
        )  # Python accepts 1_0 and other digits, too
    except ValueError:
        raise FileError(f"{where}: {token!r:.80} is not a number.") from None
    if not np.isfinite(weight) or weight < 0:
        raise FileError(f"{where}: a weight is finite and not negative; got {token!r:.80}.")
    return weight


# ---- edge lists


def parse_edge_list(text: str, path: Path) -> WeightedNetwork:
    """Parse lines ``source target [weight]`` and the comments ``# nodes: N`` and ``# labels: [...]``."""
    nodes: int | None = None
    labels: list[str] | None = None
    line_of: dict[tuple[int, int], int] = {}
    weights: list[float] = []
    columns = 0
    for number, line in enumerate(text.splitlines(), start=1):
        where = f"{path}:{number}"
        body, _, comment = line.partition("#")
        if header := re.fullmatch(r"\s*(nodes|labels):\s*(.+)", comment):
            if header[1] == "nodes":
                nodes = check_nodes(_parse_node(header[2].strip(), where, "a number of nodes"))
            else:
                labels = _parse_labels(header[2], where)
        tokens = body.replace(",", " ").split()
        if not tokens:
            continue
        columns = columns or len(tokens)
        if len(tokens) not in (2, 3) or len(tokens) != columns:
            raise FileError(
                f"{where}: a line is 'source target' or 'source target weight', all alike; got {line.strip()!r:.60}."
            )
        edge = (_parse_node(tokens[0], where), _parse_node(tokens[1], where))
        if edge in line_of:
            raise FileError(f"{where}: edge {edge[0]} {edge[1]} stands in line {line_of[edge]} already.")
        line_of[edge] = number
        weights.append(_parse_weight(tokens[2], where) if len(tokens) == 3 else 1.0)
    if nodes is None:
        if not line_of:
            raise FileError(f"{path} holds no edges. A line is 'source target' or 'source target weight'.")
        nodes = check_nodes(1 + max(map(max, line_of)))
    for edge, number in line_of.items():
        if max(edge) >= nodes:
            raise FileError(
                f"{path}:{number}: unknown node {max(edge)}; the file says there are {nodes}, numbered from 0."
            )
    return WeightedNetwork(_matrix(nodes, list(line_of), weights), labels)


def _parse_labels(text: str, where: str) -> list[str]:
    try:
        labels = json.loads(text)
    except json.JSONDecodeError:
        labels = None
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise FileError(
            f'{where}: labels are a JSON list of strings, as in # labels: ["paris", "rome"]; got {text!r:.80}.'
        )
    return labels


def _parse_node(token: str, where: str, kind: str = "a node") -> int:
    if not re.fullmatch(r"[0-9]{1,18}", token):
        raise FileError(
            f"{where}: {token!r:.80} is not {kind}; nodes are whole numbers from 0. For names use .graphml or .csv."
        )
    return int(token)


def format_edge_list(matrix: csr_array, labels: Sequence[str] | None) -> str:
    """Return the text that `parse_edge_list` parses to the same network."""
    lines = ["# source target [weight]: messages travel from source to target", f"# nodes: {matrix.shape[0]}"]
    lines += [f"# labels: {json.dumps(list(labels))}"] if labels else []
    for source, target, weight in _weighted_edges(matrix):
        lines.append(f"{source} {target}" if weight is None else f"{source} {target} {weight!r}")
    return "\n".join(lines) + "\n"


# ---- CSV matrices


def parse_csv(text: str, path: Path) -> WeightedNetwork:
    """Parse an n x n matrix, with labels in the first row and column if the corner is empty."""
    reader = csv.reader(text.splitlines(keepends=True), strict=True)
    try:
        lines = [(reader.line_num, row) for row in reader if row and any(cell.strip() for cell in row)]
    except csv.Error as error:
        raise FileError(f"{path}:{reader.line_num}: not a CSV table: {error}.") from None
    if not lines:
        raise FileError(f"{path} holds no numbers.")
    labels = None
    if not lines[0][1][0].strip():
        labels, lines = [_plain(label) for label in lines[0][1][1:]], lines[1:]
        for i, (number, row) in enumerate(lines):
            if i >= len(labels) or _plain(row[0]) != labels[i]:
                wanted = f"the name {labels[i]!r} of column {i + 1}" if i < len(labels) else "no more rows than names"
                raise FileError(f"{path}:{number}: row {row[0]!r:.80} stands where {wanted} was expected.")
        lines = [(number, row[1:]) for number, row in lines]
    nodes = len(lines)
    if not nodes:
        raise FileError(f"{path} holds names but no rows.")
    for number, row in lines:
        if len(row) != nodes or (labels is not None and len(labels) != nodes):
            raise FileError(
                f"{path}:{number}: a matrix with {nodes} rows needs {nodes} columns; this row has {len(row)}. A list of edges "
                "goes into an .edges file."
            )
    weights = [[_parse_weight(cell.strip(), f"{path}:{number}") for cell in row] for number, row in lines]
    return WeightedNetwork(csr_array(weights), labels)


def format_csv(matrix: csr_array, labels: Sequence[str] | None) -> str:
    """Return the text that `parse_csv` parses to the same network."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    quoted = [f"'{label}" if FORMULA.match(label) and not NUMBER.fullmatch(label) else label for label in labels or ()]
    if quoted:
        writer.writerow(["", *quoted])
    for i in range(matrix.shape[0]):
        row = matrix[[i]].toarray()[0]
        cells = [repr(int(value) if value == int(value) else float(value)) for value in row]
        writer.writerow([quoted[i], *cells] if quoted else cells)
    return out.getvalue()


def _plain(label: str) -> str:
    """Return a label without the apostrophe that `format_csv` puts before text that a spreadsheet would evaluate."""
    return label[1:] if label.startswith("'") and FORMULA.match(label) else label


# ---- GraphML


def parse_graphml(text: str, path: Path) -> WeightedNetwork:
    """Parse GraphML; the edge attribute ``weight`` is optional."""
    import networkx as nx

    markup = re.finditer(r"<!--.*?-->|<!\[CDATA\[.*?\]\]>|<!", text, flags=re.DOTALL)
    start = next((match.start() for match in markup if match[0] == "<!"), None)
    if start is not None:
        raise FileError(
            f"{path}:{text.count(chr(10), 0, start) + 1}: {text[start:].split(maxsplit=1)[0]!r:.40} declares a document "
            "type or entities; GraphML needs none, and they are refused."
        )
    line_of = _check_graphml(text, path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of ports and the like, which change nothing
            graph: Any = nx.parse_graphml(text)
    except (nx.NetworkXError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise FileError(f"{path} is not GraphML that can be read: {brief(str(error))}.") from None
    number = {node: i for i, node in enumerate(graph.nodes)}
    edges, weights = [], []
    for source, target, weight in graph.edges(data="weight", default=graph.graph["edge_default"].get("weight", 1.0)):
        line = line_of.get((source, target)) or line_of[target, source]
        both_ways = not graph.is_directed() and source != target
        edges += [(number[source], number[target]), (number[target], number[source])][: 1 + both_ways]
        weights += [_parse_weight(str(weight), f"{path}:{line}: edge {source} -> {target}")] * (1 + both_ways)
    names = [str(node) for node in graph.nodes]
    numbered = names == [str(i) for i in range(len(names))]
    return WeightedNetwork(_matrix(len(names), edges, weights), None if numbered else names)


def _check_graphml(text: str, path: Path) -> dict[tuple[str, str], int]:
    """Refuse errors that networkx would correct silently: several graphs, repeated nodes and edges, ends that are no nodes.

    Returns the line of each edge.
    """
    elements: dict[str, list[tuple[dict[str, str], int]]] = {"graph": [], "node": [], "edge": []}
    parser = expat.ParserCreate(namespace_separator="}")

    def start_element(name: str, attributes: dict[str, str]) -> None:
        elements.get(name.rpartition("}")[2], []).append((attributes, parser.CurrentLineNumber))

    parser.StartElementHandler = start_element
    try:
        parser.Parse(text, True)
    except expat.ExpatError as error:
        raise FileError(f"{path}:{error.lineno}: not well-formed XML: {error}.") from None
    if (graphs := len(elements["graph"])) != 1:
        raise FileError(f"{path} is not GraphML that can be read: it holds {graphs} graphs instead of one.")
    if not elements["node"]:
        raise FileError(f"{path} holds no nodes.")
    nodes: dict[str | None, int] = {}
    for node, line in elements["node"]:
        name = node.get("id")
        if name is None or name in nodes:
            problem = "has no id" if name is None else f"{name!r:.80} stands in line {nodes[name]} already"
            raise FileError(f"{path}:{line}: node {problem}; every node needs an id of its own.")
        nodes[name] = line
    undirected = elements["graph"][0][0].get("edgedefault") == "undirected"
    edges: dict[tuple[str, str], int] = {}
    for edge, line in elements["edge"]:
        source, target = edge.get("source"), edge.get("target")
        where = f"{path}:{line}: edge {source} -> {target}"
        if source is None or target is None or source not in nodes or target not in nodes:
            raise FileError(f"{where} has an end that is no node of the file.")
        earlier = edges.get((source, target)) or (edges.get((target, source)) if undirected else None)
        if earlier:
            raise FileError(f"{where} stands in line {earlier} already.")
        edges[source, target] = line
    return edges


def format_graphml(matrix: csr_array, labels: Sequence[str] | None) -> str:
    """Return the text that `parse_graphml` parses to the same network."""
    import networkx as nx

    names = labels or [str(i) for i in range(matrix.shape[0])]
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(names)
    for source, target, weight in _weighted_edges(matrix):
        graph.add_edge(names[source], names[target], **({} if weight is None else {"weight": weight}))
    return "\n".join(nx.generate_graphml(graph)) + "\n"

"""Lists of edges, a line each, as SNAP, KONECT, networkx and this package write them."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy.sparse import csr_array

from perron.errors import FileError
from perron.networks._checks import check_nodes
from perron.networks._formats.base import EdgeList, WeightedNetwork, parse_weight, to_matrix, weighted_edges

SUFFIXES = (".edges", ".edgelist", ".txt")
NAMES_IN = (*SUFFIXES, ".tsv", ".ncol")  # only there nodes may have names: elsewhere any two words would be an edge


def parse_edge_list(text: str, path: Path) -> WeightedNetwork:
    """Parse lines ``source target [weight]``.

    Comments begin with # or %. ``# nodes: N`` and ``# labels: [...]`` are ours; without them the ids that occur are the nodes.
    ``% sym`` is KONECT's mark of an undirected graph; its lines may have a fourth column, a time. A line of networkx may end with
    a dictionary.
    """
    header = _Header()
    rows: list[tuple[str, str]] = []
    lines: list[int] = []
    weights: list[float] = []
    columns = 0
    for number, line in enumerate(text.splitlines(), start=1):
        body = header.read(line, f"{path}:{number}") if "#" in line or "%" in line else line
        attributes: dict[str, object] = {}
        if "{" in body:
            body, attributes = _parse_attributes(body, f"{path}:{number}")
        tokens = body.replace(",", " ").split()
        if not tokens:
            continue
        columns = columns or len(tokens)
        if len(tokens) not in ((2, 3, 4) if header.konect else (2, 3)) or len(tokens) != columns:
            raise FileError(
                f"{path}:{number}: a line is 'source target' or 'source target weight', all alike; got {line.strip()!r:.60}."
            )
        rows.append((tokens[0], tokens[1]))
        lines.append(number)
        token = tokens[2] if columns > 2 else str(attributes.get("weight", 1.0))
        weights.append(1.0 if token in ("1", "1.0") else parse_weight(token, f"{path}:{number}"))
    if not rows and header.nodes is None:
        raise FileError(f"{path} holds no edges. A line is 'source target' or 'source target weight'.")
    if header.konect[:1] == ["bip"]:
        raise FileError(f"{path} is a bipartite network, whose two sides have numbers of their own; it is not a graph.")
    if (
        rows
        and header.nodes is None
        and _may_have_names(path)
        and not any(token[0] in "+-.0123456789" for token in rows[0])
    ):
        named = EdgeList(path, open_ended=True)
        for (source, target), weight, number in zip(rows, weights, lines, strict=True):
            named.add_edge(source, target, weight, number, header.undirected)
        return named.network()
    return _numbered(rows, lines, weights, header, path)


class _Header:
    """What the comments of a list of edges say."""

    def __init__(self) -> None:
        self.nodes: int | None = None
        self.labels: list[str] | None = None
        self.konect: list[str] = []  # the words of the first comment with %

    @property
    def undirected(self) -> bool:
        return self.konect[:1] == ["sym"]

    def read(self, line: str, where: str) -> str:
        """Read the comment of a line, and return the rest."""
        body, _, comment = line.partition("#")
        if found := re.fullmatch(r"\s*(nodes|labels):\s*(.+)", comment):
            if found[1] == "nodes":
                self.nodes = check_nodes(_parse_node(found[2].strip(), where, "a number of nodes"))
            else:
                self.labels = _parse_labels(found[2], where)
        if not body.lstrip().startswith("%"):
            return body
        self.konect = self.konect or body.strip(" %\t").split() or ["%"]
        return ""


def _may_have_names(path: Path) -> bool:
    suffix = Path(path.stem).suffix if path.suffix.lower() == ".gz" else path.suffix
    return suffix.lower() in NAMES_IN


def _numbered(
    rows: list[tuple[str, str]], lines: list[int], weights: list[float], header: _Header, path: Path
) -> WeightedNetwork:
    """A network whose nodes are whole numbers."""
    nodes, labels = header.nodes, header.labels
    parsed = [_parse_nodes(row, path, number) for row, number in zip(rows, lines, strict=True)]
    pairs, notes = np.array(parsed, dtype=np.int64).reshape(-1, 2), []
    if nodes is None:
        ids, inverse = np.unique(pairs, return_inverse=True)
        nodes = check_nodes(len(ids))
        if ids[-1] != nodes - 1 and labels is None:
            pairs, labels = inverse.reshape(-1, 2), [str(node) for node in ids]
            notes = [f"the {nodes:,} ids that occur, {ids[0]} .. {ids[-1]}, are the nodes"]
    outside = np.flatnonzero((pairs >= nodes).any(axis=1))
    if len(outside):
        where = f"{path}:{lines[outside[0]]}"
        raise FileError(
            f"{where}: unknown node {pairs[outside[0]].max()}; the file says there are {nodes}, numbered from 0."
        )
    matrix, merged = to_matrix(nodes, pairs, weights, header.undirected)
    return WeightedNetwork(matrix, labels, (*notes, *merged))


def _parse_nodes(row: tuple[str, str], path: Path, number: int) -> tuple[int, int]:
    source, target = row
    if source.isascii() and target.isascii() and source.isdigit() and target.isdigit() and len(source + target) < 19:
        return int(source), int(target)
    return _parse_node(source, f"{path}:{number}"), _parse_node(target, f"{path}:{number}")


def _parse_node(token: str, where: str, kind: str = "a node") -> int:
    if not re.fullmatch(r"[0-9]{1,18}", token):
        raise FileError(
            f"{where}: {token!r:.80} is not {kind}; nodes are whole numbers from 0, or all have names (in .edges and .txt files)."
        )
    return int(token)


def _parse_attributes(body: str, where: str) -> tuple[str, dict[str, object]]:
    """The dictionary at the end of a line, as networkx writes it."""
    start = body.index("{")
    try:
        attributes = ast.literal_eval(body[start:].strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        attributes = None
    if not isinstance(attributes, dict):
        raise FileError(f"{where}: {body[start:].strip()!r:.80} is not a dictionary of attributes, as {{'weight': 2}}.")
    return body[:start], attributes


def _parse_labels(text: str, where: str) -> list[str]:
    try:
        labels = json.loads(text)
    except (json.JSONDecodeError, RecursionError):
        labels = None
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise FileError(
            f'{where}: labels are a JSON list of strings, as in # labels: ["paris", "rome"]; got {text!r:.80}.'
        )
    return labels


def format_edge_list(matrix: csr_array, labels: Sequence[str] | None) -> str:
    """Return the text that `parse_edge_list` parses to the same network."""
    lines = ["# source target [weight]: messages travel from source to target", f"# nodes: {matrix.shape[0]}"]
    lines += [f"# labels: {json.dumps(list(labels))}"] if labels else []
    for source, target, weight in weighted_edges(matrix):
        lines.append(f"{source} {target}" if weight is None else f"{source} {target} {weight!r}")
    return "\n".join(lines) + "\n"

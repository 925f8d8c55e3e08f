"""Tables with separators: the matrix of a network, or its edges, as Gephi and spreadsheets write them."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path

from scipy.sparse import csr_array

from perron.errors import FileError
from perron.networks._formats.base import EdgeList, WeightedNetwork, parse_weight

FORMULA = re.compile(r"'*[=+\-@\t\r]")  # the beginning of text that a spreadsheet would evaluate
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
ENDS = (("source", "target"), ("from", "to"), ("src", "dst"))  # columns of a list of edges

Rows = list[tuple[int, list[str]]]  # with the numbers of their lines


def parse_table(text: str, path: Path) -> WeightedNetwork:
    """Parse a list of edges with a header (Source,Target,...) or of two or three columns; or else an n x n matrix."""
    lines = _split(text, path)
    header = [cell.strip().lower() for cell in lines[0][1]]
    ends = next((pair for pair in ENDS if header[0] and set(pair) <= set(header)), None)
    if ends:
        return _edges(lines[1:], header, ends, path)
    width = len(header)
    if width in (2, 3) and header[0] and len(lines) > width and all(len(row) == width for _, row in lines):
        found = _edges(lines, ["source", "target", "weight"][:width], ENDS[0], path)
        return found._replace(notes=("read as a list of edges, because it is no square matrix", *found.notes))
    return _matrix(lines, path)


def _split(text: str, path: Path) -> Rows:
    content = text.splitlines(keepends=True)
    first = next((place for place, line in enumerate(content) if line.strip() and not line.startswith("#")), 0)
    content[:first] = ["\n"] * first  # comments at the beginning
    reader = csv.reader(content, delimiter=max(",;\t", key=content[first].count), strict=True)
    try:
        lines = [(reader.line_num, row) for row in reader if row and any(cell.strip() for cell in row)]
    except csv.Error as error:
        raise FileError(f"{path}:{reader.line_num}: not a CSV table: {error}.") from None
    if not lines:
        raise FileError(f"{path} holds no numbers.")
    return lines


def _edges(lines: Rows, header: list[str], ends: tuple[str, str], path: Path) -> WeightedNetwork:
    column = {name: place for place, name in enumerate(header)}
    found = EdgeList(path, open_ended=True)
    for number, row in lines:
        if len(row) != len(header):
            raise FileError(f"{path}:{number}: this line has {len(row)} columns, but the first has {len(header)}.")
        cells = {name: row[place].strip() for name, place in column.items()}
        kind = cells.get("type", "").lower()
        if kind not in ("", "directed", "undirected"):
            raise FileError(f"{path}:{number}: the type of an edge is Directed or Undirected; got {kind!r:.80}.")
        source, target = (_plain(cells[end]) for end in ends)
        if not source or not target:
            raise FileError(
                f"{path}:{number}: an edge needs a source and a target; got {source!r:.80} and {target!r:.80}."
            )
        found.add_edge(source, target, cells.get("weight") or 1.0, number, kind == "undirected")
    return found.network()


def _matrix(lines: Rows, path: Path) -> WeightedNetwork:
    """An n x n matrix, with labels in the first row and column if the corner is empty."""
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
                "begins with the line source,target or source,target,weight."
            )
    weights = [[parse_weight(cell.strip(), f"{path}:{number}") for cell in row] for number, row in lines]
    return WeightedNetwork(csr_array(weights), labels)


def format_csv(matrix: csr_array, labels: Sequence[str] | None) -> str:
    """Return the text that `parse_table` parses to the same network."""
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

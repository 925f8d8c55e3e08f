"""What all formats share: the content of a file, weights, labels, and the matrix of a list of edges."""

from __future__ import annotations

import gzip
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array

from perron._storage.npz import MAX_UNPACKED
from perron.errors import FileError
from perron.networks._checks import check_nodes

MAX_RATIO, MIN_UNPACKED = 50, 2**24  # gzip makes lists of edges 3 to 20 times smaller; so much is read in any case


class WeightedNetwork(NamedTuple):
    """The content of a file: a weight matrix, labels of the nodes if there are any, and what was changed or assumed."""

    matrix: csr_array
    labels: list[str] | None = None
    notes: tuple[str, ...] = ()


def read_bytes(path: Path) -> bytes:
    """Return the content of a file, uncompressed if it is gzipped."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise FileError(f"Cannot read {path}: {error.strerror or error}.") from None
    if not content.startswith(b"\x1f\x8b"):
        return content
    most = min(MAX_UNPACKED, max(MIN_UNPACKED, MAX_RATIO * len(content)))
    try:
        with gzip.open(BytesIO(content)) as file:
            unpacked = file.read(most + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise FileError(f"{path} is a damaged gzip file: {error}.") from None
    if len(unpacked) > most:
        raise FileError(
            f"{path} has {len(content):,} bytes and would unpack to more than {most:,}, which no list of edges does. If it is a "
            "network, unpack it first."
        )
    return unpacked


def decode(content: bytes, path: Path) -> str:
    """Return the text of UTF-8 bytes that are not empty."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FileError(f"{path} is not UTF-8 text (byte {error.start}). Save it as UTF-8.") from None
    if "\0" in text:
        raise FileError(f"{path} is not text: it holds a zero byte. Is it UTF-16? Save it as UTF-8.")
    text = text.removeprefix("\ufeff")
    if not text.strip():
        raise FileError(f"{path} is empty.")
    return text


def parse_weight(token: str, where: str) -> float:
    """Return a weight, finite and not negative."""
    try:
        weight = float(
            token if token.isascii() and "_" not in token else ""
        )  # Python accepts 1_0 and other digits, too
    except ValueError:
        raise FileError(f"{where}: {token!r:.80} is not a number.") from None
    if not 0 <= weight < np.inf:
        raise FileError(f"{where}: a weight is finite and not negative; got {token!r:.80}.")
    return weight


class EdgeList:
    """Nodes and edges as they are found in a file, by the names that it uses.

    Nodes are declared first (`add_node`), and an edge between others is refused; or, with ``open_ended``, they are those of the
    edges, in their order.
    """

    def __init__(self, path: Path, *, open_ended: bool = False) -> None:
        self.path, self.open_ended = path, open_ended
        self.number: dict[Any, int] = {}
        self.labels: list[str] = []
        self.named = False  # whether some label is not just the name
        self.pairs: list[tuple[int, int]] = []
        self.weights: list[float] = []
        self.undirected: list[bool] = []
        self._line: dict[Any, object] = {}

    def add_node(self, name: Any, label: str | None = None, line: object = "") -> None:
        """Declare a node, once."""
        if name in self.number:
            raise FileError(
                f"{self.path}{_at(line)}: node {str(name)!r:.80} stands in line {self._line[name]} already; every node needs an "
                "id of its own."
            )
        self._line[name] = line
        self.number[name] = len(self.number)
        self.labels.append(str(name) if label is None else label)
        self.named |= label is not None and label != str(name)

    def add_edge(
        self, source: Any, target: Any, weight: object = 1.0, line: object = "", undirected: bool = False
    ) -> None:
        """Add an edge between two nodes; an undirected one goes both ways."""
        where = f"{self.path}{_at(line)}: edge {source!s:.80} -> {target!s:.80}"
        for end in (source, target):
            if end not in self.number:
                if not self.open_ended:
                    raise FileError(f"{where} has an end that is no node of the file.")
                self.add_node(end, line=line)
        self.weights.append(1.0 if weight == 1.0 else parse_weight(str(weight), where))
        self.pairs.append((self.number[source], self.number[target]))
        self.undirected.append(undirected)

    def network(self, *notes: str) -> WeightedNetwork:
        """Return the network."""
        if not self.number:
            raise FileError(f"{self.path} holds no nodes.")
        count = check_nodes(len(self.number))
        matrix, merged = to_matrix(count, self.pairs, self.weights, self.undirected)
        plain = not self.named and [str(name) for name in self.number] == [str(i) for i in range(count)]
        labels = None if plain else _distinct(self.labels, list(self.number))
        return WeightedNetwork(matrix, labels, (*notes, *merged))


def to_matrix(
    nodes: int, pairs: Sequence[tuple[int, int]] | Any, weights: Sequence[float] | Any, undirected: Any = False
) -> tuple[csr_array, tuple[str, ...]]:
    """The matrix of edges (source, target), and a note if parallel ones were merged: weights are added, unless all are 1."""
    edges = np.asarray(pairs, dtype=np.int64).reshape(-1, 2)
    values, both = (
        np.asarray(weights, dtype=np.float64),
        np.broadcast_to(np.asarray(undirected, dtype=bool), len(edges)),
    )
    distinct = np.unique(np.where(both[:, None], np.sort(edges, axis=1), edges), axis=0)
    back = both & (edges[:, 0] != edges[:, 1])
    source, target = np.concatenate([edges, edges[back, ::-1]]).T
    matrix = csr_array((np.concatenate([values, values[back]]), (target, source)), shape=(nodes, nodes))
    matrix.sum_duplicates()
    if not (merged := len(edges) - len(distinct)):
        return matrix, ()
    plain = bool((values == 1).all())
    if plain:
        matrix.data[:] = 1
    one = "1 parallel edge was" if merged == 1 else f"{merged:,} parallel edges were"
    return matrix, (f"{one} merged" + ("" if plain else ", adding their weights"),)


def weighted_edges(matrix: csr_array) -> Iterator[tuple[int, int, float | None]]:
    """Yield (source, target, weight) of each entry; the weight is None if all weights are 1."""
    entries = matrix.tocoo()
    weights = [None] * matrix.nnz if (matrix.data == 1).all() else entries.data.tolist()
    return zip(entries.col.tolist(), entries.row.tolist(), weights, strict=True)


def _distinct(labels: Sequence[str], names: Sequence[Any]) -> list[str]:
    """Labels that are all different: those that occur again get the name of their node."""
    seen = Counter(labels)
    return [
        label
        if label.strip() and seen[label] == 1
        else f"{label.strip()} ({name})".strip()
        if label.strip()
        else str(name)
        for label, name in zip(labels, names, strict=True)
    ]


def _at(line: object) -> str:
    return f":{line}" if line != "" else ""

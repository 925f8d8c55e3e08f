"""Networks in files: read with every doubt answered by file, line and token; written atomically.

| suffix                     | holds                                                                                |
|----------------------------|--------------------------------------------------------------------------------------|
| .graphml                   | directed or undirected, node names, the edge attribute ``weight`` if there is one      |
| .edges .edgelist .txt      | a line ``source target [weight]`` for each edge; ``# nodes: N``, ``# labels: [...]``   |
| .csv                       | the n x n matrix, ``[i, j]`` = what i takes from j; names in row and column 0, if any |
| .npz                       | the same matrix, sparse as scipy writes it or one dense array; or a whole `Mixing`    |

Edges without a weight weigh 1. Self-loops are read as they stand: ``read_graph(path).with_self_loops()`` adds the rest.
Nothing is ever unpickled.
"""

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

from perron._storage import npz
from perron._storage.atomic import write_bytes
from perron._typing import FloatArray
from perron.errors import FileError, GraphError, MixingError, brief
from perron.networks.graph import Graph, check_nodes
from perron.networks.mixing import Mixing

EDGE_LISTS = (".edges", ".edgelist", ".txt")
SUFFIXES = (".graphml", *EDGE_LISTS, ".csv", ".npz")
KINDS = ("graph", "node", "edge")  # elements of GraphML


class _Weights(NamedTuple):
    """What a file says: a weight matrix and perhaps names."""

    matrix: csr_array
    labels: list[str] | None


def read_graph(path: str | Path) -> Graph:
    """The graph in a file: an edge wherever the weight is not zero."""
    weights = _read(Path(path))
    try:
        return Graph.from_matrix(weights.matrix, name=Path(path).name, labels=weights.labels)
    except GraphError as error:
        raise FileError(f"{path}: {error}") from None


def read_matrix(path: str | Path) -> csr_array:
    """The weight matrix in a file, sparse, ``[i, j]`` = what i takes from j."""
    return _read(Path(path)).matrix


def write_graph(graph: Graph, path: str | Path) -> Path:
    """Write a graph in the format that the suffix names; reading it gives an equal graph."""
    return _write(Path(path), graph.adjacency(), graph.labels)


def write_matrix(matrix: Any, path: str | Path) -> Path:
    """Write a weight matrix in the format that the suffix names; reading it gives the same numbers."""
    return _write(Path(path), csr_array(matrix, dtype=np.float64), None)


def read_mixing(path: str | Path) -> Mixing:
    """The `Mixing` that `write_mixing` wrote, checked anew."""
    path = Path(path)
    arrays = npz.read(path)
    if "perron_mixing" not in arrays:
        raise FileError(f"{path} holds no mixing but {sorted(arrays)}. Write one with write_mixing(mixing, path).")
    try:
        about = json.loads(str(arrays["perron_mixing"]))
        shape = (about["nodes"], about["nodes"])
        pull, push = (
            [_csr(arrays, f"{side}{k}_", shape, path) for k in range(about[side])] for side in ("pull", "push")
        )
        return Mixing(pull or None, push or None, connected=about["connected"], name=about["name"])
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise FileError(f"{path} is damaged: {error!r}.") from None
    except MixingError as error:
        raise FileError(f"{path}: {error}") from None


def write_mixing(mixing: Mixing, path: str | Path) -> Path:
    """Write both matrices of a network, time-varying ones too, to an .npz."""
    path = Path(path)
    if path.suffix.lower() != ".npz":
        raise FileError(f"A mixing is written to an .npz file; got {path}. For one matrix use write_matrix.")
    pulls, pushes = mixing.sequences
    about = {
        "nodes": mixing.nodes,
        "name": mixing.name,
        "connected": "strongly" if mixing.is_strongly_connected else "rooted",
        "pull": len(pulls),
        "push": len(pushes),
    }
    arrays = {"perron_mixing": np.array(json.dumps(about))}
    for side, matrices in (("pull", pulls), ("push", pushes)):
        for k, matrix in enumerate(matrices):
            sparse = csr_array(matrix)
            for part in ("data", "indices", "indptr"):
                arrays[f"{side}{k}_{part}"] = getattr(sparse, part)
    return write_bytes(path, npz.packed(arrays))


def holds_mixing(path: str | Path) -> bool:
    """Whether a file is one that `write_mixing` wrote."""
    return Path(path).suffix.lower() == ".npz" and "perron_mixing" in npz.read(Path(path))


# ---- by suffix


def _read(path: Path) -> _Weights:
    suffix = _check_suffix(path)
    try:
        if suffix == ".npz":
            return _from_npz(path)
        if suffix == ".graphml":
            return _from_graphml(path)
        return _from_csv(path) if suffix == ".csv" else _from_edge_list(path)
    except GraphError as error:
        raise FileError(f"{path}: {error}") from None


def _write(path: Path, matrix: csr_array, labels: Sequence[str] | None) -> Path:
    suffix = _check_suffix(path)
    if matrix.shape[0] != matrix.shape[1] or not np.isfinite(matrix.data).all() or (matrix.data < 0).any():
        raise FileError(f"{path}: a network is a square matrix of finite weights that are not negative.")
    if suffix == ".npz":
        parts = {part: getattr(matrix, part) for part in ("data", "indices", "indptr")}
        names = {"labels": np.array(labels)} if labels else {}
        return write_bytes(
            path, npz.packed(parts | names | {"format": np.array("csr"), "shape": np.array(matrix.shape)})
        )
    to = _to_graphml if suffix == ".graphml" else _to_csv if suffix == ".csv" else _to_edge_list
    return write_bytes(path, to(matrix, labels).encode())


def _check_suffix(path: Path) -> str:
    if path.suffix.lower() not in SUFFIXES:
        raise FileError(
            f"{path} has the suffix {path.suffix or '(none)'!r}; a network is in one of {', '.join(SUFFIXES)}."
        )
    return path.suffix.lower()


def _text(path: Path) -> str:
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


def _matrix(nodes: int, sources: Any, targets: Any, weights: Any) -> csr_array:
    return csr_array((np.asarray(weights, dtype=np.float64), (targets, sources)), shape=(nodes, nodes))


# ---- edge lists


def _from_edge_list(path: Path) -> _Weights:
    nodes: int | None = None
    labels: list[str] | None = None
    seen: dict[tuple[int, int], int] = {}
    weights: list[float] = []
    columns = 0
    for number, line in enumerate(_text(path).splitlines(), start=1):
        where = f"{path}:{number}"
        body, _, comment = line.partition("#")
        if header := re.fullmatch(r"\s*(nodes|labels):\s*(.+)", comment):
            if header[1] == "nodes":
                nodes = check_nodes(_whole(header[2].strip(), where, "a number of nodes"))
            else:
                labels = _label_header(header[2], where)
        tokens = body.replace(",", " ").split()
        if not tokens:
            continue
        columns = columns or len(tokens)
        if len(tokens) not in (2, 3) or len(tokens) != columns:
            raise FileError(
                f"{where}: a line is 'source target' or 'source target weight', all alike; got {line.strip()!r:.60}."
            )
        edge = (_whole(tokens[0], where), _whole(tokens[1], where))
        if edge in seen:
            raise FileError(f"{where}: edge {edge[0]} {edge[1]} stands in line {seen[edge]} already.")
        seen[edge] = number
        weights.append(_weight(tokens[2], where) if len(tokens) == 3 else 1.0)
    if nodes is None:
        if not seen:
            raise FileError(f"{path} holds no edges. A line is 'source target' or 'source target weight'.")
        nodes = check_nodes(1 + max(max(edge) for edge in seen))
    for edge, number in seen.items():
        if max(edge) >= nodes:
            raise FileError(
                f"{path}:{number}: unknown node {max(edge)}; the file says there are {nodes}, numbered from 0."
            )
    pairs = np.array(list(seen), dtype=np.int64).reshape(-1, 2)
    return _Weights(_matrix(nodes, pairs[:, 0], pairs[:, 1], weights), labels)


def _to_edge_list(matrix: csr_array, labels: Sequence[str] | None) -> str:
    lines = ["# source target [weight]: what travels from source to target", f"# nodes: {matrix.shape[0]}"]
    lines += [f"# labels: {json.dumps(list(labels))}"] if labels else []
    plain = (matrix.data == 1).all()
    for target, source, weight in _entries(matrix):
        lines.append(f"{source} {target}" if plain else f"{source} {target} {weight!r}")
    return "\n".join(lines) + "\n"


def _label_header(text: str, where: str) -> list[str]:
    try:
        labels = json.loads(text)
    except json.JSONDecodeError:
        labels = None
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise FileError(
            f'{where}: labels are a JSON list of strings, as in # labels: ["paris", "rome"]; got {text!r:.80}.'
        )
    return labels


def _whole(token: str, where: str, what: str = "a node") -> int:
    if not re.fullmatch(r"[0-9]{1,18}", token):
        raise FileError(
            f"{where}: {token!r:.80} is not {what}; nodes are whole numbers from 0. For names use .graphml or .csv."
        )
    return int(token)


def _weight(token: str, where: str) -> float:
    try:
        weight = float(token if token.isascii() and "_" not in token else "")  # Python takes 1_0 and other digits, too
    except ValueError:
        raise FileError(f"{where}: {token!r:.80} is not a number.") from None
    if not np.isfinite(weight) or weight < 0:
        raise FileError(f"{where}: a weight is finite and not negative; got {token!r:.80}.")
    return weight


# ---- matrices as CSV


def _from_csv(path: Path) -> _Weights:
    try:
        reader = csv.reader(_text(path).splitlines(keepends=True), strict=True)
        lines = [(reader.line_num, row) for row in reader if row and any(cell.strip() for cell in row)]
    except csv.Error as error:
        raise FileError(f"{path}:{reader.line_num}: not a CSV table: {error}.") from None
    if not lines:
        raise FileError(f"{path} holds no numbers.")
    labels = None
    if not lines[0][1][0].strip():  # names in the first row and column, the corner empty
        labels, lines = lines[0][1][1:], lines[1:]
        for i, (number, row) in enumerate(lines):
            if i >= len(labels) or row[0] != labels[i]:
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
    return _Weights(csr_array([[_weight(cell.strip(), f"{path}:{n}") for cell in row] for n, row in lines]), labels)


def _to_csv(matrix: csr_array, labels: Sequence[str] | None) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    if labels:
        writer.writerow(["", *labels])
    for i in range(matrix.shape[0]):
        row = matrix[[i]].toarray()[0]
        cells = [repr(int(value) if value == int(value) else float(value)) for value in row]
        writer.writerow([labels[i], *cells] if labels else cells)
    return out.getvalue()


# ---- GraphML


def _from_graphml(path: Path) -> _Weights:
    import networkx as nx

    text = _text(path)
    declared = (
        one for one in re.finditer(r"<!--.*?-->|<!\[CDATA\[.*?\]\]>|<!", text, flags=re.DOTALL) if one[0] == "<!"
    )
    if (first := next(declared, None)) is not None:
        raise FileError(
            f"{path}:{text.count(chr(10), 0, first.start()) + 1}: {text[first.start() :].split()[0]!r:.40} declares a document "
            "type or entities; GraphML needs none, and they are refused."
        )
    line_of = _check_graphml(text, path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of ports and the like, which change nothing
            graph: Any = nx.parse_graphml(text)
    except (nx.NetworkXError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise FileError(f"{path} is not GraphML that can be read: {brief(str(error))}.") from None
    names = [str(node) for node in graph.nodes]
    number = {node: i for i, node in enumerate(graph.nodes)}
    edges = []
    for source, target, weight in graph.edges(data="weight", default=1.0):
        line = line_of.get((source, target)) or line_of[target, source]
        value = _weight(str(weight), f"{path}:{line}: edge {source} -> {target}")
        edges.append((number[source], number[target], value))
        if not graph.is_directed() and source != target:
            edges.append((number[target], number[source], value))
    sources, targets, weights = np.array(edges, dtype=np.float64).reshape(-1, 3).T
    matrix = _matrix(len(names), sources.astype(np.int64), targets.astype(np.int64), weights)
    return _Weights(matrix, None if names == [str(i) for i in range(len(names))] else names)


def _check_graphml(text: str, path: Path) -> dict[tuple[str, str], int]:
    """What networkx would silently mend: more than one graph, nodes and edges that repeat, ends that no node has.

    Returns the line of each edge.
    """
    parts: dict[str, list[tuple[dict[str, str], int]]] = {kind: [] for kind in KINDS}
    parser = expat.ParserCreate(namespace_separator="}")

    def begin(name: str, attributes: dict[str, str]) -> None:
        parts.get(name.rpartition("}")[2], []).append((attributes, parser.CurrentLineNumber))

    parser.StartElementHandler = begin
    try:
        parser.Parse(text, True)
    except expat.ExpatError as error:
        raise FileError(f"{path}:{error.lineno}: not well-formed XML: {error}.") from None
    if len(parts["graph"]) != 1:
        raise FileError(
            f"{path} is not GraphML that can be read: it holds {len(parts['graph'])} graphs instead of one."
        )
    if not parts["node"]:
        raise FileError(f"{path} holds no nodes.")
    nodes: dict[str | None, int] = {}
    for node, line in parts["node"]:
        name = node.get("id")
        if name is None or name in nodes:
            found = "has no id" if name is None else f"{name!r:.80} stands in line {nodes[name]} already"
            raise FileError(f"{path}:{line}: node {found}; every node needs an id of its own.")
        nodes[name] = line
    undirected = parts["graph"][0][0].get("edgedefault") == "undirected"
    edges: dict[tuple[str, str], int] = {}
    for edge, line in parts["edge"]:
        source, target = edge.get("source"), edge.get("target")
        what = f"{path}:{line}: edge {source} -> {target}"
        if source is None or target is None or source not in nodes or target not in nodes:
            raise FileError(f"{what} has an end that is no node of the file.")
        before = edges.get((source, target)) or (edges.get((target, source)) if undirected else None)
        if before:
            raise FileError(f"{what} stands in line {before} already.")
        edges[source, target] = line
    return edges


def _to_graphml(matrix: csr_array, labels: Sequence[str] | None) -> str:
    import networkx as nx

    names = labels or [str(i) for i in range(matrix.shape[0])]
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(names)
    plain = (matrix.data == 1).all()
    for target, source, weight in _entries(matrix):
        graph.add_edge(names[source], names[target], **({} if plain else {"weight": weight}))
    return "\n".join(nx.generate_graphml(graph)) + "\n"


def _entries(matrix: csr_array) -> Iterator[tuple[int, int, float]]:
    entries = matrix.tocoo()
    return zip(entries.row.tolist(), entries.col.tolist(), entries.data.tolist(), strict=True)


# ---- npz


def _from_npz(path: Path) -> _Weights:
    arrays = npz.read(path)
    if "perron_mixing" in arrays:
        raise FileError(f"{path} holds a whole mixing, not one matrix. Read it with read_mixing.")
    names = arrays.pop("labels", None)
    labels = None if names is None else [str(name) for name in np.atleast_1d(names)]
    if {"data", "indices", "indptr", "shape"} <= set(arrays):
        if not np.issubdtype(arrays["shape"].dtype, np.integer):
            raise FileError(f"{path} is damaged: its shape is not made of whole numbers.")
        shape = tuple(int(side) for side in np.ravel(arrays["shape"]))
        kind = np.ravel(arrays.get("format", np.array("csr"))).tolist()
        form = kind[0].decode(errors="replace") if kind and isinstance(kind[0], bytes) else str(kind[0] if kind else "")
        if form not in ("csr", "csc") or len(shape) != 2 or shape[0] != shape[1]:
            raise FileError(f"{path} holds a {form} matrix of shape {shape}; a square csr or csc matrix is read.")
        matrix = _csr(arrays, "", (check_nodes(shape[0]), shape[0]), path)
        return _Weights(csr_array(matrix.T) if form == "csc" else matrix, labels)
    dense = [key for key, array in arrays.items() if array.ndim == 2]
    if len(dense) != 1:
        raise FileError(
            f"{path} must hold one matrix, dense or as scipy.sparse.save_npz writes it; got {sorted(arrays)}."
        )
    return _Weights(csr_array(_checked_values(arrays[dense[0]], path)), labels)


def _csr(arrays: dict[str, Any], prefix: str, shape: tuple[int, int], path: Path) -> csr_array:
    data, indices, indptr = (arrays[prefix + part] for part in ("data", "indices", "indptr"))
    values = _checked_values(data, path)
    whole = all(np.issubdtype(part.dtype, np.integer) and part.ndim == 1 for part in (indices, indptr))
    if not whole or len(indptr) != shape[0] + 1 or indptr[-1] != len(values):
        raise FileError(f"{path} is damaged: its row pointers and column numbers do not fit its {values.size} values.")
    try:
        matrix = csr_array((values, indices, indptr), shape=shape)
        matrix.check_format(full_check=True)
    except (ValueError, TypeError) as error:
        raise FileError(f"{path} is damaged: {error}.") from None
    matrix.sum_duplicates()
    return matrix


def _checked_values(values: Any, path: Path) -> FloatArray:
    real = np.issubdtype(values.dtype, np.integer) or np.issubdtype(values.dtype, np.floating)
    if not real and values.dtype != np.bool_:
        raise FileError(f"{path} holds {values.dtype} where numbers are needed.")
    numbers = np.asarray(values, dtype=np.float64)
    if not np.isfinite(numbers).all() or (numbers < 0).any():
        raise FileError(f"{path}: weights are finite and not negative; the smallest is {np.nanmin(numbers):g}.")
    return numbers

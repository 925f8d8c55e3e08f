"""Read and write networks. Errors contain the file, line and token; files are written atomically, and nothing is unpickled.

The format of a file is recognized by its content; it may be gzipped.

| format                     | content                                                                              |
|----------------------------|--------------------------------------------------------------------------------------|
| GraphML, GEXF              | directed or undirected, labels of nodes, weights                                       |
| GML                        | the same, as the Internet Topology Zoo has it                                          |
| Pajek .net                 | ``*Vertices``, ``*Arcs``, ``*Edges``, their lists, ``*Matrix``                             |
| JSON                       | node-link data of networkx and d3                                                      |
| lists of edges             | a line ``source target [weight]`` each, as SNAP, KONECT and networkx write them;          |
|                            | ours have ``# nodes: N`` and ``# labels: [...]``                                         |
| .csv                       | edges with a header ``Source,Target`` (Gephi), or two or three columns;                  |
|                            | or the n x n matrix, names in row and column 0, if any                                |
| Matrix Market .mtx         | the n x n matrix                                                                     |
| .npz                       | the same matrix, sparse as scipy writes it or one dense array; or a whole `Mixing`    |

In a matrix, ``[i, j]`` is the weight of node j at node i. Edges without a weight have weight 1, and undirected ones go both ways.
Parallel edges are merged: their weights are added, unless all are 1. Self-loops are not added; use
``read_graph(path).with_self_loops()``. Networks are written as .graphml, .edges (.edgelist, .txt), .csv or .npz.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from perron._storage import npz
from perron._storage.atomic import write_bytes
from perron._typing import FloatArray
from perron.errors import FileError, GraphError, MixingError
from perron.networks import _formats
from perron.networks._checks import check_nodes
from perron.networks._formats import WeightedNetwork, edge_list, table, xml
from perron.networks._formats.base import read_bytes
from perron.networks.graph import Graph
from perron.networks.mixing import Mixing

WRITERS = dict.fromkeys(edge_list.SUFFIXES, edge_list.format_edge_list) | {
    ".graphml": xml.format_graphml,
    ".csv": table.format_csv,
}
SUFFIXES = (".graphml", *edge_list.SUFFIXES, ".csv", ".npz")  # of files that are written
FORMAT = 1  # of a whole mixing; the first files had no number
CSR_PARTS = ("data", "indices", "indptr")


def read_graph(path: str | Path) -> Graph:
    """Read a graph: an edge for each nonzero weight. Its ``note`` tells what was changed, as parallel edges that were merged."""
    network = read_network(path)
    try:
        return Graph.from_matrix(
            network.matrix, name=Path(path).name, labels=network.labels, note="; ".join(network.notes)
        )
    except GraphError as error:
        raise FileError(f"{path}: {error}") from None


def read_matrix(path: str | Path) -> csr_array:
    """Read a weight matrix, ``[i, j]`` = the weight that node i gives to node j."""
    return read_network(path).matrix


def write_graph(graph: Graph, path: str | Path) -> Path:
    """Write a graph in the format of the suffix; `read_graph` returns an equal graph."""
    return _write(Path(path), graph.adjacency(), graph.labels)


def write_matrix(matrix: Any, path: str | Path) -> Path:
    """Write a weight matrix in the format of the suffix; `read_matrix` returns the same numbers."""
    return _write(Path(path), csr_array(matrix, dtype=np.float64), None)


def read_mixing(path: str | Path) -> Mixing:
    """Read a `Mixing` that `write_mixing` wrote, with all checks of the constructor."""
    path = Path(path)
    arrays, header = npz.read_with_header(path, "mixing", FORMAT, "write_mixing(mixing, path)")
    try:
        n = header["nodes"]
        pull, push = (
            [_to_csr(arrays, f"{side}{k}_", n, path) for k in range(header[side])] for side in ("pull", "push")
        )
        about = {"connected": header["connected"], "name": header["name"], "labels": header.get("labels")}
        return Mixing(pull or None, push or None, **about)
    except (KeyError, TypeError, AttributeError) as error:
        raise FileError(f"{path} is damaged: {error!r}.") from None
    except MixingError as error:
        raise FileError(f"{path}: {error}") from None


def write_mixing(mixing: Mixing, path: str | Path) -> Path:
    """Write both matrices of a network, constant or time-varying, to an .npz file."""
    path = Path(path)
    if path.suffix.lower() != ".npz":
        raise FileError(f"A mixing is written to an .npz file; got {path}. For one matrix use write_matrix.")
    header: dict[str, Any] = {
        "format": FORMAT,
        "nodes": mixing.nodes,
        "name": mixing.name,
        "connected": "strongly" if mixing.is_strongly_connected else "rooted",
    }
    if mixing.labels is not None:
        header["labels"] = list(mixing.labels)
    arrays: dict[str, Any] = {}
    for side, matrices in zip(("pull", "push"), mixing.sequences, strict=True):
        header[side] = len(matrices)
        for k, matrix in enumerate(map(csr_array, matrices)):
            arrays |= {f"{side}{k}_{part}": getattr(matrix, part) for part in CSR_PARTS}
    return write_bytes(path, npz.pack({"perron_mixing": np.array(json.dumps(header))} | arrays))


def holds_mixing(path: str | Path) -> bool:
    """Return whether `write_mixing` wrote this file."""
    return Path(path).suffix.lower() == ".npz" and "perron_mixing" in npz.read(Path(path))


def read_network(path: str | Path) -> WeightedNetwork:
    """Read the weight matrix, the labels of the nodes, and notes on what was changed."""
    path = Path(path)
    try:
        if path.suffix.lower() == ".npz":
            return _read_npz(path)
        content = read_bytes(path)
        return _read_npz(path) if content.startswith(b"PK\3\4") else _formats.parse(content, path)
    except GraphError as error:
        raise FileError(f"{path}: {error}") from None


def _write(path: Path, matrix: csr_array, labels: Sequence[str] | None) -> Path:
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise FileError(
            f"{path} has the suffix {path.suffix or '(none)'!r}; a network is written to one of {', '.join(SUFFIXES)}."
        )
    if matrix.shape[0] != matrix.shape[1] or not np.isfinite(matrix.data).all() or (matrix.data < 0).any():
        raise FileError(f"{path}: a network is a square matrix of finite weights that are not negative.")
    if suffix != ".npz":
        return write_bytes(path, WRITERS[suffix](matrix, labels).encode())
    arrays = {part: getattr(matrix, part) for part in CSR_PARTS} | ({"labels": np.array(labels)} if labels else {})
    return write_bytes(path, npz.pack(arrays | {"format": np.array("csr"), "shape": np.array(matrix.shape)}))


def _read_npz(path: Path) -> WeightedNetwork:
    arrays = npz.read(path)
    if "perron_mixing" in arrays:
        raise FileError(f"{path} holds a whole mixing, not one matrix. Read it with read_mixing.")
    names = arrays.pop("labels", None)
    labels = None if names is None else [str(name) for name in np.atleast_1d(names)]
    if {*CSR_PARTS, "shape"} <= set(arrays):
        if not np.issubdtype(arrays["shape"].dtype, np.integer):
            raise FileError(f"{path} is damaged: its shape is not made of whole numbers.")
        shape = tuple(int(side) for side in np.ravel(arrays["shape"]))
        kind = np.ravel(arrays.get("format", np.array("csr"))).tolist()
        form = kind[0].decode(errors="replace") if kind and isinstance(kind[0], bytes) else str(kind[0] if kind else "")
        if form not in ("csr", "csc") or len(shape) != 2 or shape[0] != shape[1]:
            raise FileError(f"{path} holds a {form} matrix of shape {shape}; a square csr or csc matrix is read.")
        matrix = _to_csr(arrays, "", check_nodes(shape[0]), path)
        return WeightedNetwork(csr_array(matrix.T) if form == "csc" else matrix, labels)
    dense = [key for key, array in arrays.items() if array.ndim == 2]
    if len(dense) != 1:
        raise FileError(
            f"{path} must hold one matrix, dense or as scipy.sparse.save_npz writes it; got {sorted(arrays)}."
        )
    return WeightedNetwork(csr_array(_check_weights(arrays[dense[0]], path)), labels)


def _to_csr(arrays: dict[str, Any], prefix: str, nodes: int, path: Path) -> csr_array:
    data, indices, indptr = (arrays[prefix + part] for part in CSR_PARTS)
    values = _check_weights(data, path)
    whole = all(np.issubdtype(part.dtype, np.integer) and part.ndim == 1 for part in (indices, indptr))
    if not whole or len(indptr) != nodes + 1 or indptr[-1] != len(values):
        raise FileError(f"{path} is damaged: its row pointers and column numbers do not fit its {values.size} values.")
    try:
        matrix = csr_array((values, indices, indptr), shape=(nodes, nodes))
        matrix.check_format(full_check=True)
    except (ValueError, TypeError) as error:
        raise FileError(f"{path} is damaged: {error}.") from None
    matrix.sum_duplicates()
    return matrix


def _check_weights(values: Any, path: Path) -> FloatArray:
    real = np.issubdtype(values.dtype, np.integer) or np.issubdtype(values.dtype, np.floating)
    if not real and values.dtype != np.bool_:
        raise FileError(f"{path} holds {values.dtype} where numbers are needed.")
    numbers = np.asarray(values, dtype=np.float64)
    if not np.isfinite(numbers).all() or (numbers < 0).any():
        raise FileError(f"{path}: weights are finite and not negative; the smallest is {np.nanmin(numbers):g}.")
    return numbers

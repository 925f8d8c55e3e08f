"""Read and write files of links, with latencies and rates. Errors contain the file and the line; nothing is unpickled.

| format        | content                                                                                                     |
|---------------|-------------------------------------------------------------------------------------------------------------|
| .csv          | a row per directed link below the header ``from,to,latency_ms,rate_mbit``; rows of nodes below the header     |
|               | ``node,up_mbit,down_mbit,compute_s``. Units are in the names of the columns, which have any order.             |
| .npz          | arrays ``latency``, ``rate`` (``[i, j]`` from j to i), ``up``, ``down``, ``compute`` in seconds and bytes per  |
|               | second, ``labels``, ``format``; with ``sources`` and ``targets``, latency and rate are those of these links   |
| GML, GraphML  | attributes ``latency``, ``rate`` (seconds, bytes per second), those of the CSV file, or ``distance`` in km     |
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from perron._storage import npz
from perron._storage.atomic import write_bytes
from perron.clock._link_formats import format_csv, is_links_csv, parse_csv, parse_links_gml, parse_links_graphml
from perron.clock._link_table import DENSE
from perron.clock.machines import Machines
from perron.errors import FileError, FormatError, PerronError, listed
from perron.networks._checks import check_labels
from perron.networks._formats import GML
from perron.networks._formats.base import decode, read_bytes

SUFFIXES = (".csv", ".npz")  # of files that are written
FORMAT = 1  # of .npz files
VALUES = ("latency", "rate", "up", "down", "compute")
ARRAYS = {*VALUES, "labels", "format", "sources", "targets", "nodes"}


def read_machines(path: str | Path) -> Machines:
    """Read a file of links; a name without a file is that of a preset, as ``"gaia"``."""
    from perron.clock import presets

    if not Path(path).is_file() and str(path) in presets.names():
        return presets.load(str(path))
    path = Path(path)
    if not path.exists():
        raise FileError(
            f"There is no file {path}, nor a preset of that name; presets are {', '.join(presets.names())}."
        )
    content = read_bytes(path)
    if content.startswith(b"PK\3\4"):
        return _read_npz(path)
    text = decode(content, path)
    try:
        if text.lstrip().startswith("<"):
            return parse_links_graphml(text, path)
        return parse_links_gml(text, path) if GML.match(text) else parse_csv(text, path)
    except FileError:
        raise
    except PerronError as error:
        raise FileError(f"{path}: {error}") from None


def holds_links(path: str | Path) -> bool:
    """Return whether this is the name of a preset or a file of links, not a matrix or a graph."""
    from perron.clock import presets

    path = Path(path)
    if not path.is_file():
        return str(path) in presets.names()
    content = read_bytes(path)
    if content.startswith(b"PK\3\4"):
        return {"latency", "rate"} & set(npz.read(path)) != set()
    text = decode(content, path)
    if not (text.lstrip().startswith("<") or GML.match(text)):
        return is_links_csv(text, path)
    try:
        read_machines(path)
    except FileError:  # no latencies, rates or distances
        return False
    return True


def write_machines(machines: Machines, path: str | Path) -> Path:
    """Write a file of links, .csv or .npz; `read_machines` returns machines with the same numbers."""
    path = check_target(path)
    check_labels(machines.labels, machines.graph.nodes)
    if path.suffix.lower() == ".csv":
        return write_bytes(path, format_csv(machines).encode())
    return write_bytes(path, npz.pack(_arrays(machines)))


def check_target(path: str | Path) -> Path:
    """Return the path if a file of links can be written there, otherwise raise an error."""
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise FileError(f"{path} has the suffix {path.suffix!r}; links are written to one of {', '.join(SUFFIXES)}.")
    if not path.parent.is_dir():
        raise FileError(f"Cannot write {path}: there is no directory {path.parent}.")
    if path.exists() and not path.is_file():
        raise FileError(f"Cannot write {path}: it is not a regular file.")
    if not os.access(path.parent, os.W_OK):
        raise FileError(f"Cannot write {path}: the directory {path.parent} is not writable.")
    return path


def _arrays(machines: Machines) -> dict[str, Any]:
    graph = machines.graph
    arrays: dict[str, Any] = {"format": np.array(FORMAT), "nodes": np.array(graph.nodes)}
    if graph.nodes <= DENSE:
        arrays |= {"latency": machines.latency_matrix, "rate": machines.rate_matrix}
    else:
        sources, targets = graph.edges.T
        arrays |= {"sources": sources, "targets": targets}
        arrays |= {"latency": machines.latencies(sources, targets), "rate": machines.rates(sources, targets)}
    arrays |= {what: np.asarray(getattr(machines, what)) for what in ("up", "down")}
    if machines.compute is not None:
        arrays["compute"] = np.asarray(machines.compute)
    return arrays | ({} if machines.labels is None else {"labels": np.array(machines.labels)})


def _read_npz(path: Path) -> Machines:
    arrays = npz.read(path)
    if unknown := sorted(set(arrays) - ARRAYS):
        raise FileError(f"{path} holds {listed(unknown)}; a file of links has {', '.join(sorted(ARRAYS))}.")
    version = arrays.get("format", np.array(FORMAT)).tolist()
    if version != FORMAT:
        raise FormatError(f"{path} has format {version!r:.20}; this version of perron reads {FORMAT}.")
    for what in VALUES:
        if what in arrays and arrays[what].dtype.kind not in "fiu":
            raise FileError(f"{path} holds {arrays[what].dtype} where numbers are needed: {what}.")
    labels = arrays.get("labels")
    if labels is not None and (labels.dtype.kind != "U" or labels.ndim != 1):
        raise FileError(f"{path}: labels are texts, one per node; got {labels.dtype} of shape {labels.shape}.")
    try:
        values = {what: arrays[what] for what in VALUES if what in arrays}
        if "sources" in arrays or "targets" in arrays:
            values |= _of_links(arrays, path)
        machines = Machines(**values, labels=None if labels is None else labels.tolist(), name=path.name)
        if machines.nodes is None:
            raise FileError(f"{path} states no number of nodes: latency or rate is an (n, n) array.")
        check_labels(machines.labels, machines.nodes)
    except FileError:
        raise
    except PerronError as error:
        raise FileError(f"{path}: {error}") from None
    return machines


def _of_links(arrays: dict[str, Any], path: Path) -> dict[str, Any]:
    """The latency and rate of a list of links, as sparse matrices."""
    needed = ("sources", "targets", "nodes", "latency", "rate")
    if missing := [name for name in needed if name not in arrays]:
        raise FileError(f"{path} is damaged: a list of links has {', '.join(needed)}; {missing[0]} is missing.")
    sources, targets, nodes, latency, rate = (arrays[name] for name in needed)
    whole = all(np.issubdtype(array.dtype, np.integer) for array in (sources, targets, nodes))
    if (
        not whole
        or nodes.ndim
        or any(array.shape != sources.shape or array.ndim != 1 for array in (targets, latency, rate))
    ):
        raise FileError(f"{path} is damaged: its sources, targets, latencies and rates are not lists of one length.")
    n, ends = int(nodes), np.concatenate([sources, targets])
    if not ((ends >= 0) & (ends < n)).all() or (sources == targets).any():
        raise FileError(f"{path} is damaged: a link has an end outside of the nodes 0 to {n - 1}, or is a self-loop.")
    if len(np.unique(sources * n + targets)) != len(sources):
        raise FileError(f"{path} is damaged: it has one link twice.")
    return {
        what: csr_array((np.asarray(values, dtype=float), (targets, sources)), shape=(n, n))
        for what, values in (("latency", latency), ("rate", rate))
    }

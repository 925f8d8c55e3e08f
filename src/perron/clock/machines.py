"""Machines and the links between them: latencies, rates, and how long a gradient takes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_array, issparse
from scipy.sparse.csgraph import dijkstra

from perron._typing import FloatArray, IntArray
from perron.errors import PerronError, brief, listed
from perron.networks._checks import check_labels
from perron.networks.graph import Graph

LinkValue = Any  # a float, a FloatArray, a csr_array or a function of sources and targets
DENSE_UP_TO = 20_000  # nodes
NUMBERS = "fiu"  # kinds of NumPy's types


class Machines:
    """Nodes and directed links, for a `perron.Clock`. Times are in seconds, sizes in bytes.

    ``[i, j]`` is the link from j to i, as in mixing matrices.

    Args:
        latency: seconds until the first byte of a message arrives, one way: one number for all links, an ``(n, n)`` array (dense
            or sparse), or a function of two arrays, the sources and the targets of links.
        rate: bytes per second of one link alone, likewise; 0 or nan where there is no link. The latency may be nan there, too.
        up, down: bytes per second that a node sends and receives, shared by its simultaneous messages; a number, or one per node.
        compute: seconds of one gradient: a number, or one per node; None if unknown.
        labels: names of the nodes.
        name: for tables and errors.

    Example:
        >>> machines = Machines(latency=[[0, 0.1], [0.02, 0]], rate=1e6)
        >>> machines.latencies(np.array([0]), np.array([1]))  # from node 0 to node 1
        array([0.02])
    """

    def __init__(
        self,
        latency: Any = 0.0,
        rate: Any = np.inf,
        *,
        up: Any = np.inf,
        down: Any = np.inf,
        compute: Any = None,
        labels: Sequence[str] | None = None,
        name: str = "",
    ) -> None:
        self.latency, self.rate = _link_value("latency", latency), _link_value("rate", rate)
        self.up, self.down = _node_value("up", up), _node_value("down", down)
        self.compute = None if compute is None else _node_value("compute", compute, zero=True)
        self.labels = None if labels is None else tuple(map(str, labels))
        self.name = name
        counts = {
            what: len(value) if what == "labels" else np.shape(value)[0]
            for what, value in vars(self).items()
            if value is not None and what != "name" and not callable(value) and (what == "labels" or np.ndim(value))
        }
        if len(set(counts.values())) > 1:
            given = ", ".join(f"{what} {count}" for what, count in counts.items())
            raise PerronError(f"Machines need one number of nodes throughout; got {given}.")
        self.nodes: int | None = next(iter(counts.values()), None)
        self._check_latencies()

    # ---- values of links and nodes

    def latencies(self, sources: IntArray, targets: IntArray) -> FloatArray:
        """Return the latency of each link."""
        return _at(self.latency, sources, targets)

    def rates(self, sources: IntArray, targets: IntArray) -> FloatArray:
        """Return the rate of each link."""
        return _at(self.rate, sources, targets)

    def latencies_back(self, sources: IntArray, targets: IntArray) -> FloatArray:
        """Return the latency of the way back of each link, along which its target asks; its own where no such link is known."""
        known = self.rates(targets, sources) > 0
        return np.where(known, self.latencies(targets, sources), self.latencies(sources, targets))

    def label(self, node: int) -> str:
        """Return the name of a node; its number if there are no labels."""
        return str(node) if self.labels is None else self.labels[node]

    def check_nodes(self, nodes: int) -> None:
        """Raise an error unless these machines can be those of a network with that number of nodes."""
        if self.nodes is not None and self.nodes != nodes:
            what = f"{self.name or 'The record of links'} has {self.nodes} nodes"
            raise PerronError(f"{what} but the network {nodes}; they must be equal.")

    def check_links(self, sources: IntArray, targets: IntArray, *, instead: str = "") -> None:
        """Raise an error if there is no link where a message would travel; ``instead`` says what else to do."""
        rates = self.rates(sources, targets)
        missing = np.flatnonzero(~(rates > 0))
        if len(missing):
            pairs = [f"{self.label(int(sources[e]))} -> {self.label(int(targets[e]))}" for e in missing[:7]]
            pairs += [""] * (len(missing) - len(pairs))
            remedy = instead or "the network sends. Choose a network of its links (machines.graph)"
            raise PerronError(
                f"{self.name or 'The record of links'} has no link {listed(pairs)}, along which {remedy}, or fill in missing "
                "pairs by machines.routed(), option --route."
            )
        if callable(self.latency):
            _check_values("latency", self.latencies(sources, targets))

    @cached_property
    def graph(self) -> Graph:
        """The digraph of all links, with self-loops."""
        n = self._known("A graph of the links")
        rate = np.array(self._dense(self.rate) > 0)
        np.fill_diagonal(rate, val=True)
        targets, sources = np.nonzero(rate)
        edges = np.column_stack([sources, targets])
        return Graph(n, edges, labels=self.labels, name=self.name or "links")

    # ---- other machines made from these

    def changed(self, **changes: Any) -> Machines:
        """Return machines with some values replaced, as ``machines.changed(up=1e6)``."""
        values = {key: value for key, value in vars(self).items() if key not in ("nodes", "graph")}
        return Machines(**(values | changes))

    def reordered(self, order: Sequence[int]) -> Machines:
        """Return some of the nodes in another order: node k is ``order[k]`` here."""
        n = self._known("Reordering")
        rows = np.asarray(order, dtype=np.int64)
        if len(rows) == 0 or len(set(rows.tolist())) != len(rows) or rows.min() < 0 or rows.max() >= n:
            raise PerronError(f"order lists different nodes from 0 to {n - 1}; got {brief(order)}.")

        def links(value: LinkValue) -> LinkValue:
            if issparse(value):
                return value[rows][:, rows]
            return value if np.ndim(value) == 0 and not callable(value) else self._dense(value)[np.ix_(rows, rows)]

        each = {"up": self.up, "down": self.down, "compute": self.compute}
        chosen = {what: value[rows] if np.ndim(value) else value for what, value in each.items() if value is not None}
        labels = None if self.labels is None else [self.labels[k] for k in rows]
        return Machines(links(self.latency), links(self.rate), **chosen, labels=labels, name=self.name)

    def places(self, labels: Sequence[str] | None) -> IntArray | None:
        """Return which machine each node of a network is, by name; None if they are in the same order, or either has no names."""
        if labels is None or self.labels is None or tuple(labels) == self.labels:
            return None
        names = check_labels(self.labels, len(self.labels)) or ()
        if set(names) != set(labels):
            raise PerronError(
                f"Nodes of {self.name or 'the record of links'} are {listed(names)}, those of the network {listed(labels)}. They "
                "are matched by name: give both the same names, or one of the two none."
            )
        place = {name: node for node, name in enumerate(names)}
        return np.array([place[name] for name in labels])

    def routed(self) -> Machines:
        """Return machines in which every pair has a link: missing ones follow the path of least latency.

        The latency of a path is the sum of those of its links, and its rate is the least of theirs.
        """
        n = self._known("Routing")
        latency, rate = np.array(self._dense(self.latency)), np.array(self._dense(self.rate))
        np.fill_diagonal(rate, np.inf)
        weights = np.where(rate > 0, np.maximum(latency, 1e-12), 0.0).T  # row: source; zero: no link
        np.fill_diagonal(weights, 0.0)
        distance, before = dijkstra(csr_array(weights), return_predecessors=True)
        for source, target in np.argwhere((rate.T <= 0) & np.isfinite(distance)).tolist():
            node, least, total = target, np.inf, 0.0
            while node != source:
                last = int(before[source, node])
                least, total, node = (
                    min(least, float(self._dense(self.rate)[node, last])),
                    total + latency[node, last],
                    last,
                )
            rate[target, source], latency[target, source] = least, total
        unreachable = np.argwhere(~np.isfinite(distance))
        if len(unreachable):
            source, target = unreachable[0]
            raise PerronError(f"There is no path of links from {self.label(source)} to {self.label(target)}.")
        np.fill_diagonal(latency, 0.0)
        return self.changed(
            latency=latency, rate=rate, name=f"{self.name}, routed" if self.name else f"{n} nodes, routed"
        )

    # ---- files

    @classmethod
    def read(cls, path: str | Path, *, route: bool = False) -> Machines:
        """Read a file of links (see docs/howto/links.md), or a preset by its name, as ``"gaia"``."""
        from perron.clock.files import read_machines

        machines = read_machines(path)
        return machines.routed() if route else machines

    def write(self, path: str | Path) -> Path:
        """Write a file of links (.csv or .npz), from which `read` gets the same machines."""
        from perron.clock.files import write_machines

        return write_machines(self, path)

    # ---- private

    def _check_latencies(self) -> None:
        """Raise an error if a link has no latency: nan is for pairs without a link."""
        if not isinstance(self.latency, np.ndarray) or not np.isnan(self.latency).any():
            return
        targets, sources = np.nonzero(np.isnan(self.latency))
        linked = np.flatnonzero(self.rates(sources, targets) > 0)
        if len(linked):
            pairs = [f"{self.label(int(sources[e]))} -> {self.label(int(targets[e]))}" for e in linked[:7]]
            pairs += [""] * (len(linked) - len(pairs))
            raise PerronError(
                f"latency is nan for {listed(pairs)}, but the rate says that there is a link. Give its latency, or a rate of 0 "
                "for a pair without a link."
            )
        self.latency = np.nan_to_num(self.latency, nan=0.0)
        self.latency.flags.writeable = False

    def _known(self, what: str) -> int:
        if self.nodes is None:
            raise PerronError(f"{what} needs machines with a number of nodes; all values given are for any number.")
        if self.nodes > DENSE_UP_TO:
            raise PerronError(f"{what} takes at most {DENSE_UP_TO:,} nodes; got {self.nodes:,}.")
        return self.nodes

    def _dense(self, value: LinkValue) -> FloatArray:
        """The value of every pair, ``(n, n)``."""
        n = self._known("A table of all pairs")
        if issparse(value):
            return np.asarray(value.toarray())
        if callable(value):
            targets, sources = np.indices((n, n)).reshape(2, -1)
            return np.asarray(value(sources, targets), dtype=np.float64).reshape(n, n)
        return np.broadcast_to(np.asarray(value, dtype=np.float64), (n, n))

    @property
    def latency_matrix(self) -> FloatArray:
        """The latency of every pair, ``(n, n)``."""
        return self._dense(self.latency)

    @property
    def rate_matrix(self) -> FloatArray:
        """The rate of every pair, ``(n, n)``; 0 where there is no link."""
        return self._dense(self.rate)

    def __repr__(self) -> str:
        if self.nodes is None or self.nodes > DENSE_UP_TO or callable(self.rate):
            return f"<Machines: {self.name or 'any number of nodes'}>"
        links = len(self.graph.edges)
        return f"<Machines: {', '.join(filter(None, [self.name, f'{self.nodes} nodes', f'{links} links']))}>"


def _link_value(what: str, value: Any) -> LinkValue:
    if callable(value):
        return value
    if issparse(value):
        if value.dtype.kind not in NUMBERS:
            raise PerronError(f"{what} is a sparse array of numbers; got {value.dtype}.")
        value = csr_array(value, dtype=np.float64)
        _check_values(what, value.data)
        return value
    array = _numbers(value)
    if array is None:
        raise PerronError(f"{what} is a number, an (n, n) array or a function; got {brief(value)}.")
    if array.ndim == 2 and array.shape[0] == array.shape[1]:
        np.fill_diagonal(array, 0.0 if what == "latency" else np.inf)
        if what == "rate":
            array[np.isnan(array)] = 0.0
    elif array.ndim != 0:
        raise PerronError(f"{what} is a number or an (n, n) array; got the shape {array.shape}.")
    _check_values(what, array if array.ndim == 0 or what == "rate" else array[~np.isnan(array)])
    array.flags.writeable = False
    return float(array) if array.ndim == 0 else array


def _numbers(value: Any) -> FloatArray | None:
    """A new array of the numbers; None for texts, truth values and what is no array."""
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):
        return None
    return array.astype(np.float64) if array.dtype.kind in NUMBERS else None


def _check_values(what: str, values: FloatArray) -> None:
    if not (values >= 0).all() or (what == "latency" and not np.isfinite(values).all()):
        wrong = values[~(values >= 0) | ((what == "latency") & ~np.isfinite(values))]
        finite = "finite " if what == "latency" else ""
        raise PerronError(f"{what} of a link is a {finite}number that is not negative; got {float(wrong.flat[0])}.")


def _node_value(what: str, value: Any, *, zero: bool = False) -> Any:
    array = _numbers(value)
    if array is None:
        raise PerronError(f"{what} is a number, or one per node; got {brief(value)}.")
    if array.ndim > 1:
        raise PerronError(f"{what} is a number, or one per node; got the shape {array.shape}.")
    good = (array >= 0) & np.isfinite(array) if zero else array > 0
    if not good.all():
        kind = "a finite number that is not negative" if zero else "a positive number"
        raise PerronError(
            f"{what} is {kind}, or one per node; got {float(array[~good].flat[0]) if array.ndim else float(array)}."
        )
    array.flags.writeable = False
    return float(array) if array.ndim == 0 else array


def _at(value: LinkValue, sources: IntArray, targets: IntArray) -> FloatArray:
    if callable(value):
        return np.asarray(value(sources, targets), dtype=np.float64)
    if issparse(value):
        return np.asarray(value[targets, sources], dtype=np.float64).ravel()
    return np.broadcast_to(value, sources.shape) if np.ndim(value) == 0 else np.asarray(value)[targets, sources]

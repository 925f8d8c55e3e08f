"""Build a `Mixing` from the name of a topology or a file, a weight rule and their options."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array, eye_array

from perron._registry import lookup
from perron.errors import FileError, GraphError, PerronError
from perron.networks import released, topologies
from perron.networks.graph import Graph, as_graph
from perron.networks.mixing import RULES, Mixing

if TYPE_CHECKING:  # readers of files are imported where they are needed
    from perron.networks._formats import WeightedNetwork

Graphs = Graph | tuple[Graph, ...]  # several: one per step of the period
NetworkLike = (
    str | Graph | Iterable[Graph] | Mixing | Callable[[int], Any] | Any
)  # also networkx graphs, scipy matrices


class Loaded(NamedTuple):
    """A network that was built from a name or read from a file.

    Attributes:
        graph: the graph, with labels and positions for drawing.
        mixing: the network.
        notes: changes and assumptions, a sentence each.
    """

    graph: Graphs
    mixing: Mixing
    notes: list[str]


def build_network(graph: NetworkLike, nodes: int, *, weights: str = "uniform", seed: int = 0) -> Mixing:
    """Build a network for a number of nodes.

    Args:
        graph: the name of a topology, a `Graph`, a networkx graph, a scipy matrix, a sequence of graphs for a network that varies
            in time, a `Mixing`, or a function that returns one of these for a number of nodes.
        nodes: number of nodes; only names and functions use it.
        weights: the weight rule for a graph, see `perron.networks.RULES`.
        seed: of random topologies and weights.

    Example:
        >>> build_network("ring", 4).nodes
        4
    """
    graph = as_graph(graph)
    if callable(graph) and not isinstance(graph, Graph | Mixing):
        graph = as_graph(graph(nodes))
    if isinstance(graph, Mixing):
        return graph
    if isinstance(graph, str):
        built = build_graph(graph, nodes, seed=seed)
    else:
        built = graph if isinstance(graph, Graph) else tuple(map(as_graph, graph))
    return add_weights(built, weights, seed=seed)


network = build_network  # its name in version 0.1


def build_graph(topology: str, nodes: int, options: Mapping[str, Any] | None = None, *, seed: int | None = 0) -> Graphs:
    """Build a topology by its name; ``seed`` goes to random ones only."""
    family = lookup(topology.replace("-", "_"), topologies.NAMES, "topology")
    return _call(family, nodes, (options or {}), seed=seed)


def add_weights(graph: Graphs, weights: str, *, seed: int | None = 0) -> Mixing:
    """Apply a weight rule by its name; ``seed`` goes to random ones only."""
    rule = lookup(weights.replace("-", "_"), RULES, "weight rule")
    return rule(graph, **_seeded(rule, seed))


def build_released(name: str, nodes: int, options: Mapping[str, Any] | None = None, *, seed: int | None = 0) -> Mixing:
    """Build a network as the paper's authors released it."""
    family = lookup(name.replace("-", "_"), released.NAMES, "released network")
    return _call(family, nodes, (options or {}), seed=seed)


def load_network(
    name: str,
    nodes: int | None = None,
    weights: str | None = None,
    seed: int | None = None,
    options: Mapping[str, Any] | None = None,
    push: Path | None = None,
    *,
    undirected: bool = False,
    largest_component: bool = False,
) -> Loaded:
    """Build a network from a topology's name, or read it from a file; options that would be ignored are refused.

    Args:
        name: a topology, or a file (anything with a dot or a slash in it).
        nodes: number of nodes of a topology; 16 by default.
        weights: a weight rule, ``"authors"`` for a released network, ``"file"`` for the file's own weights.
        seed: of random topologies and weights.
        options: further options of the topology.
        push: a file with the push matrix; ``name`` is then the file with the pull matrix.
        undirected: whether the edges of a file go both ways.
        largest_component: whether to keep the largest strongly connected component of a file only.
    """
    changes = {"undirected": undirected or None, "largest-component": largest_component or None}
    if push is not None:
        from perron.networks.files import read_matrix

        _refuse("a file with --push", nodes=nodes, weights=weights, seed=seed, set=options or None, **changes)
        mixing = Mixing(pull=read_matrix(name), push=read_matrix(push), name=f"{name}, {push}")
        return Loaded(mixing.pull_graph, mixing, [])
    if is_file(name):
        _refuse("a file", nodes=nodes, set=options or None)
        return _from_file(Path(name), weights, seed, changes)
    _refuse("a topology; it is for files", **changes)
    nodes = 16 if nodes is None else nodes
    graph = build_graph(name, nodes, options, seed=seed or 0)
    if weights == "authors":
        mixing = build_released(name, nodes, options, seed=seed)
        return Loaded(mixing.pull_graph, mixing, [])
    notes = [graph.note] if isinstance(graph, Graph) and graph.note else []
    return Loaded(graph, add_weights(graph, weights or "random_integer", seed=seed or 0), notes)


def is_file(name: str) -> bool:
    """Whether a name stands for a file, not a topology."""
    return "." in name or "/" in name


def _from_file(path: Path, weights: str | None, seed: int | None, changes: Mapping[str, bool | None]) -> Loaded:
    from perron.networks.files import holds_mixing, read_mixing, read_network

    if holds_mixing(path):
        _refuse("a file that holds both matrices", weights=weights, seed=seed, **changes)
        mixing = read_mixing(path)
        return Loaded(mixing.pull_graph if mixing.has_pull else mixing.push_graph, mixing, [])
    matrix, labels, notes = _changed(read_network(path), changes)
    if weights is None:
        weights = "random_integer" if (matrix.data == 1).all() else "file"
    if not matrix.diagonal().any():
        notes.append("the file has no self-loops; every node was given one")
        if weights == "file":
            notes[-1] += ", of weight 1"
        matrix = csr_array(matrix + eye_array(matrix.shape[0]))
    try:
        graph = Graph.from_matrix(matrix, name=path.name, labels=labels)
    except GraphError as error:
        raise FileError(f"{path}: {error}") from None
    if weights.replace("-", "_") != "spanning_trees":  # which need a common root only
        graph.check_strongly_connected()  # here, where nodes have the labels of the file
    if weights == "file":
        _refuse("the file's own weights", seed=seed)
        return Loaded(graph, Mixing.from_weights(matrix, name=f"{path.name}, its own weights", labels=labels), notes)
    return Loaded(graph, add_weights(graph, weights, seed=seed or 0), notes)


def _changed(
    network: WeightedNetwork, changes: Mapping[str, bool | None]
) -> tuple[csr_array, Sequence[str] | None, list[str]]:
    """The matrix, labels and notes of a file, with edges both ways or the largest component only, if wanted."""
    matrix, labels, notes = network.matrix, network.labels, list(network.notes)
    if changes["undirected"]:
        matrix = csr_array(matrix.maximum(matrix.T))
        notes.append("every edge goes both ways")
    if changes["largest-component"]:
        components = Graph.from_matrix(matrix).components
        kept = np.flatnonzero(components == np.bincount(components).argmax())
        notes.append(f"{len(kept):,} of {matrix.shape[0]:,} nodes kept, the largest strongly connected component")
        names = labels or [str(node) for node in range(matrix.shape[0])]
        labels = labels if len(kept) == len(components) else [names[node] for node in kept]
        matrix = csr_array(matrix[kept][:, kept])
    return matrix, labels, notes


def _call(family: Callable[..., Any], nodes: int, options: Mapping[str, Any], *, seed: int | None) -> Any:
    known = {name: None for name in signature(family).parameters if name != "n"}
    for key in options:
        lookup(key, known, f"option of {family.__name__}")
    return family(nodes, **(_seeded(family, seed) | dict(options)))


def _seeded(function: Callable[..., Any], seed: int | None) -> dict[str, int]:
    return {"seed": seed} if seed is not None and "seed" in signature(function).parameters else {}


def _refuse(source: str, **options: object) -> None:
    for name, value in options.items():
        if value is not None:
            raise PerronError(f"--{name} does not go with {source}; leave it out.")

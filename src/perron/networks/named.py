"""What the arguments of a command name: a topology or a file, with a weight rule, as a graph and a network."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perron._registry import named
from perron.errors import PerronError

if TYPE_CHECKING:
    from perron.networks.graph import Graph
    from perron.networks.mixing import Mixing


def named_network(
    network: str, nodes: int | None, weights: str | None, seed: int | None, options: dict[str, Any], push: Path | None
) -> tuple[Graph | tuple[Graph, ...], Mixing, list[str]]:
    """What the arguments of a command name: what to draw, the network, and remarks."""
    from perron.networks import topologies
    from perron.networks.mixing import Mixing

    if push is not None:
        from perron.networks.files import read_matrix

        _refuse("a file with --push", nodes=nodes, weights=weights, seed=seed, set=options or None)
        mixing = Mixing(pull=read_matrix(network), push=read_matrix(push), name=f"{network}, {push}")
        return mixing.pull_graph, mixing, []
    if is_file(network):
        _refuse("a file", nodes=nodes, set=options or None)
        return _from_file(Path(network), weights, seed)
    name = network.replace("-", "_")
    family = named(name, topologies.NAMES, "topology")
    nodes = 16 if nodes is None else nodes
    if weights == "authors":
        from perron.networks import released as authors

        mixing = _call(
            named(name, authors.NAMES, "released network"), nodes, ({} if seed is None else {"seed": seed}) | options
        )
        return mixing.pull_graph, mixing, []
    if "seed" in parameters(family):
        options = {"seed": seed or 0} | options
    built = _call(family, nodes, options)
    notes = [built.note] if not isinstance(built, tuple) and built.note else []
    return built, _weighted(built, weights or "random_integer", seed), notes


def is_file(network: str) -> bool:
    """Whether it names a file, not a topology."""
    return "." in network or "/" in network


def _refuse(what: str, **options: object) -> None:
    """Refuse options that would be ignored."""
    for name, value in options.items():
        if value is not None:
            raise PerronError(f"--{name} does not go with {what}; leave it out.")


def _from_file(path: Path, weights: str | None, seed: int | None) -> tuple[Graph, Mixing, list[str]]:
    from perron.networks.files import holds_mixing, read_graph, read_matrix, read_mixing
    from perron.networks.mixing import Mixing

    if holds_mixing(path):
        _refuse("a file that holds both matrices", weights=weights, seed=seed)
        mixing = read_mixing(path)
        return (mixing.pull_graph if mixing.has_pull else mixing.push_graph), mixing, []
    graph, matrix, notes = read_graph(path), read_matrix(path), []
    if weights is None:
        weights = "random_integer" if (matrix.data == 1).all() else "file"
    if not len(graph.self_loops):
        graph = graph.with_self_loops()
        notes.append("the file has no self-loops; every node was given one")
        if weights == "file":
            from scipy.sparse import eye_array

            notes[-1] += ", of weight 1"
            matrix = matrix + eye_array(graph.nodes)
    if weights.replace("-", "_") != "spanning_trees":  # which need a common root only
        graph.check_strongly_connected()  # here, where the nodes have the names that the file gives them
    if weights == "file":
        _refuse("the file's own weights", seed=seed)
        return graph, Mixing.normalized(matrix, name=f"{path.name}, its own weights"), notes
    return graph, _weighted(graph, weights, seed), notes


def _weighted(graph: Graph | tuple[Graph, ...], weights: str, seed: int | None) -> Mixing:
    from perron.networks.mixing import RULES

    rule = named(weights.replace("-", "_"), RULES, "weight rule")
    return rule(graph, **({"seed": seed or 0} if "seed" in parameters(rule) else {}))


def parameters(function: Callable[..., Any]) -> list[str]:
    """The names of a function's parameters."""
    from inspect import signature

    return list(signature(function).parameters)


def _call(function: Callable[..., Any], nodes: int, options: dict[str, Any]) -> Any:
    known = {name: None for name in parameters(function) if name != "n"}
    for key in options:
        named(key, known, f"option of {function.__name__}")
    return function(nodes, **options)


def parsed(pairs: list[str]) -> dict[str, Any]:
    """The options given as KEY=NUMBER."""
    options = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        try:
            options[key] = json.loads(value)
        except json.JSONDecodeError:
            equals = ""
        if not equals or isinstance(options[key], bool) or not isinstance(options[key], int | float):
            raise PerronError(f"--set takes KEY=NUMBER, as probability=0.5; got {pair!r}.")
    return options

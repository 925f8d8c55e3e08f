"""Node-link JSON, as networkx and d3 write it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from perron.errors import FileError
from perron.networks._formats.base import EdgeList, WeightedNetwork


def parse_json(text: str, path: Path) -> WeightedNetwork:
    """Parse ``{"nodes": [{"id": ...}], "links": [{"source": ..., "target": ...}]}``, whose ends are ids, or else positions.

    Edges may be called links or edges, and their weight weight or value. They are directed unless ``"directed": false``.
    """
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise FileError(f"{path}:{error.lineno}: not JSON: {error.msg}.") from None
    except ValueError as error:  # a number with too many digits
        raise FileError(f"{path} is not a network in JSON: {error}.") from None
    except RecursionError:
        raise FileError(f"{path} is not a network in JSON: it is nested too deeply.") from None
    links = content.get("links", content.get("edges")) if isinstance(content, dict) else None
    nodes = content.get("nodes") if isinstance(content, dict) else None
    if not isinstance(nodes, list) or not isinstance(links, list):
        raise FileError(f'{path} is not a network in JSON: it needs lists "nodes" and "links" (or "edges").')
    network = EdgeList(path)
    for place, node in enumerate(nodes):
        name = node.get("id", place) if isinstance(node, dict) else node
        label = (node.get("label") or node.get("name")) if isinstance(node, dict) else None
        network.add_node(
            _scalar(name, path, f"nodes[{place}]"), None if label is None else str(label), f" nodes[{place}]"
        )
    for place, link in enumerate(links):
        what = f"links[{place}]"
        if not isinstance(link, dict) or not {"source", "target"} <= set(link):
            raise FileError(f'{path}: {what} needs "source" and "target".')
        source, target = (_scalar(link[end], path, what) for end in ("source", "target"))
        weight = link.get("weight", link.get("value", 1.0))
        network.add_edge(source, target, weight, f" {what}", content.get("directed") is False)
    return network.network()


def _scalar(name: Any, path: Path, what: str) -> Any:
    if isinstance(name, bool) or not isinstance(name, str | int | float):
        raise FileError(f"{path}: {what}: a node is named by text or a number; got {name!r:.60}.")
    return name

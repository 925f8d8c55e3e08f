"""Formats of files of links: our CSV, GML and GraphML. Errors contain the file and the line."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from perron.clock._link_table import (
    DISTANCE_RULE,
    LINK_UNITS,
    NODE_UNITS,
    NUMBER,
    LinkTable,
    Unit,
    format_number,
    parse_number,
    quantities,
)
from perron.clock.machines import Machines
from perron.errors import FileError
from perron.networks._formats.gml import _sections, parse_gml
from perron.networks._formats.table import FORMULA
from perron.networks._formats.xml import Document, _Keys, parse_xml

FLAG = re.compile(r"\s*#+\s*both_ways\s*=\s*([^\s;,]*)")
DEFAULTS = {"latency": 0.0, "rate": np.inf}  # of a link in whose row the cell is empty
SI = {"latency": "latency_s", "rate": "rate_bytes_s", "distance": "distance_km", "up": "up_bytes_s", "down": "down_bytes_s",
      "compute": "compute_s"}  # attributes of GML and GraphML without a unit  # fmt: skip

# ---- CSV


def parse_csv(text: str, path: Path) -> Machines:
    """Parse rows of links, below a header from,to,..., and rows of nodes, below a header node,... ."""
    table, both = LinkTable(path), _both_ways(text, path)
    columns, seen = list[str](), set[str]()
    for number, row in _rows(text, path):
        where = f"{path}:{number}"
        names = [cell.lower() for cell in row]
        kind = "links" if {"from", "to"} <= set(names) else "nodes" if "node" in names else ""
        if kind in seen and len(row) > 1 and set(names) <= {"from", "to", "node", *LINK_UNITS, *NODE_UNITS}:
            raise FileError(f"{where}: a second header of the {kind}; keep one, with all of them below it.")
        if kind and kind not in seen and not any(NUMBER.fullmatch(cell) for cell in row):
            columns, units = names, _header(names, kind, where, table)
            seen.add(kind)
            continue
        if not seen:
            raise FileError(
                f"{where}: the first row names the columns, as from,to,latency_ms,rate_mbit; got {','.join(row)!r:.80}."
            )
        if len(row) != len(columns):
            raise FileError(f"{where}: this row has {len(row)} cells, but its header has {len(columns)} columns.")
        cells = dict(zip(columns, row, strict=True))
        values = {
            unit.quantity: parse_number(cells[column], unit, f"{where}, {column}")
            for column, unit in units.items()
            if cells[column]
        }
        if "from" in cells:
            table.add_link(_plain(cells["from"]), _plain(cells["to"]), DEFAULTS | values, number, both=both)
        else:
            table.add_node(_plain(cells["node"]), values, number)
    return table.machines()


def is_links_csv(text: str, path: Path) -> bool:
    """Whether the first row of a table names columns of links with a latency or rate, or of nodes."""
    names = next((row for _, row in _rows(text, path)), [])
    columns = {name.lower() for name in names}
    known = {unit.split("_")[0] for unit in (*LINK_UNITS, *NODE_UNITS)}
    stated = {name.split("_")[0] for name in columns} & known
    return ({"from", "to"} <= columns or "node" in columns) and bool(stated)


def _both_ways(text: str, path: Path) -> bool:
    """Whether the first comment line begins with the flag that rows are both directions of a link."""
    lines = text.splitlines()
    comments = ((number, line) for number, line in enumerate(lines, 1) if line.lstrip().startswith("#"))
    number, line = next(comments, (0, ""))
    found = FLAG.match(line)
    if found and found[1].lower() not in ("true", "false"):
        raise FileError(f"{path}:{number}: both_ways is true or false; got {found[1]!r:.80}.")
    return bool(found and found[1].lower() == "true")


def _rows(text: str, path: Path) -> Iterable[tuple[int, list[str]]]:
    lines = ["\n" if line.lstrip().startswith("#") else line for line in text.splitlines(keepends=True)]
    header = next((line for line in lines if line.strip()), "")
    reader = csv.reader(lines, delimiter=max(",;\t", key=header.count), strict=True, skipinitialspace=True)
    try:
        for row in reader:
            if any(cell.strip() for cell in row):
                yield reader.line_num, [cell.strip() for cell in row]
    except csv.Error as error:
        raise FileError(f"{path}:{reader.line_num}: not a CSV table: {error}.") from None


def _header(names: list[str], kind: str, where: str, table: LinkTable) -> dict[str, Unit]:
    ends = ("from", "to") if kind == "links" else ("node",)
    if repeated := {name for name in names if names.count(name) > 1}:
        raise FileError(f"{where}: column {min(repeated)!r:.80} occurs twice.")
    columns = [name for name in names if name not in ends]
    units = quantities(columns, LINK_UNITS if kind == "links" else NODE_UNITS, where)
    if kind == "links" and not units:
        raise FileError(f"{where}: links need a latency or a rate; add a column, as latency_ms or rate_mbit.")
    if "distance_km" in units:
        table.notes.append(DISTANCE_RULE)
    return units


def _plain(label: str) -> str:
    """A label without the apostrophe that `format_csv` puts before text that a spreadsheet would evaluate."""
    return label[1:] if label.startswith("'") and FORMULA.match(label) else label


def _cell(label: str) -> str:
    if FORMULA.match(label) and not NUMBER.fullmatch(label):
        label = f"'{label}"
    return '"' + label.replace('"', '""') + '"' if re.search(r'[",;\t#]', label) else label


def format_csv(machines: Machines) -> str:
    """Return the text that `parse_csv` parses to the same machines."""
    n = machines.graph.nodes
    labels = [_cell(machines.label(node)) for node in range(n)]
    sources, targets = machines.graph.edges.T
    latency, rate = machines.latencies(sources, targets), machines.rates(sources, targets)
    lines = ["from,to,latency_ms,rate_mbit"]
    ms, mbit = LINK_UNITS["latency_ms"], LINK_UNITS["rate_mbit"]
    for source, target, wait, speed in zip(
        sources.tolist(), targets.tolist(), latency.tolist(), rate.tolist(), strict=True
    ):
        lines.append(f"{labels[source]},{labels[target]},{format_number(wait, ms)},{_limit(speed, mbit)}")
    columns = ["up_mbit", "down_mbit", *([] if machines.compute is None else ["compute_s"])]
    values = {column: np.broadcast_to(getattr(machines, column.split("_")[0]), n).tolist() for column in columns}
    if machines.compute is None and all(np.isinf(numbers).all() for numbers in values.values()):
        columns = []
    lines.append(",".join(["node", *columns]))  # all of them, since their order is that of the nodes
    for node in range(n):
        cells = (_limit(values[column][node], NODE_UNITS[column]) for column in columns)
        lines.append(",".join([labels[node], *cells]))
    return "\n".join(lines) + "\n"


def _limit(value: float, unit: Unit) -> str:
    return "" if value == np.inf else format_number(value, unit)


# ---- GML and GraphML


def parse_links_gml(text: str, path: Path) -> Machines:
    """Parse the edges of a GML file with attributes latency, rate or distance, with or without a unit in the name."""
    network = parse_gml(text, path)  # with all its checks
    graph = next(section for name, section in _sections(text, path).sections if name == "graph")
    nodes = [(one.line, one.values["id"], one.values) for name, one in graph.sections if name == "node"]
    both = graph.values.get("directed", "0") != "1"
    edges = [
        (one.line, one.values["source"], one.values["target"], one.values, both)
        for name, one in graph.sections
        if name == "edge"
    ]
    return _from_graph(path, network.labels, nodes, edges)


def parse_links_graphml(text: str, path: Path) -> Machines:
    """Parse the edges of a GraphML file likewise."""
    network = parse_xml(text, path)  # refuses document types and entities, before anything else is read
    document = Document(text, path)
    if document.root != "graphml":
        raise FileError(f"{path} is {document.root!r:.20}; links are read from CSV, .npz, GML and GraphML.")
    keys = _Keys(document, path)
    default = document.found["graph"][0].attributes.get("edgedefault", "directed")
    nodes = [
        (one.line, one.attributes["id"], {name: found for name in _known(NODE_UNITS) if (found := keys.value(one, "node", name))})
        for one in document.found["node"]
    ]  # fmt: skip
    edges = [
        (one.line, one.attributes["source"], one.attributes["target"],
         {name: found for name in _known(LINK_UNITS) if (found := keys.value(one, "edge", name))},
         one.attributes.get("directed", default) not in ("directed", "true"))
        for one in document.found["edge"]
    ]  # fmt: skip
    return _from_graph(path, network.labels, nodes, edges)


def _known(units: dict[str, Unit]) -> list[str]:
    short = [name for name, full in SI.items() if full in units]
    return [*short, *units]


def _from_graph(
    path: Path,
    labels: list[str] | None,
    nodes: list[tuple[int, str, dict[str, str]]],
    edges: list[tuple[int, str, str, dict[str, str], bool]],
) -> Machines:
    table = LinkTable(path)
    name = {key: str(place) if labels is None else labels[place] for place, (_, key, _) in enumerate(nodes)}
    for line, key, attributes in nodes:
        table.add_node(name[key], _values(attributes, NODE_UNITS, f"{path}:{line}")[0], line)
    by_distance = False
    for line, source, target, attributes, both in edges:
        values, rule = _values(attributes, LINK_UNITS, f"{path}:{line}")
        by_distance |= rule
        if not values:
            raise FileError(
                f"{path}:{line}: edge {source} -> {target} has no latency, rate or distance (km); it has "
                f"{', '.join(sorted(set(attributes) - {'source', 'target'})) or 'no attributes'}."
            )
        table.add_link(name[source], name[target], DEFAULTS | values, line, both=both)
    if by_distance:
        table.notes.append(DISTANCE_RULE)
    return table.machines()


def _values(attributes: dict[str, str], units: dict[str, Unit], where: str) -> tuple[dict[str, float], bool]:
    """The quantities that attributes state, and whether a latency is that of a distance."""
    known = {SI.get(name, name): text for name, text in attributes.items() if SI.get(name, name) in units}
    if any(units[name].quantity == "latency" for name in known if name != "distance_km"):
        known.pop("distance_km", None)  # a stated latency counts
    found = quantities(list(known), units, where)
    values = {unit.quantity: parse_number(known[name], unit, f"{where}, {name}") for name, unit in found.items()}
    return values, "distance_km" in found

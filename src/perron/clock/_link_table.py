"""Links and nodes as a file states them: units, checks with the line of the file, and the machines made of them."""

from __future__ import annotations

import re
from decimal import Context, Decimal
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array

from perron._typing import FloatArray
from perron.clock.machines import Machines
from perron.errors import FileError, GraphError, brief, listed
from perron.networks._checks import check_labels, check_nodes

NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
DENSE = 2000  # nodes; larger networks are kept as sparse arrays
EXACT = Context(prec=60, traps=[])  # a decimal number is scaled without rounding, and rounded to a float once
DISTANCE_RULE = "latency = 0.0085 ms/km + 4 ms (Marfoq et al. 2020)"


class Unit(NamedTuple):
    """What a column states: a quantity in SI units is ``scale`` times the number plus ``offset``."""

    quantity: str
    scale: Decimal
    offset: Decimal = Decimal(0)


def _units(quantity: str, **scales: str) -> dict[str, Unit]:
    return {f"{quantity}_{name}": Unit(quantity, Decimal(scale)) for name, scale in scales.items()}


SECONDS = {"s": "1", "ms": "0.001", "us": "0.000001"}
RATES = {"bytes_s": "1", "kbit": "125", "mbit": "125000", "gbit": "125000000"}  # bytes per second
LINK_UNITS = {
    **_units("latency", **SECONDS),
    **{f"rtt_{name}": Unit("latency", Decimal(scale) / 2) for name, scale in SECONDS.items()},
    "distance_km": Unit("latency", Decimal("0.0000085"), Decimal("0.004")),
    **_units("rate", **RATES),
}
NODE_UNITS = {**_units("up", **RATES), **_units("down", **RATES), **_units("compute", **SECONDS)}


def quantities(columns: list[str], units: dict[str, Unit], where: str) -> dict[str, Unit]:
    """Return the units of columns, and raise an error for one that is unknown, has no unit, or repeats a quantity."""
    found: dict[str, Unit] = {}
    for column in columns:
        if column not in units:
            known = [name for name in units if name.split("_")[0] == column.split("_")[0]]
            why = f"needs a unit it has: {', '.join(known)}" if known else f"is unknown; columns are {', '.join(units)}"
            raise FileError(f"{where}: column {column!r:.80} {why}.")
        unit = units[column]
        if other := [name for name, one in found.items() if one.quantity == unit.quantity]:
            raise FileError(
                f"{where}: columns {other[0]} and {column} both state the {unit.quantity}; keep one of them."
            )
        found[column] = unit
    return found


def parse_number(text: str, unit: Unit, where: str) -> float:
    """Return a quantity in SI units; it is finite and not negative."""
    if text.lower().lstrip("+-") in ("nan", "inf", "infinity"):
        raise FileError(f"{where}: {unit.quantity} is finite; got {text!r}. Without a limit, leave the cell empty.")
    if not NUMBER.fullmatch(text):
        raise FileError(f"{where}: {text!r:.80} is not a number.")
    if len(text) > 400 or abs(float(text)) == np.inf:
        raise FileError(f"{where}: {unit.quantity} is too large: {text!r:.80}.")
    value = float(EXACT.add(EXACT.multiply(Decimal(text), unit.scale), unit.offset))
    if value < 0 or value == np.inf:
        raise FileError(f"{where}: {unit.quantity} is finite and not negative; got {text!r:.80}.")
    return value


def format_number(value: float, unit: Unit) -> str:
    """Return the text of a quantity in a unit, from which `parse_number` gets the same float."""
    number = EXACT.divide(Decimal(repr(float(value))), unit.scale).normalize(EXACT)
    return format(number, "f") if -8 <= number.adjusted() <= 15 else str(number)


class LinkTable:
    """Links and nodes by the names that a file uses; nodes are those declared, then those of links, in their order."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.number: dict[str, int] = {}
        self.nodes: dict[str, tuple[dict[str, float], object]] = {}  # with values of their own, and the line
        self.links: dict[tuple[int, int], tuple[dict[str, float], object]] = {}
        self.notes: list[str] = []

    def node(self, name: str, line: object) -> int:
        """Return the number of a node, a new one for a new name."""
        if name not in self.number:
            if not name or not name.isprintable():
                raise FileError(f"{self.path}:{line}: the name of a node is printable text; got {brief(name)}.")
            self.number[name] = len(self.number)
        return self.number[name]

    def add_link(self, source: str, target: str, values: dict[str, float], line: object, *, both: bool) -> None:
        """Add a link, or both directions of one."""
        ends = self.node(source, line), self.node(target, line)
        if ends[0] == ends[1]:
            raise FileError(f"{self.path}:{line}: a link from {brief(source)} to itself; a node sends itself nothing.")
        for pair in (ends, ends[::-1]) if both else (ends,):
            known = self.links.setdefault(pair, (values, line))
            if known[0] != values:
                way = f"{source} -> {target}" if pair == ends else f"{target} -> {source}"
                raise FileError(
                    f"{self.path}:{line}: the link {way} has other numbers in line {known[1]}; keep one of the two rows."
                )

    def add_node(self, name: str, values: dict[str, float], line: object) -> None:
        """Add the values of a node, once."""
        self.node(name, line)
        for quantity, value in values.items():
            if value == 0 and quantity != "compute":
                raise FileError(
                    f"{self.path}:{line}: {quantity} of node {name!r:.80} is 0; leave out its links instead."
                )
        if name in self.nodes:
            raise FileError(f"{self.path}:{line}: node {name!r:.80} stands in line {self.nodes[name][1]} already.")
        self.nodes[name] = (values, line)

    def machines(self) -> Machines:
        """Return the machines; a list of all nodes decides their order, and nodes named 0, ..., n-1 are these."""
        if not self.number:
            raise FileError(f"{self.path} has no links.")
        n = check_nodes(len(self.number))
        names = list(self.nodes) if len(self.nodes) == n else list(self.number)
        plain = set(names) == {str(node) for node in range(n)}
        order = {name: place for place, name in enumerate([str(k) for k in range(n)] if plain else names)}
        to = np.array([order[name] for name in self.number])
        pairs = to[np.array(list(self.links), dtype=np.int64).reshape(-1, 2)]
        values = [entry[0] for entry in self.links.values()]
        name = "; ".join([self.path.name, *self.notes])
        try:
            return Machines(
                *(self._links(pairs, [one[what] for one in values], n) for what in ("latency", "rate")),
                **{what: self._nodes(list(order), what) for what in ("up", "down", "compute")},
                labels=None if plain else check_labels(names, n),
                name=name,
            )
        except GraphError as error:
            raise FileError(f"{self.path}: {error}") from None

    @staticmethod
    def _links(pairs: Any, values: list[float], n: int) -> Any:
        sparse = csr_array((np.array(values, dtype=float), (pairs[:, 1], pairs[:, 0])), shape=(n, n))
        return sparse.toarray() if n <= DENSE else sparse

    def _nodes(self, names: list[str], what: str) -> FloatArray | float | None:
        values = [self.nodes.get(name, ({}, 0))[0].get(what) for name in names]
        if what == "compute":
            missing = [name for name, value in zip(names, values, strict=True) if value is None]
            if 0 < len(missing) < len(names):
                raise FileError(
                    f"{self.path}: compute is stated for some nodes but not for {listed(missing)}; state all."
                )
            return None if missing else np.array(values, dtype=float)
        limits = np.array([np.inf if value is None else value for value in values])
        return np.inf if np.isinf(limits).all() else limits

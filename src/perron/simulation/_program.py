"""A recorded step as a program for the compiled loop: sparse sums of rows of one block of memory.

Memory holds every field of the state twice, before and after a step; in the next step the two change places. A row of a
model-sized value has the numbers of all trials of a node, one trial after the other, filled up with zeros to a multiple of
`LANES`. An instruction is one of

    SUM         each row is a weighted sum of other rows: entries ``first[r] .. first[r + 1]`` of ``source`` and ``weight``
    RECIPROCAL  1 / x of each number of a column
    OWN         the diagonal of a square matrix as a column
    GRADIENT    the gradients of all nodes and trials

Weights that contain the learning rate or other columns are products of a number and of a place in memory; they are computed
before the sum that uses them. There is one list of instructions for each step of a cycle: of the network's period, or twice that
if it is odd.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import lcm
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from perron._typing import FloatArray, IntArray
from perron.algorithms.node import Side
from perron.networks.mixing import Mixing
from perron.simulation._trace import NotTraceable, Step, Term, Value

SUM, RECIPROCAL, OWN, GRADIENT = range(4)
OTHERS = {"gradient": GRADIENT, "reciprocal": RECIPROCAL, "own": OWN}
LANES = 8  # numbers to a multiple of which rows are filled up
GROUP = 4  # entries to a multiple of which sums are filled up, with a row of zeros


class Program(NamedTuple):
    """The arrays of a program; see the module.

    Attributes:
        code: instructions ``(count, 8)``: kind, place and stride of the result, rows, width, and three more: of a SUM the
            first of its rows in ``first``, and its range of computed weights; otherwise place and stride of the argument.
        starts: the first instruction of each step of a cycle, and the end.
        first, source, weight: the rows of sums and their entries.
        computed, factor, column: entries whose weight is a factor times a number in memory.
        memory: all values.
    """

    code: IntArray
    starts: IntArray
    first: IntArray
    source: NDArray[np.uint64]
    weight: FloatArray
    computed: IntArray
    factor: FloatArray
    column: IntArray
    memory: FloatArray


class Slot(NamedTuple):
    """Where a value is: its first row, the distance of rows (0: all rows are the same one), their number and width."""

    place: int
    stride: int
    rows: int
    width: int


class Place(NamedTuple):
    """Where the fields and the gradients of a step are."""

    before: dict[str, Slot]
    after: dict[str, Slot]
    gradients: list[Slot]


class Builder:
    """Writes the program of a cycle of steps.

    Args:
        steps: the graphs of the steps of a period.
        mixing: the network.
        numbers: numbers in a row of a model, over all trials.
    """

    def __init__(self, steps: Sequence[Step], mixing: Mixing, numbers: int) -> None:
        self.mixing, self.nodes = mixing, mixing.nodes
        self.model = steps[0].width
        self.numbers = -(-numbers // LANES) * LANES
        self.size = 0
        self._constants: list[tuple[Slot, Any]] = []
        self._matrices: dict[tuple[Side, int], tuple[IntArray, IntArray, FloatArray]] = {}
        self._code: list[list[int]] = []
        self._rows: list[IntArray] = []
        self._sums: list[tuple[Any, ...]] = [(np.empty(0),) * 5]  # of each: what `Program` has of its entries
        self._row_count = self._entry_count = self._weight_count = 0
        self.lr = self._allocate(self.nodes, 1)
        names = steps[0].outputs
        self.zero = self._allocate(1, max(self.numbers, self.nodes, *(value.width for value in names.values())))
        kept = {
            name
            for name in names
            if all(s.outputs[name].kind == "field" and s.outputs[name].name == name for s in steps)
        }
        pairs = {name: self._field(value, kept=name in kept) for name, value in names.items()}
        self.places: list[Place] = []
        starts = []
        self._free: dict[tuple[int, int], list[Slot]] = {}
        for number in range(lcm(len(steps), 2)):
            starts.append(len(self._code))
            one = steps[number % len(steps)]
            before, after = ({name: pair[(number + k) % 2] for name, pair in pairs.items()} for k in (0, 1))
            stage = _Stage(self, one, before)
            stage.write({name: slot for name, slot in after.items() if name not in kept})
            self.places.append(Place(before, after, [stage.slots[grad] for grad in one.gradients]))
        self._starts = [*starts, len(self._code)]

    def program(self) -> Program:
        """Return the program; memory holds constants, and otherwise zeros."""
        memory = np.zeros(self.size)
        for slot, numbers in self._constants:
            rows_of(memory, slot)[:] = numbers
        source, weight, computed, factor, column = (
            np.concatenate([np.empty(0), *part]) for part in zip(*self._sums, strict=True)
        )
        return Program(
            code=np.array(self._code, dtype=np.int64).reshape(-1, 8),
            starts=np.array(self._starts, dtype=np.int64),
            first=np.concatenate([np.empty(0), *self._rows]).astype(np.int64),
            source=source.astype(np.uint64),
            weight=weight,
            computed=computed.astype(np.int64),
            factor=factor,
            column=column.astype(np.int64),
            memory=memory,
        )

    @property
    def most_links(self) -> int:
        """The number of entries of the densest matrix that the steps mix with."""
        return max((len(rows) for rows, _, _ in self._matrices.values()), default=0)

    # ---- memory

    def _allocate(self, rows: int, width: int) -> Slot:
        size = self.numbers if width == self.model else width
        slot = Slot(self.size, size, rows, size)
        self.size += -(-rows * size // LANES) * LANES
        return slot

    def _field(self, value: Value, *, kept: bool) -> tuple[Slot, Slot]:
        first = self._allocate(self.nodes, value.width)
        return first, first if kept else self._allocate(self.nodes, value.width)

    def constant(self, numbers: Any) -> Slot:
        """Memory for numbers that do not change."""
        slot = self._allocate(*np.shape(numbers))
        self._constants.append((slot, numbers))
        return slot

    def temporary(self, rows: int, width: int, used: list[Slot]) -> Slot:
        """Memory for a step; ``used`` is what it uses already, and later steps may use again."""
        pool = self._free.setdefault((rows, width), [])
        slot = next((one for one in pool if one not in used), None)
        if slot is None:
            pool.append(slot := self._allocate(rows, width))
        used.append(slot)
        return slot

    # ---- instructions

    def instruct(self, kind: int, result: Slot, *others: int) -> None:
        """Add an instruction."""
        self._code.append(
            [kind, result.place, result.stride, result.rows, result.width, *others, *[0] * (3 - len(others))]
        )

    def links(self, key: tuple[Side, int] | None) -> tuple[IntArray, IntArray, FloatArray]:
        """The rows, columns and values of a matrix, row by row; None for the identity."""
        if key is None:
            every = np.arange(self.nodes)
            return every, every, np.ones(self.nodes)
        if key not in self._matrices:
            matrix = csr_array(self.mixing.at(*key)).tocoo()
            order = np.flatnonzero(matrix.data)
            order = order[np.lexsort((matrix.col[order], matrix.row[order]))]
            self._matrices[key] = (
                matrix.row[order].astype(np.int64),
                matrix.col[order].astype(np.int64),
                matrix.data[order],
            )
        return self._matrices[key]

    def sum(self, result: Slot, parts: Sequence[tuple[IntArray, IntArray, FloatArray, IntArray]]) -> None:
        """Add a SUM of parts: for each entry its row, the place of its source, its factor, and the place of its column or -1."""
        missing = -sum(np.bincount(part[0], minlength=result.rows) for part in parts) % GROUP if parts else GROUP
        filler = np.repeat(np.arange(result.rows), missing)
        zeros = np.zeros(len(filler))
        everything = [*parts, (filler, zeros + self.zero.place, zeros, zeros - 1)]
        rows, source, factor, column = (np.concatenate(part) for part in zip(*everything, strict=True))
        order = np.argsort(rows, kind="stable")
        computed = np.flatnonzero(column[order] >= 0)
        others = (self._row_count, self._weight_count, self._weight_count + len(computed))
        counts = np.bincount(rows, minlength=result.rows)
        self._rows.append(self._entry_count + np.concatenate([[0], np.cumsum(counts)]))
        weights = factor[order]
        self._sums.append(
            (source[order], weights, self._entry_count + computed, weights[computed], column[order][computed])
        )
        self._row_count += result.rows + 1
        self._entry_count += len(order)
        self._weight_count += len(computed)
        self.instruct(SUM, result, *others)


class _Stage:
    """The instructions of one step."""

    def __init__(self, builder: Builder, step: Step, before: dict[str, Slot]) -> None:
        self.builder, self.step, self.before = builder, step, before
        self.slots: dict[Value, Slot] = {}
        self._targets: dict[Value, Slot] = {}
        self._used: list[Slot] = []
        self._products: dict[frozenset[tuple[int, int]], Slot] = {}
        self._counts: dict[Value, int] = {}
        self._needed: set[Value] = set()
        for value in [*step.outputs.values(), *step.gradients]:
            self._needed.add(value)
            self._count(value)

    def _count(self, value: Value) -> None:
        """Count how often values are used, and note which of them need memory."""
        self._counts[value] = self._counts.get(value, 0) + 1
        if self._counts[value] > 1:
            return
        if value.of is not None:
            self._needed.add(value.of)
            self._count(value.of)
        for term in value.terms:
            self._needed.update(term.columns)
            for one in (term.value, *term.columns):
                self._count(one)

    def write(self, targets: dict[str, Slot]) -> None:
        """Compute the fields of the next state in their places, and all gradients."""
        copies = []
        for name, slot in targets.items():
            value = self.step.outputs[name]
            if value in self._targets or value.kind in ("field", "lr", "constant", "mean"):
                copies.append((value, slot))
            else:
                self._targets[value] = slot
        for value in [*self.step.gradients, *self._targets]:
            self._slot(value)
        for value, slot in copies:
            self.builder.sum(slot, [self._part(Term(value))])

    def _slot(self, value: Value) -> Slot:
        """Where a value is, computed if it is not there yet."""
        if value not in self.slots:
            self.slots[value] = self._computed(value)
        return self.slots[value]

    def _computed(self, value: Value) -> Slot:
        builder, kind = self.builder, value.kind
        if kind == "field":
            return self.before[value.name]
        if kind == "lr":
            return builder.lr
        if kind == "constant":
            return builder.constant(value.name)
        if kind == "mean":
            parts = self._mean(value)
        elif kind == "mix":
            parts = [self._mixed(Term(value))]
        elif kind == "sum":
            parts = [self._part(one) for term in value.terms for one in self._flat(term)]
        elif kind not in OTHERS:
            raise NotTraceable("it uses the diagonal of a matrix in another way than as a column")
        else:
            of = self._slot(value.of)  # type: ignore[arg-type]
            result = self._result(value)
            builder.instruct(OTHERS[kind], result, of.place, of.stride)
            return result
        result = self._result(value)
        builder.sum(result, parts)
        if kind == "mean":
            return result._replace(stride=0)
        return result

    def _result(self, value: Value) -> Slot:
        rows = 1 if value.kind == "mean" else self.builder.nodes
        if value in self._targets and rows > 1:
            return self._targets[value]
        return self.builder.temporary(rows, value.width, self._used)

    def _mean(self, value: Value) -> list[tuple[IntArray, IntArray, FloatArray, IntArray]]:
        of, n = self._slot(value.of), self.builder.nodes  # type: ignore[arg-type]
        return [(np.zeros(n, dtype=np.int64), of.place + of.stride * np.arange(n), np.full(n, 1 / n), np.full(n, -1))]

    def _flat(self, term: Term) -> list[Term]:
        """A term as terms whose values are in memory, or are mixes of such."""
        value = term.value
        shared = self._counts.get(value, 0) > 1 and len(value.terms) > 1
        if value.kind != "sum" or value in self._needed or shared:
            return [term]
        return [one for inner in value.terms for one in self._flat(inner.times(term.factor, *term.columns))]

    def _part(self, term: Term) -> tuple[IntArray, IntArray, FloatArray, IntArray]:
        """The entries of a term; see `Builder.sum`."""
        value = term.value
        inlined = value.kind == "mix" and value not in self._needed and self._counts[value] == 1
        return self._mixed(term) if inlined else self._entries(term, None, self._slot(value))

    def _mixed(self, term: Term) -> tuple[IntArray, IntArray, FloatArray, IntArray]:
        return self._entries(term, term.value.name, self._slot(term.value.of))  # type: ignore[arg-type]

    def _entries(
        self, term: Term, key: tuple[Side, int] | None, of: Slot
    ) -> tuple[IntArray, IntArray, FloatArray, IntArray]:
        rows, columns, numbers = self.builder.links(key)
        column = self._column(term.columns)
        places = np.full(len(rows), -1) if column is None else column.place + column.stride * rows
        return rows, of.place + of.stride * columns, term.factor * numbers, places

    def _column(self, columns: tuple[Value, ...]) -> Slot | None:
        """Where the product of columns is."""
        if not columns:
            return None
        slot = self._slot(columns[0])
        for other in map(self._slot, columns[1:]):
            key = frozenset(((slot.place, slot.stride), (other.place, other.stride)))
            if key not in self._products:
                every = np.arange(self.builder.nodes)
                first, second = (one.place + one.stride * every for one in (slot, other))
                self._products[key] = self.builder.temporary(self.builder.nodes, 1, self._used)
                self.builder.sum(self._products[key], [(every, first, np.ones(len(every)), second)])
            slot = self._products[key]
        return slot


def rows_of(memory: FloatArray, slot: Slot) -> FloatArray:
    """Return a view of a value, ``(rows, width)``."""
    return memory[slot.place : slot.place + slot.rows * slot.width].reshape(slot.rows, slot.width)

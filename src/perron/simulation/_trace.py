"""What a step of an algorithm computes, recorded by running its text once on symbols.

A step mixes rows with matrices, adds rows up with factors, and asks for gradients; the factors may contain the learning rate and
auxiliary columns of the state, such as push-sum weights. All of it becomes a graph of `Value`:

    field       a field of the state before the step
    gradient    a gradient, at the point ``of``
    lr          the learning rate, a column with one number per node
    constant    a matrix of numbers
    sum         the sum of its terms, each a value times a number times columns
    mix         A x or B x
    mean        the mean over the nodes, one row
    reciprocal  1 / x of a column
    own         the diagonal of a square matrix, as a column

Whatever else a text does (a norm, a comparison, a random number, a look at the number of the step) raises `NotTraceable`: then
there is no graph, and the simulator runs the text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor

from perron.algorithms.base import Algorithm, advance
from perron.algorithms.node import Handle, Later, LocalSamples, Node, NodeLinks, Ready, Side
from perron.algorithms.wrappers import Repeated, Wrapper


class NotTraceable(Exception):  # noqa: N818 (no error of the user's)
    """A step does something that is not recorded."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Value:
    """A node of the graph.

    Attributes:
        kind: see the module.
        width: numbers in a row; that of the model is given by `Step.width`.
        of: what it is computed from.
        name: of a field its name, of a mix the side and the number of the matrix, of a constant the numbers.
        terms: of a sum.
    """

    kind: str
    width: int
    of: Value | None = None
    name: Any = None
    terms: tuple[Term, ...] = ()


@dataclass(frozen=True)
class Term:
    """A value times a number times columns."""

    value: Value
    factor: float = 1.0
    columns: tuple[Value, ...] = ()

    def times(self, factor: float, *columns: Value) -> Term:
        """The term multiplied."""
        return Term(self.value, self.factor * factor, self.columns + columns)


@dataclass(frozen=True)
class Step:
    """The graph of a step.

    Attributes:
        outputs: the fields of the state after the step.
        gradients: the gradients that it asks for, in order.
        width: stands for the width of the model; no other value is as wide.
    """

    outputs: dict[str, Value]
    gradients: list[Value]
    width: int


def trace(
    algorithm: Algorithm, state: Any, node: Node, index: Callable[[Side, int], int], step: int, rounds: int
) -> Step:
    """Record a step of an algorithm.

    Args:
        algorithm: the algorithm.
        state: a state of it whose models have a width that no other field has.
        node: the node that made the state.
        index: the number of the matrix of a side in a step.
        step: the step, which the text does not see.
        rounds: number of exchanges in a step.
    """
    width = state.x.shape[-1]
    gradients: list[Value] = []

    def gradient(point: Tensor) -> Tensor:
        gradients.append(Value(kind="gradient", width=width, of=_value(point)))
        return _symbol(gradients[-1], node.nodes)

    symbols = {
        name: _symbol(Value(kind="field", width=value.shape[-1], name=name), node.nodes)
        for name, value in state._asdict().items()
    }
    lr = _symbol(Value(kind="lr", width=1), node.nodes)
    tracing: Node = _TracingNode(node, index, step)
    if rounds > 1:
        tracing = Repeated(tracing, rounds)
    try:
        after = advance(algorithm, state._replace(**symbols), _Timeless(tracing), lr, gradient)
        outputs = {name: _value(value) for name, value in after._asdict().items()}
    except (TypeError, ValueError, RuntimeError, AttributeError, NotImplementedError) as error:
        raise NotTraceable(f"it does what is not recorded, {str(error).splitlines()[0]:.80}") from None
    if tuple(outputs) != state._fields or any(outputs[name].width != symbols[name].shape[-1] for name in outputs):
        raise NotTraceable("its state changes its form")
    return Step(outputs, gradients, width)


class Symbol(Tensor):
    """A tensor without numbers, ``(n, width)``, which records what is done to it."""

    value: Value

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.__name__.removeprefix("__").removesuffix("__")  # what ends in one underscore works in place
        if func in _FACTS:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        if name not in _OPERATIONS:
            raise NotTraceable(f"it uses {name}, which is not recorded")
        return _OPERATIONS[name](*args, **kwargs)


_FACTS = {getattr(Tensor, name).__get__ for name in ("shape", "ndim", "dtype", "device", "layout", "requires_grad")} | {
    Tensor.dim,
    Tensor.size,
}


def _symbol(value: Value, nodes: int) -> Symbol:
    made = torch.empty(nodes, value.width, device="meta", dtype=torch.float64).as_subclass(Symbol)
    made.value = value
    return made


def _value(x: Any) -> Value:
    if not isinstance(x, Symbol):
        raise NotTraceable("it uses a tensor that is not made of its state")
    return x.value


# ---- operations


def _terms(x: Any) -> tuple[Term, ...]:
    value = _value(x)
    return value.terms if value.kind == "sum" and len(value.terms) <= 1 else (Term(value),)


def _summed(like: Symbol, terms: tuple[Term, ...], width: int | None = None) -> Symbol:
    return _symbol(Value(kind="sum", width=like.shape[-1] if width is None else width, terms=terms), like.shape[0])


def _add(x: Any, y: Any, *, alpha: float = 1.0) -> Symbol:
    if not _is_number(alpha):
        raise NotTraceable("it adds a multiple that depends on its state")
    x, y = (_filled(one, x if isinstance(x, Symbol) else y) for one in (x, y))
    if x.shape[-1] != y.shape[-1]:
        raise NotTraceable("it adds tensors of different widths")
    return _summed(x, _terms(x) + tuple(term.times(alpha) for term in _terms(y)))


def _filled(x: Any, like: Symbol) -> Symbol:
    """A number as a column that holds it everywhere, next to a column."""
    if isinstance(x, Symbol):
        return x
    if not _is_number(x) or like.shape[-1] != 1:
        raise NotTraceable("it adds a number to a model")
    return _symbol(Value(kind="constant", width=1, name=torch.full((like.shape[0], 1), float(x))), like.shape[0])


def _multiply(x: Any, y: Any) -> Symbol:
    if _is_number(x):
        x, y = y, x
    if _is_number(y):
        return _summed(x, tuple(term.times(float(y)) for term in _terms(x)))
    if _value(x).width == 1:
        x, y = y, x
    wide, column = _value(x), _value(y)
    if column.width != 1:
        if "constant" in (wide.kind, column.kind) and wide.width == column.width == x.shape[0]:
            return _masked(x, y)
        raise NotTraceable("it multiplies models with each other")
    factor: float = 1.0
    columns: tuple[Value, ...] = (column,)
    if column.kind == "sum" and len(column.terms) == 1 and column.terms[0].value.width == 1:
        single = column.terms[0]  # as -lr
        factor, columns = single.factor, (single.value, *single.columns)
    return _summed(x, tuple(term.times(factor, *columns) for term in _terms(x)))


def _masked(x: Symbol, y: Symbol) -> Symbol:
    """A square matrix times the identity, entry by entry."""
    square, unit = (_value(x), _value(y)) if _value(y).kind == "constant" else (_value(y), _value(x))
    if not torch.equal(unit.name, torch.eye(len(unit.name), dtype=unit.name.dtype)):
        raise NotTraceable("it multiplies with a matrix of its own")
    return _symbol(Value(kind="masked", width=square.width, of=square), x.shape[0])


def _sum(x: Symbol, dim: int, *, keepdim: bool = False) -> Symbol:
    value = _value(x)
    if value.kind != "masked" or dim != -1 or not keepdim:
        raise NotTraceable("it adds up numbers of a model")
    return _symbol(Value(kind="own", width=1, of=value.of), x.shape[0])


def _divide(x: Any, y: Any) -> Symbol:
    if _is_number(y):
        return _multiply(x, 1 / y)
    if _value(y).width != 1:
        raise NotTraceable("it divides by a model")
    inverse = _symbol(Value(kind="reciprocal", width=1, of=_value(y)), y.shape[0])
    return _multiply(x, inverse)


def _expand(x: Symbol, *shape: Any) -> Symbol:
    wanted = torch.Size(shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape)
    if wanted not in (x.shape, (-1, -1)):
        raise NotTraceable("it expands a tensor")
    return x


def _is_number(x: Any) -> bool:
    return isinstance(x, float | int) and not isinstance(x, bool)


_OPERATIONS: dict[str, Callable[..., Any]] = {
    "add": _add,
    "radd": _add,
    "sub": lambda x, y, *, alpha=1.0: _add(x, y, alpha=-alpha) if _is_number(alpha) else _add(x, _multiply(y, -alpha)),
    "rsub": lambda x, y: _add(y, _multiply(x, -1.0)),
    "mul": _multiply,
    "rmul": _multiply,
    "multiply": _multiply,
    "div": _divide,
    "truediv": _divide,
    "rtruediv": lambda x, y: _divide(y, x),
    "rdiv": lambda x, y: _divide(y, x),
    "neg": lambda x: _multiply(x, -1.0),
    "reciprocal": lambda x: _divide(1.0, x),
    "addcmul": lambda x, y, z, *, value=1.0: _add(x, _multiply(_multiply(y, z), value)),
    "zeros_like": lambda x: _summed(x, ()),
    "ones_like": lambda x: _filled(1.0, x),
    "expand": _expand,
    "expand_as": lambda x, y: _expand(x, y.shape),
    "sum": _sum,
}


# ---- nodes


class _TracingNode(Node):
    """Records exchanges."""

    def __init__(self, node: Node, index: Callable[[Side, int], int], step: int) -> None:
        self.nodes, self.step, self._index, self._node = node.nodes, step, index, node

    @property
    def unit(self) -> Tensor:
        return _symbol(Value(kind="constant", width=self.nodes, name=self._node.unit), self.nodes)

    def _mixed(self, side: Side, x: Tensor) -> Handle:
        of, key = _value(x), (side, self._index(side, self.step))
        return Ready(_symbol(Value(kind="mix", width=of.width, of=of, name=key), self.nodes))

    def pull(self, x: Tensor) -> Handle:
        return self._mixed("pull", x)

    def push(self, y: Tensor) -> Handle:
        return self._mixed("push", y)

    def mean(self, x: Tensor) -> Handle:
        of = _value(x)
        return Later(partial(_symbol, Value(kind="mean", width=of.width, of=of), self.nodes))

    def uniform(self) -> Tensor:
        raise NotTraceable("its nodes draw random numbers")

    def links(self, side: Side) -> NodeLinks:  # noqa: ARG002
        raise NotTraceable("it handles single messages")

    @property
    def samples(self) -> LocalSamples:
        raise NotTraceable("it chooses samples itself")


class _Timeless(Wrapper):
    """A node that does not tell the number of the step: what is recorded serves all steps."""

    @property
    def step(self) -> Any:
        return _AnyStep()

    @step.setter
    def step(self, _: int) -> None:
        raise NotTraceable("it changes the number of the step")


def _refuse(*_: Any) -> NoReturn:
    raise NotTraceable("it depends on the number of the step")


class _AnyStep:
    """The number of some step, which cannot be looked at."""

    __hash__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __bool__ = __int__ = __index__ = __float__ = (
        _refuse
    )
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __mod__ = __rmod__ = __pow__ = __truediv__ = _refuse
    __rtruediv__ = __floordiv__ = __divmod__ = __neg__ = __str__ = __repr__ = __format__ = __getattr__ = _refuse

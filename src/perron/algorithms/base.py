"""The interface of an algorithm: a frozen record of hyper-parameters with ``init`` and ``step``, written for ONE node.

``step`` is a generator. It starts exchanges, **yields the point at which it needs a gradient**, is sent the gradient, waits for
the exchanges and returns the next state. Exchanges that it starts before the yield travel while the gradient is computed. The
simulator and the processes run the same text; see `advance`. A yielded `Query` asks for the gradients of given
samples.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from dataclasses import dataclass, fields
from functools import partial
from inspect import Signature, signature
from typing import Any, ClassVar, Literal, NamedTuple, Self, get_args, get_origin, get_type_hints

import numpy as np
import torch
from torch import Tensor

from perron.algorithms.node import NO_SAMPLES, Node
from perron.algorithms.requirements import check_matrices, warn_if_varying, warn_if_wild
from perron.errors import PerronError
from perron.networks.facts import Network

Rate = float | Tensor


class Query(NamedTuple):
    """What a step yields to choose the samples of a gradient itself, where f_i = (1/m_i) sum_l f_i,l over a node's own samples.

    Attributes:
        point: where gradients are taken, ``(..., d)``.
        samples: numbers l of samples from 0 to m_i - 1, ``(..., b)``, as drawn by `perron.algorithms.node.LocalSamples.draw`.
            The answer is grad f_i,l for each of them, ``(..., b, d)``. None asks for the exact gradient of f_i, ``(..., d)``.
    """

    point: Tensor
    samples: Tensor | None = None


class Partial(NamedTuple):
    """What a step with several gradients may yield instead of a point, so that it can be saved in the middle.

    Attributes:
        point: where the next gradient is taken.
        progress: tensors by name from which the step continues: ``algorithm.step(state, node, lr, progress)`` then yields the
            same point, with the same messages in flight.
    """

    point: Tensor
    progress: dict[str, Tensor]


Step = Generator[Tensor | Query | Partial, Tensor, Any]


@dataclass(frozen=True)
class About:
    """Facts about an algorithm, for tables, checks and fair comparisons.

    What can be measured is not here: `perron.simulation.measure_traits` gives what it sends and which exchanges overlap the
    gradient, `Algorithm.effective_step` the effective step.

    Attributes:
        title: name in print.
        family: centralized, push-pull, push-only, pull-only, undirected, tree, federated or gossip.
        matrices: what it mixes with: ``A B`` (row- and column-stochastic), ``A``, ``B``, ``W`` (doubly stochastic),
            ``W sym`` (symmetric too), ``R C`` (a spanning-tree pair) or ``-``.
        exact: whether it reaches the optimum with a constant step (without noise); otherwise it is biased.
        reference: where it was published.
        speedup: whether its noise floor falls as 1/n, claimed or measured.
        robust: whether it keeps its guarantee on links that lose, delay and repeat messages.
        samples: whether it yields a `Query`, and so needs a problem with samples.
        varying: whether it keeps it where the matrices vary in time.
    """

    title: str
    family: str
    matrices: Literal["A B", "A", "B", "W", "W sym", "R C", "-"]
    exact: bool
    reference: str
    speedup: bool = True
    robust: bool = False
    samples: bool = False
    varying: bool = True


class _Options:
    """The signature of an algorithm's class: its options, although `__new__` accepts any in order to explain errors."""

    def __get__(self, _: object, owner: type) -> Signature:
        _self, *others = signature(owner.__init__).parameters.values()  # type: ignore[misc]
        return Signature(others)


class Algorithm(ABC):
    """Base of all algorithms; subclasses are frozen dataclasses and are not subclassed themselves.

    The state is a NamedTuple of tensors. Its field ``x`` is the model that a node would use. Tensors are never changed in place,
    except for the fields named in ``overwritten``: large ones of which a step changes a few rows. They must not be sent, and
    states of different steps share them.
    """

    overwritten: ClassVar[tuple[str, ...]] = ()

    __signature__ = _Options()

    def __new__(cls, *_: Any, **options: Any) -> Self:
        if "move" in options and "move" not in cls.__signature__.parameters:
            from perron.algorithms.moves import names_with_move

            raise PerronError(f"{cls.__name__} takes no move: its step is no direction. These do: {names_with_move()}.")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for one in fields(self):  # type: ignore[arg-type]
            value, hint = getattr(self, one.name), hints[one.name]
            if get_origin(hint) is Literal and value not in get_args(hint):
                options = ", ".join(map(repr, get_args(hint)))
                raise PerronError(f"{one.name} of {type(self).__name__} is one of {options}; got {value!r}.")

    @property
    @abstractmethod
    def about(self) -> About:
        """Title, family, requirements and reference."""

    @abstractmethod
    def init(self, x: Tensor, node: Node) -> Any:
        """Return the initial state at models ``x``."""

    @abstractmethod
    def step(self, state: Any, node: Node, lr: Rate) -> Step:
        """Do one step: yield points, receive gradients, return the next state."""

    @property
    def description(self) -> str:
        """The class with its options, equal in every process: functions are given by their names.

        Checkpoints contain it. Options that an earlier version did not have are left out at their default.
        """
        options = {
            one.name: getattr(self, one.name)
            for one in fields(self)  # type: ignore[arg-type]
            if not (one.metadata.get("later") and getattr(self, one.name) == one.default)
        }
        named = [f"{name}={_described(value)}" for name, value in options.items()]
        return f"{type(self).__name__}({', '.join(named)})"

    @property
    def reliable(self) -> Algorithm:
        """The algorithm that this one equals where every message arrives in its step; itself unless it is robust."""
        return self

    @property
    def remembered(self) -> tuple[str, ...]:
        """The fields of the state that last when the algorithm restarts: what a move remembers of the gradients."""
        return ()

    def with_l1(self, l1: float) -> Algorithm:
        """Return the algorithm for a problem with a part l1 |x|_1 that gradients leave out; itself if there is none."""
        if l1:
            raise PerronError(
                f"{self.about.title} would ignore l1 |x|_1 with l1 = {l1:g}, which gradients leave out: choose an algorithm with "
                "a proximal move of the same l1, as PushPull(order='atc', move=Proximal()); in a study "
                '{ name = "push_pull_atc", move = "proximal" }.'
            )
        return self

    def resume(self, state: Any, x: Tensor, node: Node) -> Any:
        """Return the state to continue from at models ``x`` after nodes were lost or have joined.

        It is the initial state, in which trackers restart, with the remembered fields of ``state``.
        """
        return self.init(x, node)._replace(**{name: getattr(state, name) for name in self.remembered})

    # ---- facts about a run, given the network

    def average(self, state: Any, network: Network) -> Tensor:
        """Return x-hat, the combination of the nodes' variables that follows centralized SGD: ``(..., n, d) -> (..., d)``."""
        if self.about.matrices in ("A B", "A", "R C"):
            return weighted(network.pull_perron, state.x)
        return (state.u if "u" in state._fields else state.x).mean(-2)

    def effective_step(self, network: Network) -> float:
        """Return the factor of lr in x-hat+ = x-hat - factor lr g-bar + eps: c with A and B, n with A or trees, otherwise 1."""
        if self.about.matrices == "A B":
            return network.alignment
        return float(network.nodes) if self.about.matrices in ("A", "R C") else 1.0

    def conserved(self, state: Any, network: Network) -> dict[str, Tensor]:
        """Return quantities that are zero after every step, by name: the invariants of the method."""
        return {}

    def check(self, network: Network) -> None:
        """Raise a `MixingError` unless the network meets the requirements; warn where errors grow before they fall."""
        check_matrices(self.about, network.mixing)
        warn_if_varying(self.about, network.mixing)
        warn_if_wild(self.about, network)

    def default_lr(self, network: Network, smoothness: float) -> float:
        """Return a step size that was stable on all networks tried, for gradients with Lipschitz constant ``smoothness``."""
        about, n = self.about, network.nodes
        if about.family == "centralized":
            return 1 / smoothness
        if about.matrices == "R C":
            return 0.5 * min(0.25, 1 / max(network.depth, 1)) / (n * smoothness)
        if about.matrices == "A B":
            return 0.5 * min(0.25, 1 / max(network.pull_sum, network.push_sum, 1)) / (network.alignment * smoothness)
        if about.matrices == "A":
            shy = min(1.0, n * float(network.pull_perron.min()))
            return 0.5 * min(0.25, 1 / max(network.pull_sum, 1)) * shy / (n * smoothness)
        shy = min(1.0, n * float(network.push_perron.min())) if about.matrices == "B" else 1.0
        return 0.5 * min(0.25, 1 / max(network.push_sum, 1)) * shy / smoothness


def _described(option: Any) -> str:
    if isinstance(option, Algorithm):
        return option.description
    if isinstance(option, partial):
        given = [
            *map(_described, option.args),
            *(f"{name}={_described(value)}" for name, value in option.keywords.items()),
        ]
        return f"{_described(option.func)}({', '.join(given)})"
    text = getattr(option, "__qualname__", None) or repr(option)
    return type(option).__qualname__ if " at 0x" in text else text


def refuse_query(_: Query) -> Tensor:
    """Refuse to answer, where there are stochastic gradients only."""
    raise PerronError(NO_SAMPLES)


def zero_answer(query: Query) -> Tensor:
    """Return gradients that are zero."""
    zero = torch.zeros_like(query.point)
    return zero if query.samples is None else zero.unsqueeze(-2).expand(*query.samples.shape, -1)


def advance(
    algorithm: Algorithm,
    state: Any,
    node: Node,
    lr: Rate,
    gradient: Callable[[Tensor], Tensor],
    query: Callable[[Query], Tensor] = refuse_query,
) -> Any:
    """Run one step and return the next state; ``gradient(point)`` answers each yielded point, and ``query`` each `Query`."""
    step = algorithm.step(state, node, lr)
    try:
        asked = next(step)
        while True:
            point = asked.point if isinstance(asked, Partial) else asked
            asked = step.send(query(point) if isinstance(point, Query) else gradient(point))
    except StopIteration as done:
        return done.value


def weighted(weights: np.ndarray[Any, Any], x: Tensor) -> Tensor:
    """Return sum_i weights[i] x_i, ``(..., n, d) -> (..., d)``."""
    row = torch.as_tensor(weights, dtype=x.dtype, device=x.device)
    if x.ndim != 3:
        return row @ x
    return torch.bmm(row.expand(x.shape[0], 1, -1), x).squeeze(-2)  # matmul would copy x first

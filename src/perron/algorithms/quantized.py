"""Quantized messages with memory: any algorithm with messages of few bits, exact where the algorithm is.

A vector that tends to a limit, as a model, is sent as its change. Each node remembers what its neighbors know of it (``sent``)
and the weighted sum of what it knows of them (``mixed``); C rounds to few bits:

    q = C(x - sent)     sent+ = sent + q     mixed+ = mixed + A q     A x is replaced by mixed+ + (x - sent+)

The changes become small, and the rounding errors with them. A vector that tends to zero, as a tracker, needs no memory:

    s = C(y)     B y is replaced by B s + (y - s)

What is not sent stays with the sender, so that 1^T y (and for pulls pi_A^T x) is conserved whatever C is. Trackers that do not
tend to zero, as those of a move with weight decay, are sent as changes, too.

The memory begins with zeros: nodes that start from the same model all send the same C(x), and A x = x is exact. One exchange in
a thousand is in full precision and sets the memory up again, since ``mixed`` and ``sent`` are sums whose rounding errors add up.
So is the first one after nodes were lost or have joined. Vectors that are not as long as the model, as weights and scalars, are
always sent in full precision.

`Quantized` is an algorithm around an algorithm: the memory is part of the state, so that checkpoints, restarts and changes of
membership treat it like the rest. Where matrices take turns, each of them has a memory of its own.

References: Song, Shi, Pu & Yan 2022 (CPP); Liao, Li, Huang & Pu 2022 (C-GT, undirected).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from perron.algorithms.base import About, Algorithm, Rate, Step, advance, zero_answer
from perron.algorithms.codecs import Codec, Wire, codec_of, values_of
from perron.algorithms.moves import AdamW, Descent, Memory, Moving
from perron.algorithms.node import SIDES, Handle, Later, LocalSamples, Node, NodeLinks, Ready, Side
from perron.algorithms.states import extend, shortened
from perron.algorithms.wrappers import Recording, Wrapper
from perron.errors import PerronError
from perron.networks.facts import Network
from perron.networks.mixing import Mixing
from perron.random import Keyed

REFRESH = 1000  # exchanges of a matrix, of which one is in full precision
MOST_MATRICES = 16  # that take turns and have a memory each
PROBE_DIM = 9
FULL_PRECISION = "Algorithms for unreliable links send running sums, in full precision; pass wire=None."

Kind = Literal["memory", "rounded", "full"]


class Exchanged(NamedTuple):
    """An exchange of a step, and how it is sent: as a change, rounded, or in full precision."""

    side: Side
    kind: Kind


def quantized(algorithm: Algorithm, wire: Wire | None, mixing: Mixing) -> Algorithm:
    """Return an algorithm that sends its messages with few bits over a network; itself if ``wire`` is None."""
    if wire is None:
        return algorithm
    if algorithm.about.matrices == "-":
        raise PerronError(
            f"{algorithm.about.title} averages over all nodes, in full precision, and sends nothing that wire={wire!r} could "
            "quantize. Pass wire=None."
        )
    remembers = bool(mixing.period) and mixing.period <= MOST_MATRICES
    if not remembers and wire != "bf16":
        raise PerronError(
            f"wire={wire!r} sends changes, and remembers for each matrix what was sent: up to {MOST_MATRICES} may take turns. "
            f"{mixing!r} has more, or never repeats. Choose another network, wire='bf16' or wire=None."
        )
    return Quantized(
        algorithm=algorithm,
        wire=wire,
        matrices=tuple(map(len, mixing.sequences)) if remembers else (0, 0),
        period=mixing.period,
        index=mixing.index,
    )


@dataclass(frozen=True, kw_only=True)
class Quantized(Algorithm):
    """An algorithm whose messages have few bits; made by `quantized`.

    Args:
        algorithm: the algorithm.
        wire: the codec, see `perron.algorithms.codecs`.
        matrices: how many matrices take turns in pulls and in pushes, with a memory for each; 0 for no memory at all.
        period: the number of steps after which they repeat.
        index: returns the number of the matrix of a side and a step.
    """

    algorithm: Algorithm
    wire: Wire
    matrices: tuple[int, ...]
    period: int
    index: Callable[[Side, int], int]

    @property
    def about(self) -> About:
        return self.algorithm.about

    @property
    def description(self) -> str:
        return f"{self.algorithm.description} with messages as {self.wire}"

    @property
    def remembered(self) -> tuple[str, ...]:
        return self.algorithm.remembered

    def init(self, x: Tensor, node: Node) -> Any:
        """No neighbor knows anything yet."""
        memory = {name: torch.zeros_like(x) for name in self._names}
        if memory:
            memory["known"] = torch.full_like(x[..., :1], self.period)  # steps since memories were last set up
        return extend(self.algorithm.init(x, node), memory)

    def resume(self, state: Any, x: Tensor, node: Node) -> Any:
        """As `Algorithm.resume`, and the memory is set up by an exchange in full precision: models differ now."""
        resumed = super().resume(state, x, node)
        return resumed._replace(known=torch.zeros_like(resumed.known)) if self._names else resumed

    def step(self, state: Any, node: Node, lr: Rate, progress: Memory | None = None) -> Step:
        refresh = bool(self._names) and int(state.known.view(-1)[0]) < self.period
        wrapped = _QuantizingNode(node, self, state, refresh=refresh)
        more: Any = {} if progress is None else {"progress": progress}
        result = yield from self.algorithm.step(shortened(state) if self._names else state, wrapped, lr, **more)
        if not self._names:
            return result
        memory = {name: getattr(state, name) for name in self._names} | wrapped.memory()
        return extend(result, memory | {"known": (state.known + 1) % (REFRESH * self.period)})

    def check(self, network: Network) -> None:
        self.algorithm.check(network)

    @cached_property
    def codec(self) -> Codec:
        """How messages are written."""
        return codec_of(self.wire)

    @cached_property
    def exchanges(self) -> tuple[Exchanged, ...]:
        """The exchanges of a step, in the order in which the algorithm starts them."""
        return exchanges_of(self.algorithm)

    @cached_property
    def _names(self) -> list[str]:
        """The names of the memory in the state."""
        turns = dict(zip(SIDES, self.matrices, strict=True))
        return [
            name
            for place, one in enumerate(self.exchanges)
            if one.kind == "memory"
            for turn in range(turns[one.side])
            for name in names_at(place, turn)
        ]


def names_at(place: int, turn: int) -> tuple[str, str]:
    """Return the names in the state of what was sent and what was mixed, at one place in a step and for one matrix."""
    return f"sent_{place}_{turn}", f"mixed_{place}_{turn}"


class _QuantizingNode(Wrapper):
    """The node of one step: it sends with few bits, from the memory in the state before the step."""

    def __init__(self, node: Node, owner: Quantized, state: Any, *, refresh: bool) -> None:
        super().__init__(node)
        self._owner, self._state, self._refresh = owner, state, refresh
        self._handles: list[Handle] = []
        self._memory: dict[str, Tensor] = {}

    def pull(self, x: Tensor) -> Handle:
        return self._exchange("pull", x, self.node.pull)

    def push(self, y: Tensor) -> Handle:
        return self._exchange("push", y, self.node.push)

    def links(self, side: Side) -> NodeLinks:
        raise PerronError(FULL_PRECISION)

    def memory(self) -> dict[str, Tensor]:
        """Return the memory after the step."""
        handles, self._handles = (
            self._handles,
            [],
        )  # they refer to this node: without cycles, old states are freed at once
        for handle in handles:
            handle.wait()
        return self._memory

    def _exchange(self, side: Side, x: Tensor, start: Callable[[Any], Handle]) -> Handle:
        place, planned = len(self._handles), self._owner.exchanges
        if place >= len(planned) or planned[place].side != side:
            raise PerronError(
                f"{self._owner.about.title} exchanges other vectors in this step than in the first ones, so that its messages "
                "cannot be quantized; pass wire=None."
            )
        kind = planned[place].kind
        if kind == "memory" and self._owner.matrices[SIDES.index(side)] == 0:
            kind = "rounded"
        if kind == "memory":
            handle = self._send_change(place, side, x, start)
        else:
            handle = self._send_rounded(x, start) if kind == "rounded" else start(x)
        self._handles.append(handle)
        return handle

    def _send_change(self, place: int, side: Side, x: Tensor, start: Callable[[Any], Handle]) -> Handle:
        name_sent, name_mixed = names_at(place, self._owner.index(side, self.node.step))
        if self._refresh:
            handle = start(x)

            def finish_refresh() -> Tensor:
                result = handle.wait()
                self._memory |= {name_sent: x.clone(), name_mixed: result.clone()}
                return result

            return Later(finish_refresh)
        before = getattr(self._state, name_sent)
        change = self._owner.codec.encode(x - before)
        sent, handle = before + change.values, start(change)

        def finish() -> Tensor:
            mixed = handle.wait().add_(getattr(self._state, name_mixed))
            self._memory |= {name_sent: sent, name_mixed: mixed}
            return mixed + (x - sent)

        return Later(finish)

    def _send_rounded(self, y: Tensor, start: Callable[[Any], Handle]) -> Handle:
        rounded = self._owner.codec.encode(y)
        handle = start(rounded)
        return Later(lambda: handle.wait().add_(y).sub_(rounded.values))


def exchanges_of(algorithm: Algorithm) -> tuple[Exchanged, ...]:
    """Return the exchanges of a step of an algorithm and how each is sent, found by trial.

    A network of one node is at its optimum, x = 1 with zero gradients: vectors that are zero there tend to zero. Trackers do not
    with a move that rests elsewhere, as with weight decay.
    """
    title, at_rest = algorithm.about.title, _ends_with_zero_trackers(algorithm)
    try:
        found = _recorded(_plain(algorithm))
    except PerronError:
        raise
    except Exception as error:  # code of the user's, as a constraint
        raise PerronError(
            f"{title} cannot be tried on a single node, so that its messages cannot be quantized ({type(error).__name__}: "
            f"{error}); pass wire=None."
        ) from error
    if [one.side for one in found[1]] != [one.side for one in found[2]]:
        raise PerronError(
            f"{title} exchanges other vectors in every step, so that its messages cannot be quantized; pass wire=None."
        )
    return tuple(one if at_rest or one.kind == "full" else one._replace(kind="memory") for one in found[-1])


def _ends_with_zero_trackers(algorithm: Any) -> bool:
    inner = getattr(algorithm, "method", algorithm)  # of variance reduction
    return not isinstance(inner, Moving) or not inner.tracks or inner.move.rests


def _plain(algorithm: Any) -> Algorithm:
    """Return the algorithm with one local step and a plain move: a move of the user's own may be bound to a model."""
    options: dict[str, Any] = {}
    if isinstance(algorithm, Moving):
        options["move"] = AdamW(weight_decay=0.0) if algorithm.move.scale_dependent else Descent()
    options |= {one.name: 1 for one in fields(algorithm) if one.name == "local_steps"}
    return replace(algorithm, **options)


def _recorded(algorithm: Algorithm) -> list[list[Exchanged]]:
    """Return the exchanges of three steps on one node."""
    node = Recording(_OneNode())
    state = algorithm.init(torch.ones(PROBE_DIM, dtype=torch.float64), node)
    found: list[list[Exchanged]] = []
    for node.step in range(3):
        node.exchanges.clear()
        state = advance(algorithm, state, node, 0.1, torch.zeros_like, zero_answer)
        found.append([_exchanged(one.verb, values_of(one.sent)) for one in node.exchanges if one.verb != "mean"])
    return found


def _exchanged(verb: str, sent: Tensor) -> Exchanged:
    side: Side = "pull" if verb == "pull" else "push"
    if sent.shape[-1] != PROBE_DIM:
        return Exchanged(side, "full")
    return Exchanged(side, "memory" if bool(sent.any()) else "rounded")


class _OneNode(Node):
    """A network of one node: what it sends comes back."""

    nodes, step = 1, 0

    @property
    def unit(self) -> Tensor:
        return torch.ones(1, dtype=torch.float64)

    def pull(self, x: Tensor) -> Handle:
        return Ready(x.clone())

    def push(self, y: Tensor) -> Handle:
        return Ready(y.clone())

    def mean(self, x: Tensor) -> Handle:
        return Ready(x.clone())

    def uniform(self) -> Tensor:
        return torch.full((1,), 0.5, dtype=torch.float64)

    def links(self, side: Side) -> NodeLinks:
        return _OneNodeLinks()

    @property
    def samples(self) -> LocalSamples:
        return LocalSamples(torch.ones(1, dtype=torch.int64), Keyed(0), self.step)


class _OneNodeLinks(NodeLinks):
    self_weight = share = torch.ones(1, dtype=torch.float64)

    def _refused(self) -> PerronError:
        return PerronError(FULL_PRECISION)

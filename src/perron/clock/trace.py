"""The recursion of the clock, one link at a time, with the cause of each time: readable, slow, and able to say why.

`perron.clock.recursion` has the same recursion on arrays; tests compare the two.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, NamedTuple

from perron._typing import FloatArray
from perron.clock.tape import Average, Gradient, Post, Wait
from perron.errors import PerronError

if TYPE_CHECKING:
    from perron.clock.recursion import Recursion


class Part(NamedTuple):
    """A part of a critical path.

    Attributes:
        kind: ``compute``, ``wire``, ``latency``, ``request`` (a receiver asks for a message), ``queue`` or ``overhead``.
        node: where it takes place, or begins.
        link: its source and target, if it is on a link; of a request, those of the message.
        seconds: how long it takes.
    """

    kind: str
    node: int
    link: tuple[int, int] | None
    seconds: float


class Moment(NamedTuple):
    """A time and how it came about."""

    time: float
    part: Part | None = None
    before: Moment | None = None

    def then(self, kind: str, node: int, seconds: float, link: tuple[int, int] | None = None) -> Moment:
        """Return a later moment."""
        return Moment(self.time + seconds, Part(kind, node, link, seconds), self) if seconds else self

    @property
    def path(self) -> tuple[Part, ...]:
        """All parts that led here, in order."""
        parts, one = [], self
        while one is not None:
            if one.part is not None:
                parts.append(one.part)
            one = one.before  # type: ignore[assignment]
        return tuple(reversed(parts))


def _later(*moments: Moment) -> Moment:
    return max(moments, key=lambda one: one.time)


class SlowRecursion:
    """One trial of a `Recursion`, in plain Python."""

    def __init__(self, recursion: Recursion, compute: FloatArray) -> None:
        self.fast, self.compute = recursion, [float(c) for c in compute]
        self.state = {name: [Moment(0.0)] * value.shape[-1] for name, value in recursion.start().items()}

    def set_unit(self, place: int) -> None:
        """Let all times be -inf, but for one that is zero: the ``place``-th of the whole state."""
        for name, values in self.state.items():
            self.state[name] = [Moment(0.0 if place == k else -inf) for k in range(len(values))]
            place -= len(values)

    def advance(self, step: int) -> None:
        """Do one step."""
        fast, state = self.fast, self.state
        now = list(state["now"])
        posted: dict[int, list[Moment]] = {}
        asked: dict[int, list[Moment]] = {}
        for one in fast.tape.operations:
            match one:
                case Gradient():
                    now = [t.then("compute", i, self.compute[i]) for i, t in enumerate(now)]
                case Post(batch):
                    posted[batch] = asked[batch] = list(now)
                    if fast.ahead and not fast.eager:
                        asked[batch] = state[f"asked.{batch}.{fast.ahead}"]
                        for k in range(fast.ahead, 1, -1):
                            state[f"asked.{batch}.{k}"] = state[f"asked.{batch}.{k - 1}"]
                        state[f"asked.{batch}.1"] = list(now)
                case Wait(batch):
                    now = self._wait(batch, step, now, posted[batch], asked[batch])
                case Average():
                    raise PerronError("Averages are not traced.")
        state["now"] = now

    def _wait(
        self, batch: int, step: int, now: list[Moment], posted: list[Moment], asked: list[Moment]
    ) -> list[Moment]:
        fast, state = self.fast, self.state
        links = fast.batch_links(batch, step)
        arrived: dict[int, Moment] = {}
        left: dict[int, Moment] = {}
        for e, (source, target) in enumerate(zip(links.sources.tolist(), links.targets.tolist(), strict=True)):
            link = (source, target)
            wire, latency, back = (
                float(v if isinstance(v, float) else v[e]) for v in (links.wire, links.latency, links.back)
            )
            if fast.eager:
                start = _later(posted[source], state["up"][source])
                if fast.queued:
                    place = int(links.index[e])  # type: ignore[index]
                    start = _later(start, state["link"][place])
                    state["link"][place] = start.then("wire", source, float(links.own[e]), link)
            else:
                start = _later(posted[source], asked[target].then("request", target, back, link))
            end = start.then("wire", source, wire, link)
            left[source] = _later(left.get(source, end), end)
            there = end.then("latency", source, latency, link)
            arrived[target] = _later(arrived.get(target, there), there)
        if fast.eager:
            self._queues(links, posted, arrived)
        else:
            now = [_later(t, left[i]) if i in left else t for i, t in enumerate(now)]
        now = [_later(t, arrived[i]) if i in arrived else t for i, t in enumerate(now)]
        costs = fast.overhead * links.active + fast.per_byte * links.heard
        return [t.then("overhead", i, float(costs[i])) for i, t in enumerate(now)]

    def _queues(self, links: object, posted: list[Moment], arrived: dict[int, Moment]) -> None:
        """The accesses of senders and receivers are busy until a batch has passed."""
        state = self.state
        for i, (out, into) in enumerate(zip(links.out.tolist(), links.into.tolist(), strict=True)):  # type: ignore[attr-defined]
            if out > 0:
                state["up"][i] = _later(posted[i], state["up"][i]).then("queue", i, out)
            if into > 0:
                arrived[i] = _later(arrived[i], state["down"][i].then("queue", i, into))
            if i in arrived:
                state["down"][i] = _later(state["down"][i], arrived[i])


def trace(recursion: Recursion, compute: FloatArray, place: int, steps: int) -> tuple[Part, ...]:
    """Return the parts of the longest path from an entry of the state back to itself, ``steps`` steps later."""
    slow = SlowRecursion(recursion, compute)
    slow.set_unit(place)
    for step in range(steps):
        slow.advance(step)
    entries = [one for values in slow.state.values() for one in values]
    return entries[place].path

"""Links that lose, delay, repeat and reorder messages: a node around a node, in the simulator and in processes alike.

Every message has a fate of its own, drawn by edge and step: it is lost with a probability; it takes a whole number of steps from
0 to ``delay``, all equally likely, so that a later one may overtake it; and with a probability a second copy is sent, with a fate
of its own. The listener draws, by key, so that the same messages are lost in the simulator and between processes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from perron.algorithms.node import Handle, Later, Node, Side, Wrapper
from perron.errors import PerronError

NEVER = 2**62  # the step at which a lost message arrives


@dataclass(frozen=True, kw_only=True)
class Links:
    """How unreliable links are.

    Args:
        loss: the probability that a message is lost.
        delay: the most steps that one takes; they take 0, 1, ..., ``delay`` steps, all equally likely.
        repeats: the probability that one is sent twice.

    >>> str(Links(loss=0.1, delay=5))
    'lose 10% of their messages and delay them by up to 5 steps'
    """

    loss: float = 0.0
    delay: int = 0
    repeats: float = 0.0

    def __post_init__(self) -> None:
        for name in ("loss", "repeats"):
            if not 0 <= getattr(self, name) < 1:
                raise PerronError(f"{name} is a probability in [0, 1); got {getattr(self, name)}.")
        if not isinstance(self.delay, int) or self.delay < 0:
            raise PerronError(f"delay is a whole number of steps, 0 or more; got {self.delay!r}.")

    def __bool__(self) -> bool:
        """Whether there is anything wrong with them."""
        return bool(self.loss or self.delay or self.repeats)

    def __str__(self) -> str:
        told = [f"lose {100 * self.loss:.3g}% of their messages"] if self.loss else []
        told += [f"delay {'them' if told else 'messages'} by up to {self.delay} steps"] if self.delay else []
        told += [f"repeat {100 * self.repeats:.3g}% of {'them' if told else 'their messages'}"] if self.repeats else []
        return " and ".join(told) or "are reliable"


class InTransit:
    """What was sent in the last steps in one exchange, and when it arrives: a ring of ``delay + 1`` places, by step."""

    def __init__(self, sent: Tensor, values: Tensor, arrivals: Tensor) -> None:
        self.sent = sent  # (places,): the step; -1 where nothing was sent yet
        self.values = values  # (places, ..., links, d)
        self.arrivals = arrivals  # (places, ..., links, 2): the step at which each of two copies arrives, or NEVER

    @classmethod
    def empty(cls, places: int, values: Tensor) -> InTransit:
        """For messages like these."""
        arrivals = torch.full((places, *values.shape[:-1], 2), NEVER, device=values.device)
        sent = torch.full((places,), -1, device=values.device)
        return cls(sent, values.new_zeros((places, *values.shape)), arrivals)

    def put(self, step: int, values: Tensor, lags: Tensor) -> None:
        """Send, in the place of what was sent so long ago that it has arrived or never will."""
        place = step % len(self.sent)
        self.sent[place], self.values[place], self.arrivals[place] = step, values, lags + step

    def newest(self, here: Tensor, otherwise: Tensor) -> Tensor:
        """The last sent among those that are ``here`` (places, ..., links), by link; something else where none is."""
        steps = torch.where(here, self.sent.view(-1, *[1] * (here.ndim - 1)), -1)
        last, place = steps.max(0)
        index = place[None, ..., None].expand(1, *self.values.shape[1:])
        return torch.where(last[..., None] >= 0, self.values.gather(0, index)[0], otherwise)


class Unreliable(Wrapper):
    """A node with unreliable links.

    What arrives is what `Node.latest` is about: for each link the message that was sent last among those that have arrived. Plain
    pulls and pushes take what arrives in a step as it comes. A pull makes up with the listener's own value for a neighbour from
    whom nothing has come, so that its weights still sum to one. A push adds up what has come: the mass of a lost message is gone,
    that of a repeated one is there twice, trackers no longer sum to the gradients, and no plain algorithm keeps its guarantee.
    """

    def __init__(self, node: Node, links: Links) -> None:
        super().__init__(node)
        self.links = links
        self._in_transit: dict[str, InTransit] = {}
        self._asked: Counter[Side] = Counter()  # exchanges of this step
        self._drawn: dict[
            Side, Tensor
        ] = {}  # fates of this step: all that is sent on a link in one exchange goes together
        self._now = -1

    def pull(self, x: Tensor) -> Handle:
        """What comes in this step, and one's own value where nothing does."""

        def arrived(found: InTransit, now: int) -> Tensor:
            values = found.newest((found.arrivals == now).any(-1), self.node.inward("pull", x))
            return self.node.weigh("pull", values).add_(self.node.self_weight("pull") * x)

        return self._sent("pull", x, arrived)

    def push(self, y: Tensor) -> Handle:
        """The sum of what comes in this step."""

        def arrived(found: InTransit, now: int) -> Tensor:
            copies = (found.arrivals == now).sum(-1, keepdim=True)
            values = (copies * found.values).sum(0)
            return self.node.weigh("push", values).add_(self.node.self_weight("push") * y)

        return self._sent("push", y, arrived)

    def latest(self, side: Side, x: Tensor, before: Tensor) -> Handle:
        """The newest that has arrived on each link."""
        return self._sent(side, x, lambda found, now: found.newest(found.arrivals.amin(-1) <= now, before))

    def _sent(self, side: Side, x: Tensor, arrived: Callable[[InTransit, int], Tensor]) -> Handle:
        """Send, and tell what has arrived of all that is under way when it is waited for."""
        now = self.node.step
        if now != self._now:
            self._now = now
            self._asked.clear()
            self._drawn.clear()
        key = f"{side} {self._asked[side]}"  # the same in every step
        self._asked[side] += 1
        if side not in self._drawn:
            self._drawn[side] = self._lags(side)
        heard, lags = self.node.hear(side, x), self._drawn[side]

        def found() -> Tensor:
            values = heard.wait()
            if key not in self._in_transit or self._in_transit[key].values.shape[1:] != values.shape:  # other links
                self._in_transit[key] = InTransit.empty(self.links.delay + 1, values)
            self._in_transit[key].put(now, values, lags.to(values.device))
            return arrived(self._in_transit[key], now)

        return Later(found)

    def _lags(self, side: Side) -> Tensor:
        """How many steps the messages of this step take, twice; NEVER if they are lost, or not sent a second time."""
        chances = self.node.chances(side, 5)
        lags = (chances[..., [1, 4]] * (self.links.delay + 1)).long().clamp_(max=self.links.delay)
        lost = chances[..., [0, 3]] < self.links.loss
        lost[..., 1] |= chances[..., 2] >= self.links.repeats
        return lags.masked_fill_(lost, NEVER)

    def saved(self) -> dict[str, Tensor]:
        """What is under way, to go on from."""
        parts = ("sent", "values", "arrivals")
        return {f"{key} {part}": getattr(found, part) for key, found in self._in_transit.items() for part in parts}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on with what was under way."""
        keys = {name.rpartition(" ")[0] for name in tensors}
        parts = ("sent", "values", "arrivals")
        self._in_transit = {key: InTransit(*(tensors[f"{key} {part}"].clone() for part in parts)) for key in keys}

"""Links that lose, delay, repeat and reorder messages: a node around a node, in the simulator and in processes alike.

Every message has a fate of its own, drawn by edge and step: it is lost with a probability; it takes a whole number of steps from
0 to ``delay``, all equally likely, so that a later one may overtake it; and with a probability a second copy is sent, with a fate
of its own. The listener draws, by key, so that the same messages are lost in the simulator and between processes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from perron.errors import PerronError
from perron.node import Handle, Later, Node, Side, Wrapper


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
        told = [f"lose {self.loss:.0%} of their messages"] if self.loss else []
        told += [f"delay {'them' if told else 'messages'} by up to {self.delay} steps"] if self.delay else []
        told += [f"repeat {self.repeats:.0%} of {'them' if told else 'their messages'}"] if self.repeats else []
        return " and ".join(told) or "are reliable"


class Message(NamedTuple):
    """What was sent along all edges in a step, ``(..., edges, d)``, and how long its two copies take, ``(..., edges, 2)``."""

    step: int
    values: Tensor
    lags: Tensor


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
        self._under_way: dict[str, list[Message]] = {}
        self._asked: Counter[Side] = Counter()  # exchanges of this step
        self._drawn: dict[Side, Tensor] = {}  # fates of this step
        self._now = -1

    def pull(self, x: Tensor) -> Handle:
        """What comes in this step, and one's own value where nothing does."""
        now, key, heard = self._sent("pull", x)

        def arrived() -> Tensor:
            values = self.node.inward("pull", x)
            for message in self._all(key, now, heard):  # the newest last
                values = torch.where((message.lags == now - message.step).any(-1, keepdim=True), message.values, values)
            return self.node.weigh("pull", values).add_(self.node.self_weight("pull") * x)

        return Later(arrived)

    def push(self, y: Tensor) -> Handle:
        """The sum of what comes in this step."""
        now, key, heard = self._sent("push", y)

        def arrived() -> Tensor:
            values = torch.zeros_like(self.node.inward("push", y))
            for message in self._all(key, now, heard):
                values.add_(message.values * (message.lags == now - message.step).sum(-1, keepdim=True))
            return self.node.weigh("push", values).add_(self.node.self_weight("push") * y)

        return Later(arrived)

    def latest(self, side: Side, x: Tensor, before: Tensor) -> Handle:
        """The newest that has arrived on each link."""
        now, key, heard = self._sent(side, x)

        def arrived() -> Tensor:
            values = before
            for message in self._all(key, now, heard):
                there = message.lags.amin(-1, keepdim=True) <= now - message.step
                values = torch.where(there, message.values, values)
            return values

        return Later(arrived)

    def _sent(self, side: Side, x: Tensor) -> tuple[int, str, Handle]:
        """The step, a name for the exchange that is the same in every step, and what the neighbours send."""
        if self.node.step != self._now:
            self._now = self.node.step
            self._asked.clear()
            self._drawn.clear()
        key = f"{side} {self._asked[side]}"
        self._asked[side] += 1
        return self._now, key, self.node.hear(side, x)

    def _all(self, key: str, now: int, heard: Handle) -> list[Message]:
        """All that may arrive now, oldest first; what can arrive later is kept."""
        side: Side = "pull" if key.startswith("pull") else "push"
        values = heard.wait()
        messages = [*self._under_way.get(key, ()), Message(now, values, self._lags(side).to(values.device))]
        self._under_way[key] = [one for one in messages if one.step + self.links.delay > now]
        return messages

    def _lags(self, side: Side) -> Tensor:
        """How long the messages of this step take; more than ``delay`` if they never come."""
        if side not in self._drawn:
            chances, never = self.node.chances(side, 5), self.links.delay + 1
            lags = (chances[..., [1, 4]] * never).long().clamp_(max=self.links.delay)
            lost = chances[..., [0, 3]] < self.links.loss
            lost[..., 1] |= chances[..., 2] >= self.links.repeats
            self._drawn[side] = lags.masked_fill_(lost, never)
        return self._drawn[side]

    def saved(self) -> dict[str, Tensor]:
        """What is under way, to go on from."""
        parts: dict[str, Tensor] = {}
        for key, messages in self._under_way.items():
            for one in messages:
                parts |= {f"{key} {one.step} values": one.values, f"{key} {one.step} lags": one.lags}
        return parts

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on with what was under way."""
        self._under_way = {}
        for name in tensors:
            side, place, step, part = name.split(" ")
            if part == "values":
                lags = tensors[f"{side} {place} {step} lags"]
                self._under_way.setdefault(f"{side} {place}", []).append(Message(int(step), tensors[name], lags))
        for messages in self._under_way.values():
            messages.sort(key=lambda one: one.step)

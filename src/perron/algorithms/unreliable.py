"""Links that lose, delay, repeat and reorder messages, in the simulator and between processes alike.

The fate of every message is drawn independently, by edge and step: it is lost with a probability; it takes 0 to ``delay`` steps,
all equally likely, so that a later message may overtake it; and with a probability a second copy is sent, with a fate of its
own. The receiver draws from keyed random numbers, so that the simulator and the processes lose the same messages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from perron.algorithms.node import Handle, Later, Node, NodeLinks, Side
from perron.algorithms.wrappers import LinksWrapper, Wrapper
from perron.errors import PerronError

NEVER = 2**62  # arrival step of a lost message


@dataclass(frozen=True, kw_only=True)
class LinkFaults:
    """Faults of the links.

    Args:
        loss: probability that a message is lost.
        delay: largest delay in steps; delays of 0, 1, ..., ``delay`` steps are equally likely.
        repeats: probability that a message is sent twice.

    >>> str(LinkFaults(loss=0.1, delay=5))
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
        """Whether there are any faults."""
        return bool(self.loss or self.delay or self.repeats)

    def __str__(self) -> str:
        parts = [f"lose {100 * self.loss:.3g}% of their messages"] if self.loss else []
        parts += [f"delay {'them' if parts else 'messages'} by up to {self.delay} steps"] if self.delay else []
        parts += (
            [f"repeat {100 * self.repeats:.3g}% of {'them' if parts else 'their messages'}"] if self.repeats else []
        )
        return " and ".join(parts) or "are reliable"


Links = LinkFaults  # its name in version 0.1


class _InTransit:
    """Messages of the last steps in one exchange, with their arrivals: a ring buffer of ``delay + 1`` slots, by step."""

    def __init__(self, sent: Tensor, values: Tensor, arrivals: Tensor) -> None:
        self.sent = sent  # (slots,): the step; -1 where nothing was sent yet
        self.values = values  # (slots, ..., links, d)
        self.arrivals = arrivals  # (slots, ..., links, 2): arrival steps of the two copies, or NEVER

    @classmethod
    def empty(cls, slots: int, values: Tensor) -> _InTransit:
        """Return an empty buffer for messages of this shape."""
        arrivals = torch.full((slots, *values.shape[:-1], 2), NEVER, device=values.device)
        sent = torch.full((slots,), -1, device=values.device)
        return cls(sent, values.new_zeros((slots, *values.shape)), arrivals)

    def put(self, step: int, values: Tensor, lags: Tensor) -> None:
        """Store the messages of a step; those that they replace have arrived, or never will."""
        slot = step % len(self.sent)
        self.sent[slot], self.values[slot], self.arrivals[slot] = step, values, lags + step

    def newest(self, arrived: Tensor, otherwise: Tensor) -> Tensor:
        """Return, by link, the last sent among the ``arrived`` (slots, ..., links) messages, or ``otherwise``."""
        steps = torch.where(arrived, self.sent.view(-1, *[1] * (arrived.ndim - 1)), -1)
        last, slot = steps.max(0)
        index = slot[None, ..., None].expand(1, *self.values.shape[1:])
        return torch.where(last[..., None] >= 0, self.values.gather(0, index)[0], otherwise)


class Unreliable(Wrapper):
    """A node with unreliable links.

    `NodeLinks.latest` gives, for each link, the message that was sent last among those that have arrived. Plain pulls and
    pushes use the messages that arrive in the step. A pull substitutes the receiver's own value for a neighbor of which nothing
    has arrived, so that its weights still sum to one. A push adds up what arrives: the mass of a lost message is gone, that of
    a repeated one counts twice, the trackers no longer sum to the gradients, and no plain algorithm keeps its guarantee.
    """

    def __init__(self, node: Node, faults: LinkFaults) -> None:
        super().__init__(node)
        self.faults = faults
        self._in_transit: dict[str, _InTransit] = {}
        self._exchanges: Counter[Side] = Counter()  # of this step
        self._drawn: dict[Side, Tensor] = {}  # all messages of one link in one step share a fate
        self._step = -1

    def pull(self, x: Tensor) -> Handle:
        links = self.node.links("pull")

        def arrived(transit: _InTransit, step: int) -> Tensor:
            values = transit.newest((transit.arrivals == step).any(-1), links.broadcast(x))
            return links.reduce(values).add_(links.self_weight * x)

        return self._send("pull", links, x, arrived)

    def push(self, y: Tensor) -> Handle:
        links = self.node.links("push")

        def arrived(transit: _InTransit, step: int) -> Tensor:
            copies = (transit.arrivals == step).sum(-1, keepdim=True)
            values = (copies * transit.values).sum(0)
            return links.reduce(values).add_(links.self_weight * y)

        return self._send("push", links, y, arrived)

    def links(self, side: Side) -> NodeLinks:
        return _UnreliableLinks(self.node.links(side), self, side)

    def latest(self, side: Side, links: NodeLinks, x: Tensor, before: Tensor) -> Handle:
        """Start the exchange that gives the newest message that has arrived on each link."""
        return self._send(
            side, links, x, lambda transit, step: transit.newest(transit.arrivals.amin(-1) <= step, before)
        )

    def _send(self, side: Side, links: NodeLinks, x: Tensor, arrived: Callable[[_InTransit, int], Tensor]) -> Handle:
        """Send ``x``; the handle evaluates ``arrived`` on everything in transit."""
        step = self.node.step
        if step != self._step:
            self._step = step
            self._exchanges.clear()
            self._drawn.clear()
        key = f"{side} {self._exchanges[side]}"  # the same in every step
        self._exchanges[side] += 1
        if side not in self._drawn:
            self._drawn[side] = self._lags(links)
        received, lags = links.receive(x), self._drawn[side]

        def result() -> Tensor:
            values = received.wait()
            if key not in self._in_transit or self._in_transit[key].values.shape[1:] != values.shape:  # other links
                self._in_transit[key] = _InTransit.empty(self.faults.delay + 1, values)
            self._in_transit[key].put(step, values, lags.to(values.device))
            return arrived(self._in_transit[key], step)

        return Later(result)

    def _lags(self, links: NodeLinks) -> Tensor:
        """Draw the delays of both copies of this step's messages; NEVER for lost ones and copies that are not sent."""
        draws = links.uniform(5)
        lags = (draws[..., [1, 4]] * (self.faults.delay + 1)).long().clamp_(max=self.faults.delay)
        lost = draws[..., [0, 3]] < self.faults.loss
        lost[..., 1] |= draws[..., 2] >= self.faults.repeats
        return lags.masked_fill_(lost, NEVER)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the messages in transit."""
        parts = ("sent", "values", "arrivals")
        return {f"{key} {part}": getattr(one, part) for key, one in self._in_transit.items() for part in parts}

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        """Resume with the messages of `state_dict`."""
        keys = {name.rpartition(" ")[0] for name in tensors}
        parts = ("sent", "values", "arrivals")
        self._in_transit = {key: _InTransit(*(tensors[f"{key} {part}"].clone() for part in parts)) for key in keys}


class _UnreliableLinks(LinksWrapper):
    def __init__(self, links: NodeLinks, node: Unreliable, side: Side) -> None:
        super().__init__(links)
        self._node, self._side = node, side

    def latest(self, x: Tensor, before: Tensor) -> Handle:
        return self._node.latest(self._side, self.links, x, before)

"""Federated learning as Push-Pull over a star whose clients participate at random."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from perron.algorithms.base import About, Algorithm, Rate, Step
from perron.algorithms.node import Node
from perron.errors import PerronError
from perron.networks.facts import Network


class FocusState(NamedTuple):
    """The server's model and tracker (every node keeps a copy), and the client's last gradient."""

    x: Tensor
    y: Tensor
    last: Tensor


@dataclass(frozen=True, kw_only=True)
class FOCUS(Algorithm):
    """FOCUS; with noisy gradients SG-FOCUS: exact under arbitrary participation of the clients.

    A round, of a client that takes part:    w = x, s = 0;  ``local_steps`` times: g = grad(w), s += g - last, last = g,
    and between them w -= lr s.              Of the server:  y += sum of s over those that took part,  x+ = x - lr y

    A client takes part with probability ``participation``, independently in each round. Conserves y = sum of last, so that x+ =
    x - lr sum_i last_i. One local step and full participation is centralized SGD with the step n lr.

    Reference: Ying, Li & Yang 2025.
    """

    local_steps: int = 1
    participation: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.local_steps < 1 or not 0 < self.participation <= 1:
            raise PerronError(
                f"FOCUS needs local_steps >= 1 and 0 < participation <= 1; got local_steps={self.local_steps}, "
                f"participation={self.participation}."
            )

    @property
    def about(self) -> About:
        how = (
            f", K={self.local_steps}, p={self.participation:g}"
            if (self.local_steps, self.participation) != (1, 1)
            else ""
        )
        return About(
            title=f"FOCUS (SG-FOCUS){how}", family="federated", matrices="-", exact=True,
            reference="Ying, Li & Yang 2025",
        )  # fmt: skip

    def init(self, x: Tensor, node: Node) -> FocusState:
        """All start from the average of their models."""
        zero = torch.zeros_like(x)
        return FocusState(node.mean(x).wait().expand_as(x), y=zero, last=zero)

    def step(self, state: FocusState, node: Node, lr: Rate) -> Step:
        takes_part = node.uniform() < self.participation
        local, change, last = state.x, torch.zeros_like(state.y), state.last
        for k in range(self.local_steps):
            if k:
                local = local - lr * change
            grad = yield local
            change, last = change + grad - last, grad
        sent = torch.where(takes_part, change, 0.0)
        y = state.y + node.nodes * node.mean(sent).wait()
        return FocusState(state.x - lr * y, y, torch.where(takes_part, last, state.last))

    def conserved(self, state: FocusState, network: Network) -> dict[str, Tensor]:
        return {"y - 1'last": state.y.mean(-2) - state.last.sum(-2)}

    def effective_step(self, network: Network) -> float:
        """n: the server adds up the clients' gradients."""
        return float(network.nodes)

    def default_lr(self, network: Network, smoothness: float) -> float:
        """Smaller for more local steps and rarer participation."""
        return 0.5 * self.participation / (self.local_steps * network.nodes * smoothness)

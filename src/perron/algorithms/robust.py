"""Push-Pull for links that lose, delay, repeat and reorder messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from perron.algorithms.base import About, Algorithm, Rate, Step
from perron.algorithms.moves import descend
from perron.algorithms.node import Node
from perron.algorithms.push_pull import PushPull
from perron.algorithms.requirements import in_flight
from perron.errors import MixingError
from perron.networks.facts import Network


class RobustState(NamedTuple):
    """State of a node and of its incoming links.

    Model; tracker; the last gradient in it; the sum of all trackers so far; the part of the last tracker that rounding kept out
    of the sum; and per link, the last model and the last sum received.
    """

    x: Tensor
    y: Tensor
    grad: Tensor
    total: Tensor
    left: Tensor
    models: Tensor
    totals: Tensor


@dataclass(frozen=True, kw_only=True)
class RobustPushPull(Algorithm):
    """Push-Pull with running sums: no single message has to arrive, as long as some do.

        s_j = y_j(0) + ... + y_j(k)                                node j sends it, with its model x_j
        y_i+ = B_ii y_i + sum_j B_ij (s_ij - r_ij) + grad_i+ - grad_i      s_ij, x_ij: the newest that i received from j
        x_i+ = A_ii x_i + sum_j A_ij x_ij - lr y_i+                        r_ij+ = s_ij: the sum that i has used

    A sum contains all trackers that were ever sent on a link, so a lost message costs only time: the next message that arrives
    includes its content. Repeated and overtaken messages change nothing, because only the newest counts. Where every message
    arrives in its step, this is Push-Pull in the paper's order, up to rounding. Conserves

        sum_i y_i + sum_ij B_ij (s_j - y_j - r_ij) = sum_i grad_i          mass of the trackers, and mass in flight

    The weights must not change, since the receiver weights sums of many steps. A link may fail for any finite time; late messages
    require smaller steps. Sums grow until they cannot absorb small trackers in full; the remainder stays with the node and is
    sent later, so that no mass is lost to rounding.

    References: Vaidya, Hadjicostis & Dominguez-Garcia 2012 (running sums); Tian, Sun & Scutari 2020 (ASY-SONATA); Zhu, Tian,
    Huang & Scutari 2023 (R-FAST).
    """

    @property
    def about(self) -> About:
        return About(
            title="Robust Push-Pull", family="push-pull", matrices="A B", exact=True,
            reference="Zhu, Tian, Huang & Scutari 2023", robust=True,
        )  # fmt: skip

    @property
    def reliable(self) -> Algorithm:
        return PushPull()

    def init(self, x: Tensor, node: Node) -> RobustState:
        """y = grad = 0; a neighbor that was not heard yet counts as being where the node itself is."""
        zero, totals = torch.zeros_like(x), torch.zeros_like(node.links("push").broadcast(x))
        models = node.links("pull").broadcast(x).clone()
        return RobustState(x, zero, zero, zero, left=zero, models=models, totals=totals)

    def step(self, state: RobustState, node: Node, lr: Rate) -> Step:
        pulls, pushes = node.links("pull"), node.links("push")
        models = pulls.latest(state.x, state.models)
        totals = pushes.latest(state.total, state.totals)
        grad = yield state.x
        heard, sums = models.wait(), totals.wait()
        y = pushes.reduce(sums - state.totals) + pushes.self_weight * (state.y - state.left)
        y = y + state.left + grad - state.grad
        x = descend(pulls.reduce(heard) + pulls.self_weight * state.x, lr, y)
        total = state.total + y
        return RobustState(x, y, grad, total, y - (total - state.total), heard, sums)

    def conserved(self, state: RobustState, network: Network) -> dict[str, Tensor]:
        sent = state.total - (state.y - state.left)
        return {"1'y + in flight - 1'grad": (state.y - state.grad).sum(-2) + in_flight(network, sent, state.totals)}

    def check(self, network: Network) -> None:
        super().check(network)
        if network.mixing.varies:
            raise MixingError(
                f"{self.about.title} needs weights that do not change: receivers weight sums of many steps. "
                f"{network.mixing!r} varies in time; give one graph."
            )

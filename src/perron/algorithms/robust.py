"""Push-Pull for links that lose, delay, repeat and reorder messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from perron.algorithms.base import About, Algorithm, Rate, Step, less, spectral_matrix
from perron.algorithms.node import Node
from perron.algorithms.push_pull import PushPull
from perron.errors import MixingError
from perron.networks.facts import Network


class RobustState(NamedTuple):
    """What a node has, and what it has heard on each of its links.

    Model; tracker; the gradient that it contains last; the sum of all trackers so far; what of the last tracker the sum could not
    take up, for rounding; and by link, the model and the sum that were heard last.
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
    """Push-Pull with running sums: no message has to arrive, as long as some do.

        s_j = y_j(0) + ... + y_j(k)                                what a node sends, with its model x_j
        y_i+ = B_ii y_i + sum_j B_ij (s_ij - r_ij) + grad_i+ - grad_i      s_ij, x_ij: the newest that i has heard from j
        x_i+ = A_ii x_i + sum_j A_ij x_ij - lr y_i+                        r_ij+ = s_ij: the sum that i has used already

    A sum contains all trackers that were ever sent on a link. So a lost message costs nothing but time: the next that arrives
    brings what it would have brought. A repeated or an overtaken one changes nothing, since the newest counts. Where every
    message arrives in its step this is Push-Pull in the paper's order, number for number but for rounding. Conserves

        sum_i y_i + sum_ij B_ij (s_j - y_j - r_ij) = sum_i grad_i          mass of the trackers, and mass under way

    Needs weights that do not change, since the listener weighs sums of many steps. A link may fail for any time, not forever;
    late messages ask for smaller steps. Sums grow, and in the end cannot take up small trackers in full; what they leave stays
    with the node and is sent later, so that no mass is lost to rounding.

    References: Vaidya, Hadjicostis & Dominguez-Garcia 2012 (running sums); Tian, Sun & Scutari 2020 (ASY-SONATA); Zhu, Tian,
    Huang & Scutari 2023 (R-FAST).
    """

    coordinatewise: ClassVar[bool] = True

    @property
    def about(self) -> About:
        """What there is to know about it."""
        return About(
            title="Robust Push-Pull", family="push-pull", matrices="A B", sends="2 d", effective="c", exact=True, overlap="x, y",
            reference="Zhu, Tian, Huang & Scutari 2023", robust=True,
        )  # fmt: skip

    @property
    def reliable(self) -> Algorithm:
        """Push-Pull."""
        return PushPull()

    def init(self, x: Tensor, node: Node) -> RobustState:
        """y = grad = 0; a node takes neighbours that it has not heard yet to be where it is itself."""
        zero, totals = torch.zeros_like(x), torch.zeros_like(node.inward("push", x))
        return RobustState(x, zero, zero, zero, left=zero, models=node.inward("pull", x).clone(), totals=totals)

    def step(self, state: RobustState, node: Node, lr: Rate) -> Step:
        """As above."""
        models = node.latest("pull", state.x, state.models)
        totals = node.latest("push", state.total, state.totals)
        grad = yield state.x
        heard, sums = models.wait(), totals.wait()
        y = node.weigh("push", sums - state.totals) + node.self_weight("push") * (state.y - state.left)
        y.add_(state.left).add_(grad).sub_(state.grad)
        x = node.weigh("pull", heard) + node.self_weight("pull") * state.x
        total = state.total + y
        return RobustState(less(x, lr, y), y, grad, total, y - (total - state.total), heard, sums)

    def conserved(self, state: RobustState, network: Network) -> dict[str, Tensor]:
        """1^T y and what is under way, less 1^T grad."""
        sent = state.total - (state.y - state.left)
        matrix = torch.tensor(spectral_matrix(network, "push"), dtype=sent.dtype, device=sent.device)
        return {"1'y + under way - 1'grad": (state.y - state.grad).sum(-2) + under_way(matrix, sent, state.totals)}

    def check(self, network: Network) -> None:
        """Also refuses networks that vary in time."""
        super().check(network)
        if network.mixing.period > 1:
            raise MixingError(
                f"{self.about.title} needs weights that do not change: listeners weigh sums of many steps. "
                f"{network.mixing!r} has {network.mixing.period} in turn; give one graph."
            )


def under_way(push: Tensor, sent: Tensor, used: Tensor) -> Tensor:
    """sum_ij B_ij (s_j - r_ij): what was sent and not used yet, ``(..., n, d)`` and ``(..., links, d)`` to ``(..., d)``."""
    targets, sources = torch.nonzero(
        push - torch.diag(push.diagonal()), as_tuple=True
    )  # by listener, then sender, as links are
    return (push[targets, sources][:, None] * (sent.index_select(-2, sources) - used)).sum(-2)

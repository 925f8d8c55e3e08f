"""The baseline: a server, or an all-reduce, averages all gradients in each step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from perron.algorithms.base import About, Rate, Step
from perron.algorithms.moves import Moving
from perron.algorithms.node import Node
from perron.algorithms.states import extend


class ModelState(NamedTuple):
    """The model alone."""

    x: Tensor


@dataclass(frozen=True, kw_only=True)
class CentralizedSGD(Moving):
    """Parallel mini-batch SGD: all nodes hold the same model.

    x+ = x - lr mean(grad(x))

    x-hat = x, eps = 0. On a quadratic with Hessian eigenvalues h_k and noise of covariance (sigma^2/d) I its stationary error
    is E|x - x*|^2 = (lr/n) (sigma^2/d) sum_k 1 / (h_k (2 - lr h_k)). With another ``move``, its displacement along mean(grad(x))
    takes the place of -lr mean(grad(x)).
    """

    tracks: ClassVar[bool] = False

    @property
    def about(self) -> About:
        return About(
            title=self.titled("Centralized SGD"), family="centralized", matrices="-", exact=True, reference="-"
        )

    def init(self, x: Tensor, node: Node) -> Any:
        """All nodes start from the average of their models."""
        return self.begin(ModelState(node.mean(x).wait().expand_as(x)))

    def step(self, state: Any, node: Node, lr: Rate) -> Step:
        grad = yield state.x
        dx, memory = self.displace(state, node.mean(grad).wait(), lr)
        return extend(ModelState(state.x + dx), memory)

"""Push-Pull on a pair of spanning trees: models flow down from the root, gradients flow up to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from perron.algorithms.base import About, Algorithm, Rate, Step
from perron.algorithms.node import Node
from perron.algorithms.push_pull import PushPull, TrackerState
from perron.networks.facts import Network

DOWN_AND_UP = PushPull(order="pu")


@dataclass(frozen=True, kw_only=True)
class TreePushPull(Algorithm):
    """Spanning-tree Push-Pull (STPP); on a B-ary tree it is BTPP. The model to use is the root's.

    y = C y + grad(x) - grad(x_prev)     x+ = R (x - lr y)          R, C = Mixing.spanning_trees(graph)

    pi = the root's unit vector for both, so c = n and x-hat is the root's model; eps = -lr (y_root - 1^T y) is a delay by the
    depth of the trees, not an error: R^t and C^t reach their limits exactly after that many steps.

    Reference: You & Pu 2024 (BTPP); You & Pu 2025 (STPP).
    """

    tree: Literal["spanning", "B-ary"] = "spanning"

    @property
    def about(self) -> About:
        stpp = self.tree == "spanning"
        return About(
            title="Spanning-tree Push-Pull (STPP)" if stpp else "B-ary-tree Push-Pull (BTPP)", family="tree",
            matrices="R C", exact=True, reference="You & Pu 2025" if stpp else "You & Pu 2024",
        )  # fmt: skip

    def init(self, x: Tensor, node: Node) -> TrackerState:
        """As Push-Pull."""
        return DOWN_AND_UP.init(x, node)

    def step(self, state: TrackerState, node: Node, lr: Rate) -> Step:
        return (yield from DOWN_AND_UP.step(state, node, lr))

    def conserved(self, state: TrackerState, network: Network) -> dict[str, Tensor]:
        return DOWN_AND_UP.conserved(state, network)

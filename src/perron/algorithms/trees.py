"""Push-Pull on a pair of spanning trees: models flow down from the root, gradients flow up to it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from perron.algorithms.base import About
from perron.algorithms.push_pull import PushPull, PushPullUpdate


@dataclass(frozen=True, kw_only=True)
class TreePushPull(PushPullUpdate):
    """Spanning-tree Push-Pull (STPP); on a B-ary tree it is BTPP. The model to use is the root's.

    y = C y + grad(x) - grad(x_prev)     x+ = R (x - lr y)          R, C = Mixing.spanning_trees(graph)

    pi = the root's unit vector for both, so c = n and x-hat is the root's model; eps = -lr (y_root - 1^T y) is a delay by the
    depth of the trees, not an error: R^t and C^t reach their limits exactly after that many steps. With a ``move`` that depends
    on the scale of y, only the root moves by itself: in the long run the others have the weight w = 0.

    Reference: You & Pu 2024 (BTPP); You & Pu 2025 (STPP).
    """

    tree: Literal["spanning", "B-ary"] = "spanning"

    @property
    def about(self) -> About:
        stpp = self.tree == "spanning"
        return About(
            title=self.titled("Spanning-tree Push-Pull (STPP)" if stpp else "B-ary-tree Push-Pull (BTPP)"),
            family="tree", matrices="R C", exact=True, reference="You & Pu 2025" if stpp else "You & Pu 2024",
        )  # fmt: skip

    @cached_property
    def _push_pull(self) -> PushPull:
        return PushPull(order="pu", move=self.move)

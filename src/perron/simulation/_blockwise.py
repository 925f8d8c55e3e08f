"""Driving an algorithm on large models: the state stays in place, and a step goes over it stripe by stripe.

But for the gradient, a step treats every coordinate alike and on its own. So the algorithm's text is run on a stripe of
coordinates of all nodes that fits into the processor's cache, its result is written in the old state's place, and the next
stripe follows. Large models feel it: the textbook step makes two or more new tensors as large as the state, whose memory the
system must find and clear each time, which takes longer than mixing (benchmarks/neural.py measures it). And no more memory
is needed than for the state itself and one gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from perron.algorithms.base import Algorithm, Rate
from perron.algorithms.node import Node

NUMBERS = 2**18  # of a stripe, over all nodes: 1 MB in float32


class Stripes:
    """A state ``(..., n, d)`` in place, and the steps that change it.

    Args:
        algorithm: one in which coordinates do not mix (``algorithm.coordinatewise``), unless there is one stripe only.
        x: where to start; it becomes part of the state.
        node: what the algorithm talks to.
        others: what it talks to for all stripes but the first; wrappers that count must not count a vector twice.
        width: coordinates in a stripe; as many as fit into the cache by default.
    """

    def __init__(
        self, algorithm: Algorithm, x: Tensor, node: Node, *, others: Node | None = None, width: int | None = None
    ) -> None:
        self.algorithm, self.node, self.others = algorithm, node, others or node
        self.shape = x.shape
        self.parts = stripes(x, width)
        self.state = _apart(algorithm.init(x, node), x)
        self._point: Tensor | None = None
        self._room: list[Tensor] = []  # for gradients: those of one step must not overwrite each other

    def advance(self, lr: Rate, gradient: Callable[[Tensor, Tensor], Tensor]) -> None:
        """One step; ``gradient(point, out)`` writes into ``out``, and gives it back.

        A gradient that becomes part of the state does so with its memory, and that part's memory is for the next gradient.
        """
        nodes = [self.node, *[self.others] * (len(self.parts) - 1)]
        steps = [
            self.algorithm.step(self._stripe(part), node, lr) for part, node in zip(self.parts, nodes, strict=True)
        ]
        points: list[Any] = [None] * len(steps)
        grads: list[Tensor] = []
        new: list[Any] = []
        while not new:
            for place, (step, part) in enumerate(zip(steps, self.parts, strict=True)):
                try:
                    points[place] = step.send(grads[-1][..., part] if grads else None)  # type: ignore[arg-type]
                except StopIteration as done:
                    new = self._written(done.value, part, grads)
            if not new:
                if len(grads) == len(self._room):
                    self._room.append(torch.empty_like(self.state.x))
                grads.append(gradient(self._whole(points), self._room[len(grads)]))
        # What all stripes share changes when all are done.
        for place, (own, value) in enumerate(zip(self.state, new, strict=True)):
            if isinstance(value, int):
                new[place], self._room[value] = grads[value], own
            elif self._is_wide(own):
                new[place] = own
        self.state = type(self.state)(*new)

    def _stripe(self, part: slice) -> Any:
        return type(self.state)(*(self._of(value, part) for value in self.state))

    def _is_wide(self, value: Tensor) -> bool:
        """Whether it has the models' coordinates, for nodes or for links; weights, counters and the like do not."""
        return value.ndim == len(self.shape) and value.shape[-1] == self.shape[-1]

    def _of(self, value: Tensor, part: slice) -> Tensor:
        return value[..., part] if self._is_wide(value) else value

    def _whole(self, points: list[Tensor]) -> Tensor:
        """The points of all stripes as one: the part of the state that they are, or else copied together."""
        for value in self.state:
            if self._is_wide(value) and all(
                point.data_ptr() == value[..., part].data_ptr() and point.stride() == value[..., part].stride()
                for point, part in zip(points, self.parts, strict=True)
            ):
                return value
        if self._point is None:
            self._point = torch.empty_like(self.state.x)
        for point, part in zip(points, self.parts, strict=True):
            self._point[..., part] = point
        return self._point

    def _written(self, new: Any, part: slice, grads: list[Tensor]) -> list[Any]:
        """The new state of a stripe, after it was written in the place of the old; the number of a gradient where it is one."""
        kept = {value.untyped_storage().data_ptr() for value in self.state}
        # What the new state takes over from the old (the last model as the previous one) is saved before it is written over.
        values = [value.clone() if value.untyped_storage().data_ptr() in kept else value for value in new]
        left = {grad[..., part].data_ptr(): number for number, grad in enumerate(grads)}
        found: list[Any] = []
        for own, value in zip(self.state, values, strict=True):
            wide = self._is_wide(own)
            number = left.pop(value.data_ptr(), None) if wide and value.stride() == own[..., part].stride() else None
            if wide and number is None:
                own[..., part] = value
            found.append(value if number is None else number)
        return found


def stripes(x: Tensor, width: int | None = None) -> list[slice]:
    """Slices of the last axis."""
    dim = x.shape[-1]
    width = width or max(1, NUMBERS * dim // max(x.numel(), 1))
    return [slice(first, min(first + width, dim)) for first in range(0, dim, width)]


def _apart(state: Any, x: Tensor) -> Any:
    """The state with memory of its own for each of its parts; the models keep theirs."""
    values: list[Tensor] = []
    for value in state:
        kept = value is x and not any(one is x for one in values)
        values.append(value if kept else value.clone(memory_format=torch.contiguous_format))
    return type(state)(*values)

"""Steps of large models: the state stays in place, and a step processes it block by block.

Apart from the gradient, most algorithms treat every coordinate alike and independently. So the text of the algorithm is run on a
block of coordinates of all nodes that fits into the processor's cache, its result overwrites the old state, and the next block
follows. The plain driver allocates two or more new tensors as large as the state in each step, which takes longer than mixing
when models are large (benchmarks/neural.py measures it). No memory is needed besides the state and one gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from perron._memory import keep_freed_memory
from perron.algorithms.base import Algorithm, Partial, Rate, advance
from perron.algorithms.node import Node

LARGE = (
    2**24
)  # bytes of the models of all nodes above which steps are done block by block; measured, below it is no faster
NUMBERS = 2**17  # numbers in a block, over all nodes: 0.5 MB in float32
NARROWEST = 64  # coordinates; narrower blocks of many nodes would read a few bytes here and there
PROBES = (1e-6, 1.0, 1e6, 1e12)  # magnitudes at which it is tried whether coordinates are independent


class Blockwise:
    """A state ``(..., n, d)`` in place, and the steps that change it.

    Args:
        algorithm: the algorithm.
        x: initial models; they become part of the state.
        node: the node of the algorithm.
        width: coordinates per block; all of them unless coordinates are independent.
    """

    def __init__(self, algorithm: Algorithm, x: Tensor, node: Node, width: int) -> None:
        keep_freed_memory()
        self.algorithm, self.node, self.shape = algorithm, node, x.shape
        self.blocks = blocks(x, width)
        self.state = _separate(algorithm.init(x, node), x)
        self._point: Tensor | None = None
        self._buffers: list[Tensor] = []  # for gradients: those of one step must not overwrite each other

    def advance(self, lr: Rate, gradient: Callable[[Tensor, Tensor], Tensor], node: Node) -> None:
        """Do one step.

        A gradient that becomes part of the state brings its memory; the old memory of that part takes the next gradient.

        Args:
            lr: the learning rate.
            gradient: ``gradient(point, out)`` writes into ``out`` and returns it.
            node: the node for the first block, which may count; `self.node` serves the others.
        """
        nodes = [node, *[self.node] * (len(self.blocks) - 1)]
        steps = [self.algorithm.step(self._part(b), one, lr) for b, one in zip(self.blocks, nodes, strict=True)]
        points: list[Any] = [None] * len(steps)
        grads: list[Tensor] = []
        new: list[Any] = []
        while not new:
            for index, (step, block) in enumerate(zip(steps, self.blocks, strict=True)):
                try:
                    asked = step.send(grads[-1][..., block] if grads else None)  # type: ignore[arg-type]
                    points[index] = asked.point if isinstance(asked, Partial) else asked
                except StopIteration as done:
                    new = self._write(done.value, block, grads)
            if not new:
                if len(grads) == len(self._buffers):
                    self._buffers.append(torch.empty_like(self.state.x))
                grads.append(gradient(self._join(points), self._buffers[len(grads)]))
        # What all blocks share changes when all are done.
        for index, (old, value) in enumerate(zip(self.state, new, strict=True)):
            if isinstance(value, int):
                new[index], self._buffers[value] = grads[value], old
            elif self._is_wide(old):
                new[index] = old
        self.state = type(self.state)(*new)

    def _part(self, block: slice) -> Any:
        return type(self.state)(*(value[..., block] if self._is_wide(value) else value for value in self.state))

    def _is_wide(self, value: Tensor) -> bool:
        """Whether it has the coordinates of the models, for nodes or for links; weights and counters do not."""
        return value.ndim == len(self.shape) and value.shape[-1] == self.shape[-1]

    def _join(self, points: list[Tensor]) -> Tensor:
        """The points of all blocks as one tensor: the part of the state that they are views of, or else a copy."""
        for value in self.state:
            if self._is_wide(value) and all(
                point.data_ptr() == value[..., block].data_ptr() and point.stride() == value[..., block].stride()
                for point, block in zip(points, self.blocks, strict=True)
            ):
                return value
        if self._point is None:
            self._point = torch.empty_like(self.state.x)
        for point, block in zip(points, self.blocks, strict=True):
            self._point[..., block] = point
        return self._point

    def _write(self, new: Any, block: slice, grads: list[Tensor]) -> list[Any]:
        """Overwrite the old state of a block; return the new one, with the index of a gradient where a value is that gradient."""
        kept = {value.untyped_storage().data_ptr() for value in self.state}
        # Old values in the new state (the last model as the previous one) are copied before they are overwritten.
        values = [value.clone() if value.untyped_storage().data_ptr() in kept else value for value in new]
        indices = {grad[..., block].data_ptr(): index for index, grad in enumerate(grads)}
        result: list[Any] = []
        for old, value in zip(self.state, values, strict=True):
            wide = self._is_wide(old)
            index = indices.pop(value.data_ptr(), None) if wide and value.stride() == old[..., block].stride() else None
            if wide and index is None:
                old[..., block] = value
            result.append(value if index is None else index)
        return result


def blocks(x: Tensor, width: int | None = None) -> list[slice]:
    """Return slices of the last axis; by default, blocks of `NUMBERS` numbers and at least `NARROWEST` coordinates."""
    dim = x.shape[-1]
    width = width or max(NARROWEST, NUMBERS * dim // max(x.numel(), 1))
    return [slice(first, min(first + width, dim)) for first in range(0, dim, width)]


def separable(algorithm: Algorithm, x: Tensor, node: Node) -> bool:
    """Whether an algorithm treats coordinates independently, by trial: two together against each alone, at several magnitudes.

    Norms and projections couple coordinates; functions of the user may insist on the length of the model. The ratio of the two
    gradients changes with the steps: AdamW would not notice that a constant one was clipped. Where all coordinates are in one
    block, there is nothing to separate.
    """
    if len(blocks(x)) == 1:
        return False

    def run(start: Tensor, scale: float) -> Tensor:
        state = algorithm.init(start, node)
        for phase in (0.0, 2.0, 4.0):

            def gradient(point: Tensor, phase: float = phase) -> Tensor:
                return (point / scale + phase).sin() * scale

            state = advance(algorithm, state, node, 0.1, gradient)
        return state.x

    for scale in PROBES:
        start = scale * torch.linspace(-1, 1, 2 * x[..., 0].numel(), dtype=x.dtype, device=x.device).view(
            *x.shape[:-1], 2
        )
        try:
            together = run(start, scale)
            alone = torch.cat([run(start[..., :1].contiguous(), scale), run(start[..., 1:].contiguous(), scale)], -1)
        except (RuntimeError, ValueError, TypeError, IndexError):
            return False
        if together.shape != alone.shape or not torch.allclose(together, alone, rtol=1e-4, atol=1e-4 * scale):
            return False
    return True


def _separate(state: Any, x: Tensor) -> Any:
    """The state with memory of its own for each part; the models keep theirs."""
    values: list[Tensor] = []
    for value in state:
        keep = value is x and not any(one is x for one in values)
        values.append(value if keep else value.clone(memory_format=torch.contiguous_format))
    return type(state)(*values)

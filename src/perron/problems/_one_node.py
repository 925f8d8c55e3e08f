"""Loss and gradient of one node, evaluated for all nodes and trials: by torch, or as functions of arrays."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import grad, vmap

from perron.problems._traced import Traced

NUMBERS = 2**22  # numbers of data times trials that are evaluated at once; more need more memory and are no faster


class OneNode(ABC):
    """The loss of one node, ``loss(x, *data)``, with its gradient."""

    @abstractmethod
    def grads(self, x: Tensor, data: Sequence[Tensor]) -> Tensor:
        """The gradients at ``x``, ``(trials, n, d)``, with data ``(n, ...)``."""

    @abstractmethod
    def batch_grads(self, x: Tensor, data: Sequence[Tensor]) -> Tensor:
        """The gradients at ``x``, ``(trials, n, d)``, with data that differ between trials, ``(trials, n, ...)``."""

    @abstractmethod
    def sample_grads(self, x: Tensor, data: Sequence[Tensor]) -> Tensor:
        """The gradients ``(trials, n, b, d)`` at ``x``, ``(trials, n, d)``, for each of b data, ``(trials, n, b, ...)``."""

    @abstractmethod
    def losses(self, x: Tensor, data: Sequence[Tensor]) -> Tensor:
        """The losses of all nodes, ``(points, n)``, at common points ``(points, d)``."""


class TorchLoss(OneNode):
    """A loss that torch differentiates."""

    def __init__(self, loss: Callable[..., Tensor], count: int) -> None:
        one, each = grad(loss), [0] * count
        self._grads = Traced(_one_trial_at_a_time(vmap(one)), *_all_trials(one, count))
        self._batch_grads = Traced(vmap(vmap(one)))
        self._sample_grads = Traced(vmap(vmap(vmap(one, (None, *each)))))
        losses = vmap(loss, (None, *each))
        self._losses = Traced(_one_trial_at_a_time(losses), *_all_trials(loss, count, common=True))

    def grads(self, x: Tensor, data: Sequence[Tensor]) -> Tensor:
        return _in_parts(self._grads, x, data)

    def batch_grads(self, x: Tensor, data: Sequence[Tensor]) -> Tensor:
        return self._batch_grads(x, *data)

    def sample_grads(self, x: Tensor, data: Sequence[Tensor]) -> Tensor:
        return self._sample_grads(x, *data)

    def losses(self, x: Tensor, data: Sequence[Tensor]) -> Tensor:
        return _in_parts(self._losses, x, data)


def _one_trial_at_a_time(nodes: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def all_trials(x: Tensor, *data: Tensor) -> Tensor:
        return torch.stack([nodes(point, *data) for point in x])

    return all_trials


def _all_trials(one: Callable[..., Tensor], count: int, *, common: bool = False) -> list[Callable[..., Tensor]]:
    """Forms of a function of one node for all nodes and trials; ``common``: at points that all nodes share.

    In the first, nodes are outside and trials inside, so that data need not be repeated for the trials. The second repeats them,
    because some operators of torch do not accept the first (such as huber_loss in torch 2.10).
    """
    fixed, each = [None] * count, [0] * count
    shared = vmap(vmap(one, (0, *fixed)), (None if common else 1, *each), out_dims=1)
    nodes = vmap(one, (None if common else 0, *each))

    def repeated(x: Tensor, *data: Tensor) -> Tensor:
        return vmap(nodes)(x, *[part.expand(len(x), *part.shape) for part in data])

    return [shared, repeated]


class ArrayLoss(OneNode):
    """A loss and its gradient as functions of NumPy arrays."""

    def __init__(self, loss: Callable[..., Any], gradient: Callable[..., Any]) -> None:
        self._loss, self._gradient = loss, gradient

    def grads(self, x: Tensor, data: Sequence[Tensor]) -> Tensor:
        rows = np.tile(np.arange(x.shape[1]), len(x))
        return _evaluated(self._gradient, x.reshape(-1, x.shape[-1]), None, data, rows).view(x.shape)

    def batch_grads(self, x: Tensor, data: Sequence[Tensor]) -> Tensor:
        parts = [part.flatten(0, 1) for part in data]
        return _evaluated(self._gradient, x.reshape(-1, x.shape[-1]), None, parts, None).view(x.shape)

    def sample_grads(self, x: Tensor, data: Sequence[Tensor]) -> Tensor:
        axes, parts = data[0].shape[:3], [part.flatten(0, 2) for part in data]
        points = np.repeat(np.arange(axes[0] * axes[1]), axes[2])
        return _evaluated(self._gradient, x.reshape(-1, x.shape[-1]), points, parts, None).view(*axes, -1)

    def losses(self, x: Tensor, data: Sequence[Tensor]) -> Tensor:
        nodes = len(data[0])
        points, rows = np.repeat(np.arange(len(x)), nodes), np.tile(np.arange(nodes), len(x))
        return _evaluated(self._loss, x, points, data, rows, numbers=True).view(len(x), nodes)


def _in_parts(function: Callable[..., Tensor], x: Tensor, data: Sequence[Tensor]) -> Tensor:
    """A function of trials or points, and of data that they share, of as many at a time as are worth the memory."""
    size = max(1, NUMBERS // max(1, *(part.numel() for part in data)))
    if len(x) <= size:
        return function(x, *data)
    return torch.cat([function(part, *data) for part in x.split(size)])  # type: ignore[no-untyped-call]


def _evaluated(
    function: Callable[..., Any],
    x: Tensor,
    points: np.ndarray[Any, Any] | None,
    data: Sequence[Tensor],
    rows: np.ndarray[Any, Any] | None,
    *,
    numbers: bool = False,
) -> Tensor:
    """Evaluate a function at the points and rows of data with these numbers, or all in their order if None.

    Returns:
        a number for each if ``numbers``, else a vector.
    """
    arrays = tuple(part.detach().cpu().numpy() for part in data)
    at = x.detach().cpu().contiguous().numpy()
    points = np.arange(len(at)) if points is None else points
    rows = np.arange(len(arrays[0])) if rows is None else rows
    out = np.empty(len(points) if numbers else (len(points), at.shape[1]), at.dtype)
    loop = _compiled_loop() if is_compiled(function) else _loop
    loop(function, at, points, arrays, rows, out)
    return torch.from_numpy(out).to(x.device)


def _loop(function: Any, at: Any, points: Any, data: Any, rows: Any, out: Any) -> None:
    for place, (point, row) in enumerate(zip(points, rows, strict=True)):
        out[place] = function(at[point], *[part[row] for part in data])


def is_compiled(function: Any) -> bool:
    """Whether a function was compiled by numba."""
    return "numba" in sys.modules and sys.modules["numba"].extending.is_jitted(function)


@cache
def _compiled_loop() -> Callable[..., None]:
    """`_loop`, compiled with the function that it calls."""
    from numba import njit
    from numba.extending import overload

    parts: Any = _rows

    @overload(parts)
    def rows_of(data, row):  # type: ignore[no-untyped-def]  # noqa: ARG001 numba compares the arguments
        if len(data) == 1:
            return lambda data, row: (data[0][row],)
        return lambda data, row: (data[0][row], *parts(data[1:], row))

    @njit(nogil=True)
    def loop(function: Any, at: Any, points: Any, data: Any, rows: Any, out: Any) -> None:
        for place in range(len(points)):
            out[place] = function(at[points[place]], *parts(data, rows[place]))

    return loop


def _rows() -> None:
    """A row of each array: a name that numba knows, see `_compiled_loop`."""

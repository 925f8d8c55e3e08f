"""A problem from any differentiable function: the loss of one node, differentiated by torch, or with a gradient of your own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from perron.errors import PerronError, brief
from perron.problems._one_node import ArrayLoss, OneNode, TorchLoss
from perron.problems._samples import as_numbers
from perron.problems.base import Problem
from perron.random import Keyed

NUMBERS = 2**22  # numbers of data times trials that are evaluated at once: more need more memory and are no faster


class LocalLoss(Problem):
    """f_i(x) = loss(x, *data_i): a function of one model and one node's data.

    The gradient is computed for all nodes and trials at once. torch differentiates the loss, and its operators are recorded at
    the first call; so the loss may depend on its arguments and on constants only.

    Args:
        loss: ``(x, *data) -> scalar``, written with torch for ONE node: x is ``(d,)``, each of the data is that node's part. With
            ``batch``, it is the mean over the samples that it is given.
        data: tensors whose first axis is the node; with ``batch``, the second axis is the sample.
        dim: d.
        batch: samples per stochastic gradient, drawn uniformly with replacement for each node and step; None for exact
            gradients.
        smoothness: L, if known, for default steps.
        gradient: ``(x, *data) -> (d,)``, the gradient of the loss, if torch is not to find it. Then both are functions of NumPy
            arrays. They are called once per node and trial; with functions compiled by `numba.njit`, this loop is compiled, too.

    Example, least squares with minibatches of 10:
        >>> import perron
        >>> random = torch.Generator().manual_seed(0)
        >>> features = torch.randn(8, 100, 3, generator=random)
        >>> targets = features.sum(-1)
        >>> def squares(x, features, targets):
        ...     return (features @ x - targets).square().mean() / 2
        >>> problem = LocalLoss(squares, [features, targets], dim=3, batch=10)
        >>> mixing = perron.Mixing.uniform(perron.topologies.ring(8))
        >>> history = perron.simulate(problem, perron.PushPull(), mixing, lr=0.02, steps=300, trials=2)
        >>> bool(history["grad_norm_sq"][-1].mean() < history["grad_norm_sq"][0].mean() / 10)
        True
    """

    per_node = ("data",)

    def __init__(
        self,
        loss: Callable[..., Any],
        data: Sequence[Any],
        *,
        dim: int,
        batch: int | None = None,
        smoothness: float | None = None,
        gradient: Callable[..., Any] | None = None,
    ) -> None:
        data = [as_numbers(f"data[{place}] of LocalLoss", part) for place, part in enumerate(data)]
        if not data or any(part.ndim == 0 for part in data) or len({part.shape[0] for part in data}) != 1:
            raise PerronError(
                f"LocalLoss needs data with the same number of nodes first; got {[tuple(p.shape) for p in data]}."
            )
        if batch is not None and (batch < 1 or len({part.shape[1:2] for part in data}) != 1 or data[0].ndim < 2):
            raise PerronError(
                f"With batch={batch}, LocalLoss needs batch >= 1 and data of shape (nodes, samples, ...); got "
                f"{[tuple(p.shape) for p in data]}."
            )
        if batch is not None and batch > data[0].shape[1]:
            raise PerronError(f"A node has {data[0].shape[1]} samples; got batch={batch}, which is more.")
        self.nodes, self.dim, self.batch, self.smoothness = data[0].shape[0], dim, batch, smoothness
        self.data = tuple(part.double() if part.is_floating_point() else part for part in data)
        self._loss, self._gradient = loss, gradient
        self._one: OneNode = TorchLoss(loss, len(data)) if gradient is None else ArrayLoss(loss, gradient)
        self._try()

    def _try(self) -> None:
        """Refuse a loss or a gradient that does not go with the data or dim."""
        parts: list[Any] = [part[0] for part in self.data]
        shapes = ", ".join(str(tuple(part.shape)) for part in parts)
        x: Any = torch.zeros(self.dim, dtype=torch.float64)
        if self._gradient is not None:
            x, parts = x.numpy(), [part.numpy() for part in parts]
        for what, function in (("loss", self._loss), ("gradient", self._gradient)):
            if function is None:
                continue
            try:
                value = function(x, *parts)
            except (RuntimeError, TypeError, ValueError, IndexError) as error:
                raise PerronError(
                    f"The {what} cannot be computed at a model ({self.dim},) with the data {shapes} of one node: "
                    f"{brief(str(error))}"
                ) from None
            if what == "gradient" and np.shape(value) != (self.dim,):
                raise PerronError(
                    f"The gradient of a node has the shape ({self.dim},) of a model; got {np.shape(value)}."
                )
            if what == "loss" and (np.ndim(value) if self._gradient else not isinstance(value, Tensor) or value.ndim):
                shape = tuple(value.shape) if hasattr(value, "shape") else type(value).__name__
                kind = "a number" if self._gradient else "a tensor without axes"
                raise PerronError(f"The loss of a node is one number, {kind}; got {shape}.")

    def local_grads(self, x: Tensor) -> Tensor:
        return self._one.grads(x.reshape(-1, self.nodes, self.dim), self.data).view(x.shape)

    def grad(self, x: Tensor, draw: int, random: Keyed) -> Tensor:
        if self.batch is None:
            return self.local_grads(x)
        rows = random.integers(draw, self.batch, self.data[0].shape[1])  # (trials, n, batch)
        return self._one.batch_grads(x, self._chosen(rows))

    @property
    def sample_counts(self) -> Tensor | None:  # type: ignore[override]
        """With a batch, the length of the second axis of the data; otherwise it is not known whether there are samples."""
        return None if self.batch is None else torch.full((self.nodes,), self.data[0].shape[1])

    def sample_grads(self, x: Tensor, samples: Tensor) -> Tensor:
        if self.batch is None:
            return super().sample_grads(x, samples)
        rows = samples.reshape(-1, *samples.shape[-2:])
        parts = [part.unsqueeze(3) for part in self._chosen(rows)]  # (trials, n, b, 1, ...): minibatches of one
        return self._one.sample_grads(x.reshape(-1, self.nodes, self.dim), parts).view(*samples.shape, self.dim)

    def _chosen(self, rows: Tensor) -> list[Tensor]:
        """The samples with these numbers, ``(trials, n, b)``, of each node: ``(trials, n, b, ...)``."""
        node = torch.arange(self.nodes, device=rows.device)[:, None]
        return [part[node, rows] for part in self.data]

    def loss(self, x: Tensor) -> Tensor:
        return self._one.losses(x.reshape(-1, self.dim), self.data).mean(-1).view(x.shape[:-1])

    def hessian(self, x: Tensor) -> Tensor:
        return super().hessian(x) if self._gradient is None else self.local_hessians(x).mean(0)

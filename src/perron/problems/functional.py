"""A problem from any differentiable function: the loss of one node, differentiated by torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vmap

from perron.errors import PerronError, brief
from perron.problems._samples import as_numbers
from perron.problems.base import Problem
from perron.random import Keyed


class LocalLoss(Problem):
    """f_i(x) = loss(x, *data_i): a function of one model and one node's data.

    Args:
        loss: ``(x, *data) -> scalar``, written with torch for ONE node: x is ``(d,)``, each of the data is that node's part. With
            ``batch``, it is the mean over the samples that it is given.
        data: tensors whose first axis is the node; with ``batch``, the second axis is the sample.
        dim: d.
        batch: samples per stochastic gradient, drawn uniformly with replacement for each node and step; None for exact
            gradients.
        smoothness: L, if known, for default steps.

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
        loss: Callable[..., Tensor],
        data: Sequence[Any],
        *,
        dim: int,
        batch: int | None = None,
        smoothness: float | None = None,
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
        self._loss = loss
        self._grads = vmap(grad(loss))  # over nodes
        self._sample_grads = vmap(vmap(vmap(grad(loss), (None, *[0] * len(data)))))  # over samples, nodes and trials
        self._losses = vmap(loss, in_dims=(None, *[0] * len(data)))
        self._try()

    def _try(self) -> None:
        """Refuse a loss that does not go with the data or dim."""
        parts = [part[0] for part in self.data]
        try:
            value = self._loss(torch.zeros(self.dim, dtype=torch.float64), *parts)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            shapes = ", ".join(str(tuple(part.shape)) for part in parts)
            raise PerronError(
                f"The loss cannot be computed at a model ({self.dim},) with the data {shapes} of one node: {brief(str(error))}"
            ) from None
        if not isinstance(value, Tensor) or value.ndim:
            shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise PerronError(f"The loss of a node is one number, a tensor without axes; got {shape}.")

    def local_grads(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, self.nodes, self.dim)
        return torch.stack([self._grads(point, *self.data) for point in flat]).view_as(x)

    def grad(self, x: Tensor, draw: int, random: Keyed) -> Tensor:
        if self.batch is None:
            return self.local_grads(x)
        rows = random.integers(draw, self.batch, self.data[0].shape[1])  # (trials, n, batch)
        node = torch.arange(self.nodes, device=rows.device)[:, None]
        parts = [part[node, rows] for part in self.data]  # (trials, n, batch, ...)
        return vmap(self._grads)(x, *parts)

    @property
    def sample_counts(self) -> Tensor | None:  # type: ignore[override]
        """With a batch, the length of the second axis of the data; otherwise it is not known whether there are samples."""
        return None if self.batch is None else torch.full((self.nodes,), self.data[0].shape[1])

    def sample_grads(self, x: Tensor, samples: Tensor) -> Tensor:
        if self.batch is None:
            return super().sample_grads(x, samples)
        trials = samples.reshape(-1, *samples.shape[-2:])
        node = torch.arange(self.nodes, device=samples.device)[:, None]
        parts = [part[node, trials].unsqueeze(3) for part in self.data]  # (trials, n, b, 1, ...)
        found = self._sample_grads(x.reshape(-1, self.nodes, self.dim), *parts)
        return found.view(*samples.shape, self.dim)

    def loss(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, self.dim)
        return torch.stack([self._losses(point, *self.data).mean() for point in flat]).view(x.shape[:-1])

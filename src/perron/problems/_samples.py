"""Checks of samples that are spread over the nodes, and their normalization."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from perron.data.datasets import Images
from perron.errors import PerronError, brief


def as_numbers(what: str, value: Any) -> Tensor:
    """Return an array, a list or a tensor as a tensor of finite numbers; whole numbers stay whole."""
    try:
        numbers = (
            value if isinstance(value, Tensor) else torch.as_tensor(np.asarray(value))
        )  # lists in double precision
    except (TypeError, ValueError, RuntimeError):
        raise PerronError(f"{what} is an array of numbers; got {brief(value)}.") from None
    if numbers.is_floating_point() and not bool(torch.isfinite(numbers).all()):
        place = (~torch.isfinite(numbers)).nonzero()[0].tolist()
        raise PerronError(f"{what} holds {float(numbers[tuple(place)])} at {place}; all its numbers have to be finite.")
    return numbers


def check_samples(data: Images, parts: Sequence[Any], batch: int | None, sampling: str, evaluate: int | None) -> None:
    """Refuse data, parts and sampling options that do not fit together."""
    for images, labels, what in (
        (data.images, data.labels, "training"),
        (data.test_images, data.test_labels, "test"),
    ):
        if len(images) != len(labels) or not len(images):
            raise PerronError(f"There are {len(images)} {what} inputs but {len(labels)} targets; they go in pairs.")
    if not parts or any(len(part) == 0 for part in parts):
        raise PerronError(f"Every node needs a sample; got parts of {[len(part) for part in parts]}.")
    together = torch.cat([torch.as_tensor(part) for part in parts])
    if int(together.min()) < 0 or int(together.max()) >= len(data.labels):
        raise PerronError(
            f"Parts name samples {int(together.min())} .. {int(together.max())}, but there are {len(data.labels)}."
        )
    if batch is not None and batch < 1:
        raise PerronError(f"batch is the number of samples for a gradient, 1 or more, or None for all; got {batch}.")
    if sampling not in ("epochs", "replacement"):
        raise PerronError(f"sampling is 'epochs' or 'replacement'; got {sampling!r}.")
    if evaluate is not None and evaluate < 1:
        raise PerronError(f"evaluate is a number of samples, 1 or more, or None for all; got {evaluate}.")


def check_model(
    model: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], inputs: Tensor, labels: Tensor, largest: int
) -> None:
    """Refuse a model and a loss that do not fit the data; ``largest`` is the largest label, -1 for regression."""
    model.train(False)
    try:
        with torch.no_grad():
            outputs = model(inputs)
            if outputs.ndim > 1 and outputs.shape[1] <= largest:
                raise PerronError(f"The model has {outputs.shape[1]} outputs, but labels go up to {largest}.")
            value = loss(outputs, labels)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        shapes = f"inputs {tuple(inputs.shape)} and targets {tuple(labels.shape)}"
        raise PerronError(f"Model and loss do not go with {shapes} as {labels.dtype}: {error}") from None
    if value.ndim:
        raise PerronError(
            f"The loss must be one number, the mean over the samples; got the shape {tuple(value.shape)}."
        )


def normalization(images: Tensor) -> tuple[Tensor, Tensor]:
    """Return shift and scale of each channel ``(C, 1, 1)`` that give bytes mean 0 and standard deviation 1; else 0 and 1."""
    if images.dtype != torch.uint8:
        return torch.zeros(()), torch.ones(())
    channels = images.transpose(0, 1).reshape(images.shape[1], -1)
    counts = torch.stack([torch.bincount(channel, minlength=256) for channel in channels]).double()  # (C, 256)
    value = torch.arange(256.0, dtype=torch.float64)
    mean = (counts @ value) / counts.sum(1)
    deviation = ((counts @ value.square()) / counts.sum(1) - mean.square()).clamp_min(0).sqrt()
    deviation[deviation < 1e-6] = 1.0  # of constant channels
    shape = (-1, *[1] * (images.ndim - 2))
    return (-mean / deviation).view(shape), (1 / deviation).view(shape)

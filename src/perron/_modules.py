"""A torch module as a function of one vector, and averages of modules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from perron.errors import PerronError


class LossAt:
    """The loss of a module on a batch as a function of its trainable parameters in one vector, with two derivatives.

    The module is left alone: parameters, gradients, buffers, mode and torch's generators are afterwards what they were.
    It is evaluated in the mode that it is in, and every evaluation starts from the module's buffers.

    Args:
        model: any module; its parameters that require a gradient, in their order, are the vector.
        loss: ``(outputs, targets) -> scalar``, without parameters of its own.
    """

    def __init__(self, model: nn.Module, loss: Callable[[Any, Any], Tensor]) -> None:
        self.model, self.loss = model, loss
        self.params = {name: param for name, param in model.named_parameters() if param.requires_grad}
        if not self.params:
            raise PerronError(f"None of the parameters of {type(model).__name__} requires a gradient.")
        self.point = torch.cat([param.detach().reshape(-1) for param in self.params.values()])
        self._gpus = [self.point.device.index or 0] if self.point.device.type == "cuda" else []

    def grad(self, point: Tensor, inputs: Any, targets: Any, *, seed: int = 0) -> tuple[Tensor, Tensor]:
        """Loss and gradient at a point; the seed is for dropout and the like."""
        with torch.enable_grad():
            leaves = self._leaves(point)
            value = self._value(leaves, inputs, targets, seed)
            grads = torch.autograd.grad(value, leaves, materialize_grads=True)
        return value.detach(), _joined(grads)

    def product(self, point: Tensor, v: Tensor, inputs: Any, targets: Any, *, seed: int = 0) -> Tensor:
        """The Hessian at a point times v: the gradient of <gradient, v>."""
        # The fast kernels of attention have no second derivative; the plain one has.
        with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
            leaves = self._leaves(point)
            value = self._value(leaves, inputs, targets, seed)
            grads = torch.autograd.grad(value, leaves, create_graph=True, materialize_grads=True)
            along = (_joined(grads) * v).sum()
            if along.requires_grad:  # unless the loss is linear in all parameters
                # Not autograd.grad, which goes around operations that can be differentiated once only: here they are errors.
                along.backward()  # type: ignore[no-untyped-call]
        return _joined(tuple(torch.zeros_like(one) if one.grad is None else one.grad for one in leaves))

    def _leaves(self, point: Tensor) -> list[Tensor]:
        parts = point.detach().split([param.numel() for param in self.params.values()])  # type: ignore[no-untyped-call]
        return [part.view(p.shape).requires_grad_() for part, p in zip(parts, self.params.values(), strict=True)]

    def _value(self, leaves: list[Tensor], inputs: Any, targets: Any, seed: int) -> Tensor:
        buffers = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
        with torch.random.fork_rng(devices=self._gpus):
            torch.manual_seed(seed)
            outputs = functional_call(self.model, buffers | dict(zip(self.params, leaves, strict=True)), inputs)
            value = self.loss(outputs, targets)
        if not torch.is_tensor(value) or value.ndim:
            got = f"the shape {tuple(value.shape)}" if torch.is_tensor(value) else type(value).__name__
            raise PerronError(f"The loss must be one number, the mean over the samples; got {got}.")
        return value


def _joined(parts: tuple[Tensor, ...]) -> Tensor:
    return torch.cat([part.reshape(-1) for part in parts])


@contextmanager
def replaced(tensors: dict[str, Tensor], values: dict[str, Tensor]) -> Iterator[None]:
    """Within it, some tensors have other values."""
    own = {name: tensors[name].clone() for name in values}
    with torch.no_grad():
        for name, value in values.items():
            tensors[name].copy_(value)
    try:
        yield
    finally:
        with torch.no_grad():
            for name, value in own.items():
                tensors[name].copy_(value)


def averaged(buffers: dict[str, Tensor], weights: Tensor | None = None) -> dict[str, Tensor]:
    """Floating-point buffers of several models, each stacked ``(models, ...)``, averaged; with equal weights unless given.

    A variance becomes that of the union of the models' data, var = mean(var_i) + mean((mean_i - mean)^2), in float64: the
    difference of E[x^2] and mean^2 would cancel.
    """
    found = {}
    for name, stacked in buffers.items():
        share = torch.full((len(stacked),), 1 / len(stacked)) if weights is None else weights
        share = share.to(stacked.device, torch.float64)

        def mean(values: Tensor, share: Tensor = share) -> Tensor:
            return torch.tensordot(share, values.double(), 1)

        found[name] = mean(stacked)
        partner = buffers.get(name.removesuffix("running_var") + "running_mean")
        if name.endswith("running_var") and partner is not None:
            found[name] += mean((partner.double() - mean(partner)).square())
        found[name] = found[name].to(stacked.dtype)
    return found

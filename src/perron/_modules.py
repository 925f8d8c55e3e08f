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
    """The loss of a module on a batch as a function of one vector of all trainable parameters, with two derivatives.

    The module does not change: neither its parameters, gradients, buffers and mode, nor torch's generators. Every evaluation
    uses the module's current mode and starts from its buffers.

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
        """Return loss and gradient at a point; the seed is for dropout and the like."""
        with torch.enable_grad():
            leaves = self._leaves(point)
            value = self._value(leaves, inputs, targets, seed)
            grads = torch.autograd.grad(value, leaves, materialize_grads=True)
        return value.detach(), _concatenate(grads)

    def product(self, point: Tensor, v: Tensor, inputs: Any, targets: Any, *, seed: int = 0) -> Tensor:
        """Return the Hessian at a point times v: the gradient of <gradient, v>."""
        # The fast kernels of attention have no second derivative; the plain one has.
        with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
            leaves = self._leaves(point)
            value = self._value(leaves, inputs, targets, seed)
            grads = torch.autograd.grad(value, leaves, create_graph=True, materialize_grads=True)
            along = (_concatenate(grads) * v).sum()
            if along.requires_grad:  # unless the loss is linear in all parameters
                # Not autograd.grad: it skips operations that can be differentiated only once, which are errors here.
                along.backward()  # type: ignore[no-untyped-call]
        return _concatenate(tuple(torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves))

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


def _concatenate(parts: tuple[Tensor, ...]) -> Tensor:
    return torch.cat([part.reshape(-1) for part in parts])


@contextmanager
def temporarily_set(tensors: dict[str, Tensor], values: dict[str, Tensor]) -> Iterator[None]:
    """Give some tensors other values within a block."""
    saved = {name: tensors[name].clone() for name in values}

    def assign(values: dict[str, Tensor]) -> None:
        with torch.no_grad():
            for name, value in values.items():
                tensors[name].copy_(value)

    assign(values)
    try:
        yield
    finally:
        assign(saved)


def average_buffers(buffers: dict[str, Tensor], weights: Tensor | None = None) -> dict[str, Tensor]:
    """Average floating-point buffers of several models, each stacked ``(models, ...)``; with equal weights by default.

    A variance becomes that of the union of the models' data, var = mean(var_i) + mean((mean_i - mean)^2), in float64: the
    difference of E[x^2] and mean^2 would cancel.
    """
    averages = {}
    for name, stacked in buffers.items():
        share = torch.full((len(stacked),), 1 / len(stacked)) if weights is None else weights
        share = share.to(stacked.device, torch.float64)

        def mean(values: Tensor, share: Tensor = share) -> Tensor:
            return torch.tensordot(share, values.double(), 1)

        averages[name] = mean(stacked)
        partner = buffers.get(name.removesuffix("running_var") + "running_mean")
        if name.endswith("running_var") and partner is not None:
            averages[name] += mean((partner.double() - mean(partner)).square())
        averages[name] = averages[name].to(stacked.dtype)
    return averages


def vector(model: nn.Module) -> Tensor:
    """Return a module's trainable parameters as one vector."""
    return torch.cat([param.detach().reshape(-1) for param in model.parameters() if param.requires_grad])


def locate_buffers(model: nn.Module) -> dict[str, tuple[nn.Module, str]]:
    """Return the module and the key of every buffer, by its name."""
    return {
        f"{path}.{key}" if path else key: (module, key)
        for path, module in model.named_modules()
        for key, buffer in module._buffers.items()
        if buffer is not None
    }

"""Parameters as one vector: views of a flat buffer, and what can go wrong with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import isfinite
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from perron.errors import PerronError, listed


class Flat:
    """The trainable parameters of an optimizer's groups; they become views of ``vector``.

    Args:
        groups: the optimizer's parameter groups.
        model: where the parameters are from, if known.
    """

    def __init__(self, groups: list[dict[str, Any]], model: nn.Module | None) -> None:
        self.model = model
        self.params: list[nn.Parameter] = [p for one in groups for p in one["params"] if p.requires_grad]
        self._check_types()
        self.vector = torch.cat([param.detach().reshape(-1) for param in self.params])
        parts = self.vector.split([param.numel() for param in self.params])  # type: ignore[no-untyped-call]
        self._views = [part.view(param.shape) for part, param in zip(parts, self.params, strict=True)]
        self.dtype, self.device = self.vector.dtype, self.vector.device
        self.lr = torch.zeros(self.vector.shape if len(groups) > 1 else (), dtype=self.dtype, device=self.device)
        self._versions: list[int] = []
        self._ids = {id(param) for param in self.params}
        self._rates: list[float] = []  # those that are in lr

    def attach(self) -> None:
        """Let the parameters be views of the vector."""
        for param, view in zip(self.params, self._views, strict=True):
            param.data = view
        self.remember()

    def show(self, point: Tensor) -> None:
        """Let the parameters be a point."""
        self.vector.copy_(point)
        torch.autograd.graph.increment_version(
            self.params
        )  # so that backward through an old graph is an error, as ever
        self.remember()

    def rates(self, groups: list[dict[str, Any]]) -> Tensor:
        """The groups' present learning rates: one number, or one for each parameter if there are several groups."""
        rates = [float(one["lr"]) for one in groups]
        if rates == self._rates:
            return self.lr
        self._rates = rates
        if self.lr.ndim == 0:
            return self.lr.fill_(rates[0])
        for one, part in self._parts(groups, self.lr):
            part.fill_(one["lr"])
        return self.lr

    def gradient(self, groups: list[dict[str, Any]], scale: Tensor | None = None) -> Tensor:
        """The parameters' gradients, divided by a scale; with weight decay where they are finite."""
        grad = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in self.params])
        if scale is not None:
            grad /= scale
        if any(one["weight_decay"] for one in groups):
            for (one, part), param in zip(self._parts(groups, grad), self.params, strict=True):
                if one["weight_decay"] and param.grad is not None:
                    part.add_(param.reshape(-1), alpha=one["weight_decay"])
        return grad

    def not_finite(self, grad: Tensor) -> str:
        """Which parameters' gradients are not finite, by their names in the model; nothing if all are."""
        if isfinite(float(grad.sum())) or bool(torch.isfinite(grad).all()):  # a sum takes one pass over memory
            return ""
        named = {id(param): name for name, param in self.model.named_parameters()} if self.model is not None else {}
        parts = grad.split([param.numel() for param in self.params])  # type: ignore[no-untyped-call]
        found = [
            f"{named.get(id(param), f'parameter {place}')} ({'NaN' if bool(part.isnan().any()) else 'infinity'})"
            for place, (param, part) in enumerate(zip(self.params, parts, strict=True))
            if not bool(torch.isfinite(part).all())
        ]
        return listed(found)

    def _parts(self, groups: list[dict[str, Any]], vector: Tensor) -> Iterator[tuple[dict[str, Any], Tensor]]:
        """Each parameter's group and its part of a vector."""
        start = 0
        for one in groups:
            for param in one["params"]:
                if param.requires_grad:
                    yield one, vector[start : start + param.numel()]
                    start += param.numel()

    def facts(self, groups: list[dict[str, Any]], *, began: bool) -> dict[str, Any]:
        """What all processes need to have in common; once training has begun, schedules may be a step apart."""
        buffers = self.model.named_buffers() if self.model is not None else ()
        return {
            "the parameters' shapes": [list(param.shape) for param in self.params],
            "the parameters' type": str(self.dtype),
            "the parameter groups": [
                {"parameters": len(one["params"])} | {key: one[key] for key in ("lr", "weight_decay") if not began}
                for one in groups
            ],
            "whether the optimizer was given the model": self.model is not None,
            "the buffers": [[name, list(buffer.shape), str(buffer.dtype)] for name, buffer in buffers],
        }

    def remember(self) -> None:
        """The parameters as they are now were put there by the optimizer."""
        self._versions = [param._version for param in self.params]

    def check(self) -> None:
        """Refuse parameters that were moved, exchanged or changed behind the optimizer's back."""
        if self.model is not None and {id(p) for p in _walk(self.model) if p.requires_grad} != self._ids:
            raise PerronError("The model has other parameters than when the optimizer was made. Make a new one.")
        for param, view, version in zip(self.params, self._views, self._versions, strict=True):
            if param.data_ptr() != view.data_ptr() or param.dtype != view.dtype:
                raise PerronError(
                    "A parameter is no longer where the optimizer put it (was the model moved, as with model.to(), after the "
                    "optimizer was made?). Make the optimizer last."
                )
            if param._version != version:
                raise PerronError(
                    "Parameters were changed by something other than the optimizer (were weights loaded into the model?). Call "
                    "optimizer.reset() on every node afterwards."
                )

    def _check_types(self) -> None:
        if not self.params:
            raise PerronError("None of the parameters requires a gradient.")
        kinds = {(param.dtype, param.device) for param in self.params}
        if len(kinds) > 1 or not self.params[0].is_floating_point():
            told = ", ".join(sorted(f"{dtype} on {device}" for dtype, device in kinds))
            raise PerronError(f"All parameters need one floating type and one device; got {told}.")


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


def _walk(module: nn.Module) -> list[nn.Parameter]:
    """As `module.parameters()`, which takes longer than a small model's whole step; one that is shared comes twice."""
    found = [param for param in module._parameters.values() if param is not None]
    for part in module._modules.values():
        if part is not None:
            found += _walk(part)
    return found

"""Parameters as one vector: views of a flat buffer, and what can go wrong with them."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from typing import Any

import torch
from torch import Tensor, nn

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


def _walk(module: nn.Module) -> list[nn.Parameter]:
    """As `module.parameters()`, which takes longer than a small model's whole step; one that is shared comes twice."""
    found = [param for param in module._parameters.values() if param is not None]
    for part in module._modules.values():
        if part is not None:
            found += _walk(part)
    return found

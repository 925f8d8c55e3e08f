"""Parameters as one vector, with checks that nothing else moves or changes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from perron.distributed.finite import describe, is_finite
from perron.errors import PerronError, listed

Groups = list[dict[str, Any]]
TORCH_KEYS = {"params", "param_names", "initial_lr", "max_lr", "min_lr", "swa_lr"}  # of torch.optim and its schedulers

LARGE = 4096  # numbers
BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes of an element


class FlatParameters:
    """The trainable parameters of an optimizer's groups as one vector, of at least 32 bits: the widest of their types.

    Each parameter keeps its own memory, type and memory format, so that it is saved like any other. The algorithm's point is
    the master copy of parameters of 16 bits, which are rounded from it.

    Args:
        groups: the optimizer's parameter groups.
        model: the module that the parameters belong to, if known.

    Attributes:
        frozen: the parameters of groups and model that require no gradient, by name. They are copied, but do not change.
        dtype: the type of the vector.
    """

    def __init__(self, groups: Groups, model: nn.Module | None) -> None:
        self.model = model
        self.params: list[nn.Parameter] = [p for one in groups for p in one["params"] if p.requires_grad]
        self._owners = [index for index, one in enumerate(groups) for p in one["params"] if p.requires_grad]
        self._names = _names(groups, model)
        known = [param for one in groups for param in one["params"]] + ([] if model is None else _parameters(model))
        self.frozen = {self._names[id(param)]: param for param in known if not param.requires_grad}
        self._check_params()
        self._sizes = [param.numel() for param in self.params]
        self.dtype = reduce(torch.promote_types, (param.dtype for param in self.params), torch.float32)
        self.device = self.params[0].device
        self._rates: list[float] = []  # those that are in _lr
        shape = (sum(self._sizes),) if len(groups) > 1 else ()
        self._lr = torch.zeros(shape, dtype=self.dtype, device=self.device)
        self._seen: list[tuple[int, int, torch.dtype]] = []
        self._shown = torch.empty(0)
        self._ids = set() if model is None else {id(param) for param in _parameters(model)}
        self._grouped = [id(param) for one in groups for param in one["params"]]

    def _check_params(self) -> None:
        if not self.params:
            raise PerronError("None of the parameters requires a gradient.")
        refuse_sharded(self.params, self.model)
        kinds = {(param.dtype, param.device) for param in self.params}
        devices = {device for _, device in kinds}
        if len(devices) > 1 or not all(dtype.is_floating_point for dtype, _ in kinds) or self.params[0].is_meta:
            shown = ", ".join(sorted(f"{dtype} on {device}" for dtype, device in kinds))
            raise PerronError(f"All parameters need real floating types and one device that has memory; got {shown}.")
        if len(set(map(id, self.params))) < len(self.params):
            raise PerronError(
                "A parameter is in the groups twice. Give each once; model.parameters() does so, if it is shared."
            )
        first: dict[int, nn.Parameter] = {}
        for param in self.params:
            if param.numel() and (other := first.setdefault(param.data_ptr(), param)) is not param:
                raise PerronError(
                    f"The parameters {self._names[id(other)]} and {self._names[id(param)]} share memory. To tie them, let both "
                    "modules have the same Parameter: head.weight = embedding.weight."
                )

    def _split(self, vector: Tensor) -> tuple[Tensor, ...]:
        return vector.split(self._sizes)  # type: ignore[no-untyped-call]

    def views(self, vector: Tensor) -> list[Tensor]:
        """Return the parts of a vector in the shapes of the parameters."""
        return [part.view(param.shape) for part, param in zip(self._split(vector), self.params, strict=True)]

    def _with_groups(self, groups: Groups, vector: Tensor) -> Iterator[tuple[dict[str, Any], nn.Parameter, Tensor]]:
        """Yield each parameter with its group and its part of a vector."""
        yield from zip((groups[index] for index in self._owners), self.params, self._split(vector), strict=True)

    def point(self) -> Tensor:
        """Return the parameters' values as a new vector."""
        return torch.cat([param.detach().reshape(-1) for param in self.params]).to(self.dtype)

    def as_point(self, x: Tensor) -> Tensor:
        """Return a copy of a vector that the caller gives, in the type and on the device of the parameters' vector."""
        if x.shape != (sum(self._sizes),):
            raise PerronError(f"The model has {sum(self._sizes)} parameters; got shape {tuple(x.shape)}.")
        return x.to(self.device, self.dtype, copy=True)

    def show(self, point: Tensor) -> None:
        """Set the parameters to a point of the algorithm; backward through an old graph stays an error."""
        torch._foreach_copy_(tuple(self.params), self.views(point))
        self._shown = point
        self.remember()

    @contextmanager
    def placed_in(self, vector: Tensor, direction: Tensor | None = None) -> Iterator[None]:
        """Within this block the parameters are views of a vector, in its type, and their gradients those of a direction.

        A parameter without gradient, whose direction is zero, has none within the block either: no node has one for it.
        """
        own = [(param.data, param.grad) for param in self.params]
        grads: list[Tensor | None] = [None] * len(own)
        if direction is not None:
            grads = [
                None if grad is None and not along.any() else along
                for (_, grad), along in zip(own, self.views(direction), strict=True)
            ]
        try:
            _place(self.params, zip(self.views(vector), grads, strict=True))
            yield
        finally:
            _place(self.params, own)

    def learning_rates(self, groups: Groups) -> Tensor:
        """Return the present learning rates: one number, or with several groups one for each entry of the vector."""
        rates = [float(one["lr"]) for one in groups]
        if rates != self._rates:
            self._rates = rates
            if self._lr.ndim == 0:
                self._lr.fill_(rates[0])
            else:
                for one, _, part in self._with_groups(groups, self._lr):
                    part.fill_(one["lr"])
        return self._lr

    def gradient(self, groups: Groups, scale: Tensor | None = None) -> Tensor:
        """Return the gradient divided by the scale, plus weight decay for the parameters that have one."""
        sparse = [p for p in self.params if p.grad is not None and p.grad.layout != torch.strided]
        if sparse:
            raise PerronError(
                f"Gradients have to be dense; got a sparse one of {listed(self._names[id(p)] for p in sparse)}. Make the layer "
                "without sparse gradients, as nn.Embedding(..., sparse=False)."
            )
        grad = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in self.params])
        grad = grad.to(self.dtype)
        if scale is not None:
            grad /= scale
        if any(one["weight_decay"] for one in groups):
            for one, param, part in self._with_groups(groups, grad):
                if one["weight_decay"] and param.grad is not None:
                    part.add_(param.reshape(-1), alpha=one["weight_decay"])
        return grad

    def not_finite(self, grad: Tensor) -> str:
        """Return the names of the parameters whose gradients are not finite; empty if all are."""
        if is_finite(grad):
            return ""
        return listed(
            f"{self._names[id(param)]} ({describe(part)})"
            for param, part in zip(self.params, self._split(grad), strict=True)
            if not is_finite(part)
        )

    def facts(self, groups: Groups, *, began: bool) -> dict[str, Any]:
        """Return the facts that all processes need to share; once training has begun, schedules may be a step apart."""
        buffers = self.model.named_buffers() if self.model is not None else ()
        return {
            "the parameters' shapes": [list(param.shape) for param in self.params],
            "the parameters' types": [str(param.dtype) for param in self.params],
            "the frozen parameters": [[name, list(p.shape), str(p.dtype)] for name, p in self.frozen.items()],
            "the parameter groups": [
                {"parameters": len(one["params"])}
                | {key: value for key, value in one.items() if key != "params" and not began}
                for one in groups
            ],
            "whether the optimizer was given the model": self.model is not None,
            "the buffers": [[name, list(buffer.shape), str(buffer.dtype)] for name, buffer in buffers],
        }

    def remember(self) -> None:
        """Accept the parameters' present values as the optimizer's own."""
        self._seen = [(param._version, param.data_ptr(), param.dtype) for param in self.params]

    def check(self, groups: Groups) -> None:
        """Refuse parameters that something other than the optimizer has moved, replaced or changed."""
        if [id(param) for one in groups for param in one["params"]] != self._grouped:
            raise PerronError(
                "The parameter groups have other parameters than when the optimizer was made. Make a new one."
            )
        changed = [p for p in self.params if not p.requires_grad] + [p for p in self.frozen.values() if p.requires_grad]
        if changed:
            raise PerronError(
                f"requires_grad was changed after the optimizer was made: {listed(self._names[id(p)] for p in changed)}. To "
                "freeze or unfreeze parameters, close the optimizer and make a new one, on every node."
            )
        if self.model is not None and {id(p) for p in _parameters(self.model)} != self._ids:
            raise PerronError("The model has other parameters than when the optimizer was made. Make a new one.")
        for param, (version, place, dtype), shown in zip(self.params, self._seen, self.views(self._shown), strict=True):
            if param.data_ptr() != place or param.dtype != dtype:
                raise PerronError(
                    f"{self._names[id(param)]} is no longer where it was when the optimizer was made (was the model moved, as "
                    "with model.to(), afterwards?). Make the optimizer last."
                )
            if param._version != version or not same_values(param, shown):
                raise PerronError(
                    f"{self._names[id(param)]} was changed by something other than the optimizer (were weights loaded into the "
                    "model, or clipped?). Call optimizer.reset() on every node afterwards: the algorithm restarts from there."
                )


def check_rates(groups: Groups) -> None:
    """Refuse groups without a positive learning rate, or with a negative weight decay."""
    for one in groups:
        rate, decay = one["lr"], one["weight_decay"]
        if rate is None:
            raise PerronError("Decentralized needs a learning rate: pass lr=, or an optimizer of torch as inner=.")
        if not rate > 0 or not decay >= 0:
            raise PerronError(f"Decentralized needs lr > 0 and weight_decay >= 0; got {rate} and {decay}.")


def _place(params: list[nn.Parameter], tensors: Iterable[tuple[Tensor, Tensor | None]]) -> None:
    """Give parameters other memory and gradients, possibly of another type."""
    for param, (data, grad) in zip(params, tensors, strict=True):
        param.grad = None  # has to be of the parameter's type at every moment
        param.data = data
        param.grad = grad


def same_values(param: Tensor, shown: Tensor) -> bool:
    """Return whether a parameter has a point's values, in its own type; NumPy compares large ones four times as fast."""
    if shown.dtype != param.dtype:
        shown = shown.to(param.dtype)
    if not param.is_cpu or param.numel() < LARGE:
        return torch.equal(param, shown)
    kind = BITS[param.element_size()]
    return np.array_equal(param.detach().view(kind).numpy(), shown.view(kind).numpy())


def refuse_sharded(params: list[nn.Parameter], model: nn.Module | None) -> None:
    """Refuse parameters that are distributed over processes: each node needs its whole model."""
    kinds = {type(param) for param in params if is_traceable_wrapper_subclass(param)}
    parts = () if model is None else (kind for part in model.modules() for kind in type(part).__mro__)
    kinds |= {kind for kind in parts if kind.__module__.startswith("torch.distributed.fsdp")}
    if kinds:
        raise PerronError(
            f"Every process of Decentralized needs whole, plain parameters; got {listed(sorted(k.__name__ for k in kinds))}. "
            "FSDP and tensor parallelism are not supported; within a node, use DistributedDataParallel."
        )


def check_keys(groups: Groups, known: Iterable[str]) -> None:
    """Refuse groups with a key that the optimizer does not know, such as a misspelled one: it would have no effect."""
    allowed = {*known, *TORCH_KEYS}
    for one in groups:
        if unknown := sorted(set(one) - allowed):
            raise PerronError(
                f"A parameter group has the key {listed(map(repr, unknown))}, which the optimizer does not know. It knows "
                f"{', '.join(sorted(allowed - TORCH_KEYS | {'params'}))}."
            )


def _names(groups: Groups, model: nn.Module | None) -> dict[int, str]:
    """Return the name of each parameter, by id: the model's, the one that the group gives it, or its place."""
    names = {id(param): f"parameter {place}" for place, param in enumerate(p for one in groups for p in one["params"])}
    for one in groups:
        names |= zip(map(id, one["params"]), one.get("param_names", ()), strict=False)
    return names | {id(param): name for name, param in (model.named_parameters() if model is not None else ())}


def _parameters(module: nn.Module) -> list[nn.Parameter]:
    """As `module.parameters()`, which takes longer than a small model's whole step; a shared one is listed twice."""
    parameters = [param for param in module._parameters.values() if param is not None]
    for part in module._modules.values():
        if part is not None:
            parameters += _parameters(part)
    return parameters

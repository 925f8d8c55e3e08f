"""Chains of linear layers for all nodes at once: their products become batched products, written where they belong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

ELEMENTWISE = (
    nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Softplus, nn.Hardtanh, nn.Identity,
)  # fmt: skip

GROUP = 8  # nodes at a time: more need more memory and are no faster


class Stacked:
    """A `nn.Sequential` of linear layers and activations with the parameters of all nodes, ``(rows, P)``.

    W h for all nodes is one batched product. In the backward pass the gradients with respect to the weights are products, too,
    written straight into the rows that they belong to; autograd would make them elsewhere and add them up.
    """

    def __init__(self, layers: list[nn.Module]) -> None:
        self.layers = layers

    @classmethod
    def of(cls, model: nn.Module, inputs: int) -> Stacked | None:
        """Return the stacked form of a model for inputs with this number of axes, batch included; None if it is no such chain."""
        if type(model) is not nn.Sequential or any(map(_watched, model.modules())):
            return None
        layers = list(model)
        flatten = (
            bool(layers) and isinstance(layers[0], nn.Flatten) and (layers[0].start_dim, layers[0].end_dim) == (1, -1)
        )
        known = all(type(layer) is nn.Linear or type(layer) in ELEMENTWISE for layer in layers[flatten:])
        linear = [layer for layer in layers if type(layer) is nn.Linear]
        # Weights that are shared, computed from others or frozen are not the parameters in their order.
        params = [param for layer in linear for param in (layer.weight, layer.bias) if param is not None]
        plain = list(map(id, params)) == [id(param) for param in model.parameters() if param.requires_grad]
        return cls(layers[flatten:]) if known and linear and plain and (flatten or inputs == 2) else None

    def grad(
        self,
        points: Tensor,
        inputs: Tensor,
        targets: Tensor,
        loss: Callable[[Tensor, Tensor], Tensor],
        out: Tensor,
    ) -> Tensor:
        """The gradients at ``points`` into ``out``, ``(rows, P)`` both; the losses, ``(rows,)``.

        Args:
            inputs, targets: ``(rows, batch, ...)``.
        """
        groups = (part.split(GROUP) for part in (points, inputs, targets, out))  # type: ignore[no-untyped-call]
        return torch.cat([self._some(loss, *parts) for parts in zip(*groups, strict=True)])

    def _some(self, loss: Callable[[Tensor, Tensor], Tensor], *parts: Tensor) -> Tensor:
        points, inputs, targets, out = parts
        # Autograd visits the layers because this one number asks for a gradient; their own gradients never meet it.
        asking = torch.zeros((), dtype=points.dtype, device=points.device, requires_grad=True)
        place, hidden = 0, inputs.flatten(2)
        with torch.enable_grad():
            for layer in self.layers:
                if not isinstance(layer, nn.Linear):
                    hidden = (
                        torch.relu_(hidden) if type(layer) is nn.ReLU else layer(hidden)
                    )  # in place: half the memory
                    continue
                views = []
                for param in (layer.weight, layer.bias):
                    for rows in (points, out) if param is not None else ():
                        views.append(rows[:, place : place + param.numel()].view(len(rows), *param.shape))
                    place += 0 if param is None else param.numel()
                hidden = _Linear.apply(asking, hidden, *views)  # type: ignore[no-untyped-call]
            losses = torch.stack([loss(made, wanted) for made, wanted in zip(hidden, targets, strict=True)])
            losses.sum().backward()  # type: ignore[no-untyped-call]
        return losses.detach()


def _watched(module: nn.Module) -> bool:
    """Whether something else happens when the module is called."""
    return any(getattr(module, name) for name in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks"))


class _Linear(torch.autograd.Function):
    """h W^T + b for all rows; backward fills the places of the gradients of W and b."""

    @staticmethod
    def forward(ctx: Any, _asking: Tensor, hidden: Tensor, weight: Tensor, into: Tensor, *bias: Tensor) -> Tensor:
        ctx.parts = (hidden, weight, into, bias)
        if not bias:
            return torch.bmm(hidden, weight.mT)
        return torch.baddbmm(bias[0].unsqueeze(1), hidden, weight.mT)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad, (hidden, weight, into, bias) = grads[0], ctx.parts
        torch.bmm(grad.mT, hidden, out=into)
        if bias:
            torch.sum(grad, 1, out=bias[1])
        below = torch.bmm(grad, weight) if ctx.needs_input_grad[1] else None
        return (None, below, None, None, *[None] * len(bias))

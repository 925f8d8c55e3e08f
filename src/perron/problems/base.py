"""The interface of a problem: minimize f(x) = (1/n) sum_i f_i(x), where node i holds f_i.

A problem of your own is a small class with `local_grads`, `loss`, and `grad` if gradients are noisy.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from copy import copy, deepcopy
from inspect import isfunction
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn

from perron._storage.tensorfile import digest
from perron.algorithms.base import Query
from perron.errors import PerronError
from perron.random import Keyed

# Central differences: |step| relative to 1 + |x|. Rounding alone would allow less in double precision, but gradients
# that torch cannot differentiate are often summed up in float32 inside.
STEPS = {torch.float64: 1e-4, torch.float32: 5e-3}
APART = 0.05  # so far from central differences, relatively, a derivative by torch is not that of the gradients


class Problem(ABC):
    """n local losses of one vector of length ``dim``. Shapes: points ``(..., n, d)``, one for each node.

    The constants are None where unknown; theory and default steps use them where they are known.

    Attributes:
        nodes, dim: n and d.
        smoothness: L, a Lipschitz constant of all local gradients.
        strong_convexity: mu of the average.
        noise_std: sigma, with E|noise|^2 = sigma^2 for each node's gradient.
        optimum: the minimizer of f, ``(d,)``.
        proximal_l1: the weight l1 of a part l1 |x|_1 of f that gradients leave out, for proximal moves; `full_grad` has it.
        sample_counts: m_i, the number of samples of each node, int64 ``(n,)``; None where f_i is not a finite sum.
        dtype: default precision.
        batch: number of samples in a stochastic gradient of a node; None if `grad` is exact.
        batch_losses: of the last `grad`, the loss of each node on its minibatch, ``(..., n)``; None where not known.
        per_node: names of the attributes whose first axis is the node, which `of_node` takes a row of. A subclass lists its own
            ones only.
        shared: names of other attributes that have n rows by chance, which `of_node` keeps as they are.
        fixed_dtype: names of the attributes that `to` leaves in their own precision.
    """

    nodes: int
    dim: int
    smoothness: float | None = None
    strong_convexity: float | None = None
    noise_std: float | None = None
    optimum: Tensor | None = None
    proximal_l1: float = 0.0
    sample_counts: Tensor | None = None
    dtype: torch.dtype = torch.float64
    batch: int | None = None
    batch_losses: Tensor | None = None
    per_node: ClassVar[tuple[str, ...]] = ()
    shared: ClassVar[tuple[str, ...]] = ("optimum", "batch_losses")
    fixed_dtype: ClassVar[tuple[str, ...]] = ("optimum",)

    @abstractmethod
    def local_grads(self, x: Tensor) -> Tensor:
        """The exact gradients of the local losses, each at its own node's point: ``(..., n, d) -> (..., n, d)``."""

    @abstractmethod
    def loss(self, x: Tensor) -> Tensor:
        """f at common points: ``(..., d) -> (...)``."""

    def grad(self, x: Tensor, draw: int, random: Keyed) -> Tensor:
        """Stochastic gradients for draw number ``draw``, with randomness from ``random`` only; exact unless overridden."""
        return self.local_grads(x)

    def grad_into(self, x: Tensor, draw: int, random: Keyed, out: Tensor) -> Tensor:
        """Write `grad` into ``out`` and return it; override where large gradients need no memory of their own."""
        return out.copy_(self.grad(x, draw, random))

    def compiled_gradient(self, trials: int) -> Any:
        """What the compiled loop of the simulator computes `grad` from, one of `perron.problems.compiled`; None if it cannot."""
        return None

    def _changes(self, owner: type) -> bool:
        """Whether a subclass of ``owner``, or the problem itself, has other gradients than ``owner``, or helpers of them."""
        own = {name for name, value in vars(owner).items() if isfunction(value) and name[0] == "_" != name[1]}
        kinds = type(self).__mro__
        others = [vars(self), *map(vars, kinds[: kinds.index(owner)])]
        return any(name in other for other in others for name in own | {"grad", "local_grads", "grad_into"})

    def answer(self, query: Query) -> Tensor:
        """The gradients that an algorithm asks for by a `Query`."""
        return self.local_grads(query.point) if query.samples is None else self.sample_grads(query.point, query.samples)

    def full_grad(self, x: Tensor) -> Tensor:
        """grad f at common points: ``(..., d) -> (..., d)``."""
        return self.local_grads(x.unsqueeze(-2).expand(*x.shape[:-1], self.nodes, self.dim)).mean(-2)

    def sample_grads(self, x: Tensor, samples: Tensor) -> Tensor:
        """The gradients of single samples, f_i = (1/m_i) sum_l f_{i,l}, each at its node's point.

        Args:
            x: points, ``(..., n, d)``.
            samples: the numbers l of samples of each node, 0 <= l < m_i, int64 ``(..., n, b)``.

        Returns:
            grad f_{i,l}(x_i), ``(..., n, b, d)``; regularizer and weight of the node's share are included.
        """
        raise PerronError(
            f"{type(self).__name__} has no single samples; use a problem on data, such as LinearModel, or define "
            "sample_counts and sample_grads."
        )

    def scores(self, x: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
        """Loss and accuracy on the test set at common points ``(..., d)``; what nodes keep to themselves (`memory`) is averaged
        with the weights ``share``, ``(n,)``."""
        raise PerronError(
            f"{type(self).__name__} has no test set; measure loss or grad_norm_sq instead of test_loss and test_accuracy."
        )

    @property
    def memory(self) -> dict[str, Tensor]:
        """State of the nodes besides the model, such as BatchNorm's statistics; it is saved with a run."""
        return {}

    def recall(self, memory: dict[str, Tensor]) -> None:
        """Restore what `memory` returned."""
        if memory:
            raise PerronError(f"{type(self).__name__} has no memory, but {', '.join(memory)} was saved.")

    def fingerprint(self) -> dict[str, Any]:
        """Return what identifies the problem in checkpoints: its numbers, and a hash of its tensors."""
        own = sorted(vars(self).items())
        facts = {name: value for name, value in own if isinstance(value, int | float | str)}
        found = [one for _, value in own for one in (value if isinstance(value, list | tuple) else [value])]
        return (
            {"type": type(self).__name__} | facts | {"tensors": digest([one for one in found if torch.is_tensor(one)])}
        )

    def hessian(self, x: Tensor) -> Tensor:
        """The second derivative of f at one point, ``(d,) -> (d, d)``; by automatic differentiation unless overridden."""
        return torch.autograd.functional.hessian(self.loss, x)  # type: ignore[no-untyped-call]

    def hessian_products(self, x: Tensor) -> Callable[[Tensor], Tensor]:
        """v -> (H_1 v_1, ..., H_n v_n), with H_i the Hessian of f_i at one common point x: ``(n, d) -> (n, d)``.

        By differentiating `local_grads`, in which every node may have a direction of its own, because each gradient
        depends on its own node's point only; in reverse mode, as Hessians are symmetric. Where torch cannot do that, by
        central differences of exact gradients,

            (grad f_i(x + h v) - grad f_i(x - h v)) / 2h,    h |v| = 1e-4 (1 + |x|) in double precision, 5e-3 in single,

        off by O(h^2). One direction decides: gradients that are cut off from x somewhere (`detach`) would otherwise have
        a derivative that is wrong without an error.
        """
        points = x.detach().expand(self.nodes, self.dim).contiguous()
        size = STEPS.get(x.dtype, 5e-3) * (1 + float(x.norm()))

        def differences(v: Tensor) -> Tensor:
            length = v.norm(dim=-1, keepdim=True)
            h = size / torch.where(length > 0, length, 1)
            return (self.local_grads(points + h * v) - self.local_grads(points - h * v)) / (2 * h)

        if type(self).grad_into is not Problem.grad_into:  # torch.func does not follow such writes
            return differences
        numbers = torch.randn(self.nodes, self.dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        trial = numbers.to(points)
        expected = differences(trial)
        try:
            pull = torch.func.vjp(self.local_grads, points)[1]
            found = pull(trial)[0]
        except (RuntimeError, TypeError, ValueError):  # also what torch raises for operators without a derivative
            return differences
        rounding = 100 * torch.finfo(x.dtype).eps / size * float(self.local_grads(points).norm() * trial.norm())
        close = float((found - expected).norm()) <= APART * float(expected.norm()) + rounding
        return (lambda v: pull(v)[0]) if close else differences

    def local_hessians(self, x: Tensor) -> Tensor:
        """The Hessians of the local losses at one common point, ``(d,) -> (n, d, d)``: d products unless overridden."""
        product, unit = self.hessian_products(x), torch.eye(self.dim, dtype=x.dtype, device=x.device)
        found = torch.stack([product(row.expand(self.nodes, self.dim).contiguous()) for row in unit], -1)
        return (found + found.mT) / 2

    def noise_covariances(self, x: Tensor) -> Tensor | None:
        """Of each node's stochastic gradient at a common point, ``(d,) -> (n, d, d)``; None if unknown."""
        return None

    def noise_covariance(self, x: Tensor) -> Tensor | None:
        """Of one node's stochastic gradient at a common point, averaged over the nodes, ``(d, d)``; None if unknown."""
        each = self.noise_covariances(x)
        return None if each is None else each.mean(0)

    def to(self, *, dtype: torch.dtype, device: torch.device | str) -> Self:
        """Return a copy with all tensors and modules among the attributes in another precision (if floating) and on another
        device; the problem itself if they are so already."""
        fixed = self._declared("fixed_dtype")
        moved = {name: _moved(value, None if name in fixed else dtype, device) for name, value in vars(self).items()}
        if all(value is vars(self)[name] for name, value in moved.items()):
            return self
        other = copy(self)
        vars(other).update(moved)
        return other

    def of_node(self, number: int) -> Self:
        """Return the part of one node as a problem with a single node, for processes.

        It is a copy with one row of each of the attributes in ``per_node``. Constants and optimum remain those of the whole.
        """
        mine, others, kind = self._declared("per_node"), self._declared("shared"), type(self).__name__
        if not mine:
            raise PerronError(
                f"{kind} does not say what belongs to a single node: name the attributes whose first axis is the node, "
                'as per_node = ("data",), or override of_node(number).'
            )
        other = copy(self)
        for name, value in vars(self).items():
            if name in mine:
                vars(other)[name] = _row(value, number)
            elif name not in others and self.nodes > 1 and _has_rows(value, self.nodes):
                raise PerronError(
                    f"{kind}.{name} has {self.nodes} rows, as many as there are nodes: put {name!r} into per_node if they "
                    "belong to the nodes, or else into shared."
                )
        other.nodes = 1
        return other

    def _declared(self, key: str) -> set[str]:
        """The names that the class and its bases declare."""
        return {name for base in type(self).__mro__ for name in vars(base).get(key, ())}

    def start(self) -> Tensor:
        """Return the initial models ``(n, d)``: zero for all nodes unless overridden."""
        return torch.zeros(self.nodes, self.dim, dtype=torch.float64)


def _moved(value: Any, dtype: torch.dtype | None, device: torch.device | str) -> Any:
    """A tensor, module, or tuple, list or dict of them elsewhere; the same object if there is nothing to do."""
    if isinstance(value, Tensor):
        return value.to(device=device, dtype=dtype if value.is_floating_point() else None)
    if isinstance(value, nn.Module):
        tensors = [*value.parameters(), *value.buffers()]
        same = all(_moved(tensor, dtype, device) is tensor for tensor in tensors)
        return value if same else deepcopy(value).to(device=device, dtype=dtype)
    if not isinstance(value, tuple | list | dict):
        return value
    old = list(value.values()) if isinstance(value, dict) else list(value)
    new = [_moved(part, dtype, device) for part in old]
    if all(one is other for one, other in zip(new, old, strict=True)):
        return value
    if isinstance(value, dict):
        return dict(zip(value, new, strict=True))
    return type(value)(*new) if hasattr(value, "_fields") else type(value)(new)


def _row(value: Any, number: int) -> Any:
    """The rows of one node: of an array, or of each array of a tuple; an item of a list."""
    if isinstance(value, tuple):
        parts = [_row(part, number) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return None if value is None else value[number : number + 1]


def _has_rows(value: Any, count: int) -> bool:
    if isinstance(value, tuple):
        return any(_has_rows(part, count) for part in value)
    return isinstance(value, Tensor | np.ndarray) and value.ndim > 0 and len(value) == count

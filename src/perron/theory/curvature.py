"""The largest and the smallest curvature of local losses, from whole Hessians or from their products with vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh
from torch import Tensor

from perron._modules import LossAt
from perron._typing import FloatArray
from perron.errors import PerronError
from perron.problems.base import STEPS

LARGE = 2**20  # coordinates from which on Lanczos keeps few vectors
RESTARTS = 100  # of Lanczos, before it is given up

Product = Callable[[Tensor], Tensor]  # (n, d) -> (n, d), H_i v_i


def dense(hessians: Tensor) -> dict[str, float]:
    """From whole Hessians, ``(n, d, d)``."""
    finite(hessians, "The Hessian")
    average = torch.linalg.eigvalsh(hessians.double().mean(0))
    return {
        "smoothness": float(torch.linalg.eigvalsh(hessians.double()).abs().max()),
        "smoothness_average": float(average.abs().max()),
        "smallest_curvature": float(average.min()),
    }


def lanczos(product: Product, x: Tensor, nodes: int, seed: int, tolerance: float) -> dict[str, float]:
    """From products: of the block-diagonal matrix of local Hessians, of their average, and of that less its largest."""
    dim = len(x)

    def blocks(v: Tensor) -> Tensor:
        return product(v.view(nodes, dim)).reshape(-1)

    def average(v: Tensor) -> Tensor:
        return product(v.expand(nodes, dim).contiguous()).mean(0)

    largest = _eigenvalue(average, dim, x, seed, tolerance, 0.0)
    lowest = largest
    if largest > 0:  # of H - largest I, the eigenvalue of largest magnitude belongs to the lowest of H
        lowest += _eigenvalue(lambda v: average(v) - largest * v, dim, x, seed, tolerance, largest)
    local = largest if nodes == 1 else _eigenvalue(blocks, nodes * dim, x, seed, tolerance, 0.0)
    return {"smoothness": abs(local), "smoothness_average": abs(largest), "smallest_curvature": lowest}


def _eigenvalue(product: Product, size: int, like: Tensor, seed: int, tolerance: float, scale: float) -> float:
    """The eigenvalue of largest magnitude, by Lanczos with restarts; 0 of what is rounding at this scale."""
    kind = np.dtype(np.float32 if like.dtype != torch.float64 else np.float64)

    def times(v: FloatArray) -> FloatArray:
        found = product(torch.from_numpy(np.array(v, kind).reshape(-1)).to(like))
        finite(found, "A product of the Hessian with a vector")
        wide = torch.float64 if kind == np.float64 else torch.float32  # NumPy has no bfloat16
        return found.detach().cpu().to(wide).numpy()

    first = np.random.default_rng(seed).standard_normal(size).astype(kind)
    image = times(first)
    if np.linalg.norm(image) <= 32 * torch.finfo(like.dtype).eps * scale * np.linalg.norm(first):
        return 0.0
    if size <= 3:  # too small for Lanczos
        whole = np.stack([times(row) for row in np.eye(size, dtype=kind)]).astype(np.float64)
        spectrum = np.linalg.eigvalsh((whole + whole.T) / 2)
        return float(spectrum[np.abs(spectrum).argmax()])
    matrix = LinearOperator((size, size), matvec=times, dtype=kind)
    kept = min(size, 20 if size <= LARGE else 10)
    try:
        found = eigsh(
            matrix, 1, which="LM", v0=first, ncv=kept, tol=tolerance, maxiter=RESTARTS, return_eigenvectors=False
        )
    except ArpackNoConvergence:
        raise PerronError(
            f"Lanczos did not settle on the largest curvature to {tolerance:g} in {RESTARTS} restarts; pass a larger "
            "tolerance, or the problem in double precision."
        ) from None
    return float(found[0])


def products(at: LossAt, own: list[list[tuple[Any, Any]]], seed: int) -> tuple[Product, str]:
    """H_i v_i over the batches of each node, and how they are made."""
    x, count = at.point, len(own[0])
    size = STEPS.get(x.dtype, 5e-3) * float(1 + x.norm())

    def twice(v: Tensor) -> Tensor:
        def of(row: Tensor, pairs: list[tuple[Any, Any]]) -> Tensor:
            parts = (at.product(x, row, *pair, seed=seed + number) for number, pair in enumerate(pairs))
            return sum(parts, torch.zeros_like(x)) / count

        return torch.stack([of(row, pairs) for row, pairs in zip(v, own, strict=True)])

    def differences(v: Tensor) -> Tensor:
        def of(row: Tensor, pairs: list[tuple[Any, Any]]) -> Tensor:
            h = size / float(row.norm() or 1.0)
            total = torch.zeros_like(x)
            for number, pair in enumerate(pairs):
                for sign in (1, -1):
                    total += sign * at.grad(x + sign * h * row, *pair, seed=seed + number)[1]
            return total / (2 * h * count)

        return torch.stack([of(row, pairs) for row, pairs in zip(v, own, strict=True)])

    try:
        at.product(x, torch.ones_like(x), *own[0][0], seed=seed)
    except RuntimeError:  # the first derivative went well: this is about the second
        return differences, "Lanczos on central differences of gradients"
    return twice, "Lanczos on Hessian products"


def finite(values: Tensor, what: str) -> None:
    """Refuse numbers that are none."""
    if not bool(torch.isfinite(values).all()):
        count = int((~torch.isfinite(values)).sum())
        raise PerronError(
            f"{what} is not finite: {count} of {values.numel()} numbers are inf or nan. "
            "Check the data, and estimate at a point where the loss is finite, as where runs start."
        )

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
RESTARTS = 100  # of Lanczos, at most

Product = Callable[[Tensor], Tensor]  # (n, d) -> (n, d), H_i v_i


def dense(hessians: Tensor) -> dict[str, float]:
    """Return the curvatures of whole Hessians, ``(n, d, d)``."""
    check_finite(hessians, "The Hessian")
    average = torch.linalg.eigvalsh(hessians.double().mean(0))
    return {
        "smoothness": float(torch.linalg.eigvalsh(hessians.double()).abs().max()),
        "smoothness_average": float(average.abs().max()),
        "smallest_curvature": float(average.min()),
    }


def lanczos(product: Product, x: Tensor, nodes: int, seed: int, tolerance: float) -> dict[str, float]:
    """Return the curvatures by Lanczos, on the block-diagonal matrix of the local Hessians and on their average."""
    dim = len(x)

    def blocks(v: Tensor) -> Tensor:
        return product(v.view(nodes, dim)).reshape(-1)

    def average(v: Tensor) -> Tensor:
        return product(v.expand(nodes, dim).contiguous()).mean(0)

    largest = _eigenvalue(average, dim, x, seed, tolerance, 0.0)
    lowest = largest
    if largest > 0:  # the eigenvalue of H - largest I with the largest magnitude belongs to the lowest of H
        lowest += _eigenvalue(lambda v: average(v) - largest * v, dim, x, seed, tolerance, largest)
    local = largest if nodes == 1 else _eigenvalue(blocks, nodes * dim, x, seed, tolerance, 0.0)
    return {"smoothness": abs(local), "smoothness_average": abs(largest), "smallest_curvature": lowest}


def _eigenvalue(product: Product, size: int, like: Tensor, seed: int, tolerance: float, scale: float) -> float:
    """The eigenvalue of largest magnitude, by Lanczos with restarts; 0 if it is rounding error at this scale."""
    wide = torch.float64 if like.dtype == torch.float64 else torch.float32  # NumPy has no bfloat16
    kind = np.dtype(np.float64 if wide == torch.float64 else np.float32)

    def times(v: FloatArray) -> FloatArray:
        image = product(torch.from_numpy(np.array(v, kind).reshape(-1)).to(like))
        check_finite(image, "A product of the Hessian with a vector")
        return image.detach().cpu().to(wide).numpy()

    first = np.random.default_rng(seed).standard_normal(size).astype(kind)
    if np.linalg.norm(times(first)) <= 32 * torch.finfo(like.dtype).eps * scale * np.linalg.norm(first):
        return 0.0
    if size <= 3:  # too small for Lanczos
        whole = np.stack([times(row) for row in np.eye(size, dtype=kind)]).astype(np.float64)
        spectrum = np.linalg.eigvalsh((whole + whole.T) / 2)
        return float(spectrum[np.abs(spectrum).argmax()])
    matrix = LinearOperator((size, size), matvec=times, dtype=kind)
    vectors = min(size, 20 if size <= LARGE else 10)
    try:
        (value,) = eigsh(
            matrix, 1, which="LM", v0=first, ncv=vectors, tol=tolerance, maxiter=RESTARTS, return_eigenvectors=False
        )
    except ArpackNoConvergence:
        raise PerronError(
            f"Lanczos did not settle on the largest curvature to {tolerance:g} in {RESTARTS} restarts; pass a larger "
            "tolerance, or the problem in double precision."
        ) from None
    return float(value)


def products(at: LossAt, own: list[list[tuple[Any, Any]]], seed: int) -> tuple[Product, str]:
    """Return the map v -> H_i v_i over the batches of each node, and a description of the method."""
    x, count = at.point, len(own[0])
    size = STEPS.get(x.dtype, 5e-3) * float(1 + x.norm())

    def exact(v: Tensor, pair: tuple[Any, Any], seed: int) -> Tensor:
        return at.product(x, v, *pair, seed=seed)

    def differences(v: Tensor, pair: tuple[Any, Any], seed: int) -> Tensor:
        h = size / float(v.norm() or 1.0)
        ahead, behind = (at.grad(x + sign * h * v, *pair, seed=seed)[1] for sign in (1, -1))
        return (ahead - behind) / (2 * h)

    try:
        exact(torch.ones_like(x), own[0][0], seed)
        single, way = exact, "Lanczos on Hessian products"
    except RuntimeError:  # gradients were computed before: only the second derivative is missing
        single, way = differences, "Lanczos on central differences of gradients"

    def product(v: Tensor) -> Tensor:
        rows = []
        for row, pairs in zip(v, own, strict=True):
            parts = (single(row, pair, seed + number) for number, pair in enumerate(pairs))
            rows.append(sum(parts, torch.zeros_like(x)) / count)
        return torch.stack(rows)

    return product, way


def check_finite(values: Tensor, what: str) -> None:
    """Refuse values that are inf or nan."""
    if not bool(torch.isfinite(values).all()):
        count = int((~torch.isfinite(values)).sum())
        raise PerronError(
            f"{what} is not finite: {count} of {values.numel()} numbers are inf or nan. "
            "Check the data, and estimate at a point where the loss is finite, as where runs start."
        )

"""The minimizer of a linear model: Newton's method to rounding, and a file that keeps what was found."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from perron._storage import tensorfile
from perron._storage.atomic import make_directory
from perron._typing import FloatArray
from perron.errors import FileError, PerronError

if TYPE_CHECKING:
    from perron.problems.linear import LinearModel

FORMAT = 1  # of the files; part of their names
LARGEST = 2048  # coordinates, for the eigenvectors of the Hessian
TOLERANCE = 1e-14  # of |grad f|, relative to |grad f(0)|
STEPS, SWEEPS = 100, 2000  # of Newton's method, and of coordinate descent within a step, at most
SLACK = 1e-14  # by which a loss may increase, relatively: the rounding of a sum


def kept_optimum(problem: LinearModel) -> Tensor:
    """Return the minimizer of a problem with a single node; it is kept in ``~/.cache/perron/optima`` (if that can be written)."""
    facts = {
        "format": FORMAT, "loss": problem.kind, "l2": problem.l2, "l1": problem.proximal_l1, "nonconvex": problem.nonconvex,
        "data": tensorfile.digest([problem.rows, problem.targets]),
    }  # fmt: skip
    name = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]
    path = None
    with suppress(FileError, OSError, RuntimeError, KeyError):  # no file yet, a damaged one, or no home directory
        path = Path.home() / ".cache" / "perron" / "optima" / f"{name}.safetensors"
        return tensorfile.read(path)[0]["optimum"]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the order of sums, and so every bit, is the same with and without the file
    try:
        x, norm = minimize(problem)
    finally:
        torch.set_num_threads(threads)
    if path is not None:
        with suppress(FileError, OSError):  # a cache that cannot be written only costs time
            make_directory(path.parent)
            tensorfile.write(path, {"optimum": x}, facts | {"grad_norm": norm})
    return x


def minimize(problem: LinearModel) -> tuple[Tensor, float]:
    """Return the minimizer and the norm of the (sub)gradient there, at most 1e-14 of that at zero.

    Newton's method from zero, with halved steps where the loss would increase. Negative eigenvalues of the Hessian are replaced
    by their absolute values, and directions without curvature are left out. With l1, each step minimizes the quadratic model
    plus l1 |x|_1.
    """
    if problem.dim > LARGEST:
        raise PerronError(
            f"The optimum is computed for up to {LARGEST:,} coordinates; this problem has {problem.dim:,}. "
            "Measure grad_norm_sq or loss instead of distances to it."
        )
    x = torch.zeros(problem.dim, dtype=torch.float64)
    loss, grad = problem.loss(x), problem.full_grad(x)
    target, best, length = TOLERANCE * float(grad.norm()), (float("inf"), x), 0.0
    for _ in range(STEPS):
        norm = float(grad.norm())
        settled = length <= 1e-6 * (
            1 + float(x.norm())
        )  # where there is no minimum, gradients vanish, too, but steps do not
        if settled and norm >= best[0]:  # rounding
            break
        if settled:
            best = (norm, x)
        if settled and norm == 0:
            break
        move = _newton_step(problem, x, grad)
        while (after := problem.loss(x + move)) > loss + SLACK * (1 + abs(loss)) and float(move.norm()) > 0:
            move = move / 2
        length = float(move.norm())
        x, loss = x + move, after
        grad = problem.full_grad(x)
    if best[0] > target:
        raise PerronError(
            f"Newton's method found no minimum: |grad f| = {float(grad.norm()):.1e} at |x| = {float(x.norm()):.1e}, after "
            f"{float(problem.full_grad(torch.zeros_like(x)).norm()):.1e} at zero. With l2 > 0 there is one."
        )
    return best[1], best[0]


def _newton_step(problem: LinearModel, x: Tensor, grad: Tensor) -> Tensor:
    values, turn = torch.linalg.eigh(problem.hessian(x))
    values = values.abs()
    bent = values > problem.dim * torch.finfo(torch.float64).eps * float(values.max())
    if not problem.proximal_l1:
        return -turn @ torch.where(bent, (turn.mT @ grad) / torch.where(bent, values, 1), 0)
    smooth = problem.local_grads(x.expand(1, -1))[0]
    hessian = (turn * values) @ turn.mT
    return torch.from_numpy(_least_with_l1(hessian.numpy(), smooth.numpy(), x.numpy(), problem.proximal_l1)) - x


def _least_with_l1(hessian: FloatArray, grad: FloatArray, x: FloatArray, l1: float) -> FloatArray:
    """The u with the least grad^T (u - x) + (u - x)^T H (u - x) / 2 + l1 |u|_1.

    Coordinate descent finds which coordinates are zero and the signs of the others; these are then the solution of a linear
    system, which is accepted if it satisfies the conditions of a minimum: |slope| <= l1 at zeros, the signs as assumed.
    """
    u, slope = x.copy(), grad.copy()  # slope: of the quadratic at u
    diagonal = hessian.diagonal()
    for sweep in range(SWEEPS):
        largest = 0.0
        for j in np.flatnonzero(diagonal > 0):
            center = u[j] - slope[j] / diagonal[j]
            new = np.sign(center) * max(abs(center) - l1 / diagonal[j], 0.0)
            if new != u[j]:
                largest = max(largest, abs(new - u[j]) * diagonal[j])
                slope += hessian[:, j] * (new - u[j])
                u[j] = new
        if sweep % 10 == 9 or largest <= 1e-12 * l1:
            support = np.flatnonzero(u)
            signs, exact = np.sign(u[support]), u.copy()
            rest = -(slope[support] + l1 * signs)
            exact[support] += np.linalg.lstsq(hessian[np.ix_(support, support)], rest, rcond=None)[0]
            at_exact = slope + hessian @ (exact - u)
            if (np.sign(exact[support]) == signs).all() and (np.abs(at_exact) <= l1 * (1 + 1e-9)).all():
                return exact
            if largest == 0:
                break
    return u

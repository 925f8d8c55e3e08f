"""Quadratics: the problem whose every constant is a dial and whose optimum is known."""

from __future__ import annotations

from math import sqrt
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from perron.errors import PerronError
from perron.problems._samples import as_numbers
from perron.problems.base import Problem
from perron.problems.compiled import Diagonal, Full, Noise
from perron.random import Keyed

ROUNDING = 1e-14  # asymmetry of a Hessian, relative to the largest entry


class Quadratic(Problem):
    """f_i(x) = (x - b_i)^T H_i (x - b_i) / 2, with gradient noise N(0, (sigma^2/d) I).

    The optimum solves (mean H_i) x* = mean(H_i b_i).

    Args:
        hessians: H_i, ``(n, d, d)``, symmetric and positive semidefinite; or ``(n, d)``, diagonal.
        centers: b_i, ``(n, d)``.
        noise_std: sigma, with E|noise|^2 = sigma^2 for each node.
    """

    per_node = ("hessians", "centers", "offsets")

    def __init__(self, hessians: Any, centers: Any, *, noise_std: float = 0.0) -> None:
        hessians, centers = as_numbers("Quadratic's hessians", hessians), as_numbers("Quadratic's centers", centers)
        hessians, centers = (given if given.is_floating_point() else given.double() for given in (hessians, centers))
        if centers.ndim != 2:
            raise PerronError(f"Quadratic needs centers (n, d); got {tuple(centers.shape)}.")
        self.nodes, self.dim = centers.shape
        self.diagonal = hessians.ndim == 2
        if hessians.shape != (self.nodes, self.dim) + (() if self.diagonal else (self.dim,)):
            raise PerronError(
                f"Quadratic needs hessians (n, d, d) or (n, d) and centers (n, d); got {tuple(hessians.shape)} and "
                f"{tuple(centers.shape)}."
            )
        if not self.diagonal and not torch.allclose(
            hessians, hessians.mT, rtol=1e-5, atol=1e-5 * float(hessians.abs().max())
        ):
            raise PerronError(
                "Quadratic needs symmetric hessians; replace H by (H + H.T) / 2, which gives the same losses."
            )
        if not noise_std >= 0:
            raise PerronError(f"Quadratic needs noise_std >= 0; got {noise_std}.")
        self.hessians, self.centers = hessians, centers
        self.noise_std: float = noise_std
        self.offsets = self._times(centers)  # H_i b_i
        curvature = hessians if self.diagonal else torch.linalg.eigvalsh(hessians)
        average = hessians.mean(0)
        self.smoothness = float(curvature.max())
        self.strong_convexity = float((average if self.diagonal else torch.linalg.eigvalsh(average)).min())
        mean = self.offsets.mean(0)
        self.optimum = mean / average if self.diagonal else torch.linalg.solve(average, mean)

    @classmethod
    def random(
        cls,
        nodes: int,
        dim: int = 5,
        *,
        smoothness: float = 1.0,
        strong_convexity: float = 0.1,
        heterogeneity: float = 1.0,
        noise_std: float = 0.0,
        same_hessian: bool = False,
        diagonal: bool = False,
        seed: int = 0,
        dtype: torch.dtype = torch.float64,
    ) -> Self:
        """Random quadratics with dials.

        Hessians have eigenvalues spread evenly from mu to L, turned at random for each node (or ``same_hessian`` for all, or
        ``diagonal``: in random order, not turned). Centers are a common N(0, I) plus ``heterogeneity`` times one's own N(0, I).
        """
        if not 0 < strong_convexity <= smoothness:
            raise PerronError(
                f"Quadratic.random needs 0 < strong_convexity <= smoothness; got {strong_convexity}, {smoothness}."
            )
        rng = np.random.default_rng(seed)
        count = 1 if same_hessian else nodes
        spectrum = np.linspace(strong_convexity, smoothness, dim) if dim > 1 else np.array([smoothness])
        if diagonal:
            hessians = rng.permuted(np.tile(spectrum, (count, 1)), axis=1)
        else:
            turn = np.linalg.qr(rng.standard_normal((count, dim, dim)))[0]
            hessians = np.einsum("nij,j,nkj->nik", turn, spectrum, turn)
        centers = rng.standard_normal(dim) + heterogeneity * rng.standard_normal((nodes, dim))
        tensor = torch.as_tensor(hessians, dtype=dtype).expand(nodes, *hessians.shape[1:]).contiguous()
        return cls(tensor, torch.as_tensor(centers, dtype=dtype), noise_std=noise_std)

    def _times(self, x: Tensor) -> Tensor:
        """H_i x_i."""
        if self.diagonal:
            return self.hessians * x
        if x.ndim == 3 and x.shape[1] == self.nodes:  # one product for each node serves all trials; H is symmetric
            return torch.bmm(x.transpose(0, 1), self.hessians).transpose(0, 1)
        return (self.hessians @ x.unsqueeze(-1)).squeeze(-1)

    def local_grads(self, x: Tensor) -> Tensor:
        return self._times(x) - self.offsets

    def grad(self, x: Tensor, draw: int, random: Keyed) -> Tensor:
        exact = self.local_grads(x)
        if not self.noise_std:
            return exact
        return exact + self.noise_std / sqrt(self.dim) * random.normal(draw, self.dim).to(x.dtype)

    def compiled_gradient(self, trials: int) -> Any:
        if self._changes(Quadratic):
            return None
        hessians, offsets = self.hessians.contiguous().numpy(), self.offsets.contiguous().numpy()
        noise = Noise.of(self.noise_std / sqrt(self.dim), trials * offsets.size)
        if self.diagonal:
            return Diagonal(hessians, offsets, noise)
        symmetric = all(np.abs(one - one.T).max() <= ROUNDING * np.abs(one).max() for one in hessians)
        return Full(hessians, offsets, noise, symmetric)

    def loss(self, x: Tensor) -> Tensor:
        apart = x.unsqueeze(-2) - self.centers
        return (apart * self._times(apart)).sum(-1).mean(-1) / 2

    def hessian(self, x: Tensor) -> Tensor:
        average = self.hessians.mean(0).to(x)
        return average.diag() if self.diagonal else average

    def local_hessians(self, x: Tensor) -> Tensor:
        each = self.hessians.to(x)
        return torch.diag_embed(each) if self.diagonal else each.clone()

    def noise_covariances(self, x: Tensor) -> Tensor:
        """(sigma^2 / d) I, the same for all nodes."""
        return (self.noise_std**2 / self.dim * torch.eye(self.dim).to(x)).expand(self.nodes, self.dim, self.dim)

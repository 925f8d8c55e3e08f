"""The weights that limit a network: the derivatives of rho_2, s and c with respect to every weight."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from perron._typing import FloatArray
from perron.algorithms.node import Side
from perron.errors import PerronError
from perron.networks.mixing import Mixing
from perron.theory.matrix_node import dense
from perron.theory.recursion import single_threaded

LARGEST = 128  # nodes; the derivative of s needs a singular value decomposition of every power
POWERS = 2000  # at most this many powers are summed for s


@dataclass(frozen=True)
class Sensitivity:
    """Derivatives with respect to the weights of one matrix; nan where there is no edge.

    Entry [i, j] says how fast a number rises as the edge j -> i is given more weight, before its row (column, of a push matrix)
    is normalised again: the direction that keeps the matrix stochastic, per unit of weight.

    Attributes:
        rho_2, s, c: the derivatives; s is None for large networks, c where there is one matrix only.
    """

    side: Side
    rho_2: FloatArray
    s: FloatArray | None
    c: FloatArray | None

    def steepest(self, name: str = "rho_2") -> tuple[int, int, float]:
        """Return the edge (source, target) with the largest derivative, and that derivative; self-loops count as edges."""
        values = self._derivatives(name)
        if not np.isfinite(values).any():
            raise PerronError(f"{name} has no derivative at this network.")
        target, source = np.unravel_index(int(np.nanargmax(np.abs(values))), values.shape)
        return int(source), int(target), float(values[target, source])

    def of_nodes(self, name: str = "rho_2") -> FloatArray:
        """Return, for each node, the norm of the derivatives with respect to the weights that this node chooses.

        The receivers choose the rows of a pull matrix, the senders the columns of a push matrix.
        """
        norms: FloatArray = np.sqrt(np.nansum(self._derivatives(name) ** 2, axis=1 if self.side == "pull" else 0))
        return norms

    def _derivatives(self, name: str) -> FloatArray:
        if name not in ("rho_2", "s", "c"):
            raise PerronError(f"There are the derivatives of rho_2, s and c; got {name!r}.")
        values: FloatArray | None = getattr(self, name)
        if values is None:
            raise PerronError(f"The derivative of {name} was not computed for this network.")
        return values


@single_threaded()
def sensitivity(mixing: Mixing, side: Side) -> Sensitivity:
    """Return the derivatives of rho_2, s and c with respect to every weight of one matrix of a fixed network.

    rho_2 has no derivative where several modes are equally slow, as on symmetric networks, or where eigenvectors coincide, as on
    trees; it is nan there. s is None for large or very slow networks.
    """
    if mixing.varies:
        raise PerronError("Sensitivities are those of a fixed network; this one varies in time.")
    if side not in ("pull", "push"):
        raise PerronError(f"A side is 'pull' or 'push'; got {side!r}.")
    if not (mixing.has_pull if side == "pull" else mixing.has_push):
        raise PerronError(f"This network has no {side} matrix.")
    matrix = torch.as_tensor(dense(mixing.pull if side == "pull" else mixing.push))
    weights = (matrix if side == "pull" else matrix.T).clone().requires_grad_()
    rows = weights / weights.sum(1, keepdim=True)
    limit = perron_vector(rows)
    values = torch.linalg.eigvals(rows - limit)
    sizes = values.detach().abs()
    slowest = values.detach()[sizes > sizes.max() - 1e-6]
    numbers = {}
    if len(slowest) == 1 or (len(slowest) == 2 and bool((slowest[0] - slowest[1].conj()).abs() < 1e-6)):
        numbers["rho_2"] = values.abs().max()
    if len(matrix) <= LARGEST and (total := _mixing_sum(rows, limit)) is not None:
        numbers["s"] = total
    if mixing.has_pull and mixing.has_push:
        other = mixing.push.T if side == "pull" else mixing.pull
        numbers["c"] = len(matrix) * (limit * perron_vector(torch.as_tensor(dense(other)))).sum()
    slopes: dict[str, FloatArray] = {}
    for name, value in numbers.items():
        try:
            (slope,) = torch.autograd.grad(value, weights, retain_graph=True)
        except RuntimeError:  # eigenvectors that coincide, as those of a tree: there is no derivative
            slope = torch.full_like(weights, torch.nan)
        slopes[name] = torch.where(matrix > 0, slope if side == "pull" else slope.T, torch.nan).numpy()
    missing = np.full(matrix.shape, np.nan)
    return Sensitivity(side, slopes.get("rho_2", missing), slopes.get("s"), slopes.get("c"))


def perron_vector(rows: Tensor) -> Tensor:
    """Return pi with pi^T A = pi^T and sum one, differentiably: it solves pi^T (I - A + 1 1^T) = 1^T."""
    n = len(rows)
    system = torch.eye(n, dtype=rows.dtype) - rows + 1
    return torch.linalg.solve(system.T, torch.ones(n, dtype=rows.dtype))


def _mixing_sum(rows: Tensor, limit: Tensor) -> Tensor | None:
    """s, from all powers that matter; None if there are too many of them."""
    step, power = rows - limit, torch.eye(len(rows), dtype=rows.dtype) - limit
    norms = []
    for _ in range(POWERS):
        norms.append(torch.linalg.matrix_norm(power, 2))
        if float(norms[-1].detach()) < 1e-9:
            terms = torch.stack(norms)
            return torch.maximum(terms.sum(), (terms**2).sum())
        power = step @ power
    return None

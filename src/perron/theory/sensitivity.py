"""Which weight limits a network: the derivatives of rho_2, s and c by every weight."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from perron._typing import FloatArray
from perron.algorithms.node import Side
from perron.errors import PerronError
from perron.networks.mixing import Mixing
from perron.theory.recursion import dense, one_thread

LARGEST = 128  # nodes; the derivative of s takes a singular value decomposition of every power
POWERS = 2000  # of the matrix that are summed for s at most


@dataclass(frozen=True)
class Sensitivity:
    """Derivatives by the weights of one matrix; nan where there is no edge.

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
        """The edge (source, target) whose weight matters most to a number, and its derivative; self-loops are edges too."""
        values = self._of(name)
        if not np.isfinite(values).any():
            raise PerronError(f"{name} has no derivative at this network.")
        target, source = np.unravel_index(int(np.nanargmax(np.abs(values))), values.shape)
        return int(source), int(target), float(values[target, source])

    def _of(self, name: str) -> FloatArray:
        if name not in ("rho_2", "s", "c"):
            raise PerronError(f"There are the derivatives of rho_2, s and c; got {name!r}.")
        values: FloatArray | None = getattr(self, name)
        if values is None:
            raise PerronError(f"The derivative of {name} was not computed for this network.")
        return values

    def of_nodes(self, name: str = "rho_2") -> FloatArray:
        """How much each node's choice of weights matters: the norm of the derivatives by the weights that it chooses.

        A pull matrix's rows are chosen by the listeners, a push matrix's columns by the speakers.
        """
        values = self._of(name)
        norms: FloatArray = np.sqrt(np.nansum(values**2, axis=1 if self.side == "pull" else 0))
        return norms


@one_thread()
def sensitivity(mixing: Mixing, side: Side) -> Sensitivity:
    """The derivatives of rho_2, s and c by every weight of one matrix of a network that does not vary in time.

    rho_2 has no derivative where several modes are equally slow, as on symmetric networks, or where eigenvectors coincide, as on
    trees; it is nan there. s is None for large or very slow networks.
    """
    if mixing.period > 1:
        raise PerronError("Sensitivities are those of a fixed network; this one varies in time.")
    if side not in ("pull", "push"):
        raise PerronError(f"A side is 'pull' or 'push'; got {side!r}.")
    if not (mixing.has_pull if side == "pull" else mixing.has_push):
        raise PerronError(f"This network has no {side} matrix.")
    matrix = mixing.pull if side == "pull" else mixing.push
    given = torch.as_tensor(dense(matrix))
    edges = given > 0
    found: dict[str, FloatArray | None] = {"rho_2": None, "s": None, "c": None}
    weights = (given if side == "pull" else given.T).clone().requires_grad_()
    rows = weights / weights.sum(1, keepdim=True)
    limit = stationary(rows)
    values = torch.linalg.eigvals(rows - limit)
    sizes = values.detach().abs()
    slowest = values.detach()[sizes > sizes.max() - 1e-6]
    numbers = {}
    if len(slowest) == 1 or (len(slowest) == 2 and bool((slowest[0] - slowest[1].conj()).abs() < 1e-6)):
        numbers["rho_2"] = values.abs().max()
    if len(given) <= LARGEST and (summed := _summed(rows, limit)) is not None:
        numbers["s"] = summed
    if mixing.has_pull and mixing.has_push:
        other = mixing.push.T if side == "pull" else mixing.pull
        numbers["c"] = len(given) * (limit * stationary(torch.as_tensor(dense(other)))).sum()
    for name, value in numbers.items():
        try:
            (slope,) = torch.autograd.grad(value, weights, retain_graph=True)
        except RuntimeError:  # eigenvectors that coincide, as those of a tree: there is no derivative
            slope = torch.full_like(weights, torch.nan)
        found[name] = torch.where(edges, slope if side == "pull" else slope.T, torch.nan).numpy()
    rho_2 = found["rho_2"]
    return Sensitivity(side, np.full(given.shape, np.nan) if rho_2 is None else rho_2, found["s"], found["c"])


def stationary(rows: Tensor) -> Tensor:
    """pi with pi^T A = pi^T and sum one, differentiably: of pi^T (I - A + 1 1^T) = 1^T."""
    n = len(rows)
    system = torch.eye(n, dtype=rows.dtype) - rows + 1
    return torch.linalg.solve(system.T, torch.ones(n, dtype=rows.dtype))


def _summed(rows: Tensor, limit: Tensor) -> Tensor | None:
    """s, of as many powers as matter; None if these are too many."""
    step, power = rows - limit, torch.eye(len(rows), dtype=rows.dtype) - limit
    norms = []
    for _ in range(POWERS):
        norms.append(torch.linalg.matrix_norm(power, 2))
        if float(norms[-1].detach()) < 1e-9:
            break
        power = step @ power
    else:
        return None
    terms = torch.stack(norms)
    return torch.maximum(terms.sum(), (terms**2).sum())

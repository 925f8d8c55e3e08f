"""A network and what is known about it: numbers that algorithms, metrics and theory ask for, computed once when asked."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from perron._typing import FloatArray
from perron.networks import spectral
from perron.networks.mixing import Mixing


class Network:
    """The facts of a `Mixing`, each computed when first asked for. Of a time-varying one, those of its period's product."""

    def __init__(self, mixing: Mixing) -> None:
        self.mixing = mixing
        self.nodes = mixing.nodes

    @cached_property
    def pull_perron(self) -> FloatArray:
        """pi_A."""
        return spectral.perron(spectral.period_product(self.mixing, "pull"))

    @cached_property
    def push_perron(self) -> FloatArray:
        """pi_B."""
        return spectral.perron(spectral.period_product(self.mixing, "push"))

    @cached_property
    def alignment(self) -> float:
        """c = n pi_A^T pi_B."""
        return self.nodes * float(self.pull_perron @ self.push_perron)

    @cached_property
    def pull_sum(self) -> float:
        """s_A, or an upper bound on a large network."""
        return spectral.mixing_sum(spectral.period_product(self.mixing, "pull")).value

    @cached_property
    def push_sum(self) -> float:
        """s_B, or an upper bound on a large network."""
        return spectral.mixing_sum(spectral.period_product(self.mixing, "push")).value

    @cached_property
    def pull_spectrum(self) -> NDArray[np.complex128]:
        """The eigenvalues of A other than the Perron one."""
        return _spectrum(spectral.period_product(self.mixing, "pull"))

    @cached_property
    def push_spectrum(self) -> NDArray[np.complex128]:
        """The eigenvalues of B other than the Perron one."""
        return _spectrum(spectral.period_product(self.mixing, "push"))

    @cached_property
    def least_return(self) -> float | None:
        """The least that diag(A^t) is of its limit pi_A, over t; None for more than 128 nodes, where it is not computed.

        Pull-only methods divide gradients by diag(A^t). It is tiny at first where walks take long to come back and self-loops
        are light: on a ring of n nodes about a_ii^(n-1).
        """
        if self.nodes > 128:
            return None
        A = spectral.period_product(self.mixing, "pull")
        A = A if isinstance(A, np.ndarray) else A.toarray()
        power, least = A, 1.0
        for _ in range(4 * self.nodes):
            least = min(least, float((power.diagonal() / self.pull_perron).min()))
            power = power @ A
        return least

    @cached_property
    def depth(self) -> int:
        """How many links a model travels from the root down, plus a gradient up: for spanning-tree pairs."""
        root = int(self.mixing.common_roots[0])
        down, up = self.mixing.pull_graph.tree(root), self.mixing.push_graph.reverse().tree(root)
        return int(down.depth.max() + up.depth.max())


def _spectrum(matrix: object) -> NDArray[np.complex128]:
    values = np.linalg.eigvals(matrix if isinstance(matrix, np.ndarray) else matrix.toarray())  # type: ignore[attr-defined]
    return np.delete(values, np.argmin(np.abs(values - 1))).astype(np.complex128)

"""A network with the quantities that algorithms, metrics and theory need, each computed once, on first use."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from perron._typing import FloatArray
from perron.networks import spectral
from perron.networks.mixing import Mixing
from perron.networks.stochastic import Matrix, to_dense


class Network:
    """Quantities of a `Mixing`; of a time-varying one, those of the product over its period."""

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
        return spectral.mixing_sum(spectral.period_product(self.mixing, "pull"), pi=self.pull_perron).value

    @cached_property
    def push_sum(self) -> float:
        """s_B, or an upper bound on a large network."""
        return spectral.mixing_sum(spectral.period_product(self.mixing, "push"), pi=self.push_perron).value

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
        """The minimum over t and nodes of diag(A^t) / pi_A; None for more than 128 nodes, for which it is not computed.

        Nodes outside the root component of a rooted network have pi_A = 0 and do not count. Pull-only methods divide gradients
        by diag(A^t), which is tiny for small t if walks take long to return and self-loops have small weights: on a ring of n
        nodes about a_ii^(n-1).
        """
        if self.nodes > 128:
            return None
        A = to_dense(spectral.period_product(self.mixing, "pull"))
        power, least, roots = A, 1.0, self.pull_perron > 0
        for _ in range(4 * self.nodes):
            least = min(least, float((power.diagonal()[roots] / self.pull_perron[roots]).min()))
            power = power @ A
        return least

    @cached_property
    def depth(self) -> int:
        """The sum of the depths of the two spanning trees: links from the root down plus links up to it."""
        root = int(self.mixing.common_roots[0])
        down, up = self.mixing.pull_graph.tree(root), self.mixing.push_graph.reverse().tree(root)
        return int(down.depth.max() + up.depth.max())


def _spectrum(matrix: Matrix) -> NDArray[np.complex128]:
    values = np.linalg.eigvals(to_dense(matrix))
    return np.delete(values, np.argmin(np.abs(values - 1))).astype(np.complex128)

"""What the compiled gradients of `perron.problems._gradients` are computed from."""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from perron._typing import FloatArray, IntArray


class Noise(NamedTuple):
    """scale N(0, I), and scratch for it."""

    scale: float
    uniform: FloatArray
    tails: NDArray[np.uint64]
    far: FloatArray
    normal: FloatArray

    @classmethod
    def of(cls, scale: float, count: int) -> Self:
        """For ``count`` numbers."""
        size = count if scale else 0
        return cls(
            float(scale), np.empty(size), np.empty(size + 1, dtype=np.uint64), np.empty(size + 1), np.empty(size)
        )


class Full(NamedTuple):
    """H_i x - H_i b_i + noise, with Hessians ``(n, d, d)`` and H_i b_i as offsets; of symmetric Hessians half is read."""

    hessians: FloatArray
    offsets: FloatArray
    noise: Noise
    symmetric: bool


class Diagonal(NamedTuple):
    """The same with Hessians ``(n, d)``."""

    hessians: FloatArray
    offsets: FloatArray
    noise: Noise


class Linear(NamedTuple):
    """A linear model with one score per sample, in double precision; see `perron.problems.LinearModel`.

    Attributes:
        rows, targets: the samples of all nodes, one node after the other, ``(N, d)`` and ``(N,)``.
        ends: where the samples of each node begin, and the end, ``(n + 1,)``.
        shares: weights of the means over the samples, ``(n,)``.
        squared: whether the loss is (z - t)^2 / 2, and not ln(1 + exp(-t z)).
        batch: samples of a minibatch; 0: all.
        l2, nonconvex: weights of the regularizers.
    """

    rows: NDArray[np.floating]
    targets: FloatArray
    ends: IntArray
    shares: FloatArray
    squared: bool
    batch: int
    l2: float
    nonconvex: float


class Minibatches(NamedTuple):
    """Logistic regression on minibatches, with y h of all samples ``(n, m, d)``."""

    rows: NDArray[np.float32]
    batch: int
    regularization: float


class Sums(NamedTuple):
    """Logistic regression on all samples, with y h in blocks ``(n, blocks, d, block)``."""

    blocks: NDArray[np.float32]
    samples: int
    regularization: float

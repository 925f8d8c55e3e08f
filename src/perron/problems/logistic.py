"""Logistic regression with a nonconvex regulariser: the paper's synthetic experiment, or your own data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property, lru_cache
from importlib.util import find_spec
from typing import Any, Literal, Self, get_args

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from perron._typing import FloatArray
from perron.errors import PerronError
from perron.problems._samples import as_numbers
from perron.problems.base import Problem
from perron.problems.compiled import Linear, Minibatches, Sums
from perron.random import Keyed

Start = Literal["equal", "authors", "text"]
CHUNK = 2**16  # samples that plain torch works on at a time
BLOCK = 512  # samples that the compiled sum works on at a time
LEAST = 64  # a multiple of which it works on where there are fewer
COMPILED_UP_TO = 64  # coordinates; beyond that a matrix product in torch is as fast


class Logistic(Problem):
    """f_i(x) = (1/m) sum_l ln(1 + exp(-y_l h_l^T x)) + rho sum_j x_j^2 / (1 + x_j^2), over the m samples of node i.

    Its gradient has in coordinate j:  -(1/m) sum_l y_l h_lj / (1 + exp(y_l h_l^T x)) + 2 rho x_j / (1 + x_j^2)^2.
    (The paper's formula for the gradient sums the second part over j, which cannot be: it is a vector.)

    Args:
        features: h, ``(N, d)``; the samples are dealt out in equal shares, in order, so N must be a multiple of ``nodes``.
        labels: y, ``(N,)``, each -1 or 1.
        nodes: n.
        batch: B, size of the minibatches, drawn uniformly without replacement for each node and step; None for exact gradients.
        regularization: rho.
        start: where the nodes start, ``(n, d)``; all at zero if None.
        compiled: whether to use the compiled sums (see `perron.problems._kernels`; samples are then kept in float32, as
            are sums over few of them); by default where numba is installed and d is small.

    Example:
        >>> import perron
        >>> problem = Logistic.synthetic(nodes=8, samples=8000, batch=50)
        >>> mixing = perron.Mixing.random_integer(perron.topologies.exponential(8), seed=0)
        >>> history = perron.simulate(problem, perron.PushPull(), mixing, lr=0.5, steps=200, trials=2)
        >>> bool(history.mean("grad_norm_sq")[-1] < 1e-2 * history.mean("grad_norm_sq")[0])
        True
    """

    per_node = ("rows", "_start", "_blocks")
    fixed_dtype = ("rows", "_start")

    def __init__(
        self,
        features: Tensor,
        labels: Tensor,
        *,
        nodes: int,
        batch: int | None = None,
        regularization: float = 0.01,
        start: Tensor | None = None,
        compiled: bool | None = None,
    ) -> None:
        features, labels = as_numbers("Logistic's features", features), as_numbers("Logistic's labels", labels)
        _check(features, labels, nodes, batch, regularization)
        self.nodes, self.dim = nodes, features.shape[1]
        self.samples = features.shape[0] // nodes  # m
        self.batch, self.regularization = batch, regularization
        can = find_spec("numba") is not None
        if compiled and not can:
            raise PerronError("compiled=True needs numba, which is not installed: pip install 'perron[fast]'.")
        self.compiled = (can and self.dim <= COMPILED_UP_TO) if compiled is None else compiled
        # y h: all that the loss needs of a sample
        signed = (features * labels.to(features.dtype)[:, None]).to(torch.float32 if self.compiled else features.dtype)
        self.rows = signed.contiguous().view(nodes, self.samples, self.dim)
        self._start = start
        gram = self.rows.mT @ self.rows / self.samples
        self.smoothness = float(torch.linalg.eigvalsh(gram.double()).max()) / 4 + 2 * regularization

    @classmethod
    def synthetic(
        cls,
        nodes: int,
        *,
        samples: int = 1_440_000,
        dim: int = 10,
        batch: int | None = 200,
        regularization: float = 0.01,
        seed: int = 42,
        start: Start = "equal",
        compiled: bool | None = None,
    ) -> Self:
        """The paper's data, number for number as the authors draw them (then rounded to float32).

        x_opt and the features are N(0, 1), and y = 1 with probability 1 / (1 + exp(-h^T x_opt)).

        Args:
            samples: N, over all nodes. The paper's text says 204,800, which its node counts do not divide; its code 1,440,000.
            start: ``"equal"``, all nodes at zero, as the algorithms assume; ``"authors"``, each at its own 0.01 N(0, I), as in
                their code; ``"text"``, each at x_opt + 10 N(0, I), as in the paper. The same in all trials.
        """
        if start not in get_args(Start):
            raise PerronError(f"start is one of {', '.join(get_args(Start))}; got {start!r}.")
        if min(samples, dim) < 1:
            raise PerronError(f"Logistic.synthetic needs samples >= 1 and dim >= 1; got {samples} and {dim}.")
        target, features, labels = _synthetic(samples, dim, seed)
        # The authors seed NumPy's global generator again before they draw the starting points.
        apart = np.random.RandomState(seed).standard_normal((nodes, dim))
        first = {"equal": 0 * apart, "authors": 0.01 * apart, "text": target + 10 * apart}[start]
        return cls(
            features,
            labels,
            nodes=nodes,
            batch=batch,
            regularization=regularization,
            start=torch.from_numpy(first),
            compiled=compiled,
        )

    def start(self) -> Tensor:
        return super().start() if self._start is None else self._start

    def to(self, *, dtype: torch.dtype, device: torch.device | str) -> Self:
        other = super().to(dtype=dtype, device=device)
        other.compiled = other.compiled and other.rows.device.type == "cpu"
        return other

    def grad(self, x: Tensor, draw: int, random: Keyed) -> Tensor:
        if self.batch is None or self.batch == self.samples:
            return self.local_grads(x)
        if self.compiled:
            from perron.problems._kernels import minibatch_grads

            points = _stacked(x)
            out = np.empty(points.shape)
            minibatch_grads(self.rows.numpy(), points, random.keys.reshape(points.shape[:2]), draw, self.batch, out)
            return self._regularized(torch.from_numpy(out), x)
        picks = random.distinct(draw, self.batch, self.samples)  # (trials, n, batch)
        node = torch.arange(self.nodes, device=x.device)[:, None]
        return self._regularized(_mean_grad(self.rows[node, picks].to(x.dtype), x), x)

    def compiled_gradient(self, trials: int) -> Any:
        if self._changes(Logistic):
            return None
        if not self.compiled:
            ends, every = np.arange(self.nodes + 1) * self.samples, self.batch in (None, self.samples)
            samples = (self.rows.flatten(0, 1).numpy(), np.ones(ends[-1]), ends, np.ones(self.nodes))
            return Linear(*samples, False, 0 if every else self.batch, 0.0, self.regularization)  # type: ignore[arg-type]
        if self.batch is None or self.batch == self.samples:
            return Sums(self._blocks.astype(np.float32, copy=False), self.samples, self.regularization)
        return Minibatches(self.rows.numpy(), self.batch, self.regularization)

    @property
    def sample_counts(self) -> Tensor:  # type: ignore[override]
        return torch.full((self.nodes,), self.samples)

    def sample_grads(self, x: Tensor, samples: Tensor) -> Tensor:
        rows = self.rows[torch.arange(self.nodes, device=x.device)[:, None], samples].to(x.dtype)
        weight = torch.sigmoid(-(rows @ x.unsqueeze(-1)))  # (..., n, b, 1)
        return self._regularized(torch.zeros_like(x), x).unsqueeze(-2) - rows * weight

    def local_grads(self, x: Tensor) -> Tensor:
        if self.compiled:
            from perron.problems._kernels import local_grads

            points = _stacked(x)
            out = np.empty(points.shape)
            local_grads(self._blocks, points, self.samples, out)
            return self._regularized(torch.from_numpy(out), x)
        columns = x.reshape(-1, self.nodes, self.dim).permute(1, 2, 0)  # (n, d, points)
        total = torch.zeros_like(columns)
        for rows in self._shares(x.dtype):
            total -= rows.mT @ torch.sigmoid(-(rows @ columns))
        return self._regularized(total.permute(2, 0, 1) / self.samples, x)

    def loss(self, x: Tensor) -> Tensor:
        total = torch.zeros(x.shape[:-1], dtype=x.dtype, device=x.device)
        for rows in self._chunks(x.dtype):
            total += softplus(-(x @ rows.mT)).sum(-1)
        square = x * x
        return total / (self.nodes * self.samples) + self.regularization * (square / (1 + square)).sum(-1)

    def hessian(self, x: Tensor) -> Tensor:
        total = torch.zeros(self.dim, self.dim, dtype=x.dtype, device=x.device)
        for rows in self._chunks(x.dtype):
            weight = torch.sigmoid(rows @ x)
            total += (rows * (weight * (1 - weight))[:, None]).mT @ rows
        return total / (self.nodes * self.samples) + self._bent(x).diag()

    def local_hessians(self, x: Tensor) -> Tensor:
        total = torch.zeros(self.nodes, self.dim, self.dim, dtype=x.dtype, device=x.device)
        for rows in self._shares(x.dtype):
            weight = torch.sigmoid(rows @ x)
            total += (rows * (weight * (1 - weight)).unsqueeze(-1)).mT @ rows
        return total / self.samples + self._bent(x).diag()

    def hessian_products(self, x: Tensor) -> Callable[[Tensor], Tensor]:
        """Exact, whether the sums are compiled or not."""

        def product(v: Tensor) -> Tensor:
            total = torch.zeros_like(v)
            for rows in self._shares(x.dtype):
                weight = torch.sigmoid(rows @ x)
                along = (rows @ v.unsqueeze(-1)).squeeze(-1)
                total += (rows.mT @ (weight * (1 - weight) * along).unsqueeze(-1)).squeeze(-1)
            return total / self.samples + self._bent(x) * v

        return product

    def noise_covariances(self, x: Tensor) -> Tensor:
        """Of each node's minibatch gradient at one point, ``(n, d, d)``.

        B of m samples without replacement: S / B (m - B) / (m - 1), S the covariance of the gradients of single samples.
        """
        second = torch.zeros(self.nodes, self.dim, self.dim, dtype=x.dtype, device=x.device)
        if self.batch is None or self.samples == 1:
            return second
        first = torch.zeros(self.nodes, self.dim, dtype=x.dtype, device=x.device)
        for rows in self._shares(x.dtype):
            single = rows * torch.sigmoid(-(rows @ x)).unsqueeze(-1)
            second += single.mT @ single
            first += single.sum(1)
        mean = first / self.samples
        spread = second / self.samples - mean.unsqueeze(-1) * mean.unsqueeze(-2)
        return spread / self.batch * (self.samples - self.batch) / (self.samples - 1)

    @cached_property
    def optimum(self) -> Tensor:  # type: ignore[override]
        """The stationary point that Newton's method reaches from zero; of a nonconvex f, not necessarily its minimum."""
        x = torch.zeros(self.dim, dtype=torch.float64, device=self.rows.device)
        loss = self.loss(x)
        for _ in range(50):
            grad = self._exact_grad(x)
            values, turn = torch.linalg.eigh(self.hessian(x))
            move = turn @ ((turn.mT @ grad) / values.abs().clamp(min=1e-9 * float(values.abs().max())))
            while (after := self.loss(x - move)) > loss + 1e-12 and float(move.norm()) > 1e-12:
                move = move / 2
            x, loss = x - move, after
            if float(move.norm()) < 1e-10 * (1 + float(x.norm())):
                return x
        raise PerronError(
            f"Newton's method did not settle: |grad f| = {float(self._exact_grad(x).norm()):.1e} after 50 steps."
        )

    def _exact_grad(self, x: Tensor) -> Tensor:
        """grad f at one point, in the point's precision."""
        total = torch.zeros_like(x)
        for rows in self._chunks(x.dtype):
            total -= torch.sigmoid(-(rows @ x)) @ rows
        return self._regularized(total / (self.nodes * self.samples), x)

    def _regularized(self, grad: Tensor, x: Tensor) -> Tensor:
        square = x * x
        return grad.to(x).reshape(x.shape) + 2 * self.regularization * x / (1 + square) ** 2

    def _bent(self, x: Tensor) -> Tensor:
        """The second derivative of the regulariser, coordinate by coordinate."""
        square = x * x
        return 2 * self.regularization * (1 - 3 * square) / (1 + square) ** 3

    def _shares(self, dtype: torch.dtype) -> Iterator[Tensor]:
        """Some samples of every node at a time, ``(n, samples, d)``."""
        parts = self.rows.split(max(1, CHUNK // self.nodes), dim=1)  # type: ignore[no-untyped-call]
        return (rows.to(dtype) for rows in parts)

    def _chunks(self, dtype: torch.dtype) -> Iterator[Tensor]:
        return (rows.to(dtype) for rows in self.rows.view(-1, self.dim).split(CHUNK))  # type: ignore[no-untyped-call]

    @cached_property
    def _blocks(self) -> FloatArray:
        """The rows for the compiled sum over all of them: ``(n, blocks, d, BLOCK)``, filled up with zeros, which add nothing."""
        block = min(BLOCK, -(-self.samples // LEAST) * LEAST)
        count = -(-self.samples // block)
        padded = torch.zeros(self.nodes, count * block, self.dim)
        padded[:, : self.samples] = self.rows
        return padded.view(self.nodes, count, block, self.dim).transpose(2, 3).contiguous().numpy()


def _mean_grad(rows: Tensor, x: Tensor) -> Tensor:
    """-(1/b) sum_k rows_k / (1 + exp(rows_k^T x)): ``(..., n, b, d), (..., n, d) -> (..., n, d)``."""
    weight = torch.sigmoid(-(rows @ x.unsqueeze(-1)))  # (..., n, b, 1)
    return -(rows.mT @ weight).squeeze(-1) / rows.shape[-2]


def _stacked(x: Tensor) -> FloatArray:
    """Points as the kernels take them: ``(points, n, d)`` in float32."""
    return x.reshape(-1, *x.shape[-2:]).to(torch.float32).numpy()


def _check(features: Tensor, labels: Tensor, nodes: int, batch: int | None, regularization: float) -> None:
    if features.ndim != 2 or labels.shape != features.shape[:1] or not features.is_floating_point():
        raise PerronError(
            f"Logistic needs features (N, d) and labels (N,); got {tuple(features.shape)} of {features.dtype} and "
            f"{tuple(labels.shape)}."
        )
    if not torch.isfinite(features).all() or not (labels.abs() == 1).all():
        raise PerronError(
            "Logistic needs finite features and labels that are -1 or 1; for labels 0 and 1 pass 2 * labels - 1."
        )
    count = features.shape[0]
    if not 1 <= nodes <= count:
        raise PerronError(f"Logistic needs 1 <= nodes <= samples; got nodes={nodes} and {count} samples.")
    if count % nodes:
        raise PerronError(
            f"{count} samples cannot be dealt out equally to {nodes} nodes; leave out {count % nodes} of them."
        )
    if batch is not None and not 1 <= batch <= count // nodes:
        raise PerronError(f"A minibatch has 1 to {count // nodes} samples, as many as a node has; got batch={batch}.")
    if not regularization >= 0:
        raise PerronError(f"Logistic needs regularization >= 0; got {regularization}.")


@lru_cache(maxsize=2)
def _synthetic(samples: int, dim: int, seed: int) -> tuple[FloatArray, Tensor, Tensor]:
    """x_opt, features and labels, from the draws that the authors make from NumPy's legacy generator."""
    stream = np.random.RandomState(seed)
    target = stream.normal(size=(1, dim))
    features = stream.normal(size=(samples, dim))
    uniform = stream.uniform(size=(samples, 1))
    labels = np.where(1 / uniform > 1 + np.exp(-features @ target.T), 1.0, -1.0)
    return target[0], torch.from_numpy(features).float(), torch.from_numpy(labels[:, 0])

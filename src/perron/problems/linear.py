"""Linear models on data: logistic, ridge, lasso and softmax regression over samples that are spread over the nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor

from perron._registry import lookup
from perron.errors import PerronError, listed
from perron.problems._from_data import COLUMN, deal, load, prepare
from perron.problems._losses import LOSSES, encode
from perron.problems._optimum import kept_optimum
from perron.problems._samples import as_numbers
from perron.problems.base import Problem
from perron.problems.compiled import Linear
from perron.random import Keyed

Name = Literal["logistic", "squared", "softmax"]  # of a loss
# The losses of `from_data`.
KINDS: dict[str, Name] = {"logistic": "logistic", "ridge": "squared", "lasso": "squared", "softmax": "softmax"}


class LinearModel(Problem):
    """f(x) = (1/N) sum_l phi(h_l^T x, t_l) + r(x), over all N samples, each of which belongs to one node.

    Node i with m_i samples has

        f_i(x) = (n m_i / N) (1/m_i) sum_l phi(h_l^T x, t_l) + r(x)    over its own samples l,

    so that f is the mean of the f_i: however unequal the shares are, all samples weigh the same. The regularizer is

        r(x) = l2 |x|^2 / 2 + l1 |x|_1 + nonconvex sum_j x_j^2 / (1 + x_j^2).

    phi is ln(1 + exp(-t z)) (``logistic``, t = -1 or 1), (z - t)^2 / 2 (``squared``), or ln(sum_c exp(z_c)) - z_t (``softmax``;
    x is then a matrix ``(d, classes)``, flattened). Gradients leave out l1 |x|_1, which is for proximal moves
    (`perron.algorithms.Proximal`); `full_grad` is the shortest subgradient of f, which is zero at the optimum only.

    Args:
        features: h, ``(N, d)``.
        targets: t, ``(N,)``: numbers for ``squared``, otherwise classes, as numbers or text. Of two classes, the one that
            sorts last is +1.
        parts: for each node, the numbers of its samples, see `perron.data.partition`; every sample belongs to one node.
        loss: ``"logistic"``, ``"squared"`` or ``"softmax"``.
        batch: samples of each node for a stochastic gradient, drawn uniformly without replacement for each step; None for all
            (exact gradients).
        l2, l1, nonconvex: weights of the regularizers.
        test: features and targets of a test set.

    Attributes:
        classes: the classes in order; empty for ``squared``.

    Example:
        >>> import perron
        >>> problem = LinearModel.from_data(7, kind="softmax", data="digits", l2=0.01)
        >>> problem.sample_counts.tolist()
        [215, 215, 214, 214, 214, 214, 214]
        >>> mixing = perron.Mixing.uniform(perron.topologies.exponential(7))
        >>> history = perron.simulate(problem, perron.PushPull(), mixing, lr=0.2, steps=100, metrics=["test_accuracy"])
        >>> bool(history["test_accuracy"][-1] > 0.85)
        True
    """

    sample_counts: Tensor
    per_node = ("sample_counts", "shares")
    shared = ("rows", "targets", "classes", "test", "order")

    def __init__(
        self,
        features: Any,
        targets: Any,
        parts: Sequence[Any],
        *,
        loss: Name = "logistic",
        batch: int | None = None,
        l2: float = 0.0,
        l1: float = 0.0,
        nonconvex: float = 0.0,
        test: tuple[Any, Any] | None = None,
    ) -> None:
        self.kind: str = loss
        self._loss = lookup(loss, LOSSES, "loss")
        rows = as_numbers("LinearModel's features", features).double()
        self.targets, self.classes = encode(loss, targets, None)
        if rows.ndim != 2 or len(rows) != len(self.targets):
            raise PerronError(
                f"LinearModel needs features (N, d) and targets (N,); got {tuple(rows.shape)} and {len(self.targets)} targets."
            )
        for name, weight in (("l2", l2), ("l1", l1), ("nonconvex", nonconvex)):
            if not 0 <= weight < float("inf"):
                raise PerronError(f"{name} is the weight of a regularizer, 0 or more; got {weight}.")
        self.order, self.sample_counts = _joined(parts, len(rows))
        self.rows, self.targets = rows[self.order], self.targets[self.order]
        self.nodes, self.width, self.outputs = len(parts), rows.shape[1], self.targets.shape[1]
        self.dim = self.width * self.outputs
        self.shares = self.nodes / len(rows) * self.sample_counts.double()  # n m_i / N
        self.l2, self.proximal_l1, self.nonconvex = float(l2), float(l1), float(nonconvex)
        least = int(self.sample_counts.min())
        if batch is not None and not 1 <= batch <= least:
            raise PerronError(
                f"A minibatch has 1 to {least} samples, as many as the node with the fewest; got batch={batch}. "
                "Choose a smaller batch, fewer nodes, or a partition with more equal shares."
            )
        self.batch = batch
        self.test: tuple[Tensor, Tensor] | None = None
        if test is not None:
            rows = as_numbers("LinearModel's test features", test[0]).double()
            if rows.ndim != 2 or rows.shape[1] != self.width or len(rows) != len(test[1]):
                raise PerronError(
                    f"The test set needs features (M, {self.width}) and M targets; got {tuple(rows.shape)} and {len(test[1])}."
                )
            self.test = (rows, encode(loss, test[1], self.classes)[0])
        self._whole: Self | None = None

    @classmethod
    def from_data(
        cls,
        nodes: int,
        *,
        kind: str = "logistic",
        data: str,
        target: str | int | None = None,
        test: str | None = None,
        drop: str | None = None,
        samples: int | None = None,
        dim: int | None = None,
        scale: Literal["none", "standard", "rows"] = "none",
        intercept: bool = False,
        partition: str = "iid",
        concentration: float = 0.9,
        shards: int = 2,
        batch: int | None = None,
        l2: float = 0.0,
        l1: float = 0.0,
        nonconvex: float = 0.0,
        seed: int = 0,
    ) -> Self:
        """A linear model on a dataset, a file, or random samples.

        Args:
            nodes: n.
            kind: ``"logistic"`` for two classes, ``"softmax"`` for more, ``"ridge"`` for numbers, ``"lasso"`` for numbers with an
                l1 regularizer.
            data: a name from `perron.data.tables.NAMES`, as ``"a9a"``; a file, see `perron.data.read_table`; or ``"synthetic"``:
                h ~ N(0, I), and targets from a linear model with random weights.
            target: the column of a file with the targets.
            test: a file with test samples; datasets with a name have their own.
            drop: columns of a file that are not used, separated by commas, such as ids.
            samples: use the first ones only; of synthetic data, their number (10,000 by default).
            dim: d of synthetic data (20 by default).
            scale: ``"standard"``: each feature gets mean 0 and standard deviation 1 (on the training samples); ``"rows"``: each
                sample gets norm 1.
            intercept: whether to add a feature that is always 1 (its coefficient is regularized like the others).
            partition, concentration, shards: which node has which samples: a name from `perron.data.partition.PARTITIONS`, or
                ``"column:NAME"`` for a column of the file that names the node. Numbers are split by their decile where a
                rule needs classes.
            batch, l2, l1, nonconvex: as for `LinearModel`.
            seed: of the partition and of synthetic data.
        """
        loss = lookup(kind, KINDS, "kind of linear model")
        if kind == "ridge" and l1:
            raise PerronError('ridge has no l1 regularizer; choose kind = "lasso", which also takes l2.')
        if kind == "lasso" and not l1:
            raise PerronError('lasso needs l1 > 0; without it, it is kind = "ridge".')
        column = partition.removeprefix(COLUMN) if partition.startswith(COLUMN) else None
        table, tested = load(data, loss, target, test, drop, column, samples, dim, seed)
        parts = deal(table, loss, nodes, partition, concentration=concentration, shards=shards, seed=seed)
        rows, test_rows = prepare(table.features, None if tested is None else tested.features, scale, intercept)
        return cls(
            rows, table.targets, parts, loss=loss, batch=batch, l2=l2, l1=l1, nonconvex=nonconvex,
            test=None if tested is None else (test_rows, tested.targets),
        )  # fmt: skip

    # ---- gradients

    def local_grads(self, x: Tensor) -> Tensor:
        return self._summed(x, lambda scores, targets, _: self._loss.slope(scores, targets)) + self._slope(x)

    def grad(self, x: Tensor, draw: int, random: Keyed) -> Tensor:
        if self.batch is None or int(self.sample_counts.max()) == self.batch:
            return self.local_grads(x)
        picks = random.distinct(draw, self.batch, self.sample_counts[:, None])  # (trials, n, batch)
        rows, slopes = self._at_samples(x, picks)
        mean = (rows.mT @ slopes / self.batch).flatten(-2)
        return self.shares.to(x)[:, None] * mean + self._slope(x)

    def compiled_gradient(self, trials: int) -> Any:
        if self._changes(LinearModel) or self.outputs > 1 or self.rows.dtype != torch.float64:
            return None
        counts = self.sample_counts.numpy()
        batch = 0 if self.batch is None or counts.max() == self.batch else self.batch
        samples = (self.rows.numpy(), self.targets[:, 0].contiguous().numpy(), np.append(0, counts.cumsum()))
        return Linear(*samples, self.shares.numpy(), self.kind == "squared", batch, self.l2, self.nonconvex)

    def sample_grads(self, x: Tensor, samples: Tensor) -> Tensor:
        if bool((samples < 0).any()) or bool((samples >= self.sample_counts[:, None]).any()):
            raise PerronError(f"Nodes have samples 0 .. m_i - 1, with m_i = {listed(self.sample_counts.tolist())}.")
        rows, slopes = self._at_samples(x, samples)
        each = (rows.unsqueeze(-1) * slopes.unsqueeze(-2)).flatten(-2)
        return self.shares.to(x)[:, None, None] * each + self._slope(x).unsqueeze(-2)

    def full_grad(self, x: Tensor) -> Tensor:
        grad = super().full_grad(x)
        if not self.proximal_l1:
            return grad
        at_zero = grad.sign() * (grad.abs() - self.proximal_l1).clamp_min(0)
        return torch.where(x == 0, at_zero, grad + self.proximal_l1 * x.sign())

    def loss(self, x: Tensor) -> Tensor:
        points = x.reshape(-1, self.width, self.outputs)
        columns = points.permute(1, 0, 2).flatten(1)  # (d, points k)
        total = torch.zeros(len(points), dtype=x.dtype, device=x.device)
        for nodes, rows, targets in self._blocks():
            scores = (rows @ columns).view(*rows.shape[:2], len(points), self.outputs)
            each = self._loss.value(scores, targets.unsqueeze(-2)).mean(1)  # (nodes, points)
            total += self.shares[nodes].to(x) @ each
        return total.view(x.shape[:-1]) / self.nodes + self._regularizer(x)

    def scores(self, x: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
        """Mean of phi over the test set, without regularizer, and the share of right classes (nan for ``squared``)."""
        if self.test is None:
            return super().scores(x, share)
        rows, targets = self.test
        scores = (rows.to(x) @ x.reshape(-1, self.width, self.outputs)).view(*x.shape[:-1], len(rows), self.outputs)
        losses = self._loss.value(scores, targets.to(x)).mean(-1)
        if self.kind == "squared":
            return losses, torch.full_like(losses, torch.nan)
        right = (
            (scores * targets > 0).squeeze(-1) if self.kind == "logistic" else scores.argmax(-1) == targets.argmax(-1)
        )
        return losses, right.double().mean(-1)

    # ---- curvature

    def hessian(self, x: Tensor) -> Tensor:
        """That of f, without l1."""
        return self.local_hessians(x).mean(0)

    def local_hessians(self, x: Tensor) -> Tensor:
        found = x.new_zeros(self.nodes, self.width, self.outputs, self.width, self.outputs)
        units = torch.eye(self.outputs, dtype=x.dtype, device=x.device)
        for nodes, rows, _ in self._blocks():
            scores = rows @ x.view(self.width, self.outputs)
            factor = (self.shares[nodes].to(x) / rows.shape[1])[:, None, None]
            for b, unit in enumerate(units):
                bent = factor * self._loss.bend(scores, unit)  # (nodes, m, k)
                for a in range(self.outputs):
                    found[nodes, :, a, :, b] = rows.mT @ (rows * bent[..., a : a + 1])
        return found.view(self.nodes, self.dim, self.dim) + self._bent(x).diag()

    def hessian_products(self, x: Tensor) -> Callable[[Tensor], Tensor]:
        matrix, bent = x.view(self.width, self.outputs), self._bent(x)

        def bend(along: Tensor, _: Tensor, rows: Tensor) -> Tensor:
            return self._loss.bend((rows @ matrix).unsqueeze(-2), along)

        return lambda v: self._summed(v, bend) + bent * v

    def noise_covariances(self, x: Tensor) -> Tensor:
        """Of each node's minibatch gradient at one point, ``(n, d, d)``.

        B of m_i samples without replacement: (n m_i / N)^2 S / B (m_i - B) / (m_i - 1), with the covariance S of single samples.
        """
        found = torch.zeros(self.nodes, self.dim, self.dim, dtype=x.dtype, device=x.device)
        if self.batch is None:
            return found
        for nodes, rows, targets in self._blocks():
            slopes = self._loss.slope(rows @ x.view(self.width, self.outputs), targets)
            single = (rows.unsqueeze(-1) * slopes.unsqueeze(-2)).flatten(-2)  # (nodes, m, d)
            single = single - single.mean(1, keepdim=True)
            many = single.shape[1]
            factor = (many - self.batch) / max(1, many - 1) / self.batch
            found[nodes] = self.shares[nodes].to(x).square()[:, None, None] * factor * (single.mT @ single) / many
        return found

    @cached_property
    def smoothness(self) -> float:  # type: ignore[override]
        """L of the differentiable part: max_i of the bound (n m_i / N) c |(1/m_i) sum_l h_l h_l^T| + l2 + 2 nonconvex, where
        phi has second derivatives of at most c (1/4 for ``logistic``, 1, and 1/2 for ``softmax``)."""
        if self._whole is not None:
            return self._whole.smoothness
        largest = 0.0
        for nodes, rows, _ in self._blocks():
            wide = rows.shape[1] < rows.shape[2]
            gram = (rows @ rows.mT if wide else rows.mT @ rows).double() / rows.shape[1]
            largest = max(largest, float((self.shares[nodes] * torch.linalg.eigvalsh(gram)[..., -1]).max()))
        return self._loss.curvature * largest + self.l2 + 2 * self.nonconvex

    @cached_property
    def strong_convexity(self) -> float | None:  # type: ignore[override]
        """mu of f: l2 - nonconvex / 2, plus the smallest eigenvalue of (1/N) sum_l h_l h_l^T for ``squared``; None unless
        positive."""
        if self._whole is not None:
            return self._whole.strong_convexity
        mu = self.l2 - self.nonconvex / 2
        if self.kind == "squared":
            eigenvalues = torch.linalg.eigvalsh((self.rows.mT @ self.rows).double() / len(self.rows))
            rounding = len(eigenvalues) * torch.finfo(torch.float64).eps * float(eigenvalues[-1])
            mu += float(eigenvalues[0]) if float(eigenvalues[0]) > rounding else 0.0
        return mu if mu > 0 else None

    @cached_property
    def optimum(self) -> Tensor:  # type: ignore[override]
        """The minimizer of f that Newton's method finds from zero, in double precision; with ``nonconvex``, a stationary point.

        If f has several, it is the one in the span of the samples, where methods that start at zero stay. It is found once for
        given samples and weights, whatever the nodes, and kept in the cache.
        """
        return self._whole.optimum if self._whole is not None else kept_optimum(self._pooled())

    def _pooled(self) -> Self:
        """The same f with one node, which has all samples in the order in which they were given."""
        back = torch.argsort(self.order)
        one = super().of_node(0)
        one.rows, one.targets, one.batch = self.rows[back], self.targets[back], None
        one.sample_counts, one.shares = torch.tensor([len(back)]), torch.ones(1, dtype=torch.float64)
        return one

    # ---- regularizer

    def _regularizer(self, x: Tensor) -> Tensor:
        square = x * x
        value = self.l2 / 2 * square.sum(-1) + self.nonconvex * (square / (1 + square)).sum(-1)
        return value + self.proximal_l1 * x.abs().sum(-1)

    def _slope(self, x: Tensor) -> Tensor:
        slope = self.l2 * x
        if self.nonconvex:
            slope = slope + 2 * self.nonconvex * x / (1 + x * x) ** 2
        return slope

    def _bent(self, x: Tensor) -> Tensor:
        """The second derivative of l2 and nonconvex, coordinate by coordinate."""
        square = x * x
        return self.l2 + 2 * self.nonconvex * (1 - 3 * square) / (1 + square) ** 3

    # ---- samples

    def of_node(self, number: int) -> Self:
        other = super().of_node(number)
        mine = slice(int(first := self.sample_counts[:number].sum()), int(first + self.sample_counts[number]))
        other.rows, other.targets, other._whole = self.rows[mine], self.targets[mine], self._whole or self
        return other

    def to(self, *, dtype: torch.dtype, device: torch.device | str) -> Self:
        other = super().to(dtype=dtype, device=device)
        if other is not self:
            other._whole = self._whole or self  # whose samples are not rounded
        return other

    def _blocks(self) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Consecutive nodes with equally many samples: which ones, features ``(nodes, m, d)``, and targets ``(nodes, m, k)``."""
        counts, node, first = self.sample_counts.tolist(), 0, 0
        while node < len(counts):
            end = next((other for other in range(node, len(counts)) if counts[other] != counts[node]), len(counts))
            last = first + (end - node) * counts[node]
            shape = (end - node, counts[node], -1)
            yield slice(node, end), self.rows[first:last].view(shape), self.targets[first:last].view(shape)
            node, first = end, last

    def _summed(self, x: Tensor, per_sample: Callable[..., Tensor]) -> Tensor:
        """(n m_i / N) (1/m_i) sum_l h_l s_l^T, s_l = per_sample(h_l^T x_i, t_l, h_l): ``(..., n, d) -> (..., n, d)``."""
        points = x.reshape(-1, self.nodes, self.width, self.outputs)
        columns = points.permute(1, 2, 0, 3).flatten(2)  # (n, d, points k)
        found = []
        for nodes, rows, targets in self._blocks():
            scores = (rows @ columns[nodes]).view(*rows.shape[:2], len(points), self.outputs)  # (nodes, m, points, k)
            slopes = per_sample(scores, targets.unsqueeze(-2), rows).flatten(2)
            factor = self.shares[nodes].to(x) / rows.shape[1]
            found.append(factor[:, None, None] * (rows.mT @ slopes))
        total = torch.cat(found).view(self.nodes, self.width, len(points), self.outputs)
        return total.permute(2, 0, 1, 3).reshape(x.shape)

    def _at_samples(self, x: Tensor, samples: Tensor) -> tuple[Tensor, Tensor]:
        """Features ``(..., n, b, d)`` of some samples of each node, and the slopes of the loss at them, ``(..., n, b, k)``."""
        where = samples + (self.sample_counts.cumsum(0) - self.sample_counts)[:, None]
        rows = self.rows[where]
        scores = rows @ x.reshape(*x.shape[:-1], self.width, self.outputs)
        return rows, self._loss.slope(scores, self.targets[where])


def _joined(parts: Sequence[Any], count: int) -> tuple[Tensor, Tensor]:
    """The samples of all nodes one after the other, and their numbers."""
    own = [torch.as_tensor(part, dtype=torch.int64).reshape(-1) for part in parts]
    if not own or any(not len(part) for part in own):
        raise PerronError(f"Every node needs a sample; got parts of {listed([len(part) for part in own])} samples.")
    order = torch.cat(own)
    if not torch.equal(order.sort().values, torch.arange(count)):
        raise PerronError(
            f"Parts name each of the {count:,} samples exactly once; got {len(order):,} numbers, {len(set(order.tolist())):,} of "
            f"them different, from {int(order.min())} to {int(order.max())}."
        )
    return order, torch.tensor([len(part) for part in own])

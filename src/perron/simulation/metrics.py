"""Metrics: functions of a `Snapshot` that return one number per trial.

The paper measures the gradient at three different points, each of which has its own name here. Squared quantities end in ``_sq``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from perron._registry import public_dir, unknown
from perron.errors import PerronError
from perron.simulation._blockwise import blocks
from perron.simulation.snapshot import Snapshot

Metric = Callable[[Snapshot], Tensor]
BLOCKS = "residual_block_sq_"  # and the length of the block


def grad_norm_sq(now: Snapshot) -> Tensor:
    """|grad f(x-hat)|^2, the paper's theorem: x-hat = pi_A^T x for Push-Pull."""
    return _sq(now.problem.full_grad(now.average))


def grad_norm_sq_mean(now: Snapshot) -> Tensor:
    """|grad f(x-bar)|^2 at the plain mean of the models, the authors' code."""
    return _sq(now.problem.full_grad(now.state.x.mean(-2)))


def grad_norm_sq_local(now: Snapshot) -> Tensor:
    """|mean_i grad f_i(x_i)|^2, the average of local gradients at local models, the paper's appendix."""
    return _sq(now.problem.local_grads(now.state.x).mean(-2))


def loss(now: Snapshot) -> Tensor:
    """f(x-hat)."""
    return now.problem.loss(now.average)


def loss_mean(now: Snapshot) -> Tensor:
    """f(x-bar), the loss of the averaged model."""
    return now.problem.loss(now.state.x.mean(-2))


def test_loss(now: Snapshot) -> Tensor:
    """The averaged model's loss on the test set."""
    return _tested_mean(now)[0]


def test_accuracy(now: Snapshot) -> Tensor:
    """The share of the test set that the averaged model gets right."""
    return _tested_mean(now)[1]


def test_loss_weighted(now: Snapshot) -> Tensor:
    """The loss on the test set of x-hat, which is pi_A^T x for Push-Pull."""
    return _tested_weighted(now)[0]


def test_accuracy_weighted(now: Snapshot) -> Tensor:
    """The share of the test set that x-hat gets right."""
    return _tested_weighted(now)[1]


def test_loss_local(now: Snapshot) -> Tensor:
    """The nodes' own models' loss on the test set, its mean over the nodes."""
    return _tested_nodes(now)[0].mean(-1)


def test_accuracy_local(now: Snapshot) -> Tensor:
    """The share of the test set that the nodes' own models get right, its mean over the nodes."""
    return _tested_nodes(now)[1].mean(-1)


def test_loss_worst(now: Snapshot) -> Tensor:
    """The loss on the test set of the node whose own model is worst."""
    return _tested_nodes(now)[0].amax(-1)


def test_accuracy_worst(now: Snapshot) -> Tensor:
    """The share of the test set that the node whose own model is worst gets right."""
    return _tested_nodes(now)[1].amin(-1)


def grad_norm_batch(now: Snapshot) -> Tensor:
    """|mean_i g_i| / sqrt(d) of the last minibatch gradients, the paper's measure for networks; nan at the start.

    Beware: most of it is the noise of the minibatches themselves, sigma / sqrt(n) (d apart): it falls with n whatever the
    algorithm does.
    """
    x = now.state.x
    if not now.step:
        return torch.full(x.shape[:-2], torch.nan)
    return (_sq(now.gradient.mean(-2)) / x.shape[-1]).sqrt()


class BatchLoss:
    """The mean loss of the nodes' minibatches, each at its node's own point, since it was recorded last; nan at the start.

    It costs nothing, but it is a mean over many steps, on augmented images and in training mode. See `loss_mean`.
    """

    every_step = True

    def __init__(self) -> None:
        self.__name__ = "batch_loss"
        self._sum, self._count = torch.empty(0), torch.zeros(())

    def observe(self, now: Snapshot) -> None:
        """Add the losses of a step."""
        if not now.step:
            return
        if now.problem.batch_losses is None:
            raise PerronError(
                f"{type(now.problem).__name__} does not tell the losses of its minibatches; measure loss."
            )
        mean = now.problem.batch_losses.mean(-1).double().cpu()
        self._sum = mean if not self._count else self._sum + mean
        self._count = self._count + 1

    def __call__(self, now: Snapshot) -> Tensor:
        """The mean since the last call."""
        mean = self._sum / self._count if self._count else torch.full(now.state.x.shape[:-2], torch.nan)
        self._sum, self._count = torch.empty(0), torch.zeros(())
        return mean


def distance_sq(now: Snapshot) -> Tensor:
    """|x-hat - x*|^2."""
    return _sq(now.average - _optimum(now))


def suboptimality(now: Snapshot) -> Tensor:
    """f(x-hat) - f(x*); at rounding level it may be negative."""
    return now.problem.loss(now.average) - now.problem.loss(_optimum(now))


def distance_sq_local(now: Snapshot) -> Tensor:
    """mean_i |x_i - x*|^2: what the nodes' own models are off by, which does not fall as 1/n."""
    return _sq(now.state.x - _optimum(now)).mean(-1)


def distance_max(now: Snapshot) -> Tensor:
    """max_i |x_i - x*|, the farthest node."""
    return _sq(now.state.x - _optimum(now)).amax(-1).sqrt()


def consensus_error_sq(now: Snapshot) -> Tensor:
    """mean_i |x_i - x-hat|^2."""
    x, center = now.state.x, now.average.unsqueeze(-2)
    # Block by block: a copy of a large model would cost memory.
    return torch.stack([_sq(x[..., block] - center[..., block]) for block in blocks(x)]).sum(0).mean(-1)


def tracking_error_sq(now: Snapshot) -> Tensor:
    """mean_i of the squared distance of tracker y_i from what it tracks: n pi_B[i] g-bar, or pi_A^T (grad / D)."""
    fields = now.state._fields
    if "y" not in fields or not {"grad", "scaled"} & set(fields):
        raise PerronError(
            f"{now.algorithm.about.title} has no gradient tracker; leave out the metric tracking_error_sq."
        )
    y = now.state.y
    if "scaled" in fields:
        weights = torch.as_tensor(now.network.pull_perron, dtype=y.dtype, device=y.device)
        return _sq(y - (weights @ now.state.scaled).unsqueeze(-2)).mean(-1)
    doubly = now.algorithm.about.matrices.startswith("W")
    share = (
        torch.full((now.network.nodes,), 1 / now.network.nodes) if doubly else torch.as_tensor(now.network.push_perron)
    )
    return _sq(y - share.to(y)[:, None] * now.state.grad.sum(-2, keepdim=True)).mean(-1)


def residual(now: Snapshot) -> Tensor:
    """eps in x-hat+ = x-hat - factor lr g-bar + eps, ``(trials, d)``: what sets a method apart from centralized SGD."""
    if now.previous is None and now.step:
        raise PerronError(
            "Residuals need the state before the step, which large models do not keep; use simulate(metrics=)."
        )
    if now.previous is None:
        return torch.zeros_like(now.average)
    before = now.algorithm.average(now.previous, now.network)
    factor = now.algorithm.effective_step(now.network)
    return now.average - before + factor * (now.lr * now.gradient).mean(-2)


def needs_previous(metric: Metric) -> bool:
    """Whether a metric needs the state before the step."""
    return metric is residual_sq or isinstance(metric, ResidualBlocks)


def residual_sq(now: Snapshot) -> Tensor:
    """|eps|^2 of the last step; zero at the start."""
    return _sq(residual(now))


class ResidualBlocks:
    """|sum of eps over a block of m steps|^2 / m, of the last complete block; nan before.

    For Push-Pull the single residuals do not vanish, but they cancel within a block: this falls as 1/m, which is how the
    paper proves linear speedup. It must see every step.
    """

    every_step = True

    def __init__(self, m: int) -> None:
        if m < 1:
            raise PerronError(f"A block has at least one step; got m={m}.")
        self.m = m
        self.__name__ = f"{BLOCKS}{m}"
        self._sum = self._last = torch.empty(0)

    def observe(self, now: Snapshot) -> None:
        """Add the residual of a step."""
        if not now.step:
            self._sum = torch.zeros_like(now.average)
            self._last = torch.full(self._sum.shape[:-1], torch.nan, dtype=self._sum.dtype)
            return
        self._sum = self._sum + residual(now)
        if now.step % self.m == 0:
            self._last, self._sum = _sq(self._sum) / self.m, torch.zeros_like(self._sum)

    def __call__(self, now: Snapshot) -> Tensor:
        """The value of the last complete block."""
        return self._last if now.step else torch.full_like(self._last, torch.nan)


def messages(now: Snapshot) -> Tensor:
    """Messages sent so far, over all edges; averages over all nodes count as ring all-reduces."""
    return torch.full((now.state.x.shape[0],), float(now.traffic.messages))


def bytes_sent(now: Snapshot) -> Tensor:
    """Bytes sent so far, over all edges; averages over all nodes count as ring all-reduces."""
    return torch.full((now.state.x.shape[0],), float(now.traffic.bytes))


def epochs(now: Snapshot) -> Tensor:
    """Passes over the data so far: the evaluated gradients of single samples of all nodes, divided by the number of samples."""
    counts = now.problem.sample_counts
    if counts is None:
        raise PerronError(f"{type(now.problem).__name__} is no sum over samples; leave out the metric epochs.")
    return torch.full((now.state.x.shape[0],), now.gradients * len(counts) / int(counts.sum()), dtype=torch.float64)


def seconds(now: Snapshot) -> Tensor:
    """Seconds on the run's clock (`perron.Clock`) when the last node had done the step."""
    return now.seconds


def seconds_spread(now: Snapshot) -> Tensor:
    """Seconds between the first and the last node that did the step, on the run's clock."""
    return now.seconds - now.first_seconds


METRICS: dict[str, Metric] = {
    metric.__name__: metric
    for metric in (
        grad_norm_sq, grad_norm_sq_mean, grad_norm_sq_local, loss, loss_mean, suboptimality, distance_sq, distance_sq_local,
        distance_max, consensus_error_sq, tracking_error_sq, residual_sq, messages, bytes_sent, test_loss, test_accuracy,
        test_loss_weighted, test_accuracy_weighted, test_loss_local, test_accuracy_local, test_loss_worst,
        test_accuracy_worst, grad_norm_batch, epochs, seconds, seconds_spread,
    )
}  # fmt: skip


def chosen(metrics: Sequence[str | Metric]) -> dict[str, Metric]:
    """Metrics by name or as functions, checked."""
    found: dict[str, Metric] = {}
    for metric in metrics:
        if isinstance(metric, str):
            found[metric] = _named(metric)
        else:
            found[getattr(metric, "__name__", repr(metric))] = metric
    return found


def larger_is_better(metric: str) -> bool:
    """Whether a metric grows as a model gets better: accuracies do, all others fall."""
    return "accuracy" in metric


def is_budget(metric: str) -> bool:
    """Whether a metric is what a run spends, so that a value of it in ``until`` is a limit."""
    return metric in ("seconds", "epochs", "messages", "bytes_sent")


def _named(name: str) -> Metric:
    block = name.removeprefix(BLOCKS)
    if block != name and block.isdecimal():
        return ResidualBlocks(int(block))
    if name == "batch_loss":
        return BatchLoss()
    if name not in METRICS:
        raise unknown(name, [*METRICS, "batch_loss", f"{BLOCKS}M"], "metric")  # M: the length of blocks, in steps
    return METRICS[name]


def _tested_mean(now: Snapshot) -> tuple[Tensor, Tensor]:
    n = now.network.nodes
    return now.once("test of the mean", lambda: now.problem.scores(now.state.x.mean(-2), torch.full((n,), 1 / n)))


def _tested_weighted(now: Snapshot) -> tuple[Tensor, Tensor]:
    n, pulls = now.network.nodes, now.algorithm.about.matrices in ("A B", "A", "R C")
    share = torch.as_tensor(now.network.pull_perron) if pulls else torch.full((n,), 1 / n)
    return now.once("test of x-hat", lambda: now.problem.scores(now.average, share))


def _tested_nodes(now: Snapshot) -> tuple[Tensor, Tensor]:
    """Of each node, ``(trials, n)``."""

    def each() -> tuple[Tensor, Tensor]:
        units = torch.eye(now.network.nodes)
        found = [now.problem.scores(x, unit) for x, unit in zip(now.state.x.unbind(-2), units, strict=True)]
        losses, shares = zip(*found, strict=True)
        return torch.stack(losses, -1), torch.stack(shares, -1)

    return now.once("test of the nodes", each)


def _sq(x: Tensor) -> Tensor:
    return (x * x).sum(-1)


def _optimum(now: Snapshot) -> Tensor:
    if now.problem.optimum is None:
        raise PerronError("The optimum of this problem is not known; measure grad_norm_sq or loss instead.")
    return now.problem.optimum.to(now.state.x)


__dir__ = public_dir(__name__)

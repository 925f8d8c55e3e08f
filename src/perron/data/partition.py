"""Partitions of samples among nodes: indices for each node, every sample exactly once, the same for the same seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from perron._registry import lookup, public_dir
from perron._typing import FloatArray, IntArray
from perron.errors import PerronError, listed

ITERATIONS = 1000  # of proportional fitting at most; it takes a few dozen
TOLERANCE = 0.25  # of the sums of rows, in samples


def iid(labels: Tensor, nodes: int, *, seed: int = 0) -> list[Tensor]:
    """Shuffle and split: every node has the same distribution of classes, up to chance."""
    order = np.random.default_rng(seed).permutation(_count(labels, nodes))
    return _tensors(np.array_split(order, nodes))


def dirichlet(labels: Tensor, nodes: int, *, concentration: float = 0.9, seed: int = 0) -> list[Tensor]:
    """Give each node k its own proportions of classes q^k ~ Dirichlet(concentration, ..., concentration), and N/n samples.

    The paper's rule, but no sample is lost: q^k N/n samples of each class would need more of some classes than there are
    and leave others unused (the authors' code drops 9 to 24 % of the data). Here the table of counts is the one closest
    to q, in relative entropy, whose rows sum to N/n and whose columns to the classes' sizes. Proportional fitting finds it:
    it keeps all odds ratios q[k,a] q[l,b] / (q[k,b] q[l,a]), which distinguish the nodes. Small concentrations give
    few classes to a node.
    """
    if not concentration > 0:
        raise PerronError(f"A Dirichlet distribution needs concentration > 0; got {concentration}.")
    total, random = _count(labels, nodes), np.random.default_rng(seed)
    _, which, sizes = np.unique(labels.numpy(), return_inverse=True, return_counts=True)
    shares = np.maximum(random.dirichlet(np.full(len(sizes), concentration), size=nodes), 1e-12)  # (n, classes)
    counts = _whole(fitted(shares, np.full(nodes, total / nodes), sizes.astype(float)), sizes)
    parts: list[list[NDArray[Any]]] = [[] for _ in range(nodes)]
    for label, column in enumerate(counts.T):
        members = random.permutation(np.flatnonzero(which == label))
        for part, piece in zip(parts, np.split(members, np.cumsum(column)[:-1]), strict=True):
            part.append(piece)
    return _tensors([random.permutation(np.concatenate(part)) for part in parts])


def by_label(labels: Tensor, nodes: int, *, seed: int = 0) -> list[Tensor]:
    """Sort by class and cut into n equal pieces, the most heterogeneous split. The seed orders the samples of a class."""
    return _tensors(np.array_split(_sorted(labels, nodes, seed), nodes))


def by_shard(labels: Tensor, nodes: int, *, shards: int = 2, seed: int = 0) -> list[Tensor]:
    """Sort by class, cut into n x shards pieces, and give each node some at random (McMahan et al. 2017)."""
    if shards < 1 or nodes * shards > len(labels):
        raise PerronError(f"{len(labels)} samples cannot be cut into {nodes} x {shards} pieces; choose fewer shards.")
    order = _sorted(labels, nodes, seed)
    pieces = np.array_split(order, nodes * shards)
    drawn = np.random.default_rng(seed + 1).permutation(nodes * shards).reshape(nodes, shards)
    return _tensors([np.concatenate([pieces[shard] for shard in own]) for own in drawn])


def in_order(labels: Tensor, nodes: int, *, seed: int = 0) -> list[Tensor]:  # noqa: ARG001
    """Sort by label, keep the order of the file within a label, and cut into n equal pieces: nothing is random."""
    _count(labels, nodes)
    return _tensors(np.array_split(np.argsort(labels.numpy(), kind="stable"), nodes))


def by_group(groups: NDArray[Any], nodes: int) -> list[Tensor]:
    """Give each node the samples of one group: ``groups`` names the group of each sample, and the groups are sorted by name."""
    names, which = np.unique(groups, return_inverse=True)
    if len(names) != nodes:
        raise PerronError(
            f"The samples belong to {len(names)} nodes ({listed(names)}), but the network has {nodes}; set nodes = {len(names)}."
        )
    return _tensors([np.flatnonzero(which == number) for number in range(nodes)])


PARTITIONS: dict[str, Callable[..., list[Tensor]]] = {
    "iid": iid,
    "dirichlet": dirichlet,
    "by_label": by_label,
    "by_shard": by_shard,
    "sorted": in_order,
}


def deal(
    labels: Tensor,
    nodes: int,
    *,
    partition: str = "dirichlet",
    concentration: float = 0.9,
    shards: int = 2,
    seed: int = 0,
) -> list[Tensor]:
    """Partition samples by the name of a rule; options of other rules are ignored."""
    rule = lookup(partition, PARTITIONS, "partition")
    own: dict[str, dict[str, Any]] = {"dirichlet": {"concentration": concentration}, "by_shard": {"shards": shards}}
    return rule(labels, nodes, seed=seed, **own.get(partition, {}))


def table(labels: Tensor, parts: list[Tensor], classes: int | None = None) -> IntArray:
    """Return the number of samples of each class at each node, ``(nodes, classes)``."""
    count = classes or int(labels.max()) + 1
    return np.stack([np.bincount(labels[part].numpy(), minlength=count) for part in parts])


def fitted(start: FloatArray, rows: FloatArray, columns: FloatArray) -> FloatArray:
    """Return the positive table closest to ``start``, in relative entropy, with given margins (Deming & Stephan 1940).

    >>> fitted(np.array([[1.0, 1.0], [1.0, 3.0]]), np.array([2.0, 2.0]), np.array([2.0, 2.0])).sum(0).round(6).tolist()
    [2.0, 2.0]
    """
    table = start.copy()
    for _ in range(ITERATIONS):
        table *= (rows / table.sum(1))[:, None]
        table *= columns / table.sum(0)
        if np.abs(table.sum(1) - rows).max() < TOLERANCE:
            break
    return table


def _whole(counts: FloatArray, sizes: IntArray) -> IntArray:
    """Round to integers with the same column sums, by largest remainders."""
    whole = np.floor(counts).astype(np.int64)
    for column, size in enumerate(sizes):
        left = int(size - whole[:, column].sum())
        whole[np.argsort(-(counts - whole)[:, column], kind="stable")[:left], column] += 1
    return whole


def _sorted(labels: Tensor, nodes: int, seed: int) -> NDArray[Any]:
    order = np.random.default_rng(seed).permutation(_count(labels, nodes))
    return order[np.argsort(labels.numpy()[order], kind="stable")]


def _count(labels: Tensor, nodes: int) -> int:
    if not 1 <= nodes <= len(labels):
        raise PerronError(f"{len(labels)} samples cannot be dealt out to {nodes} nodes; each needs at least one.")
    return len(labels)


def _tensors(parts: list[NDArray[Any]]) -> list[Tensor]:
    return [torch.from_numpy(np.ascontiguousarray(part)) for part in parts]


__dir__ = public_dir(__name__)

"""Samples for a linear model: from a dataset, a file or a random generator, scaled, and dealt out to the nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from perron._registry import lookup
from perron.data import partition as partitions
from perron.data.tables import Table, load_table, read_table
from perron.errors import PerronError

FILE = "file:"
COLUMN = "column:"  # of a partition: the column with the node of each sample
SYNTHETIC = "synthetic"
SCALES = {"none": None, "standard": None, "rows": None}


def load(
    data: str, loss: str, target: str | int | None, test: str | None, drop: str | None, column: str | None,
    samples: int | None, dim: int | None, seed: int,
) -> tuple[Table, Table | None]:  # fmt: skip
    """Return training and test samples; arguments as in `LinearModel.from_data`."""
    tested, unused = None, [name.strip() for name in (drop or "").split(",") if name.strip()]
    if data == SYNTHETIC:
        table = _synthetic(loss, samples or 10_000, dim or 20, seed)
    elif dim is not None:
        raise PerronError(f"dim is an option of data = {SYNTHETIC!r}; {data} has the features that it has.")
    elif is_file(data):
        table = read_table(data.removeprefix(FILE), target=target, nodes=column, drop=unused)
        if test is not None:
            tested = read_table(test.removeprefix(FILE), target=target, nodes=column, drop=unused)
    else:
        table, tested = load_table(data)
    if not is_file(data) and any(option is not None for option in (target, test, drop, column)):
        raise PerronError(f"target, test, drop and partition = 'column:...' are options of files; got data = {data!r}.")
    if samples is not None and not 1 <= samples <= len(table.targets):
        raise PerronError(f"{data} has {len(table.targets):,} training samples; got samples={samples}.")
    groups = None if table.nodes is None else table.nodes[:samples]
    return Table(table.features[:samples], table.targets[:samples], groups), tested


def is_file(data: str) -> bool:
    """Whether data are a file, and not a name."""
    return data.startswith(FILE) or bool(Path(data).suffix) or len(Path(data).parts) > 1


def deal(table: Table, loss: str, nodes: int, partition: str, **options: Any) -> list[Tensor]:
    """Return the samples of each node."""
    if table.nodes is not None:
        return partitions.by_group(table.nodes, nodes)
    if loss != "squared":
        labels = torch.from_numpy(np.unique(table.targets, return_inverse=True)[1])
    else:
        numbers = torch.from_numpy(np.asarray(table.targets, dtype=np.float64))
        deciles = numbers.argsort(stable=True).argsort() * 10 // len(numbers)
        labels = numbers if partition == "sorted" else deciles
    return partitions.deal(labels, nodes, partition=partition, **options)


def prepare(rows: Tensor, test: Tensor | None, scale: str, intercept: bool) -> tuple[Tensor, Tensor | None]:
    """Return the features of both sets, with equally many columns (LIBSVM files leave out zeros), scaled as the training set."""
    lookup(scale, SCALES, "scale")
    both = [rows] if test is None else [rows, test]
    width = max(part.shape[1] for part in both)
    both = [pad(part, (0, width - part.shape[1])) for part in both]
    if scale == "standard":
        mean, deviation = both[0].mean(0), both[0].std(0, correction=0)
        both = [(part - mean) / torch.where(deviation > 0, deviation, 1) for part in both]
    elif scale == "rows":
        both = [part / torch.where((norm := part.norm(dim=1, keepdim=True)) > 0, norm, 1) for part in both]
    if intercept:
        both = [pad(part, (0, 1), value=1.0) for part in both]
    return both[0], both[1] if test is not None else None


def _synthetic(loss: str, samples: int, dim: int, seed: int) -> Table:
    """h ~ N(0, I), scores z = h^T X with X ~ N(0, I/d) (10 columns for softmax), and targets from them.

    z + 0.1 N(0, 1), or classes with the probabilities of logistic or softmax regression for 3 z.
    """
    random = np.random.default_rng(seed)
    weights = random.standard_normal((dim, 10 if loss == "softmax" else 1)) / np.sqrt(dim)
    features = random.standard_normal((samples, dim))
    scores = features @ weights
    if loss == "squared":
        targets = scores[:, 0] + 0.1 * random.standard_normal(samples)
    elif loss == "logistic":
        targets = np.where(random.random(samples) < 1 / (1 + np.exp(-3 * scores[:, 0])), 1, -1)
    else:
        targets = (3 * scores + random.gumbel(size=scores.shape)).argmax(1)
    return Table(torch.from_numpy(features), targets)

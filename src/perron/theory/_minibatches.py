"""Minibatches given by the user, checked."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

import torch

from perron.errors import PerronError, listed


def read_pairs(batches: Iterable[Any], draws: int, device: torch.device) -> list[tuple[Any, Any]]:
    """Return the first ``draws`` batches as pairs (inputs, targets), on the model's device."""

    def moved(part: Any) -> Any:
        if isinstance(part, tuple | list):
            return tuple(moved(entry) for entry in part)
        return part.to(device) if torch.is_tensor(part) else part

    pairs = []
    for number, batch in enumerate(islice(batches, draws)):
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            got = f"{len(batch)} parts" if isinstance(batch, tuple | list) else type(batch).__name__
            raise PerronError(f"A batch is a pair (inputs, targets); batch {number} is {got}.")
        if not torch.is_tensor(batch[1]) or not batch[1].ndim:
            raise PerronError(
                f"The targets of a batch are a tensor, one for each sample; those of batch {number} are "
                f"{'a single number' if torch.is_tensor(batch[1]) else type(batch[1]).__name__}. "
                "If batches are given node by node, pass by_node=True."
            )
        pairs.append((moved(batch[0]), moved(batch[1])))
    return pairs


def common_size(own: list[list[tuple[Any, Any]]]) -> tuple[int, int]:
    """Return the samples of each batch, and batches of each node."""
    counts = sorted({len(pairs) for pairs in own})
    if not counts or counts[0] < 3:
        raise PerronError(
            f"A variance with a standard error needs at least 3 batches of each node; got {counts[0] if counts else 0}. "
            "Pass smaller batches, or a list: an iterator that was used before is empty."
        )
    if len(counts) > 1:
        raise PerronError(f"All nodes need equally many batches; got {listed(counts)}. Pass draws={counts[0]}.")
    sizes = sorted({len(targets) for pairs in own for _, targets in pairs})
    if len(sizes) > 1:
        raise PerronError(
            f"The noise of batches depends on their size, which must be the same for all; got {listed(sizes)}. "
            "Leave out the last one of an epoch (drop_last=True of a DataLoader)."
        )
    return sizes[0], counts[0]

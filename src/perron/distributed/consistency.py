"""Agreement between processes: compare their settings, gather texts, copy and average tensors.

Nothing received is unpickled; texts are sent as bytes in tensors of agreed size.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from perron._modules import average_buffers
from perron.distributed.process_group import TIMEOUT, Peers
from perron.errors import PerronError


class DisagreementError(PerronError):
    """Processes that were given different settings."""


def compare(facts: dict[str, Any], peers: Peers, timeout: float = TIMEOUT) -> None:
    """Refuse to continue unless all ranks were given the same facts; the error names the difference and the ranks.

    Called before the first tensor is sent: where sizes differ, gloo aborts the process or fills part of a buffer.
    """
    refuse_differences(dict(enumerate(gather_texts(json.dumps(facts, default=str), peers, timeout))))


def refuse_differences(texts: dict[int, str]) -> None:
    """Raise an error unless the facts of these ranks, as JSON, are equal."""
    facts = {rank: json.loads(text) for rank, text in texts.items()}
    first, *others = facts
    for name in facts[first]:
        values = {rank: str(facts[rank].get(name)) for rank in facts}
        odd = [rank for rank in others if values[rank] != values[first]]
        if odd:
            start = _first_difference(values[first], values[odd[0]])
            shown = "; ".join(f"rank {rank}: {values[rank][start:][:80]}" for rank in (first, *odd[:3]))
            raise DisagreementError(f"The processes do not agree on {name} ({shown}). They need the same.")


def _first_difference(one: str, other: str) -> int:
    """Return where two texts begin to differ, less some context; 0 if that is near the beginning."""
    same = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return same - 30 if same > 60 else 0


def versions() -> dict[str, str]:
    """Return the versions that have to be equal in all processes."""
    from perron import __version__

    return {"the version of perron": __version__, "the version of torch": torch.__version__}


def gather_texts(text: str, peers: Peers, timeout: float = TIMEOUT) -> list[str]:
    """Return the texts of all ranks."""
    raw, what = torch.tensor(list(text.encode()), dtype=torch.uint8), "Not all processes took part in a comparison"
    lengths = gather_tensors(torch.tensor([len(raw)]), peers, what, timeout)
    padded = torch.zeros(int(max(lengths)), dtype=torch.uint8)
    padded[: len(raw)] = raw
    rows = gather_tensors(padded, peers, what, timeout)
    return [bytes(row[: int(length)].tolist()).decode() for row, length in zip(rows, lengths, strict=True)]


def gather_tensors(tensor: Tensor, peers: Peers, what: str, timeout: float) -> list[Tensor]:
    """Return the tensors of all ranks; they have one shape and type."""
    tensors = [torch.empty_like(tensor) for _ in range(peers.size)]
    peers.finish([(peers.all_gather(tensors, tensor.contiguous(), timeout=timeout), what)], timeout)
    return tensors


def _broadcast(tensor: Tensor, root: int, peers: Peers, what: str, timeout: float) -> Tensor:
    """Return the root's tensor of the same shape and type; sent as bytes, since gloo does not support every type."""
    raw = tensor.contiguous().reshape(-1).view(torch.uint8).clone()
    if raw.numel():
        peers.finish([(peers.broadcast(raw, root, timeout=timeout), what)], timeout)
    return raw.view(tensor.dtype).view(tensor.shape)


def copy_tensors(
    tensors: Iterable[Tensor], sources: Sequence[int], peers: Peers, what: str, timeout: float = TIMEOUT
) -> None:
    """Overwrite the tensors with those of the first source, on all ranks that are not sources."""
    if len(sources) == peers.size:
        return
    for tensor in tensors:
        theirs = _broadcast(tensor, sources[0], peers, what, timeout)
        if peers.rank not in sources:
            tensor.copy_(theirs)


def gather_average(buffers: dict[str, Tensor], peers: Peers, what: str, timeout: float = TIMEOUT) -> dict[str, Tensor]:
    """Return the buffers of all peers combined: floats averaged, others those of rank 0."""
    floats, others = {}, {}
    for name, buffer in buffers.items():
        if buffer.is_floating_point():
            floats[name] = torch.stack(gather_tensors(buffer, peers, what, timeout))
        else:
            others[name] = _broadcast(buffer, 0, peers, what, timeout)
    return others | average_buffers(floats)

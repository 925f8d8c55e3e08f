"""What processes agree on: compare what they were given, gather texts, average buffers.

Nothing that comes off the wire is unpickled; texts travel as bytes in tensors of agreed size.
"""

from __future__ import annotations

import json
import os
from typing import Any

import torch
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore  # dist names it, but its types do not

from perron._modules import average_buffers
from perron.distributed.process_group import TIMEOUT, Peers
from perron.distributed.store import STORE_PREFIX, connect_store
from perron.errors import PerronError


def compare(facts: dict[str, Any], peers: Peers, timeout: float = TIMEOUT) -> None:
    """Refuse to go on unless all ranks were given the same facts; the error names what differs, and where.

    Called before the first tensor travels: gloo otherwise aborts a process, or fills part of a buffer, when sizes differ.
    """
    refuse_differences(dict(enumerate(gathered(json.dumps(facts, default=str), peers, timeout))))


def refuse_differences(told: dict[int, str]) -> None:
    """An error unless these ranks told the same facts, as JSON."""
    first, *others = told
    everybody = {rank: json.loads(text) for rank, text in told.items()}
    for name in everybody[first]:
        values = {rank: str(facts.get(name)) for rank, facts in everybody.items()}
        odd = [rank for rank in others if values[rank] != values[first]]
        if odd:
            here = _differs(values[first], values[odd[0]])
            said = "; ".join(f"rank {rank}: {values[rank][here:][:80]}" for rank in (first, *odd[:3]))
            raise PerronError(f"The processes do not agree on {name} ({said}). They need the same.")


def versions() -> dict[str, str]:
    """Of the code that all processes run."""
    from perron import __version__

    return {"the version of perron": __version__, "the version of torch": torch.__version__}


def met(rank: int, size: int, timeout: float) -> Any:
    """The store of this attempt at the training, and facts compared through it without which no group can be formed.

    Each attempt has a prefix of its own: gloo would take addresses of dead processes for those of the living.
    """
    agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    served = connect_store(timeout, serve=rank == 0 and not agent)
    store = PrefixStore(f"{STORE_PREFIX}/attempt {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", served)
    mine = json.dumps({"the number of nodes": size} | versions())
    store.set(f"facts/{rank}", mine)
    refuse_differences({0: store.get("facts/0").decode(), rank: mine})
    return store


def gathered(text: str, peers: Peers, timeout: float = TIMEOUT) -> list[str]:
    """A text from each rank, as bytes in tensors: nothing is unpickled off the wire."""
    raw = torch.tensor(list(text.encode()), dtype=torch.uint8)
    length, what = torch.tensor([len(raw)]), "Not all processes came together to compare notes"
    lengths = [torch.empty_like(length) for _ in range(peers.size)]
    peers.finish([(peers.all_gather(lengths, length, timeout=timeout), what)], timeout)
    padded = torch.zeros(int(max(lengths)), dtype=torch.uint8)
    padded[: len(raw)] = raw
    rows = [torch.empty_like(padded) for _ in lengths]
    peers.finish([(peers.all_gather(rows, padded, timeout=timeout), what)], timeout)
    return [bytes(row[: int(many)].tolist()).decode() for row, many in zip(rows, lengths, strict=True)]


def _differs(one: str, other: str) -> int:
    """Where two texts begin to differ, or a little before."""
    same = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return max(0, same - 30) if same > 60 else 0


def taken(tensor: Tensor, root: int, peers: Peers, what: str, timeout: float = TIMEOUT) -> Tensor:
    """A peer's tensor of the same shape and type; as bytes, since not every type can travel."""
    raw = tensor.contiguous().reshape(-1).view(torch.uint8).clone()
    if raw.numel():
        peers.finish([(peers.broadcast(raw, root, timeout=timeout), what)], timeout)
    return raw.view(tensor.dtype).view(tensor.shape)


def united(buffers: dict[str, Tensor], peers: Peers, what: str, timeout: float = TIMEOUT) -> dict[str, Tensor]:
    """Buffers of all peers: floats `averaged`, others rank 0's."""
    everybody, found = {}, {}
    for name, buffer in buffers.items():
        if buffer.is_floating_point():
            everybody[name] = [torch.empty_like(buffer) for _ in range(peers.size)]
            work = peers.all_gather(everybody[name], buffer.contiguous(), timeout=timeout)
            peers.finish([(work, what)], timeout)
        else:
            found[name] = taken(buffer, 0, peers, what, timeout)
    return found | average_buffers({name: torch.stack(values) for name, values in everybody.items()})

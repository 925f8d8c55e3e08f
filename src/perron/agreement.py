"""What processes do together: compare what they were given, gather texts, and wait for each other with an end to it.

Nothing that comes off the wire is unpickled; texts travel as bytes in tensors of agreed size.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from datetime import timedelta
from hashlib import sha256
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from perron.algorithm import Algorithm
from perron.errors import NetworkError, PerronError
from perron.mixing import Mixing

TIMEOUT = 15.0  # seconds for a message


def compare(facts: dict[str, Any], *, group: Any = None, timeout: float = TIMEOUT) -> None:
    """Refuse to go on unless all ranks were given the same facts; the error names what differs, and where.

    Called before the first tensor travels: gloo otherwise aborts a process, or fills part of a buffer, when sizes differ.
    """
    everybody = [json.loads(text) for text in gathered(json.dumps(facts, default=str), group, timeout)]
    for name in facts:
        values = [str(each.get(name)) for each in everybody]
        odd = [rank for rank, value in enumerate(values) if value != values[0]]
        if odd:
            here = _differs(values[0], values[odd[0]])
            told = "; ".join(f"rank {rank}: {values[rank][here:][:80]}" for rank in (0, *odd[:3]))
            raise PerronError(f"The processes do not agree on {name} ({told}). They need the same.")


def gathered(text: str, group: Any = None, timeout: float = TIMEOUT) -> list[str]:
    """A text from each rank, as bytes in tensors: nothing is unpickled off the wire."""
    raw = torch.tensor(list(text.encode()), dtype=torch.uint8)
    length, size = torch.tensor([len(raw)]), dist.get_world_size(group)
    lengths = [torch.empty_like(length) for _ in range(size)]
    together(dist.all_gather, lengths, length, group=group, timeout=timeout)
    padded = torch.zeros(int(max(lengths)), dtype=torch.uint8)
    padded[: len(raw)] = raw
    rows = [torch.empty_like(padded) for _ in lengths]
    together(dist.all_gather, rows, padded, group=group, timeout=timeout)
    return [bytes(row[: int(many)].tolist()).decode() for row, many in zip(rows, lengths, strict=True)]


def together(operation: Callable[..., Any], *arguments: Any, group: Any, timeout: float, **options: Any) -> None:
    """An operation of all processes, which waits for the last of them, but not longer than the timeout."""
    work = operation(*arguments, group=group, async_op=True, **options)
    finish(work, timeout, f"Node {dist.get_rank(group)}: not all processes came together in {operation.__name__}")


def finish(work: Any, timeout: float, what: str) -> None:
    """Wait for something that torch.distributed has started; what goes wrong is told in our words."""
    try:
        work.wait(timedelta(seconds=timeout))
    except (RuntimeError, dist.DistError) as error:
        said = f"it was silent for {timeout:g} s" if "timed out" in str(error).lower() else meaning(error)
        raise NetworkError(f"{what}: {said}.") from None


def meaning(error: BaseException) -> str:
    """What torch.distributed's error means."""
    if any(
        words in str(error) for words in ("closed by peer", "reset by peer", "Broken pipe", "pair closure", "refused")
    ):
        return "its connection is closed, the process is gone or has given up"
    return line(error)


def line(error: BaseException) -> str:
    """The first line of an error, without the place in the source."""
    return str(error).split("\n")[0].rpartition("] ")[2].strip()[:200]


def _differs(one: str, other: str) -> int:
    """Where two texts begin to differ, or a little before."""
    same = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return max(0, same - 30) if same > 60 else 0


def described(algorithm: Algorithm) -> str:
    """An algorithm with its options, the same in every process (functions by their names)."""
    options: list[str] = []
    for one in fields(algorithm):  # type: ignore[arg-type]
        value = getattr(algorithm, one.name)
        options.append(f"{one.name}={getattr(value, '__qualname__', None) or repr(value)}")
    return f"{type(algorithm).__name__}({', '.join(options)})"


def fingerprint(mixing: Mixing) -> str:
    """A short name of a network's very numbers."""
    digest = sha256()
    for matrices in mixing.sequences:
        for matrix in matrices:
            dense = matrix if not hasattr(matrix, "toarray") else matrix.toarray()
            digest.update(dense.tobytes())
    return digest.hexdigest()[:12]


def averaged(buffers: dict[str, list[Tensor]]) -> dict[str, Tensor]:
    """Floating-point buffers of several models averaged; a variance as that of the union of equal shares of data.

    var = mean(var_i) + mean((mean_i - mean)^2), in float64: the difference of E[x^2] and mean^2 would cancel.
    """
    found = {}
    for name, values in buffers.items():
        stacked = torch.stack([value.double() for value in values])
        mean = name.removesuffix("running_var") + "running_mean"
        spread = torch.zeros(())
        if name.endswith("running_var") and mean in buffers:
            spread = torch.stack([value.double() for value in buffers[mean]]).var(0, correction=0)
        found[name] = (stacked.mean(0) + spread).to(values[0].dtype)
    return found

"""Keyed random numbers: (seed, trial, node, draw) determines a number, independent of the order and batch of the calls.

The generator is splitmix64 (Steele, Lea & Flood 2014), a hash of a counter: each (seed, trial, node) has a stream, and a draw is
a position in it. A node draws the same numbers in a process of its own and in the simulator, and a trial the same numbers alone
and in a batch. There is no state to save.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from perron.errors import PerronError

GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed number: the golden ratio, splitmix64's increment
FIRST = -4658895280553007687  # 0xBF58476D1CE4E5B9
SECOND = -7723592293110705685  # 0x94D049BB133111EB
AGAIN = FIRST  # turns a key into that of its second stream, from which repeated numbers are replaced
RETRIES = 20  # bits: a draw owns 2^20 numbers of the second stream
# Streams of a run, the same in the simulator and in processes.
LOSSES, PARTICIPATION, NOISE, SAMPLES, COMPUTE = 1, 2, 3, 4, 5
BELOW_ONE = 1 - 2.0**-53  # the largest number below one; the last of the 2^53 values would round up to one
BLOCK = 2**16  # smallest number of values to generate at a time


def _shift(z: Tensor, bits: int) -> Tensor:
    """z >> bits without copying the sign."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def _mix(z: Tensor) -> Tensor:
    """splitmix64's hash of a 64-bit number; products wrap around."""
    z = (z ^ _shift(z, 30)) * FIRST
    z = (z ^ _shift(z, 27)) * SECOND
    return z ^ _shift(z, 31)


def _mixed(z: int) -> int:
    """The same hash of a Python integer."""
    mask = 2**64 - 1
    z &= mask
    z = ((z ^ (z >> 30)) * (FIRST & mask)) & mask
    z = ((z ^ (z >> 27)) * (SECOND & mask)) & mask
    return z ^ (z >> 31)


class Keyed:
    """Random numbers of some trials and nodes.

    Args:
        seed: any whole number.
        trials: the trials, or their number (0, 1, ...); None for a single trial 0 without a trial axis.
        nodes: the nodes, or their number; None for the single node ``node`` without a node axis.
        node: see ``nodes``.
        stream: separates numbers for different purposes from the same seed.

    Draws have the shape ``(trials, nodes, size)``, without the axes that are None.

    >>> simulated = Keyed(7, trials=3, nodes=5)
    >>> process = Keyed(7, trials=[2], nodes=None, node=4)
    >>> bool((simulated.normal(10, 4)[2, 4] == process.normal(10, 4)[0]).all())
    True
    """

    def __init__(
        self,
        seed: int,
        *,
        trials: int | Sequence[int] | None = None,
        nodes: int | Sequence[int] | None = None,
        node: int = 0,
        stream: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        def numbers(which: int | Sequence[int]) -> Tensor:
            if isinstance(which, int):
                return torch.arange(which, device=device)
            return torch.tensor(list(which), dtype=torch.int64, device=device)

        start = _mix(torch.tensor([(seed * 1000003 + stream) % 2**63], device=device))  # (1,)
        each_trial = _mix(start + numbers([0] if trials is None else trials) * GOLDEN)  # (trials,)
        each_node = numbers([node] if nodes is None else nodes)
        keys = _mix(each_trial[:, None] + (each_node + 1) * GOLDEN)  # (trials, nodes)
        self._keys = keys[0] if trials is None else keys
        if nodes is None:
            self._keys = self._keys[..., 0]
        self._ahead: dict[tuple[str, int], tuple[int, Tensor]] = {}
        self._others: dict[int, Keyed] = {}

    def stream(self, number: int) -> Keyed:
        """Return an independent stream of the same trials and nodes; the same object for each call."""
        if number not in self._others:
            other = Keyed.__new__(Keyed)
            other._keys, other._ahead, other._others = _mix(_mix(self._keys ^ SECOND) + number), {}, {}
            self._others[number] = other
        return self._others[number]

    def uniform(self, draw: int, size: int = 1) -> Tensor:
        """Return numbers uniform in (0, 1), float64."""
        return self._block("uniform", draw, size)

    def normal(self, draw: int, size: int) -> Tensor:
        """Return standard normal numbers, float64."""
        return self._block("normal", draw, size)

    def integers(self, draw: int, size: int, high: int | Tensor) -> Tensor:
        """Return integers 0 .. high-1, uniform up to a relative error of high / 2^53; ``high`` may differ, ``(nodes, 1)``."""
        return (self._block("uniform", draw, size) * high).long().clamp_(max=high - 1)

    def distinct(self, draw: int, size: int, high: int | Tensor) -> Tensor:
        """Return ``size`` distinct integers of 0 .. high-1, sampled uniformly without replacement; ``high`` as for `integers`.

        These are the `integers` of the draw; each repeated number is replaced by the next new number of a second stream.
        """
        if not 0 < size <= (least := int(torch.as_tensor(high).min())):
            raise PerronError(f"From {least} numbers, 1 to {least} distinct ones can be drawn; got {size}.")
        drawn = self.integers(draw, size, high)
        rows, keys = drawn.view(-1, size), self._keys.reshape(-1)
        ordered = rows.sort(-1).values
        highs = torch.as_tensor(high).expand(*drawn.shape[:-1], 1).reshape(-1)
        for row in (ordered[:, 1:] == ordered[:, :-1]).any(-1).nonzero().flatten().tolist():
            rows[row] = torch.tensor(_without_repeats(rows[row].tolist(), int(keys[row]), draw, int(highs[row])))
        return drawn

    @property
    def keys(self) -> NDArray[np.uint64]:
        """The key of each stream, for compiled code that generates the same numbers."""
        return self._keys.cpu().numpy().view(np.uint64)

    def _block(self, kind: str, draw: int, size: int) -> Tensor:
        """Generate many draws at a time: in small networks the hash would otherwise cost more than the step."""
        ahead = max(1, BLOCK // max(1, self._keys.numel() * size))
        first, block = self._ahead.get((kind, size), (-1, None))
        if block is None or first != draw // ahead:
            first = draw // ahead
            places = torch.arange(first * ahead * size, (first + 1) * ahead * size, device=self._keys.device)
            places = places.view(ahead, *[1] * self._keys.ndim, size)
            hashed = _mix(self._keys[..., None] + (places + 1) * GOLDEN)
            block = ((_shift(hashed, 11).double() + 0.5) * 2.0**-53).clamp_(max=BELOW_ONE)
            if kind == "normal":
                block = torch.special.ndtri(block)
            self._ahead[kind, size] = (first, block)
        return block[draw % ahead]


def link_names(sources: NDArray[np.int64], targets: NDArray[np.int64], nodes: int) -> list[int]:
    """Return a number for each link from a source to a target, which serves as its node number in `Keyed`."""
    names: list[int] = (sources * nodes + targets).tolist()
    return names


def _without_repeats(row: list[int], key: int, draw: int, high: int) -> list[int]:
    """Replace the repeated numbers of a row."""
    again, retry = _mixed(key ^ AGAIN), draw << RETRIES
    seen: set[int] = set()
    for place, number in enumerate(row):
        while number in seen:
            number = min(int(((_mixed(again + retry * GOLDEN) >> 11) + 0.5) * 2.0**-53 * high), high - 1)  # noqa: PLW2901
            retry += 1
        seen.add(number)
        row[place] = number
    return row

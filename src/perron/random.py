"""Random numbers by key: (seed, trial, node, draw) names a number, whoever asks for it, in whatever order and batch.

The generator is splitmix64 (Steele, Lea & Flood 2014), a counter pushed through a hash: each (seed, trial, node) starts a
stream, and the draws are places in it. So a node in a process of its own draws what it draws in the simulator, and a
trial is the same alone and among others. There is no state to save.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed number: the golden ratio, splitmix64's increment
FIRST = -4658895280553007687  # 0xBF58476D1CE4E5B9
SECOND = -7723592293110705685  # 0x94D049BB133111EB
AGAIN = FIRST  # turns a key into that of its second stream, from which numbers that came twice are drawn anew
RETRIES = 20  # bits: so many numbers of the second stream belong to one draw
LOSSES, PARTICIPATION, NOISE = 1, 2, 3  # streams of a run, the same in all worlds
BELOW_ONE = 1 - 2.0**-53  # the largest number below one, to which the last of 2^53 would round up otherwise
BLOCK = 2**16  # numbers that are made ahead at a time, at the least


def _shift(z: Tensor, bits: int) -> Tensor:
    """z >> bits without copying the sign."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def _mix(z: Tensor) -> Tensor:
    """splitmix64's hash of a 64-bit number; products wrap around."""
    z = (z ^ _shift(z, 30)) * FIRST
    z = (z ^ _shift(z, 27)) * SECOND
    return z ^ _shift(z, 31)


def _mixed(z: int) -> int:
    """The same hash of one number, in Python's own integers."""
    mask = 2**64 - 1
    z &= mask
    z = ((z ^ (z >> 30)) * (FIRST & mask)) & mask
    z = ((z ^ (z >> 27)) * (SECOND & mask)) & mask
    return z ^ (z >> 31)


class Keyed:
    """The random numbers of some trials and nodes.

    Args:
        seed: any whole number.
        trials: their numbers, or how many (0, 1, ...); None for a single trial 0 without a trial axis.
        nodes: the numbers of the nodes, or how many; None for a process that is node number ``node``.
        node: see ``nodes``.
        stream: tells apart what is drawn for different purposes from the same seed.

    Numbers come with shape ``(trials, nodes, size)``, an axis left out where it was None.

    >>> everybody = Keyed(7, trials=3, nodes=5)
    >>> one = Keyed(7, trials=[2], nodes=None, node=4)
    >>> bool((everybody.normal(10, 4)[2, 4] == one.normal(10, 4)[0]).all())
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
            return torch.tensor(
                range(which) if isinstance(which, int) else list(which), dtype=torch.int64, device=device
            )

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
        """Other numbers of the same trials and nodes, for another purpose; the same object each time."""
        if number not in self._others:
            other = Keyed.__new__(Keyed)
            other._keys, other._ahead, other._others = _mix(_mix(self._keys ^ SECOND) + number), {}, {}
            self._others[number] = other
        return self._others[number]

    def uniform(self, draw: int, size: int = 1) -> Tensor:
        """Numbers uniform in (0, 1), float64."""
        return self._block("uniform", draw, size)

    def normal(self, draw: int, size: int) -> Tensor:
        """Standard normal numbers, float64."""
        return self._block("normal", draw, size)

    def integers(self, draw: int, size: int, high: int) -> Tensor:
        """Whole numbers 0 .. high-1 (for high far below 2^53, uniform but for a part in 2^53/high)."""
        return (self._block("uniform", draw, size) * high).long().clamp_(max=high - 1)

    def distinct(self, draw: int, size: int, high: int) -> Tensor:
        """``size`` different numbers of 0 .. high-1, every such choice equally likely: sampling without replacement.

        These are the `integers` of the draw, but a number that is there already is drawn anew, from a second stream, until it
        is new.
        """
        if not 0 < size <= high:
            raise ValueError(f"From {high} numbers one can draw 1 to {high} different ones; got {size}.")
        drawn = self.integers(draw, size, high)
        rows, keys = drawn.view(-1, size), self._keys.reshape(-1)
        ordered = rows.sort(-1).values
        for row in (ordered[:, 1:] == ordered[:, :-1]).any(-1).nonzero().flatten().tolist():
            rows[row] = torch.tensor(_without_repeats(rows[row].tolist(), int(keys[row]), draw, high))
        return drawn

    @property
    def keys(self) -> NDArray[np.uint64]:
        """The key of each stream, for compiled code that draws the same numbers."""
        return self._keys.cpu().numpy().view(np.uint64)

    def _block(self, kind: str, draw: int, size: int) -> Tensor:
        """Many draws are made at a time: for small networks the hash would otherwise cost more than the step."""
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
    """Numbers that name the links from sources to targets, by which each of them draws."""
    names: list[int] = (sources * nodes + targets).tolist()
    return names


def _without_repeats(row: list[int], key: int, draw: int, high: int) -> list[int]:
    """The row with each number that came before drawn anew."""
    again, retry = _mixed(key ^ AGAIN), draw << RETRIES
    seen: set[int] = set()
    for place, number in enumerate(row):
        while number in seen:
            number = min(int(((_mixed(again + retry * GOLDEN) >> 11) + 0.5) * 2.0**-53 * high), high - 1)  # noqa: PLW2901
            retry += 1
        seen.add(number)
        row[place] = number
    return row

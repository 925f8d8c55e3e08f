"""The processes that work together: post messages to them, start collectives, and wait for each with an end to it.

`Group` is a process group of torch.distributed, whose members stay the same; `perron.elastic.Epoch` is one that ends when a
member is lost or a new one comes. The engine knows only `Peers`.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import torch.distributed as dist
from torch import Tensor

from perron.errors import NetworkError

TIMEOUT = 15.0  # seconds for a message
LAST = 0.25  # seconds for threads to come to rest

Words = str | Callable[[], str]


class Parcel(NamedTuple):
    """A tensor to send to a neighbour, or to fill with what it sends."""

    neighbour: int
    tensor: Tensor
    tag: int
    sent: bool


class Peers(ABC):
    """Some processes, numbered from 0.

    Attributes:
        rank: this one's number.
        size: how many there are.
        names: the number that each had from its launcher; it stays when others go.
    """

    rank: int
    size: int
    names: Sequence[int]

    @abstractmethod
    def post(self, parcels: list[Parcel]) -> list[Any]:
        """Start all transfers; a piece of work for each, or one for all."""

    @abstractmethod
    def all_reduce(self, tensor: Tensor, op: Any = dist.ReduceOp.SUM) -> Any:
        """Start a reduction over all, in place."""

    @abstractmethod
    def all_gather(self, tensors: list[Tensor], tensor: Tensor) -> Any:
        """Start a gathering of everybody's tensor."""

    @abstractmethod
    def broadcast(self, tensor: Tensor, root: int) -> Any:
        """Start to take over one member's tensor."""

    @abstractmethod
    def finish(self, works: Sequence[tuple[Any, Words]], timeout: float = TIMEOUT) -> None:
        """Wait for what was started; each work comes with the words that an error begins with, or a function that finds them."""


class Group(Peers):
    """A process group of torch.distributed; the default one if None."""

    def __init__(self, group: Any = None) -> None:
        self.group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.names = dist.get_process_group_ranks(group) if group is not None else range(self.size)

    def post(self, parcels: list[Parcel]) -> list[Any]:
        """On gloo one by one, which is what a batch comes to there, and faster; in one batch where NCCL needs it."""
        if all(one.tensor.device.type == "cpu" for one in parcels):
            group: Any = dist.group.WORLD if self.group is None else self.group
            return [(group.send if one.sent else group.recv)([one.tensor], one.neighbour, one.tag) for one in parcels]
        ops = [
            dist.P2POp(
                dist.isend if one.sent else dist.irecv,
                one.tensor,
                group=self.group,
                group_peer=one.neighbour,
                tag=one.tag,
            )
            for one in parcels
        ]
        return list(dist.batch_isend_irecv(ops))

    def all_reduce(self, tensor: Tensor, op: Any = dist.ReduceOp.SUM) -> Any:
        """As torch.distributed does it."""
        return dist.all_reduce(tensor, op, group=self.group, async_op=True)

    def all_gather(self, tensors: list[Tensor], tensor: Tensor) -> Any:
        """As torch.distributed does it."""
        return dist.all_gather(tensors, tensor, group=self.group, async_op=True)

    def broadcast(self, tensor: Tensor, root: int) -> Any:
        """As torch.distributed does it."""
        return dist.broadcast(tensor, group=self.group, group_src=root, async_op=True)

    def finish(self, works: Sequence[tuple[Any, Words]], timeout: float = TIMEOUT) -> None:
        """One after the other."""
        for work, what in works:
            wait(work, what, timeout)


def wait(work: Any, what: Words, timeout: float) -> None:
    """Wait for something that torch.distributed has started; what goes wrong is told in our words."""
    try:
        work.wait(timedelta(seconds=timeout))
    except (RuntimeError, dist.DistError) as error:
        said = f"it was silent for {timeout:g} s" if "timed out" in str(error).lower() else meaning(error)
        raise NetworkError(f"{what if isinstance(what, str) else what()}: {said}.") from None


def meaning(error: BaseException) -> str:
    """What torch.distributed's error means."""
    closed = ("closed by peer", "reset by peer", "Broken pipe", "pair closure", "refused")
    if any(words in str(error) for words in closed):
        return "its connection is closed, the process is gone or has given up"
    return line(error)


def line(error: BaseException) -> str:
    """The first line of an error, without the place in the source."""
    return str(error).split("\n")[0].rpartition("] ")[2].strip()[:200]


def follow_launcher() -> None:
    """End with the launcher, where it can be arranged: a worker that nobody watches would train on for nobody."""
    launcher = os.environ.pop("PERRON_LAUNCHER", None)  # not for processes that this one starts
    if launcher is None or sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != int(launcher):
        raise NetworkError("The launcher of this process is gone.")


@atexit.register
def _linger() -> None:
    """Let gloo's threads drop what they hold: one that meets an interpreter in its last moments aborts the process."""
    if dist.is_available() and dist.is_initialized():
        time.sleep(LAST)

"""The processes that work together: post messages to them, start collectives, and wait for each with an end to it.

`Group` is a process group of torch.distributed, whose members stay the same; `elastic.membership.Epoch` is one that ends when a
member is lost or a new one comes. The engine knows only `Peers`.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
import signal
import socket
import stat
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import AllgatherOptions

from perron.errors import NetworkError, PerronError

# How long anybody waits for anything, in seconds. One of them is yours to set, `Decentralized(timeout=)`; it must be longer than
# a process may pause for, and is what tells a dead node from a slow one. The others follow from it, or from how processes start.
TIMEOUT = 15.0  # a neighbour may be silent in an exchange, or a process in a collective, for so long
START = 20 * TIMEOUT  # for all processes to come at the start, with imports and data: `distributed.init(timeout=)`
BEAT = 0.2  # between two heartbeats of an elastic member
PATIENCE = 10 * BEAT  # without a heartbeat after which a member is taken for lost; shorter than any elastic timeout
FAREWELL = 1.0  # when a node has died, for the others to notice and say so before the launcher ends them
GRACE = 2 * TIMEOUT  # for nodes that were told to end: to agree on a step, do it, save, and go: `perron launch --grace`
SILENCE = TIMEOUT + PATIENCE  # without a heartbeat after which a node that is left over at the end is ended
LAST = 0.25  # for threads to come to rest

AGAIN = "Start again: it goes on from the last checkpoint."

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
        remedy: what an error about a lost peer advises.
        group: of torch.distributed, in which collectives take place.
    """

    rank: int
    size: int
    names: Sequence[int]
    remedy: str = ""
    group: Any

    @abstractmethod
    def post(self, parcels: list[Parcel]) -> list[Any]:
        """Start all transfers; a piece of work for each, or one for all."""

    # A collective has to be told its timeout when it starts: gloo does not heed the one that it is waited for with, and closes
    # all connections after that of the group.

    def all_reduce(self, tensor: Tensor, op: Any = dist.ReduceOp.SUM, *, timeout: float = TIMEOUT) -> Any:
        """Start a reduction over all, in place."""
        options = _timely(dist.AllreduceOptions(), timeout)
        options.reduceOp = op
        return self.group.allreduce([tensor], options)

    def all_gather(self, tensors: list[Tensor], tensor: Tensor, *, timeout: float = TIMEOUT) -> Any:
        """Start a gathering of everybody's tensor."""
        return self.group.allgather([tensors], [tensor], _timely(AllgatherOptions(), timeout))

    def broadcast(self, tensor: Tensor, root: int, *, timeout: float = TIMEOUT) -> Any:
        """Start to take over one member's tensor."""
        options = _timely(dist.BroadcastOptions(), timeout)
        options.rootRank, options.rootTensor = root, 0
        return self.group.broadcast([tensor], options)

    @abstractmethod
    def finish(self, works: Sequence[tuple[Any, Words]], timeout: float = TIMEOUT) -> None:
        """Wait for what was started; each work comes with the words that an error begins with, or a function that finds them."""


class Group(Peers):
    """A process group of torch.distributed; the default one if None."""

    remedy = AGAIN

    def __init__(self, group: Any = None) -> None:
        self.group = dist.group.WORLD if group is None else group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.names = dist.get_process_group_ranks(group) if group is not None else range(self.size)

    def post(self, parcels: list[Parcel]) -> list[Any]:
        """On gloo one by one, which is what a batch comes to there, and faster; in one batch where NCCL needs it."""
        if all(one.tensor.device.type == "cpu" for one in parcels):
            send, receive = self.group.send, self.group.recv
            return [(send if one.sent else receive)([one.tensor], one.neighbour, one.tag) for one in parcels]
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

    def finish(self, works: Sequence[tuple[Any, Words]], timeout: float = TIMEOUT) -> None:
        """One after the other."""
        for work, what in works:
            wait(work, what, timeout, self.remedy)


def _timely(options: Any, timeout: float) -> Any:
    options.timeout = timedelta(seconds=timeout)
    return options


class _Timed:
    """A piece of work; the seconds that were spent in waiting for it are added to those for its neighbour."""

    def __init__(self, work: Any, waited: dict[int, float], neighbour: int) -> None:
        self.work, self.waited, self.neighbour = work, waited, neighbour

    def wait(self, timeout: timedelta) -> None:
        began = time.monotonic()
        try:
            self.work.wait(timeout)
        finally:
            self.waited[self.neighbour] += time.monotonic() - began


def timed(works: list[Any], neighbours: list[int], waited: dict[int, float]) -> list[Any]:
    """The same works, with the seconds counted; as they are if there is one for all messages, as of NCCL."""
    if len(works) != len(neighbours):
        return works
    return [_Timed(work, waited, neighbour) for work, neighbour in zip(works, neighbours, strict=True)]


def wait(work: Any, what: Words, timeout: float, remedy: str = "") -> None:
    """Wait for something that torch.distributed has started; what goes wrong is told in our words."""
    try:
        work.wait(timedelta(seconds=timeout))
    except (RuntimeError, dist.DistError) as error:
        said = f"it was silent for {timeout:g} s" if "timed out" in str(error).lower() else meaning(error)
        raise NetworkError(f"{what if isinstance(what, str) else what()}: {said}. {remedy}".rstrip()) from None


def meaning(error: BaseException) -> str:
    """What torch.distributed's error means."""
    closed = ("closed by peer", "reset by peer", "Broken pipe", "pair closure", "refused")
    if any(words in str(error) for words in closed):
        return "its connection is closed, the process is gone or has given up"
    return line(error)


def line(error: BaseException) -> str:
    """The first line of an error, without the place in the source."""
    return str(error).split("\n")[0].rpartition("] ")[2].strip()[:200]


def mortal(host: str | None = None, port: int | None = None) -> None:
    """Have this process's connections to a store end when the machine over there goes away without a word, as with its power.

    torch's store waits for an answer without end, and so does the system for many minutes. On Linux it then ends after `TIMEOUT`.

    Args:
        host, port: of the store; what the launcher told if None.
    """
    host, port = host or os.environ.get("MASTER_ADDR"), port or int(os.environ.get("MASTER_PORT", "0"))
    if sys.platform != "linux" or host is None:  # processes may also have met through a file
        return
    there = {found[4][:2] for found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
    for number in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        with suppress(OSError):  # gone meanwhile, or not connected
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                with socket.socket(fileno=os.dup(number)) as one:
                    if one.family == socket.AF_UNIX:
                        continue
                    address, port = one.getpeername()[:2]
                    if (address.removeprefix("::ffff:"), port) in there:
                        one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, int(TIMEOUT / 3))
                        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, int(TIMEOUT / 5))
                        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * TIMEOUT))


def checked(timeout: float, least: float = 0.0) -> float:
    """A number of seconds that can be waited for."""
    if not least < timeout < float("inf"):
        raise PerronError(f"timeout is a number of seconds, more than {least:g}; got {timeout}.")
    return timeout


def follow_launcher() -> None:
    """End with the launcher, where it can be arranged: a worker that nobody watches would train on for nobody.

    What perron refuses or loses is then said in one line, as by the command line itself.
    """
    launcher = os.environ.pop("PERRON_LAUNCHER", None)  # not for processes that this one starts
    if launcher is None:
        return
    if os.environ.get("PERRON_DEBUG", "") in ("", "0"):
        sys.excepthook = _one_line
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != int(launcher):
        raise NetworkError("The launcher of this process is gone.")


def _one_line(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, PerronError):
        sys.stderr.write(f"perron: {error}\n")
        gc.freeze()  # what is collected when the interpreter goes takes most of a second, since torch is large
    else:
        sys.__excepthook__(kind, error, trace)


@atexit.register
def _linger() -> None:
    """Let gloo's threads drop what they hold: one that meets an interpreter in its last moments aborts the process."""
    if dist.is_available() and dist.is_initialized():
        time.sleep(LAST)

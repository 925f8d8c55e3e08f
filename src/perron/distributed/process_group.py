"""A group of processes that exchange tensors: point-to-point transfers, collectives, and waits that always time out.

`FixedPeers` is a process group of torch.distributed, whose members never change. `elastic.generation.Generation` is a group that
ends when a member is lost or a process joins. The rest of the engine uses the interface `Peers`.
"""

from __future__ import annotations

import atexit
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import cached_property
from typing import Any, NamedTuple
from weakref import ReferenceType, WeakKeyDictionary, ref

import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import AllgatherOptions
from torch.distributed import distributed_c10d as c10d

from perron.errors import NetworkError, PerronError

# All timeouts, in seconds. Users set one of them, `Decentralized(timeout=)`: it separates dead nodes from slow ones, and must
# be longer than any pause of a healthy process. The others follow from it, or from how processes start.
TIMEOUT = 15.0  # a neighbor may be silent in an exchange, or a process in a collective, for this long
START_TIMEOUT = 20 * TIMEOUT  # until all processes have started, with imports and data: `distributed.init(timeout=)`
HEARTBEAT_INTERVAL = 0.2  # between two heartbeats of an elastic member
HEARTBEAT_TIMEOUT = 10 * HEARTBEAT_INTERVAL  # without a heartbeat until a member counts as lost; less than TIMEOUT
EXIT_GRACE = 1.0  # after a node died, for the others to report what they saw before the launcher kills them
STOP_GRACE = (
    2 * TIMEOUT
)  # after a signal, for nodes to agree on a step, finish it, save and exit: `perron launch --grace`
STALL_TIMEOUT = TIMEOUT + HEARTBEAT_TIMEOUT  # without a heartbeat until a node that outlived the training is killed
DRAIN_SECONDS = 0.25  # for background threads to release their tensors

# Steps by which the receives of coming steps are posted ahead, see `receive_ahead`.
RECEIVE_AHEAD = 2

RESUME_HINT = "Start again to resume from the last checkpoint."

Description = str | Callable[[], str]


class Transfer(NamedTuple):
    """A tensor to send to a peer, or to receive from it."""

    peer: int
    tensor: Tensor
    tag: int
    sent: bool


class Ledger:
    """State that all nodes on one process group share: the numbers of their batches, and transfers without a use.

    All processes number the batches in the same order. gloo keeps the order of messages on a link: a transfer that was left is
    complete once a message in the same direction has arrived that belongs to a later batch.
    """

    def __init__(self) -> None:
        self.batches = 0
        self.nodes: list[tuple[ReferenceType[Any], Any]] = []  # with their receives posted ahead
        self.dropped: list[Any] = []  # receives of nodes that are gone
        self._left: list[tuple[int, Transfer, Any]] = []

    def next_batch(self) -> int:
        """Return the number of a new batch."""
        self.batches += 1
        return self.batches

    def add(self, node: Any, ahead: Any) -> None:
        """Note a node and its receives posted ahead."""
        self.forget()
        self.nodes.append((ref(node), ahead))

    def forget(self) -> None:
        """Forget nodes that are gone, but keep the receives that they had posted ahead."""
        nodes, self.nodes = self.nodes, []
        for node, ahead in nodes:
            if node() is not None:
                self.nodes.append((node, ahead))
            elif ahead.positions:
                self.dropped.append(ahead)

    def leave(self, transfers: Sequence[Transfer], works: Sequence[Any]) -> None:
        """Keep transfers whose messages are not used, until they are complete."""
        self._left += [(self.batches, *pair) for pair in zip(transfers, works, strict=False)]

    def completed(self, batch: int, transfers: Sequence[Transfer]) -> list[Any]:
        """Return the works of those that are complete now that a batch is, and forget them."""
        if not self._left:
            return []
        links = {(one.peer, one.sent) for one in transfers}
        done = [batch > last and (one.peer, one.sent) in links for last, one, _ in self._left]
        works = [left[2] for left, complete in zip(self._left, done, strict=True) if complete]
        self._left = [left for left, complete in zip(self._left, done, strict=True) if not complete]
        return works

    def clear(self) -> None:
        """Forget all transfers, before their connections are closed."""
        self._left = []


class Peers(ABC):
    """A group of processes with ranks 0, ..., size - 1.

    Attributes:
        rank: of this process.
        size: number of processes.
        node_ids: the launcher's number of each rank; unlike ranks, these do not change when other processes leave.
        remedy: the advice at the end of an error about a lost peer.
        group: the process group of torch.distributed that runs the collectives.
        ledger: the numbers of batches.
    """

    rank: int
    size: int
    node_ids: Sequence[int]
    remedy: str = ""
    group: Any

    @cached_property
    def ledger(self) -> Ledger:
        return Ledger()

    @abstractmethod
    def post(self, transfers: list[Transfer]) -> list[Any]:
        """Start all transfers; return a work handle for each, or one for all."""

    # A collective needs its timeout when it starts: gloo ignores the one passed to wait(), and closes all connections after
    # the timeout of the group.

    def all_reduce(self, tensor: Tensor, op: Any = dist.ReduceOp.SUM, *, timeout: float = TIMEOUT) -> Any:
        """Start to reduce a tensor over all ranks, in place."""
        options = dist.AllreduceOptions()
        options.reduceOp, options.timeout = op, timedelta(seconds=timeout)
        return self.group.allreduce([tensor], options)

    def all_gather(self, tensors: list[Tensor], tensor: Tensor, *, timeout: float = TIMEOUT) -> Any:
        """Start to gather the tensors of all ranks."""
        options = AllgatherOptions()
        options.timeout = timedelta(seconds=timeout)
        return self.group.allgather([tensors], [tensor], options)

    def broadcast(self, tensor: Tensor, root: int, *, timeout: float = TIMEOUT) -> Any:
        """Start to copy the tensor of rank ``root`` to all ranks, in place."""
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor, options.timeout = root, 0, timedelta(seconds=timeout)
        return self.group.broadcast([tensor], options)

    @abstractmethod
    def finish(self, works: Sequence[tuple[Any, Description]], timeout: float = TIMEOUT) -> None:
        """Wait for work handles; each comes with the beginning of its error message, or a function that returns it."""


_hidden: Any = None  # the group of all processes, while torch.distributed has no default one


def world() -> Any:
    """Return the group of all processes: torch's default one, or the one that `hide_world` has hidden; None if there is none."""
    return dist.group.WORLD or _hidden


def hide_world() -> None:
    """Let torch.distributed have no default group, so that other libraries see a single process."""
    global _hidden  # noqa: PLW0603 - in place of torch's global variable
    _hidden = world()
    c10d._update_default_pg(None)


def show_world() -> None:
    """Undo `hide_world`."""
    global _hidden  # noqa: PLW0603
    c10d._update_default_pg(world())
    _hidden = None


def world_store() -> Any:
    """Return the store through which the processes of `world` found each other."""
    return c10d._world.pg_map[world()][1]


# gloo stalls the connection of two processes for good if a receive is freed before its message arrives. So every transfer and
# its tensor are kept until it has been waited for, even if the optimizer that posted it is dropped.
_in_flight: dict[int, tuple[Any, Tensor]] = {}
_ledgers: WeakKeyDictionary[Any, Ledger] = WeakKeyDictionary()  # by process group


class FixedPeers(Peers):
    """A process group of torch.distributed; the default group if None."""

    remedy = RESUME_HINT

    def __init__(self, group: Any = None) -> None:
        self.group = world() if group is None else group
        self.rank, self.size = self.group.rank(), self.group.size()
        self.node_ids = dist.get_process_group_ranks(self.group)
        self.ledger = _ledgers.setdefault(self.group, Ledger())

    def post(self, transfers: list[Transfer]) -> list[Any]:
        """Start transfers one by one on gloo, which does not batch them anyway; in one batch on NCCL, which needs it."""
        if all(transfer.tensor.device.type == "cpu" for transfer in transfers):
            works = post_to(self.group, transfers)
            _in_flight.update({id(work): (work, one.tensor) for work, one in zip(works, transfers, strict=True)})
            return works
        ops = [
            dist.P2POp(
                dist.isend if transfer.sent else dist.irecv,
                transfer.tensor,
                group=self.group,
                group_peer=transfer.peer,
                tag=transfer.tag,
            )
            for transfer in transfers
        ]
        return list(dist.batch_isend_irecv(ops))

    def finish(self, works: Sequence[tuple[Any, Description]], timeout: float = TIMEOUT) -> None:
        for work, description in works:
            wait(work, description, timeout, self.remedy)
            _in_flight.pop(id(work.work if isinstance(work, _TimedWork) else work), None)


def post_to(group: Any, transfers: list[Transfer]) -> list[Any]:
    """Start each transfer on a gloo process group."""
    return [
        (group.send if transfer.sent else group.recv)([transfer.tensor], transfer.peer, transfer.tag)
        for transfer in transfers
    ]


class _TimedWork:
    """A work handle that adds the seconds spent waiting for it to a neighbor's total."""

    def __init__(self, work: Any, waited: dict[int, float], neighbor: int) -> None:
        self.work, self.waited, self.neighbor = work, waited, neighbor

    def wait(self, timeout: timedelta) -> None:
        began = time.monotonic()
        try:
            self.work.wait(timeout)
        finally:
            self.waited[self.neighbor] += time.monotonic() - began


def record_waits(works: list[Any], neighbors: list[int], waited: dict[int, float]) -> list[Any]:
    """Wrap work handles so that waiting times are added to ``waited``; NCCL's single handle for all messages is not."""
    if len(works) != len(neighbors):
        return works
    return [_TimedWork(work, waited, neighbor) for work, neighbor in zip(works, neighbors, strict=True)]


def wait(work: Any, description: Description, timeout: float, remedy: str = "") -> None:
    """Wait for a work handle of torch.distributed; its failure becomes a NetworkError that begins with the description."""
    try:
        work.wait(timedelta(seconds=timeout))
    except (RuntimeError, dist.DistError) as error:
        cause = f"it was silent for {timeout:g} s" if "timed out" in str(error).lower() else explain_error(error)
        prefix = description if isinstance(description, str) else description()
        raise NetworkError(f"{prefix}: {cause}. {remedy}".rstrip()) from None


def explain_error(error: BaseException) -> str:
    """Return the cause of an error of torch.distributed, as part of a sentence."""
    closed = ("closed by peer", "reset by peer", "Broken pipe", "pair closure", "refused")
    if any(words in str(error) for words in closed):
        return "its connection is closed, the process is gone or has given up"
    return first_line(error)


def first_line(error: BaseException) -> str:
    """Return the first line of an error, without the position in torch's source."""
    return str(error).split("\n")[0].rpartition("] ")[2].strip()[:200]


def check_timeout(timeout: float, least: float = 0.0) -> float:
    """Return a timeout if it is finite and more than ``least`` seconds."""
    if not least < timeout < float("inf"):
        raise PerronError(f"timeout is a number of seconds, more than {least:g}; got {timeout}.")
    return timeout


@atexit.register
def _drain() -> None:
    """Let gloo's threads release their tensors: one that does so while the interpreter shuts down aborts the process."""
    if dist.is_available() and world() is not None:
        time.sleep(DRAIN_SECONDS)

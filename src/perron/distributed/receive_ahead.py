"""Receives of coming steps, posted ahead.

gloo transfers a message only after the receiver has announced that the receive is posted. If that happens in the same step, the
message takes two one-way latencies; if it happened steps before, it takes one.

The batches of a step are numbered by position. If the last two batches at a position exchanged tensors of the same sizes on the
same sides, the next ones are predicted to do so too, with the next matrices of the sequence. All processes make the same
predictions in the same order, so the sender of a message knows the tag of the receive that was posted for it. If a prediction is
wrong, it is wrong on all nodes: they complete the unused receives with blank messages, and the batch gets a new tag. They do the
same when an optimizer settles, as before it loads a state or closes.

No step waits for a blank message before a later message on the same link has arrived; by then the blank one has arrived as well.
A blank message is one number, BLANK, a NaN that no arithmetic produces. A receive posted ahead ends with this number (for bytes:
with the 8 bytes of the longest) until its message arrives, so a node that uses a receive which its neighbor has completed with a
blank message gets an error.

Memory: receives that are ``ahead`` steps ahead take ``ahead`` times the bytes that a step receives.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from perron.algorithms.node import Side
from perron.distributed.process_group import Ledger, Peers, Transfer
from perron.errors import PerronError

if TYPE_CHECKING:
    from perron.distributed.exchange import MessagePlan
    from perron.distributed.node import DistributedNode

MOST_AHEAD = 16  # steps
RELIABLE = 64  # right predictions after which a wrong one is an exception
PARTS = 64  # tags of one batch
BLANK = {
    torch.float64: (torch.int64, 0x7FF5EED15EED15EE),
    torch.float32: (torch.int32, 0x7FA5EED1),
    torch.bfloat16: (torch.int16, 0x7FA5),
    torch.float16: (torch.int16, 0x7DA5),
}
BLANK_BYTES = torch.tensor(
    list(BLANK[torch.float64][1].to_bytes(8, "little")), dtype=torch.uint8
)  # no message ends with them


class Form(NamedTuple):
    """What is known of an exchange in advance; equal on all nodes."""

    side: Side
    number: int  # of the matrix: the step, or with several rounds a multiple of it and more
    numel: int
    dtype: torch.dtype
    device: torch.device


class FailedWork:
    """Stands for a transfer that could not be posted; waiting for it raises the error."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def wait(self, _timeout: object) -> None:
        raise self.error


class Receives:
    """The receives of one batch, with the number that its messages have.

    Attributes:
        number: of the batch, among all of the process group.
        ahead: whether they were posted ahead.
        separate: whether each transfer has a work of its own, as on gloo; NCCL posts the receives with the sends.
        plans: all messages of the batch, the received ones first.
        transfers, works: of the receives.
        failed: the place and error of the receive that could not be posted.
    """

    def __init__(self, node: DistributedNode, forms: Sequence[Form], *, ahead: bool = False) -> None:
        self.ahead, self.number = ahead, node.peers.ledger.next_batch()
        self.forms, self.key = forms, node.form_key(forms)
        self.plans = node.plan(forms, self.key)
        self.separate = all(form.device.type == "cpu" for form in forms)
        self.transfers = [self.transfer(plan, _buffer(forms, plan)) for plan in self.plans if not plan.sent]
        for transfer in self.transfers if ahead else ():
            make_blank(transfer.tensor)
        self.works: list[Any] = []
        self.failed: tuple[int, FailedWork] | None = None
        if self.separate:
            self.post(node, self.transfers)

    def transfer(self, plan: MessagePlan, tensor: Tensor) -> Transfer:
        """Return the transfer of a message; sender and receiver compute the same tag."""
        return Transfer(plan.neighbor, tensor, (self.number * PARTS + plan.part) % 2**31, plan.sent)

    def post(self, node: DistributedNode, transfers: Sequence[Transfer]) -> None:
        """Post transfers, up to the first that fails."""
        try:
            if self.failed is None:
                for group in [[one] for one in transfers] if self.separate else [list(transfers)]:
                    self.works += node.peers.post(group)
        except (RuntimeError, dist.DistError) as error:
            self.failed = len(self.works), FailedWork(error)


def make_blank(tensor: Tensor) -> Tensor:
    """End a tensor with the number that blank messages have; return it."""
    if tensor.dtype == torch.uint8:
        tensor[-len(BLANK_BYTES) :] = BLANK_BYTES[: tensor.numel()]
    else:
        kind, bits = BLANK[tensor.dtype]
        tensor[-1:].view(kind).fill_(bits)
    return tensor


def is_blank(message: Tensor) -> bool:
    """Whether a receive posted ahead has got a blank message."""
    if message.dtype == torch.uint8:
        return torch.equal(message[-len(BLANK_BYTES) :], BLANK_BYTES)
    kind, bits = BLANK[message.dtype]
    return message.numel() > 0 and message[-1:].view(kind).item() == bits


def _buffer(forms: Sequence[Form], plan: MessagePlan) -> Tensor:
    """Return memory for a message."""
    joined = [forms[index] for index in plan.indices]
    kinds = {form.dtype for form in joined}
    if len(kinds) == 1:
        return torch.empty(sum(form.numel for form in joined), dtype=joined[0].dtype, device=joined[0].device)
    size = sum(form.numel * form.dtype.itemsize for form in joined)
    return torch.empty(size, dtype=torch.uint8, device=joined[0].device)


class _Position:
    """The batches at one position of the steps."""

    def __init__(self) -> None:
        self.last: list[Form] = []
        self.alike = 0  # batches in a row that were like the one before
        self.needed = 1  # of them, before receives are posted ahead; doubled by a wrong prediction soon after another
        self.right = 0  # predictions since the last wrong one
        self.ahead: deque[Receives] = deque()


class ReceiveAhead:
    """The receives that a node has posted for coming steps, at most ``steps`` for each batch and incoming link."""

    def __init__(self, steps: int) -> None:
        self.steps = check_ahead(steps)
        self.clear()

    def clear(self) -> None:
        """Forget everything, as after an error: no message will arrive."""
        self.positions: list[_Position] = []
        self._step, self._place = -1, 0

    def take(self, node: DistributedNode, forms: list[Form]) -> Receives:
        """Return the receives of the next batch: those posted ahead if they are what it needs, otherwise new ones."""
        if node.step != self._step:
            self._step, self._place = node.step, 0
        else:
            self._place += 1
        if self._place == len(self.positions):
            self.positions.append(_Position())
        position = self.positions[self._place]
        if position.ahead:
            if position.ahead[0].key == node.form_key(forms):
                position.right += 1
                return position.ahead.popleft()
            position.needed = 2 * position.needed if position.right < RELIABLE else 1
            position.right = position.alike = 0
            _complete(position, node.peers)
        return Receives(node, forms)

    def extend(self, node: DistributedNode, forms: list[Form]) -> None:
        """Post the receives that follow those of the batch that was taken last."""
        position = self.positions[self._place]
        before, position.last = position.last, forms
        if not _alike(before, forms):
            position.alike = 0
            return
        position.alike += 1
        usual = all(one.device.type == "cpu" and one.dtype in (*BLANK, torch.uint8) for one in forms)
        if position.alike < position.needed or not usual:
            return
        while len(position.ahead) < self.steps:
            times = len(position.ahead) + 1
            coming = [
                now._replace(number=now.number + times * (now.number - past.number))
                for past, now in zip(before, forms, strict=True)
            ]
            position.ahead.append(Receives(node, coming, ahead=True))

    def settle(self, peers: Peers) -> None:
        """Complete the receives posted ahead, on all nodes, and begin again to predict."""
        for position in self.positions:
            _complete(position, peers)
        self.clear()


def _complete(position: _Position, peers: Peers) -> None:
    """Send blank messages to the receives that the neighbors have posted ahead, as they do to this node's.

    One number is enough: gloo takes a message that is shorter than the receive.
    """
    for receives in position.ahead:
        peers.ledger.leave(receives.transfers, receives.works)
        for plan in receives.plans:
            if plan.sent:
                blank = receives.transfer(plan, make_blank(_buffer(receives.forms, plan)[:1].clone()))
                with suppress(RuntimeError, dist.DistError):  # a neighbor that is gone needs none
                    peers.ledger.leave([blank], peers.post([blank]))
    position.ahead.clear()


def count_of(ledger: Ledger) -> str:
    """Return what the processes have to agree on when an optimizer is made: their counts, and receives of nodes that are gone."""
    if any(one.positions for _, one in ledger.nodes):
        gc.collect()  # an optimizer that was dropped is part of cycles
    ledger.forget()
    numbers = [receives.number for one in ledger.dropped for place in one.positions for receives in place.ahead]
    return " ".join(map(str, [ledger.batches, *numbers]))


def agree_on_counts(peers: Peers, counts: Sequence[str]) -> None:
    """Continue from the largest count, and complete the receives of optimizers that were dropped everywhere.

    If the processes have dropped different ones, or after different steps, their memory is kept until the process group ends.
    """
    numbers = [[int(number) for number in count.split()] for count in counts]
    peers.ledger.batches = max(one[0] for one in numbers)  # they differ after a failed step
    dropped, peers.ledger.dropped = peers.ledger.dropped, []
    if all(one[1:] == numbers[0][1:] for one in numbers):
        for ahead in dropped:
            ahead.settle(peers)


def _alike(before: list[Form], now: list[Form]) -> bool:
    """Whether two batches differ at most in their matrices."""
    return [one._replace(number=0) for one in before] == [one._replace(number=0) for one in now]


def check_ahead(steps: int) -> int:
    """Return a number of steps by which receives are posted ahead, if it is one."""
    if isinstance(steps, bool) or not isinstance(steps, int) or not 0 <= steps <= MOST_AHEAD:
        raise PerronError(
            f"receive_ahead is the number of steps by which receives are posted ahead, a whole number from 0 to {MOST_AHEAD}; "
            f"got {steps!r}."
        )
    return steps

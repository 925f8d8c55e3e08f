"""Operations that all nodes take part in: forming the network, averaging the models, training on data of unequal length."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from secrets import token_hex
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from perron._memory import keep_freed_memory
from perron._modules import temporarily_set
from perron.algorithms.quantized import quantized
from perron.distributed.asynchronous import AsynchronousNode
from perron.distributed.consistency import (
    compare,
    copy_tensors,
    gather_average,
    gather_tensors,
    gather_texts,
    versions,
)
from perron.distributed.finite import is_finite
from perron.distributed.inner import copy_memory
from perron.distributed.launch.worker import follow
from perron.distributed.node import DistributedNode
from perron.distributed.process_group import START_TIMEOUT, Peers
from perron.distributed.receive_ahead import agree_on_counts, count_of
from perron.errors import DivergenceError, NetworkError, PerronError, brief, listed
from perron.networks.builder import build_network
from perron.networks.facts import Network
from perron.networks.mixing import Mixing
from perron.networks.repeat import repeat

if TYPE_CHECKING:
    from perron.distributed.driver import Driver
    from perron.distributed.elastic.recovery import Recovery
    from perron.distributed.optimizer import Decentralized

LARGE = 2**17  # bytes, from which on glibc gets memory from the system, and gives it back when it is freed
AVERAGED = "The model is the average of all nodes' now; leave averaged_model() before {}."

log = logging.getLogger("perron")


def assemble(
    optimizer: Decentralized,
    peers: Peers,
    x: Tensor,
    mixing: Mixing | None = None,
    sources: Sequence[int] = (),
    step: int = 0,
) -> None:
    """Form the network of an optimizer: compare settings, agree on a run id, copy the model, and start the algorithm.

    The vector x is this node's model; it is overwritten where another node's is copied.
    Sources are the ranks whose models the training continues with; there are none at its beginning.
    """
    flat, settings, algorithm = optimizer._flat, optimizer._settings, optimizer.algorithm
    if mixing is None:
        mixing = build_network(optimizer._graph, peers.size, weights=settings["weights"], seed=settings["seed"])
    algorithm.check(Network(repeat(mixing, settings["rounds"])))
    kind = AsynchronousNode if settings["asynchronous"] else DistributedNode
    options = {"timeout": optimizer.timeout, "seed": settings["seed"], "receive_ahead": settings["receive_ahead"]}
    optimizer._running_algorithm = quantized(algorithm, settings["wire"], mixing)
    node = kind(mixing, peers=peers, dtype=flat.dtype, device=flat.device, **options)
    if sources and hasattr(optimizer, "node"):
        node.posted_bytes = optimizer.node.posted_bytes
    optimizer.node = node
    follow(optimizer)
    facts = {"the algorithm": algorithm.description, "the network": f"{mixing!r} {mixing.fingerprint}"}
    facts |= flat.facts(optimizer.param_groups, began=bool(sources))
    limit = optimizer.timeout if sources else START_TIMEOUT
    compare(versions() | facts | settings, peers, limit)
    now = max(time.time_ns(), int(optimizer.run_id.partition("-")[0] or 0) + 1)  # ids only grow, whatever clocks do
    texts = [
        text.split(" ", 1) for text in gather_texts(f"{now:020d}-{token_hex(4)} {count_of(peers.ledger)}", peers, limit)
    ]
    optimizer.run_id = max(run_id for run_id, _ in texts)
    agree_on_counts(peers, [count for _, count in texts])
    if sources or settings["broadcast"]:
        what = f"Node {node.name} lost another node while the model was copied"
        tensors = [x, *flat.frozen.values(), *_buffers(optimizer).values()]
        copy_tensors(tensors, sources or [0], peers, what, optimizer.timeout)
        if not is_finite(x):
            source = node.name if peers.rank in sources else peers.node_ids[(sources or [0])[0]]
            raise DivergenceError(f"The model of node {source}, which node {node.name} starts from, is not finite.")
    if x.is_cpu and x.nbytes >= LARGE:
        keep_freed_memory()  # a step makes several vectors of this size
    node.step = step
    optimizer._start(x, resume=bool(sources))
    if sources:
        copy_memory(optimizer, sources, peers)
    optimizer._begin()


def check_rounds(rounds: int, *, plain: bool) -> int:
    """Refuse a number of exchanges in a step that cannot be; ``plain``: synchronous, in full precision."""
    if rounds < 1 or (rounds > 1 and not plain):
        raise PerronError(
            f"rounds is a number of exchanges in a step, at least 1; more need wire=None and no asynchronous=True. Got {rounds}."
        )
    return rounds


def recovery_from(optimizer: Driver, error: NetworkError) -> Recovery:
    """Return the optimizer's recovery; without elastic membership raise the error, now and at every later step."""
    if optimizer._recovery is None:
        optimizer._failure = error
        raise error
    return optimizer._recovery


def diverged(optimizer: Decentralized, error: DivergenceError) -> DivergenceError:
    """Return the error of a node that cannot continue, to be raised; with elastic membership it ends the training for all."""
    if optimizer._recovery is not None:
        optimizer._recovery.fail(error)
    return error


def retry_collective(optimizer: Decentralized, activity: str, action: Callable[[], None]) -> bool:
    """Run an action that all members run together, and return whether it was done; see `Recovery.retry_collective`."""
    try:
        action()
    except NetworkError as error:
        return recovery_from(optimizer, error).retry_collective(activity, action, error)
    return True


@contextmanager
def averaged_model(optimizer: Decentralized) -> Iterator[None]:
    """See `Decentralized.averaged_model`."""
    if optimizer._averaging:
        raise PerronError("averaged_model() is entered already.")
    if optimizer._failure is not None:
        raise optimizer._failure
    flat = optimizer._flat
    values: dict[str, Tensor] = {}
    params: dict[str, Tensor] = {f"parameter {place}": param.detach() for place, param in enumerate(flat.params)}

    def average() -> None:
        node = optimizer.node
        mean = node.mean(optimizer._model).wait()
        what = f"Node {node.name} lost another node in the average of step {node.step}"
        values.update(gather_average(_buffers(optimizer), node.peers, what, optimizer.timeout))
        values.update(zip(params, flat.views(mean), strict=True))
        if not optimizer.asynchronous:  # all nodes have done the same number of steps
            _compare_rates(optimizer, what)

    with torch.no_grad():
        if not retry_collective(optimizer, "average", average):
            log.warning("Node %d: members changed, so this is its own model, not the average.", optimizer.node.name)
            values.update(zip(params, flat.views(optimizer._model), strict=True))
    optimizer._averaging = True
    try:
        with temporarily_set(_buffers(optimizer) | params, values):
            flat.remember()
            yield
    finally:
        optimizer._averaging = False
        flat.remember()


def _compare_rates(optimizer: Decentralized, what: str) -> None:
    """Warn if the nodes' learning rates differ, as when each has a scheduler that follows its own loss."""
    own = torch.tensor([float(one["lr"]) for one in optimizer.param_groups], dtype=torch.float64)
    peers = optimizer.node.peers
    rates = {rank: rate.tolist() for rank, rate in enumerate(gather_tensors(own, peers, what, optimizer.timeout))}
    odd = [rank for rank in rates if rates[rank] != rates[0]]
    if odd and peers.rank in (0, odd[0]):
        shown = listed(f"node {peers.node_ids[rank]}: {', '.join(f'{r:g}' for r in rates[rank])}" for rank in (0, *odd))
        log.warning("The learning rates of the nodes differ (%s); give all nodes the same schedule.", shown)


def _buffers(optimizer: Decentralized) -> dict[str, Tensor]:
    """Return the model's buffers, by names that no parameter has in `averaged_model`."""
    named = optimizer.model.named_buffers() if optimizer.model is not None else ()
    return {f"buffer {name}": buffer for name, buffer in named}


@contextmanager
def join(optimizer: Decentralized, steps: int) -> Iterator[None]:
    """See `Decentralized.join`."""
    if optimizer._recovery is not None:
        raise PerronError("join() counts calls, elastic membership cannot: loop while optimizer.steps < total.")
    counts = getattr(optimizer.algorithm, "local_steps", 1)
    if not isinstance(counts, int):
        raise PerronError(
            "join() counts calls, and with different numbers of local steps nodes need different numbers of calls: loop while "
            f"optimizer.steps < total. Got local_steps={brief(counts)}."
        )
    first, most, peers = optimizer._calls, torch.tensor([steps]), optimizer.node.peers
    work = peers.all_reduce(most, dist.ReduceOp.MAX, timeout=optimizer.timeout)
    peers.finish([(work, "Not all processes entered join()")], optimizer.timeout)
    yield
    with torch.no_grad():
        while optimizer._calls < first + int(most):
            optimizer._advance(optimizer.last.clone())

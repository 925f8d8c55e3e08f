"""One process for each node, on torch.distributed.

Exchanges are posted early: those that are pending when a step yields its point are in flight while the gradient is computed.
Messages follow the edges of the digraph, unweighted; the receiver applies the weights. Small messages to one neighbor are fused.

Every wait has a timeout (see `process_group`) and an error that names neighbor, edge, exchange and step. gloo neither wakes nor
polls a receive whose sender died in the middle of a message; only the timeout ends it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from perron.algorithms.base import Algorithm, Query, advance
from perron.algorithms.codecs import Encoded, Wire
from perron.algorithms.node import Handle, LocalSamples, Node, NodeLinks, Side
from perron.algorithms.quantized import quantized
from perron.distributed.exchange import Batch, Exchange, Gather, Mean, MessagePlan, Neighbors, plan_messages
from perron.distributed.process_group import RECEIVE_AHEAD, TIMEOUT, FixedPeers, Peers, check_timeout
from perron.distributed.receive_ahead import Form, ReceiveAhead
from perron.errors import PerronError
from perron.networks.facts import Network
from perron.networks.mixing import Mixing
from perron.problems.base import Problem
from perron.random import LOSSES, NOISE, PARTICIPATION, SAMPLES, Keyed, link_names
from perron.schedules import LearningRate, rate_at

KEPT = 16  # neighbors in the cache, where they do not repeat; and as many for each step ahead


class DistributedNode(Node):
    """This process as a node of a network.

    Args:
        mixing: the network; its nodes are the peers in their order.
        peers: the processes; those of the default process group if None.
        timeout: seconds after which a silent neighbor is an error.
        seed: of the random numbers that nodes draw; the simulator draws the same ones.
        samples: number of samples of each node, ``(n,)``, where it is known.
        receive_ahead: by how many steps receives are posted ahead, equal on all nodes; see `perron.distributed.receive_ahead`.

    Attributes:
        waited: seconds spent waiting for each neighbor, by its name.
        posted_bytes: bytes of the messages that were posted so far, see `bytes_sent`.
    """

    def __init__(
        self,
        mixing: Mixing,
        *,
        peers: Peers | None = None,
        timeout: float = TIMEOUT,
        seed: int = 0,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
        samples: Tensor | None = None,
        receive_ahead: int = RECEIVE_AHEAD,
    ) -> None:
        self.peers = FixedPeers() if peers is None else peers
        size = self.peers.size
        if size != mixing.nodes:
            raise PerronError(f"The network has {mixing.nodes} nodes but the process group {size}; they must be equal.")
        self.mixing, self.timeout = mixing, check_timeout(timeout)
        self.nodes, self.number, self.step = size, self.peers.rank, 0
        self.name = self.peers.node_ids[self.number]
        self._dtype, self._device = dtype, device
        self._neighbors: dict[tuple[Side, int], Neighbors] = {}
        self._plans: dict[tuple[Any, ...], list[MessagePlan]] = {}
        self._pending: list[Exchange] = []
        self._posted: list[Batch] = []
        self.ahead = ReceiveAhead(receive_ahead)
        self.peers.ledger.add(self, self.ahead)
        self.waited: dict[int, float] = defaultdict(float)
        self.posted_bytes = 0
        self.seed = seed
        self._participation = Keyed(seed, stream=PARTICIPATION, node=self.number)
        own = None if samples is None else samples[self.number, None]
        self._samples = None if own is None else (own, Keyed(seed, stream=SAMPLES, node=self.number))

    def neighbors(self, side: Side, step: int) -> Neighbors:
        """Return this node's neighbors in a step."""
        key = (side, self.mixing.index(side, step))
        if key not in self._neighbors:
            if not self.mixing.period and len(self._neighbors) >= KEPT * (1 + self.ahead.steps):  # steps do not repeat
                del self._neighbors[next(iter(self._neighbors))]
            self._neighbors[key] = Neighbors(self.mixing.at(side, step), self.number)
        return self._neighbors[key]

    def pull(self, x: Tensor | Encoded) -> Handle:
        return self._exchange(Exchange, "pull", x)

    def push(self, y: Tensor | Encoded) -> Handle:
        return self._exchange(Exchange, "push", y)

    def _exchange(self, kind: type[Exchange], side: Side, x: Tensor | Encoded) -> Exchange:
        """Add an exchange to those that the next flush or wait posts."""
        self._pending.append(kind(self, side, x.detach() if isinstance(x, Tensor) else x))
        return self._pending[-1]

    def mean(self, x: Tensor) -> Handle:
        return Mean(self, x.detach())

    def flush(self) -> None:
        """Post all pending exchanges."""
        if self._pending:
            exchanges, self._pending = self._pending, []
            forms = [exchange.form for exchange in exchanges]
            batch = Batch(self, exchanges, self.ahead.take(self, forms))
            for exchange in exchanges:
                exchange.batch, exchange.posted = batch, True
            self._posted.append(batch)
            self.ahead.extend(self, forms)

    def form_key(self, forms: Sequence[Form]) -> tuple[Any, ...]:
        """Return what decides the messages of a batch."""
        return tuple((one.side, self.mixing.index(one.side, one.number), one.numel, one.dtype) for one in forms)

    def plan(self, forms: Sequence[Form], key: tuple[Any, ...]) -> list[MessagePlan]:
        """Return the messages of a batch; computed once for each step of the network's period."""
        plans = self._plans.get(key)
        if plans is None:
            plans = plan_messages(forms, [self.neighbors(one.side, one.number) for one in forms], self.nodes)
            if self.mixing.period:
                self._plans[key] = plans
        return plans

    def drain(self) -> None:
        """Wait for all messages in flight, before the process ends or its state is replaced."""
        self.flush()
        for batch in list(self._posted):
            batch.finish()
        self.ahead.settle(self.peers)

    def close(self) -> None:
        self.drain()

    def finished(self, batch: Batch) -> None:
        self._posted.remove(batch)

    @property
    def bytes_sent(self) -> int:
        """Bytes of the messages to neighbors so far; an average over all nodes counts as a ring all-reduce."""
        return self.posted_bytes

    def uniform(self) -> Tensor:
        return self._participation.uniform(self.step).to(device=self._device, dtype=self._dtype)

    @cached_property
    def unit(self) -> Tensor:
        unit = torch.zeros(self.nodes, dtype=self._dtype, device=self._device)
        unit[self.number] = 1
        return unit

    def links(self, side: Side) -> NodeLinks:
        return ProcessLinks(self, side)

    @property
    def samples(self) -> LocalSamples:
        return super().samples if self._samples is None else LocalSamples(*self._samples, self.step)

    def receive(self, side: Side, x: Tensor) -> Handle:
        """Start the exchange that gives the unweighted message of each neighbor."""
        return self._exchange(Gather, side, x)

    def tensor(self, values: Any) -> Tensor:
        """Return numbers in the precision and on the device of the node."""
        return torch.tensor(values, dtype=self._dtype, device=self._device)


class ProcessLinks(NodeLinks):
    """The incoming links of a process in the current step."""

    def __init__(self, node: DistributedNode, side: Side) -> None:
        self.node, self.side, self.neighbors = node, side, node.neighbors(side, node.step)

    @property
    def self_weight(self) -> Tensor:  # type: ignore[override]
        return self.node.tensor([self.neighbors.own])

    @property
    def share(self) -> Tensor:  # type: ignore[override]
        return self.node.tensor([self.node.nodes * float(Network(self.node.mixing).push_perron[self.node.number])])

    def receive(self, x: Tensor) -> Handle:
        return self.node.receive(self.side, x)

    def broadcast(self, x: Tensor) -> Tensor:
        return x.expand(len(self.neighbors.sources), *x.shape)

    def reduce(self, messages: Tensor) -> Tensor:
        return self.node.tensor(list(self.neighbors.sources.values())).to(messages.dtype) @ messages

    def uniform(self, size: int) -> Tensor:
        if self.neighbors.random is None:
            sources = np.fromiter(self.neighbors.sources, dtype=np.int64)
            names = link_names(sources, np.full_like(sources, self.node.number), self.node.nodes)
            self.neighbors.random = Keyed(self.node.seed, nodes=names, stream=LOSSES)
        return self.neighbors.random.uniform(2 * self.node.step + (self.side == "push"), size)


def iterates(
    problem: Problem,
    algorithm: Algorithm,
    mixing: Mixing,
    *,
    steps: int,
    lr: LearningRate,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    wrap: Callable[[Node], Node] = lambda node: node,
    wire: Wire | None = None,
    **options: Any,
) -> Iterator[Any]:
    """Yield the states of this node after 0, 1, ..., ``steps`` steps of an algorithm on its part of a problem.

    They equal those of trial 0 in the simulator with the same seed, `Simulation(...).iterates`. ``wrap`` may put a wrapper
    around the node, as `perron.algorithms.wrappers.Repeated`; ``wire`` quantizes messages as in `Simulation`.
    """
    algorithm = algorithm.with_l1(problem.proximal_l1)
    inner = DistributedNode(mixing, seed=seed, dtype=dtype, samples=problem.sample_counts, **options)
    algorithm.check(Network(mixing))
    algorithm = quantized(algorithm, wire, mixing)
    node = wrap(inner)
    local = problem.of_node(inner.number).to(dtype=dtype, device="cpu")
    random = Keyed(seed, trials=[0], nodes=[inner.number], stream=NOISE)
    state = algorithm.init(problem.start()[inner.number].to(dtype), node)
    draw = 0

    def gradient(point: Tensor) -> Tensor:
        nonlocal draw
        inner.flush()
        draw += 1
        return local.grad(point.view(1, 1, -1), draw - 1, random).view(-1)

    def query(asked: Query) -> Tensor:
        inner.flush()
        samples = None if asked.samples is None else asked.samples.view(1, 1, -1)
        return local.answer(Query(asked.point.view(1, 1, -1), samples))[0, 0]

    yield state
    for step in range(steps):
        inner.step = step
        state = advance(algorithm, state, node, rate_at(lr, step), gradient, query)
        yield state
    inner.drain()

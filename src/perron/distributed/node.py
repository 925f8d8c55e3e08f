"""One process for each node, on torch.distributed: the world in which algorithms run for real.

An exchange is posted as soon as it can be: what is pending when a step yields its point travels while the gradient is
computed. Messages go along the edges of the digraph only, raw; the listener weights what it hears. Messages to the same
neighbour that are small travel as one.

Every wait has a timeout (see `process_group`), and an error that names neighbour, edge, exchange and step.
gloo neither wakes nor polls a waiting receive whose sender died in the middle of a message; only the timeout ends it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from perron.algorithms.base import Algorithm
from perron.algorithms.node import IN_FULL, Handle, Node, Side
from perron.distributed.exchange import Apart, Batch, Edges, Exchange, Load, Mean, loads
from perron.distributed.process_group import (
    TIMEOUT,
    FixedPeers,
    Peers,
    check_timeout,
)
from perron.errors import PerronError
from perron.networks.facts import Network
from perron.networks.mixing import Mixing
from perron.problems.base import Problem
from perron.random import LOSSES, NOISE, PARTICIPATION, Keyed, link_names
from perron.schedules import LearningRate, rate_at


class DistributedNode(Node):
    """This process as a node of a network.

    Args:
        mixing: the network; its nodes are the peers in their order.
        peers: the processes; those of the default process group if None.
        timeout: seconds after which a silent neighbour is given up.
        seed: of what nodes draw themselves; as in the simulator.
        wire: the type of numbers on the wire, as ``torch.bfloat16``; that of the tensors if None.

    Attributes:
        waited: seconds spent in waiting for each neighbour, by its name.
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
        wire: torch.dtype | None = None,
    ) -> None:
        self.peers = FixedPeers() if peers is None else peers
        size = self.peers.size
        if size != mixing.nodes:
            raise PerronError(f"The network has {mixing.nodes} nodes but the process group {size}; they need as many.")
        self.mixing, self.timeout, self.wire = mixing, check_timeout(timeout), wire
        self.nodes, self.number, self.step = size, self.peers.rank, 0
        self.name = self.peers.node_ids[self.number]
        self._dtype, self._device = dtype, device
        self._edges: dict[tuple[Side, int], Edges] = {}
        self._plans: dict[tuple[Any, ...], list[Load]] = {}
        self._waiting: list[Exchange] = []
        self._posted: list[Batch] = []
        self._batches = 0
        self.waited: dict[int, float] = defaultdict(float)
        self._seed = seed
        self._participation = Keyed(seed, stream=PARTICIPATION, node=self.number)

    def edges(self, side: Side, step: int) -> Edges:
        """Who speaks to whom in a step."""
        matrices = self.mixing.sequences[0 if side == "pull" else 1]
        if not matrices:
            raise PerronError(f"This network has no {side} matrix.")
        which = (side, step % len(matrices))
        if which not in self._edges:
            self._edges[which] = Edges(matrices[which[1]], self.number)
        return self._edges[which]

    def pull(self, x: Tensor) -> Handle:
        """Ask for A x; posted at the next flush or wait."""
        return self._ask("pull", x)

    def push(self, y: Tensor) -> Handle:
        """Ask for B y; posted at the next flush or wait."""
        return self._ask("push", y)

    def _ask(self, side: Side, x: Tensor, *, apart: bool = False) -> Exchange:
        self._waiting.append((Apart if apart else Exchange)(self, side, x.detach()))
        return self._waiting[-1]

    def mean(self, x: Tensor) -> Handle:
        """Start an all-reduce."""
        return Mean(self, x.detach())

    def flush(self) -> None:
        """Post all exchanges that were asked for."""
        if self._waiting:
            exchanges, self._waiting = self._waiting, []
            batch = Batch(self, exchanges)
            for exchange in exchanges:
                exchange.batch, exchange.posted = batch, True
            self._posted.append(batch)
            self._batches += 1

    def plan(self, exchanges: list[Exchange]) -> list[Load]:
        """What goes to whom and comes from whom, the same on both sides; made once for each step of a period."""
        key = tuple((id(one.edges), one.tensor.numel(), one.tensor.dtype) for one in exchanges)
        if key not in self._plans:
            self._plans[key] = [
                Load(neighbour, sent, number, places)
                for sent in (False, True)  # who listens before others speak spares gloo a question
                for neighbour in range(self.nodes)
                for number, places in enumerate(loads(exchanges, neighbour, sent=sent))
            ]
        return self._plans[key]

    def drain(self) -> None:
        """Wait for all that is under way, so that nothing is left when a process ends or a state is replaced."""
        self.flush()
        for batch in list(self._posted):
            batch.finish()

    def close(self) -> None:
        """At the end, on every node."""
        self.drain()

    def finished(self, batch: Batch) -> None:
        """A batch has all its messages."""
        self._posted.remove(batch)

    def tag(self, part: int) -> int:
        """A number that sender and listener give to the same message."""
        return (self._batches * 64 + part) % 2**31

    def encode(self, tensor: Tensor) -> Tensor:
        """As it goes over the wire."""
        return tensor if self.wire is None else tensor.to(self.wire)

    def uniform(self) -> Tensor:
        """As this node draws it in the simulator."""
        return self._participation.uniform(self.step).to(device=self._device, dtype=self._dtype)

    @cached_property
    def unit(self) -> Tensor:
        """This node's unit vector."""
        found = torch.zeros(self.nodes, dtype=self._dtype, device=self._device)
        found[self.number] = 1
        return found

    @cached_property
    def push_share(self) -> Tensor:
        """n pi_B of this node."""
        share = self.nodes * float(Network(self.mixing).push_perron[self.number])
        return torch.tensor([share], dtype=self._dtype, device=self._device)

    def self_weight(self, side: Side) -> Tensor:
        """What the node keeps to itself in this step."""
        return torch.tensor([self.edges(side, self.step).own], dtype=self._dtype, device=self._device)

    def hear(self, side: Side, x: Tensor) -> Handle:
        """Ask for what each neighbour sends; posted at the next flush or wait."""
        if self.wire is not None:
            raise PerronError(IN_FULL)
        return self._ask(side, x, apart=True)

    def inward(self, side: Side, x: Tensor) -> Tensor:
        """One's own value for each neighbour that one hears."""
        return x.expand(len(self.edges(side, self.step).sources), *x.shape)

    def weigh(self, side: Side, heard: Tensor) -> Tensor:
        """The weighted sum."""
        return self._weights(side).to(heard.dtype) @ heard

    def _weights(self, side: Side) -> Tensor:
        weights = list(self.edges(side, self.step).sources.values())
        return torch.tensor(weights, dtype=self._dtype, device=self._device)

    def chances(self, side: Side, size: int) -> Tensor:
        """As this node's links draw them in the simulator."""
        edges = self.edges(side, self.step)
        if edges.random is None:
            sources = np.fromiter(edges.sources, dtype=np.int64)
            names = link_names(sources, np.full_like(sources, self.number), self.nodes)
            edges.random = Keyed(self._seed, nodes=names, stream=LOSSES)
        return edges.random.uniform(2 * self.step + (side == "push"), size)


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
    **options: Any,
) -> Iterator[Any]:
    """The states of this node after 0, 1, ..., ``steps`` steps of an algorithm on its part of a problem.

    The same numbers as trial 0 of the simulator with the same seed: `Simulation(...).iterates`. ``wrap`` puts a wrapper around
    the node, as `perron.algorithms.node.Quantized`.
    """
    inner = DistributedNode(mixing, seed=seed, dtype=dtype, **options)
    algorithm.check(Network(mixing))
    node = wrap(inner)
    mine = problem.of_node(inner.number).to(dtype=dtype, device="cpu")
    random = Keyed(seed, trials=[0], nodes=[inner.number], stream=NOISE)
    state = algorithm.init(problem.start()[inner.number].to(dtype), node)
    draw = 0
    yield state
    for step in range(steps):
        inner.step = step
        running = algorithm.step(state, node, rate_at(lr, step))
        try:
            point = next(running)
            while True:
                inner.flush()
                grad = mine.grad(point.view(1, 1, -1), draw, random).view(-1)
                draw += 1
                point = running.send(grad)
        except StopIteration as done:
            state = done.value
        yield state
    inner.drain()

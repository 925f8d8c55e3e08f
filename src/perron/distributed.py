"""One process for each node, on torch.distributed: the world in which algorithms run for real.

An exchange is posted as soon as it can be: what is pending when a step yields its point travels while the gradient is
computed. Messages go along the edges of the digraph only, raw; the listener weights what it hears. Messages to the same
neighbour that are small travel as one.

Every wait has an end (`perron.peers` says which waits there are), and an error that names neighbour, edge, exchange and step.
gloo neither wakes nor polls a waiting receive whose sender died in the middle of a message; only the timeout ends it.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from scipy.sparse import issparse
from torch import Tensor

from perron.agreement import met
from perron.algorithm import Algorithm
from perron.elastic import Membership, joined
from perron.errors import NetworkError, PerronError
from perron.keyed import LOSSES, NOISE, PARTICIPATION, Keyed, link_names
from perron.mixing import Mixing
from perron.network import Network
from perron.node import IN_FULL, Handle, Node, Side
from perron.peers import LAST, START, TIMEOUT, Group, Parcel, Peers, checked, follow_launcher, line, meaning, timed
from perron.problem import Problem
from perron.schedule import LearningRate, rate_at

# Bytes: messages to one neighbour travel as one up to here; beyond, copying costs more than it saves.
FUSE_BELOW = 2**20

_membership: Membership | None = None


def init(*, backend: str | None = None, timeout: float = START, elastic: bool | None = None) -> tuple[int, int]:
    """Join the processes that the launcher (torchrun, or perron launch) describes; this node's number, and how many begin.

    gloo on CPUs, NCCL where every process has a GPU of its own. ``timeout`` is how many seconds to wait for the others at the
    start. ``elastic``: go on when processes are lost, and let others join (gloo only); by default as `perron launch` says.
    Does nothing if it was called before. Processes that were started again by their launcher meet apart from those before.
    """
    global _membership  # noqa: PLW0603 - a process has one, as torch.distributed has one default group
    if not dist.is_available():
        raise PerronError("This build of PyTorch has no torch.distributed.")
    if _membership is not None:
        return _membership.node, _membership.size
    if dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    missing = [name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise PerronError(
            f"There is no process group: {', '.join(missing)} not set. Start with: torchrun --standalone --nproc-per-node 4 "
            "script.py"
        )
    checked(timeout)
    follow_launcher()
    if elastic or (elastic is None and os.environ.get("PERRON_ELASTIC") == "1"):
        if backend not in (None, "gloo"):
            raise PerronError(f"Elastic membership works on gloo; got backend {backend!r}.")
        _membership = joined()
        return _membership.node, _membership.size
    many = torch.cuda.is_available() and torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if many:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    try:
        store = met(rank, size, timedelta(seconds=timeout))
        chosen = backend or ("cpu:gloo,cuda:nccl" if many else "gloo")
        dist.init_process_group(chosen, store=store, rank=rank, world_size=size, timeout=timedelta(seconds=timeout))
    except (RuntimeError, dist.DistError) as error:
        raise NetworkError(f"The process group could not be formed within {timeout:g} s: {line(error)}") from None
    return rank, size


def membership() -> Membership | None:
    """This process's elastic membership, if it has one."""
    return _membership


def close() -> None:
    """At the end of a script: take the process group down, on every node."""
    if dist.is_initialized():
        time.sleep(LAST)  # threads of gloo that still hold tensors when the interpreter goes would abort the process
        dist.destroy_process_group()


class Exchange(Handle):
    """A pull or push that was asked for; posted with all others that are pending then.

    ``batch`` is there from when it is posted until it is done, ``result`` from then on.
    """

    batch: _Batch
    result: Tensor

    def __init__(self, node: DistributedNode, side: Side, tensor: Tensor) -> None:
        self.node, self.side, self.tensor = node, side, tensor
        self.step = node.step
        self.edges = edges = node.edges(side, node.step)
        self.sources, self.own = edges.sources, edges.own
        self.posted = self.done = False

    def wait(self) -> Tensor:
        """The weighted sum of what the neighbours sent and of one's own."""
        if not self.posted:
            self.node.flush()
        if not self.done:
            self.batch.finish()
        return self.result

    def mixed(self, heard: list[tuple[float, Tensor]]) -> Tensor:
        """The weighted sum, in the place of the first message: large vectors are not copied more often than need be."""
        if not heard or heard[0][1].dtype != self.tensor.dtype:
            result = self.kept()
        else:
            (weight, result), *heard = heard
            if weight + self.own == 1:  # one pass over memory rather than two
                result.lerp_(self.tensor, self.own)
            else:
                result.mul_(weight).add_(self.tensor, alpha=self.own)
        for weight, other in heard:
            result.add_(other, alpha=weight)
        return result

    def kept(self) -> Tensor:
        """One's own part; of a push in few bits with all that rounding took from the messages, so that no mass is lost."""
        if self.side == "pull" or self.node.wire is None:
            return self.tensor * self.own
        sent = self.tensor.to(self.node.wire).to(self.tensor.dtype)
        return sent * self.own + (self.tensor - sent)

    def __str__(self) -> str:
        return f"{self.side} of {self.tensor.numel()} numbers"


class Apart(Exchange):
    """What the neighbours send, a row for each, unweighted."""

    def mixed(self, heard: list[tuple[float, Tensor]]) -> Tensor:
        """Together, in the order of the neighbours."""
        return torch.stack([value for _, value in heard]) if heard else self.tensor.new_empty((0, *self.tensor.shape))


class _Mean(Handle):
    """An exact average under way."""

    def __init__(self, node: DistributedNode, x: Tensor) -> None:
        self.node, self.step = node, node.step
        self.total = x.clone()
        self.work = node.peers.all_reduce(self.total, timeout=node.timeout)

    def wait(self) -> Tensor:
        """The average."""
        what = f"Node {self.node.name} lost somebody in the average of step {self.step}"
        self.node.peers.finish([(self.work, what)], self.node.timeout)
        return self.total / self.node.nodes


class Load(NamedTuple):
    """What a message will hold: the places of some of the exchanges that are posted together."""

    neighbour: int
    sent: bool
    number: int  # among those to, or from, this neighbour
    places: list[int]


class _Batch:
    """Exchanges that were posted together."""

    def __init__(self, node: DistributedNode, exchanges: list[Exchange]) -> None:
        self.node, self.exchanges = node, exchanges
        self.loads = node.plan(exchanges)
        self.parcels = [self._parcel(load) for load in self.loads]
        self.error: BaseException | None = None
        self.works: list[Any] = []
        try:
            self.works = node.peers.post(self.parcels)
        except (RuntimeError, dist.DistError) as error:
            self.error = error  # raised where somebody waits

    def _parcel(self, load: Load) -> Parcel:
        node, tensors = self.node, [self.exchanges[place].tensor for place in load.places]
        if load.sent:
            flat = [tensor.reshape(-1) for tensor in tensors]
            buffer = node.encode((flat[0] if len(flat) == 1 else torch.cat(flat)).contiguous())
        else:
            size = sum(tensor.numel() for tensor in tensors)
            buffer = torch.empty(size, dtype=node.wire or tensors[0].dtype, device=tensors[0].device)
        return Parcel(load.neighbour, buffer, node.tag(load.number), load.sent)

    def finish(self) -> None:
        """Wait for all messages and form the sums."""
        node = self.node
        if self.error is not None:
            said = f"Node {node.name} lost {self._everybody()} in step {node.step}: {meaning(self.error)}."
            raise NetworkError(f"{said} {node.peers.remedy}".rstrip()) from None
        works = timed(self.works, [node.peers.names[load.neighbour] for load in self.loads], node.waited)
        try:
            node.peers.finish([(one, partial(self._lost, place)) for place, one in enumerate(works)], node.timeout)
        except NetworkError:
            self.works, self.parcels = [], []  # large, and connections hang on them
            raise
        heard: list[list[tuple[float, Tensor]]] = [[] for _ in self.exchanges]
        for load, parcel in zip(self.loads, self.parcels, strict=True):
            start = 0
            for place in load.places if not load.sent else ():
                exchange = self.exchanges[place]
                stop = start + exchange.tensor.numel()
                one = parcel.tensor[start:stop].view_as(exchange.tensor)
                heard[place].append((exchange.sources[load.neighbour], one))
                start = stop
        results = [exchange.mixed(parts) for exchange, parts in zip(self.exchanges, heard, strict=True)]
        for exchange, result in zip(self.exchanges, results, strict=True):
            exchange.result, exchange.done = result, True
            del exchange.batch  # without the cycle, buffers go at once
        node.finished(self)

    def _lost(self, place: int) -> str:
        """What an error says if a work fails. NCCL gives one for all messages, gloo one for each."""
        node, single = self.node, len(self.works) == len(self.loads)
        load, other = self.loads[place], node.peers.names[self.loads[place].neighbour]
        who = f"node {other}" if single else self._everybody()
        exchanges = [self.exchanges[one] for one in load.places] if single else self.exchanges
        what = " and ".join(str(one) for one in exchanges)
        if single:
            source, target = (node.name, other) if load.sent else (other, node.name)
            what = f"edge node {source} -> node {target}, {what}"
        return f"Node {node.name} lost {who} in step {self.exchanges[0].step} ({what})"

    def _everybody(self) -> str:
        names = sorted({self.node.peers.names[load.neighbour] for load in self.loads})
        return f"one of the nodes {', '.join(map(str, names))}"


class Edges:
    """Whom a node hears with what weight, whom it speaks to, and what it keeps, on one side and in one step."""

    def __init__(self, matrix: Any, number: int) -> None:
        row = matrix[[number]].toarray()[0] if issparse(matrix) else matrix[number]
        column = matrix[:, [number]].toarray()[:, 0] if issparse(matrix) else matrix[:, number]
        self.sources = {int(j): float(row[j]) for j in row.nonzero()[0] if j != number}
        self.targets = {int(j) for j in column.nonzero()[0] if j != number}
        self.own = float(row[number])
        self.random: Keyed | None = None  # of the links, if they are not reliable


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
        self.peers = Group() if peers is None else peers
        size = self.peers.size
        if size != mixing.nodes:
            raise PerronError(f"The network has {mixing.nodes} nodes but the process group {size}; they need as many.")
        self.mixing, self.timeout, self.wire = mixing, checked(timeout), wire
        self.nodes, self.number, self.step = size, self.peers.rank, 0
        self.name = self.peers.names[self.number]
        self._dtype, self._device = dtype, device
        self._edges: dict[tuple[Side, int], Edges] = {}
        self._plans: dict[tuple[Any, ...], list[Load]] = {}
        self._waiting: list[Exchange] = []
        self._posted: list[_Batch] = []
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
        return _Mean(self, x.detach())

    def flush(self) -> None:
        """Post all exchanges that were asked for."""
        if self._waiting:
            exchanges, self._waiting = self._waiting, []
            batch = _Batch(self, exchanges)
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
                for number, places in enumerate(_loads(exchanges, neighbour, sent=sent))
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

    def finished(self, batch: _Batch) -> None:
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
    the node, as `perron.node.Quantized`.
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


def _loads(exchanges: list[Exchange], neighbour: int, *, sent: bool) -> list[list[int]]:
    """The places of exchanges with one neighbour, message by message: together if small, each on its own if large."""
    places = [
        place for place, one in enumerate(exchanges) if neighbour in (one.edges.targets if sent else one.edges.sources)
    ]
    tensors = [exchanges[place].tensor for place in places]
    if sum(tensor.numel() * tensor.element_size() for tensor in tensors) <= FUSE_BELOW:
        return [places] if places else []
    return [[place] for place in places]

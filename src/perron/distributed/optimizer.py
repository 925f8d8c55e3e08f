"""`Decentralized`: any algorithm of perron as a torch.optim.Optimizer, one process for each node.

    rank, size = perron.init()                                  # started with torchrun or perron launch
    optimizer = perron.Decentralized(model, perron.PushPull(), lr=0.05)
    while optimizer.steps < 1000:
        optimizer.zero_grad()
        loss_fn(model, next(batches)).backward()
        optimizer.step()
    with optimizer.averaged_model():
        evaluate(model)

`step` hands the gradient to the algorithm's step, which was suspended where it needs one; takes the new state; and starts the
next step up to its yield. So messages travel during the next forward and backward pass, and the iterates are the textbook's.

With elastic membership (`perron.init(elastic=True)`) a step that loses a neighbour assembles those who are left: new
network, new state from the present model (for a tracker y = gradient: sum y = sum gradients), the largest step count of all.
"""

from __future__ import annotations

import gc
import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from secrets import token_hex
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from perron._modules import temporarily_set
from perron.algorithms import PushPull
from perron.algorithms.base import Algorithm
from perron.distributed.asynchronous import pacing
from perron.distributed.consistency import compare, gathered, taken, united, versions
from perron.distributed.elastic.membership import Change, Membership
from perron.distributed.elastic.recovery import rebuild_network
from perron.distributed.flat_parameters import Flat
from perron.distributed.node import DistributedNode
from perron.distributed.process_group import START_TIMEOUT, TIMEOUT, FixedPeers, Peers, check_timeout
from perron.distributed.setup import membership
from perron.errors import NetworkError, PerronError
from perron.networks.builder import NetworkLike, build_network
from perron.networks.facts import Network

WIRES = {None: None, "bf16": torch.bfloat16}

log = logging.getLogger("perron")


class Decentralized(torch.optim.Optimizer):
    """A decentralized algorithm as an optimizer of this process's model.

    Args:
        params: the model, or its parameters or parameter groups (without the model, buffers are not averaged). All of
            them of one type and on one device; they become views of one flat buffer.
        algorithm: Push-Pull if None.
        graph: who hears whom: a topology's name, a `Graph`, several for one that varies in time, a `Mixing`, or a function
            that makes one for n nodes. The default sends to one neighbour in a step, and mixes like the full exponential graph.
        lr: learning rate; of a group, its own. All nodes should have the same schedule.
        weight_decay: added to the gradient before it is tracked.
        weights: the weight rule for a graph, see `perron.networks.mixing.RULES`.
        seed: of random topologies and weights, and of what nodes draw.
        group: the process group; the default one if None. One with a rank of each machine runs the algorithm between machines.
        timeout: seconds after which a silent neighbour is an error (with elastic membership: lost).
        wire: ``"bf16"`` for messages of half the size; what a push loses by rounding stays with the sender.
        nonfinite: what a gradient that is not finite does: ``"raise"``, or ``"skip"``, which uses the last one again.
        broadcast: whether all nodes start from the model of rank 0.
        asynchronous: whether nodes step at their own pace, with the newest that they have heard; see
            `perron.distributed.asynchronous`.

    Attributes:
        changes: with elastic membership, what happened: a `Change` for each time that members were lost or came.
        joined: with elastic membership, whether this process came to a training that was under way.
        skipped: how many gradients were not finite, and replaced. asked: how many the present step has had; mostly 0.
    """

    _step_supports_amp_scaling = True  # a step that GradScaler skips would leave neighbours waiting

    def __init__(
        self,
        params: nn.Module | Iterable[Any],
        algorithm: Algorithm | None = None,
        graph: NetworkLike = "one_peer_exponential",
        *,
        lr: float,
        weight_decay: float = 0.0,
        weights: str = "uniform",
        seed: int = 0,
        group: Any = None,
        timeout: float = TIMEOUT,
        wire: Literal["bf16"] | None = None,
        nonfinite: Literal["raise", "skip"] = "raise",
        broadcast: bool = True,
        asynchronous: bool = False,
    ) -> None:
        self._membership: Membership | None = membership() if group is None else None
        if not dist.is_initialized() and self._membership is None:
            raise PerronError("There is no process group yet: call perron.init() first.")
        if wire not in WIRES or nonfinite not in ("raise", "skip"):
            raise PerronError(f"wire is None or 'bf16', nonfinite 'raise' or 'skip'; got {wire!r} and {nonfinite!r}.")
        self._made = False
        self.model = params if isinstance(params, nn.Module) else None
        given = params.parameters() if isinstance(params, nn.Module) else params
        super().__init__(given, {"lr": lr, "weight_decay": weight_decay})
        for one in self.param_groups:
            rate, decay = one["lr"], one["weight_decay"]
            if not rate > 0 or not decay >= 0:
                raise PerronError(f"Decentralized needs lr > 0 and weight_decay >= 0; got {rate} and {decay}.")
        self.algorithm = PushPull() if algorithm is None else algorithm
        self.nonfinite, self.timeout, self.asynchronous = nonfinite, timeout, asynchronous
        self._graph = graph if isinstance(graph, str) or not isinstance(graph, Iterable) else tuple(graph)
        self._settings: dict[str, Any] = {"weights": weights, "seed": seed, "wire": wire, "broadcast": broadcast}
        self._settings |= {"timeout": check_timeout(timeout), "nonfinite": nonfinite, "asynchronous": asynchronous}
        self._kind = pacing(self.algorithm, elastic=self._membership is not None) if asynchronous else DistributedNode
        self._flat = Flat(self.param_groups, self.model)
        self._made = True
        self._running: Any = None
        self._broken: NetworkError | None = None
        self._averaging = self.joined = False
        self.born = ""
        self._empty = True  # of a model that the others know
        self.asked = self._calls = self.skipped = 0
        self.last = torch.zeros_like(self._flat.vector)
        self.changes: list[Change] = []
        if self._membership is None:
            with torch.no_grad():
                self._assemble(FixedPeers(group), [], 0)
        else:
            if self._flat.device.type != "cpu":
                raise PerronError(f"Elastic membership works on gloo, for CPU tensors; got {self._flat.device}.")
            self._membership.claim(timeout)
            with torch.no_grad():
                self._recover("start", NetworkError(f"node {self._membership.node} wants to join"))
        self._flat.attach()

    # ---- stepping

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Give the gradient to the algorithm, take the new model, and send what the next step will need."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._flat.check()
        self._give(self._gradient())
        return loss

    @property
    def steps(self) -> int:
        """How many steps the algorithm has done; the same on all nodes whenever they exchange."""
        return self.node.step

    @torch.no_grad()
    def reset(self) -> None:
        """Start the algorithm anew from the model's present parameters, as after loading weights into it; on every node."""
        self._settle()
        self._start()

    @torch.no_grad()
    def take(self, x: Tensor) -> None:
        """Start the algorithm anew from the model ``x``, one flat vector; on every node."""
        if x.shape != self._flat.vector.shape:
            raise PerronError(f"The model has {self._flat.vector.numel()} parameters; got shape {tuple(x.shape)}.")
        self._flat.vector.copy_(x)
        self.reset()

    def close(self) -> None:
        """Wait for the messages that are under way. Call it at the end, after the same number of steps on every node."""
        self._settle()
        if self._broken is None:
            self.node.close()
        if self._membership is not None:
            self._membership.finish()
            self._broken = self._broken or NetworkError("It was closed; start a new process for another training.")

    def _settle(self) -> None:
        """Wait for what is under way, and forget the step that had begun."""
        running, self._running, self.asked = self._running, None, 0
        if running is not None and self._broken is None:
            try:
                self.node.drain()
            except NetworkError as error:  # with elastic membership the next step recovers
                if self._membership is None:
                    raise
                log.info("Not waited for: %s", error)

    @contextmanager
    def join(self, steps: int) -> Iterator[None]:
        """For data of unequal length: nodes that have made their calls of `step` go on exchanging until the last has, too.

            with optimizer.join(len(loader)):
                for batch in loader: ...

        A node that is out of data uses its last gradient again, as a tracker needs.
        """
        if self._membership is not None:
            raise PerronError("join() counts calls, elastic membership cannot: loop while optimizer.steps < total.")
        first, most = self._calls, torch.tensor([steps])
        work = self.node.peers.all_reduce(most, dist.ReduceOp.MAX, timeout=self.timeout)
        self.node.peers.finish([(work, "Not all processes came together in join()")], self.timeout)
        yield
        with torch.no_grad():
            while self._calls < first + int(most):
                self._give(self.last.clone())

    def _give(self, grad: Tensor) -> None:
        """One gradient for the algorithm."""
        if self._broken is not None:
            raise self._broken
        if self._averaging:
            raise PerronError("The model is the average of all nodes' now; leave averaged_model() before a step.")
        before, inside = self.steps, self.asked > 0
        while True:
            try:
                self._advance(grad)
                break
            except NetworkError as error:
                other = self._recover("step", error)
                if self.steps > before:  # it was done, or others are further: a new gradient is due
                    break
                grad = torch.zeros_like(grad) if other or inside else grad  # one of another point would only do harm
        self._calls += 1

    def _advance(self, grad: Tensor) -> None:
        self._flat.rates(self.param_groups)  # a scheduler may have changed them after the step began
        if self._running is None:  # after close
            self._begin()
        self.last = grad
        try:
            point = self._running.send(grad)
            self.asked += 1
            self.node.flush()
            self._flat.show(point)
        except StopIteration as done:
            self.algorithm_state, self.asked = done.value, 0
            self.node.step += 1
            self._begin()

    def _start(self) -> None:
        """The algorithm's first state, from the present model."""
        self.algorithm_state = self.algorithm.init(self._flat.vector.clone(), self.node)
        self.last, self.asked = torch.zeros_like(self._flat.vector), 0
        self._begin()

    def _begin(self) -> None:
        """Start the next step: its messages are on their way when this returns, and the model is where it needs a gradient."""
        self._running = self.algorithm.step(self.algorithm_state, self.node, self._flat.rates(self.param_groups))
        try:
            point = next(self._running)
        except StopIteration:
            raise PerronError(f"{self.algorithm.about.title} uses no gradients: it is no optimizer.") from None
        self.node.flush()
        self._flat.show(point)

    def _gradient(self) -> Tensor:
        """The parameters' gradients as one vector, with weight decay; what is not finite is refused or replaced."""
        grad = self._flat.gradient(self.param_groups, getattr(self, "grad_scale", None))
        if not (wrong := self._flat.not_finite(grad)):
            return grad
        scaled = getattr(self, "found_inf", None) is not None  # GradScaler expects overflows, and lowers its scale
        if self.nonfinite == "raise" and not scaled:
            raise PerronError(
                f"Node {self.node.name}: the gradient of step {self.steps} is not finite in {wrong}. Lower lr, clip gradients, "
                "or pass nonfinite='skip'."
            )
        self.skipped += 1
        return self.last.clone()

    # ---- coming together

    def _assemble(self, peers: Peers, sources: list[int], step: int) -> None:
        """Meet the peers: compare what everybody was given, take over a model, and start the algorithm.

        Sources are the ranks of those who have a model to go on with; nobody at the start.
        """
        weights, seed, wire = (self._settings[name] for name in ("weights", "seed", "wire"))
        if sources or (self._membership is not None and peers.size != self._membership.size):
            self.mixing = rebuild_network(self._graph, peers.node_ids, self.algorithm, weights=weights, seed=seed)
        else:
            self.mixing = build_network(self._graph, peers.size, weights=weights, seed=seed)
        self.algorithm.check(Network(self.mixing))
        options: dict[str, Any] = {"timeout": self.timeout, "seed": seed, "wire": WIRES[wire]}
        options |= {"dtype": self._flat.dtype, "device": self._flat.device}
        self.node = self._kind(self.mixing, peers=peers, **options)
        limit = self.timeout if sources else START_TIMEOUT
        if sources:
            self._take_over_groups(sources, limit)
        try:
            compare(self._facts(began=bool(sources)), peers, limit)
        except PerronError as error:
            if peers.rank in sources and len(sources) < peers.size:  # it is the newcomer that has to go
                raise NetworkError(str(error)) from None
            raise
        moment = max(time.time_ns(), int(self.born.partition("-")[0] or 0) + 1)  # names only grow, whatever clocks do
        self.born = max(gathered(f"{moment:020d}-{token_hex(4)}", peers, limit))
        if sources or self._settings["broadcast"]:
            self._take_over_model(sources or [0])
        self.node.step = step
        self._start()
        self._empty = False

    def _take_over_groups(self, sources: list[int], limit: float) -> None:
        """Learning rates and other settings of the groups, for those who come to a training that is under way."""
        groups = [{key: value for key, value in one.items() if key != "params"} for one in self.param_groups]
        told = gathered(json.dumps(groups, default=str), self.node.peers, limit)[sources[0]]
        if self.node.number not in sources:
            for own, theirs in zip(self.param_groups, json.loads(told), strict=False):
                own.update(theirs)

    def _take_over_model(self, sources: list[int]) -> None:
        """The model and its buffers of the first who has one, for those who have not."""
        if len(sources) == self.node.nodes:
            return
        for tensor in (self._flat.vector, *self._buffers().values()):
            what = f"Node {self.node.name} lost somebody while a model was handed over"
            theirs = taken(tensor, sources[0], self.node.peers, what, self.timeout)
            if self.node.number not in sources:
                tensor.copy_(theirs)

    def _recover(self, doing: str, why: NetworkError) -> bool:
        """Meet those who are left, and newcomers; whether this process was given another model. An error if there is no way."""
        if self._membership is None:
            self._broken = why
            raise why
        try:
            return self._met_anew(self._membership, doing, why)
        except PerronError as error:
            self._broken = NetworkError(str(error))
            raise
        finally:
            gc.collect()  # what an abandoned generation leaves behind is large, and holds connections open

    def _met_anew(self, membership: Membership, doing: str, why: NetworkError) -> bool:
        began, step = time.monotonic(), 0 if doing == "start" else self.steps
        while True:
            generation = membership.rendezvous(doing, step, why, fresh=self._empty)
            me, self._met = generation.members[generation.rank], [(one.phase, one.step) for one in generation.members]
            sources, furthest = generation.sources()
            if not self._empty:
                self._flat.vector.copy_(self.algorithm_state.x)
            self._empty = self._empty or generation.rank not in sources
            try:
                self._assemble(generation, sources, furthest)
                break
            except NetworkError as error:
                why = error
        if not sources:
            if generation.number:
                log.warning("Nobody has a model to go on with: training starts anew, unless a checkpoint is loaded.")
            return False
        self.joined = self.joined or (doing == "start" and (furthest > 0 or generation.in_progress))
        came = tuple(one.node for one in generation.members if one.fresh)
        self.changes.append(
            Change(self.steps, tuple(generation.node_ids), generation.lost, came, time.monotonic() - began)
        )
        if generation.rank == sources[0] or me.fresh:
            log.warning("%s", self.changes[-1])
        return generation.rank not in sources

    def together(self, doing: str, action: Callable[[], None]) -> bool:
        """Something that all members do at once; whether it was done.

        If members change meanwhile, it is done again by those who are left, provided that they all were about it, or will come
        to it: those who were a step behind, and before the first step those who are only starting.
        """
        while True:
            try:
                action()
                return True
            except NetworkError as error:
                at = self.steps
                self._recover(doing, error)
                coming = {("start", 0)} if at == 0 else {("step", step) for step in range(at)}
                if not set(self._met) <= {(doing, at)} | coming:
                    return False

    # ---- evaluating

    @contextmanager
    def averaged_model(self) -> Iterator[None]:
        """Within it, the model is the average of all nodes' models; afterwards again this node's own.

        BatchNorm's statistics are averaged as those of the union of the data; whole numbers are rank 0's. With elastic
        membership, if members change before all have come together, it is this node's own model, and a warning says so.
        """
        if self._averaging:
            raise PerronError("averaged_model() is entered already.")
        if self._broken is not None:
            raise self._broken
        values: dict[str, Tensor] = {}

        def average() -> None:
            mean = self.node.mean(self.algorithm_state.x).wait()
            what = f"Node {self.node.name} lost somebody in the average of step {self.steps}"
            values.update(united(self._buffers(), self.node.peers, what, self.timeout), vector=mean)

        with torch.no_grad():
            if not self.together("average", average):
                log.warning("Node %d: members changed, so this is its own model, not the average.", self.node.name)
                values["vector"] = self.algorithm_state.x
        self._averaging = True
        try:
            with temporarily_set(self._buffers() | {"vector": self._flat.vector}, values):
                yield
        finally:
            self._averaging = False
            self._flat.remember()

    def _buffers(self) -> dict[str, Tensor]:
        """The model's buffers, by names that no parameter has."""
        named = self.model.named_buffers() if self.model is not None else ()
        return {f"buffer {name}": buffer for name, buffer in named}

    # ---- saving

    def state_dict(self) -> dict[str, Any]:
        """As any optimizer's, with the algorithm's state of this node. Messages under way are made again after loading."""
        if self._averaging:
            raise PerronError("The model is the average of all nodes' now; leave averaged_model() before saving.")
        if self.asked:
            raise PerronError(
                f"{self.algorithm.about.title} is in the middle of a step ({self.asked} of its gradients are in); save after it."
            )
        state = {name: value.clone() for name, value in self.algorithm_state._asdict().items()}
        own = self._identity() | {"step": self.steps, "last": self.last.clone(), "state": state}
        return super().state_dict() | {"perron": own}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken: the same algorithm, network, node and model."""
        given = dict(state_dict)
        own = given.pop("perron", None)
        if own is None:
            raise PerronError("This is not the state of a Decentralized optimizer: it has no entry 'perron'.")
        for name, value in self._identity().items():
            if own[name] != value:
                raise PerronError(
                    f"The saved state has {name} {own[name]}, this optimizer {value}; they must be equal."
                )
        names, saved = self.algorithm_state._fields, own["state"]
        shapes = {name: tuple(getattr(self.algorithm_state, name).shape) for name in names}
        if {name: tuple(value.shape) for name, value in saved.items()} != shapes:
            raise PerronError(f"The saved state does not fit this model: it needs {shapes}.")
        self._settle()
        super().load_state_dict(given)
        device = self._flat.device
        self.algorithm_state = type(self.algorithm_state)(**{name: saved[name].to(device).clone() for name in names})
        self.last = own["last"].to(device).clone()
        self.node.step = own["step"]
        with torch.no_grad():
            self._begin()

    def _identity(self) -> dict[str, Any]:
        numbers = {"node": self.node.number, "nodes": self.node.nodes}
        return {"algorithm": self.algorithm.description, "network": self.mixing.fingerprint} | numbers

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Groups are given at construction: afterwards parameters are one vector."""
        if self._made:
            raise PerronError("Parameter groups cannot be added to a Decentralized optimizer; make a new one.")
        super().add_param_group(param_group)

    def _facts(self, *, began: bool) -> dict[str, Any]:
        """What all processes need to have in common; once training has begun, schedules may be a step apart."""
        return {
            **versions(),
            "the algorithm": self.algorithm.description,
            "the network": f"{self.mixing!r} {self.mixing.fingerprint}",
            **self._flat.facts(self.param_groups, began=began),
            **self._settings,
        }

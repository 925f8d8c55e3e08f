"""`Decentralized`: any algorithm of perron as a torch.optim.Optimizer, one process for each node.

    rank, size = perron.distributed.init()                                  # started with torchrun
    optimizer = perron.optim.Decentralized(model, perron.PushPull(), lr=0.05)
    for images, labels in loader:
        optimizer.zero_grad()
        loss_fn(model(images), labels).backward()
        optimizer.step()
    with optimizer.averaged_model():
        evaluate(model)
    optimizer.close()

`step` hands the gradient to the algorithm's step, which was suspended where it needs one; takes the new state; and starts the
next step up to its yield. So messages travel during the next forward and backward pass, and the iterates are the textbook's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from secrets import token_hex
from time import time_ns
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from perron import topologies
from perron.agreement import TIMEOUT, averaged, compare, described, fingerprint, gathered, together
from perron.algorithm import Algorithm
from perron.algorithms import PushPull
from perron.distributed import START, DistributedNode
from perron.errors import NetworkError, PerronError
from perron.graph import Graph
from perron.mixing import RULES, Mixing
from perron.network import Network

WIRES = {None: None, "bf16": torch.bfloat16}


class Decentralized(torch.optim.Optimizer):
    """A decentralized algorithm as an optimizer of this process's model.

    Args:
        params: the model, or its parameters or parameter groups (without the model, buffers are not averaged). All of
            them of one type and on one device; they become views of one flat buffer.
        algorithm: Push-Pull if None.
        graph: who hears whom: the name of a topology, a `Graph`, a sequence of them for one that varies in time, or a `Mixing`.
            The default sends to one neighbour in a step, and mixes like the full exponential graph.
        lr: learning rate; of a group, its own. All nodes should have the same schedule.
        weight_decay: added to the gradient before it is tracked.
        weights: the weight rule for a graph, see `perron.mixing.RULES`.
        seed: of random topologies and weights, and of what nodes draw.
        group: the process group; the default one if None. Give one of one rank for each machine to run the algorithm between
            machines and something else within.
        timeout: seconds after which a silent neighbour is an error.
        wire: ``"bf16"`` for messages of half the size; what a push loses by rounding stays with the sender.
        nonfinite: what to do with a gradient that is not finite: ``"raise"``, or ``"skip"``, which uses the last one again (the
            node must go on exchanging, or its neighbours would wait for it).
        broadcast: whether all nodes start from the model of rank 0.
    """

    _step_supports_amp_scaling = (
        True  # gradients are unscaled here: a step that GradScaler skips would leave neighbours waiting
    )

    def __init__(
        self,
        params: nn.Module | Iterable[Any],
        algorithm: Algorithm | None = None,
        graph: str | Graph | Iterable[Graph] | Mixing = "one_peer_exponential",
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
    ) -> None:
        if not dist.is_initialized():
            raise PerronError("There is no process group yet: call perron.distributed.init() first.")
        if wire not in WIRES or nonfinite not in ("raise", "skip"):
            raise PerronError(f"wire is None or 'bf16', nonfinite 'raise' or 'skip'; got {wire!r} and {nonfinite!r}.")
        self._made = False
        self.model = params if isinstance(params, nn.Module) else None
        super().__init__(
            params.parameters() if isinstance(params, nn.Module) else params, {"lr": lr, "weight_decay": weight_decay}
        )
        for one in self.param_groups:
            if not one["lr"] > 0 or not one["weight_decay"] >= 0:
                raise PerronError(
                    f"Decentralized needs lr > 0 and weight_decay >= 0; got {one['lr']} and {one['weight_decay']}."
                )
        self.algorithm = PushPull() if algorithm is None else algorithm
        self.nonfinite, self.group, self.timeout = nonfinite, group, timeout
        self.mixing = network(graph, dist.get_world_size(group), weights=weights, seed=seed)
        self.algorithm.check(Network(self.mixing))
        self._params = [param for one in self.param_groups for param in one["params"] if param.requires_grad]
        self._check_types()
        first = self._params[0]
        self.node = DistributedNode(
            self.mixing,
            group=group,
            timeout=timeout,
            seed=seed,
            dtype=first.dtype,
            device=first.device,
            wire=WIRES[wire],
        )
        compare(self._facts(wire=wire, seed=seed, broadcast=broadcast), group=group, timeout=START)
        self.born = gathered(f"{time_ns():020d}-{token_hex(4)}", group, timeout)[0]  # a name for this training
        self._flat = torch.cat([param.detach().reshape(-1) for param in self._params])
        self._made = True
        if broadcast:
            self._broadcast()
        self._views = self._split(self._flat)
        for param, view in zip(self._params, self._views, strict=True):
            param.data = view
        several = len(self.param_groups) > 1
        self._lr = torch.zeros(self._flat.shape if several else (), dtype=first.dtype, device=first.device)
        self._running: Any = None
        self._broken: NetworkError | None = None
        self._averaging = False
        self._asked = self._calls = 0  # gradients within the step, and in all
        self.last = torch.zeros_like(self._flat)
        self.reset()

    # ---- stepping

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Give the gradient to the algorithm, take the new model, and send what the next step will need."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._check_views()
        self._give(self._gradient())
        return loss

    @property
    def steps(self) -> int:
        """How many steps the algorithm has done."""
        return self.node.step

    def reset(self) -> None:
        """Start the algorithm anew from the model's present parameters, as after loading weights into it; on every node."""
        self.close()
        with torch.no_grad():
            self.algorithm_state = self.algorithm.init(self._flat.clone(), self.node)
            self.last = torch.zeros_like(self._flat)
            self._begin()

    def take(self, x: Tensor) -> None:
        """Start the algorithm anew from the model ``x``, one flat vector; on every node."""
        if x.shape != self._flat.shape:
            raise PerronError(f"The model has {self._flat.numel()} parameters; got a vector of shape {tuple(x.shape)}.")
        with torch.no_grad():
            self._flat.copy_(x)
        self.reset()

    def close(self) -> None:
        """Wait for the messages that are under way. Call it at the end, after the same number of steps on every node."""
        if self._running is not None and self._broken is None:
            self.node.drain()
        self._running, self._asked = None, 0

    @contextmanager
    def join(self, steps: int) -> Iterator[None]:
        """For data of unequal length: nodes that have made their calls of `step` go on exchanging until the last has, too.

            with optimizer.join(len(loader)):
                for batch in loader: ...

        A node that is out of data uses its last gradient again, as a tracker needs.
        """
        first, most = self._calls, torch.tensor([steps])
        together(dist.all_reduce, most, op=dist.ReduceOp.MAX, group=self.group, timeout=self.timeout)
        yield
        with torch.no_grad():
            while self._calls < first + int(most):
                self._give(self.last.clone())

    def _give(self, grad: Tensor) -> None:
        """One gradient for the algorithm."""
        if self._broken is not None:
            raise self._broken
        if self._averaging:
            raise PerronError(
                "The model is the average of all nodes' now; leave averaged_model() before the next step."
            )
        self._fill_lr()
        if self._running is None:  # after close
            self._begin()
        self.last = grad
        try:
            point = self._running.send(grad)
            self._asked += 1
            self.node.flush()
            self._show(point)
        except StopIteration as done:
            self.algorithm_state, self._asked = done.value, 0
            self.node.step += 1
            self._begin()
        except NetworkError as error:
            self._broken = error
            raise
        self._calls += 1

    def _begin(self) -> None:
        """Start the next step: its messages are on their way when this returns, and the model is where it needs a gradient."""
        self._fill_lr()
        self._running = self.algorithm.step(self.algorithm_state, self.node, self._lr)
        try:
            point = next(self._running)
            self.node.flush()
        except StopIteration:
            raise PerronError(f"{self.algorithm.about.title} uses no gradients: it is no optimizer.") from None
        except NetworkError as error:
            self._broken = error
            raise
        self._show(point)

    def _show(self, point: Tensor) -> None:
        """Let the model's parameters be the point at which a gradient is needed."""
        self._flat.copy_(point)
        torch.autograd.graph.increment_version(
            self._params
        )  # so that backward through an old graph is an error, as ever
        self._remember()

    def _fill_lr(self) -> None:
        """The groups' present learning rates: a scheduler may have changed them after the step began."""
        if self._lr.ndim == 0:
            self._lr.fill_(self.param_groups[0]["lr"])
            return
        for one, part in self._parts(self._lr):
            part.fill_(one["lr"])

    def _parts(self, flat: Tensor) -> Iterator[tuple[dict[str, Any], Tensor]]:
        """Each parameter's group and its part of a flat vector."""
        start = 0
        for one in self.param_groups:
            for param in one["params"]:
                if param.requires_grad:
                    yield one, flat[start : start + param.numel()]
                    start += param.numel()

    def _gradient(self) -> Tensor:
        """The parameters' gradients as one vector, with weight decay; what is not finite is refused or replaced."""
        grad = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in self._params])
        if (scale := getattr(self, "grad_scale", None)) is not None:
            grad /= scale
        if not bool(torch.isfinite(grad).all()):
            scaled = getattr(self, "found_inf", None) is not None  # GradScaler expects overflows, and lowers its scale
            if self.nonfinite == "raise" and not scaled:
                raise PerronError(
                    f"Node {self.node.number}: the gradient of step {self.steps} is not finite. Lower lr, clip gradients, or "
                    "pass nonfinite='skip'."
                )
            return self.last.clone()
        for (one, part), param in zip(self._parts(grad), self._params, strict=True):
            if one["weight_decay"] and param.grad is not None:
                part.add_(param.reshape(-1), alpha=one["weight_decay"])
        return grad

    # ---- evaluating

    @contextmanager
    def averaged_model(self) -> Iterator[None]:
        """Within it, the model is the average of all nodes' models; afterwards again this node's own.

        BatchNorm's statistics are averaged as those of the union of the data; whole numbers are rank 0's.
        """
        if self._averaging:
            raise PerronError("averaged_model() is entered already.")
        kept = self._flat.clone()
        buffers = dict(self.model.named_buffers()) if self.model is not None else {}
        own = {name: buffer.clone() for name, buffer in buffers.items()}
        self._averaging = True
        try:
            with torch.no_grad():
                self._flat.copy_(self.node.mean(self.algorithm_state.x).wait())
                self._average(buffers)
            yield
        finally:
            with torch.no_grad():
                self._flat.copy_(kept)
                for name, buffer in buffers.items():
                    buffer.copy_(own[name])
            self._averaging = False
            self._remember()

    def _average(self, buffers: dict[str, Tensor]) -> None:
        """The buffers of all nodes, averaged: floats as statistics of the union of the data, others from rank 0."""
        floats = {name: buffer for name, buffer in buffers.items() if buffer.is_floating_point()}
        gathered_ = {
            name: [torch.empty_like(buffer) for _ in range(self.node.nodes)] for name, buffer in floats.items()
        }
        for name, buffer in floats.items():
            together(dist.all_gather, gathered_[name], buffer.contiguous(), group=self.group, timeout=self.timeout)
        for name, value in averaged(gathered_).items():
            buffers[name].copy_(value)
        for name, buffer in buffers.items():
            if name not in floats:
                self._from_first(buffer)

    def _from_first(self, tensor: Tensor) -> None:
        """Take rank 0's; as bytes, since not every type can travel."""
        raw = tensor.contiguous().reshape(-1).view(torch.uint8).clone()
        if raw.numel():
            together(dist.broadcast, raw, group=self.group, timeout=self.timeout, group_src=0)
            tensor.copy_(raw.view(tensor.dtype).view(tensor.shape))

    # ---- saving

    def state_dict(self) -> dict[str, Any]:
        """As any optimizer's, with the algorithm's state of this node. Messages under way are made again after loading."""
        if self._averaging:
            raise PerronError("The model is the average of all nodes' now; leave averaged_model() before saving.")
        if self._asked:
            raise PerronError(
                f"{self.algorithm.about.title} is in the middle of a step ({self._asked} of its gradients are in); save after it."
            )
        own = {
            "algorithm": described(self.algorithm), "network": fingerprint(self.mixing), "node": self.node.number,
            "nodes": self.node.nodes, "step": self.steps, "last": self.last.clone(),
            "state": {name: value.clone() for name, value in self.algorithm_state._asdict().items()},
        }  # fmt: skip
        return super().state_dict() | {"perron": own}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken: the same algorithm, network, node and model."""
        given = dict(state_dict)
        own = given.pop("perron", None)
        if own is None:
            raise PerronError("This is not the state of a Decentralized optimizer: it has no entry 'perron'.")
        mine = {
            "algorithm": described(self.algorithm), "network": fingerprint(self.mixing), "node": self.node.number,
            "nodes": self.node.nodes,
        }  # fmt: skip
        for name, value in mine.items():
            if own[name] != value:
                raise PerronError(
                    f"The saved state has {name} {own[name]}, this optimizer {value}; they must be the same."
                )
        names, saved = self.algorithm_state._fields, own["state"]
        shapes = {name: tuple(getattr(self.algorithm_state, name).shape) for name in names}
        if {name: tuple(value.shape) for name, value in saved.items()} != shapes:
            raise PerronError(f"The saved state does not fit this model: it needs {shapes}.")
        self.close()
        super().load_state_dict(given)
        device = self._lr.device
        self.algorithm_state = type(self.algorithm_state)(**{name: saved[name].to(device).clone() for name in names})
        self.last = own["last"].to(device).clone()
        self.node.step = own["step"]
        with torch.no_grad():
            self._begin()

    # ---- guards

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Groups are given at construction: afterwards parameters are one vector."""
        if self._made:
            raise PerronError(
                "Parameter groups cannot be added to a Decentralized optimizer; make a new one with all of them."
            )
        super().add_param_group(param_group)

    def _split(self, flat: Tensor) -> list[Tensor]:
        parts = flat.split([param.numel() for param in self._params])  # type: ignore[no-untyped-call]
        return [part.view(param.shape) for part, param in zip(parts, self._params, strict=True)]

    def _remember(self) -> None:
        self._versions = [param._version for param in self._params]

    def _check_views(self) -> None:
        if self.model is not None and {id(p) for p in self.model.parameters() if p.requires_grad} != {
            id(p) for p in self._params
        }:
            raise PerronError("The model has other parameters than when the optimizer was made. Make a new one.")
        for param, view, version in zip(self._params, self._views, self._versions, strict=True):
            if param.data_ptr() != view.data_ptr() or param.dtype != view.dtype:
                raise PerronError(
                    "A parameter is no longer where the optimizer put it (was the model moved, as with model.to(), after the "
                    "optimizer was made?). Make the optimizer last."
                )
            if param._version != version:
                raise PerronError(
                    "Parameters were changed by something other than the optimizer (were weights loaded into the model?). Call "
                    "optimizer.reset() on every node afterwards."
                )

    def _check_types(self) -> None:
        if not self._params:
            raise PerronError("None of the parameters requires a gradient.")
        kinds = {(param.dtype, param.device) for param in self._params}
        if len(kinds) > 1 or not self._params[0].is_floating_point():
            told = ", ".join(sorted(f"{dtype} on {device}" for dtype, device in kinds))
            raise PerronError(f"All parameters need one floating type and one device; got {told}.")

    def _facts(self, **settings: Any) -> dict[str, Any]:
        from perron import __version__

        buffers = self.model.named_buffers() if self.model is not None else ()
        return {
            "the version of perron": __version__,
            "the algorithm": described(self.algorithm),
            "the network": f"{self.mixing!r} {fingerprint(self.mixing)}",
            "the parameters' shapes": [list(param.shape) for param in self._params],
            "the parameters' type": str(self._params[0].dtype),
            "the parameter groups": [
                {"parameters": len(one["params"]), "lr": one["lr"], "weight_decay": one["weight_decay"]}
                for one in self.param_groups
            ],
            "whether the optimizer was given the model": self.model is not None,
            "the buffers": [[name, list(buffer.shape), str(buffer.dtype)] for name, buffer in buffers],
            "the settings": settings,
        }

    def _broadcast(self) -> None:
        with torch.no_grad():
            for tensor in (self._flat, *(self.model.buffers() if self.model is not None else ())):
                self._from_first(tensor)


def network(
    graph: str | Graph | Iterable[Graph] | Mixing, nodes: int, *, weights: str = "uniform", seed: int = 0
) -> Mixing:
    """A network for so many nodes from what a user may say."""
    if isinstance(graph, Mixing):
        return graph
    if weights not in RULES:
        raise PerronError(f"There is no weight rule {weights!r}; there are: {', '.join(RULES)}.")
    if isinstance(graph, str):
        if graph not in topologies.NAMES:
            raise PerronError(f"There is no topology {graph!r}; there are: {', '.join(topologies.NAMES)}.")
        family = topologies.NAMES[graph]
        built = family(nodes, **({"seed": seed} if "seed" in _parameters(family) else {}))
    else:
        built = graph if isinstance(graph, Graph) else tuple(graph)
    rule = RULES[weights]
    return rule(built, **({"seed": seed} if "seed" in _parameters(rule) else {}))


def _parameters(function: Callable[..., Any]) -> list[str]:
    from inspect import signature

    return list(signature(function).parameters)

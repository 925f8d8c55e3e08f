"""`Decentralized`: any algorithm of perron as a torch.optim.Optimizer, with one process for each node.

    rank, size = perron.init()                                  # started with torchrun or perron launch
    optimizer = perron.Decentralized(model, perron.PushPull(), lr=0.05)
    while optimizer.steps < 1000:
        optimizer.zero_grad()
        loss_fn(model, next(batches)).backward()
        optimizer.step()
    with optimizer.averaged_model():
        evaluate(model)

An algorithm's step is a generator that yields where it needs a gradient. `Decentralized.step` sends it the gradient, stores the
new state, and runs the next step up to its yield: messages are in flight during the next forward and backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from perron.algorithms import PushPull
from perron.algorithms.base import Algorithm
from perron.algorithms.codecs import CODECS, Wire
from perron.algorithms.local_steps import with_local_steps
from perron.distributed.asynchronous import check_asynchronous
from perron.distributed.collective import (
    AVERAGED,
    assemble,
    averaged_model,
    check_rounds,
    diverged,
    join,
)
from perron.distributed.elastic.generation import Change
from perron.distributed.elastic.recovery import Recovery
from perron.distributed.finite import is_finite
from perron.distributed.inner import Inner, with_move
from perron.distributed.optimizer_state import StatefulOptimizer, refuse_torch_checkpoint
from perron.distributed.own_gradients import OwnGradients
from perron.distributed.process_group import RECEIVE_AHEAD, TIMEOUT, FixedPeers, check_timeout, world
from perron.distributed.receive_ahead import check_ahead
from perron.distributed.setup import membership
from perron.errors import DivergenceError, PerronError
from perron.networks.builder import NetworkLike
from perron.networks.graph import as_graph


class Decentralized(StatefulOptimizer):
    """A decentralized algorithm as an optimizer of this process's model.

    Args:
        params: the model, or its parameters or parameter groups (then buffers are not averaged). All parameters are
            on one device; those of 16 bits have a master copy of 32 bits in the algorithm's state.
        algorithm: Push-Pull if None.
        graph: the network: a topology's name, a `Graph`, networkx graph or scipy matrix, several for a time-varying one, a
            `Mixing`, or a function of the number of nodes. The default sends to one neighbor per step and mixes like the
            full exponential graph.
        lr: learning rate; a group may have its own. All nodes should have the same schedule.
        inner: an optimizer of torch that moves the model along the algorithm's direction, as a function of the parameter groups:
            ``lambda groups: torch.optim.AdamW(groups, lr=3e-4)``. Its groups and state become those of this optimizer.
        clip: the largest norm of the direction along which this node moves its model.
        weight_decay: added to the gradient before it is tracked; AdamW and other inner optimizers have their own.
        weights: the weight rule for a graph, see `perron.networks.mixing.RULES`.
        seed: of random topologies, random weights and the nodes' random numbers.
        group: the process group; the default one if None. One with a rank of each machine runs the algorithm between machines.
        timeout: seconds after which a silent neighbor is an error (with elastic membership: lost).
        rounds: number of exchanges in a step: models and trackers are mixed that often. The first overlaps the gradient.
        wire: ``"bf16"``, ``"int8"`` or ``"int4"`` for messages of a half, a quarter or an eighth of the size. What rounding
            takes from a message is sent later or stays with the sender, so that the limit does not change; costs two
            vectors of memory for each matrix that takes turns, see `perron.algorithms.quantized`.
        local_steps: H, the number of gradients for one exchange: Push-Pull becomes `perron.LocalPushPull`, and algorithms with
            local steps take this number. A step of the algorithm then has H calls of `step`.
        nonfinite: what to do with a gradient that is not finite: ``"raise"``, or ``"skip"`` it and use the last one again.
        broadcast: whether all nodes start from the model of rank 0.
        asynchronous: whether nodes step at their own pace, see `perron.distributed.asynchronous`.
        receive_ahead: by how many steps gloo's receives are posted ahead: a message then takes one latency rather than two. The
            iterates do not change. Costs ``receive_ahead`` times the bytes that a step receives; has no effect on NCCL.

    Attributes:
        steps: the number of steps done; equal on all nodes whenever they exchange.
        run_id: the name of this training in checkpoints; later trainings have greater ones.
        gradients_received: the number of gradients that the current step has had; mostly 0.
        inner: the inner optimizer, or None.
        skipped: the number of gradients that were replaced because they were not finite.
        infinite_buffers: the model's buffers with infinite entries at the start, as masks; all others have to stay finite.
        changes: with elastic membership, a `Change` for each time that members were lost or joined.
        joined: with elastic membership, whether this process joined a running training.
    """

    _step_supports_amp_scaling = True  # a step that GradScaler skips would leave neighbors waiting

    def __init__(
        self,
        params: nn.Module | Iterable[Any],
        algorithm: Algorithm | None = None,
        graph: NetworkLike = "one_peer_exponential",
        *,
        lr: float | None = None,
        inner: Inner | None = None,
        clip: float | None = None,
        weight_decay: float = 0.0,
        weights: str = "uniform",
        seed: int = 0,
        group: Any = None,
        timeout: float = TIMEOUT,
        rounds: int = 1,
        wire: Wire | None = None,
        local_steps: int | None = None,
        nonfinite: Literal["raise", "skip"] = "raise",
        broadcast: bool = True,
        asynchronous: bool = False,
        receive_ahead: int = RECEIVE_AHEAD,
    ) -> None:
        member = membership() if group is None else None
        if member is None and world() is None:
            raise PerronError("There is no process group yet: call perron.init() first.")
        if wire not in (None, *CODECS) or nonfinite not in ("raise", "skip"):
            raise PerronError(
                f"wire is None, 'bf16', 'int8' or 'int4', nonfinite 'raise' or 'skip'; got {wire!r} and {nonfinite!r}."
            )
        super().__init__(params, inner, lr, weight_decay)
        self._own_gradients = OwnGradients(self._flat.params)
        self.algorithm = with_move(
            with_local_steps(algorithm or PushPull(), local_steps), self.inner, self._flat, clip, self.param_groups
        )
        named = self.model.named_buffers() if self.model is not None else ()
        self.infinite_buffers = frozenset(name for name, buffer in named if not is_finite(buffer))
        self.nonfinite, self.timeout, self.asynchronous = nonfinite, check_timeout(timeout), asynchronous
        if asynchronous:
            check_asynchronous(self.algorithm, elastic=member is not None, wire=wire)
        graph = as_graph(graph)
        self._graph = graph if isinstance(graph, str) or not isinstance(graph, Iterable) else tuple(graph)
        self._settings: dict[str, Any] = {"weights": weights, "seed": seed, "wire": wire, "broadcast": broadcast}
        self._settings["rounds"] = check_rounds(rounds, plain=wire is None and not asynchronous)
        self._settings["receive_ahead"] = check_ahead(receive_ahead)
        self._settings |= {"timeout": timeout, "nonfinite": nonfinite, "asynchronous": asynchronous}
        self._averaging = self.joined = False
        self.skipped = 0
        self.run_id = ""
        self.changes: list[Change] = []
        self._recovery = None if member is None else Recovery(self, member)
        with torch.no_grad():
            if self._recovery is None:
                assemble(self, FixedPeers(group), self._flat.point())
            else:
                self._recovery.start()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Give the gradient to the algorithm, set the model to the next point, and post the messages of the next step.

        Do not clip gradients before it: an algorithm that tracks gradients would track the clipped ones, which do not add up to
        zero at the optimum, and end elsewhere. Use ``clip=``, which clips the direction.
        """
        with torch.enable_grad():
            loss = None if closure is None else closure()
        if self._averaging:
            raise PerronError(AVERAGED.format("a step"))
        if not any(one.get("lr", 1.0) for one in self.param_groups):
            refuse_torch_checkpoint()
        self._own_gradients.check(self.node.name, self.node.peers, unscaled=hasattr(self, "found_inf"))
        self._flat.check(self.param_groups)
        try:
            self._advance(self._gradient())
        except DivergenceError as error:
            raise diverged(self, error) from None
        return loss

    def _gradient(self) -> Tensor:
        """Return the gradient as one vector, with weight decay; refuse or replace one that is not finite."""
        groups = self.param_groups if self.inner is None else []  # an inner optimizer has a weight decay of its own
        grad = self._flat.gradient(groups, getattr(self, "grad_scale", None))
        if not (wrong := self._flat.not_finite(grad)):
            return grad
        scaled = getattr(self, "found_inf", None) is not None  # GradScaler expects overflows, and lowers its scale
        if self.nonfinite == "raise" and not scaled:
            where = f"Node {self.node.name}: the gradient of step {self.steps} is not finite in {wrong}."
            raise DivergenceError(f"{where} Lower lr, pass clip=, or pass nonfinite='skip'.")
        self.skipped += 1
        return self.last.clone()

    @torch.no_grad()
    def reset(self) -> None:
        """Restart the algorithm from the model's present parameters, as after loading weights into it; on every node."""
        self.set_parameters(self._flat.point())

    @torch.no_grad()
    def set_parameters(self, x: Tensor, *, step: int | None = None) -> None:
        """Restart the algorithm from the model ``x``, one flat vector; on every node. ``step`` sets the number of steps done."""
        point = self._flat.as_point(x)
        self._settle()
        if step is not None:
            self.node.step = step
        self._start(point)
        self._begin()

    def close(self) -> None:
        """Wait for the messages in flight. Call it at the end, after the same number of steps on every node."""
        self._settle()
        if self._failure is None:
            self.node.close()
        if self._recovery is not None:
            self._recovery.finish()

    def averaged_model(self) -> AbstractContextManager[None]:
        """Within this context the model is the average of all nodes' models; afterwards it is this node's own again.

        BatchNorm's statistics are averaged as those of the union of the data; integers are those of rank 0. With elastic
        membership, if members change before all have entered, it is this node's own model, with a warning.
        """
        return averaged_model(self)

    def join(self, steps: int) -> AbstractContextManager[None]:
        """For data of unequal length: keep exchanging, with the last gradient, until every node has made its ``steps`` calls.

        with optimizer.join(len(loader)):
            for batch in loader: ...
        """
        return join(self, steps)

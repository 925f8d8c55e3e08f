"""A check that an optimizer gets its own node's gradients, as backward left them: not averaged over nodes, and not clipped."""

from __future__ import annotations

import gc
import logging
import math
import weakref
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.nn.parallel import DistributedDataParallel

from perron.distributed.finite import is_finite
from perron.distributed.process_group import Peers
from perron.errors import PerronError, listed

log = logging.getLogger("perron")
MARK = "perron"


class OwnGradients:
    """The gradients that an optimizer uses; `check` before each step.

    Whether they were changed since the last backward pass is seen at the smallest parameter, by a copy of its gradient.
    """

    def __init__(self, params: list[nn.Parameter]) -> None:
        self._params, self._smallest = params, min(params, key=lambda param: param.numel() or math.inf)
        self._after_backward: Tensor | None = None
        self._changes_allowed: bool | None = None  # not known before the first step
        own = weakref.ref(self)

        def remember(param: Tensor) -> None:
            gradients = own()
            if gradients is not None and param.grad is not None and param.grad.layout == torch.strided:
                gradients._after_backward = param.grad.detach().clone()

        hook = self._smallest.register_post_accumulate_grad_hook(remember)  # type: ignore[no-untyped-call]
        weakref.finalize(self, hook.remove)

    def check(self, name: int, peers: Peers, *, unscaled: bool) -> None:
        """Refuse gradients that DistributedDataParallel averages over nodes; warn, once, about those that were changed.

        Args:
            name: of the node.
            peers: the processes that are nodes.
            unscaled: whether a GradScaler may have changed them.
        """
        if self._changes_allowed is None:  # by now, tools have wrapped the model
            self._changes_allowed = _has_hooks(self._smallest) and _averaged(self._params, peers)
        old, self._after_backward = self._after_backward, None
        new = self._smallest.grad
        if self._changes_allowed or unscaled or old is None or new is None or torch.equal(old, new):
            return
        self._changes_allowed = True
        if is_finite(old):
            log.warning(
                "Node %d: gradients were changed between backward and step. If they were clipped (clip_grad_norm_, "
                "max_grad_norm, gradient_clip_val), switch that off and pass clip= to Decentralized, which clips the direction. "
                "Gradients that are clipped on each node do not add up to zero at the optimum, and training ends elsewhere.",
                name,
            )


def _has_hooks(param: nn.Parameter) -> bool:
    """Return whether something keeps the node of the graph that accumulates a gradient, as DistributedDataParallel does.

    Otherwise the node ends with its graph, and another one has no mark. False positives, as for a loss that is still referred
    to, cost a search of some 20 ms.
    """

    def metadata() -> Any:
        return get_gradient_edge(param).node.metadata

    metadata()[MARK] = True
    return MARK in metadata()


def _averaged(params: list[nn.Parameter], peers: Peers) -> bool:
    """Return whether DistributedDataParallel averages gradients within this node; refuse one that averages over nodes."""
    own, found = {id(param) for param in params}, False
    kinds = DistributedDataParallel, *DistributedDataParallel.__subclasses__()
    for one in gc.get_referrers(*kinds):  # torch has no list of them
        if not isinstance(one, DistributedDataParallel) or own.isdisjoint(map(id, one.parameters())):
            continue
        found = True
        shared = sorted({*dist.get_process_group_ranks(one.process_group)} & {*peers.node_ids})
        if len(shared) > 1:
            raise PerronError(
                f"DistributedDataParallel averages the gradients of nodes {listed(map(str, shared))}, and Decentralized needs "
                "each node's own. Train the bare model. transformers.Trainer, Accelerate and Lightning wrap it by themselves "
                "unless perron.init(isolate=True) is called before they start. To average gradients within a machine only, see "
                "examples/train_two_levels.py."
            )
    return found

"""Parameter groups and state dicts of `Decentralized`, as torch's optimizers have them.

The entry ``perron`` of a `state_dict` is the algorithm's state of this node.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from perron.algorithms.states import saved_fields
from perron.distributed.collective import AVERAGED
from perron.distributed.consistency import compare
from perron.distributed.driver import Driver
from perron.distributed.flat_parameters import FlatParameters, check_keys, check_rates
from perron.distributed.inner import Inner, build_inner
from perron.distributed.process_group import START_TIMEOUT
from perron.errors import PerronError


class StatefulOptimizer(Driver):
    """The part of `Decentralized` that concerns parameters, groups and state.

    Groups and state are those of the inner optimizer; the algorithm's own state is in `state_dict` beside them.
    """

    asynchronous: bool
    _averaging: bool

    def __init__(
        self, params: nn.Module | Iterable[Any], inner: Inner | None, lr: float | None, weight_decay: float
    ) -> None:
        if isinstance(params, Tensor):
            raise PerronError("params is a model, or a list of parameters or parameter groups; got a tensor.")
        self.model = params if isinstance(params, nn.Module) else None
        given = params.parameters() if isinstance(params, nn.Module) else params
        owner = build_inner(inner, list(given), lr, weight_decay)
        super().__init__(owner.param_groups, owner.defaults)
        self._owner, self.inner = owner, None if inner is None else owner
        self._share_groups()
        if self.defaults:  # an inner optimizer without any has keys of its own in each group
            check_keys(self.param_groups, self.defaults)
        if inner is None:
            check_rates(self.param_groups)
        self._flat = FlatParameters(self.param_groups, self.model)
        self.register_state_dict_post_hook(_add_state)

    def state_dict(self) -> dict[str, Any]:
        """As of any optimizer, with the algorithm's state of this node. Messages in flight are sent again after loading."""
        refuse_torch_checkpoint()
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume where `state_dict` was taken: the same algorithm, network, node and model; on all nodes, from the same step."""
        refuse_torch_checkpoint()
        state_dict = state_dict.copy()
        for before in self._optimizer_load_state_dict_pre_hooks.values():
            changed = before(self, state_dict)
            state_dict = state_dict if changed is None else changed
        packed = state_dict.get("perron") or {}
        state, last, step = self._unpack(packed)
        progress = self._unpack_progress(packed)
        if self._recovery is None and not self.asynchronous:  # elastic nodes have agreed before
            compare({"the step of the state to load": step}, self.node.peers, START_TIMEOUT)
        self._settle()
        self.load_groups({name: value for name, value in state_dict.items() if name != "perron"})
        self.algorithm_state, self.last, self.node.step = state, last, step
        self.node.posted_bytes = packed.get("bytes_sent", 0)
        with torch.no_grad():
            self._begin(progress)
        self.gradients_received = 0 if progress is None else packed["received"]
        for after in self._optimizer_load_state_dict_post_hooks.values():
            after(self)

    def load_groups(self, state_dict: dict[str, Any]) -> None:
        """Load groups and state of torch's part; moments get the type of the vector, in which the inner optimizer moves it."""
        with self._flat.placed_in(self._flat.point()):
            self._owner.load_state_dict(state_dict)
        self._share_groups()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if hasattr(self, "_owner"):
            raise PerronError("Parameter groups cannot be added to a Decentralized optimizer; make a new one.")
        super().add_param_group(param_group)

    def __getstate__(self) -> NoReturn:
        raise PerronError(
            "A Decentralized optimizer has connections to other processes and cannot be copied or pickled. Save or copy its "
            "state_dict()."
        )

    def _share_groups(self) -> None:
        self.param_groups, self.state = self._owner.param_groups, self._owner.state

    def _pack(self) -> dict[str, Any]:
        """Return the algorithm's state, and the facts that must be the same where it is unpacked."""
        if self._averaging:
            raise PerronError(AVERAGED.format("saving"))
        progress: dict[str, Tensor] = {}
        if self.gradients_received and self._progress is not None:
            progress = {name: value.clone() for name, value in self._progress.items()}
        elif self.gradients_received:
            title, received = self.algorithm.about.title, self.gradients_received
            raise PerronError(
                f"{title} is in the middle of a step ({received} of its gradients are in); save after it."
            )
        state = {name: value.clone() for name, value in self.algorithm_state._asdict().items()}
        where = {"step": self.node.step, "received": self.gradients_received, "progress": progress}
        where["bytes_sent"] = self.node.bytes_sent
        return self._identity() | where | {"last": self.last.clone(), "state": state}

    def _unpack(self, packed: dict[str, Any]) -> tuple[Any, Tensor, int]:
        """Return the algorithm's state, the last gradient and the step; refuse those of another algorithm, network or model."""
        if not packed:
            raise PerronError("This is not the state of a Decentralized optimizer: it has no entry 'perron'.")
        for name, value in self._identity().items():
            if packed[name] != value:
                raise PerronError(
                    f"The saved state has {name} {packed[name]}, this optimizer {value}; they must be equal. Every node "
                    "saves and loads its own state."
                )
        current = self.algorithm_state._asdict()
        shapes = {name: tuple(value.shape) for name, value in current.items()}
        saved = saved_fields(self.algorithm_state, packed["state"])
        if {name: tuple(value.shape) for name, value in saved.items()} != shapes:
            raise PerronError(f"The saved state does not fit this model: it needs {shapes}.")
        state = {name: saved[name].to(value, copy=True) for name, value in current.items()}
        return type(self.algorithm_state)(**state), packed["last"].to(self.last, copy=True), packed["step"]

    def _unpack_progress(self, packed: dict[str, Any]) -> dict[str, Tensor] | None:
        """Return the progress of a step that was saved in the middle."""
        if not packed.get("received"):
            return None
        whole, given = self.algorithm_state.x, packed["progress"]
        odd = {name: tuple(value.shape) for name, value in given.items() if value.shape not in (whole.shape, (1,), ())}
        if odd:
            raise PerronError(f"The saved state does not fit this model of {whole.numel()} numbers: it has {odd}.")
        return {
            name: value.to(whole, copy=True) if value.is_floating_point() else value.clone()
            for name, value in given.items()
        }

    def _identity(self) -> dict[str, Any]:
        numbers = {"node": self.node.number, "nodes": self.node.nodes}
        return {"algorithm": self._running_algorithm.description, "network": self.node.mixing.fingerprint} | numbers


def _add_state(optimizer: Any, state_dict: dict[str, Any]) -> dict[str, Any]:
    """The first hook of a `state_dict`: later ones see all of it."""
    return state_dict | {"perron": optimizer._pack()}


def refuse_torch_checkpoint() -> None:
    """Refuse calls from torch's distributed checkpoints, which leave out the algorithm's state and step to initialize others."""
    frame = sys._getframe()
    while frame := frame.f_back:  # type: ignore[assignment]
        caller = str(frame.f_globals.get("__name__"))
        if caller.startswith("torch.distributed.") and caller.endswith(".checkpoint.state_dict"):
            raise PerronError(
                "torch's get_optimizer_state_dict and set_optimizer_state_dict leave out the state of the algorithm. Use "
                "perron.distributed.checkpoint, a CheckpointManager, or optimizer.state_dict() of each node."
            )

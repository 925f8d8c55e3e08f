"""The entry ``perron`` of an optimizer's `state_dict`: the algorithm's state of this node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from perron.distributed.collective import AVERAGED
from perron.errors import PerronError

if TYPE_CHECKING:
    from perron.distributed.optimizer import Decentralized


def pack_state(optimizer: Decentralized) -> dict[str, Any]:
    """Return the algorithm's state, and the facts that must be the same where it is unpacked."""
    if optimizer._averaging:
        raise PerronError(AVERAGED.format("saving"))
    if optimizer.gradients_received:
        title, received = optimizer.algorithm.about.title, optimizer.gradients_received
        raise PerronError(f"{title} is in the middle of a step ({received} of its gradients are in); save after it.")
    state = {name: value.clone() for name, value in optimizer.algorithm_state._asdict().items()}
    return _identity(optimizer) | {"step": optimizer.steps, "last": optimizer.last.clone(), "state": state}


def unpack_state(optimizer: Decentralized, packed: dict[str, Any] | None) -> tuple[Any, Tensor, int]:
    """Return the algorithm's state, the last gradient and the step; refuse those of another algorithm, network or model."""
    if packed is None:
        raise PerronError("This is not the state of a Decentralized optimizer: it has no entry 'perron'.")
    for name, value in _identity(optimizer).items():
        if packed[name] != value:
            raise PerronError(f"The saved state has {name} {packed[name]}, this optimizer {value}; they must be equal.")
    current = optimizer.algorithm_state._asdict()
    shapes = {name: tuple(value.shape) for name, value in current.items()}
    if {name: tuple(value.shape) for name, value in packed["state"].items()} != shapes:
        raise PerronError(f"The saved state does not fit this model: it needs {shapes}.")
    state = {name: packed["state"][name].to(value, copy=True) for name, value in current.items()}
    return type(optimizer.algorithm_state)(**state), packed["last"].to(optimizer.last, copy=True), packed["step"]


def _identity(optimizer: Decentralized) -> dict[str, Any]:
    numbers = {"node": optimizer.node.number, "nodes": optimizer.node.nodes}
    return {"algorithm": optimizer.algorithm.description, "network": optimizer.node.mixing.fingerprint} | numbers

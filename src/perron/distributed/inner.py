"""Any optimizer of torch as the move of a decentralized algorithm: `Decentralized(..., inner=...)`.

The algorithm's direction is written into ``p.grad``, the optimizer steps, and the displacement of the parameters is read off. The
optimizer's groups and state are those of the `Decentralized` around it, so that schedulers and ``state_dict`` work as usual.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from perron.algorithms.base import Algorithm, Rate
from perron.algorithms.moves import AdamW, Clipped, Descent, Memory, Move, Moving, names_with_move
from perron.distributed.consistency import copy_tensors, gather_texts
from perron.distributed.process_group import Peers
from perron.errors import FileError, PerronError

if TYPE_CHECKING:
    from perron.distributed.flat_parameters import FlatParameters
    from perron.distributed.optimizer import Decentralized

Inner = Callable[[list[dict[str, Any]]], torch.optim.Optimizer]
PLAIN = (bool, int, float, str, type(None))
HOW = "inner= is a function of the parameter groups, as lambda groups: torch.optim.AdamW(groups, lr=3e-4)"


class TorchMove(Move):
    """The move of an optimizer of torch, whose memory is its own state and not part of the algorithm's.

    In elastic training, a step that loses a neighbor after the move is repeated, and then the optimizer steps twice.

    Args:
        optimizer: the optimizer.
        flat: the parameters that it moves.
    """

    scale_dependent: ClassVar[bool] = True

    def __init__(self, optimizer: torch.optim.Optimizer, flat: FlatParameters) -> None:
        self.optimizer, self.flat = optimizer, flat

    def __repr__(self) -> str:
        return f"TorchMove({type(self.optimizer).__module__}.{type(self.optimizer).__qualname__})"

    @property
    def rests(self) -> bool:
        return not any(group.get("weight_decay") for group in self.optimizer.param_groups)

    @property
    def label(self) -> str:
        return type(self.optimizer).__name__

    def step(self, memory: Memory, x: Tensor, u: Tensor, lr: Rate) -> tuple[Tensor, Memory]:  # noqa: ARG002
        """Let the optimizer step from x along u, with the learning rates of its groups; lr is not used."""
        moved = x.clone()
        with self.flat.placed_in(moved, u):
            self.optimizer.step()
        return moved - x, memory


class Groups(torch.optim.Optimizer):
    """Parameter groups without a step, where the algorithm itself moves the model."""


def build_inner(inner: Inner | None, given: list[Any], lr: float | None, weight_decay: float) -> torch.optim.Optimizer:
    """Call the user's function with the parameter groups, and check the optimizer that it returns."""
    if inner is None:
        return Groups(given, {"lr": lr, "weight_decay": weight_decay})
    if isinstance(inner, torch.optim.Optimizer) or not callable(inner):
        raise PerronError(f"{HOW}; got {type(inner).__name__}.")
    if lr is not None or weight_decay:
        raise PerronError("With inner=, give lr and weight_decay to that optimizer, not to Decentralized.")
    groups = given if given and isinstance(given[0], dict) else [{"params": given}]
    wanted = {id(param) for group in groups for param in _listed(group["params"])}
    optimizer = inner(groups)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise PerronError(f"{HOW}; it returned {type(optimizer).__name__}.")
    if {id(param) for group in optimizer.param_groups for param in group["params"]} != wanted:
        raise PerronError(f"{HOW}; the optimizer that it returned has other parameters than the groups.")
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise PerronError(
            f"{type(optimizer).__name__} evaluates the loss several times in a step, at points of its own, and cannot be the "
            "inner optimizer. Use one whose step needs no closure, such as torch.optim.AdamW."
        )
    if any(group.get("differentiable") for group in optimizer.param_groups):
        raise PerronError(
            "differentiable=True keeps the graph of a step, but the parameters of a model are leaves. Leave it out."
        )
    if isinstance(optimizer, torch.optim.SparseAdam):
        raise PerronError("SparseAdam takes sparse gradients only, and the algorithm's direction is dense. Use AdamW.")
    return optimizer


def _listed(params: Any) -> list[Any]:
    """Return the parameters of a group: one, several, or pairs of a name and a parameter."""
    return [params] if isinstance(params, Tensor) else [one[1] if isinstance(one, tuple) else one for one in params]


def with_move(
    algorithm: Algorithm,
    optimizer: torch.optim.Optimizer | None,
    flat: FlatParameters,
    clip: float | None,
    groups: list[dict[str, Any]],
) -> Algorithm:
    """Return the algorithm with the inner optimizer as its move, and with a clipped direction, if they are given."""
    if isinstance(algorithm, Moving):
        move, decay = algorithm.move, max(group.get("weight_decay", 0.0) for group in groups)
        if optimizer is None and decay and isinstance(move.move if isinstance(move, Clipped) else move, AdamW):
            raise PerronError(
                f"weight_decay={decay:g} of Decentralized is added to the gradient and tracked. With AdamW give it to the move, "
                f"which applies it to the model: move=AdamW(weight_decay={decay:g})."
            )
    if optimizer is None and clip is None:
        return algorithm
    what = "clip=" if optimizer is None else "inner="
    if not isinstance(algorithm, Moving):
        raise PerronError(
            f"{what} needs an algorithm that moves along a direction; {algorithm.about.title} does not. These do: "
            f"{names_with_move()}."
        )
    move = algorithm.move
    if optimizer is not None:
        if move != Descent():
            raise PerronError(f"Give either inner= or move=; got both, and move={move!r}.")
        move = TorchMove(optimizer, flat)
    return replace(algorithm, move=move if clip is None else Clipped(move, norm=clip))


# ---- the state of the inner optimizer, as tensors by name and plain values


def named_state(state: dict[int, dict[str, Any]]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Split the entry ``state`` of a `state_dict` into tensors and plain values, each named ``<parameter>.<name>``."""
    tensors: dict[str, Tensor] = {}
    plain: dict[str, Any] = {}
    for index, values in state.items():
        for name, value in values.items():
            if isinstance(value, Tensor):
                tensors[f"{index}.{name}"] = value
            elif isinstance(value, PLAIN):
                plain[f"{index}.{name}"] = value
            else:
                raise FileError(
                    f"The inner optimizer's state {name!r} is a {type(value).__name__}; only tensors and plain values are saved "
                    "and copied."
                )
    return tensors, plain


def unnamed_state(tensors: dict[str, Tensor], plain: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """Return the entry ``state`` of a `state_dict` from what `named_state` returned."""
    state: dict[int, dict[str, Any]] = {}
    for key, value in (tensors | plain).items():
        index, _, name = key.partition(".")
        state.setdefault(int(index), {})[name] = value
    return state


def plain_groups(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return parameter groups whose tensors, such as a learning rate, are numbers."""

    def plain(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [plain(entry) for entry in value]
        return value.tolist() if isinstance(value, Tensor) else value

    return [{key: plain(value) for key, value in one.items()} for one in groups]


def typed_groups(saved: list[dict[str, Any]], own: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what `plain_groups` made, with tensors for the options that are tensors in one's own groups."""

    def typed(value: Any, current: Any) -> Any:
        return torch.as_tensor(value).to(current) if isinstance(current, Tensor) else value

    pairs = zip(saved, own, strict=False)
    return [{key: typed(value, now.get(key)) for key, value in one.items()} for one, now in pairs] + saved[len(own) :]


def copy_memory(optimizer: Decentralized, sources: Sequence[int], peers: Peers) -> None:
    """Overwrite what the move remembers with that of the first source, on all ranks that are not sources."""
    if len(sources) == peers.size:
        return
    what, timeout = f"Node {optimizer.node.name} lost another node while moments were copied", optimizer.timeout
    state = optimizer.algorithm_state
    copy_tensors([getattr(state, name) for name in optimizer.algorithm.remembered], sources, peers, what, timeout)
    if optimizer.inner is None:
        return
    own = optimizer.inner.state_dict()
    tensors, plain = named_state(own["state"])
    shapes = {name: [list(value.shape), str(value.dtype).removeprefix("torch.")] for name, value in tensors.items()}
    shapes, plain = json.loads(gather_texts(json.dumps([shapes, plain]), peers, timeout)[sources[0]])
    if peers.rank not in sources:
        tensors = {name: torch.empty(shape, dtype=getattr(torch, dtype)) for name, (shape, dtype) in shapes.items()}
    copy_tensors([tensors[name] for name in shapes], sources, peers, what, timeout)
    if peers.rank not in sources:
        optimizer.load_groups(own | {"state": unnamed_state(tensors, plain)})

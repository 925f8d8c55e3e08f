"""States of other objects in checkpoints: schedulers, scalers, samplers, generators.

Each node saves the states of its own objects. A scheduler is the same on all nodes, a generator is not; nothing has to say
which is which: after a change of the number of nodes, a node that was there before gets its own state back, and a new one
gets the state that all others have in common, if there is one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from perron._storage.nested import flatten, restore
from perron._storage.tensorfile import digest, part
from perron.distributed.checkpoint_files import STATES
from perron.errors import PerronError, listed

Part = tuple[dict[str, Any], dict[str, Tensor]]  # facts and tensors of a node


def check_states(states: Mapping[str, Any]) -> None:
    """Refuse objects without a state."""
    for name, one in states.items():
        if not isinstance(one, torch.Generator) and not (
            hasattr(one, "state_dict") and hasattr(one, "load_state_dict")
        ):
            raise PerronError(
                f"{name}={one!r:.80} is not an option, and cannot be saved: objects in a checkpoint are torch.Generators, or "
                "have state_dict() and load_state_dict()."
            )


def pack_states(states: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the objects' states as tensors and facts by name."""
    tensors: dict[str, Tensor] = {}
    check_states(states)
    found = {
        name: one.get_state() if isinstance(one, torch.Generator) else one.state_dict() for name, one in states.items()
    }
    facts = {name: flatten(state, tensors, f"{STATES}{name}") for name, state in found.items()}
    return tensors, facts


def load_own(states: Mapping[str, Any], own: Part) -> str:
    """Load what this node has saved; return a remark if objects and states do not correspond."""
    saved = own[0].get("states", {})
    for name in states.keys() & saved.keys():
        _load(name, states[name], saved[name], own[1])
    missing, more = sorted(states.keys() - saved.keys()), sorted(saved.keys() - states.keys())
    remark = f"The checkpoint has no state of {listed(missing)}, which start from the beginning." if missing else ""
    if more:
        remark += f"{' ' * bool(remark)}Its states of {listed(more)} were not loaded: no such objects were given."
    return remark


def load_common(states: Mapping[str, Any], parts: list[Part]) -> str:
    """In a new node, load what all saved parts have in common; return a remark about what they have not."""
    different = []
    for name, one in states.items():
        values = [facts.get("states", {}).get(name) for facts, _ in parts]
        exact = {(str(value), _digest(name, tensors)) for value, (_, tensors) in zip(values, parts, strict=True)}
        if isinstance(one, torch.Generator) or len(exact) > 1 or values[0] is None:
            different.append(name)
        else:
            _load(name, one, values[0], parts[0][1])
    if not different:
        return ""
    return f"This node is new, and {listed(different)} of the others are their own: here they start from the beginning."


def _digest(name: str, tensors: dict[str, Tensor]) -> str:
    return digest(part(tensors, f"{STATES}{name}.").values())


def _load(name: str, one: Any, saved: Any, tensors: dict[str, Tensor]) -> None:
    try:
        state = restore(saved, tensors)
        if isinstance(one, torch.Generator):
            one.set_state(state)
        else:
            one.load_state_dict(state)
    except Exception as error:
        raise PerronError(
            f"The saved state of {name} does not fit the {type(one).__name__} given: {error!r:.200}."
        ) from None

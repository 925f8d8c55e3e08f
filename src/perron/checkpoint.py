"""Checkpoints: each node saves its own state; loading verifies it, falls back to an older one, and agrees with the others.

    FOLDER/step-0000000120/node-3.safetensors    of node 3: the algorithm's state, the model's buffers, torch's random state
    FOLDER/step-0000000120/node-3.json           step, network, parameter groups, your own notes; sha256 of both files' contents

The JSON file is written last and commits the other. Nothing is pickled. A file that was cut short or whose bits were flipped
does not count as saved.
"""

from __future__ import annotations

import json
import shutil
import warnings
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load as tensors_from
from safetensors.torch import save as bytes_of
from torch import Tensor

from perron.distributed import gathered
from perron.errors import FileError
from perron.files import write_bytes
from perron.optim import Decentralized

FORMAT = 1


@dataclass(frozen=True)
class Checkpoint:
    """What was loaded: the step it was taken after, your notes, and a remark if not everything could be taken over."""

    step: int
    notes: dict[str, Any]
    remark: str = ""


def save(folder: str | Path, optimizer: Decentralized, *, notes: dict[str, Any] | None = None, keep: int = 2) -> Path:
    """Save this node's part of a checkpoint; call it on every node after the same step.

    Args:
        folder: the same on all nodes, or one on each machine's own disk.
        notes: anything that JSON can hold, as the epoch.
        keep: how many checkpoints to keep; older ones of this node are removed.
    """
    folder = Path(folder)
    state = optimizer.state_dict()
    own = state["perron"]
    tensors = {f"state.{name}": value for name, value in own["state"].items()}
    tensors |= {"last": own["last"], "random": torch.get_rng_state()}
    if optimizer.model is not None:
        tensors |= {f"buffer.{name}": buffer for name, buffer in optimizer.model.named_buffers()}
    content = bytes_of({name: value.detach().cpu().contiguous() for name, value in tensors.items()})
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "sha256": sha256(content).hexdigest(),
        "notes": notes or {},
        "param_groups": state["param_groups"],
    } | {name: own[name] for name in ("algorithm", "network", "node", "nodes", "step")}
    target = folder / f"step-{own['step']:010d}"
    try:
        target.mkdir(parents=True, exist_ok=True)
        text = json.dumps(manifest | {"own_sha256": _digest(manifest)}, indent=1)
    except OSError as error:
        raise FileError(f"Cannot make the directory {target}: {error.strerror}.") from None
    except TypeError as error:
        raise FileError(f"A checkpoint's notes and parameter groups must be plain JSON values: {error}.") from None
    write_bytes(target / f"node-{own['node']}.safetensors", content)
    write_bytes(target / f"node-{own['node']}.json", text.encode())
    for old in _steps(folder, own["node"])[keep:]:
        _remove(folder / f"step-{old:010d}", own["node"])
    return target


def load(folder: str | Path, optimizer: Decentralized) -> Checkpoint | None:
    """Go on from the newest checkpoint that every node can read; None if there is none.

    With as many nodes as saved it, training goes on bit for bit. With another number, every node takes the average of the saved
    models that it finds, and the algorithm starts anew from there; a warning says so.
    """
    folder, node = Path(folder), optimizer.node.number
    mine = [step for step in _steps(folder, node) if _read(folder, step, node) is not None]
    other = [step for step in _steps(folder, None) if _saved_by(folder, step) not in (None, optimizer.node.nodes)]
    shared = [json.loads(text) for text in gathered(json.dumps({"mine": mine, "other": other}), optimizer.group)]
    same = set.intersection(*(set(one["mine"]) for one in shared)) - set(other)
    foreign = set.intersection(*(set(one["other"]) for one in shared))
    if same and max(same) >= max(foreign, default=-1):
        return _resume(folder, max(same), optimizer)
    return _adopt(folder, max(foreign), optimizer) if foreign else None


def _resume(folder: Path, step: int, optimizer: Decentralized) -> Checkpoint:
    found = _read(folder, step, optimizer.node.number)
    assert found is not None  # noqa: S101  (it was read a moment ago)
    manifest, tensors = found
    own = {name: manifest[name] for name in ("algorithm", "network", "node", "nodes", "step")}
    own |= {"last": tensors["last"], "state": _part(tensors, "state.")}
    optimizer.load_state_dict({"state": {}, "param_groups": manifest["param_groups"], "perron": own})
    _set_buffers(optimizer, _part(tensors, "buffer."))
    torch.set_rng_state(tensors["random"])
    return Checkpoint(step, manifest["notes"])


def _adopt(folder: Path, step: int, optimizer: Decentralized) -> Checkpoint:
    """The average of what another number of nodes saved."""
    found = [
        read for number in range(_saved_by(folder, step) or 0) if (read := _read(folder, step, number)) is not None
    ]
    if not found:
        raise FileError(f"None of the files in {folder / f'step-{step:010d}'} can be read.")
    models = [tensors["state.x"] for _, tensors in found]
    optimizer.take(torch.stack(models).mean(0))
    buffers = [_part(tensors, "buffer.") for _, tensors in found]
    _set_buffers(optimizer, {name: _mean([one[name] for one in buffers]) for name in buffers[0]})
    saved = found[0][0]["nodes"]
    remark = (
        f"The checkpoint of step {step} was saved by {saved} nodes, now there are {optimizer.node.nodes}: all start from the "
        f"average of the {len(found)} models found, and the algorithm starts anew."
    )
    warnings.warn(remark, stacklevel=3)
    return Checkpoint(step, found[0][0]["notes"], remark)


def _steps(folder: Path, node: int | None) -> list[int]:
    """The steps of which there are files (of a node, or of any), the newest first."""
    name = "node-*.json" if node is None else f"node-{node}.json"
    found = {path.parent.name.removeprefix("step-") for path in folder.glob(f"step-*/{name}")}
    return sorted((int(step) for step in found if step.isdecimal()), reverse=True)


def _saved_by(folder: Path, step: int) -> int | None:
    """How many nodes saved a checkpoint, as the first readable file says."""
    for path in sorted((folder / f"step-{step:010d}").glob("node-*.json")):
        if (manifest := _manifest(path)) is not None:
            return int(manifest["nodes"])
    return None


def _manifest(path: Path) -> dict[str, Any] | None:
    try:
        manifest: dict[str, Any] = json.loads(path.read_bytes())
        said = manifest.pop("own_sha256")
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return None
    return manifest if said == _digest(manifest) and manifest["format"] == FORMAT else None


def _read(folder: Path, step: int, node: int) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
    """A node's part of a checkpoint; None if it is not whole."""
    path = folder / f"step-{step:010d}" / f"node-{node}.json"
    if (manifest := _manifest(path)) is None:
        return None
    try:
        content = path.with_suffix(".safetensors").read_bytes()
    except OSError:
        return None
    return (manifest, tensors_from(content)) if sha256(content).hexdigest() == manifest["sha256"] else None


def _digest(manifest: dict[str, Any]) -> str:
    return sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _mean(values: list[Tensor]) -> Tensor:
    return torch.stack(values).mean(0) if values[0].is_floating_point() else values[0]


def _set_buffers(optimizer: Decentralized, buffers: dict[str, Tensor]) -> None:
    if optimizer.model is not None:
        with torch.no_grad():
            for name, buffer in optimizer.model.named_buffers():
                if name in buffers:
                    buffer.copy_(buffers[name])


def _remove(folder: Path, node: int) -> None:
    """A node's part of an old checkpoint, the manifest first; the directory, if nothing is left in it."""
    for suffix in (".json", ".safetensors"):
        (folder / f"node-{node}{suffix}").unlink(missing_ok=True)
    if not any(folder.iterdir()):
        shutil.rmtree(folder, ignore_errors=True)

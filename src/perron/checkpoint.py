"""Checkpoints: each node saves its own state; loading verifies it, falls back to an older one, and agrees with the others.

    FOLDER/RUN/step-0000000120/node-3.safetensors   of node 3: the algorithm's state, the model's buffers, torch's random state
    FOLDER/RUN/step-0000000120/node-3.json          step, network, parameter groups, your own notes; sha256 of both contents

RUN is the name of a training (the time at which its optimizer was made), so that parts of different trainings never mix. The JSON
file is written last and commits the other. Nothing is pickled. A file that was cut short or whose bits were flipped does not
count as saved. Not saved: schedulers, GradScaler, random states other than torch's own on the CPU; put what you need
into ``notes``.
"""

from __future__ import annotations

import json
import warnings
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load as tensors_from
from safetensors.torch import save as bytes_of
from torch import Tensor

from perron.agreement import gathered
from perron.atomic import write_bytes
from perron.elastic import START
from perron.errors import FileError
from perron.flat import averaged
from perron.optim import Decentralized

FORMAT = 1


@dataclass(frozen=True)
class Checkpoint:
    """What was loaded: the step it was taken after, your notes, and a remark if not everything could be taken over."""

    step: int
    notes: dict[str, Any]
    remark: str = ""


class Moment(NamedTuple):
    """A training and a step of it; later ones are greater."""

    run: str
    step: int

    def within(self, folder: Path) -> Path:
        """Its directory."""
        return folder / self.run / f"step-{self.step:010d}"


def save(folder: str | Path, optimizer: Decentralized, *, notes: dict[str, Any] | None = None, keep: int = 2) -> Path:
    """Save this node's part of a checkpoint; call it on every node after the same step.

    Args:
        folder: the same on all nodes, or one on each machine's own disk.
        notes: anything that JSON can hold, as the epoch.
        keep: how many checkpoints to keep, 2 or more (nodes do not save at the same moment); older ones of this node are removed.
    """
    if keep < 2:
        raise FileError(f"keep must be 2 or more, since nodes do not save at the same moment; got {keep}.")
    folder, state = Path(folder), optimizer.state_dict()
    own = state["perron"]
    tensors = {f"state.{name}": value for name, value in own["state"].items()}
    tensors |= {"last": own["last"], "random": torch.get_rng_state()}
    if optimizer.model is not None:
        tensors |= {f"buffer.{name}": buffer for name, buffer in optimizer.model.named_buffers()}
    content = bytes_of({name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()})
    facts = {name: own[name] for name in ("algorithm", "network", "node", "nodes", "step")}
    facts |= {"format": FORMAT, "sha256": sha256(content).hexdigest(), "notes": notes or {}}
    try:
        manifest = json.loads(json.dumps(facts | {"param_groups": state["param_groups"]}))
    except (TypeError, ValueError) as error:
        raise FileError(f"A checkpoint's notes and parameter groups must be plain JSON values: {error}.") from None
    now = Moment(optimizer.born, own["step"])
    target = now.within(folder)
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"Cannot make the directory {target}: {error.strerror}.") from None
    write_bytes(target / f"node-{own['node']}.safetensors", content)
    write_bytes(target / f"node-{own['node']}.json", json.dumps(manifest | {"own_sha256": _digest(manifest)}).encode())
    for old in sorted(set(_moments(folder, own["node"])) - {now}, reverse=True)[keep - 1 :]:
        _remove(old.within(folder), own["node"])
    return target


def load(folder: str | Path, optimizer: Decentralized) -> Checkpoint | None:
    """Go on from the newest checkpoint that every node can read; None if there is none.

    With as many nodes as saved it, training goes on bit for bit. With another number, every node takes the average of the saved
    models that it finds, and the algorithm starts anew from there. A warning says so, and also if newer checkpoints were left
    aside because they are damaged or not there on every node. A process that joined a training under way loads nothing.
    """
    folder = Path(folder)
    texts: list[str] = []

    def tell() -> None:
        number, nodes = optimizer.node.number, optimizer.node.nodes
        whole = {moment: saved for moment in _moments(folder) if (saved := _saved_by(folder, moment))}
        mine = [moment for moment, saved in whole.items() if saved == nodes and _read(folder, moment, number)]
        foreign = [moment for moment, saved in whole.items() if saved != nodes]
        told = json.dumps({"mine": mine, "foreign": foreign, "seen": _moments(folder, number)})
        texts[:] = gathered(told, optimizer.node.peers, START)

    if optimizer.joined or not optimizer.together("load", tell):
        return None
    everybody = [{key: {Moment(*one) for one in value} for key, value in json.loads(text).items()} for text in texts]
    same, other = (set.intersection(*(one[key] for one in everybody)) for key in ("mine", "foreign"))
    chosen = max(same | other, default=None)
    newer = sorted(
        moment for moment in set.union(*(one["seen"] for one in everybody)) if chosen is None or moment > chosen
    )
    remark = (
        f"Checkpoints of step {', '.join(str(one.step) for one in newer)} are damaged or not there on every node."
        if newer
        else ""
    )
    if chosen is None:
        if remark:
            warnings.warn(f"{remark} Nothing was loaded.", stacklevel=2)
        return None
    found = _resume(folder, chosen, optimizer, remark) if chosen in same else _adopt(folder, chosen, optimizer, remark)
    if found.remark:
        warnings.warn(found.remark, stacklevel=2)
    return found


def _resume(folder: Path, moment: Moment, optimizer: Decentralized, remark: str) -> Checkpoint:
    found = _read(folder, moment, optimizer.node.number)
    if found is None:
        raise FileError(f"{moment.within(folder)} was changed while it was being loaded.")
    manifest, tensors = found
    own = {name: manifest[name] for name in ("algorithm", "network", "node", "nodes", "step")}
    own |= {"last": tensors["last"], "state": _part(tensors, "state.")}
    optimizer.load_state_dict({"state": {}, "param_groups": manifest["param_groups"], "perron": own})
    _set_buffers(optimizer, _part(tensors, "buffer."))
    torch.set_rng_state(tensors["random"])
    return Checkpoint(moment.step, manifest["notes"], remark)


def _adopt(folder: Path, moment: Moment, optimizer: Decentralized, remark: str) -> Checkpoint:
    """The average of what another number of nodes saved."""
    saved = _saved_by(folder, moment) or 0
    found = [read for number in range(saved) if (read := _read(folder, moment, number)) is not None]
    if not found:
        raise FileError(f"None of the files in {moment.within(folder)} can be read.")
    optimizer.take(torch.stack([tensors["state.x"] for _, tensors in found]).mean(0))
    optimizer.node.step = moment.step
    for own, old in zip(optimizer.param_groups, found[0][0]["param_groups"], strict=False):
        own.update({key: value for key, value in old.items() if key != "params"})
    parts = [_part(tensors, "buffer.") for _, tensors in found]
    together: dict[str, list[Tensor]] = defaultdict(list)
    for part in parts:
        for name, value in part.items():
            together[name].append(value)
    floats = {name: torch.stack(values) for name, values in together.items() if values[0].is_floating_point()}
    _set_buffers(optimizer, parts[0] | averaged(floats))
    said = (
        f"The checkpoint of step {moment.step} was saved by {saved} nodes, now there are {optimizer.node.nodes}: all start from "
        f"the average of the {len(found)} models found, and the algorithm starts anew."
    )
    return Checkpoint(moment.step, found[0][0]["notes"], f"{remark} {said}".strip())


def _moments(folder: Path, node: int | None = None) -> list[Moment]:
    """All of which there are files (of a node, or of any)."""
    name = "node-*.json" if node is None else f"node-{node}.json"
    places = {path.parent for path in folder.glob(f"*/step-*/{name}")}
    steps = [(place.parent.name, place.name.removeprefix("step-")) for place in places]
    return [Moment(run, int(step)) for run, step in steps if step.isdecimal()]


def _saved_by(folder: Path, moment: Moment) -> int | None:
    """How many nodes saved a checkpoint, as the first readable file says."""
    for path in sorted(moment.within(folder).glob("node-*.json")):
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


def _read(folder: Path, moment: Moment, node: int) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
    """A node's part of a checkpoint; None if it is not whole."""
    path = moment.within(folder) / f"node-{node}.json"
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


def _set_buffers(optimizer: Decentralized, buffers: dict[str, Tensor]) -> None:
    if optimizer.model is not None:
        with torch.no_grad():
            for name, buffer in optimizer.model.named_buffers():
                if name in buffers:
                    buffer.copy_(buffers[name])


def _remove(place: Path, node: int) -> None:
    """A node's part of an old checkpoint, the manifest first; the directories, if nothing is left in them."""
    for suffix in (".json", ".safetensors"):
        (place / f"node-{node}{suffix}").unlink(missing_ok=True)
    with suppress(OSError):  # another node's part is still there, or it was the one to remove it
        place.rmdir()
        place.parent.rmdir()
